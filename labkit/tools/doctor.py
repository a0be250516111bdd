"""`labkit doctor`: common problems on this machine, each with the way to fix it."""

import functools
import json
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from importlib import metadata, util
from pathlib import Path
from typing import Any, NamedTuple

import labkit
from labkit.base.project import project_root
from labkit.errors import refuse_unknown
from labkit.labs.presets import PRESETS
from labkit.ranks.launch import child_environment

_GIB = 2**30
FREE = 2.0  # GiB of disk and of memory: data sets 0.1, a lab's kernel with MindSpore about 1
# GiB: reserved, not used. The convolution below reaches 2.4 on two cores.
_ADDRESS_SPACE = 4.0
_SECONDS = 120.0  # for the measurements; on a busy machine an import of MindSpore took 80
# Measured with 8 images: 0.7 to 1.6 with the fast kernel, 60 to 260 with the slow one.
_SLOWEST_CONVOLUTION = 10.0
INSTALL = (
    f"install the pinned versions: {sys.executable} -m pip install -c constraints.txt -e '.[labs]'"
)
# Variable -> (whether a value is right, what happens otherwise), as seen with MindSpore 2.10.0.
_LEVELS = ("0", "1", "2", "3", "4")
_VARIABLES: dict[str, tuple[Callable[[str], bool], str]] = {
    "PYTHONOPTIMIZE": (
        lambda value: value == "0",
        "Python leaves out every assert, and with them the labs' proofs",
    ),
    "MPLBACKEND": (
        lambda value: value.startswith("module://") or value in ("inline", "ipympl", "widget"),
        "JupyterLab shows no figures",
    ),
    "GLOG_v": (_LEVELS.__contains__, "MindSpore refuses to be imported: the level is 0 to 4"),
    "MS_SIMULATION_LEVEL": (lambda value: False, "MindSpore simulates: nothing is computed"),
    "LABKIT_PRESET": (PRESETS.__contains__, f"no preset of that name: {', '.join(PRESETS)}"),
}
# 1 + 1, the devices, and a 64 -> 64 convolution of 3x3 on (8, 64, 32, 32) beside the matrix product
# with as many multiplications, in a process of its own: a broken installation may crash.
_PROBE = """
import json, time
import labkit
from labkit.runtime import available_devices
devices = available_devices()
onednn = labkit.start("CPU").onednn
import mindspore, numpy
from mindspore import Tensor, nn
total = float((mindspore.Tensor(1.0) + 1).asnumpy())
random = numpy.random.default_rng(1)
images = Tensor(random.standard_normal((8, 64, 32, 32), dtype=numpy.float32))
rows = Tensor(random.standard_normal((8 * 32 * 32, 64 * 9), dtype=numpy.float32))
layer = nn.Conv2d(64, 64, 3, pad_mode="same")
product = nn.Dense(64 * 9, 64, has_bias=False)
def seconds(compute):
    times = []
    for _ in range(6):
        began = time.perf_counter()
        compute().asnumpy()
        times.append(time.perf_counter() - began)
        if sum(times[1:]) > 1:
            break
    return min(times[1:])
print("\\nprobe:", json.dumps({
    "devices": list(devices), "sum": total, "numpy": numpy.__version__, "onednn": onednn,
    "mindspore": mindspore.__version__,
    "convolution": seconds(lambda: layer(images)), "matmul": seconds(lambda: product(rows)),
}))
"""


class Check(NamedTuple):
    """One finished check: its name, whether all is well, what was seen, and how to fix it."""

    name: str
    ok: bool
    found: str
    remedy: str = ""


Finding = tuple[bool, str, str]


def _platform(root: Path) -> Finding:
    name, processor = platform.system(), platform.machine()
    ok = name == "Linux" and processor in ("x86_64", "aarch64")
    remedy = "run labkit in WSL 2 on Windows, in a Linux container on macOS"
    return ok, f"{name} on {processor}", remedy


