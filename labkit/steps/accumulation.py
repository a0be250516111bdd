r"""Gradient accumulation: one update from k micro-batches, equal to one from the whole batch.

    G <- G + w_i grad L_i(w),  W <- W + w_i       for i = 1 .. k, w unchanged
    w <- update(w, G / W),  G <- 0,  W <- 0

With w_i the number that L_i is a mean over (samples; labels that are not ignored; elements), G / W
is the gradient of the mean loss over all of the group, whatever the micro-batches' sizes. It is not
so where a layer mixes samples (BatchNorm).

Source: "Applying a Gradient Accumulation Algorithm", MindSpore tutorial r1.0. Departures:
- the mean over samples, not the sum of the micro-batches' means (``reduction="sum"`` gives that:
  k times the gradient, which is k times the learning rate);
- the last, partly filled group of an epoch is applied with its real weight (``tail="flush"``), not
  carried into the next epoch's first update (``tail="carry"``);
- the loss of an update is its micro-batches' mean (``last_update.loss``), not the last one's;
- one buffer: a group's first gradients overwrite it, no second buffer of zeros clears it;
- a micro-batch that is not finite is left out of the group, or drops it.
"""

import warnings
from numbers import Integral

import mindspore as ms
from mindspore import Parameter, ParameterTuple, nn, ops
from mindspore.common.initializer import initializer

from labkit.errors import InputError, refuse_unknown
from labkit.steps.gradients import set_state, state, times
from labkit.steps.plain import PlainUpdate
from labkit.steps.step import Step, trainable_batch_norms

TAILS = ("flush", "drop", "carry")


