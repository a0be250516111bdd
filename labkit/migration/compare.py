"""A network and its original in PyTorch, compared place by place: every faulty place is named.

A tensor agrees if it is as near to PyTorch's float64 as PyTorch's own float32 lets one expect:

    |ours - float64| <= FACTOR |float32 - float64| + FLOOR max |float64|

A whole step is compared more coarsely, by the 2-norm of a tensor's difference over the tensor's:
rounding may open a ReLU in one framework only, and that changes every gradient below it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn

from labkit.errors import InputError
from labkit.migration.cures import cure
from labkit.migration.names import Match, Rule, match
from labkit.migration.places import Places, as_tensors, called, fitted, is_tensor
from labkit.migration.trace import Arrays, Call, Trace, Value, replaced, tensors
from labkit.migration.updates import compare_updates
from labkit.runtime import pynative
from labkit.steps.state import set_state

FACTOR, FLOOR, COARSE = 16, 4e-6, 0.05


@dataclass(frozen=True)
class Row:
    """One tensor at one place."""

    stage: str
    place: str
    tensor: str
    difference: float  # the largest over the largest value of PyTorch's, or infinite
    tolerance: float
    note: str = ""

    @property
    def passed(self) -> bool:
        """Whether the tensors agree."""
        return self.difference <= self.tolerance


@dataclass
class Comparison:
    """All that was compared, in the order of the forward pass; ``print`` shows it."""

    origin: str
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def faults(self) -> dict[tuple[str, str], str]:
        """What is off at each faulty place, by (stage, place)."""
        lines: dict[tuple[str, str], list[str]] = {}
        for row in self.rows:
            if not row.passed:
                off = f"{row.tensor} off by {row.difference:.1e}"
                off = f"{off} ({row.note})" if row.note else off
                off = row.note if np.isinf(row.difference) else off
                lines.setdefault((row.stage, row.place), []).append(off)
        return {key: "; ".join(parts) for key, parts in lines.items()}

    def __str__(self) -> str:
        lines = [self.origin, stage_table(self.rows)]
        lines += [f"{place} ({stage}): {what}" for (stage, place), what in self.faults.items()]
        return "\n".join(lines + self.notes)


def compare(
    network: nn.Cell,
    reference: Any,
    loss: Any,
    optimizers: Any,
    batch: Any = None,
    *,
    rules: Sequence[Rule] = (),
) -> Comparison:
    """Compare a network with its original in PyTorch, and return every place that differs.

    It runs in PyNative mode. Weights, statistics and optimizers are afterwards what they were; the
    original's weights are used on both sides, so that a wrong weight is a fault by itself.

    Args:
        network: ours.
        reference: PyTorch's module; or a ``Trace`` of it, where there is no PyTorch.
        loss: ``(ours, theirs)``, each ``loss(outputs, *targets)`` -> scalar.
        optimizers: ``(ours, theirs)``; each may be a pair (optimizer, scheduler).
        batch: ``(inputs, *targets)`` for both, arrays; inputs may be a tuple, or a mapping by
            argument. Integers become int32 here and int64 in PyTorch.
        rules: for names that differ, see ``Rule``.

    With a ``Trace``, ``loss`` and ``optimizers`` are ours alone, and ``batch``, if given, is what
    our own preprocessing made of the images.
    """
    if isinstance(reference, Trace):
        theirs, given = reference, reference.batch if batch is None else batch
    else:
        from labkit.migration.torch_trace import torch_trace

        theirs = torch_trace(reference, loss[1], optimizers[1], batch)
        given, loss, optimizers = batch, loss[0], optimizers[0]
    return _Comparing(network, theirs, loss, optimizers, rules).made(given)


def judged(
    stage: str, place: str, tensor: str, actual: np.ndarray, expected: Value, coarse: bool = False
) -> Row:
    """Compare one tensor with PyTorch's; axes of length 1 and joined rows do not matter."""
    shape = np.shape(expected.value) if isinstance(expected.value, float) else expected.value.shape
    same = fitted(np.asarray(actual, np.float64), shape)
    if same is None:
        hint = ": transposed?" if np.shape(actual) == shape[::-1] else ""
        note = f"{tensor} has shape {np.shape(actual)}, expected {shape}{hint}"
        return Row(stage, place, tensor, np.inf, 0.0, note)
    if isinstance(expected.value, np.ndarray):
        norm = np.linalg.norm if coarse else _largest
        scale, off = norm(expected.value.ravel()), norm((same - expected.value).ravel())
    else:
        scale, off = expected.value.largest, expected.value.distance(same)
    if not np.isfinite([scale, off]).all():
        return Row(stage, place, tensor, np.inf, 0.0, f"{tensor} is not finite")
    allowed = FACTOR * expected.noise + (COARSE if coarse else FLOOR) * scale
    return Row(stage, place, tensor, float(off / (scale or 1)), float(allowed / (scale or 1)))