def _python(root: Path) -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    ok = (3, 11) <= sys.version_info[:2] <= (3, 12)
    return ok, f"{version} at {sys.executable}", "make run PYTHON=/path/to/python3.12"


def _checkout(root: Path) -> Finding:
    imported, here = Path(labkit.__file__).resolve().parent, (root / "labkit").resolve()
    ok = imported == here or not here.is_dir()
    remedy = f"in {root}: {INSTALL}; take another labkit out of PYTHONPATH"
    return ok, f"{imported} is imported", remedy


def _packages(root: Path) -> Finding:
    try:
        pins = (root / "constraints.txt").read_text("utf-8").splitlines()
        project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    except FileNotFoundError as error:
        return True, f"nothing to compare with: no {error.filename}", ""
    from packaging.requirements import Requirement

    wrong, named = [], [*project["dependencies"], *project["optional-dependencies"]["labs"]]
    needed = {Requirement(text).name for text in named}
    for line in pins:
        if not line or line.startswith("#"):
            continue
        pin = Requirement(line)
        if pin.marker is not None and not pin.marker.evaluate():
            continue
        try:
            version = metadata.version(pin.name).split("+")[0]
        except metadata.PackageNotFoundError:
            version = "not installed" if pin.name in needed else ""
        if version and version not in pin.specifier:
            wrong.append(f"{pin.name} is {version}; expected {pin.specifier}")
    return not wrong, "; ".join(wrong[:5]) or "as in constraints.txt", INSTALL


def _kernel(root: Path) -> Finding:
    if util.find_spec("jupyter_client") is None or util.find_spec("ipykernel") is None:
        return False, "ipykernel or jupyter_client is missing", INSTALL
    from jupyter_client.kernelspec import KernelSpecManager

    program = KernelSpecManager().get_kernel_spec("python3").argv[0]
    own = program in ("python", "python3") or Path(program).parent == Path(sys.executable).parent
    remedy = "remove the user's own kernel python3 (jupyter kernelspec list names its folder)"
    return own, f"python3 starts {program}", remedy


def _msrun(root: Path) -> Finding:
    beside = Path(sys.executable).parent / "msrun"
    place = str(beside) if beside.is_file() else shutil.which("msrun")
    return place is not None, place or "not found", INSTALL


def _variables(root: Path) -> Finding:
    broken = {
        name: why
        for name, (is_right, why) in _VARIABLES.items()
        if os.environ.get(name) and not is_right(os.environ[name])
    }
    text = "; ".join(f"{name}={os.environ[name]}: {why}" for name, why in broken.items())
    return not broken, text or "none that breaks something", f"unset {' '.join(broken)}"


def _disk(root: Path) -> Finding:
    free = shutil.disk_usage(root).free / _GIB
    remedy = f"free some space (make clean removes runs and caches): {FREE:g} GiB are needed"
    return free >= FREE, f"{free:.1f} GiB free at {root}", remedy


def _folders(root: Path) -> Finding:
    for place in (root, Path(os.environ.get("TMPDIR") or tempfile.gettempdir())):
        try:
            tempfile.TemporaryFile(dir=place).close()
        except OSError as error:
            remedy = "give yourself the right to write there, or set TMPDIR to another folder"
            return False, f"{place}: {error.strerror}", remedy
    return True, f"writable: {root} and the folder for temporary files", ""


def _memory(root: Path) -> Finding:
    from labkit.tools.run import free_memory

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < _ADDRESS_SPACE * _GIB:
        remedy = f"lift the limit (ulimit -v unlimited); {_ADDRESS_SPACE:g} GiB are needed"
        return False, f"the address space is limited to {limit / _GIB:.1f} GiB", remedy
    free = free_memory() / _GIB
    remedy = f"close other programs, or give the container more: {FREE:g} GiB are needed"
    return free >= FREE, f"{free:.1f} GiB free, of this machine or of the container", remedy


