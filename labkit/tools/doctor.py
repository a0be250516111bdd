"""`labkit doctor`: common problems of a new machine, each with its cause and its remedy."""

import functools
import gzip
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import timeit
import tomllib
import zlib
from collections.abc import Iterable
from importlib import metadata
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

import labkit
from labkit.base import machine
from labkit.base.project import own_checkout, project_root
from labkit.errors import InputError
from labkit.labs.run import installed_version
from labkit.ranks.launch import child_environment

_PIP = f"{sys.executable} -m pip install"
if find_spec("pip") is None:  # as in an environment that uv has made
    _PIP = f"uv pip install --python {sys.executable}"
INSTALL = f"{_PIP} 'mindspore-labs[labs]'"
if own_checkout() is not None:
    INSTALL = f"install the pinned versions: {_PIP} -c constraints.txt -e '.[labs]'"
_GIB = 2**30
_FREE_DISK = 2.0  # GiB: data sets 0.1, a run with checkpoints 0.1, the rest is room to work
_FREE_MEMORY = 2.0  # GiB: a lab's kernel with MindSpore takes about 1
_SECONDS = 120.0  # for all that is measured; on a busy machine an import of MindSpore took 80
# A convolution over an equal matrix product: the fast kernel takes 0.7-1.6, the slow one 60-260.
_SLOWEST_CONVOLUTION = 10.0
# Variables that break something unless they are empty or match: the pattern, and what breaks.
_VARIABLES = {
    "PYTHONHOME": ("", "Python takes another installation's library"),
    "PYTHONOPTIMIZE": ("0", "Python leaves out every assert, and with them the labs' proofs"),
    "MPLBACKEND": ("inline|ipympl|widget|module://.*", "JupyterLab shows no figures"),
    "GLOG_v": ("[0-4]", "MindSpore refuses to be imported: the level is 0 to 4"),
    "MS_SIMULATION_LEVEL": ("", "MindSpore simulates: nothing is computed"),
    "MS_DEV_PRECOMPILE_ONLY": ("0", "MindSpore compiles only: nothing is computed"),
}


class Check(NamedTuple):
    """One finished check: its name, whether it passed, what was found, and the remedy."""

    name: str
    ok: bool
    found: str
    remedy: str


def run(names: Iterable[str] | None = None) -> list[Check]:
    """Run the checks, all if not named, for the project around the working folder."""
    root, checks = project_root() or Path.cwd(), []
    for name in CHECKS if names is None else names:
        try:
            checks.append(Check(name, *CHECKS[name](root)))
        except Exception as error:  # whatever a broken installation raises: a package is missing
            remedy = INSTALL if all(check.ok for check in checks) else "first what failed above"
            checks.append(Check(name, False, f"cannot be checked: {error!r}", remedy))
    return checks


def refuse_what_stops_kernels() -> None:
    """Raise ``InputError`` with what would keep every kernel waiting, or run another labkit."""
    for check in run(("home", "loopback", "labkit")):
        if not check.ok:
            raise InputError(f"{check.found}; remedy: {check.remedy}")


def faults() -> list[str]:
    """Return a line for each check that fails, of those that take no time."""
    failed = (check for check in run(look.__name__[1:] for look in _LOOKS) if not check.ok)
    return [f"labkit doctor: {each.name}: {each.found}; remedy: {each.remedy}" for each in failed]


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object alone.")] = False,
) -> None:
    """Check this machine for known problems, and suggest remedies. Takes under 10 seconds.

    Exit code 0: all checks passed; 1: one or more failed.

    Example: labkit doctor
    """
    checks = run()
    passed = sum(check.ok for check in checks)
    if as_json:
        print(json.dumps({check.name: check._asdict() for check in checks}))
    else:
        for check in checks:
            print(f"{'pass' if check.ok else 'FAIL'}  {check.name:12}  {check.found}")
            if not check.ok:
                print(f"{'':20}remedy: {check.remedy}")
        print(f"{passed} of {len(checks)} checks passed")
    raise typer.Exit(passed < len(checks))


Finding = tuple[bool, str, str]  # as in Check, without the name


