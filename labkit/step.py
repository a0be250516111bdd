"""What every step cell is made of: a gradient stage, an update stage, and the state between them.

A step is called as ``loss = step(*batch)`` and returns that micro-batch's mean loss before any
update. What belongs to an update as a whole is in ``step.last_update``.

Hazard: inside a compiled graph, MindSpore 2.10 drops the assignments of a method that returns None
when it is called behind an ``if``. Every method here that assigns returns a value, and its caller
uses it.
"""

from dataclasses import dataclass

import mindspore as ms
from mindspore import Parameter, ParameterTuple, Tensor, mint, nn, ops
from mindspore.nn.layer.normalization import _BatchNorm

from labkit.errors import InputError
from labkit.gradients import GradientStage, set_state, state
from labkit.schedules import check_length
from labkit.settings import effective
from labkit.update_stage import UpdateStage

_BATCH_NORMS = (_BatchNorm, mint.nn.BatchNorm1d, mint.nn.BatchNorm2d, mint.nn.BatchNorm3d)


@dataclass(frozen=True)
class LastUpdate:
    """The most recent update of a step.

    number         updates applied so far; 0 before the first
    loss           mean loss over the update's micro-batches, weighted as their gradients are
    gradient_norm  global norm of the averaged gradient, before clipping
    learning_rate  the rates it used, one per parameter group
    images         rows that went into it, over all ranks: labels (B,), else axis 0 of the batch's
                   first tensor, or its ``batch_axis``
    """

    number: int
    loss: float
    gradient_norm: float
    learning_rate: tuple[float, ...]
    images: int


