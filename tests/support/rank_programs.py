"""Shared by programs that run on each rank. Imports no MindSpore: ``start`` must come first."""

import contextlib
import os

import numpy as np


def in_mode(compiled):
    """Run the block as graphs, or operator by operator, which compiles nothing."""
    from labkit.runtime import pynative

    return contextlib.nullcontext() if compiled else pynative()


def save(out, rank, values):
    """Write OUT/rank<n>.npz atomically."""
    part = out / f"rank{rank}.part.npz"
    np.savez(part, **values)
    os.replace(part, out / f"rank{rank}.npz")


def refused(function):
    """Return the message of the InputError that a function raises."""
    from labkit.errors import InputError

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
