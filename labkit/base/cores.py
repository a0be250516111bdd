"""The processor cores that this process may use."""

import os


def usable_cores() -> list[int]:
    """Return the numbers of the cores this process may use, lowest first; never an empty list.

    On Linux, the cores that it is pinned to (taskset, a container's set of cores). On macOS and
    Windows Python has no such call: all cores of the machine.
    """
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
