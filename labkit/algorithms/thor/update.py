"""The update stage: gradients are multiplied by inverses, then passed to any optimizer."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args, get_origin

import mindspore as ms
import numpy as np
from mindspore import ParameterTuple, Tensor, nn, ops

from labkit.algorithms.thor.curvature import Inverses, LayerCurvature
from labkit.algorithms.thor.layers import Tap, Tapped, UpstreamTap, find_layers, refuse_layers
from labkit.base.arguments import choice, integer, number, wrong
from labkit.errors import InputError, refuse_unknown
from labkit.nets.layers import exchange
from labkit.steps.losses import STATISTICS, LossNet, as_loss_net, first_nonfinite
from labkit.steps.options import gradient_options
from labkit.steps.schedules import check_length
from labkit.steps.state import at, check_weights, integer_of, rated, set_state, state, zeros_like
from labkit.steps.step import PlainStep
from labkit.steps.update import Summary, UpdateStage

ByUpdate = float | np.ndarray


@dataclass(frozen=True)
class TraceRule:
    """THOR's own rule for each layer (Chen et al., AAAI 2021), by the change of the trace.

        D = |tr(F + damping I) - tr(F' + damping I)| / tr(F' + damping I)

    F' is F at the last refresh of the layer's inverses. D > refresh: refresh them; D < freeze:
    never refresh them again (0 never freezes); otherwise: skip this refresh.

    Raises:
        InputError: unless 0 <= freeze <= refresh, both finite.
    """

    refresh: float = 0.01
    freeze: float = 0.001

    def __post_init__(self) -> None:
        refresh = number("refresh", self.refresh, at_least=0)
        number("freeze", self.freeze, at_least=0, at_most=refresh)

    def decide(self, trace: float, last: float) -> str:
        """Return ``refresh``, ``skip`` or ``freeze`` for the trace now and at the last refresh."""
        change = abs(trace - last) / last
        if not change <= self.refresh:  # NaN if the traces are infinite
            return "refresh"
        return "skip" if change >= self.freeze else "freeze"


@dataclass(frozen=True)
class ThorOptions:
    """The options of THOR; ``ThorUpdate``, ``ThorStep`` and ``labkit.thor`` take them by name.

    Attributes:
        damping: number > 0, or array with one per update (updates,).
        frequency: updates between refreshes of factors and inverses, an integer >= 1; the first
            update refreshes them.
        split: largest block of a factor, or None for whole factors.
        bias: ``homogeneous``: the bias is one more coordinate of its layer's input; ``plain``: it
            takes the plain update, as in MindSpore's THOR.
        factor_decay: weight of the old factors in their running average, 0 <= decay < 1.
        damping_split: ``equal`` or ``pi``, see ``labkit.algorithms.thor.curvature``.
        trace_rule: rule for each layer; None: each refresh recomputes every layer's inverses.
        kl_clip: None, or c > 0: U times min(1, sqrt(c / s)), s = |sum of rate^2 <U, grad>|.
        skip: layers that take the plain update: names, or patterns such as ``encoder.*``. A layer
            that shares its weight with an embedding, and the out_proj of nn.MultiheadAttention,
            which is never called, take it anyway; two layers that share one must be among them.
        formulas: ``thor``, or ``upstream_gpu``: what MindSpore's THOR computes on GPU, to compare.
        nan: ``stop``: a loss, or running statistics of BatchNorm, that are not finite raise
            FloatingPointError, which names the layer; ``drop``: the step's ``nonfinite`` handles
            them.

    Raises:
        InputError: if an attribute has any other value.
    """

    damping: ByUpdate
    frequency: int = 100
    split: int | None = 128
    bias: Literal["homogeneous", "plain"] = "homogeneous"
    factor_decay: float = 0.0
    damping_split: Literal["equal", "pi"] = "equal"
    trace_rule: TraceRule | None = None
    kl_clip: float | None = None
    skip: Sequence[str] = ()
    formulas: Literal["thor", "upstream_gpu"] = "thor"
    nan: Literal["stop", "drop"] = "stop"

    def __post_init__(self) -> None:
        object.__setattr__(self, "damping", by_update("damping", self.damping, above=0))
        integer("frequency", self.frequency)
        for each in fields(self):
            if get_origin(each.type) is Literal:
                choice(each.name, getattr(self, each.name), get_args(each.type))
        if self.split is not None:
            integer("split", self.split)
        number("factor_decay", self.factor_decay, at_least=0, below=1)
        if self.kl_clip is not None:
            number("kl_clip", self.kl_clip, above=0)
        if not isinstance(self.trace_rule, TraceRule | None):
            raise wrong("trace_rule", self.trace_rule, "a TraceRule or None")
        if isinstance(self.skip, str) or not all(isinstance(name, str) for name in self.skip):
            raise wrong("skip", self.skip, "a list of names or patterns of layers")
        object.__setattr__(self, "skip", tuple(self.skip))


OPTION_NAMES = tuple(field.name for field in fields(ThorOptions))


def thor_options(damping: object, options: Mapping[str, Any]) -> ThorOptions:
    """Return ``ThorOptions``; refuse unknown names, with the nearest one, as ``InputError``."""
    for name in options:
        refuse_unknown("option", name, OPTION_NAMES)
    return ThorOptions(damping, **options)  # type: ignore[arg-type]


def by_update(name: str, value: Any, **bounds: float) -> ByUpdate:
    """Return a number, or an array with one per update (updates,), given as one or as a Tensor.

    Raises:
        InputError: for another shape, or a number outside ``bounds`` (``labkit.base.arguments``).
    """
    if isinstance(value, Tensor):
        value = value.asnumpy()
    values = np.asarray(value, dtype=object)
    if values.ndim > 1 or not values.size:
        raise InputError(f"{name}: expected shape () or (updates,), got {values.shape}")
    if not values.ndim:
        return number(name, value.item() if isinstance(value, np.ndarray) else value, **bounds)
    return np.array([number(f"{name}[{i}]", x, **bounds) for i, x in enumerate(values)])


def check_loss(loss_net: nn.Cell, formulas: str = "thor") -> None:
    """Raise ``InputError`` if a loss net of labkit does not count equal terms of its mean.

    A loss net of the user's own is asked when it is compiled.
    """
    loss_net = as_loss_net(loss_net)
    over, name = getattr(loss_net, "over", None), f"a {type(loss_net).__name__}"
    if hasattr(loss_net, "loss_name"):
        name += f" of {loss_net.loss_name}"
    if getattr(loss_net, "class_weights", None) is not None:
        expected = "a mean over terms of one weight each: THOR's factors count them"
        raise wrong("loss_net", f"{name} with class weights", expected)
    if over is None and isinstance(loss_net, LossNet):
        expected = "a loss that says what it is a mean over: (loss, weight), or per='rows'"
        raise wrong("loss_net", name, expected)
    if formulas == "upstream_gpu" and over in (None, "tokens"):
        raise wrong("loss_net of formulas='upstream_gpu'", name, "a LossNet of a mean over rows")


class ThorUpdate(UpdateStage):
    """Precondition the gradients layer by layer; the optimizer receives U as the gradient.

    Args:
        loss_net: that of the step. Its layers get taps, in place; ``release`` removes them.
        optimizer: any ``nn.Optimizer``; THOR's own is nn.Momentum.
        damping, **options: see ``ThorOptions``.

    Attributes:
        layers: the curvature of each preconditioned layer, ``LayerCurvature``.
        plain: layer name -> why it is left to the plain update though ``skip`` does not name it.
        decisions: layer name -> ``refresh``, ``skip`` or ``freeze``, at the last refresh.

    Raises:
        InputError: for invalid options, a network with nothing to precondition, layers whose weight
            another Cell uses too, and, at the first update, layers that were not called.
        FloatingPointError: if factors or, with ``nan="stop"``, a loss are not finite, or no damping
            makes the factors invertible.

    The step's graph, with or without taps, leaves its gradients in ``pending_gradients``; a second
    one makes the update from them, by products with the inverses: these and the optimizer are
    compiled once, and not with and without taps.
    """

    def __init__(
        self, loss_net: nn.Cell, optimizer: nn.Optimizer, damping: ByUpdate, **options: Any
    ):
        super().__init__(optimizer)
        self.options = given = thor_options(damping, options)
        check_loss(loss_net, given.formulas)
        check_weights(loss_net, optimizer)  # before the taps are put into the network
        # What a resumed training must share, as plain values.
        self.settings = asdict(given) | dict.fromkeys(self.schedules(), "a schedule")
        upstream = given.formulas == "upstream_gpu"
        bias, tap = ("plain", UpstreamTap) if upstream else (given.bias, Tap)
        found = find_layers(loss_net, self.parameters, bias, given.split, given.skip)
        self.places, self.plain = found
        layers = [LayerCurvature(place.name, place.geometry) for place in self.places]
        self.layers = nn.CellList(layers, auto_prefix=False)
        self.tapped = []
        for place, layer in zip(self.places, layers, strict=True):
            buffers = layer.a_factor, layer.positions, layer.g_factor
            self.tapped.append(Tapped(place.layer, tap(place.geometry), buffers))
            exchange(place.parent, place.key, self.tapped[-1])
        factors = ((layer.a_factor, layer.positions, layer.g_factor) for layer in layers)
        self.extras = tuple(zip(*factors, strict=True))
        self.inverses = Inverses(layers, given.damping_split)
        self.factor_decay, self.rated = float(given.factor_decay), rated(optimizer)
        # float: a NumPy number would take over the division by a Tensor.
        self.kl_clip = None if given.kl_clip is None else float(given.kl_clip)
        self.decisions: dict[str, str] = {}
        self.gathers = False
        # pending: 1 between the graph that fills pending_gradients and the one that applies them.
        # measured: T, tr A (x) G, and whether they are finite, of each layer's last factors.
        # The rest changes only when the pending update is made. last_factors, last_refresh: the
        # last update, counted from 0, that refreshed factors and inverses; -1 for none. By layer:
        # traces: tr(F + damping I) at its last refresh, 0 before the first; frozen: 1 if it is
        # never refreshed again; refreshes, retries with more damping: how many it has had.
        count = len(layers)
        self.pending = state("thor.held", 0)
        self.pending_gradients = ParameterTuple(zeros_like(p, "held") for p in self.parameters)
        self.tensors = {"factors": [factor for group in self.extras for factor in group]}
        self.tensors |= {"inverses": list(self.layers.get_parameters())}
        self.tensors |= {"held gradients": self.pending_gradients}
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
        self.apply_pending = _ApplyPending(self)
        # sources: each layer's indices of weight and bias; without a bias in the factors, the
        # weight's twice. made: number of directions, two a layer. origins: where each parameter's
        # direction stands among these, followed by all gradients: its own for all others.
        pairs = ((p.weight, p.weight if p.bias is None else p.bias) for p in self.places)
        self.sources, self.made = tuple(pairs), 2 * count
        origins = [self.made + i for i in range(len(self.parameters))]
        for i, place in enumerate(self.places):
            origins[place.weight] = 2 * i
            if place.bias is not None:
                origins[place.bias] = 2 * i + 1
        self.origins = tuple(origins)

    def attach(self, step: nn.Cell) -> None:
        super().attach(step)
        if step.gradient.scaled:
            for cell in self.tapped:
                cell.unscale(step.gradient.loss_scale)

    def description(self) -> str:
        said = "; ".join(f"layer {name!r} {why}" for name, why in self.plain.items())
        return f"THOR leaves to the plain update: {said}" if said else ""

    # --- in compiled graphs --------------------------------------------------------------------

    def construct(self, gradients: tuple) -> object:
        made: tuple = ()
        for i in range(len(self.sources)):
            weight, bias = self.sources[i]
            made += self.layers[i](gradients[weight], gradients[bias])
        directions = self.map(ops.partial(at, made + gradients), self.origins)
        if self.kl_clip is not None:
            directions = self._clipped(directions, gradients)
        return self.optimizer(directions)

    def _clipped(self, directions: tuple, gradients: tuple) -> tuple[Tensor, ...]:
        """Limit rate^2 <U, grad> of all layers together: Ba, Grosse and Martens, "Distributed
        second-order optimization using Kronecker-factored approximations", ICLR 2017, section 5.
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
        """Hold the gradients, which leaves the update pending; average factors of ``extras``."""
        gradients = self.recorded(gradients, summary)
        done: tuple = (
            self.map(ops.assign, self.pending_gradients, gradients),
            ops.assign(self.pending, 1),
        )
        if len(extras) == 0:
            return ops.depend(True, done)
        count = len(self.layers)
        keep = None
        if self.factor_decay > 0:
            keep = ops.cast(self.last_factors >= 0, ms.float32) * self.factor_decay
        rows: tuple = ()
        averages: tuple = ()
        for i in range(count):
            a_sum, positions, g_sum = extras[i], extras[count + i], extras[2 * count + i]
            made = self.layers[i].averaged(a_sum, positions, g_sum, keep)
            averages, rows = (*averages, made[:3]), (*rows, made[3])
        measured = ops.stack(rows)
        finite = ops.reduce_min(ops.unstack(measured, 1)[2]) > 0.5
        done += (ops.assign(self.measured, measured),)
        for i in range(count):
            a_new, g_new, positions = averages[i]
            done += (self.layers[i].observe(a_new, g_new, positions, finite),)
        return ops.depend(True, done)

    # --- between graphs ------------------------------------------------------------------------

    def wants_extras(self, updates: int) -> bool:
        # The next update takes the place of one that was due and was left out.
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
        if integer_of(self.pending):
            set_state(self.pending, 0)
        if step.statistics:
            self._dropped = integer_of(step.dropped)

    def between(self, step: nn.Cell, batch: tuple, loss: Tensor | None) -> None:
        """Make the pending update, if there is one; then check the micro-batch's loss."""
        if integer_of(self.pending):
            self.apply_pending(*(self.refresh() if self.gathers else self._refreshed()))
        if loss is not None and self.options.nan == "stop":
            self._stop_at_nan(step, batch, loss)

    def refresh(self) -> list[Tensor]:
        """Recompute the inverses of the layers that are due; return the new ``refreshed``.

        The graph that updates assigns these, so that an interruption leaves an update not made.
        """
        update, measured = integer_of(self.record.updates), self.measured.asnumpy()
        self._check_factors(measured, update)
        given = self.options.damping
        if isinstance(given, np.ndarray):
            check_length(given, update + 1, "damping")
            given = given[update]
        damping = np.float32(given)
        tables = [value.asnumpy() for value in self._refreshed()[3:]]
        traces, frozen, refreshes, retries = tables
        rule, due = self.options.trace_rule, []
        for i, layer in enumerate(self.layers):
            trace = layer.trace(measured[i, 0], measured[i, 1], float(damping))
            decision = "freeze" if frozen[i] else "refresh"
            if rule is not None and traces[i] > 0 and not frozen[i]:
                decision = rule.decide(trace, float(traces[i]))
            self.decisions[layer.layer_name] = decision
            frozen[i] = decision == "freeze"
            if decision == "refresh":
                traces[i] = trace
                refreshes[i] += 1
                due.append(i)
        retries += self.inverses.make(due, float(damping))
        return [Tensor(value) for value in (np.int32(update), np.int32(update), damping, *tables)]

    def _refreshed(self) -> list[Tensor]:
        return [Tensor(parameter.asnumpy().copy()) for parameter in self.refreshed]

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

    def _stop_at_nan(self, step: nn.Cell, batch: tuple, loss: Tensor) -> None:
        """Raise ``FloatingPointError``, on all ranks, if a loss is not finite: name the layer."""
        stage, value, said = step.gradient, float(loss.asnumpy()), ""
        finite = everywhere = math.isfinite(value)
        if not finite or (step.statistics and integer_of(step.dropped) > self._dropped):
            said = first_nonfinite(stage.loss_net, batch)
            # A gradient alone that is not finite, as of a large loss scale, stops nothing.
            finite = everywhere = finite and not said.startswith(STATISTICS)
        if stage.all_reduce is not None:
            everywhere = not stage.all_reduce(Tensor([not finite], ms.float32)).asnumpy().any()
        if everywhere:
            return
        update = integer_of(self.record.updates) + 1
        text = f"the loss is not finite on another rank at update {update}; what it raises says why"
        if not finite:
            text = f"the loss is {value} at update {update}: {said}"
            if not math.isfinite(value):
                damping = float(self.damping.asnumpy())
                text += f". Smaller learning rate or more damping (now {damping:.3g})?"
        raise FloatingPointError(text)

    def schedules(self) -> dict[str, Callable | np.ndarray]:
        damping = self.options.damping
        return {"damping": damping} if isinstance(damping, np.ndarray) else {}

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
    """One THOR update per batch: a ``PlainStep`` with a ``ThorUpdate``, which see.

    ``**options`` are those of ``ThorOptions`` and ``GradientOptions``. With accumulation:
    ``AccumulatedStep(loss_net, optimizer, 4, update=ThorUpdate(loss_net, optimizer, damping))``.

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
