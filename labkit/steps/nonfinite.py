"""Locates where a loss stopped being finite: the first layer, weight or input that is not."""

from collections.abc import Callable

import numpy as np
from mindspore import Tensor, nn

from labkit.runtime import pynative
from labkit.steps.state import running_statistics, set_state


def first_nonfinite(loss_net: nn.Cell, batch: tuple) -> str:
    """Return a sentence that names the first non-finite value in ``loss_net(*batch)``.

    The batch is checked first, then the weights, then the layers' outputs in the order of the
    forward pass, which is run once more, operator by operator; running statistics do not change.
    """
    for number, part in enumerate(batch):
        if not _finite(part):
            return f"the batch's tensor {number} is not finite"
    for path, cell in loss_net.cells_and_names():
        for parameter in cell.get_parameters(expand=False):
            if parameter.requires_grad and not _finite(parameter):
                return f"weight {parameter.name!r} of layer {_name(path)!r} is not finite"
    nonfinite: list[str] = []
    handles = [
        cell.register_forward_hook(_noting(nonfinite, _name(path)))
        for path, cell in loss_net.cells_and_names()
        if path and not cell.name_cells() and path.split(".")[0] != "loss_fn"
    ]
    kept = [(p, p.asnumpy().copy()) for p in running_statistics(loss_net)]
    try:
        with pynative():
            loss = loss_net(*batch)
    finally:
        for handle in handles:
            handle.remove()
        for statistic, value in kept:
            set_state(statistic, value)
    if nonfinite:
        return f"layer {nonfinite[0]!r} is the first whose output is not finite"
    if not _finite(loss):
        return "all layers' outputs are finite, the loss function's is not"
    return "loss and layers' outputs are finite when computed once more"


def _noting(names: list[str], name: str) -> Callable:
    def note(cell: nn.Cell, inputs: tuple, output: object) -> None:
        if not _finite(output):
            names.append(name)

    return note


def _finite(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_finite, value))
    return not isinstance(value, Tensor) or bool(np.isfinite(value.asnumpy()).all())


def _name(path: str) -> str:
    return path.removeprefix("network.").removesuffix(".layer")