def _python(root: Path) -> Finding:
    system = f"{platform.system()} on {platform.machine()}"
    found = f"{platform.python_version()} at {sys.executable}, {system}"
    if system not in ("Linux on x86_64", "Linux on aarch64"):
        return False, found, "run labkit on Linux (x86_64 or aarch64): WSL 2 or a container"
    remedy = "use Python 3.11 or 3.12: make distclean; make run PYTHON=/path/to/python3.12"
    return sys.version_info[:2] in ((3, 11), (3, 12)), found, remedy


def _home(root: Path) -> Finding:
    try:
        return True, str(Path.home()), ""
    except RuntimeError:
        found = "HOME is not set, and this user has no home folder"
        return False, found, "export HOME=/a/folder/of/yours"


def _loopback(root: Path) -> Finding:
    """Kernels and ranks are talked to over 127.0.0.1: without it they never answer."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
    except OSError as error:
        return False, f"no connection to 127.0.0.1: {error}", "ip link set lo up"
    return True, "127.0.0.1 answers", ""


def _labkit(root: Path) -> Finding:
    """An environment of another or a moved checkout imports another labkit."""
    imported, here = Path(labkit.__file__).resolve().parent, (root / "labkit").resolve()
    if own_checkout() is None or imported == here or not here.is_dir():
        return True, str(imported), ""
    found = f"{imported} is imported; the notebooks here belong to {here}"
    return False, found, f"export PYTHONPATH={root}, or, in that folder, {INSTALL}"


def _packages(root: Path) -> Finding:
    """Compare what is installed with the pins whose markers hold here."""
    if not (root / "constraints.txt").exists():
        return True, "not compared: there is no checkout here", ""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    texts = [*project["dependencies"], *project["optional-dependencies"]["labs"]]
    needed = {canonicalize_name(Requirement(text).name) for text in texts}
    lines = (root / "constraints.txt").read_text("utf-8").splitlines()
    wrong = []
    for pin in (Requirement(line) for line in lines if line and not line.startswith("#")):
        version = installed_version(pin.name)
        if version is None:  # others are of the tests, or another platform needs them
            fits = pin.name not in needed
        else:
            fits = pin.specifier.contains(version.split("+")[0], prereleases=True)
        if not fits and (pin.marker is None or pin.marker.evaluate()):
            wrong.append(f"{pin.name} {version or 'is missing'}, expected {pin}")
    return not wrong, "; ".join(wrong[:5]) or "as in constraints.txt", INSTALL


def _msrun(root: Path) -> Finding:
    here = Path(sys.executable).parent
    if (place := shutil.which("msrun", path=f"{here}:{os.environ['PATH']}")) is None:
        return False, "not found", f"it comes with MindSpore: {INSTALL}"
    # In the first line, or, if that would be too long, in the second.
    starts = re.search(r"(/[^\"'\n]*)/python", Path(place).read_text("utf-8", "replace")[:9999])
    moved = starts and Path(starts[1]).resolve() != here.resolve()
    found = f"{place} starts the Python of {starts[1]}" if starts and moved else place
    return not moved, found, "the environment was moved: make it anew (make distclean; make run)"


def _kernel(root: Path) -> Finding:
    """Look which Python the notebooks' kernel starts: a user's own "python3" takes precedence."""
    from jupyter_client.kernelspec import KernelSpecManager

    spec = KernelSpecManager().get_kernel_spec("python3")
    program = spec.argv[0]  # jupyter_client replaces "python" and "python3" by its own Python
    here = Path(sys.executable).parent.resolve()
    ok = program in ("python", "python3") or Path(program).parent.resolve() == here
    return ok, f"python3 starts {program}", f"remove the other kernel: rm -r '{spec.resource_dir}'"


def _environment(root: Path) -> Finding:
    bad = _wrong_variables()
    found = "; ".join(f"{name}={os.environ[name]}: {_VARIABLES[name][1]}" for name in bad)
    return not bad, found or "no variable that breaks something", f"unset {' '.join(bad)}"


def _pythonpath(root: Path) -> Finding:
    """Find what in PYTHONPATH replaces a module of Python or of an installed package."""
    named = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    given = [folder for folder in named if Path(folder).resolve() != root.resolve()]
    others, found = [folder for folder in sys.path if folder not in given], []
    for name in sorted(sys.stdlib_module_names | metadata.packages_distributions().keys()):
        spec = PathFinder.find_spec(name, others) and PathFinder.find_spec(name, given)
        if spec and spec.origin:  # a folder without __init__.py replaces nothing
            found.append(spec.origin)
    return not found, ", ".join(found[:5]) or "replaces no installed module", "unset PYTHONPATH"


def _wrong_variables() -> list[str]:
    given = {name: os.environ.get(name, "") for name in _VARIABLES}
    return [name for name in given if not re.fullmatch(f"{_VARIABLES[name][0]}|", given[name])]


def _disk(root: Path) -> Finding:
    free = shutil.disk_usage(root).free / _GIB
    writable = os.access(root, os.W_OK)
    found = f"{free:.1f} GiB free at {root}" + ("" if writable else ", read-only")
    remedy = f"make clean removes runs and caches; {_FREE_DISK:g} GiB are needed"
    return free >= _FREE_DISK and writable, found, remedy


def _memory(root: Path) -> Finding:
    free, left = machine.free_memory(), machine.left_in_container()
    where = "free" if free < left else "left of what this container may have"
    remedy = f"close other programs, or give the container more; {_FREE_MEMORY:g} GiB are needed"
    return free >= _FREE_MEMORY * _GIB, f"{free / _GIB:.1f} GiB {where}", remedy


def _cores(root: Path) -> Finding:
    count = machine.cores()
    return count >= 1, f"{count:g} may be used", "give the container at least one core"


def _data(root: Path) -> Finding:
    """Compare the bundled MNIST and the prepared copy with each other."""
    bundled = root / "data_scripts" / "bundled" / "mnist"
    files = sorted(bundled.glob("*.gz"))
    for packed in files:
        try:
            content = gzip.decompress(packed.read_bytes())
        except (OSError, EOFError, zlib.error) as error:
            return False, f"{packed} is damaged: {error}", f"git checkout -- {bundled}"
        for copy in (root / "datasets" / "MNIST_Data").glob(f"*/{packed.stem}"):
            if copy.read_bytes() != content:
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
    ratio, isa = _measured("convolution").values()
    found = f"{ratio:.1f} times an equal matrix product (at most {_SLOWEST_CONVOLUTION:g}), "
    found += f"ONEDNN_MAX_CPU_ISA={isa or 'not set'}"
    remedy = "unset ONEDNN_MAX_CPU_ISA (labkit.start then sets AVX2), or set it to AVX2"
    return ratio <= _SLOWEST_CONVOLUTION, found, remedy


_STARTING = (_python, _home, _loopback, _labkit, _environment, _pythonpath, _packages, _msrun)
_LOOKS = (*_STARTING, _kernel, _disk, _memory, _cores)
_COMPUTED = (_data, _numpy, _device, _convolution)
CHECKS = {look.__name__[1:]: look for look in (*_LOOKS, *_COMPUTED)}


def _measured(name: str) -> Any:
    """Return an answer of MindSpore; raise what ended its process if there is none."""
    answers = _measure()
    if name not in answers:
        raise RuntimeError(answers["end"])
    return answers[name]


@functools.cache
def _measure() -> dict[str, Any]:
    """Compute with MindSpore in a process of its own, which may crash or hang."""
    words = [sys.executable, "-P", "-c", "from labkit.tools.doctor import probe; probe()"]
    gone = _wrong_variables()  # they have a check of their own
    kept = {name: text for name, text in child_environment().items() if name not in gone}
    try:
        done = subprocess.run(words, env=kept, capture_output=True, text=True, timeout=_SECONDS)
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

    def fastest(layer: Any, *shape: int) -> float:
        inputs = Tensor(np.random.default_rng(1).standard_normal(shape, dtype=np.float32))
        layer(inputs).asnumpy()
        return min(timeit.repeat(lambda: layer(inputs).asnumpy(), number=1, repeat=5))

    versions = {"numpy": np.__version__, "mindspore": mindspore.__version__}
    say(arithmetic={"sum": float((Tensor(1.0) + 1).asnumpy()), **versions})
    say(devices=list(runtime.available_devices()))
    # A 64 -> 64 convolution of 3x3, and the matrix product with as many multiplications.
    ratio = fastest(nn.Conv2d(64, 64, 3, pad_mode="same"), 8, 64, 32, 32)
    ratio /= fastest(nn.Dense(64 * 9, 64, has_bias=False), 8 * 32 * 32, 64 * 9)
    say(convolution={"ratio": ratio, "instructions": os.environ.get("ONEDNN_MAX_CPU_ISA")})
