"""How a network uses the layers that THOR preconditions: seen on a batch, before it is compiled.

A tap sees a layer where it is called. What a weight does elsewhere (a product with the weight
itself, another layer that shares it) is in its gradient and in no factor of the layer, and would be
preconditioned by factors of a part of what it does.
"""

import contextlib
import importlib
import math
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, nn, ops

from labkit.algorithms.thor.layers import refuse_layers, tapped_cells
from labkit.errors import InputError
from labkit.gradients import set_state
from labkit.rows import batch_rows
from labkit.runtime import pynative

INTEGERS = (ms.int32, ms.int64)


@dataclass
class Use:
    """What one layer did in a forward pass.

    inputs     shape of its input at each of its calls
    elsewhere  whether the loss depends on its weight or bias other than through these calls
    """

    inputs: list
    elsewhere: bool = False


def check_uses(stage, places, batch) -> None:
    """Raise ``InputError`` with every layer whose calls are not all that its weight is used for.

    And with those that see a number of positions that the batch's rows do not divide, or for a
    batch that does not tell how many rows it has.
    """
    problems, rows = {}, rows_of(batch, stage.batch_axis)
    for place, use in zip(places, observed(stage, places, batch), strict=True):
        problem = _problem(place, use, rows)
        if problem:
            problems[place.name] = problem
    refuse_layers(problems)


def rows_of(batch, axis) -> int:
    """Return how many rows a batch has; ``InputError`` where that cannot be told.

    ``batch_rows`` takes axis 0 for the rows of inputs and labels that share it. Token by token, or
    vector by vector, these may as well be time-major.
    """
    rows = batch_rows(batch, axis)
    shapes = [tuple(getattr(part, "shape", ())) for part in (batch[0], batch[-1])]
    axes = [len(shape) for shape in shapes]
    tokens = axes[1] > 1 and getattr(batch[-1], "dtype", None) in INTEGERS
    by_position = axes == [3, 3] or (axes[0] <= 3 and tokens)
    first, second = shapes[0][:2], shapes[1][:2]
    if axis is None and by_position and first == second and len(set(first)) == 2:
        raise InputError(
            f"the batch's inputs have shape {shapes[0]} and its labels {shapes[1]}: either of two "
            "axes may count the rows; expected batch_axis=0, or batch_axis=1 for time-major inputs"
        )
    return rows


def _problem(place, use, rows):
    if not use.inputs:
        if use.elsewhere:
            return "is never called, though its weight is used"
        return "is never called, and its weight is not used"
    if use.elsewhere:
        return "is called, and its weight or bias is used elsewhere as well"
    for shape in use.inputs:
        # A convolution's positions on one map are the layer's own: its axis 0 counts maps.
        seen = shape[0] if isinstance(place.layer, nn.Conv2d) else math.prod(shape[:-1])
        if seen % rows:
            return (
                f"sees an input of shape {tuple(shape)}, not a whole number of positions for each "
                f"of the batch's {rows} rows"
            )
    return ""


def observed(stage, places, batch) -> list[Use]:
    """Return what each layer does in the loss of ``batch``, operator by operator.

    In its calls a layer gets a copy of its Parameters, so that the loss depends on the Parameters
    themselves only where they are used elsewhere. Nothing else changes: neither Parameters, nor
    attributes of Cells, nor the state of random numbers.
    """
    uses = [Use([]) for _ in places]
    own = [_preconditioned(place) for place in places]
    cells = tapped_cells(places)
    taps = [cell.tap for cell in cells]
    with _unchanged(stage.loss_net), pynative():
        for place, cell, use, parameters in zip(places, cells, uses, own, strict=True):
            cell.watch = _Watch(place.layer, use, parameters)
            object.__setattr__(cell, "tap", _passed)
        try:
            everything = ParameterTuple(_distinct(p for some in own for p in some))
            differentiate = ops.grad(stage._objective, None, everything, has_aux=True)
            gradients, _ = differentiate(*batch)
            used = {
                id(parameter)
                for parameter, gradient in zip(everything, gradients, strict=True)
                # NaN counts: what the loss does not depend on has a gradient of exact zeros.
                if np.any(gradient.asnumpy() != 0)
            }
        finally:
            for cell, tap in zip(cells, taps, strict=True):
                cell.watch = None
                object.__setattr__(cell, "tap", tap)
    for use, parameters in zip(uses, own, strict=True):
        use.elsewhere = any(id(parameter) in used for parameter in parameters)
    return uses


def _passed(x, y, *buffers):
    return y


def _preconditioned(place):
    """Return the layer's weight and, where it is in the factors, its bias."""
    own = (place.layer.weight, None if place.bias is None else place.layer.bias)
    return [one for one in own if one is not None]


def _distinct(parameters):
    return list({id(parameter): parameter for parameter in parameters}.values())


class _Watch:
    """Stands for a tapped layer's call: notes the input, and puts copies for the Parameters."""

    def __init__(self, layer, use, parameters):
        self.layer, self.use = layer, use
        self.copies = {id(one): Parameter(one.clone(), name=one.name) for one in parameters}

    def __call__(self, call, x):
        self.use.inputs.append(tuple(x.shape))
        before = dict(self.layer._params)
        self.layer._params.update(
            {name: self.copies.get(id(one), one) for name, one in before.items()}
        )
        try:
            return call(x)
        finally:
            self.layer._params.update(before)


@contextlib.contextmanager
def _unchanged(loss_net):
    """Take back what a forward pass changes: state, attributes of Cells, random numbers."""
    cells = [cell for _, cell in loss_net.cells_and_names()]
    attributes = [_attributes(cell) for cell in cells]
    parameters = [(one, one.asnumpy().copy()) for one in loss_net.get_parameters()]
    # ops.dropout and others that are given no seed take the next one of their kind from here.
    seeds = importlib.import_module("mindspore.common.seed")._KERNEL_SEED
    generator, kernels = ms.get_rng_state(), dict(seeds)
    try:
        yield
    finally:
        ms.set_rng_state(generator)
        seeds.clear()
        seeds.update(kernels)
        for parameter, value in parameters:
            if parameter.asnumpy().tobytes() != value.tobytes():
                set_state(parameter, value)
        for cell, before in zip(cells, attributes, strict=True):
            for name, value in _attributes(cell).items():
                if name not in before:
                    object.__delattr__(cell, name)
                elif before[name] is not value:
                    object.__setattr__(cell, name, before[name])


def _attributes(cell):
    """The user's own attributes: those that begin with an underscore are MindSpore's."""
    return {name: value for name, value in vars(cell).items() if not name.startswith("_")}
