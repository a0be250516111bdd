"""The update stage: gradients through their layers' inverses, and from there to any optimizer."""

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from mindspore.common.initializer import initializer

from labkit.algorithms.thor import taps, upstream_gpu
from labkit.algorithms.thor.adapt import Adaptation
from labkit.algorithms.thor.directions import Directions
from labkit.algorithms.thor.inverses import Inverses
from labkit.algorithms.thor.layers import (
    find_layers,
    refuse_layers,
    release_layers,
    tap_layers,
    tapped_cells,
)
from labkit.algorithms.thor.options import checked_options
from labkit.algorithms.thor.rules import FREEZE, REFRESH, Damping, Frequency
from labkit.algorithms.thor.supported_losses import check_loss
from labkit.algorithms.thor.uses import check_uses
from labkit.errors import InputError
from labkit.steps.gradients import set_state, state
from labkit.steps.nonfinite import first_nonfinite
from labkit.steps.step import check_optimizer
from labkit.steps.update import UpdateStage


class ThorUpdate(UpdateStage):
    """Precondition the gradients layer by layer; the optimizer takes U for the gradient.

    loss_net   as the step's. Its layers get taps, in place; ``release`` takes them away again
    optimizer  any ``nn.Optimizer``; THOR's is nn.Momentum
    damping    number > 0, array of them by update, or function of the number of updates so far
    options    of ``labkit.algorithms.thor.options.Options``

    layers     the curvature of each preconditioned layer, ``LayerCurvature``
    decisions  layer name -> ``refresh``, ``skip`` or ``freeze``, of the last refresh

    All state is in Parameters: a checkpoint of the step is the whole state.

    Raises ``InputError`` for bad options, a network with nothing to precondition, and, naming all
    of them, layers whose weight does more than their calls show: tied to another Cell's when the
    stage is built, used elsewhere or without a call at the first batch, before it is compiled.
    FloatingPointError where factors are not finite or no damping makes them invertible.
    """

    def __init__(self, loss_net, optimizer, damping, **options):
        super().__init__(auto_prefix=False)
        self.options = options = checked_options(options)
        check_optimizer(optimizer)
        if options.loss == "known":
            check_loss(loss_net)
        self.schedule = Damping(damping)
        self.frequency = Frequency("frequency", options.frequency)
        often = options.frequency if options.factor_frequency is None else options.factor_frequency
        self.factor_frequency = Frequency("factor_frequency", often)
        self.optimizer, self.map = optimizer, ops.HyperMap()
        self.factor_decay = float(options.factor_decay)
        upstream = options.formulas == "upstream_gpu"
        bias = "plain" if upstream else options.bias
        self.places = find_layers(loss_net, optimizer.parameters, bias=bias, skip=options.skip)
        tapped = upstream_gpu.tapped if upstream else taps.tapped
        layers = tap_layers(self.places, split=options.split, tapped=tapped)
        self.layers = nn.CellList(layers, auto_prefix=False)
        self._make_state(optimizer)
        self.directions = Directions(self.layers, self.places, optimizer, options.kl_clip)
        self.extras = (
            tuple(layer.a_factor for layer in layers) + tuple(layer.positions for layer in layers),
            tuple(layer.g_factor for layer in layers),
        )
        self.inverses = Inverses(layers, options.damping_split)
        self.adaptation = None
        if options.adapt_damping is not None:
            self.adaptation = Adaptation(options.adapt_damping, self, loss_net)
        self.decisions, self.seen_shapes = {}, set()
        self.settings = {"damping": _settled(damping)}
        self.settings |= {name: _settled(value) for name, value in vars(options).items()}

    def _make_state(self, optimizer):
        # held: 1 between the graph that fills held_gradients and the one that applies them.
        # seen: T, tr A (x) G, and whether they are finite, of each layer's last factors.
        # The rest changes only with the update that was held. last_factors, last_refresh: the
        # updates, counted from 0, that did it last; -1 for none. damping: of the last refresh.
        # traces: tr(F + damping I) that each layer's inverses were made of. frozen: 1 for good.
        # refreshes: of each layer so far. retries: its inversions that needed more damping.
        count = len(self.layers)
        self.held = state("thor.held", 0)
        self.held_gradients = ParameterTuple(_held(p) for p in optimizer.parameters)
        self.seen = _table("seen", (count, 3), ms.float32)
        self.last_factors = state("thor.last_factors", -1)
        self.last_refresh = state("thor.last_refresh", -1)
        self.damping = state("thor.damping", 0.0)
        self.traces = _table("traces", (count,), ms.float32)
        self.frozen = _table("frozen", (count,), ms.int32)
        self.refreshes = _table("refreshes", (count,), ms.int32)
        self.retries = _table("retries", (count,), ms.int32)
        self.noted = ParameterTuple(
            (
                self.last_factors,
                self.last_refresh,
                self.damping,
                self.traces,
                self.frozen,
                self.refreshes,
                self.retries,
            )
        )

    def construct(self, gradients):
        return self.optimizer(self.directions(gradients))

    def hold(self, gradients, extras):
        """Take the factors into their averages, and the gradients into ``held_gradients``."""
        count = len(self.layers)
        keep = ops.cast(self.last_factors >= 0, ms.float32) * self.factor_decay
        seen, made = (), ()
        for i in range(count):
            a_sum, positions, g_sum = extras[i], extras[count + i], extras[2 * count + i]
            a_new, g_new, told = self.layers[i].averaged(a_sum, positions, g_sum, keep)
            made += ((a_new, g_new, positions),)
            seen += (told,)
        seen = ops.stack(seen)
        finite = ops.reduce_min(seen[:, 2]) > 0.5
        done = (
            self.map(ops.assign, self.held_gradients, gradients),
            ops.assign(self.seen, seen),
            ops.assign(self.held, 1),
        )
        for i in range(count):
            a_new, g_new, positions = made[i]
            done += (self.layers[i].observe(a_new, g_new, positions, finite),)
        return ops.depend(True, done)

    def apply_held(self, *notes):
        """Update from ``held_gradients``; ``notes`` are what ``refresh`` returned."""
        done = (self.construct(self.held_gradients), self.map(ops.assign, self.noted, notes))
        released = ops.assign(self.held, ops.depend(ops.cast(0, ms.int32), done))
        return ops.depend(True, released)

    def check_length(self, updates):
        self.schedule.check_length(updates)

    def wants_extras(self, updates):
        # Each value that is read costs a step of LeNet half a percent: only what can matter.
        if self.options.trace_rule is not None and self.frozen.asnumpy().all():
            return False
        if self.factor_frequency.is_due(updates, int(self.last_factors.asnumpy())):
            return True
        if self.options.factor_frequency is None:  # then both are due together
            return False
        return self.frequency.is_due(updates, int(self.last_refresh.asnumpy()))

    def before(self, step, batch):
        """Refuse layers that are not used by their calls alone: for each new shape of a batch."""
        shapes = tuple(getattr(part, "shape", None) for part in batch)
        if shapes not in self.seen_shapes:
            check_uses(step.gradient, self.places, batch)
            self.seen_shapes.add(shapes)

    def refresh(self, step, batch):
        """Make the inverses anew where they are due, by layer; return the new ``noted``.

        Only the inverses change here. The rest is assigned by the graph that updates, so that an
        interruption in between leaves an update that was not made, and nothing else.
        """
        update = int(step.updates.asnumpy())
        seen = self.seen.asnumpy()
        self._check_factors(seen, update)
        notes = [parameter.asnumpy().copy() for parameter in self.noted]
        notes[0] = np.int32(update)
        if self.frequency.is_due(update, int(notes[1])):
            notes[1] = np.int32(update)
            notes[2] = np.float32(self._damping_at(update))
            self._refresh_layers(seen, *notes[2:])
            if self.adaptation is not None:
                self.adaptation.remember()
        return [Tensor(note) for note in notes]

    def applied(self, step, batch):
        """Let the damping follow what a refreshing update has done."""
        refreshed = int(self.last_refresh.asnumpy()) == int(step.updates.asnumpy()) - 1
        if self.adaptation is not None and refreshed:
            damping = self.adaptation.adjusted(step, batch, float(self.damping.asnumpy()))
            set_state(self.damping, damping)

    def _damping_at(self, update):
        if self.adaptation is not None and update > 0:
            return float(self.damping.asnumpy())
        return self.schedule.at(update)

    def _check_factors(self, seen, update):
        uncalled = {}
        for layer, (positions, _, finite) in zip(self.layers, seen, strict=True):
            if not finite:
                raise FloatingPointError(
                    f"the factors of layer {layer.layer_name!r} are not finite at update "
                    f"{update + 1}; the averages and the weights are as before it"
                )
            if not positions > 0:
                uncalled[layer.layer_name] = "was not called, though its weight may be used"
        refuse_layers(uncalled)

    def _refresh_layers(self, seen, damping, traces, frozen, refreshes, retries):
        """Decide for each layer and invert; the arrays from ``traces`` on are changed in place."""
        damping, rule, due, decisions = float(damping), self.options.trace_rule, [], {}
        for i, layer in enumerate(self.layers):
            trace = layer.trace(*seen[i, :2], damping)
            decision = FREEZE if frozen[i] else REFRESH
            if not frozen[i] and rule is not None and traces[i] > 0:
                decision = rule.decide(trace, float(traces[i]))
            decisions[layer.layer_name] = decision
            frozen[i] = decision == FREEZE
            if decision == REFRESH:
                due.append(i)
                traces[i] = trace
                refreshes[i] += 1
        for i, more in self.inverses.make(due, damping).items():
            retries[i] += more
        self.decisions = decisions

    def after(self, step, loss, batch):
        """Stop where the loss is not finite, with the name of the layer that made it so.

        On several ranks all stop: one that went on would wait for the others forever.
        """
        if self.options.nan == "drop":
            return
        finite = math.isfinite(float(loss.asnumpy()))
        everywhere = finite
        if step.gradient.ranks > 1:
            lost = step.gradient.all_reduce(Tensor([not finite], ms.float32))
            everywhere = not lost.asnumpy().any()
        if finite and not everywhere:
            raise FloatingPointError(
                f"the loss is not finite on another rank at update "
                f"{int(step.updates.asnumpy()) + 1}; what that rank raises says where"
            )
        if not finite:
            where = first_nonfinite(step.gradient.loss_net, batch)
            raise FloatingPointError(
                f"the loss is {float(loss.asnumpy())} at update {int(step.updates.asnumpy()) + 1}: "
                f"{where}. Smaller learning rate or more damping (now "
                f"{float(self.damping.asnumpy()):.3g})?"
            )

    def attach(self, step):
        if step.gradient.scaled:
            for cell in tapped_cells(self.places):
                cell.unscale(step.gradient.loss_scale)
        if self.adaptation is not None and step.accumulates:
            raise InputError(
                "adapt_damping looks at the loss of the update's batch before and after; expected "
                "a step that updates at every batch, not one that accumulates"
            )

    def memory_usage(self) -> list[dict]:
        """Return a row by layer: its name, factor shapes, and bytes of factors and inverses."""
        return [layer.memory() for layer in self.layers]

    def release(self) -> None:
        """Put the network's own layers back in the places of their taps."""
        release_layers(self.places)


def _held(parameter):
    value = initializer("zeros", parameter.shape, parameter.dtype)
    return Parameter(value, name=f"held.{parameter.name}", requires_grad=False)


def _table(name, shape, dtype):
    value = Tensor(np.zeros(shape), dtype)
    return Parameter(value, name=f"step.thor.{name}", requires_grad=False)


def _settled(value):
    """Return what a resumed training must share: a function's own value cannot be compared."""
    return "a schedule" if callable(value) else repr(value)
