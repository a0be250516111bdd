"""What every step cell is made of: a gradient stage, an update stage, and the state between them.

A step is called as ``loss = step(*batch)`` and returns that micro-batch's mean loss before any
update. What belongs to an update as a whole is in ``step.last_update``.

Hazard: inside a compiled graph, MindSpore 2.10 drops the assignments of a method that returns None
when it is called behind an ``if``. Every method here that assigns returns a value, and its caller
uses it.
"""

import warnings
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import mindspore as ms
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from labkit.errors import InputError
from labkit.steps.forward_state import assigned, may_assign, running_statistics
from labkit.steps.forward_state import trainable_batch_norms as trainable_batch_norms
from labkit.steps.gradients import GradientStage, set_state, state
from labkit.steps.modes import held, modes, set_modes
from labkit.steps.schedules import check_length
from labkit.steps.settings import effective
from labkit.steps.update import UpdateStage


@dataclass(frozen=True)
class LastUpdate:
    """The most recent update of a step.

    number         updates applied so far; 0 before the first
    loss           mean loss over the update's micro-batches, weighted as their gradients are
    gradient_norm  global norm of the averaged gradient in float32, before clipping
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
    optimizer  any ``nn.Optimizer`` with any parameter groups; its own ``loss_scale`` must be 1. It
               is given dense gradients: ``nn.LazyAdam`` and its like work as on dense ones
    update     update stage: a Cell called with the averaged gradients, shaped and typed as
               ``optimizer.parameters``; see ``labkit.steps.update`` for one that wants more
    options    of ``GradientStage``

    The network is trained in training mode, whatever mode an evaluation has left it in as a whole:
    ``set_train(False)`` of the network, of what is around it, or of all the parts that have trained
    Parameters. A part of it that was put into evaluation mode by its own ``set_train(False)``,
    before or after the step was built, while another with trained Parameters was not, stays in it:
    the BatchNorm of a frozen body, a teacher. To hold the BatchNorm of all of a network, call
    ``set_train(False)`` of the BatchNorm Cells, not of the network. What is held is printed
    whenever it changes. ``step.set_train`` puts nothing else into training mode either.

    Warns of Parameters that are float16 themselves: an optimizer takes gradients of their type, so
    that a number below 6e-8 reaches it as 0, unscaled as it is, and one above 65504 as inf.

    Raises ``InputError`` as ``GradientStage`` does; for what is no optimizer, or one that unscales
    gradients itself; and, when
    it is called, before anything is compiled, for batches that are no flat tensors, labels that are
    of no class, and a weight that cannot be derived (``normalise``).
    """

    # Whether an update may take more than one call.
    accumulates = False

    def __init__(self, loss_net, optimizer, update, *, nonfinite="drop_micro", **options):
        super().__init__(auto_prefix=False)
        check_optimizer(optimizer)
        _warn_of_float16(optimizer.parameters)
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
        # rated: the optimizer whose rates are used; nn.LARS has a 0 that it does not use.
        self.rated = optimizer.opt if isinstance(optimizer, nn.LARS) else optimizer
        self._group_starts = _group_starts(self.rated)
        rates = Tensor([0.0] * len(self._group_starts), ms.float32)
        self.last_rates = Parameter(rates, name="step.last_rates", requires_grad=False)
        # kept: BatchNorm's running statistics as they were before the micro-batch. What else a
        # forward pass assigns is known, and kept, when there is a batch to compile a graph for.
        self._may_assign, self._looked_at = may_assign(loss_net), set()
        self.statistics = running_statistics(loss_net) if self.gradient.checked else ()
        if self.statistics:
            self.kept = ParameterTuple(copied(statistic, "kept") for statistic in self.statistics)
        # The second and third compiled graphs of a step whose update stage wants extras.
        self._with_extras = None if extras is None else _WithExtras(self)
        self._apply_held = None if extras is None else _ApplyHeld(self)
        if extras is not None:
            update.attach(self)
        # Cells start in evaluation mode: BatchNorm would use its running statistics.
        self._held, self._phases = [], {}
        self._seen, self._changes, self._said = None, (), False
        self.set_train()

    def protect(self, parameters):
        """Keep ``parameters``, which a forward pass assigns, from a micro-batch that is dropped."""
        if self.gradient.checked:
            keep_also(self, parameters, "kept")

    def set_train(self, mode=True):
        """Set the mode of all Cells, but of those that are held in evaluation mode."""
        before = {id(cell) for cell in self._held}
        self._held = held(self.gradient.loss_net, self.optimizer.parameters, self._held)
        if {id(cell) for cell in self._held} != before:
            self._say_held()
        self._seen = None
        super().set_train(mode)
        for cell in self._held:
            cell.add_flags(training=False)
        self._watched = [cell for cell, _ in modes(self.gradient.loss_net)]
        # A compiled graph is of the modes that it was compiled in; MindSpore looks at none of them.
        self._modes = self._current_modes()
        self._graph_phase = self._phases.setdefault(
            self._modes, f"train{len(self._phases) or ''}" if mode else "predict"
        )
        return self

    def _say_held(self):
        """Print the outermost Cells that are held with all that is in them."""
        ids = {id(cell) for cell in self._held}
        whole = [cell for cell in self._held if all(id(one) in ids for one, _ in modes(cell))]
        outer = {id(cell) for cell in whole} - {id(one) for cell in whole for one in cell.cells()}
        named = self.gradient.loss_net.cells_and_names()
        # The path of the loss_net itself is "".
        names = [path or "the loss_net" for path, cell in named if id(cell) in outer]
        if names:
            print(f"labkit: in evaluation mode, as it was set: {', '.join(names)}", flush=True)
        elif self._said:
            print("labkit: all of the network is in training mode again", flush=True)
        self._said = bool(names)

    def _current_modes(self):
        return tuple(cell.training for cell in self._watched)

    @contextmanager
    def in_training(self):
        """Follow what ``set_train`` has done to parts of the network since the last call.

        A network that is in evaluation mode as a whole is so again afterwards.
        """
        current = self._current_modes()
        changes = ()
        if current != self._modes:
            if current == self._seen:
                set_modes((cell, now) for cell, _, now in self._changes)
            else:
                kept = modes(self.gradient.loss_net)
                self.set_train()
                # The same again at the next call costs no more than the Cells that differ.
                changed = [(cell, mode, cell.training) for cell, mode in kept]
                self._changes = [one for one in changed if one[1] is not one[2]]
                self._seen = current
            changes = self._changes
        if self.phase != self._graph_phase:
            for graph in (self, self.gradient.loss_net, *self.cells()):
                graph.phase = self._graph_phase
        try:
            yield
        finally:
            set_modes((cell, then) for cell, then, _ in changes)

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
        with self.in_training():
            self._look_at(batch)
            return self._called(*batch)

    def _look_at(self, batch):
        """Refuse a batch that cannot be used, before anything is made of it."""
        graph = self._with_extras if self.update_wants_extras() else self

        def compiled():
            self._look_at_forward(batch)
            if graph is self._with_extras:
                # What the update stage refuses costs no compilation; a label of no class, which
                # MindSpore answers with a stack of C++, is named afterwards.
                with suppress(RuntimeError, IndexError):
                    self.update.before(self, batch)
            graph.compile(*batch)

        self.gradient.look_at(batch, compiled)
        self._look_at_forward(batch)
        self.settings.update(self.gradient.settings())

    def _look_at_forward(self, batch):
        """Protect what the graph that is compiled for such a batch assigns in its forward pass."""
        if not self._may_assign:
            return
        graph = (self._graph_phase, *(getattr(one, "shape", None) for one in batch))
        if graph not in self._looked_at:
            self.protect(assigned(self.gradient.loss_net, batch))
            self._looked_at.add(graph)

    def _called(self, *batch):
        if self._with_extras is None:
            return super().__call__(*batch)
        if self.update_wants_extras():
            if int(self.update.held.asnumpy()):
                # Of an update that was interrupted: it was not made, and is not to be made now.
                set_state(self.update.held, 0)
            self.update.before(self, batch)
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
        if self.rated.dynamic_lr:
            rates = self.rated.get_lr()
            if not self.rated.is_group_lr:
                rates = (rates,)
            ops.assign(self.last_rates, ops.stack([rates[i] for i in self._group_starts]))
        return True

    @property
    def last_update(self) -> LastUpdate:
        """The most recent update, read from the device."""
        if self.rated.dynamic_lr:
            rates = tuple(float(rate) for rate in self.last_rates.asnumpy())
        elif self.rated.is_group_lr:
            rates = tuple(float(self.rated.learning_rate[i].asnumpy()) for i in self._group_starts)
        else:
            rates = (float(self.rated.learning_rate.asnumpy()),)
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
        rates = self.rated.learning_rate
        by_group = rates if self.rated.is_group_lr else [rates]
        for number, start in enumerate(self._group_starts):
            array = getattr(by_group[start], "learning_rate", None)
            if isinstance(array, Parameter) and array.ndim == 1:
                name = "the learning rate" + (f" of group {number}" if number else "")
                total = int(self.rated.global_step.asnumpy()[0]) + updates
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


