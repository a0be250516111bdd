"""`labkit doctor`: what bites people on a new machine, each with the remedy."""

import importlib.util
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from labkit.labs import project_root
from labkit.probes import in_child
from labkit.run import installed_version

_PYTHONS = ((3, 11), (3, 12))
# Measured: 0.9-1.1 with the fast kernel, 90-230 with the slow one; 10 allows for a busy machine.
_SLOWEST_CONVOLUTION = 10.0
_GIB = 2**30
_FREE_DISK = 2.0  # GiB: data sets 0.1, a run with checkpoints 0.1, the rest is room to work
_FREE_MEMORY = 2.0  # GiB: a lab's kernel with MindSpore takes about 1
_MSRUN_PORT = 8118
_INSTALL = "install the pinned versions: pip install -c constraints.txt -e ."


@dataclass(frozen=True)
class Check:
    """One finding: what was looked at, whether it is all right, what was found, and the remedy."""

    name: str
    ok: bool
    found: str
    remedy: str


def run(root: Path | None = None) -> list[Check]:
    """Return all checks for the project ``root`` (default: around here); takes about 15 s."""
    return [check() for check in checks(root)]


def checks(root: Path | None = None) -> list[Callable[[], Check]]:
    """Return the checks as functions still to be called, the quick ones first."""
    root = root or project_root() or Path.cwd()
    return [
        python,
        msrun,
        lambda: disk(root),
        lambda: writable(root),
        memory,
        port,
        msrun_port,
        numpy,
        devices,
        convolution,
    ]


def python(version: tuple[int, ...] = sys.version_info[:3]) -> Check:
    """Check that this is a Python that MindSpore's packages are made for."""
    return Check(
        "Python",
        tuple(version[:2]) in _PYTHONS,
        f"{'.'.join(map(str, version))} at {sys.executable}",
        "use Python 3.11 or 3.12: make distclean; make run PYTHON=/path/to/python3.12",
    )


def numpy() -> Check:
    """Check the NumPy version, and that MindSpore can add 1 and 1 with it."""
    version = installed_version("numpy") or "none"
    found = f"numpy {version}, MindSpore {installed_version('mindspore') or 'none'}"
    try:
        total = in_child("scalar_arithmetic")
    except RuntimeError as error:
        return Check("NumPy", False, f"{found}; Tensor(1.0) + 1 fails: {error}", _INSTALL)
    ok = version.startswith("1.") and total == 2.0
    return Check("NumPy", ok, f"{found}; Tensor(1.0) + 1 = {total:g}", _INSTALL)


def convolution() -> Check:
    """Time a convolution against a matrix product of the same arithmetic, as `start` sets things.

    Then once more as MindSpore is installed, to say whether this machine needs the workaround.
    """
    name = "Convolution"
    remedy = (
        "take ONEDNN_MAX_CPU_ISA out of the environment, or set it to AVX2, before the first "
        "convolution (labkit.start does so where it is not set)"
    )
    try:
        ours = in_child("convolution", True)
        theirs = in_child("convolution", False, ONEDNN_MAX_CPU_ISA=None)
    except RuntimeError as error:
        return Check(name, False, f"cannot be measured: {error}", _INSTALL)
    ratio = ours["convolution"] / ours["matmul"]
    without = theirs["convolution"] / theirs["matmul"]
    need = "needs" if without > _SLOWEST_CONVOLUTION else "does not need"
    found = (
        f"{ours['convolution']:.3f} s, matrix product {ours['matmul']:.3f} s, ratio {ratio:.1f} "
        f"(at most {_SLOWEST_CONVOLUTION:g}), backward {ours['backward']:.3f} s, "
        f"ONEDNN_MAX_CPU_ISA={ours['onednn'] or 'not set'}; "
        f"without the variable ratio {without:.1f}: this machine {need} the workaround"
    )
    return Check(name, ratio <= _SLOWEST_CONVOLUTION, found, remedy)


