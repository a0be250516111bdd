"""A network and its original in PyTorch, compared place by place: every faulty place is named."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn

from labkit.errors import InputError
from labkit.migration.between import Between
from labkit.migration.cures import cure
from labkit.migration.judge import COARSE, FACTOR, FLOOR, Row, judged, largest
from labkit.migration.names import Rule, match
from labkit.migration.places import Places, as_tensors, fitted, is_tensor, several
from labkit.migration.trace import (
    Arrays,
    Call,
    Trace,
    Value,
    called,
    has_shape,
    numbered,
    replaced,
    tensors,
)
from labkit.migration.updates import compare_updates
from labkit.runtime import pynative
from labkit.steps.state import set_state


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
        for row in (row for row in self.rows if not row.passed):
            place, whole = row.place or "the network", ("gradients", "run")
            if row.stage == "evaluation" and ("training", place) in lines:
                continue  # the same fault again
            if row.stage in whole and any(stage in whole for stage, _ in lines):
                continue  # what follows from it
            off = f"{row.tensor} off by {row.difference:.1e}" if np.isfinite(row.difference) else ""
            parts = lines.setdefault((row.stage, place), [])
            parts += [part for part in (off, row.note) if part and part not in parts]
        return {key: "; ".join(sorted(parts, key=_is_advice)) for key, parts in lines.items()}

    def __str__(self) -> str:
        lines = [self.origin, stage_table(self.rows)]
        alike: dict[tuple[str, str], list[str]] = {}
        for (stage, place), what in self.faults.items():
            # One line for all weights with another value, and for all updates alike.
            same = "value" if stage == "weights" and what.startswith("value off") else what
            alike.setdefault((stage, same), []).append(f"{place}\n{what}")
        for (stage, _), (first, *others) in alike.items():
            place, what = first.split("\n", 1)
            more = f" and {len(others)} more" if others else ""
            lines.append(f"{place}{more} ({stage}): {what}")
        return "\n".join(lines + list(dict.fromkeys(self.notes)))


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

    The cells run in PyNative mode, the optimizer in the current one. Weights, statistics and
    optimizers are afterwards what they were; the original's weights are used on both sides, so that
    a wrong weight is a fault by itself.

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


def stage_table(rows: Sequence[Row]) -> str:
    """Return one line per stage: tensors, those that differ, and the first such or the worst."""
    lines = ["stage           tensors  differ  largest difference    allowed  at"]
    for stage in dict.fromkeys(row.stage for row in rows):
        of_stage = [row for row in rows if row.stage == stage]
        failed = [row for row in of_stage if not row.passed]
        # Show the first fault of a stage, and the worst tensor of a stage that agrees.
        worst = max(of_stage, key=lambda row: row.difference / (row.tolerance or 1))
        shown = failed[0] if failed else worst
        lines.append(
            f"{stage:16}{len(of_stage):>7}{len(failed):>8}  {shown.difference:>18.1e}  "
            f"{shown.tolerance:>9.0e}  {': '.join(filter(None, (shown.place, shown.tensor)))}"
        )
    return "\n".join(lines)


def _is_advice(part: str) -> bool:
    return part.startswith("with ") or part.endswith(" here")


class _Comparing:
    """One comparison, stage by stage."""

    def __init__(
        self, network: nn.Cell, theirs: Trace, loss: Any, optimizer: Any, rules: Sequence[Rule]
    ):
        self.network, self.theirs, self.loss, self.rules = network, theirs, loss, rules
        self.optimizer, *self.schedulers = (
            optimizer if isinstance(optimizer, tuple) else (optimizer,)
        )
        weights = theirs.stages["weights"]
        self.state = {name: np.asarray(v.value, np.float32) for name, v in weights.items()}
        self.match = match(network, self.state, rules)
        self.result = Comparison(f"MindSpore {ms.__version__}, float32, against {theirs.origin}")
        self.rows, self.notes = self.result.rows, self.result.notes
        self.random, self.returned, self.outputs = False, None, None
        self.failed: Row | None = None

    def made(self, batch: Any) -> Comparison:
        """Return the comparison on a batch."""
        self._compare_batch(batch)
        with self._original_weights():
            with pynative():
                for stage in ("training", "evaluation"):
                    self._compare_places(stage)
                if self.failed:
                    self._note_failed(self.failed)
                if self.returned is not None:
                    self._compare_loss()
            self._compare_optimizers()
            if self.result.faults or self.random:
                why = "the places differ" if self.result.faults else "PyTorch differs from itself"
                self.notes.append(f"the whole step is not judged while {why}")
            else:
                self._compare_steps()
        if not self.result.faults:
            self.notes.append(
                "not compared: how weights are initialised, and data shuffled and augmented"
            )
        return self.result

    def _note_failed(self, failed: Row) -> None:
        """A place that differs explains why the network raises; without one, that is the fault."""
        if any(not row.passed for row in self.rows if row.stage in ("training", "evaluation")):
            self.notes.append(f"{failed.place} ({failed.stage}): {failed.note}")
        else:
            self.rows.append(failed)

    def _compare_batch(self, batch: Any) -> None:
        ours, theirs = (tensors(each, has_shape) for each in (batch, self.theirs.batch))
        if len(ours) != len(theirs):
            raise InputError(
                f"batch: expected {len(theirs)} arrays, as PyTorch got, got {len(ours)}"
            )
        for number, (own, other) in enumerate(zip(ours, theirs, strict=True), start=1):
            value = Value(np.asarray(other, np.float64))
            self.rows.append(judged("preprocessing", "batch", f"array {number}", own, value))

    @contextmanager
    def _original_weights(self) -> Iterator[None]:
        """Judge our weights, and use PyTorch's for the block; restore all that it changes."""
        self.rows += [Row("weights", "names", "", np.inf, 0.0, p) for p in self.match.problems]
        held = [*self.network.get_parameters(), *self.optimizer.get_parameters()]
        before = [(parameter, parameter.asnumpy().copy()) for parameter in held]
        own = {parameter.name: parameter for parameter in self.network.get_parameters()}
        for name, value in self.match.to_ours(self.state).items():
            ours = own[name].asnumpy()
            off = largest(ours - value) / (largest(value) or 1)
            hint = "it is transposed" if off and np.array_equal(ours, value.T) else ""
            self.rows.append(Row("weights", name, "value", off, 0.0, hint))
            set_state(own[name], value)
        modes = [(cell, cell.training) for _, cell in self.network.cells_and_names()]
        self._compare_ties()
        try:
            yield
        finally:
            for cell, mode in modes:
                cell.add_flags(training=mode)
            for parameter, value in before:
                set_state(parameter, value)

    def _compare_ties(self) -> None:
        ours = {link.torch[0]: pair.mindspore for pair, link in self.match.links}
        updates = self.theirs.updates
        for name, first in (updates.draws if updates else {}).items():
            if name in ours and first in ours and ours[name] != ours[first]:
                note = f"one parameter with {first} in PyTorch, two here"
                self.rows.append(Row("weights", name, "tied", np.inf, 0.0, note))

    def _compare_places(self, stage: str) -> None:
        training = stage == "training"
        calls = self.theirs.calls[stage]
        places = Places(self.network, self.match, self.rules, calls)
        given = self._given(places, calls, training)
        between = Between(places, given, stage, self.theirs.batch[0], partial(self._fail, stage))
        if any(call.random == "alone" for call in calls if call.name not in given):
            between.leave_out_random()
        for name in between.random:
            self._note_random(f"{name} ({stage}): the network differs from itself before or in it")
        between.find_other_ends()
        self.returned = between.returned if training else self.returned
        for name, call in given.items():
            entry, leave = between.rows[name]
            if call.random:
                where = {"alone": "in", "before": "before"}[call.random]
                itself = f"PyTorch differs from itself {where} {call.kind}"
                self._note_random(f"{name} ({stage}): {itself}")
            if call.leaf and self._is_harmless(places, call, leave):
                entry = [row for row in entry if row.passed]
            rows = [] if call.random == "before" else list(entry)
            if call.leaf and call.random != "alone":
                rows += self._alone(places, call, stage)
            elif call.kind.startswith("Dropout") and call.random == "alone":
                rows += self._dropped(places, call, stage)
            rows += [] if call.random == "before" or call.leaf else leave
            if name in between.elsewhere:
                self.notes.append(f"{name} ({stage}): ends elsewhere here; what follows agrees")
                rows = [row for row in rows if row.passed or row in entry]
            self.rows += rows
        if training:
            self._note_missing(places, calls, given)
        elif not self.result.faults:
            known = enumerate(tensors(self.outputs, is_tensor), start=1)
            values = self.theirs.stages["evaluation"]
            named = [(f"output {number}", t.asnumpy()) for number, t in known]
            self.rows += [
                judged(stage, "the whole network", n, x, values[n]) for n, x in named if n in values
            ]

    def _is_harmless(self, places: Places, call: Call, leave: Sequence[Row]) -> bool:
        """Return whether a cell makes the same of what reaches it, as softmax of -1e9 for -inf."""
        cell = places.cells[call.name.partition("#")[0]]
        return bool(leave) and not cell.parameters_dict() and all(row.passed for row in leave)

    def _given(self, places: Places, calls: Sequence[Call], training: bool) -> dict[str, Call]:
        """Return the calls that our network makes too, as often, by name; judge its outputs."""
        ours: Counter[str] = Counter()

        last = ["the network"]

        def see(leaving: bool, name: str, arrays: list) -> None:
            ours[name.partition("#")[0]] += not leaving
            last[0] = name if leaving else last[0]
            if leaving and any(array.dtype == np.float16 for array in arrays):
                self.notes.append("the network computes in float16: compare it before to_float")

        try:
            self.outputs = places.passed(self.theirs.batch[0], training, {}, see)
        except Exception as error:  # whatever a network raises with a wrong shape
            self._fail("training" if training else "evaluation", last[0], error)
            ours.update({path: 1 for path in places.cells if path not in ours})
        theirs = Counter(call.name.partition("#")[0] for call in calls)
        return {
            call.name: call
            for call in calls
            if ours[path := call.name.partition("#")[0]] == theirs[path]
        }

    def _fail(self, stage: str, last: str, error: Exception) -> None:
        why = f"the network raises after it: {_line(error)}"
        self.failed = self.failed or Row(stage, last, "call", np.inf, 0.0, why)

    def _alone(self, places: Places, call: Call, stage: str) -> list[Row]:
        def rows_of(made: Arrays) -> list[Row]:
            known = ((name, value) for name, value in call.alone.items() if name in made)
            return [judged(stage, call.name, name, made[name], value) for name, value in known]

        training = stage == "training"
        try:
            rows = rows_of(places.alone(call, training))
        except Exception as error:  # whatever a cell raises that takes other arguments
            self.notes.append(f"{call.name} ({stage}): not compared alone: {_line(error)}")
            return []
        if not all(row.passed for row in rows):
            cell = places.cells[call.name.partition("#")[0]]
            agrees = lambda made: all(row.passed for row in rows_of(made))  # noqa: E731
            hint = cure(call, cell, lambda new: agrees(places.alone(call, training, new)))
            if not hint and not cell.parameters_dict() and type(cell).__name__ != call.kind:
                hint = f"{call.kind} in PyTorch, {type(cell).__name__} here"
            rows = [row if row.passed else replace(row, note=row.note or hint) for row in rows]
        return rows

    def _dropped(self, places: Places, call: Call, stage: str) -> list[Row]:
        """Compare the share of ones that a dropout makes zeros: of 100 000, to 5 deviations."""
        cell = places.cells[call.name.partition("#")[0]]
        ones = ms.Tensor(np.ones((1000, 100) + (1,) * (call.outputs[0].ndim - 2), np.float32))
        left = cell.set_train(stage == "training")(ones)
        share, p = float((left.asnumpy() == 0).mean()), call.settings["p"]
        note = f"it drops {share:.2f} of its inputs; with nn.{call.kind}(p={p:g}) it agrees"
        return [
            Row(stage, call.name, "share", abs(share - p), 5 * (p * (1 - p) / 1e5) ** 0.5, note)
        ]

    def _note_random(self, note: str) -> None:
        self.random = True
        self.notes.append(f"{note}; without it (p=0) more is compared")

    def _note_missing(
        self, places: Places, calls: Sequence[Call], given: Mapping[str, Call]
    ) -> None:
        left = [
            f"{call.name} ({call.kind})" for call in calls if call.leaf and call.name not in given
        ]
        if left:
            self.notes.append(
                f"{len(left)} modules have no cell of this name that is called as often; what they "
                f"compute is compared where the next cell begins: {', '.join(left[:8])}"
            )

    def _compare_loss(self) -> None:
        """Compare the loss, and its gradient, of the outputs that PyTorch's module had."""
        root = next(call for call in self.theirs.calls["training"] if call.name == "")
        _, *targets = as_tensors(self.theirs.batch)
        returned, free = self.returned, list(enumerate(root.outputs))
        known: list[tuple[int | None, Any]] = []
        own = tensors(returned, is_tensor)
        for tensor in own:
            place = next((p for p in free if fitted(p[1], tensor.shape) is not None), None)
            known.append((None, tensor))
            if place is not None:
                free = [p for p in free if p[0] > place[0]]
                known[-1] = place[0], ms.Tensor(fitted(place[1], tensor.shape))
        wanted = [i for i, (_, t) in enumerate(known) if t.dtype == ms.float32]

        def loss_of(*outputs: ms.Tensor) -> ms.Tensor:
            now = [t for _, t in known]
            for i, output in zip(wanted, outputs, strict=True):
                now[i] = output
            return self.loss(replaced(returned, is_tensor, iter(now)), *targets)

        loss, grads = ms.value_and_grad(loss_of, tuple(range(len(wanted))))(
            *(known[i][1] for i in wanted)
        )
        expected = self.theirs.stages["loss alone"]
        self.rows.append(judged("loss", "loss", "value", loss.asnumpy(), expected["loss"]))
        for i, gradient in zip(wanted, several(grads), strict=True):
            number = known[i][0]
            name = numbered("gradient of output", number or 0)
            if number is not None and name in expected:
                self.rows.append(judged("loss", "loss", name, gradient.asnumpy(), expected[name]))

    def _compare_optimizers(self) -> None:
        """Compare the optimizers alone, from the same weights with the same gradients."""
        ours = (self.optimizer, *self.schedulers) if self.schedulers else self.optimizer
        updates = self.theirs.updates
        for row in [] if updates is None else compare_updates(ours, self.match, updates):
            what = f"update {row.update}" if row.update else "updates"
            self.rows.append(
                Row("optimizer", row.name, what, row.difference, row.allowed, row.note)
            )

    def _compare_steps(self) -> None:
        """Compare gradients of the whole network, coarsely, and the losses of a few updates."""
        inputs, *targets = as_tensors(self.theirs.batch)
        trained = list(self.optimizer.parameters)

        def loss_of() -> ms.Tensor:
            return self.loss(called(self.network, inputs), *targets)

        losses = []
        for update in range(len(self.theirs.losses)):
            self.network.set_train()
            with pynative():
                loss, gradients = ms.value_and_grad(loss_of, None, trained)()
            losses.append(loss.asnumpy())
            if update == 0:
                named = zip(trained, gradients, strict=True)
                self._compare_gradients({p.name: g.asnumpy() for p, g in named})
            # In the current mode: in PyNative mint.optim changes no weight (MindSpore 2.10, CPU).
            self.optimizer(gradients)
            for scheduler in self.schedulers:
                scheduler.step()
        self._compare_losses(np.array(losses, np.float64))

    def _compare_gradients(self, gradients: Arrays) -> None:
        theirs, ours = self.theirs.stages["gradients"], self.match.to_torch(gradients)
        most = max((largest(v.value) for v in theirs.values()), default=0.0)
        rows = []
        for name, gradient in ours.items():
            if name in theirs:
                # What is rounding beside the largest gradient, as a bias's before BatchNorm.
                noise = max(theirs[name].noise, FLOOR * most)
                value = Value(theirs[name].value, noise * theirs[name].value.size ** 0.5)
                rows.append(judged("gradients", name, "whole step", gradient, value, True))
        worst = max((row.difference for row in rows if not row.passed), default=0.0)
        order = {call.name: i for i, call in enumerate(self.theirs.calls["training"])}
        # First the parameter of those that are off most which is nearest to the loss.
        rows.sort(key=lambda row: -order.get(row.place.rpartition(".")[0], 0))
        rows.sort(key=lambda row: row.passed or row.difference < worst / 2)
        note = (
            "each place alone agrees: in construct, from here to the loss, look for stop_gradient"
        )
        self.rows += [row if row.passed else replace(row, note=row.note or note) for row in rows]

    def _compare_losses(self, losses: np.ndarray) -> None:
        band, first = 0.0, float(self.theirs.losses[0].value)
        for number, (ours, theirs) in enumerate(zip(losses, self.theirs.losses, strict=True), 1):
            band = max(band, theirs.noise)
            moved = abs(float(theirs.value) - first)
            allowed = FACTOR * band + COARSE * moved + FLOOR * abs(first)
            off, scale = abs(ours - float(theirs.value)), abs(first) or 1.0
            self.rows.append(Row("run", f"update {number}", "loss", off / scale, allowed / scale))


def _line(error: Exception) -> str:
    # MindSpore begins some messages with a line of dashes.
    lines = [line for line in str(error).splitlines() if any(map(str.isalnum, line))]
    return f"{type(error).__name__}: {''.join(lines[:1])[:160]}"
