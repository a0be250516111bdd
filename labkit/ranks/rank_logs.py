"""What a rank's log says about its end: the error, the last lines, and whose fault it was."""

import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

Who = TypeVar("Who", bound=int | str)

# What MindSpore writes for its own developers, and what Python's fault handler adds.
_NOISE = re.compile(
    r"\s*$|\[(DEBUG|INFO|WARNING)\]|-{10,}$|- C\+\+ Call Stack|mindspore/ccsrc/\S+:\d+ "
    r"|Extension modules: |Thread 0x\w+ \(most recent call first\):$|  <no Python frame>"
)
_TRACEBACK = "Traceback (most recent call last):"
# The words of an error that a rank or the scheduler has only because another rank is gone.
_ECHO = re.compile(
    r"time[d-]? ?out|heartbeat|reconnect|abnormal compute graph node|broken pipe|peer"
    r"|connect\w* .*(refused|reset|lost|closed|fail)|(lost|fail\w*) .*connect",
    re.IGNORECASE,
)

# MindSpore's error on the ranks that have joined, when others have not in time.
_ALONE = "Failed to initialize distributed job cluster because some processes"
_JOINING = re.compile(r'management\.py", line \d+ in init$', re.MULTILINE)
_LOST = re.compile(r"The node: (\d+) is timed out")  # in the scheduler's log


def tail(log: str, lines: int = 20) -> str:
    """Return the last lines of a log, without MindSpore's notes and C++ call stacks."""
    return "\n".join([line for line in log.splitlines() if not _NOISE.match(line)][-lines:])


def last_error(log: str) -> str | None:
    """Return the line ``Name: message`` of the last traceback in a log; None without one."""
    _, traceback, after = log.rpartition(f"{_TRACEBACK}\n")
    if not traceback:
        return None
    # The first line that is not indented. A traceback cut off in the middle has none.
    return next((line for line in after.splitlines() if line and not line[0].isspace()), None)


def is_echo(log: str) -> bool:
    """Return whether the last error of a log is one that a rank has because another is gone."""
    error = last_error(log)
    return error is not None and _ECHO.search(error) is not None


def is_alone(log: str) -> bool:
    """Return whether the last error of a log is that not all have joined in time."""
    return _ALONE in (last_error(log) or "")


def joins(log: str) -> bool:
    """Return whether a log that ends with where its rank was shows it waiting for the others."""
    return is_alone(log) or _JOINING.search(log) is not None


def lost_ranks(scheduler: str) -> list[int]:
    """Return the ranks that the scheduler has heard no more of, by its log."""
    return sorted({int(rank) for rank in _LOST.findall(scheduler)})


def first_cause(ended: Sequence[Who], logs: Mapping[Who, str], last: Who) -> Who:
    """Return who failed by itself, of those that ended badly.

    Usually the first to end; where its error speaks of another one being gone, the first with an
    error that does not. A rank may take seconds from its error to its end, in which the others
    may fail, and end, before it.

    Args:
        ended: names of what has failed, in the order in which they ended.
        logs: log of every one that was started, also of those that still run.
        last: name whose own error counts only where nobody else has one (the scheduler).
    """
    own = [name for name in logs if last_error(logs[name]) and not is_echo(logs[name])]
    own.sort(key=lambda name: (name == last, ended.index(name) if name in ended else len(ended)))
    first = ended[0]
    only_echo = first == last or is_echo(logs.get(first, ""))
    return own[0] if only_echo and own else first
