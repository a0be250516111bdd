r"""Gradient accumulation: one update from k micro-batches, equal to one from the whole batch.

    G <- G + w_i grad L_i(w),  W <- W + w_i       for i = 1 .. k, w unchanged
    w <- update(w, G / W),  G <- 0,  W <- 0

With w_i the number of terms in the mean L_i (samples, labels that are not ignored, or elements),
G / W is the gradient of the mean loss over the whole group, whatever the sizes of its
micro-batches. This does not hold if a layer mixes samples (BatchNorm).

Source: "Applying a Gradient Accumulation Algorithm", MindSpore tutorial r1.0. Departures:
- the mean over samples, not the sum of the micro-batches' means (``reduction="sum"`` gives that:
  k times the gradient, which is k times the learning rate);
- the last, partly filled group of an epoch is applied with its real weight (``tail="flush"``), not
  carried into the next epoch's first update (``tail="carry"``);
- ``last_update.loss`` is the mean over the micro-batches, not the loss of the last one;
- the first gradients of a group overwrite the buffer; no second buffer of zeros clears it;
- a non-finite micro-batch is left out of its group, or its whole group is dropped.
"""

from collections.abc import Callable, Iterable
from typing import Unpack

import mindspore as ms
import numpy as np
from mindspore import ParameterTuple, Tensor, nn, ops

from labkit.base.arguments import choice, integer, is_integer, wrong
from labkit.errors import warn
from labkit.steps.batches import arranged, cut, rows_of
from labkit.steps.gradients import LEAST, times
from labkit.steps.options import TAILS, Options, Tail, gradient_options
from labkit.steps.state import integer_of, set_state, state, trainable_batch_norms, zeros_like
from labkit.steps.step import Graph, Step
from labkit.steps.update import UpdateStage

MicroSteps = int | Callable[[int], int]


