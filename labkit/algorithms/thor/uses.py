"""How a network uses the layers that THOR preconditions: seen on a batch, before it is compiled.

A tap sees a layer where it is called. What a weight does elsewhere (a product with the weight
itself, another layer that shares it) is in its gradient and in no factor of the layer, and would be
preconditioned by factors of a part of what it does.
"""

import contextlib
import importlib
import math
import os
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, nn, ops

from labkit.algorithms.thor.geometry import kind_of
from labkit.algorithms.thor.layers import refuse_layers, tapped_cells
from labkit.errors import InputError
from labkit.runtime import pynative
from labkit.steps.gradients import set_state
from labkit.steps.rows import batch_rows


@dataclass
class Use:
    """What one layer did in a forward pass.

    inputs     shape of its input at each of its calls
    elsewhere  whether the loss depends on its weight or bias other than through these calls
    fewer      the inputs' shapes for a part of the batch's rows; None where that was not run
    other      the class whose ``construct`` gives another result than the layer's kind does, or ""
    """

    inputs: list
    elsewhere: bool = False
    fewer: list | None = None
    other: str = ""


def check_uses(stage, places, batch) -> None:
    """Raise ``InputError`` with every layer whose calls are not all that its weight is used for.

    And with those whose number of positions does not go with the batch's rows (it is compared with
    that of a part of the rows, where the network takes one), or for a batch that does not tell how
    many rows it has.
    """
    rows = batch_rows(batch, stage.objective.batch_axis)
    uses = observed(stage, places, batch)
    if stage.objective.batch_axis is None:
        _check_layout(places, uses, batch)
    problems = {}
    for place, use in zip(places, uses, strict=True):
        problem = _problem(place, use, rows)
        if problem:
            problems[place.name] = problem
    refuse_layers(problems)


def _check_layout(places, uses, batch):
    """Raise ``InputError`` where axis 1 may as well count the rows: inputs and labels share it.

    Not where the layers show it: all see as many positions as axis 0 is long, or a convolution sees
    the batch's own maps. Time-major, or batch first token by token, they see those of both axes.
    """
    inputs, labels = (tuple(getattr(part, "shape", ())) for part in (batch[0], batch[-1]))
    first = inputs[:2]
    if len(first) < 2 or first != labels[:2] or first[0] == first[1]:
        return
    seen = [(place, shape) for place, use in zip(places, uses, strict=True) for shape in use.inputs]
    if seen and all(_positions(place, shape) == first[0] for place, shape in seen):
        return
    maps = [shape for place, shape in seen if isinstance(place.layer, nn.Conv2d)]
    if any(shape[0] == first[0] and shape[2:] == inputs[2:] for shape in maps):
        return
    raise InputError(
        f"the batch's inputs have shape {inputs} and its labels {labels}: either of two axes may "
        "count the rows; expected batch_axis=0, or batch_axis=1 for time-major inputs"
    )


def _positions(place, shape):
    # A convolution's positions on one map are the layer's own: its axis 0 counts maps.
    return shape[0] if isinstance(place.layer, nn.Conv2d) else math.prod(shape[:-1])


def _problem(place, use, rows):
    if not use.inputs:
        if use.elsewhere:
            return "is never called, though its weight is used"
        return "is never called, and its weight is not used"
    if use.elsewhere:
        return "is called, and its weight or bias is used elsewhere as well"
    if use.other:
        kind = kind_of(place.layer).__name__
        return f"is of class {use.other}, which computes something else than {kind}"
    for shape in use.inputs:
        if _positions(place, shape) % rows:
            return (
                f"sees an input of shape {tuple(shape)}, not a whole number of positions for each "
                f"of the batch's {rows} rows"
            )
    if use.fewer is not None:
        part = _part(rows)
        all_rows, some = (
            sum(_positions(place, shape) for shape in shapes) for shapes in (use.inputs, use.fewer)
        )
        if all_rows * part != some * rows:
            return (
                f"sees {all_rows} positions for the batch's {rows} rows and {some} for {part} of "
                "them, not as many for each row"
            )
    return ""


def observed(stage, places, batch) -> list[Use]:
    """Return what each layer does in the loss of ``batch``, operator by operator.

    In its calls a layer gets a copy of its Parameters, so that the loss depends on the Parameters
    themselves only where they are used elsewhere. Zeros in Parameters, which might hide that (a
    gate that is closed at first, a head that begins with 0), are filled with small numbers. Nothing
    is changed afterwards: neither Parameters, nor attributes of Cells, nor the state of random
    numbers.
    """
    uses = [Use([]) for _ in places]
    own = [_preconditioned(place) for place in places]
    with _unchanged(stage.loss_net), _eager():
        _fill_zeros(stage.loss_net)
        everything = ParameterTuple(_distinct(p for some in own for p in some))
        with _watched(places, [use.inputs for use in uses], own) as watches:
            differentiate = ops.grad(stage._scaled, None, everything, has_aux=True)
            gradients, _ = differentiate(*batch)
            used = {
                id(parameter)
                for parameter, gradient in zip(everything, gradients, strict=True)
                # NaN counts: what the loss does not depend on has a gradient of exact zeros.
                if np.any(gradient.asnumpy() != 0)
            }
            others = [watch.other() for watch in watches]
        seen = _inputs_of_a_part(stage, places, own, batch)
    for use, parameters, fewer, other in zip(uses, own, seen, others, strict=True):
        use.other = other
        use.elsewhere = any(id(parameter) in used for parameter in parameters)
        use.fewer = fewer
    return uses


