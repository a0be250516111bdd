"""Checks of the machine: disk, memory, folders, loopback, ports."""

import os
import platform as system
import shutil
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path

from labkit.tools.doctor.check import Check

_GIB = 2**30
_FREE_DISK = 2.0  # GiB: data sets 0.1, a run with checkpoints 0.1, the rest is room to work
_FREE_MEMORY = 2.0  # GiB: a lab's kernel with MindSpore takes about 1
# GiB: reserved, not used. The convolution of these checks reaches 2.4 on two cores, before any data
# set's workers; every further thread may reserve more.
_ADDRESS_SPACE = 4.0
_MSRUN_PORT = 8118
_JUPYTER_PORTS = range(8888, 8893)  # JupyterLab tries these in turn, and then others at random
_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
    ),
)


# MindSpore has packages for others, and installs itself there: its "any" package is for aarch64.
_PROCESSORS = ("x86_64", "aarch64")


def platform(name: str | None = None, processor: str | None = None) -> Check:
    """Check that this is Linux on a processor that MindSpore's packages are made for."""
    name, processor = name or system.system(), processor or system.machine()
    ok = name == "Linux" and processor in _PROCESSORS
    found = f"{name} on {processor}"
    found += "" if ok else f"; expected Linux on {' or '.join(_PROCESSORS)}"
    where = {
        "Windows": "in WSL 2 (wsl --install, then clone and `make run` there)",
        "Darwin": "in a Linux container or virtual machine",
    }.get(name, "on such a machine")
    remedy = (
        f"run labkit {where}: its runs, sweeps, ranks and `labkit progress` rest on what Linux "
        "alone has (/proc, limits a process), and nothing is tested elsewhere"
    )
    return Check("Platform", ok, found, remedy)


def disk(root: Path, free: float | None = None) -> Check:
    """Check the free disk space, in GiB, where data sets and runs are written."""
    free = shutil.disk_usage(root).free / _GIB if free is None else free
    remedy = f"free some space: make clean removes runs and caches; {_FREE_DISK:g} GiB are needed"
    return Check("Disk", free >= _FREE_DISK, f"{free:.1f} GiB free at {root}", remedy)


def memory(free: float | None = None) -> Check:
    """Check the free memory, in GiB: the machine's, the container's, and the shell's limit."""
    import resource  # not on Windows, where the check of the platform says what is wrong

    import psutil

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < _ADDRESS_SPACE * _GIB:
        return Check(
            "Memory",
            False,
            f"the address space is limited to {limit / _GIB:.1f} GiB",
            f"lift the limit (ulimit -v unlimited); {_ADDRESS_SPACE:g} GiB are needed",
        )
    free = psutil.virtual_memory().available / _GIB if free is None else free
    inside = _left_in_container()
    if inside is not None and inside < free:
        remedy = f"give the container more memory; {_FREE_MEMORY:g} GiB are needed"
        found = f"{inside:.1f} GiB are left of what this container may have"
        return Check("Memory", inside >= _FREE_MEMORY, found, remedy)
    remedy = f"close other programs (old notebook kernels?); {_FREE_MEMORY:g} GiB are needed"
    return Check("Memory", free >= _FREE_MEMORY, f"{free:.1f} GiB free", remedy)


def _left_in_container() -> float | None:
    """Return the GiB between a control group's limit and what it uses; None without a limit."""
    for limit, used in _CGROUPS:
        try:
            return (int(Path(limit).read_text()) - int(Path(used).read_text())) / _GIB
        except (OSError, ValueError):  # not there, or "max"
            continue
    return None


def folders(root: Path) -> Check:
    """Check that the folders for runs and data sets can be written to."""
    places = [root / "runs", root / "datasets"]
    bad = [f"{place} ({reason})" for place in places if (reason := refuses(place))]
    found = f"not writable: {'; '.join(bad)}" if bad else f"writable: {', '.join(map(str, places))}"
    remedy = "give yourself the right to write there (chown, chmod), or remove what is in the way"
    return Check("Folders", not bad, found, remedy)


def temporary() -> Check:
    """Check that what TMPDIR, TEMP and TMP name can be written to, and what Python chose."""
    name = "Temp folder"
    for variable in ("TMPDIR", "TEMP", "TMP"):
        place = os.environ.get(variable)
        if place and (reason := refuses(Path(place)) or _missing(Path(place))):
            # Python goes on to the next place without a word; compilers and shells do not.
            remedy = f"unset {variable}, or set it to a folder that can be written to"
            return Check(name, False, f"{variable}={place}: {reason}", remedy)
    try:
        place = tempfile.gettempdir()
    except FileNotFoundError as error:
        remedy = "set TMPDIR to a folder that can be written to"
        return Check(name, False, f"none: {error.strerror}", remedy)
    reason = refuses(Path(place))
    remedy = "set TMPDIR to a folder that can be written to"
    return Check(name, not reason, f"{place}: {reason or 'writable'}", remedy)


def _missing(place: Path) -> str:
    return "" if place.is_dir() else "no such folder"


def refuses(folder: Path) -> str:
    """Return why ``folder`` cannot be written to or made, or an empty text; leaves no trace."""
    if folder.is_symlink() and not folder.exists():
        return f"it is a link to {os.readlink(folder)}, which is not there"
    existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not existing.is_dir():
        return f"{existing} is not a folder"
    try:
        # Asking the permissions is not enough: root may write anywhere, and not in /proc.
        with tempfile.TemporaryFile(dir=existing):
            return ""
    except OSError as error:
        return f"{error.strerror} in {existing}"


def loopback() -> Check:
    """Check that two programs on this machine can talk over the loopback address."""
    name = "Loopback"
    remedy = (
        "bring the loopback interface up (ip link set lo up), or leave the sandbox: notebooks and "
        "their kernels, and ranks, talk over it"
    )
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = server.getsockname()
            with socket.create_connection(address, timeout=2):
                return Check(name, True, f"127.0.0.1:{address[1]} can be had and reached", remedy)
    except OSError as error:
        return Check(name, False, f"no connection to 127.0.0.1: {error.strerror or error}", remedy)


def msrun_port(number: int = _MSRUN_PORT) -> Check:
    """Check that the port that msrun takes if it is not told another one is free."""
    reason = _taken(number)
    remedy = (
        f"stop the other msrun (ps shows it), or give msrun another --master_port than {number}"
    )
    found = f"{number} cannot be used: {reason}" if reason else f"{number} is free"
    return Check("msrun port", not reason, found, remedy)


def jupyter_port(numbers: Sequence[int] = _JUPYTER_PORTS) -> Check:
    """Check that one of the ports that JupyterLab tries first is free."""
    name, first, last = "Jupyter port", numbers[0], numbers[-1]
    remedy = (
        "close old JupyterLab servers (jupyter server list; jupyter server stop PORT), or: "
        "make lab ARGS=--ServerApp.port=PORT"
    )
    for number in numbers:
        if not (reason := _taken(number)):
            return Check(name, True, f"{number} is free, of {first} to {last}", remedy)
    return Check(name, False, f"{first} to {last} cannot be used: {reason}", remedy)


def _taken(number: int) -> str:
    try:
        with socket.socket() as place:
            place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            place.bind(("127.0.0.1", number))
            return ""
    except OSError as error:
        return error.strerror or str(error)
