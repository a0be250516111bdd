"""Free memory, within the limits of a container too, which the machine does not show."""

from contextlib import suppress
from pathlib import Path

_MOUNTED = Path("/sys/fs/cgroup")


def control_groups(mounted: Path = _MOUNTED) -> list[Path]:
    """Return the folders of this process's control group (version 2) and of those around it."""
    path = ""
    with suppress(OSError):
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        path = next((line[4:] for line in lines if line.startswith("0::/")), "")
    group = mounted / path
    return [group, *(folder for folder in group.parents if mounted in (folder, *folder.parents))]


def left_in(group: Path) -> int | None:
    """Return the bytes that a control group may still take; None without a limit."""
    with suppress(OSError, ValueError):  # no such file, or "max"
        left = int((group / "memory.max").read_text())
        left -= int((group / "memory.current").read_text())
        statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return max(left + int(statistics["inactive_file"]), 0)  # cached files give way
    return None


def left_in_container() -> int | None:
    """Return the bytes that this process may still take by its control groups; None: no limit."""
    left = [left_in(group) for group in control_groups()]
    return min((each for each in left if each is not None), default=None)


def free_memory() -> int:
    """Return the bytes that are free here: the machine's, or the container's if fewer."""
    import psutil  # not needed to see the groups

    free, left = psutil.virtual_memory().available, left_in_container()
    return free if left is None else min(free, left)
