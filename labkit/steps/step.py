"""What every step cell is made of: a gradient stage, an update stage, and the state between them.

A step is called as ``loss = step(*batch)`` and returns that micro-batch's mean loss before any
update. ``step.last_update`` describes the most recent update as a whole. The part of a step that
runs in compiled graphs is in ``labkit.steps.graph``.
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
            1. It receives dense gradients, so ``nn.LazyAdam`` and similar work as on dense ones.
        update: an ``UpdateStage``.
        options: ``GradientOptions``.
        weighted: see ``GradientStage``.
        has_buffer: whether the step adds up groups of micro-batches in a buffer.

    The network is trained in training mode, even if an evaluation has left it in evaluation mode as
    a whole, by ``set_train(False)`` of the network, of a Cell around it, or of all its parts with
    trained Parameters. A part that was put into evaluation mode by its own ``set_train(False)``,
    before or after the step was built, while another part with trained Parameters was not, is held
    in it: the BatchNorm of a frozen body, a teacher. To hold the BatchNorm of a whole network, call
    ``set_train(False)`` on the BatchNorm Cells, not on the network. The Cells that are held are
    printed whenever they change. ``step.set_train`` leaves them in evaluation mode, too.

    Warns of float16 Parameters: the optimizer receives their gradients, already unscaled, in
    float16, so that a number below 6e-8 becomes 0 and one above 65504 becomes inf.

    Raises:
        InputError: as in ``GradientStage``; if ``optimizer`` is not an optimizer, or unscales
            gradients itself; and, when the step is called, before its graph runs, if the batch is
            not flat tensors, a label is of no class, or the weight cannot be derived
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
        # The number of non-finite micro-batches.
        self.dropped = state("dropped", 0)
        self._keep_statistics(loss_net)
        self._with_extras: nn.Cell = None if update.extras is None else WithExtras(self)
        self._modes = TrainingModes(self, loss_net, optimizer.parameters)
        # Whether the host has done its part for the graph that is compiled, see labkit.steps.sunk.
        self.prepared = False

    def _keep_statistics(self, loss_net: nn.Cell) -> None:
        # kept: BatchNorm's running statistics as they were before the micro-batch. What else a
        # forward pass assigns is known, and kept, once there is a batch to compile a graph for.
        self._may_assign = may_assign(loss_net)
        self._looked_at: set[tuple] = set()
        self.statistics = running_statistics(loss_net) if self.gradient.checked else ()
        if self.statistics:
            self.kept = ParameterTuple(copied(statistic, "kept") for statistic in self.statistics)

    def _complete(self) -> None:
        """Attach the update stage; a constructor calls this last."""
        self.update.attach(self)
        # Cells start in evaluation mode: BatchNorm would use its running statistics.
        self.set_train()
        self._graphs = (self, self.gradient.loss_net, *self.cells(), *self.update.cells())
        self.refusal = refusal(self)
        if text := self.update.description():
            print(f"labkit: {text}", flush=True)

    def set_train(self, mode: bool = True) -> "Step":
        """Set the mode of all Cells except those that are held in evaluation mode.

        Args:
            mode: True for training.
        """
        self._modes.set(mode)
        return self

    def add_flags_recursive(self, **flags: object) -> "Step":
        """Add flags as a Cell does, but pass a mode from a surrounding Cell to ``set_train``."""
        mode = flags.pop("training", None)
        super().add_flags_recursive(**flags)
        return self if mode is None else self.set_train(bool(mode))

    # --- on the host ---------------------------------------------------------------------------

    def __call__(self, *batch: Tensor) -> Tensor:
        """Return the loss () of a micro-batch; make an update if the micro-batch completes it."""
        with on_the_host(self), self._modes.followed(self._graphs):
            gathers = self._gathers()
            self._look_at(batch, gathers)
            self.update.before(self, batch)
            loss = self._with_extras(*batch) if gathers else super().__call__(*batch)
            self.update.between(self, batch, loss)
            self._between()
        return loss

    def compile(self, *batch: Tensor, **options: object) -> object:
        """Compile the step's graph, as MindSpore does for a call; arguments as of a Cell's."""
        with on_the_host(self):
            return super().compile(*batch, **options)

    def host_work(self) -> str:
        """Return why the host must see each micro-batch; "" where one graph is enough."""
        return self.update.host_work()

    def sink(self, *batch: Tensor) -> str:
        """Do the host's work of a call once, for all batches that are shaped like this one.

        The step may then be called in another graph: that of a data set in sink mode. The labels
        of later batches are not checked; a label of no class makes its batch's loss NaN.

        Args:
            *batch: the first micro-batch, tensors (B, ...).

        Returns:
            The phase of the Cells' present modes, in which the other graph is to be compiled.

        Raises:
            InputError: if the step is not one graph, and for this batch as in a call.
        """
        refuse_sink(self)
        with self._modes.followed(self._graphs):
            self._look_at(batch, gathers=False, sunk=True)
        self.prepared = True
        return self._modes.phase

    def _gathers(self) -> bool:
        """Return whether the current update gathers extras."""
        if self._with_extras is None:
            return False
        return self.update.wants_extras(integer_of(self.updates))

    def _between(self) -> None:
        """Act between graphs, after the update stage."""

    def _look_at(self, batch: tuple, gathers: bool, sunk: bool = False) -> None:
        """Refuse a batch that cannot be used, before anything is computed from it."""

        def compiled() -> None:
            self._look_at_forward(batch)
            if gathers:
                # If the update stage refuses, nothing is compiled; a label of no class, for which
                # MindSpore raises an error of C++, is named afterwards.
                with suppress(RuntimeError, IndexError):
                    self.update.before(self, batch)
            (self._with_extras if gathers else self).compile(*batch)

        self.gradient.objective.look_at(batch, None if sunk else compiled)
        self._look_at_forward(batch)
        self.settings.update(self.gradient.objective.settings())

    def _look_at_forward(self, batch: tuple) -> None:
        """Protect what the graph compiled for such a batch assigns in its forward pass."""
        if not self._may_assign:
            return
        graph = (self._modes.phase, *(getattr(part, "shape", None) for part in batch))
        if graph not in self._looked_at:
            self.protect(assigned(self.gradient.loss_net, batch))
            self._looked_at.add(graph)

    def protect(self, parameters: Sequence[Parameter]) -> None:
        """Protect what a forward pass assigns from micro-batches that are dropped.

        Args:
            parameters: running averages and the like.
        """
        if self.gradient.checked:
            keep_also(self, parameters, "kept")
        self.update.protect(tuple(parameters))

    def end_epoch(self) -> None:
        """Announce the end of an epoch; a step that holds part of an update handles it here."""

    @property
    def last_update(self) -> LastUpdate:
        """The most recent update, read from the device."""
        return self.record.last_update()

    def updates_ahead(self, epochs: Iterable[int]) -> int:
        """Return the largest number of updates that further epochs make from here.

        Args:
            epochs: number of micro-batches of each.
        """
        return sum(epochs)

    def schedules(self) -> dict[str, Callable | np.ndarray]:
        """Return, by name, the schedules over updates: the functions and arrays it was given."""
        return self.update.schedules()

    def check_length(self, updates: int) -> None:
        """Refuse arrays of rates or damping that end too early.

        These arrays are the optimizer's, one per parameter group, and the update stage's. Without
        this check the training stops midway, in MindSpore's Gather, or continues undefined.

        Args:
            updates: number of updates to be made from here.

        Raises:
            InputError: if an array has fewer values.
        """
        if updates:
            self.record.check_rates(updates)
            self.update.check_length(integer_of(self.updates) + updates)

    @property
    def micro_batches(self) -> int:
        """How many of this rank's micro-batches make up an update."""
        return 1
