"""How a network uses the layers that THOR preconditions: observed on a batch before compilation.

A tap sees a layer only where it is called. Other uses of its weight (a product with the weight
itself, another layer that shares it) contribute to the gradient but to no factor of the layer, so
that the gradient would be preconditioned by factors of only a part of the uses.
"""

import contextlib
import importlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from labkit.algorithms.thor.geometry import Place, kind_of, refuse_layers
from labkit.algorithms.thor.taps import tapped_cells
from labkit.errors import InputError
from labkit.runtime import pynative
from labkit.steps.batch_check import batch_rows
from labkit.steps.gradients import GradientStage
from labkit.steps.state import set_state

Shape = tuple[int, ...]


@dataclass
class Use:
    """How one layer was used in a forward pass."""

    inputs: list[Shape]  # one for each call
    elsewhere: bool = False  # the loss depends on its weight or bias other than by these calls
    fewer: list[Shape] | None = None  # inputs for a part of the rows; None: that was not run
    other: str = ""  # the layer's class, if its construct computes something else than its kind's


def check_uses(stage: GradientStage, places: Sequence[Place], batch: tuple) -> None:
    """Refuse layers whose factors would cover only a part of the uses of their weight.

    Args:
        stage: the step's gradient stage.
        places: places of the layers with taps.
        batch: inputs, and labels last.

    Raises:
        InputError: naming every layer whose weight is used other than by its calls, or that does
            not see equally many positions for each row of the batch (compared with a part of the
            rows, if the network accepts one); or if the batch's shapes do not show its rows.
    """
    rows = batch_rows(batch, stage.objective.batch_axis)
    uses = observed(stage, places, batch)
    if stage.objective.batch_axis is None:
        _check_layout(places, uses, batch)
    pairs = zip(places, uses, strict=True)
    refuse_layers({place.name: _problem(place, use, rows) for place, use in pairs})


def _check_layout(places: Sequence[Place], uses: list[Use], batch: tuple) -> None:
    """Raise ``InputError`` if axis 1 may count the rows as well: inputs and labels share it.

    The layers may rule it out: all see as many positions as axis 0 is long, or a convolution sees
    the batch's own maps. If they see the positions of both axes, the layout may be time-major, or
    batch-first token by token.
    """
    shapes = [tuple(part.shape) for part in batch if getattr(part, "shape", ())]
    inputs, labels = shapes[0], shapes[-1]
    first = inputs[:2]
    if len(first) < 2 or first != labels[:2] or first[0] == first[1]:
        return
    pairs = zip(places, uses, strict=True)
    calls = [(place, shape) for place, use in pairs for shape in use.inputs]
    if calls and all(_positions(place, shape) == first[0] for place, shape in calls):
        return
    maps = [shape for place, shape in calls if isinstance(place.layer, nn.Conv2d)]
    if any(shape[0] == first[0] and shape[2:] == inputs[2:] for shape in maps):
        return
    raise InputError(
        f"the batch's inputs have shape {inputs} and its labels {labels}: either of two axes may "
        "count the rows; expected batch_axis=0, or batch_axis=1 for time-major inputs"
    )


def _positions(place: Place, shape: Shape) -> int:
    # Count a convolution's maps (axis 0): the positions within a map are the layer's own.
    return shape[0] if isinstance(place.layer, nn.Conv2d) else math.prod(shape[:-1])


def _problem(place: Place, use: Use, rows: int) -> str:
    """Return what is wrong with the layer's use, or an empty string."""
    if not use.inputs:
        used = "though its weight is used" if use.elsewhere else "and its weight is not used"
        return f"is never called, {used}"
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
    if use.fewer is None:
        return ""
    part = _part(rows)
    total, of_part = (
        sum(_positions(place, shape) for shape in shapes) for shapes in (use.inputs, use.fewer)
    )
    if total * part == of_part * rows:
        return ""
    return (
        f"sees {total} positions for the batch's {rows} rows and {of_part} for {part} of them, not "
        "as many for each row"
    )


def observed(stage: GradientStage, places: Sequence[Place], batch: tuple) -> list[Use]:
    """Return how the loss of ``batch`` uses each layer, run operator by operator.

    In its calls a layer uses copies of its Parameters, so that the loss depends on the Parameters
    themselves only if they are used elsewhere. Zeros in Parameters, which might hide that (a gate
    that is closed at first, a head that begins with 0), are replaced by small numbers. Everything
    is restored afterwards: Parameters, attributes of Cells, and the state of random generators.
    """
    uses = [Use([]) for _ in places]
    with _unchanged(stage.loss_net), _eager():
        _fill_zeros(stage.loss_net)
        with _watched(places, [use.inputs for use in uses]) as watches:
            own = {id(p): p for watch in watches for p in watch.parameters}
            everything = ParameterTuple(own.values())
            differentiate = ops.grad(stage._scaled, None, everything, has_aux=True)
            gradients, _ = differentiate(*batch)
            used = {
                id(parameter)
                for parameter, gradient in zip(everything, gradients, strict=True)
                # NaN counts: a Parameter that is not used has a gradient of exact zeros.
                if np.any(gradient.asnumpy() != 0)
            }
            for use, watch in zip(uses, watches, strict=True):
                use.other = watch.other()
                use.elsewhere = any(id(parameter) in used for parameter in watch.parameters)
        _observe_part(stage, places, batch, uses)
    return uses


