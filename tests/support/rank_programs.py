"""Programs that run on each of several ranks: how they are started, and what they share.

Imports no MindSpore at the top: some of the programs start labkit first.
"""

import contextlib
import functools
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from labkit import launch
from labkit.errors import InputError

SECONDS = 600


def rank_results(out, *program, root, ranks=2):
    """Run a program on ranks, in folder ``out``, where it writes rank<n>.npz; return each's arrays.

    It fails if a rank fails or hangs.
    """
    options = {"cwd": out, "log_dir": out / "log", "env": {"PYTHONPATH": str(root)}}
    launch(*program, workers=ranks, timeout=SECONDS, cluster_timeout=120, **options)
    return [dict(np.load(out / f"rank{rank}.npz")) for rank in range(ranks)]


def launches(program, names_and_ranks, root, folder):
    """Launch a program for each (name, number of ranks); return a function that waits for one.

    Two launches run at a time: half of a launch is ranks waiting for others. One that is not among
    them runs when it is asked for.
    """

    @functools.cache
    def launched(name, ranks):
        out = folder / f"{name}-{ranks}"
        out.mkdir()
        return rank_results(out, program, name, out, root=root, ranks=ranks)

    pool = ThreadPoolExecutor(2)
    futures = {each: pool.submit(launched, *each) for each in names_and_ranks}
    pool.shutdown(wait=False)

    def results(*each):
        return futures[each].result() if each in futures else launched(*each)

    return results


def in_mode(compiled):
    """Run the block as graphs, or operator by operator, which compiles nothing."""
    from labkit.runtime import pynative

    return contextlib.nullcontext() if compiled else pynative()


def refused(function):
    """Return the message of the InputError that a function raises."""
    try:
        function()
    except InputError as error:
        return str(error)
    return "nothing was refused"


def operator_names(call, *arguments):
    """Return the names of the operators that a call compiles."""
    from tests.support.compiled import compiled_operators

    operators = compiled_operators(call, *arguments)
    return np.array(sorted({operator.name for operator in operators}))
