"""Free memory and cores, within the limits of a container too, which the machine does not show."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

# Lines of NUMBER:CONTROLLERS:GROUP; version 2 names no controllers.
_OWN = Path("/proc/self/cgroup")
_MOUNTED = Path("/sys/fs/cgroup")


def control_groups(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control group and of those around it, of any version.

    In a container the group may be named as the machine sees it: then only the outermost exists.
    """
    for line in _OWN.read_text().splitlines() if _OWN.exists() else ():
        _, controllers, name = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            mount = _MOUNTED / (controller if controllers else "")
            group = mount / name.lstrip("/")
            yield from (each for each in (group, *group.parents) if each.is_relative_to(mount))


def left_in_container() -> float:
    """Return the bytes that this process may still take by its control groups."""
    least = float("inf")
    for group in control_groups("memory"):
        for limit, used, cached in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            with suppress(OSError, ValueError):  # no such file, or "max"
                left = int((group / limit).read_text()) - int((group / used).read_text())
                with suppress(OSError):  # cached files give way
                    lines = (group / "memory.stat").read_text().splitlines()
                    left += int(dict(map(str.split, lines)).get(cached, 0))
                least = min(least, max(left, 0))
    return least


def free_memory() -> float:
    """Return the bytes that are free here: the machine's, or the container's if fewer."""
    return min(psutil.virtual_memory().available, left_in_container())


def cores() -> float:
    """Return how many cores this process may use: those it is bound to, or its share of time."""
    least = float(len(os.sched_getaffinity(0)))
    for group in control_groups("cpu"):
        for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
            with suppress(OSError, ValueError):  # no such file, or "max"
                quota, period = " ".join((group / name).read_text() for name in names).split()
                least = min(least, int(quota) / int(period)) if int(quota) > 0 else least
    return least