def _inputs_of_a_part(stage, places, own, batch):
    """Return by layer the shapes of its inputs for ``_part`` of the batch's rows, or None."""
    rows = batch_rows(batch, stage.objective.batch_axis)
    nothing = [None] * len(places)
    if rows < 2:
        return nothing
    part, seen = _part(rows), [[] for _ in places]
    batch = [_cut(tensor, rows, part, stage.objective.batch_axis or 0) for tensor in batch]
    try:
        with _watched(places, seen, own):
            stage.loss_net(*batch).asnumpy()  # operators run behind Python's back: wait for them
    except Exception:  # a network of a fixed number of rows; the whole batch it takes, as was seen
        return nothing
    return seen


def _part(rows):
    """Return how many rows are looked at on their own: two, where there are more."""
    return min(2, rows - 1)


def _cut(tensor, rows, part, axis):
    """Return a tensor of the batch for its first rows; as it is where no axis counts them."""
    shape = getattr(tensor, "shape", ())
    if len(shape) == 1 and shape[0] % rows == 0:
        return tensor[: shape[0] // rows * part]
    for number in (axis, 0):
        if len(shape) > number and shape[number] == rows:
            return tensor[(slice(None),) * number + (slice(part),)]
    return tensor


@contextlib.contextmanager
def _eager():
    """Run operator by operator what is inside, also where a method is marked with ``ms.jit``."""
    before = os.environ.get("MS_JIT")
    os.environ["MS_JIT"] = "0"
    try:
        with pynative():
            yield
    finally:
        os.environ.pop("MS_JIT")
        if before is not None:
            os.environ["MS_JIT"] = before


@contextlib.contextmanager
def _watched(places, inputs, own):
    """Let every layer note its inputs' shapes, and put copies for its Parameters in its calls."""
    cells = tapped_cells(places)
    taps = [cell.tap for cell in cells]
    for place, cell, seen, parameters in zip(places, cells, inputs, own, strict=True):
        cell.watch = _Watch(place.layer, seen, parameters)
        object.__setattr__(cell, "tap", cell.watch.passed)
    try:
        yield [cell.watch for cell in cells]
    finally:
        for cell, tap in zip(cells, taps, strict=True):
            cell.watch = None
            object.__setattr__(cell, "tap", tap)


def _fill_zeros(loss_net):
    """Put small numbers, no two alike, for what is exactly zero in Parameters of real numbers."""
    random = np.random.default_rng(1)
    for parameter in loss_net.get_parameters():
        value = parameter.asnumpy()
        if value.dtype.kind == "f" and not value.all():
            small = random.uniform(0.005, 0.015, value.shape)
            set_state(parameter, np.where(value == 0, small, value).astype(value.dtype))


def _preconditioned(place):
    """Return the layer's weight and, where it is in the factors, its bias."""
    own = (place.layer.weight, None if place.bias is None else place.layer.bias)
    return [one for one in own if one is not None]


def _distinct(parameters):
    return list({id(parameter): parameter for parameter in parameters}.values())


class _Watch:
    """Stands for a tapped layer's call: notes the input, and puts copies for the Parameters."""

    def __init__(self, layer, inputs, parameters):
        self.layer, self.inputs = layer, inputs
        self.kind, self.calls = kind_of(layer), []
        self.copies = {id(one): Parameter(one.clone(), name=one.name) for one in parameters}

    def __call__(self, call, x):
        self.inputs.append(tuple(x.shape))
        before = dict(self.layer._params)
        self.layer._params.update(
            {name: self.copies.get(id(one), one) for name, one in before.items()}
        )
        try:
            return call(x)
        finally:
            self.layer._params.update(before)

    def passed(self, x, y, *_buffers):
        """Stand for the tap, which is before any activation function."""
        if type(self.layer).construct is not self.kind.construct:
            self.calls.append((y, self._as_its_kind(x)))
        return y

    def _as_its_kind(self, x):
        try:
            return self.kind.construct(self.layer, ops.stop_gradient(x))
        except Exception:  # of other members than its kind's, or on inputs that are not for it
            return None

    def other(self) -> str:
        """Return the layer's class where a call's result was not that of its kind, or ""."""
        for y, expected in self.calls:
            if expected is None or expected.shape != y.shape:
                return type(self.layer).__name__
            y, expected = y.asnumpy().astype(np.float64), expected.asnumpy().astype(np.float64)
            # float16, or the inside of an accelerator's products: 1e-3 of the largest number.
            if not np.abs(y - expected).max() <= 0.01 * np.abs(expected).max():
                return type(self.layer).__name__
        return ""


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
