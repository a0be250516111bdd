"""The memory left in a container, whose limit the machine's own numbers do not show."""

import contextlib
from pathlib import Path

# For control groups of versions 2 and 1: the limit, the usage, and the name of that part of the
# usage that is cached file pages, which the system reclaims when memory is needed.
_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
)


def left_in_container(groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the bytes that this process's control group may still take; None without a limit.

    Args:
        groups: folder of the control group's files.
    """
    for limit, used, cached in _FILES:
        with contextlib.suppress(OSError, ValueError):  # not there, or "max"
            left = int((groups / limit).read_text()) - int((groups / used).read_text())
            return max(left + statistic((groups / limit).with_name("memory.stat"), cached), 0)
    return None


def statistic(path: Path, name: str) -> int:
    """Return the number after ``name`` in a file of statistics; 0 if there is no such number."""
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            if line.startswith(f"{name} "):
                return int(line.split()[1])
    return 0
