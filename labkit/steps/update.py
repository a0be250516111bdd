"""The update stage: the part of a step that turns averaged gradients into new weights.

README.md in this folder shows when each method runs. Most techniques need ``construct`` alone.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from labkit.errors import InputError
from labkit.steps.options import TAILS
from labkit.steps.state import UpdateRecord, are_float32, cast_like, check_optimizer

# Sums of w_i L_i and of w_i > 0, norm before clipping: float32; rows: int32. All are (), over all
# ranks whose gradients are averaged.
Summary = tuple[Tensor, Tensor, Tensor, Tensor]


class UpdateStage(nn.Cell):
    """One optimizer, to which averaged gradients go; base of the stages with a technique's state.

    Attributes:
        settings: plain values, by name, that a resumed training must share.
        extras: as in ``GradientStage``; needed at those updates for which ``wants_extras``.
        turns: number of groups of micro-batches that make up one update.
        group_factor: size of a group as a multiple of the step's ``micro_steps``.
        tails: what ``AccumulatedStep`` may be asked to do with a partly filled group.
        needs_buffer: whether the stage works only with the buffer of an ``AccumulatedStep``.
        rank_group: as in ``GradientStage``.
        tensors: large state, Parameters or not, by the names that ``Step.memory`` gives it.
        record: the step's ``UpdateRecord``.
    """

    settings: Mapping[str, object] = MappingProxyType({})
    extras: tuple[tuple[Parameter, ...], ...] | None = None
    turns = 1
    group_factor = 1
    tails: tuple[str, ...] = TAILS
    needs_buffer = False
    rank_group: str | None = None
    tensors: Mapping[str, Sequence[Tensor]] = MappingProxyType({})

    def __init__(self, optimizer: nn.Optimizer):
        super().__init__(auto_prefix=False)
        check_optimizer(optimizer)
        self.optimizer = optimizer
        # Past Cell's own setattr, which makes each weight an attribute of the stage by its name: a
        # weight of the network itself called "layers" was in the way of THOR's.
        object.__setattr__(self, "parameters", optimizer.parameters)
        self.map, self.float32 = ops.HyperMap(), are_float32(optimizer.parameters)

    def attach(self, step: nn.Cell) -> None:
        """Take what the stage needs of its step, complete but for the stage, or refuse the step."""
        if hasattr(self, "record"):
            name = type(self).__name__
            raise InputError(f"{name} belongs to another step: expected a stage for each")
        self.record: UpdateRecord = step.record

    def description(self) -> str:
        """Return the text that the step prints when it is built, if any."""
        return ""

    # In compiled graphs: each returns a value that later operations can wait for.

    def construct(self, gradients: tuple[Tensor, ...]) -> object:
        """Update the parameters; the gradients are averaged, shaped and typed as these."""
        return self.optimizer(gradients)

    def take(self, gradients: tuple, extras: tuple, summary: Summary) -> object:
        """Take a group's averaged gradients and its extras' means, float32; () without extras."""
        return self.updated(self.recorded(gradients, summary))

    def recorded(self, gradients: tuple, summary: Summary) -> tuple:
        """Record the group as that of the update; return its gradients, typed as parameters."""
        loss_sum, weight, norm, images = summary
        noted = self.record.note(loss_sum / weight, norm, images)
        if not self.float32:
            gradients = self.map(cast_like, gradients, self.parameters)
        return ops.depend(gradients, noted)

    def updated(self, gradients: tuple) -> object:
        """Make the update and count it; arguments as in ``construct``."""
        done = self.construct(gradients)
        return ops.depend(True, (done, ops.assign_add(self.record.updates, 1)))

    def take_nothing(self) -> object:
        """Take a group of weight 0, such as one without a finite micro-batch."""
        return False

    def close(self, done: object) -> object:
        """Continue after a group was taken and cleared, on both of which ``done`` depends."""
        return done

    # On the host.

    @property
    def one_graph(self) -> bool:
        """Whether nothing is done on the host between graphs, so that a data set may be sunk."""
        kind, base = type(self), UpdateStage
        return self.extras is None and (kind.before, kind.between) == (base.before, base.between)

    def wants_extras(self, updates: int) -> bool:
        """Return whether the update after ``updates`` others needs the extras."""
        return False

    def before(self, step: nn.Cell, batch: tuple) -> None:
        """Act before a graph runs; ``batch`` is () if the end of an epoch closes a group."""

    def between(self, step: nn.Cell, batch: tuple, loss: Tensor | None) -> None:
        """Act after a graph has run; the loss () is None if there was no micro-batch."""

    def set_inputs(self, *inputs: Any) -> None:
        """Set open shapes, of a batch, for graphs of the stage's own that take batches."""

    def turns_taken(self) -> int:
        """Return how many of the ``turns`` were taken since the last update."""
        return 0

    def reset(self) -> None:
        """Discard the groups that were taken since the last update."""

    def end_epoch(self, step: nn.Cell) -> None:
        """Act when an epoch is over and its last group is closed."""

    def schedules(self) -> dict[str, Callable | np.ndarray]:
        """Return, by name, the stage's schedules over updates: functions, or arrays (updates,)."""
        return {}

    @property
    def can_be_saved(self) -> bool:
        """Whether the Parameters alone are enough for the step to continue from."""
        return True

    @property
    def more_to_record(self) -> dict[str, float]:
        """What a record of the most recent update adds to ``last_update``, number by name."""
        return {}