def devices() -> Check:
    """List the device plugins that came with MindSpore and the devices that can really be used."""
    name = "Devices"
    try:
        usable = in_child("devices")
    except RuntimeError as error:
        return Check(name, False, f"cannot be asked: {error}", _INSTALL)
    found = f"plugins: {', '.join(plugins()) or 'none'}; can be used: {', '.join(usable) or 'none'}"
    return Check(name, "CPU" in usable, found, _INSTALL)


def plugins() -> list[str]:
    """Return the file names of the installed MindSpore's device plugins, without importing it."""
    package = importlib.util.find_spec("mindspore")
    if package is None or package.origin is None:
        return []
    folder = Path(package.origin).parent / "lib" / "plugin"
    return sorted(path.name for path in folder.glob("libmindspore_*.so*"))


def disk(root: Path, free: float | None = None) -> Check:
    """Check the free disk space, in GiB, where data sets and runs are written."""
    free = shutil.disk_usage(root).free / _GIB if free is None else free
    remedy = (
        f"free some space: make clean removes runs and data sets; {_FREE_DISK:g} GiB are needed"
    )
    return Check("Disk", free >= _FREE_DISK, f"{free:.1f} GiB free at {root}", remedy)


def memory(free: float | None = None) -> Check:
    """Check the free memory, in GiB."""
    import psutil

    free = psutil.virtual_memory().available / _GIB if free is None else free
    remedy = f"close other programs (old notebook kernels?); {_FREE_MEMORY:g} GiB are needed"
    return Check("Memory", free >= _FREE_MEMORY, f"{free:.1f} GiB free", remedy)


def writable(root: Path) -> Check:
    """Check that the folders for runs, data sets and temporary files can be written to."""
    folders = [root / "runs", root / "datasets", Path(tempfile.gettempdir())]
    bad = [f"{folder} ({reason})" for folder in folders if (reason := refuses(folder))]
    found = (
        f"not writable: {'; '.join(bad)}" if bad else f"writable: {', '.join(map(str, folders))}"
    )
    remedy = "give yourself the right to write there (chown, chmod), or set TMPDIR to such a folder"
    return Check("Folders", not bad, found, remedy)


def refuses(folder: Path) -> str:
    """Return why ``folder`` cannot be written to or made, or an empty text; leaves no trace."""
    existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not existing.is_dir():
        return f"{existing} is not a folder"
    try:
        # Asking the permissions is not enough: root may write anywhere, and not in /proc.
        with tempfile.TemporaryFile(dir=existing):
            return ""
    except OSError as error:
        return f"{error.strerror} in {existing}"


def port() -> Check:
    """Check that a free port can be had on the loopback address: kernels and msrun need some."""
    remedy = "bring the loopback interface up (ip link set lo up), or leave the sandbox"
    try:
        with socket.socket() as place:
            place.bind(("127.0.0.1", 0))
            return Check("Free port", True, f"127.0.0.1:{place.getsockname()[1]} is free", remedy)
    except OSError as error:
        return Check("Free port", False, f"none on 127.0.0.1: {error.strerror}", remedy)


def msrun_port(number: int = _MSRUN_PORT) -> Check:
    """Check that the port that msrun takes if it is not told another one is free."""
    name = "msrun port"
    remedy = (
        f"stop the other msrun (ps shows it), or give msrun another --master_port than {number}"
    )
    try:
        with socket.socket() as place:
            place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            place.bind(("127.0.0.1", number))
    except OSError as error:
        return Check(name, False, f"{number} cannot be used: {error.strerror}", remedy)
    return Check(name, True, f"{number} is free", remedy)


def msrun(folder: Path | None = None) -> Check:
    """Check that MindSpore's launcher is there: beside this Python, or on PATH."""
    beside = (folder or Path(sys.executable).parent) / "msrun"
    found = str(beside) if beside.is_file() else shutil.which("msrun")
    remedy = "it comes with MindSpore: pip install -c constraints.txt -e . into this environment"
    return Check("msrun", found is not None, found or "not found", remedy)