def stage_table(rows: Sequence[Row]) -> str:
    """Return one line per stage: places, those that differ, and the first such or the worst."""
    lines = ["stage            tensors  differ  largest difference    allowed  at"]
    for stage in dict.fromkeys(row.stage for row in rows):
        of_stage = [row for row in rows if row.stage == stage]
        failed = [row for row in of_stage if not row.passed]
        # Show the first fault of a stage, and the worst tensor of a stage that agrees.
        shown = failed[0] if failed else max(of_stage, key=lambda row: row.difference)
        lines.append(
            f"{stage:17}{len(of_stage):>7}{len(failed):>8}  {shown.difference:>18.1e}  "
            f"{shown.tolerance:>9.0e}  {shown.place}: {shown.tensor}"
        )
    return "\n".join(lines)


def _largest(values: np.ndarray) -> float:
    return float(np.abs(values).max(initial=0.0))


class _Comparing:
    """One comparison, stage by stage."""

    def __init__(
        self, network: nn.Cell, theirs: Trace, loss: Any, optimizer: Any, rules: Sequence[Rule]
    ):
        self.network, self.theirs, self.loss, self.rules = network, theirs, loss, rules
        self.parts = optimizer if isinstance(optimizer, tuple) else (optimizer,)
        weights = theirs.stages["weights"]
        self.state = {name: np.asarray(v.value, np.float32) for name, v in weights.items()}
        self.match = match(network, self.state, rules)
        ours = f"MindSpore {ms.__version__}, float32, against {theirs.origin}"
        self.result = Comparison(ours)
        self.rows, self.notes = self.result.rows, self.result.notes

    def made(self, batch: Any) -> Comparison:
        """Return the comparison on a batch."""
        self._compare_batch(batch)
        with self._original_weights():
            for stage in ("training", "evaluation"):
                self._compare_places(stage, self.theirs.batch[0])
            self._compare_loss()
            self._compare_steps(*as_tensors(self.theirs.batch))
            self.rows += compare_updates(self.parts, self.match, self.theirs.updates)
        return self.result

    def _compare_batch(self, batch: Any) -> None:
        pairs = zip(tensors(batch, _has_shape), tensors(self.theirs.batch, _has_shape), strict=True)
        for number, (own, other) in enumerate(pairs, start=1):
            value = Value(np.asarray(other, np.float64))
            self.rows.append(judged("preprocessing", "batch", f"array {number}", own, value))

    @contextmanager
    def _original_weights(self) -> Iterator[None]:
        """Judge our weights, and use PyTorch's for the block; restore all that it changes."""
        self.rows += [Row("weights", "names", "", np.inf, 0.0, p) for p in self.match.problems]
        held = [*self.network.get_parameters(), *self.parts[0].get_parameters()]
        before = [(parameter, parameter.asnumpy().copy()) for parameter in held]
        own = {parameter.name: parameter for parameter in self.network.get_parameters()}
        for name, value in self.match.to_ours(self.state).items():
            ours = own[name].asnumpy()
            hint = "transposed" if np.array_equal(ours, value.T) else ""
            off = _largest(ours - value) / (_largest(value) or 1)
            self.rows.append(Row("weights", name, "value", off, 0.0, hint if off else ""))
            set_state(own[name], value)
        try:
            yield
        finally:
            for parameter, value in before:
                set_state(parameter, value)

    def _compare_places(self, stage: str, inputs: Any) -> None:
        calls, training = self.theirs.calls[stage], stage == "training"
        places = Places(self.network, self.match, self.rules, calls)
        between = _Between(places, inputs, training, calls)
        boundaries = between.settle()
        rows_between = between.rows
        for call in calls:
            if call.random:
                self._note_random(call, stage)
            if call.name not in between.given:
                continue
            rows = [row for row in rows_between[call.name] if row.tensor.startswith("input")]
            if call.leaf and call.random != "alone":
                rows += self._alone(places, call, stage)
            rows += [row for row in rows_between[call.name] if row.tensor.startswith("output")]
            if call.name in boundaries:
                note = "ends elsewhere in our network: what follows agrees"
                self.notes.append(f"{call.name} ({stage}): {note}")
                rows = [row for row in rows if row.passed]
            self.rows += [row for row in rows if call.random != "before" or row.stage == stage]
        if training:
            self._note_places(places, between, calls)

    def _alone(self, places: Places, call: Call, stage: str) -> list[Row]:
        training = stage == "training"
        try:
            made = places.alone(call, training)
        except Exception as error:  # whatever a cell raises that is called otherwise
            self.notes.append(f"{call.name}: not compared alone ({_line(error)})")
            return []
        rows = self._rows_of(stage, call, made)
        if any(not row.passed for row in rows):
            hint = cure(places, call, training, lambda m: self._rows_of(stage, call, m))
            rows = [
                Row(*vars(row).values()) if row.passed else Row(*list(vars(row).values())[:-1], hint)
                for row in rows
            ]
        return rows

    def _rows_of(self, stage: str, call: Call, made: Arrays) -> list[Row]:
        return [
            judged(stage, call.name, name, made[name], value)
            for name, value in call.alone.items()
            if name in made
        ]
