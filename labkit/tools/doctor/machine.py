"""Checks of the machine: platform, disk, memory, folders, loopback, ports, data files."""

import gzip
import hashlib
import os
import platform as system
import runpy
import shutil
import socket
import tempfile
import zlib
from pathlib import Path

from labkit.base.files import refusal
from labkit.base.memory import left_in_container
from labkit.base.project import own_checkout
from labkit.tools.doctor.check import Finding

_GIB = 2**30
FREE_DISK = 2.0  # GiB: data sets 0.1, a run with checkpoints 0.1, the rest is room to work
FREE_MEMORY = 2.0  # GiB: a lab's kernel with MindSpore takes about 1
# GiB: reserved, not used. The convolution of these checks reaches 2.4 on two cores, before any data
# set's workers; every further thread may reserve more.
_ADDRESS_SPACE = 4.0
MSRUN_PORT = 8118
JUPYTER_PORTS = range(8888, 8893)  # JupyterLab tries these in turn, and then others at random
# MindSpore has packages for others, and installs on any: its "any" package is for aarch64.
_PROCESSORS = ("x86_64", "aarch64")
OTHER_PLATFORM = (
    "run labkit {}: its runs, sweeps, ranks and `labkit progress` rest on what Linux "
    "alone has (/proc, limits a process), and nothing is tested elsewhere"
)
_INSTEAD = {
    "Windows": "in WSL 2 (wsl --install, then clone and `make run` there)",
    "Darwin": "in a Linux container or virtual machine",
}


def platform(root: Path) -> Finding:
    """Check that this is Linux on a processor that MindSpore's packages support."""
    name, processor = system.system(), system.machine()
    if name == "Linux" and processor in _PROCESSORS:
        return Finding(True, f"{name} on {processor}")
    remedy = OTHER_PLATFORM.format(_INSTEAD[name]) if name in _INSTEAD else ""
    expected = f"Linux on {' or '.join(_PROCESSORS)}"
    return Finding(False, f"{name} on {processor}; expected {expected}", remedy)


def disk(root: Path) -> Finding:
    """Check the free disk space where data sets and runs are written."""
    free = shutil.disk_usage(root).free / _GIB
    return Finding(free >= FREE_DISK, f"{free:.1f} GiB free at {root}")


def memory(root: Path) -> Finding:
    """Check the free memory: the machine's, the container's, and the shell's limit."""
    import resource  # missing on Windows, where the check of the platform fails

    import psutil

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < _ADDRESS_SPACE * _GIB:
        remedy = f"lift the limit (ulimit -v unlimited); {_ADDRESS_SPACE:g} GiB are needed"
        return Finding(False, f"the address space is limited to {limit / _GIB:.1f} GiB", remedy)
    free = psutil.virtual_memory().available / _GIB
    left = left_in_container()
    if left is not None and left / _GIB < free:
        text = f"{left / _GIB:.1f} GiB are left of what this container may have"
        remedy = f"give the container more memory; {FREE_MEMORY:g} GiB are needed"
        return Finding(left / _GIB >= FREE_MEMORY, text, remedy)
    return Finding(free >= FREE_MEMORY, f"{free:.1f} GiB free")


def folders(root: Path) -> Finding:
    """Check that the folders for runs and data sets can be written to."""
    places = [root / "runs", root / "datasets"]
    bad = [f"{place} ({reason})" for place in places if (reason := refusal(place))]
    if bad:
        return Finding(False, f"not writable: {'; '.join(bad)}")
    return Finding(True, f"writable: {', '.join(map(str, places))}")


def temporary(root: Path) -> Finding:
    """Check that the folders that TMPDIR, TEMP and TMP name, and Python's choice, are writable."""
    for variable in ("TMPDIR", "TEMP", "TMP"):
        place = os.environ.get(variable)
        if not place:
            continue
        reason = refusal(place) or ("" if Path(place).is_dir() else "no such folder")
        if reason:
            # Python silently tries the next place; compilers and shells do not.
            remedy = f"unset {variable}, or set it to a folder that can be written to"
            return Finding(False, f"{variable}={place}: {reason}", remedy)
    try:
        place = tempfile.gettempdir()
    except FileNotFoundError as error:
        return Finding(False, f"none: {error.strerror}")
    reason = refusal(place)
    return Finding(not reason, f"{place}: {reason or 'writable'}")


def loopback(root: Path) -> Finding:
    """Check that two programs on this machine can talk over the loopback address."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = server.getsockname()
            with socket.create_connection(address, timeout=2):
                return Finding(True, f"127.0.0.1:{address[1]} can be had and reached")
    except OSError as error:
        return Finding(False, f"no connection to 127.0.0.1: {error.strerror or error}")


def msrun_port(root: Path) -> Finding:
    """Check that msrun's default port is free."""
    if reason := _taken(MSRUN_PORT):
        return Finding(False, f"{MSRUN_PORT} cannot be used: {reason}")
    return Finding(True, f"{MSRUN_PORT} is free")


def jupyter_port(root: Path) -> Finding:
    """Check that one of the ports that JupyterLab tries first is free."""
    first, last = JUPYTER_PORTS[0], JUPYTER_PORTS[-1]
    for number in JUPYTER_PORTS:
        if not (reason := _taken(number)):
            return Finding(True, f"{number} is free, of {first} to {last}")
    return Finding(False, f"{first} to {last} cannot be used: {reason}")


def _taken(number: int) -> str:
    try:
        with socket.socket() as place:
            place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            place.bind(("127.0.0.1", number))
            return ""
    except OSError as error:
        return error.strerror or str(error)


def data(root: Path) -> Finding:
    """Check MNIST and Fashion-MNIST in the checkout ``root`` against their official SHA-256.

    These are read from data_scripts/mnist.py in the checkout that this labkit is imported from: the
    file in ``root`` may come from anyone and is not executed.
    """
    own = own_checkout()
    program = own / "data_scripts" / "mnist.py" if own else None
    if program is None or not program.exists():
        return Finding(True, "nothing to compare with: labkit is not from a checkout")
    if not (root / "data_scripts").is_dir():
        return Finding(True, f"nothing to look at: no {root / 'data_scripts'}")
    mnist = runpy.run_path(str(program))
    bundled = root / "data_scripts" / "bundled" / "mnist"
    digests = mnist["DATASETS"]["mnist"].sha256
    faults = [_fault(bundled / f"{file}.gz", digest) for file, digest in digests.items()]
    if any(faults):
        remedy = f"git checkout -- {bundled} brings the bundled files back"
        return Finding(False, "; ".join(filter(None, faults)), remedy)
    count = len(faults)
    for dataset in mnist["DATASETS"].values():
        folder = root / "datasets" / dataset.folder
        for file, digest in dataset.sha256.items():
            path = folder / mnist["FILES"][file] / file
            if path.exists():
                count += 1
                if fault := _fault(path, digest):
                    return Finding(False, fault, f"rm -r '{folder}': the labs prepare it again")
    return Finding(True, f"{count} files as published")


def _fault(path: Path, expected: str) -> str:
    """Return what is wrong with a file (unpacked if it is gzip), or an empty string."""
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return f"{path} is missing"
    except (OSError, EOFError, zlib.error) as error:
        return f"{path} is damaged: {error}"
    return "" if digest == expected else f"{path} is damaged: its SHA-256 begins {digest[:12]}"
