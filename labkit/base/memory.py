"""Free memory, within the limits of a container too, which the machine does not show."""

from contextlib import suppress
from pathlib import Path

import psutil

_MOUNTED = Path("/sys/fs/cgroup")


def control_groups() -> list[Path]:
    """Return the folders of this process's control group (version 2) and of those around it."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    path = next((line[4:] for line in lines if line.startswith("0::/")), "")
    group = _MOUNTED / path
    return [folder for folder in (group, *group.parents) if folder.is_relative_to(_MOUNTED)]


def left_in_container() -> float:
    """Return the bytes that this process may still take by its control groups."""
    least = float("inf")
    for group in control_groups():
        with suppress(OSError, ValueError):  # no such file, or "max"
            left = int((group / "memory.max").read_text())
            left -= int((group / "memory.current").read_text())
            lines = (group / "memory.stat").read_text().splitlines()
            cached = dict(line.split() for line in lines)["inactive_file"]  # they give way
            least = min(least, max(left + int(cached), 0))
    return least


def free_memory() -> float:
    """Return the bytes that are free here: the machine's, or the container's if fewer."""
    return min(psutil.virtual_memory().available, left_in_container())
