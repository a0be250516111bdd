"""What a rank's log says about its end: the error, the last lines, and whose fault it was."""

import re
from collections.abc import Mapping, Sequence

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


def tail(log: str, lines: int = 20) -> str:
    """Return the last lines of a log, without MindSpore's notes and C++ call stacks."""
    return "\n".join([line for line in log.splitlines() if not _NOISE.match(line)][-lines:])


def last_error(log: str) -> str | None:
    """Return the line ``Name: message`` of the last traceback in a log; None without one."""
    _, found, after = log.rpartition(f"{_TRACEBACK}\n")
    if not found:
        return None
    # The first line that is not indented. A traceback cut off in the middle has none.
    return next((line for line in after.splitlines() if line and not line[0].isspace()), None)


def first_cause(ended: Sequence[object], logs: Mapping[object, str], last: object) -> object:
    """Return who failed by itself, of those that ended badly.

    ended  names of what has failed, in the order in which they ended
    logs   log of every one that was started, also of those that still run
    last   name whose own error counts only where nobody else has one (the scheduler)

    Usually the first to end; where its error speaks of another one being gone, the first with an
    error that does not. A rank may take seconds from its error to its end, in which the others
    may fail, and end, before it.
    """
    own = [name for name in logs if (error := last_error(logs[name])) and not _ECHO.search(error)]
    own.sort(key=lambda name: (name == last, ended.index(name) if name in ended else len(ended)))
    first = ended[0]
    error = last_error(logs.get(first, ""))
    only_echo = first == last or (error is not None and _ECHO.search(error))
    return own[0] if only_echo and own else first
