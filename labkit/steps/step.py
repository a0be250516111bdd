"""What every step cell is made of: a gradient stage, an update stage, and the state between them.

A step is called as ``loss = step(*batch)`` and returns that micro-batch's mean loss before any
update. What belongs to an update as a whole is in ``step.last_update``. What a step does inside
compiled graphs is in ``labkit.steps.graph``.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from labkit.base.arguments import wrong
from labkit.steps.forward_state import assigned, may_assign, running_statistics
from labkit.steps.forward_state import trainable_batch_norms as trainable_batch_norms
from labkit.steps.gradients import GradientStage
from labkit.steps.graph import StepGraph, WithExtras
from labkit.steps.modes import TrainingModes
from labkit.steps.options import GradientOptions
from labkit.steps.state import (
    LastUpdate,
    UpdateRecord,
    check_optimizer,
    copied,
    integer_of,
    keep_also,
    state,
)
from labkit.steps.sunk import on_the_host, refusal, refuse_sink
from labkit.steps.update import UpdateStage, check_stage, warn_of_float16


class Step(StepGraph):
    """Base of the step cells: owns the two stages and all state, as named Parameters.

    Args:
        loss_net: see ``GradientStage``.
        optimizer: any ``nn.Optimizer`` with any parameter groups; its own ``loss_scale`` must be
            1. It is given dense gradients: ``nn.LazyAdam`` and its like work as on dense ones.
        update: an ``UpdateStage``.
        options: ``GradientOptions``.
        weighted: see ``GradientStage``.
        has_buffer: whether groups of micro-batches are added up in a buffer.

    The network is trained in training mode, whatever mode an evaluation has left it in as a whole:
    ``set_train(False)`` of the network, of what is around it, or of all the parts that have trained
    Parameters. A part of it that was put into evaluation mode by its own ``set_train(False)``,
    before or after the step was built, while another with trained Parameters was not, stays in it:
    the BatchNorm of a frozen body, a teacher. To hold the BatchNorm of all of a network, call
    ``set_train(False)`` of the BatchNorm Cells, not of the network. What is held is printed
    whenever it changes. ``step.set_train`` puts nothing else into training mode either.

    Warns of Parameters that are float16 themselves: an optimizer takes gradients of their type, so
    that a number below 6e-8 reaches it as 0, unscaled as it is, and one above 65504 as inf.

    Raises:
        InputError: as ``GradientStage`` does; for what is no optimizer, or one that unscales
            gradients itself; and, when it is called, before anything is compiled, for batches that
            are no flat tensors, labels that are of no class, and a weight that cannot be derived
            (``normalise``).
    """

    def __init__(
        self,
        loss_net: nn.Cell,
        optimizer: nn.Optimizer,
        update: UpdateStage,
        options: GradientOptions,
        *,
        weighted: bool,
        has_buffer: bool,
    ):
        super().__init__(auto_prefix=False)
        check_optimizer(optimizer)
        warn_of_float16(optimizer.parameters)
        if optimizer.loss_scale != 1:
            hint = " It would unscale a second time: give loss_scale to the step alone"
            raise wrong("optimizer", optimizer.loss_scale, "loss_scale 1", hint)
        check_stage(update, self, optimizer, has_buffer, options.rank_group)
        if update.chooses_ranks:
            options = replace(options, rank_group=update.rank_group)
        self.optimizer, self.update = optimizer, update
        self.gradient = GradientStage(
            loss_net, optimizer.parameters, options, weighted=weighted, extras=update.extras
        )
        self.count = len(optimizer.parameters)
        self.map = ops.HyperMap()
        self.settings: dict[str, object] = {"step": type(self).__name__}
        self.settings |= options.settings(weighted)
        self.settings |= self.gradient.objective.settings() | dict(update.settings)
        self.record = UpdateRecord(optimizer)
        self.updates = self.record.updates
        # Micro-batches that were not finite.
        self.dropped = state("dropped", 0)
        self._keep_statistics(loss_net)
        self._with_extras: nn.Cell = None if update.extras is None else WithExtras(self)
        self._modes = TrainingModes(self, loss_net, optimizer.parameters)
        # Whether the host has done its part for the graph that is compiled, see labkit.steps.sunk.
        self.prepared = False

    def _keep_statistics(self, loss_net: nn.Cell) -> None:
        # kept: BatchNorm's running statistics as they were before the micro-batch. What else a
        # forward pass assigns is known, and kept, when there is a batch to compile a graph for.
        self._may_assign = may_assign(loss_net)
        self._looked_at: set[tuple] = set()
        self.statistics = running_statistics(loss_net) if self.gradient.checked else ()
        if self.statistics:
            self.kept = ParameterTuple(copied(statistic, "kept") for statistic in self.statistics)

    def _complete(self) -> None:
        """Attach the update stage: the last thing that a constructor does."""
        self.update.attach(self)
        # Cells start in evaluation mode: BatchNorm would use its running statistics.
        self.set_train()
        self._graphs = (self, self.gradient.loss_net, *self.cells(), *self.update.cells())
        self.refusal = refusal(self)
        if text := self.update.description():
            print(f"labkit: {text}", flush=True)

    def set_train(self, mode: bool = True) -> "Step":
        """Set the mode of all Cells, but of those that are held in evaluation mode.

        Args:
            mode: True for training.
        """
        self._modes.set(mode)
        return self

    def add_flags_recursive(self, **flags: object) -> "Step":
        """As of a Cell; what ``set_train`` of a Cell around the step says goes to its own."""
        mode = flags.pop("training", None)
        super().add_flags_recursive(**flags)
        return self if mode is None else self.set_train(bool(mode))

    # --- on the host ---------------------------------------------------------------------------

    def __call__(self, *batch: Tensor) -> Tensor:
        """Return the loss () of a micro-batch; update where it completes what an update takes."""
        with on_the_host(self), self._modes.followed(self._graphs):
            gathers = self._gathers()
            self._look_at(batch, gathers)
            self.update.before(self, batch)
            loss = self._with_extras(*batch) if gathers else super().__call__(*batch)
            self.update.between(self, batch, loss)
            self._between()
        return loss

    def compile(self, *batch: Tensor, **options: object) -> object:
        """Compile the step's graph, as MindSpore does for a call; as of a Cell."""
        with on_the_host(self):
            return super().compile(*batch, **options)

    def host_work(self) -> str:
        """Return why the host must see each micro-batch; "" where one graph is enough."""
        return self.update.host_work()

    def sink(self, *batch: Tensor) -> str:
        """Do for all batches that are shaped like this one what a call does for each of them.

        The step may then be called in another graph: that of a data set in sink mode. Labels of
        the others are not looked at; one that is of no class makes its batch's loss NaN.

        Args:
            *batch: the first micro-batch, tensors (B, ...).

        Returns:
            The phase of the Cells' present modes, to compile the other graph in.

        Raises:
            InputError: for a step that is not one graph, and for this batch, as a call does.
        """
        refuse_sink(self)
        with self._modes.followed(self._graphs):
            self._look_at(batch, gathers=False, sunk=True)
        self.prepared = True
        return self._modes.phase

    def _gathers(self) -> bool:
        """Return whether the update that is under way gathers extras."""
        if self._with_extras is None:
            return False
        return self.update.wants_extras(integer_of(self.updates))

    def _between(self) -> None:
        """Act between graphs, after the update stage has."""

    def _look_at(self, batch: tuple, gathers: bool, sunk: bool = False) -> None:
        """Refuse a batch that cannot be used, before anything is made of it."""

        def compiled() -> None:
            self._look_at_forward(batch)
            if gathers:
                # What the update stage refuses costs no compilation; a label of no class, which
                # MindSpore answers with a stack of C++, is named afterwards.
                with suppress(RuntimeError, IndexError):
                    self.update.before(self, batch)
            (self._with_extras if gathers else self).compile(*batch)

        self.gradient.objective.look_at(batch, None if sunk else compiled)
        self._look_at_forward(batch)
        self.settings.update(self.gradient.objective.settings())

    def _look_at_forward(self, batch: tuple) -> None:
        """Protect what the graph that is compiled for such a batch assigns in its forward pass."""
        if not self._may_assign:
            return
        graph = (self._modes.phase, *(getattr(part, "shape", None) for part in batch))
        if graph not in self._looked_at:
            self.protect(assigned(self.gradient.loss_net, batch))
            self._looked_at.add(graph)

    def protect(self, parameters: Sequence[Parameter]) -> None:
        """Keep what a forward pass assigns from a micro-batch that is dropped.

        Args:
            parameters: running averages and the like.
        """
        if self.gradient.checked:
            keep_also(self, parameters, "kept")
        self.update.protect(tuple(parameters))

    def end_epoch(self) -> None:
        """Say that the epoch is over; a step that holds a part of an update acts on it here."""

    @property
    def last_update(self) -> LastUpdate:
        """The most recent update, read from the device."""
        return self.record.last_update()

    def updates_ahead(self, epochs: Iterable[int]) -> int:
        """Return the most updates that further epochs make from here.

        Args:
            epochs: micro-batches of each.
        """
        return sum(epochs)

    def schedules(self) -> dict[str, Callable | np.ndarray]:
        """Return, by name, the functions and arrays of the number of updates that it was given."""
        return self.update.schedules()

    def check_length(self, updates: int) -> None:
        """Refuse arrays of rates or damping that end too early.

        Arrays are those of the optimizer, one a parameter group, and of the update stage. Without
        this the training stops in its middle, in MindSpore's Gather, or goes on undefined.

        Args:
            updates: to be made from here.

        Raises:
            InputError: where an array has fewer values.
        """
        if updates:
            self.record.check_rates(updates)
            self.update.check_length(integer_of(self.updates) + updates)

    @property
    def micro_batches(self) -> int:
        """How many of this rank's micro-batches make up an update."""
        return 1
