"""Locks that let one process at a time write a folder; they name the process and end with it.

``flock`` alone does not say who holds a lock, and not every network file system passes it on
between machines. So ``.lock`` holds a line about its owner: host, process and start time.
An owner that ends normally removes the file; one that is killed leaves it behind.
"""

import contextlib
import errno
import functools
import json
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from labkit.base.input_files import parse_json
from labkit.base.printable import printable
from labkit.errors import InputError

NAME = ".lock"
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)
_PATIENCE = 2.0  # seconds to wait for a lock whose owner has ended
_LONGEST = 4096  # bytes of a lock file that are read
_HELD: set[int] = set()
_SAID: set[int] = set()


def _say(text: str) -> None:
    print(f"labkit: {text}", flush=True)


@contextlib.contextmanager
def locked(
    folder: str | os.PathLike, what: str, say: Callable[[str], None] = _say
) -> Iterator[None]:
    """Create ``folder`` and lock it against every other process that calls this function.

    The lock ends with the process, however the process ends.

    Args:
        folder: The folder to lock; its ``.lock`` names this process.
        what: What this process does there, for the error of a refused process: "a training".
        say: Called with a line when a lock that was left behind is taken over, and once if the
            file system has no locks: the folder is then used unless ``.lock`` names a process that
            may be alive.

    Raises:
        InputError: Naming host and process, if a process uses the folder (this one included) or
            one on another host has left its lock: this host cannot tell whether it has ended. Also
            if the folder cannot be written, or holds the ``.lock`` of another program, which is
            left as it is.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = _acquired(folder, say)
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error}") from error
    _HELD.add(handle)
    try:
        _sign(handle, folder, what)
        yield
    finally:
        if handle in _HELD:  # not in a forked child
            # Before the lock is released: a waiting process must not lock a file without a name.
            with contextlib.suppress(OSError):
                if _has_name(handle, folder):
                    (folder / NAME).unlink()
            _HELD.discard(handle)
            os.close(handle)


def owner() -> dict[str, Any]:
    """Return what identifies this process: host, boot, PID namespace, PID and start time."""
    return {**_place(), "pid": os.getpid(), "created": _created(os.getpid())}


def has_ended(named: Mapping[str, Any]) -> bool | None:
    """Return whether the process that ``owner`` has named has ended; None if it is unknown."""
    place = _place()
    boots = (named.get("boot"), place["boot"])
    if named.get("host") == place["host"] and None not in boots and boots[0] != boots[1]:
        return True  # the machine has been restarted since
    if any(named.get(key) != place[key] for key in place):
        return None
    created = _created(named.get("pid"))
    if created is None:
        return True
    return abs(created - _number(named.get("created"), created)) >= 1


@functools.cache
def _place() -> dict[str, Any]:
    """Return host, boot and PID namespace: PIDs are comparable only if all three agree."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
        space = os.stat("/proc/self/ns/pid").st_ino
    except OSError:  # not Linux
        boot, space = None, None
    return {"host": socket.gethostname(), "boot": boot, "space": space}


def _created(pid: object) -> float | None:
    """Return when a live process of this machine started, in seconds; None if there is none."""
    import psutil

    if type(pid) is not int:  # psutil takes None to mean this process
        return None
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return round(process.create_time(), 2)
    except (psutil.Error, ValueError, OverflowError):
        return None


def _number(value: Any, otherwise: float) -> float:
    """Return ``value`` if it is a usable number of seconds, not NaN or 10^400, or ``otherwise``."""
    usable = isinstance(value, int | float) and abs(value) < 2**53
    return value if usable else otherwise


def _acquired(folder: Path, say: Callable[[str], None]) -> int:
    """Lock the folder's lock file and return its handle."""
    while True:
        # Follow no link, and do not wait for the other end of a pipe.
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        handle = os.open(folder / NAME, flags, 0o644)
        try:
            if _is_held(handle, folder, say):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # its owner removed the file in between