class AccumulatedStep(Step):
    """One update per ``micro_steps`` micro-batches. ``options`` are those of ``GradientStage``.

    loss_net     see ``GradientStage``; called once per micro-batch
    optimizer    any ``nn.Optimizer``; called once per update, so its schedules count updates
    micro_steps  micro-batches per update: an integer >= 1, or a function of the number of updates
                 applied so far that returns one
    update       update stage; the optimizer alone by default
    tail         what ``end_epoch`` does with a partly filled group: ``flush`` applies it with its
                 real weight, ``drop`` forgets it, ``carry`` leaves its sums in the buffer and
                 counts anew: the next epoch's first update holds them too (k = 4 and 1875
                 micro-batches: 7 of them), as in the tutorial
    nonfinite    ``drop_micro`` leaves a non-finite micro-batch out of its group; ``drop_group``
                 forgets the whole group; ``propagate`` checks nothing. ``dropped`` counts the
                 micro-batches, parameters and running statistics stay as they were

    >>> step = AccumulatedStep(LossNet(network, loss_fn), optimizer, micro_steps=4)
    >>> for images, labels in micro_batches:
    ...     loss = step(images, labels)
    >>> step.end_epoch()

    Raises ``InputError`` for values that are none of these, and warns once where the network holds
    a trainable BatchNorm.
    """

    accumulates = True

    def __init__(
        self,
        loss_net,
        optimizer,
        micro_steps,
        *,
        update=None,
        tail="flush",
        nonfinite="drop_micro",
        **options,
    ):
        refuse_unknown("tail", tail, TAILS)
        self.schedule = micro_steps if callable(micro_steps) else None
        first = check_micro_steps(micro_steps(0) if callable(micro_steps) else micro_steps)
        super().__init__(
            loss_net,
            optimizer,
            update or PlainUpdate(optimizer),
            nonfinite=nonfinite,
            weighted=True,
            **options,
        )
        self.settings |= {"tail": tail, "micro_steps": "a schedule" if self.schedule else first}
        self.tail = tail
        self.drops_group = nonfinite == "drop_group"
        # gradient_sum, loss_sum, weight_sum, images: sums over the group's micro-batches so far.
        # micro_step: micro-batches counted in the group, dropped ones too; 0 .. group_size - 1.
        # spoiled: non-finite micro-batches in the group. All are 0 right after a group, but for
        # gradient_sum, which is what it was and counts for nothing while weight_sum is 0.
        # extended_sum: gradient_sum and, behind it, the sums of the update stage's extras.
        self.gradient_sum = ParameterTuple(_buffer(p) for p in optimizer.parameters)
        extras = getattr(self.update, "extras", None) or ((), ())
        extra_sums = [_buffer(extra) for group in extras for extra in group]
        self.extended_sum = ParameterTuple((*self.gradient_sum, *extra_sums))
        self.loss_sum = state("loss_sum", 0.0)
        self.weight_sum = state("weight_sum", 0.0)
        self.images = state("images", 0)
        self.micro_step = state("micro_step", 0)
        self.spoiled = state("spoiled", 0)
        self.group_size = state("group_size", first)
        self._flush = _Flush(self, False)
        self._flush_with_extras = _Flush(self, True)
        if (self.schedule or first > 1) and trainable_batch_norms(loss_net):
            warnings.warn(
                "the network holds a trainable BatchNorm: it normalises each micro-batch by its "
                "own statistics and updates its running statistics once per micro-batch, so "
                "accumulated gradients are not those of the whole batch (GroupNorm has no such "
                "coupling)",
                stacklevel=2,
            )

    def construct(self, *batch):
        return self.micro_batch(False, *batch)

    def micro_batch(self, with_extras, *batch):
        """Gather one micro-batch; ``with_extras`` is constant in a compiled graph."""
        loss, weight, gradients, finite = self.contribution(with_extras, *batch)
        if finite:
            sums = self.sums(with_extras)
            if self.weight_sum > 0:
                self.map(ops.assign_add, sums, gradients)
            else:
                self.map(ops.assign, sums, gradients)
            ops.assign_add(self.loss_sum, loss * weight)
            ops.assign_add(self.weight_sum, weight)
            ops.assign_add(self.images, self.gradient.rows(batch))
        else:
            ops.assign_add(self.spoiled, 1)
        ops.assign_add(self.micro_step, 1)
        done = False
        if self.micro_step >= self.group_size:
            done = self.close_group(with_extras)
        return ops.depend(loss, done)

    def sums(self, with_extras):
        """Return what the group's micro-batches are added up in."""
        if with_extras:
            return self.extended_sum
        return self.gradient_sum

    def close_group(self, with_extras):
        """Apply what the group has gathered, if anything, and clear it."""
        weight = self.gradient.over_ranks(self.weight_sum)
        if self.drops_group:
            # After the weights' sum: the ranks' sums must be made in one order.
            spoiled = self.gradient.over_ranks(ops.depend(self.spoiled, weight))
            weight = ops.select(spoiled > 0, 0.0 * weight, weight)
        done = False
        if weight > 0:
            total = self.sums(with_extras)
            if self.gradient.ranks > 1:
                # A rank that has dropped its whole group still holds the sum of the one before.
                held = ops.cast(self.weight_sum > 0, ms.float32)
                total = self.map(ops.partial(times, held), total)
            done = self.apply(total, self.loss_sum, weight, self.images)
        else:
            done = self.apply_nothing()
        return self.group_closed(ops.depend(self.clear(), done))

    def apply_nothing(self):
        """Close a group that holds no finite micro-batch."""
        return False

    def group_closed(self, done):
        """Go on from a group that was applied and cleared."""
        return done

    def clear(self):
        """Forget the group's sums."""
        # gradient_sum is overwritten by the next group's first gradients. Writing zeros took one
        # more copy of the weights: MindSpore folds them into constants that stay in memory.
        ops.assign(self.loss_sum, 0.0)
        ops.assign(self.weight_sum, 0.0)
        ops.assign(self.images, 0)
        ops.assign(self.micro_step, 0)
        ops.assign(self.spoiled, 0)
        return True

    def __call__(self, *batch):
        loss = super().__call__(*batch)
        self.between_graphs(batch)
        return loss

    def between_graphs(self, batch):
        """Act on what a compiled graph has left; ``batch`` is (), where an epoch has ended."""
        self._follow_schedule()

    @property
    def micro_batches(self) -> int:
        return int(self.group_size.asnumpy())

    def updates_ahead(self, epochs) -> int:
        updates, held = 0, int(self.micro_step.asnumpy())
        done, size = int(self.updates.asnumpy()), int(self.group_size.asnumpy())
        for left in epochs:
            while left > 0:
                taken = min(size - held, left)
                left, held = left - taken, held + taken
                if held == size or (not left and self.tail == "flush"):
                    updates, held = updates + 1, 0
                    if self.schedule is not None:
                        size = check_micro_steps(self.schedule(done + updates))
            held = 0
        return updates

    def end_epoch(self) -> None:
        """Apply, drop or carry a partly filled group, as ``tail`` says."""
        if int(self.micro_step.asnumpy()) == 0:
            return
        if self.tail == "carry":
            set_state(self.micro_step, 0)
            return
        if self.tail == "drop":
            set_state(self.weight_sum, 0.0)
        if self.update_wants_extras():
            self._flush_with_extras()
            self._finish_held(())
        else:
            self._flush()
        self.between_graphs(())

    def _follow_schedule(self):
        """Set the size of the group that starts now; runs between compiled graphs."""
        if self.schedule is not None and int(self.micro_step.asnumpy()) == 0:
            size = check_micro_steps(self.schedule(int(self.updates.asnumpy())))
            set_state(self.group_size, size)


class _Flush(nn.Cell):
    """The second compiled graph of an ``AccumulatedStep``: close the group without a batch."""

    def __init__(self, step, with_extras):
        super().__init__(auto_prefix=False)
        self.close_group, self.with_extras = step.close_group, with_extras

    def construct(self):
        return self.close_group(self.with_extras)


def check_micro_steps(value) -> int:
    """Return ``value`` if it is an integer >= 1, else raise ``InputError``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise InputError(
            f"micro_steps is {value!r}; expected an integer >= 1, or a function of the number of "
            "updates that returns one"
        )
    return int(value)


def _buffer(parameter):
    zeros = initializer("zeros", parameter.shape, ms.float32)
    return Parameter(zeros, name=f"grad_sum.{parameter.name}", requires_grad=False)
