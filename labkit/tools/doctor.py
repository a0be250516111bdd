"""`labkit doctor`: common problems of a new machine, each with its cause and its remedy."""

import functools
import gzip
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import timeit
import tomllib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

import labkit
from labkit.base import memory
from labkit.base.project import project_root
from labkit.ranks.launch import child_environment

INSTALL = (
    f"install the pinned versions: {sys.executable} -m pip install -c constraints.txt -e '.[labs]'"
)
_GIB = 2**30
_FREE_DISK = 2.0  # GiB: data sets 0.1, a run with checkpoints 0.1, the rest is room to work
_FREE_MEMORY = 2.0  # GiB: a lab's kernel with MindSpore takes about 1
_SECONDS = 120.0  # for all that is measured; on a busy machine an import of MindSpore took 80
# A convolution over an equal matrix product: the fast kernel takes 0.7-1.6, the slow one 60-260.
_SLOWEST_CONVOLUTION = 10.0
# Variables that break something as soon as they are set, but for the values listed.
_VARIABLES: dict[str, tuple[tuple[str, ...], str]] = {
    "PYTHONOPTIMIZE": (("0",), "Python leaves out every assert, and with them the labs' proofs"),
    "MPLBACKEND": (("inline", "ipympl", "widget"), "JupyterLab shows no figures"),
    "GLOG_v": (tuple("01234"), "MindSpore refuses to be imported: the level is 0 to 4"),
    "MS_SIMULATION_LEVEL": ((), "MindSpore simulates: nothing is computed"),
    "MS_DEV_PRECOMPILE_ONLY": (("0",), "MindSpore compiles only: nothing is computed"),
}


@dataclass(frozen=True)
class Check:
    """One finished check: its name, whether it passed, what was found, and the remedy."""

    name: str
    ok: bool
    found: str
    remedy: str


def run() -> list[Check]:
    """Run all checks, for the project around the working folder."""
    root, checks = project_root() or Path.cwd(), []
    for name, look in CHECKS.items():
        try:
            checks.append(Check(name, *look(root)))
        except Exception as error:  # whatever a broken installation raises: a package is missing
            checks.append(Check(name, False, f"cannot be checked: {error!r}", INSTALL))
    return checks


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object alone.")] = False,
) -> None:
    """Check this machine for known problems, and suggest remedies. Takes under 10 seconds.

    Exit code 0: all checks passed; 1: one or more failed.

    Example: labkit doctor
    """
    checks = run()
    failed = [check for check in checks if not check.ok]
    if as_json:
        print(json.dumps({check.name: asdict(check) for check in checks}))
    else:
        for check in checks:
            print(f"{'pass' if check.ok else 'FAIL'}  {check.name:12}  {check.found}")
            if check in failed:
                print(f"{'':20}remedy: {check.remedy}")
        print(f"{len(checks) - len(failed)} of {len(checks)} checks passed")
    raise typer.Exit(1 if failed else 0)


Finding = tuple[bool, str, str]  # as in Check, without the name


def _python(root: Path) -> Finding:
    system = f"{platform.system()} on {platform.machine()}"
    found = f"{platform.python_version()} at {sys.executable}, {system}"
    if system not in ("Linux on x86_64", "Linux on aarch64"):
        return False, found, "run labkit on Linux (x86_64 or aarch64): WSL 2 or a container"
    remedy = "use Python 3.11 or 3.12: make distclean; make run PYTHON=/path/to/python3.12"
    return sys.version_info[:2] in ((3, 11), (3, 12)), found, remedy


def _checkout(root: Path) -> Finding:
    """Look which labkit is imported: an environment of another or a moved checkout has another."""
    imported, here = Path(labkit.__file__).resolve().parent, (root / "labkit").resolve()
    if imported == here or not here.is_dir():
        return True, str(imported), ""
    found = f"{imported} is imported; the notebooks here belong to {here}"
    return False, found, f"unset PYTHONPATH; if that is not enough, in {root}: {INSTALL}"


