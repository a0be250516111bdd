"""Several runs at once, each on its own cores: labs of one run or points of one sweep.

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
# No driver is queried: that would take as long as importing MindSpore.
_ACCELERATORS = ("/dev/davinci0", "/dev/nvidia0")


def jobs_of(asked: int | None, runs: int, memory: float, device: str = "CPU") -> int:
    """Return the number of simultaneous runs: as asked, else one per core, as memory allows.

    On an Ascend or a GPU the default is one run at a time.

    Args:
        asked: number that was asked for, or None
        runs: total number of runs
        memory: memory that one run holds, in bytes
        device: device of the runs; auto is the machine's best

    Raises:
        InputError: if more simultaneous runs than cores are asked for
    """
    cores = len(usable_cores())
    if asked is None:
        several = shares_no_device(device)
        asked = max(1, min(cores, int(free_memory() // memory))) if several else 1
    return min(runs, arguments.integer("--jobs", asked, at_most=cores))


def shares_no_device(device: str) -> bool:
    """Return whether runs on ``device`` (auto: the machine's best) share no device but the CPU."""
    best_is_cpu = device == "auto" and not any(Path(each).exists() for each in _ACCELERATORS)
    return device == "CPU" or best_is_cpu


def side_by_side(
    tasks: Sequence[Callable[[threading.Event], T]],
    shares: Sequence[set[int]],
    every: float | None = None,
) -> Iterator[tuple[int, T] | None]:
    """Run ``tasks``, as many at once as there are ``shares`` of the cores.

    Args:
        tasks: each takes an event; when it is set, the task must end.
        shares: sets of cores; each worker is pinned to one of them.
        every: seconds after which None is yielded if no task has ended.

    Yields:
        (number of the task, its result) as tasks end; in order of number if several end together.

    Raises:
        BaseException: the first exception of a task, or the one that ends the caller's loop
            (Ctrl-C); by then all running tasks have ended, and the remaining ones do not start.
    """
    free, stop = iter(shares), threading.Event()
    # Pins the worker thread only, and with it the kernels that it starts.
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