def _warn_of_float16(parameters):
    names = [parameter.name for parameter in parameters if parameter.dtype == ms.float16]
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        warnings.warn(
            f"Parameter {names[0]!r}{more} is float16: whatever the loss scale, the optimizer gets "
            "0 for a number below 6e-8 in the averaged gradient and inf above 65504, while "
            "last_update.gradient_norm is of float32; expected float32 Parameters, with "
            "precision='O2' for float16 inside the network",
            stacklevel=4,
        )


def check_optimizer(optimizer) -> None:
    """Raise ``InputError`` for what is no ``nn.Optimizer``."""
    if not isinstance(optimizer, nn.Optimizer):
        raise InputError(f"optimizer is a {type(optimizer).__name__}; expected an nn.Optimizer")


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


def keep_also(cell, parameters, prefix):
    """Add to ``statistics`` of a Cell, and to ``kept`` their copies, which no checkpoint holds."""
    known = {id(parameter) for parameter in cell.statistics}
    parameters = [parameter for parameter in parameters if id(parameter) not in known]
    kept = cell.kept if known else ()
    copies = (copied(parameter, prefix) for parameter in parameters)
    # Past Cell's own setattr, which would make the copies state of the Cell.
    object.__setattr__(cell, "kept", ParameterTuple((*kept, *copies)))
    object.__setattr__(cell, "statistics", ParameterTuple((*cell.statistics, *parameters)))


def cast_like(gradient, parameter):
    """Return a gradient of the Parameter's type."""
    return ops.cast(gradient, parameter.dtype)