class AccumulatedStep(Step):
    """One update per ``micro_steps`` micro-batches, with any update stage.

    Called with a micro-batch, as ``Step`` takes it, it returns the loss (). The update of a
    contrastive loss over a batch's pairs of rows is not that of the whole batch: each micro-batch
    lacks the others' negatives.

    Args:
        loss_net, update: as in ``Step``.
        optimizer: called once per update, so its schedules count updates.
        micro_steps: micro-batches per update: an integer >= 1, or a function of the number of
            updates applied so far that returns one.
        tail: what ``end_epoch`` does with a partly filled group: ``flush`` applies it with its real
            weight, ``drop`` discards it, ``carry`` keeps its sums and restarts the count, so that
            the next epoch's first update includes them too (7 micro-batches for k = 4 and 1875
            micro-batches), as in the tutorial.
        split: how many micro-batches each given batch is cut into, along the first axis of its
            Tensors, in sizes equal or one apart: equal to so many calls, and only one part's
            activations are in memory. ``micro_steps`` then counts given batches, and the loss is
            the mean over the given batch.
        **options: see ``GradientOptions``.

    Non-finite micro-batches, counted in ``dropped``, change neither parameters nor running
    statistics. Raises ``InputError`` if an argument has any other value, and as in ``Step``.

    >>> step = AccumulatedStep(LossNet(network, loss_fn), optimizer, micro_steps=4)
    >>> for images, labels in micro_batches:
    ...     loss = step(images, labels)
    >>> step.end_epoch()
    """

    has_buffer = True

    def __init__(
        self,
        loss_net: nn.Cell,
        optimizer: nn.Optimizer,
        micro_steps: MicroSteps = 1,
        *,
        update: UpdateStage | None = None,
        tail: Tail = "flush",
        split: int = 1,
        **options: Unpack[Options],
    ):
        given = gradient_options(options, "micro_steps", "update", "tail", "split")
        first = _size_of_group(micro_steps, 0)
        choice("tail", tail, getattr(update, "tails", TAILS))
        super().__init__(loss_net, optimizer, update, given)
        self.micro_steps, self.tail = micro_steps, tail
        self.split = self.cuts = integer("split", split)
        first *= self.update.group_factor
        said = "a schedule" if callable(micro_steps) else first
        self.settings |= {"tail": tail, "micro_steps": said}
        if split > 1:
            self.settings |= {"split": split}
        self.drops_group = given.nonfinite == "drop_group"
        if (said != 1 or split > 1) and trainable_batch_norms(loss_net):
            warn(
                "the network holds a trainable BatchNorm, which normalises each micro-batch by its "
                "own statistics: accumulated gradients are not those of the whole batch (GroupNorm "
                "has no such coupling)"
            )
        # gradient_sum, loss_sum, weight_sum, images: sums over the group's micro-batches so far,
        # the first three for each pair of several; extended_sum: those of extras, too. micro_step,
        # spoiled: how many micro-batches, and non-finite ones, the group has had. After a group all
        # are 0 but gradient_sum, which is ignored while weight_sum is 0.
        weights, pairs = optimizer.parameters, self.gradient.pairs
        prefixes = ["grad_sum", *(f"grad_sum.pair_{pair}" for pair in range(1, pairs))]
        self.gradient_sum = ParameterTuple(
            zeros_like(weight, prefix, ms.float32) for prefix in prefixes for weight in weights
        )
        extras = [extra for group in self.update.extras or () for extra in group]
        extra_sums = [zeros_like(extra, "grad_sum", ms.float32) for extra in extras]
        self.extended_sum = ParameterTuple((*self.gradient_sum, *extra_sums))
        self.nothing = 0.0 if pairs == 1 else Tensor(np.zeros(pairs), ms.float32)
        self.loss_sum = state("loss_sum", np.asarray(self.nothing))
        self.weight_sum = state("weight_sum", np.asarray(self.nothing))
        self.images = state("images", 0)
        self.micro_step = state("micro_step", 0)
        self.spoiled = state("spoiled", 0)
        self.group_size = state("group_size", first * split)
        if split > 1:  # sums of w_i L_i and w_i over the parts of the batch that was given
            self.given = state("given", np.stack([np.asarray(self.nothing)] * 2))
        self._flush = Graph(self.close_group, False)
        self._flush_with_extras = Graph(self.close_group, True)
        self._complete()

    def micro_batch(self, with_extras: bool, *batch: Tensor) -> Tensor:
        """Add one micro-batch to its group; return its loss ()."""
        # A slice: of a value that is unpacked and not used MindSpore warns at every compilation.
        loss, weight, gradients, finite = self.contribution(with_extras, *batch)[:4]
        if finite:
            sums = self.extended_sum if with_extras else self.gradient_sum
            if self.gradient.counts(self.weight_sum):
                self.map(ops.assign_add, sums, gradients)
            else:
                self.map(ops.assign, sums, gradients)
            ops.assign_add(self.loss_sum, loss * weight)
            ops.assign_add(self.weight_sum, weight)
            ops.assign_add(self.images, rows_of(batch))
        else:
            ops.assign_add(self.spoiled, 1)
        ops.assign_add(self.micro_step, 1)
        if self.split > 1:
            ops.assign_add(self.given, ops.stack((loss * weight, weight)))
        done: object = False
        if self.micro_step >= self.group_size:
            done = self.close_group(with_extras)
        return ops.depend(self.gradient.added(loss), done)

    def close_group(self, with_extras: bool) -> object:
        """Apply what the group has gathered, if anything, and clear it."""
        weight = self.gradient.over_ranks(self.weight_sum)
        if self.drops_group:
            # Depends on the sum of the weights: all ranks must sum in the same order.
            spoiled = self.gradient.over_ranks(ops.depend(self.spoiled, weight))
            weight = ops.select(spoiled > 0, 0.0 * weight, weight)
        done: object = False
        if self.gradient.counts(weight):
            total = self.extended_sum if with_extras else self.gradient_sum
            if self.gradient.ranks > 1:
                # A rank that has dropped its whole group still holds the previous group's sum.
                counts = ops.cast(self.gradient.counts(self.weight_sum), ms.float32)
                total = self.map(ops.partial(times, counts), total)
            done = self.apply(total, (self.loss_sum, weight, self.images))
        else:
            done = self.update.take_nothing()
        return self.update.close(ops.depend(self.clear(), done))

    def clear(self) -> bool:
        """Reset the group's sums."""
        # gradient_sum is overwritten by the next group's first gradients. Writing zeros took one
        # more copy of the weights: MindSpore folds the zeros into constants that stay in memory.
        ops.assign(self.loss_sum, self.nothing)
        ops.assign(self.weight_sum, self.nothing)
        ops.assign(self.images, 0)
        ops.assign(self.micro_step, 0)
        ops.assign(self.spoiled, 0)
        return True

    @property
    def one_graph(self) -> bool:
        return super().one_graph and not callable(self.micro_steps) and self.split == 1

    def _by_parts(self, batch: tuple) -> Tensor:
        parts = cut(arranged(self.gradient.loss_net, batch), self.split)
        set_state(self.given, np.zeros(self.given.shape, np.float32))
        columns, self.columns, self.cuts = self.columns, (), 1  # the parts are called as they are
        try:
            for part in parts:
                self(*part)
        except BaseException:
            self.clear()  # a group goes as a whole: the next one begins with a given batch
            self.update.reset()
            raise
        finally:
            self.columns, self.cuts = columns, self.split
        loss, weight = self.given.asnumpy()
        return Tensor(np.sum(loss / np.maximum(weight, LEAST)), ms.float32)

    def _between(self) -> None:
        if callable(self.micro_steps) and integer_of(self.micro_step) == 0:
            size = _size_of_group(self.micro_steps, integer_of(self.updates))
            set_state(self.group_size, size * self.update.group_factor * self.split)

    @property
    def micro_batches(self) -> int:
        return integer_of(self.group_size) // self.split * self.update.turns

    def schedules(self) -> dict[str, Callable | np.ndarray]:
        own = {"micro_steps": self.micro_steps} if callable(self.micro_steps) else {}
        return own | self.update.schedules()

    def updates_ahead(self, epochs: Iterable[int]) -> int:
        updates, done, needed = 0, integer_of(self.updates), self.micro_batches
        waiting = self.update.turns_taken() * integer_of(self.group_size)
        waiting = (waiting + integer_of(self.micro_step)) // self.split
        for left in epochs:
            waiting += left
            while waiting >= needed or (waiting > 0 and self.tail == "flush"):
                waiting, updates = waiting - needed, updates + 1
                if callable(self.micro_steps):
                    size = _size_of_group(self.micro_steps, done + updates)
                    needed = size * self.update.group_factor * self.update.turns
            waiting = 0
        return updates

    def end_epoch(self) -> None:
        """Apply, drop or carry a partly filled group, as ``tail`` says."""
        self.record.see_rates()
        self.update.before(self, ())
        if self.tail == "carry":
            set_state(self.micro_step, 0)
        elif self.tail == "drop":
            self.clear()
            self.update.reset()
        while integer_of(self.micro_step) or self.update.turns_taken():
            # One group at a time; groups whose turn has not come are empty.
            (self._flush_with_extras if self._gathers() else self._flush)()
            self.update.between(self, (), None)
        self._between()
        self.update.end_epoch(self)


def _size_of_group(micro_steps: MicroSteps, updates: int) -> int:
    """Return ``micro_steps`` after ``updates`` updates."""
    size = micro_steps(updates) if callable(micro_steps) else micro_steps
    if not is_integer(size) or not 1 <= size < 2**31:
        expected = "an integer >= 1, or a function of the number of updates that returns one"
        raise wrong("micro_steps", size, expected)
    return int(size)
