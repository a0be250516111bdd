"""Arguments that every data pipeline checks in the same way."""

import numpy as np

from labkit.cores import usable_cores
from labkit.errors import InputError


def positive(name: str, value: object) -> int:
    """Return ``value`` as an int; raise ``InputError`` unless it is a whole number >= 1."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InputError(f"{name} is {value!r}; expected a whole number of at least 1")
    return int(value)


def switch(name: str, value: object) -> bool:
    """Return ``value``; raise ``InputError`` unless it is True or False."""
    if not isinstance(value, bool):
        raise InputError(f"{name} is {value!r}; expected True or False")
    return value


def fit_workers(workers: object) -> int:
    """Return ``workers``, at most the cores of this process; say so where that is fewer."""
    workers = positive("num_parallel_workers", workers)
    cores = len(usable_cores())
    if workers > cores:
        print(f"num_parallel_workers: {workers} asked for, {cores} used: there are {cores} cores")
    return min(workers, cores)