def _loopback(root: Path) -> Finding:
    remedy = "bring the loopback interface up (ip link set lo up): kernels and ranks use it"
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=2).close()
    except OSError as error:
        return False, f"no connection to 127.0.0.1: {error.strerror or error}", remedy
    return True, "127.0.0.1 can be reached", ""


def _data(root: Path) -> Finding:
    folder = root / "data_scripts" / "bundled" / "mnist"
    if not folder.is_dir():
        return True, "nothing to look at: no bundled MNIST", ""
    sizes = {path.name: path.stat().st_size for path in folder.glob("*.gz")}
    ok = len(sizes) == 4 and all(sizes.values())
    return ok, f"{len(sizes)} files of MNIST", "git checkout -- data_scripts brings them back"


@functools.cache
def _probe() -> dict[str, Any] | str:
    """Return what the measurements printed, or why there is nothing."""
    gone = [name for name, (is_right, _) in _VARIABLES.items() if name in os.environ]
    variables = {name: text for name, text in child_environment().items() if name not in gone}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-c", _PROBE],
                cwd=folder,
                env=variables,
                capture_output=True,
                text=True,
                timeout=_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return f"no answer within {_SECONDS:.0f} s"
    lines = [line for line in done.stdout.splitlines() if line.startswith("probe:")]
    if lines:
        return json.loads(lines[0].removeprefix("probe:"))
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


def _arithmetic(root: Path) -> Finding:
    answer = _probe()
    if isinstance(answer, str):
        return False, f"MindSpore cannot compute: {answer}", INSTALL
    ok = answer["sum"] == 2.0 and answer["numpy"].startswith("1.")
    text = f"MindSpore {answer['mindspore']}, numpy {answer['numpy']}, 1 + 1 = {answer['sum']:g}"
    return ok, text, f"numpy must be below 2: {INSTALL}"


def _devices(root: Path) -> Finding:
    answer = _probe()
    if isinstance(answer, str):
        return False, f"cannot be asked: {answer}", INSTALL
    text = f"{', '.join(answer['devices'])} (GPU plugins are for CUDA 11.1 and 11.6 alone)"
    return "CPU" in answer["devices"], text, INSTALL


def _convolution(root: Path) -> Finding:
    answer = _probe()
    if isinstance(answer, str):
        return False, f"cannot be measured: {answer}", INSTALL
    ratio = answer["convolution"] / answer["matmul"]
    text = (
        f"{1000 * answer['convolution']:.1f} ms, an equal matrix product "
        f"{1000 * answer['matmul']:.1f} ms, oneDNN up to {answer['onednn']}"
    )
    remedy = "take ONEDNN_MAX_CPU_ISA out of the environment, or set it to AVX2"
    return ratio <= _SLOWEST_CONVOLUTION, text, remedy


_CHECKS: dict[str, Callable[[Path], Finding]] = {
    "platform": _platform,
    "python": _python,
    "checkout": _checkout,
    "packages": _packages,
    "kernel": _kernel,
    "msrun": _msrun,
    "environment": _variables,
    "disk": _disk,
    "folders": _folders,
    "memory": _memory,
    "loopback": _loopback,
    "data": _data,
    "numpy": _arithmetic,
    "devices": _devices,
    "convolution": _convolution,
}


def run(names: Sequence[str] = (), root: Path | None = None) -> list[Check]:
    """Run the named checks, or all, of the project ``root`` (default: the one around here).

    Raises:
        InputError: if a name is unknown.
    """
    for name in names:
        refuse_unknown("check", name, _CHECKS)
    folder = root or project_root() or Path.cwd()
    return [_look(name, folder) for name in names or _CHECKS]


def _look(name: str, folder: Path) -> Check:
    """Return the finished check; one that raises (a package is missing) has failed."""
    try:
        ok, found, remedy = _CHECKS[name](folder)
    except Exception as error:  # whatever a broken installation raises
        return Check(name, False, f"{type(error).__name__}: {error}", INSTALL)
    return Check(name, ok, found, "" if ok else remedy)