class Step(nn.Cell):
    """Base of the step cells: owns the two stages and all state, as named Parameters.

    loss_net   see ``GradientStage``
    optimizer  any ``nn.Optimizer`` with any parameter groups; its own ``loss_scale`` must be 1
    update     update stage: a Cell called with the averaged gradients, shaped and typed as
               ``optimizer.parameters``; see ``labkit.update_stage`` for one that wants more
    options    of ``GradientStage``

    Raises ``InputError`` for an optimizer that is none or that unscales gradients itself; and, when
    it is called, before anything is compiled, for batches that are no flat tensors, labels that are
    of no class, and a weight that cannot be derived (``normalise``).
    """

    # Whether an update may take more than one call.
    accumulates = False

    def __init__(self, loss_net, optimizer, update, *, nonfinite="drop_micro", **options):
        super().__init__(auto_prefix=False)
        check_optimizer(optimizer)
        if optimizer.loss_scale != 1:
            raise InputError(
                f"the optimizer has loss_scale={optimizer.loss_scale} and would unscale a second "
                "time; give loss_scale to the step and leave the optimizer's at 1"
            )
        self.optimizer = optimizer
        extras = getattr(update, "extras", None)
        self.gradient = GradientStage(
            loss_net, optimizer.parameters, nonfinite=nonfinite, extras=extras, **options
        )
        self.update = update
        self.count = len(optimizer.parameters)
        self.map = ops.HyperMap()
        # settings: plain values that a resumed training must share with the interrupted one.
        self.settings = {"step": type(self).__name__, "nonfinite": nonfinite}
        self.settings |= effective(options) | self.gradient.settings()
        self.settings |= getattr(update, "settings", {})
        # updates: optimizer calls so far. dropped: micro-batches that were not finite.
        # last_*: what the most recent update was; change only when one is applied.
        self.updates = state("updates", 0)
        self.dropped = state("dropped", 0)
        self.last_loss = state("last_loss", 0.0)
        self.last_norm = state("last_norm", 0.0)
        self.last_images = state("last_images", 0)
        self._group_starts = _group_starts(optimizer)
        rates = Tensor([0.0] * len(self._group_starts), ms.float32)
        self.last_rates = Parameter(rates, name="step.last_rates", requires_grad=False)
        # kept: BatchNorm's running statistics as they were before the micro-batch.
        self.statistics = running_statistics(loss_net) if self.gradient.checked else ()
        if self.statistics:
            self.kept = ParameterTuple(copied(statistic, "kept") for statistic in self.statistics)
        # The second and third compiled graphs of a step whose update stage wants extras.
        self._with_extras = None if extras is None else _WithExtras(self)
        self._apply_held = None if extras is None else _ApplyHeld(self)
        if extras is not None:
            update.attach(self)
        # Cells start in evaluation mode: BatchNorm would use its running statistics.
        self.set_train()

    def contribution(self, with_extras, *batch):
        """``GradientStage.contribution``; one that is not finite is counted, leaves no trace."""
        if self.statistics:
            self.map(ops.assign, self.kept, self.statistics)
        if with_extras:
            loss, weight, gradients, finite = self.gradient.contribution_with_extras(*batch)
        else:
            loss, weight, gradients, finite = self.gradient.contribution(*batch)
        if self.gradient.checked:
            adjusted = self.gradient.adjust_loss_scale(finite)
            if not finite:
                ops.assign_add(self.dropped, 1)
                if self.statistics:
                    self.map(ops.assign, self.statistics, self.kept)
            loss = ops.depend(loss, adjusted)
        return loss, weight, gradients, finite

    def apply(self, total, loss_sum, weight, images):
        """Average, clip and update, and note what was done.

        total     sum of w_i grad L_i on this rank, float32; behind them the extras', if gathered:
                  the update then waits for ``UpdateStage.refresh``
        loss_sum  sum of w_i L_i, likewise; weight  sum of w_i over ranks, > 0
        images    rows on this rank, int32
        """
        loss_sum, images, total = self.summed(loss_sum, images, total)
        gradients, norm = self.gradient.finish(total[: self.count], weight)
        noted = self.note(loss_sum / weight, norm, images)
        gradients = self.map(cast_like, gradients, self.optimizer.parameters)
        if len(total) > self.count:
            extras = self.gradient.finish_extras(total[self.count :], weight)
            done = self.update.hold(gradients, extras)
        else:
            done = self.update(gradients)
            ops.assign_add(self.updates, 1)
        return ops.depend(True, (noted, done))

    def summed(self, loss_sum, images, total):
        """Return the sums over ranks of what ``apply`` is given."""
        if self.gradient.ranks > 1:
            values = (loss_sum, ops.cast(images, ms.float32))
            for value in total:
                values += (value,)
            values = self.gradient.all_over_ranks(values)
            loss_sum, images, total = values[0], ops.cast(values[1], ms.int32), values[2:]
        return loss_sum, images, total

    def note(self, loss, norm, images):
        """Keep what ``last_update`` says of the update that is being made."""
        ops.assign(self.last_loss, loss)
        ops.assign(self.last_norm, norm)
        ops.assign(self.last_images, images)
        return self._note_rates()

    def __call__(self, *batch):
        graph = self._with_extras if self.update_wants_extras() else self
        self.gradient.look_at(batch, lambda: graph.compile(*batch))
        self.settings.update(self.gradient.settings())
        if self._with_extras is None:
            return super().__call__(*batch)
        if self.update_wants_extras():
            if int(self.update.held.asnumpy()):
                # Of an update that was interrupted: it was not made, and is not to be made now.
                set_state(self.update.held, 0)
            loss = self._with_extras(*batch)
            self._finish_held(batch)
        else:
            loss = super().__call__(*batch)
        self.update.after(self, loss, batch)
        return loss

    def update_wants_extras(self) -> bool:
        """Return whether the update that is under way gathers extras."""
        if self._with_extras is None:
            return False
        return self.update.wants_extras(int(self.updates.asnumpy()))

    def _finish_held(self, batch):
        """Make the update that the graph with extras has prepared, if it has."""
        if int(self.update.held.asnumpy()):
            self._apply_held(*self.update.refresh(self, batch))
            self.update.applied(self, batch)

    def _note_rates(self):
        if self.optimizer.dynamic_lr:
            rates = self.optimizer.get_lr()
            if not self.optimizer.is_group_lr:
                rates = (rates,)
            ops.assign(self.last_rates, ops.stack([rates[i] for i in self._group_starts]))
        return True

    @property
    def last_update(self) -> LastUpdate:
        """The most recent update, read from the device."""
        if self.optimizer.dynamic_lr:
            rates = tuple(float(rate) for rate in self.last_rates.asnumpy())
        elif self.optimizer.is_group_lr:
            rates = tuple(
                float(self.optimizer.learning_rate[i].asnumpy()) for i in self._group_starts
            )
        else:
            rates = (float(self.optimizer.learning_rate.asnumpy()),)
        return LastUpdate(
            number=int(self.updates.asnumpy()),
            loss=float(self.last_loss.asnumpy()),
            gradient_norm=float(self.last_norm.asnumpy()),
            learning_rate=rates,
            images=int(self.last_images.asnumpy()),
        )

    @property
    def more_to_record(self) -> dict[str, float]:
        """What a record of the most recent update holds beside ``last_update``: name -> number."""
        return {}

    def updates_ahead(self, epochs) -> int:
        """Return the most updates that epochs of so many micro-batches each make from here."""
        return sum(epochs)

    def check_length(self, updates: int) -> None:
        """Raise ``InputError`` where an array of rates or damping ends within ``updates`` more.

        Arrays are those of the optimizer, one a parameter group, and of the update stage. Without
        this the training stops in its middle, in MindSpore's Gather, or goes on undefined.
        """
        if not updates:
            return
        rates = self.optimizer.learning_rate
        by_group = rates if self.optimizer.is_group_lr else [rates]
        for number, start in enumerate(self._group_starts):
            array = getattr(by_group[start], "learning_rate", None)
            if isinstance(array, Parameter) and array.ndim == 1:
                name = "the learning rate" + (f" of group {number}" if number else "")
                total = int(self.optimizer.global_step.asnumpy()[0]) + updates
                check_length(array.asnumpy(), total, name, "values")
        if isinstance(self.update, UpdateStage):
            self.update.check_length(int(self.updates.asnumpy()) + updates)

    @property
    def micro_batches(self) -> int:
        """How many of this rank's micro-batches make up an update."""
        return 1

    @property
    def can_be_saved(self) -> bool:
        """Whether the Parameters are all that the step would have to go on from."""
        return True

    def end_epoch(self) -> None:
        """Say that the epoch is over; a step that holds a part of an update acts on it here."""