def _is_held(handle: int, folder: Path, say: Callable[[str], None]) -> bool:
    """Take the lock; return False if the file has lost its name meanwhile."""
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        raise InputError(f"{folder / NAME} is not a plain file; expected the lock of a training")
    import fcntl  # not at the top: Windows lacks it, and `labkit doctor` must run there

    locks, until = True, time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = _read(handle, patience=0.2) or {}
            # A child that the owner was just starting releases the lock as soon as it runs.
            if has_ended(owner) and time.monotonic() < until:
                time.sleep(0.05)
                continue
            raise InputError(_in_use(folder, owner)) from None
        except OSError as error:
            if error.errno not in _WITHOUT_LOCKS:
                raise
            locks = False
        break
    if not _has_name(handle, folder):
        return False
    named = _read(handle)
    if named is None:
        raise InputError(
            f"{folder / NAME} is of another program; expected the lock of a labkit. Give another "
            "folder, or remove it"
        )
    if "host" in named:
        _take_over(named, folder, locks, say)
    if not locks and (device := os.fstat(handle).st_dev) not in _SAID:
        _SAID.add(device)
        say(f"the file system of {folder} has no locks: nothing keeps a second process out of it")
    return True


def _has_name(handle: int, folder: Path) -> bool:
    """Return whether the open file is still, or again, the folder's lock file."""
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(folder / NAME))
    except FileNotFoundError:
        return False


def _take_over(
    named: Mapping[str, Any], folder: Path, locks: bool, say: Callable[[str], None]
) -> None:
    """Report that a lock is taken over; raise ``InputError`` if its owner may still hold it."""
    place, ended = _place(), has_ended(named)
    # A machine's own locks apply to all its containers, which see other PIDs.
    key = "host" if place["boot"] is None else "boot"
    if ended:
        say(f"{folder} was left locked by {_who(named)}, which has ended; taken over")
    elif locks and named.get(key) == place[key]:
        # Also for a copy of a folder in use: the process lives, and holds the original's lock.
        say(f"{folder} was left locked by {_who(named)}, which does not hold it; taken over")
    elif ended is None:
        raise InputError(
            f"{folder} is locked by {_who(named)}, another host: whether it has ended cannot be "
            f"seen from {place['host']}. If it has, remove {folder / NAME}"
        )
    else:
        raise InputError(_in_use(folder, named))


def _in_use(folder: Path, named: Mapping[str, Any]) -> str:
    text = f"{folder} is in use by {_who(named)}"
    if has_ended(named):
        text += "; that one has ended, and a process that it started still holds the lock"
    return text


def _who(named: Mapping[str, Any]) -> str:
    what, pid, host = (named.get(key, "unknown") for key in ("what", "pid", "host"))
    what = what if named.get("what") else "a process"
    return printable(f"{what}, process {pid} on {host}").replace("\n", "\\n")


def _read(handle: int, patience: float = 0.0) -> dict[str, Any] | None:
    """Return what a lock file says about its owner: {} if nothing, None if it is not labkit's."""
    until = time.monotonic() + patience
    # Zeros: the power was cut before its bytes were on the disk.
    while not (text := os.pread(handle, _LONGEST, 0).strip(b"\0 \n")) and time.monotonic() < until:
        time.sleep(0.02)  # it is being written
    try:
        named = parse_json(text.decode(errors="replace")) if text else {}
    except InputError:
        return None
    if type(named) is int:  # an earlier labkit wrote only the PID, and left the file behind
        return {"pid": named}
    return named if named == {} or isinstance(named, dict) and "pid" in named else None


def _sign(handle: int, folder: Path, what: str) -> None:
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps({**owner(), "what": what}).encode() + b"\n", 0)
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error}") from error


def _let_go_in_child() -> None:
    """Close a forked child's handles, which would hold the locks after this process has ended."""
    for handle in _HELD:
        with contextlib.suppress(OSError):
            os.close(handle)
    _HELD.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, where `labkit doctor` says what to do
    os.register_at_fork(after_in_child=_let_go_in_child)
