"""The update stage: gradients are multiplied by inverses, then passed to any optimizer."""

from collections.abc import Callable, Sequence

import mindspore as ms
import numpy as np
from mindspore import ParameterTuple, Tensor, nn, ops

from labkit.algorithms.thor.directions import Directions
from labkit.algorithms.thor.geometry import find_layers
from labkit.algorithms.thor.inverses import Inverses, LayerState
from labkit.algorithms.thor.options import Options, check_loss, settled
from labkit.algorithms.thor.rules import Damping, Frequency, TraceRule
from labkit.algorithms.thor.stops import check_factors, check_loss_value
from labkit.algorithms.thor.taps import Tap, release_layers, tap_layers, tapped_cells
from labkit.algorithms.thor.upstream_gpu import UpstreamTap
from labkit.algorithms.words import THOR_ON_HOST
from labkit.steps.state import integer_of, set_state, state, zeros_like
from labkit.steps.update import Summary, UpdateStage

DampingSchedule = float | Sequence[float] | np.ndarray | Callable[[int], float]


class ThorUpdate(UpdateStage):
    """Precondition the gradients layer by layer; the optimizer receives U as the gradient.

    Args:
        loss_net: that of the step. Its layers get taps, in place; ``release`` removes them.
        optimizer: any ``nn.Optimizer``; THOR's own is nn.Momentum.
        damping: number > 0, array with one per update (updates,), or function of the number of
            updates so far.
        frequency: updates between refreshes of the inverses; see ``Options``, as for the others.
        factor_frequency: likewise for the factors.
        split: largest block of a factor, or None.
        bias: ``homogeneous`` or ``plain``.
        factor_decay: weight of the old factors in their running average.
        damping_split: ``equal`` or ``pi``.
        trace_rule: ``TraceRule``, or None.
        kl_clip: limit of the update, measured by rate^2 <U, grad>, or None.
        skip: layers that take the plain update.
        formulas: ``thor`` or ``upstream_gpu``.
        loss: ``known`` or ``sample mean``.
        nan: ``stop`` or ``drop``.

    Attributes:
        layers: the curvature of each preconditioned layer, ``LayerCurvature``.
        decisions: layer name -> ``refresh``, ``skip`` or ``freeze``, at the last refresh.

    Raises:
        InputError: for invalid options, a network with nothing to precondition, and, naming all of
            them, layers whose weight is used other than by their calls: one tied to another Cell's
            when the stage is built, one used elsewhere or without a call at the first batch, before
            compilation.
        FloatingPointError: if factors or, with ``nan="stop"``, a loss are not finite, or no damping
            makes the factors invertible.

    All state is in Parameters: a checkpoint of the step is the whole state. Three compiled graphs
    share it: one gathers factors along with the gradients, one updates from what the first has
    prepared, and one makes all other updates and contains no curvature but the products with the
    inverses.
    """

    def __init__(
        self,
        loss_net: nn.Cell,
        optimizer: nn.Optimizer,
        damping: DampingSchedule,
        *,
        frequency: int | Callable[[int], int] = Options.frequency,
        factor_frequency: int | Callable[[int], int] | None = Options.factor_frequency,
        split: int | None = Options.split,
        bias: str = Options.bias,
        factor_decay: float = Options.factor_decay,
        damping_split: str = Options.damping_split,
        trace_rule: TraceRule | None = None,
        kl_clip: float | None = None,
        skip: Sequence[nn.Cell | str] = (),
        formulas: str = Options.formulas,
        loss: str = Options.loss,
        nan: str = Options.nan,
    ):
        super().__init__(optimizer)
        self.options = options = Options(
            frequency=frequency,
            factor_frequency=factor_frequency,
            split=split,
            bias=bias,
            factor_decay=factor_decay,
            damping_split=damping_split,
            trace_rule=trace_rule,
            kl_clip=kl_clip,
            skip=tuple(skip) if isinstance(skip, list) else skip,
            formulas=formulas,
            loss=loss,
            nan=nan,
        )
        if loss == "known":
            check_loss(loss_net)
        self.schedule = Damping(damping)
        self.frequency = Frequency("frequency", frequency)
        self.factor_frequency = self.frequency
        if factor_frequency is not None:
            self.factor_frequency = Frequency("factor_frequency", factor_frequency)
        self.factor_decay = float(factor_decay)
        self._make_layers(loss_net)
        self._make_state()
        self.directions = Directions(self.layers, self.places, optimizer, kl_clip)
        self.inverses = Inverses(list(self.layers), damping_split)
        self.apply_pending = _ApplyPending(self)
        self.decisions: dict[str, str] = {}
        self.gathers = False
        given = {"damping": damping} | vars(options)
        self.settings = {name: settled(value) for name, value in given.items()}

    def _make_layers(self, loss_net: nn.Cell) -> None:
        options = self.options
        upstream = options.formulas == "upstream_gpu"
        bias, tap = ("plain", UpstreamTap) if upstream else (options.bias, Tap)
        self.places = find_layers(loss_net, self.parameters, bias=bias, skip=options.skip)
        layers = tap_layers(self.places, split=options.split, tap=tap)
        self.tapped = tuple(tapped_cells(self.places))
        self.layers = nn.CellList(layers, auto_prefix=False)
        means = [layer.a_factor for layer in layers] + [layer.positions for layer in layers]
        self.extras = tuple(means), tuple(layer.g_factor for layer in layers)

    def _make_state(self) -> None:
        # pending: 1 between the graph that fills pending_gradients and the one that applies them.
        # measured: T, tr A (x) G, and whether they are finite, of each layer's last factors.
        # The rest changes only when the pending update is made. last_factors, last_refresh: the
        # last updates, counted from 0, that refreshed factors and inverses; -1 for none. damping:
        # that of the last refresh. traces, frozen, refreshes, retries: see ``LayerState``.
        count = len(self.layers)
        self.pending = state("thor.held", 0)
        self.pending_gradients = ParameterTuple(zeros_like(p, "held") for p in self.parameters)
        self.measured = state("thor.seen", np.zeros((count, 3)))
        self.last_factors = state("thor.last_factors", -1)
        self.last_refresh = state("thor.last_refresh", -1)
        self.damping = state("thor.damping", 0.0)
        self.traces = state("thor.traces", np.zeros(count))
        self.frozen = state("thor.frozen", np.zeros(count, np.int32))
        self.refreshes = state("thor.refreshes", np.zeros(count, np.int32))
        self.retries = state("thor.retries", np.zeros(count, np.int32))
        # Parameters that ``apply_pending`` assigns, in this order.
        scalars = (self.last_factors, self.last_refresh, self.damping)
        tables = (self.traces, self.frozen, self.refreshes, self.retries)
        self.refreshed = ParameterTuple(scalars + tables)

    # --- in compiled graphs --------------------------------------------------------------------

    def construct(self, gradients: tuple) -> object:
        return self.optimizer(self.directions(gradients))

    def take(self, gradients: tuple, extras: tuple, summary: Summary) -> object:
        """Update; or, with ``extras``, average the factors and leave the update pending."""
        gradients = self.recorded(gradients, summary)
        if len(extras) == 0:
            return self.updated(gradients)
        count = len(self.layers)
        keep = ops.cast(self.last_factors >= 0, ms.float32) * self.factor_decay
        rows: tuple = ()
        averages: tuple = ()
        for i in range(count):
            a_sum, positions, g_sum = extras[i], extras[count + i], extras[2 * count + i]
            a_new, g_new, numbers = self.layers[i].averaged(a_sum, positions, g_sum, keep)
            averages += ((a_new, g_new, positions),)
            rows += (numbers,)
        measured = ops.stack(rows)
        finite = ops.reduce_min(ops.unstack(measured, 1)[2]) > 0.5
        done: tuple = (
            self.map(ops.assign, self.pending_gradients, gradients),
            ops.assign(self.measured, measured),
            ops.assign(self.pending, 1),
        )
        for i in range(count):
            a_new, g_new, positions = averages[i]
            done += (self.layers[i].observe(a_new, g_new, positions, finite),)
        return ops.depend(True, done)

    # --- between graphs ------------------------------------------------------------------------

    def schedules(self) -> dict[str, Callable | np.ndarray]:
        given = {
            "damping": self.schedule.by_update,
            "frequency": self.frequency.function,
            "factor_frequency": self.factor_frequency.function,
        }
        return {name: schedule for name, schedule in given.items() if schedule is not None}

    def check_length(self, updates: int) -> None:
        self.schedule.check_length(updates)

    def host_work(self) -> str:
        return THOR_ON_HOST

    def wants_extras(self, updates: int) -> bool:
        # Each value that is read costs a step of LeNet half a percent: read only what can matter.
        if self.options.trace_rule is not None and self.frozen.asnumpy().all():
            self.gathers = False
        elif self.factor_frequency.is_due(updates, integer_of(self.last_factors)):
            self.gathers = True
        elif self.options.factor_frequency is None:  # both are due together
            self.gathers = False
        else:
            self.gathers = self.frequency.is_due(updates, integer_of(self.last_refresh))
        for cell in self.tapped:
            cell.gathers = self.gathers
        return self.gathers

    def before(self, step: nn.Cell, batch: tuple) -> None:
        """Refuse layers used other than by their calls; checked for each new shape of a batch."""
        if not self.gathers or not batch:
            return
        if integer_of(self.pending):
            # Discard the pending update of an interrupted call.
            set_state(self.pending, 0)

    def between(self, step: nn.Cell, batch: tuple, loss: Tensor | None) -> None:
        """Make the pending update, if there is one; then check the micro-batch's loss."""
        if self.gathers and integer_of(self.pending):
            values = self.refresh()
            self.apply_pending(*values)
        if loss is not None and self.options.nan == "stop":
            check_loss_value(step.gradient, loss, batch, self.record.updates, self.damping)

    def refresh(self) -> list[Tensor]:
        """Recompute the inverses of the layers that are due; return the new ``refreshed``.

        Only the inverses change here. The graph that updates assigns the rest, so that an
        interruption in between only leaves an update that was not made.
        """
        update = integer_of(self.record.updates)
        measured = self.measured.asnumpy()
        check_factors(self.layers, measured, update)
        values = [parameter.asnumpy().copy() for parameter in self.refreshed]
        values[0] = np.int32(update)
        if self.frequency.is_due(update, int(values[1])):
            values[1] = np.int32(update)
            values[2] = np.float32(self.schedule.at(update))
            rule, layers = self.options.trace_rule, LayerState(*values[3:])
            self.decisions = self.inverses.refresh(measured, float(values[2]), rule, layers)
        return [Tensor(value) for value in values]

    def attach(self, step: nn.Cell) -> None:
        super().attach(step)
        if step.gradient.scaled:
            for cell in tapped_cells(self.places):
                cell.unscale(step.gradient.loss_scale)

    def memory_usage(self) -> list[dict]:
        """Return a row per layer: its name, factor shapes, and bytes of factors and inverses."""
        return [layer.memory() for layer in self.layers]

    def release(self) -> None:
        """Restore the network's own layers, without taps."""
        release_layers(self.places)


class _ApplyPending(nn.Cell):
    """The compiled graph that makes the pending update, given the new values of ``refreshed``."""

    def __init__(self, update: ThorUpdate):
        super().__init__(auto_prefix=False)
        self.updated, self.gradients = update.updated, update.pending_gradients
        self.pending, self.refreshed = update.pending, update.refreshed
        self.map = ops.HyperMap()

    def construct(self, *values: Tensor) -> object:
        done = (self.updated(self.gradients), self.map(ops.assign, self.refreshed, values))
        released = ops.assign(self.pending, ops.depend(ops.cast(0, ms.int32), done))
        return ops.depend(True, released)
