"""The child of a campaign: calls the doors of one reader and answers how each input ended.

An answer has ``kind`` ("result" of at least one door, "refused" or "failure"), ``text``,
``seconds`` of computing behind the slowest door, and ``memory``, the most bytes that the process
has held above what it held at the beginning.
"""

import faulthandler
import math
import os
import resource
import signal
import traceback
from pathlib import Path

ROOM = 4 << 30  # bytes of address space above the base; only memory that was held is judged
LONGEST = 1000  # characters of a message
COMPUTING = 30.0  # seconds of computing after which a door is ended
CLOCK = 300.0  # seconds on the clock, on a busy machine: the door hangs

reader, base = None, 0  # the reader, and the bytes held before the first input


def begin(name: str, place: Path, log: str) -> None:
    """Begin work in ``place`` with limits; the output of the process goes to ``log``."""
    global reader, base
    # matplotlib and others write to the home folder on import.
    os.environ |= {"OMP_NUM_THREADS": "1", "GLOG_v": "3", "HOME": str(place.parent / "home")}
    os.chdir(place)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    file = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    faulthandler.enable()
    for number in (signal.SIGXCPU, signal.SIGALRM):
        faulthandler.register(number, chain=True)  # prints the stack, and ends
    from tests.campaigns.table import READERS

    reader = READERS[name]
    if reader.heavy:
        import mindspore  # noqa: F401
        import torch  # noqa: F401
    size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, size + ROOM))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    base = _held()


def answer(folder: Path, out: Path) -> dict:
    """Read the input in ``folder``; return the answer."""
    judged = within(COMPUTING, CLOCK, _judged, reader, folder, out)
    return judged | {"memory": _held() - base}


def within(computing: float, clock: float, call, *arguments):
    """Return the result of ``call``; end this process if it takes too many seconds."""
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(_seconds() + computing), -1))
    signal.setitimer(signal.ITIMER_REAL, clock)
    result = call(*arguments)
    signal.setitimer(signal.ITIMER_REAL, 0)
    return result


def _held() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _judged(reader, folder: Path, out: Path) -> dict:
    from labkit.errors import InputError

    texts, slowest = [], 0.0
    for door in reader.doors:
        before, failure = _seconds(), None
        try:
            door(folder, out)
        except InputError as error:
            texts.append(text := str(error))
            if len(text.splitlines()) != 1 or len(text) > LONGEST:
                failure = f"a message of {len(text)} letters: {text[:2000]}"
        except BaseException:
            failure = traceback.format_exc()[-3000:]
        slowest = max(slowest, _seconds() - before)
        if failure is not None:
            return {"kind": "failure", "text": failure, "seconds": slowest}
    kind = "refused" if len(texts) == len(reader.doors) else "result"
    return {"kind": kind, "text": "; ".join(texts)[:3000], "seconds": slowest}


def _seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
