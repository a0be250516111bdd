"""The update stage: gradients are multiplied by inverses, then passed to any optimizer."""

import math
from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import ParameterTuple, Tensor, nn, ops

from labkit.algorithms.thor.curvature import Inverses, LayerCurvature
from labkit.algorithms.thor.layers import Tap, Tapped, UpstreamTap, find_layers, refuse_layers
from labkit.algorithms.thor.rules import (
    FREEZE,
    OPTION_NAMES,
    REFRESH,
    ByUpdate,
    check_loss,
    thor_options,
)
from labkit.nets.layers import exchange
from labkit.steps.gradients import GradientStage
from labkit.steps.losses import first_nonfinite
from labkit.steps.options import gradient_options
from labkit.steps.schedules import check_length
from labkit.steps.state import at, integer_of, rated, set_state, state, zeros_like
from labkit.steps.step import PlainStep
from labkit.steps.update import Summary, UpdateStage

ON_HOST = "THOR has two graphs, and inverts factors between them: the host chooses each time"


class ThorUpdate(UpdateStage):
    """Precondition the gradients layer by layer; the optimizer receives U as the gradient.

    Args:
        loss_net: that of the step. Its layers get taps, in place; ``release`` removes them.
        optimizer: any ``nn.Optimizer``; THOR's own is nn.Momentum.
        damping: see ``ThorOptions``, as for all options.
        **options: by name.

    Attributes:
        layers: the curvature of each preconditioned layer, ``LayerCurvature``.
        decisions: layer name -> ``refresh``, ``skip`` or ``freeze``, at the last refresh.

    Raises:
        InputError: for invalid options, a network with nothing to precondition, and, naming all of
            them, layers whose weight another Cell uses too; at the first update, layers that were
            not called.
        FloatingPointError: if factors or, with ``nan="stop"``, a loss are not finite, or no damping
            makes the factors invertible.

    All state is in Parameters: a checkpoint of the step is the whole state. Three compiled graphs
    share it: one gathers factors along with the gradients, one updates from what the first has
    prepared, and one makes all other updates and contains no curvature but the products with the
    inverses.
    """

    def __init__(
        self, loss_net: nn.Cell, optimizer: nn.Optimizer, damping: ByUpdate, **options: Any
    ):
        super().__init__(optimizer)
        self.options = given = thor_options(damping, options)
        if given.loss == "known":
            check_loss(loss_net)
        self.settings = given.settings()
        upstream = given.formulas == "upstream_gpu"
        bias, tap = ("plain", UpstreamTap) if upstream else (given.bias, Tap)
        self.places = find_layers(loss_net, self.parameters, bias, given.split, given.skip)
        layers = [LayerCurvature(place.name, place.geometry) for place in self.places]
        self.layers = nn.CellList(layers, auto_prefix=False)
        self.tapped = []
        for place, layer in zip(self.places, layers, strict=True):
            buffers = layer.a_factor, layer.positions, layer.g_factor
            self.tapped.append(Tapped(place.layer, tap(place.geometry), buffers))
            exchange(place.parent, place.key, self.tapped[-1])
        means = [layer.a_factor for layer in layers] + [layer.positions for layer in layers]
        self.extras = tuple(means), tuple(layer.g_factor for layer in layers)
        self._make_state()
        self._set_directions()
        self.inverses = Inverses(layers, given.damping_split)
        self.factor_decay = float(given.factor_decay)
        # float: a NumPy number would take over the division by a Tensor.
        self.kl_clip = None if given.kl_clip is None else float(given.kl_clip)
        self.apply_pending = _ApplyPending(self)
        self.decisions: dict[str, str] = {}
        self.gathers = False

    def _make_state(self) -> None:
        # pending: 1 between the graph that fills pending_gradients and the one that applies them.
        # measured: T, tr A (x) G, and whether they are finite, of each layer's last factors.
        # The rest changes only when the pending update is made. last_factors, last_refresh: the
        # last update, counted from 0, that refreshed factors and inverses; -1 for none. damping:
        # that of the last refresh. traces: tr(F + damping I) at the last refresh of each layer, 0
        # before the first. frozen: 1 for layers that are never refreshed again. refreshes, retries
        # with more damping: how many each layer has had.
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
        # Parameters that ``apply_pending`` assigns, in the order of ``refresh``.
        scalars = (self.last_factors, self.last_refresh, self.damping)
        tables = (self.traces, self.frozen, self.refreshes, self.retries)
        self.refreshed = ParameterTuple(scalars + tables)

    def _set_directions(self) -> None:
        # sources: (index of the weight, index of the bias) of each layer; without a bias in the
        # factors, the weight's index twice. made: number of directions that the layers return, two
        # each. origins: where each parameter's direction stands among them, followed by all
        # gradients; a parameter in no layer's factors takes its own gradient.
        places = self.places
        self.sources = tuple((p.weight, p.weight if p.bias is None else p.bias) for p in places)
        self.made = 2 * len(places)
        origins = [self.made + i for i in range(len(self.parameters))]
        for number, place in enumerate(places):
            origins[place.weight] = 2 * number
            if place.bias is not None:
                origins[place.bias] = 2 * number + 1
        self.origins = tuple(origins)
        self.rated = rated(self.optimizer)

    def attach(self, step: nn.Cell) -> None:
        super().attach(step)
        if step.gradient.scaled:
            for cell in self.tapped:
                cell.unscale(step.gradient.loss_scale)

    # --- in compiled graphs --------------------------------------------------------------------

    def construct(self, gradients: tuple) -> object:
        return self.optimizer(self.directions(gradients))

    def directions(self, gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return U for the layers' weights and biases, all other gradients unchanged."""
        made: tuple = ()
        for i in range(len(self.sources)):
            weight, bias = self.sources[i]
            made += self.layers[i](gradients[weight], gradients[bias])
        directions = self.map(ops.partial(at, made + gradients), self.origins)
        if self.kl_clip is not None:
            directions = self._clipped(directions, gradients)
        return directions

    def _clipped(self, directions: tuple, gradients: tuple) -> tuple[Tensor, ...]:
        """Limit rate^2 <U, grad> of all layers together (Ba, Grosse and Martens, 2017, section 5).

        "Distributed second-order optimization using Kronecker-factored approximations", ICLR.
        """
        rates = self.rated.get_lr()
        total = ops.cast(0.0, ms.float32)
        for i in range(len(gradients)):
            if self.origins[i] < self.made:
                rate = rates[i] if self.rated.is_group_lr else rates
                product = ops.cast(directions[i], ms.float32) * ops.cast(gradients[i], ms.float32)
                total = total + ops.square(rate) * ops.reduce_sum(product.reshape(-1))
        factor = ops.sqrt(self.kl_clip / ops.maximum(ops.abs(total), self.kl_clip))
        clipped: tuple = ()
        for i in range(len(gradients)):
            own = directions[i]
            clipped += (ops.cast(own * factor, own.dtype) if self.origins[i] < self.made else own,)
        return clipped

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

    def wants_extras(self, updates: int) -> bool:
        # Of an update that was due and was left out, the next one takes the place.
        last = integer_of(self.last_refresh)
        self.gathers = last < 0 or updates - last >= self.options.frequency
        # Each value that is read costs a step of LeNet half a percent: read only what can matter.
        if self.gathers and self.options.trace_rule is not None:
            self.gathers = not self.frozen.asnumpy().all()
        for cell in self.tapped:
            cell.gathers = self.gathers
        return self.gathers

    def before(self, step: nn.Cell, batch: tuple) -> None:
        """Discard the pending update of a call that was interrupted."""
        if self.gathers and integer_of(self.pending):
            set_state(self.pending, 0)

    def between(self, step: nn.Cell, batch: tuple, loss: Tensor | None) -> None:
        """Make the pending update, if there is one; then check the micro-batch's loss."""
        if self.gathers and integer_of(self.pending):
            self.apply_pending(*self.refresh())
        if loss is not None and self.options.nan == "stop":
            self._stop_at_nan(step.gradient, batch, loss)

    def refresh(self) -> list[Tensor]:
        """Recompute the inverses of the layers that are due; return the new ``refreshed``.

        Only the inverses change here. The graph that updates assigns the rest, so that an
        interruption in between only leaves an update that was not made.
        """
        update, measured = integer_of(self.record.updates), self.measured.asnumpy()
        self._check_factors(measured, update)
        self.check_length(update + 1)
        given = self.options.damping
        damping = np.float32(given[update] if isinstance(given, np.ndarray) else given)
        _, _, _, *tables = (parameter.asnumpy().copy() for parameter in self.refreshed)
        traces, frozen, refreshes, retries = tables
        rule, due = self.options.trace_rule, []
        for i, layer in enumerate(self.layers):
            trace = layer.trace(measured[i, 0], measured[i, 1], float(damping))
            decision = FREEZE if frozen[i] else REFRESH
            if rule is not None and traces[i] > 0 and not frozen[i]:
                decision = rule.decide(trace, float(traces[i]))
            self.decisions[layer.layer_name] = decision
            frozen[i] = decision == FREEZE
            if decision == REFRESH:
                traces[i] = trace
                refreshes[i] += 1
                due.append(i)
        for i, more in self.inverses.make(due, float(damping)).items():
            retries[i] += more
        return [Tensor(value) for value in (np.int32(update), np.int32(update), damping, *tables)]

    def _check_factors(self, measured: np.ndarray, update: int) -> None:
        """Stop at factors that are not finite, and at layers that were not called."""
        uncalled = {}
        for layer, (positions, _, finite) in zip(self.layers, measured, strict=True):
            if not finite:
                raise FloatingPointError(
                    f"the factors of layer {layer.layer_name!r} are not finite at update "
                    f"{update + 1}; the averages and the weights are as before it"
                )
            if not positions > 0:
                uncalled[layer.layer_name] = "was not called, though its weight may be used"
        refuse_layers(uncalled)

    def _stop_at_nan(self, stage: GradientStage, batch: tuple, loss: Tensor) -> None:
        """Raise ``FloatingPointError`` if a loss is not finite, naming the layer that caused it.

        All ranks stop: a rank that continued would wait for the others forever.
        """
        finite = everywhere = math.isfinite(float(loss.asnumpy()))
        if stage.all_reduce is not None:
            everywhere = not stage.all_reduce(Tensor([not finite], ms.float32)).asnumpy().any()
        if everywhere:
            return
        update = integer_of(self.record.updates) + 1
        if finite:
            raise FloatingPointError(
                f"the loss is not finite on another rank at update {update}; what that rank "
                "raises says where"
            )
        raise FloatingPointError(
            f"the loss is {float(loss.asnumpy())} at update {update}: "
            f"{first_nonfinite(stage.loss_net, batch)}. Smaller learning rate or more damping (now "
            f"{float(self.damping.asnumpy()):.3g})?"
        )

    def schedules(self) -> dict[str, Callable | np.ndarray]:
        return self.options.schedules()

    def check_length(self, updates: int) -> None:
        if isinstance(self.options.damping, np.ndarray):
            check_length(self.options.damping, updates, "damping")

    def memory_usage(self) -> list[dict]:
        """Return a row per layer: its name, factor shapes, and bytes of factors and inverses."""
        return [layer.memory() for layer in self.layers]

    def release(self) -> None:
        """Restore the network's own layers, without taps."""
        for place, cell in zip(self.places, self.tapped, strict=True):
            parent, key = place.parent, place.key
            if parent._cells[key] is not cell:  # a network of one layer, inside float16's wrapper
                parent, key = parent._cells[key], "_backbone"
            exchange(parent, key, cell.release())


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


class ThorStep(PlainStep):
    """One THOR update per batch: a ``PlainStep`` with a ``ThorUpdate``.

    With accumulation:
    ``AccumulatedStep(loss_net, optimizer, 4, update=ThorUpdate(loss_net, optimizer, damping))``.

    Args:
        loss_net: network and loss, a mean over rows; its layers get taps, in place.
        optimizer: any ``nn.Optimizer``; THOR's own is nn.Momentum.
        damping: see ``ThorOptions``.
        **options: see ``ThorOptions`` and ``GradientOptions``.

    It raises what ``ThorUpdate`` raises.

    >>> step = ThorStep(LossNet(network, loss_fn), optimizer, damping=0.3, frequency=10)
    >>> loss = step(images, labels)
    """

    def __init__(
        self, loss_net: nn.Cell, optimizer: nn.Optimizer, damping: ByUpdate, **options: Any
    ):
        own = {name: options.pop(name) for name in OPTION_NAMES if name in options}
        gradient_options(options, *OPTION_NAMES)  # before the network gets taps
        update = ThorUpdate(loss_net, optimizer, damping, **own)
        try:
            super().__init__(loss_net, optimizer, update=update, **options)
        except Exception:
            update.release()
            raise
