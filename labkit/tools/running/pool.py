"""Several runs at once, each on cores of its own: labs of one run, points of one sweep.

A small network hardly uses a second core, and two runs that share two cores slow each other down.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TypeVar

from labkit.base import arguments
from labkit.base.cores import keep_to, usable_cores
from labkit.tools.running.watch import free_memory

T = TypeVar("T")
# Nobody asks a driver here: that would take as long as importing MindSpore.
_ACCELERATORS = ("/dev/davinci0", "/dev/nvidia0")


def jobs_of(asked: int | None, runs: int, memory: float, device: str = "CPU") -> int:
    """Return how many runs go on at once: as asked, or else one a core, as memory allows.

    Nobody asked for several on one Ascend or GPU: there it is one.

    Args:
        asked: how many, if anybody says
        runs: how many there are
        memory: what one holds, bytes
        device: that they run on; auto is the machine's best

    Raises:
        InputError: for more runs at once than there are cores
    """
    cores = len(usable_cores())
    if asked is None:
        several = shares_no_device(device)
        asked = max(1, min(cores, int(free_memory() // memory))) if several else 1
    return min(runs, arguments.integer("--jobs", asked, at_most=cores))


def shares_no_device(device: str) -> bool:
    """Return whether runs on ``device`` (auto: the machine's best) have only the CPU to share."""
    best_is_cpu = device == "auto" and not any(Path(each).exists() for each in _ACCELERATORS)
    return device == "CPU" or best_is_cpu


def side_by_side(
    tasks: Sequence[Callable[[threading.Event], T]],
    shares: Sequence[set[int]],
    every: float | None = None,
) -> Iterator[tuple[int, T] | None]:
    """Run ``tasks``, as many at once as there are ``shares`` of the cores.

    Args:
        tasks: each takes an event: once it is set, the task has to end.
        shares: cores that a task is pinned to.
        every: seconds without an end after which None is given.

    Yields:
        (number of the task, its result) as they end; those that end together in their order.

    Raises:
        BaseException: the first of a task, or whatever ends the caller's loop (Ctrl-C); all others
            have ended then, and what has not begun does not.
    """
    free, stop = iter(shares), threading.Event()
    # This thread alone, with the kernels that it starts.
    with ThreadPoolExecutor(len(shares), initializer=lambda: keep_to(next(free))) as executor:
        try:
            numbers = {executor.submit(task, stop): number for number, task in enumerate(tasks)}
            running = set(numbers)
            while running:
                over, running = wait(running, every, return_when=FIRST_COMPLETED)
                for future in sorted(over, key=lambda future: numbers[future]):
                    yield numbers[future], future.result()
                if not over:
                    yield None
        except BaseException:
            stop.set()
            executor.shutdown(wait=True, cancel_futures=True)
            raise
