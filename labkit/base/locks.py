"""One process at a time writes a folder: locks that go with their process, and name it.

``flock`` alone does not say who holds a lock, nor does every network file system carry it from
machine to machine. So ``.lock`` holds a line about its owner: host, process and when it started.
An owner that ends well takes the file away; one that is killed leaves it behind.
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
_PATIENCE = 2.0  # seconds for a lock whose owner has ended
_LONGEST = 4096  # bytes of a lock file that are looked at
_HELD: set[int] = set()
_SAID: set[int] = set()


def _say(text: str) -> None:
    print(f"labkit: {text}", flush=True)


@contextlib.contextmanager
def locked(
    folder: str | os.PathLike, what: str, say: Callable[[str], None] = _say
) -> Iterator[None]:
    """Make ``folder``, and keep every other process out of it that asks here.

    The lock goes with the process, however that ends.

    Args:
        folder: To be locked; its ``.lock`` names this process.
        what: What this process does there, for the message of one that is refused: "a training".
        say: Is called with a line where the lock of a process that has ended is taken over, and
            once where the file system has no locks: the folder is used then, unless ``.lock``
            names a live process.

    Raises:
        InputError: With host and process, where one is in it (this very process too) and where one
            of another host has left its lock: whether it has ended cannot be seen from here. Also
            where the folder cannot be written, or holds a ``.lock`` of another program, which
            stays as it is.
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
            # Before the lock is let go: who waits for it must not get one on a nameless file.
            with contextlib.suppress(OSError):
                if _has_name(handle, folder):
                    (folder / NAME).unlink()
            _HELD.discard(handle)
            os.close(handle)


def owner() -> dict[str, Any]:
    """Return what names this process: host, boot, space of process numbers, number, start."""
    return {**_place(), "pid": os.getpid(), "created": _created(os.getpid())}


def has_ended(named: Mapping[str, Any]) -> bool | None:
    """Return whether the process that ``owner`` has named has ended; None where nobody can tell."""
    place = _place()
    boots = (named.get("boot"), place["boot"])
    if named.get("host") == place["host"] and None not in boots and boots[0] != boots[1]:
        return True  # the machine was started again since
    if any(named.get(key) != place[key] for key in place):
        return None
    created = _created(named.get("pid"))
    if created is None:
        return True
    return abs(created - _number(named.get("created"), created)) >= 1


@functools.cache
def _place() -> dict[str, Any]:
    """Return host, boot and process space: only where all three agree do numbers mean the same."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
        space = os.stat("/proc/self/ns/pid").st_ino
    except OSError:  # not Linux
        boot, space = None, None
    return {"host": socket.gethostname(), "boot": boot, "space": space}


def _created(pid: object) -> float | None:
    """Return when a live process of this machine started, in seconds; None if there is none."""
    import psutil

    if type(pid) is not int:  # psutil takes None for this very process
        return None
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return round(process.create_time(), 2)
    except (psutil.Error, ValueError, OverflowError):
        return None


def _number(value: Any, otherwise: float) -> float:
    """Return ``value`` where it is a number of seconds, as nan and 10^400 are not."""
    usable = isinstance(value, int | float) and abs(value) < 2**53
    return value if usable else otherwise


def _acquired(folder: Path, say: Callable[[str], None]) -> int:
    """Return a handle to the folder's lock file that holds the lock."""
    while True:
        # Not through a link, and without waiting for the other end of a pipe.
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        handle = os.open(folder / NAME, flags, 0o644)
        try:
            if _is_held(handle, folder, say):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # its owner took the file away in between


def _is_held(handle: int, folder: Path, say: Callable[[str], None]) -> bool:
    """Take the lock; return False where the file has lost its name meanwhile."""
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        raise InputError(f"{folder / NAME} is not a plain file; expected the lock of a training")
    import fcntl  # here: Windows has none, and `labkit doctor` says there what is supported

    locks, until = True, time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = _read(handle, patience=0.2) or {}
            # A child that its owner was just starting lets go as soon as it runs.
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
    """Return whether the open lock file is still, or again, the folder's."""
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(folder / NAME))
    except FileNotFoundError:
        return False


def _take_over(
    named: Mapping[str, Any], folder: Path, locks: bool, say: Callable[[str], None]
) -> None:
    """Say that the owner of a lock is gone, or raise ``InputError`` where it may not be."""
    place, ended = _place(), has_ended(named)
    # One machine's own locks hold for all its containers, which see other process numbers.
    key = "host" if place["boot"] is None else "boot"
    if ended:
        say(f"{folder} was left locked by {_who(named)}, which has ended; taken over")
    elif locks and named.get(key) == place[key]:
        # Also a copy of a folder in use: the process lives, and holds the lock of the other.
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
    """Return what a lock file says of its owner; {} where it says nothing, None: not labkit's."""
    until = time.monotonic() + patience
    # Zeros: its bytes were not on the disk yet when the power was cut.
    while not (text := os.pread(handle, _LONGEST, 0).strip(b"\0 \n")) and time.monotonic() < until:
        time.sleep(0.02)  # it is being written
    try:
        named = parse_json(text.decode(errors="replace")) if text else {}
    except InputError:
        return None
    if type(named) is int:  # an earlier labkit wrote the number alone, and left it there
        return {"pid": named}
    return named if named == {} or isinstance(named, dict) and "pid" in named else None


def _sign(handle: int, folder: Path, what: str) -> None:
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps({**owner(), "what": what}).encode() + b"\n", 0)
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error}") from error


def _let_go_in_child() -> None:
    """Close a forked child's copies: they would hold the locks after this process has ended."""
    for handle in _HELD:
        with contextlib.suppress(OSError):
            os.close(handle)
    _HELD.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, where `labkit doctor` says what to do
    os.register_at_fork(after_in_child=_let_go_in_child)