class _WithExtras(nn.Cell):
    """The compiled graph of a micro-batch that gathers the update stage's extras."""

    def __init__(self, step):
        super().__init__(auto_prefix=False)
        self.micro_batch = step.micro_batch

    def construct(self, *batch):
        return self.micro_batch(True, *batch)


class _ApplyHeld(nn.Cell):
    """The compiled graph of an update from what the update stage holds."""

    def __init__(self, step):
        super().__init__(auto_prefix=False)
        self.apply_held, self.updates = step.update.apply_held, step.updates

    def construct(self, *notes):
        done = self.apply_held(*notes)
        ops.assign_add(self.updates, 1)
        return done


def check_optimizer(optimizer) -> None:
    """Raise ``InputError`` for what is no ``nn.Optimizer``."""
    if not isinstance(optimizer, nn.Optimizer):
        raise InputError(f"optimizer is a {type(optimizer).__name__}; expected an nn.Optimizer")


def trainable_batch_norms(network) -> list:
    """Return the BatchNorm cells of ``network`` that use each micro-batch's own statistics."""
    cells = (cell for _, cell in network.cells_and_names())
    return [
        cell
        for cell in cells
        if isinstance(cell, _BATCH_NORMS)
        and getattr(cell, "use_batch_statistics", None) is not False
    ]


def running_statistics(network) -> tuple[Parameter, ...]:
    """Return the Parameters of ``network`` that a forward pass changes: BatchNorm's statistics."""
    return tuple(
        parameter
        for cell in trainable_batch_norms(network)
        for parameter in cell.get_parameters(expand=False)
        if not parameter.requires_grad
    )


def _group_starts(optimizer):
    """Return the index of the first parameter of each parameter group with its own rate."""
    if not optimizer.is_group_lr:
        return (0,)
    first = {}
    for index, rate in enumerate(optimizer.learning_rate):
        first.setdefault(id(rate), index)
    return tuple(first.values())


def copied(parameter, prefix):
    """Return a Parameter with the values of ``parameter``, named ``prefix.NAME``."""
    copy = parameter.clone()
    copy.name = f"{prefix}.{parameter.name}"
    copy.requires_grad = False
    return copy


def cast_like(gradient, parameter):
    """Return a gradient of the Parameter's type."""
    return ops.cast(gradient, parameter.dtype)