def _observe_part(
    stage: GradientStage, places: Sequence[Place], batch: tuple, uses: list[Use]
) -> None:
    """Record each layer's input shapes for ``_part`` of the batch's rows, if that can run."""
    rows = batch_rows(batch, stage.objective.batch_axis)
    if rows < 2:
        return
    part, axis = _part(rows), stage.objective.batch_axis or 0
    shapes: list[list[Shape]] = [[] for _ in places]
    first = [_cut(tensor, rows, part, axis) for tensor in batch]
    try:
        with _watched(places, shapes):
            stage.loss_net(*first).asnumpy()  # operators run asynchronously: wait for them
    except Exception:  # a network for a fixed number of rows accepts only the whole batch
        return
    for use, fewer in zip(uses, shapes, strict=True):
        use.fewer = fewer


def _part(rows: int) -> int:
    """Return how many rows to run by themselves: two, or one of two."""
    return min(2, rows - 1)


def _cut(tensor: Tensor, rows: int, part: int, axis: int) -> Tensor:
    """Return the first ``part`` rows of a tensor; all of it if no axis counts the rows."""
    shape: Shape = getattr(tensor, "shape", ())
    if len(shape) == 1 and shape[0] % rows == 0:
        return tensor[: shape[0] // rows * part]
    for number in (axis, 0):
        if len(shape) > number and shape[number] == rows:
            return tensor[(slice(None),) * number + (slice(part),)]
    return tensor


@contextlib.contextmanager
def _eager() -> Iterator[None]:
    """Run the body operator by operator, even methods that are marked with ``ms.jit``."""
    before = {name: os.environ[name] for name in ["MS_JIT"] if name in os.environ}
    os.environ["MS_JIT"] = "0"
    try:
        with pynative():
            yield
    finally:
        del os.environ["MS_JIT"]
        os.environ.update(before)


@contextlib.contextmanager
def _watched(places: Sequence[Place], shapes: list[list[Shape]]) -> Iterator[list["_Watch"]]:
    """Record the shapes of every layer's inputs; its calls use copies of its Parameters."""
    cells = tapped_cells(places)
    taps = [cell.tap for cell in cells]
    watches = []
    for place, cell, inputs in zip(places, cells, shapes, strict=True):
        watch = cell.watch = _Watch(place, inputs)
        object.__setattr__(cell, "tap", watch.passed)
        watches.append(watch)
    try:
        yield watches
    finally:
        for cell, tap in zip(cells, taps, strict=True):
            cell.watch = None
            object.__setattr__(cell, "tap", tap)


def _fill_zeros(loss_net: nn.Cell) -> None:
    """Replace exact zeros in floating-point Parameters by small numbers that all differ."""
    random = np.random.default_rng(1)
    for parameter in loss_net.get_parameters():
        value = parameter.asnumpy()
        if value.dtype.kind == "f" and not value.all():
            small = random.uniform(0.005, 0.015, value.shape)
            set_state(parameter, np.where(value == 0, small, value).astype(value.dtype))


class _Watch:
    """Replaces a tapped layer's call: records the input and uses copies of the Parameters."""

    def __init__(self, place: Place, inputs: list[Shape]) -> None:
        self.layer, self.inputs = place.layer, inputs
        self.kind = kind_of(self.layer)
        self.calls: list[tuple[Tensor, Tensor | None]] = []
        # The preconditioned Parameters.
        self.parameters = [self.layer.weight]
        if place.bias is not None:
            self.parameters.append(self.layer.bias)
        self.copies = {id(p): Parameter(p.clone(), name=p.name) for p in self.parameters}

    def __call__(self, call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        self.inputs.append(tuple(x.shape))
        before = dict(self.layer._params)
        self.layer._params.update({name: self.copies.get(id(p), p) for name, p in before.items()})
        try:
            return call(x)
        finally:
            self.layer._params.update(before)

    def passed(self, x: Tensor, y: Tensor, *_buffers: Tensor) -> Tensor:
        """Replace the tap, which comes before any activation function."""
        if type(self.layer).construct is not self.kind.construct:
            self.calls.append((y, self._as_its_kind(x)))
        return y

    def _as_its_kind(self, x: Tensor) -> Tensor | None:
        try:
            return self.kind.construct(self.layer, ops.stop_gradient(x))
        except Exception:  # the class lacks members of its kind, or takes other inputs
            return None

    def other(self) -> str:
        """Return the layer's class if a call's result was not that of its kind, or ""."""
        for y, expected in self.calls:
            if expected is None or expected.shape != y.shape:
                return type(self.layer).__name__
            y, expected = y.asnumpy().astype(np.float64), expected.asnumpy().astype(np.float64)
            # Rounding of float16, or in an accelerator's products: 1e-3 of the largest number.
            if not np.abs(y - expected).max() <= 0.01 * np.abs(expected).max():
                return type(self.layer).__name__
        return ""


@contextlib.contextmanager
def _unchanged(loss_net: nn.Cell) -> Iterator[None]:
    """Undo what a forward pass changes: state, attributes of Cells, random generators."""
    cells = [cell for _, cell in loss_net.cells_and_names()]
    attributes = [_attributes(cell) for cell in cells]
    parameters = [(p, p.asnumpy().copy()) for p in loss_net.get_parameters()]
    # ops.dropout and other operators without a seed take the next seed of their kind from here.
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


def _attributes(cell: nn.Cell) -> dict[str, object]:
    """Return the user's own attributes: those that begin with an underscore are MindSpore's."""
    return {name: value for name, value in vars(cell).items() if not name.startswith("_")}
