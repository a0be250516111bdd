"""Handles a step's work on the host when its graph is part of a larger graph.

In dataset sink mode MindSpore puts the data set and the step into one graph, and one call from the
host runs as many micro-batches as are sunk. ``Step.__call__`` is then not called, nor is it when a
custom Cell calls the step in its ``construct``. ``Step.sink`` does beforehand, for all batches,
what a call does for each; a step that must see each batch on the host refuses.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import mindspore as ms
from mindspore import nn, ops

from labkit.errors import InputError


def refuse_sink(step: nn.Cell) -> None:
    """Raise ``InputError``, with the reason, if the step is not one graph."""
    reason = step.host_work()
    if ms.get_context("mode") != ms.GRAPH_MODE:
        reason = "there is no graph in PyNative mode"
    if reason:
        raise InputError(f"dataset_sink_mode: expected False for this {_name(step)}: {reason}")


def refusal(step: nn.Cell) -> str:
    """Return the error message for a graph that leaves out the step's work on the host."""
    left_out = step.host_work() or "labels and shapes are looked at on the host"
    return (
        f"this {_name(step)} is called in another graph, that of a Cell or of a data set in sink "
        f"mode: {left_out}. Expected a call of the step itself; for dataset sink mode, where the "
        "step is one graph, fit(..., dataset_sink_mode=True) or EndOfEpoch(step) as the first "
        "callback"
    )


@contextmanager
def on_the_host(step: nn.Cell) -> Iterator[None]:
    """Mark what is compiled inside the block as a call of the step itself."""
    before, step.__dict__["prepared"] = step.prepared, True
    try:
        yield
    finally:
        step.__dict__["prepared"] = before


@ops.constexpr
def checked(prepared: bool, words: str) -> bool:
    """Raise ``InputError``, while a graph is compiled, unless the host has done its part."""
    if not prepared:
        raise InputError(words)
    return True


def _name(step: nn.Cell) -> str:
    return f"{type(step).__name__} with {type(step.update).__name__}"