def _packages(root: Path) -> Finding:
    """Compare what is installed with the pins whose markers hold here."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    texts = [*project["dependencies"], *project["optional-dependencies"]["labs"]]
    needed = {canonicalize_name(Requirement(text).name) for text in texts}
    lines = (root / "constraints.txt").read_text("utf-8").splitlines()
    wrong = []
    for pin in (Requirement(line) for line in lines if line and not line.startswith("#")):
        if pin.marker and not pin.marker.evaluate():
            continue
        try:
            version = metadata.version(pin.name)
        except metadata.PackageNotFoundError:
            if pin.name in needed:  # others are of the tests, or another platform needs them
                wrong.append(f"{pin.name} is missing, expected {pin}")
            continue
        if not pin.specifier.contains(version.split("+")[0], prereleases=True):
            wrong.append(f"{pin.name} {version}, expected {pin}")
    return not wrong, "; ".join(wrong[:5]) or "as in constraints.txt", INSTALL


def _msrun(root: Path) -> Finding:
    here = Path(sys.executable).parent
    place = shutil.which("msrun", path=f"{here}:{os.environ['PATH']}")
    return place is not None, place or "not found", f"it comes with MindSpore: {INSTALL}"


def _kernel(root: Path) -> Finding:
    """Look which Python the notebooks' kernel starts: a user's own "python3" takes precedence."""
    from jupyter_client.kernelspec import KernelSpecManager

    spec = KernelSpecManager().get_kernel_spec("python3")
    program = spec.argv[0]  # jupyter_client replaces "python" and "python3" by its own Python
    here = Path(sys.executable).parent.resolve()
    ok = program in ("python", "python3") or Path(program).parent.resolve() == here
    return ok, f"python3 starts {program}", f"remove the other kernel: rm -r '{spec.resource_dir}'"


def _variables(root: Path) -> Finding:
    bad = _wrong_variables()
    found = "; ".join(f"{name}={os.environ[name]}: {_VARIABLES[name][1]}" for name in bad)
    return not bad, found or "no variable that breaks something", f"unset {' '.join(bad)}"


def _wrong_variables() -> list[str]:
    set_here = {name: os.environ[name] for name in _VARIABLES if os.environ.get(name)}
    return [
        name
        for name, value in set_here.items()
        if value not in _VARIABLES[name][0] and not value.startswith("module://")
    ]


def _disk(root: Path) -> Finding:
    free = shutil.disk_usage(root).free / _GIB
    writable = os.access(root, os.W_OK)
    found = f"{free:.1f} GiB free at {root}" + ("" if writable else ", read-only")
    remedy = f"make clean removes runs and caches; {_FREE_DISK:g} GiB are needed"
    return free >= _FREE_DISK and writable, found, remedy


def _memory(root: Path) -> Finding:
    free, left = memory.free_memory(), memory.left_in_container()
    where = "free" if free < left else "left of what this container may have"
    remedy = f"close other programs, or give the container more; {_FREE_MEMORY:g} GiB are needed"
    return free >= _FREE_MEMORY * _GIB, f"{free / _GIB:.1f} GiB {where}", remedy


def _cores(root: Path) -> Finding:
    """Count the cores that this process may use, in time too (a container's ``cpu.max``)."""
    count = float(len(os.sched_getaffinity(0)))
    for group in memory.control_groups():
        with suppress(OSError, ValueError):
            quota, period = (group / "cpu.max").read_text().split()
            count = min(count, int(quota) / int(period))
    return count >= 1, f"{count:g} may be used", "give the container at least one core"


def _data(root: Path) -> Finding:
    """Compare the bundled MNIST and the prepared copy with each other, by SHA-256."""
    bundled = root / "data_scripts" / "bundled" / "mnist"
    files = sorted(bundled.glob("*.gz"))
    for packed in files:
        try:
            digest = hashlib.sha256(gzip.decompress(packed.read_bytes())).digest()
        except (OSError, EOFError) as error:
            return False, f"{packed} is damaged: {error}", f"git checkout -- {bundled}"
        for copy in (root / "datasets" / "MNIST_Data").glob(f"*/{packed.stem}"):
            if hashlib.sha256(copy.read_bytes()).digest() != digest:
                return False, f"{copy} is not {packed}", f"rm '{copy}': the labs prepare it again"
    found = f"{len(files)} bundled files of MNIST"
    return len(files) in (0, 4), found, f"git checkout -- {bundled}"


def _numpy(root: Path) -> Finding:
    """MindSpore computes with NumPy 1 only: with 2 even 1 + 1 fails."""
    answer = _measured("arithmetic")
    found = f"numpy {answer['numpy']}, MindSpore {answer['mindspore']}: 1 + 1 = {answer['sum']:g}"
    return answer["numpy"].startswith("1.") and answer["sum"] == 2.0, found, INSTALL


def _device(root: Path) -> Finding:
    usable = _measured("devices")
    return "CPU" in usable, f"can be used: {', '.join(usable) or 'none'}", INSTALL


def _convolution(root: Path) -> Finding:
    """MindSpore's AVX-512 convolution is slow on many machines; ``labkit.start`` asks for AVX2."""
    answer = _measured("convolution")
    found = (
        f"{answer['ratio']:.1f} times an equal matrix product (at most {_SLOWEST_CONVOLUTION:g}), "
        f"ONEDNN_MAX_CPU_ISA={answer['instructions'] or 'not set'}"
    )
    remedy = "unset ONEDNN_MAX_CPU_ISA (labkit.start then sets AVX2), or set it to AVX2"
    return answer["ratio"] <= _SLOWEST_CONVOLUTION, found, remedy


CHECKS: dict[str, Callable[[Path], Finding]] = {
    "python": _python,
    "labkit": _checkout,
    "packages": _packages,
    "msrun": _msrun,
    "kernel": _kernel,
    "environment": _variables,
    "disk": _disk,
    "memory": _memory,
    "cores": _cores,
    "data": _data,
    "numpy": _numpy,
    "device": _device,
    "convolution": _convolution,
}


def _measured(name: str) -> Any:
    answers = _measure()
    if name not in answers:
        raise RuntimeError(answers["end"])
    return answers[name]


@functools.cache
def _measure() -> dict[str, Any]:
    """Compute with MindSpore in a process of its own, which may crash or hang."""
    program = "from labkit.tools.doctor import probe; probe()"
    gone = _wrong_variables()  # they have a check of their own
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", program],
            env={name: text for name, text in child_environment().items() if name not in gone},
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return {"end": f"no answer within {_SECONDS:g} s"}
    last = done.stderr.strip().rpartition("\n")[2]
    answers = {"end": f"the process ended with exit code {done.returncode}: {last}"}
    for line in done.stdout.splitlines():
        if line.startswith("answer "):
            answers |= json.loads(line.removeprefix("answer "))
    return answers


def probe() -> None:
    """Print what MindSpore computes, as lines "answer {...}"; those before a crash count."""
    from labkit import runtime

    runtime.start("CPU")  # before MindSpore is imported, which reads variables then

    import mindspore
    import numpy as np
    from mindspore import Tensor, nn

    def say(**answer: Any) -> None:
        print(f"\nanswer {json.dumps(answer)}", flush=True)

    def fastest(layer: Any, inputs: Any) -> float:
        layer(inputs).asnumpy()
        return min(timeit.repeat(lambda: layer(inputs).asnumpy(), number=1, repeat=5))

    versions = {"numpy": np.__version__, "mindspore": mindspore.__version__}
    say(arithmetic={"sum": float((Tensor(1.0) + 1).asnumpy()), **versions})
    say(devices=list(runtime.available_devices()))
    # A 64 -> 64 convolution of 3x3, and the matrix product with as many multiplications.
    random = np.random.default_rng(1)
    images = Tensor(random.standard_normal((8, 64, 32, 32), dtype=np.float32))
    rows = Tensor(random.standard_normal((8 * 32 * 32, 64 * 9), dtype=np.float32))
    convolution = fastest(nn.Conv2d(64, 64, 3, pad_mode="same"), images)
    product = fastest(nn.Dense(64 * 9, 64, has_bias=False), rows)
    instructions = os.environ.get("ONEDNN_MAX_CPU_ISA")
    say(convolution={"ratio": convolution / product, "instructions": instructions})
