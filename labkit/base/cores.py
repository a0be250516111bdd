"""The processor cores that this process may use."""

import contextlib
import os
from itertools import pairwise


def usable_cores() -> list[int]:
    """Return the numbers of the cores this process may use, lowest first; never an empty list.

    On Linux, the cores that it is pinned to (taskset, a container's set of cores). On macOS and
    Windows Python has no such call: all cores of the machine.
    """
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def equal_shares(sharers: int) -> list[set[int]]:
    """Return the cores that this process may use, divided among ``sharers``.

    Each share has at least one core: if there are more sharers than cores, some share a core.
    """
    cores = usable_cores()
    firsts = [number * len(cores) // sharers for number in range(sharers + 1)]
    return [set(cores[first : max(last, first + 1)]) for first, last in pairwise(firsts)]


def keep_to(cores: set[int], *, all_threads: bool = False) -> bool:
    """Restrict this thread, or all threads of the process, and what they start, to ``cores``.

    Returns:
        Whether they are restricted: on macOS and Windows Python has no such call.
    """
    if not hasattr(os, "sched_setaffinity"):
        return False
    for thread in os.listdir("/proc/self/task") if all_threads else ["0"]:
        with contextlib.suppress(ProcessLookupError):  # the thread has just ended
            os.sched_setaffinity(int(thread), cores)
    return True
