r"""THOR, update by update: which layers are refreshed, and how the weights change.

    U = (1 / T) (G + ..)^-1 dW (A + ..)^-1         for a layer with factors, else the gradient
    g = U + weight_decay w,   v <- momentum v + g,   w <- w - learning_rate v

The factors of a batch enter a running average; the inverses are those of the last refresh.
Source: Chen et al., "THOR, Trace-based Hardware-driven Layer-Oriented Natural Gradient Descent
Computation", AAAI 2021. Without a trace rule every layer is refreshed at every refresh.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from labkit.base.arguments import choice, integer, wrong
from labkit.errors import InputError
from labkit.reference.convolution import Window, patches, same_padding
from labkit.reference.kronecker import (
    Positions,
    gradient_matrix,
    kronecker_factors,
    thor_direction,
    weight_and_bias,
)

Arrays = list[np.ndarray]
Parameters = dict[str, np.ndarray]
ByUpdate = float | Sequence[float] | Callable[[int], float]


@dataclass(frozen=True)
class TraceRule:
    """Refresh if the change is above ``refresh``, freeze for good below ``freeze``, else skip."""

    refresh: float = 0.01
    freeze: float = 0.001

    def __post_init__(self) -> None:
        if not self.refresh >= self.freeze >= 0:
            given = (self.refresh, self.freeze)
            raise wrong("refresh, freeze", given, "refresh >= freeze >= 0")

    def decide(self, trace: float, last: float) -> str:
        """Return "refresh", "skip" or "freeze" by |trace - last| / last, of tr(F + damping I)."""
        change = abs(trace - last) / last
        if math.isnan(change) or change > self.refresh:
            return "refresh"
        return "freeze" if change < self.freeze else "skip"


def running_average(old: np.ndarray | None, new: np.ndarray, decay: float) -> np.ndarray:
    """Return decay old + (1 - decay) new, or ``new`` if ``old`` is None."""
    return new if old is None else decay * old + (1 - decay) * new


def trace_of_fisher(
    a_factor: np.ndarray, g_factor: np.ndarray, positions: Positions, damping: float
) -> float:
    """Return tr(T G (x) A + damping I) = sum over groups of T tr A tr G + damping dim A dim G.

    If ``positions`` is a pair, as in upstream's factors, T is that of A.
    """
    count = positions[0] if isinstance(positions, tuple) else positions
    trace = 0.0
    for a, g in zip(a_factor, g_factor, strict=True):
        trace += count * np.trace(a) * np.trace(g) + damping * len(a) * len(g)
    return float(trace)


def kl_clip_factor(
    directions: Iterable[np.ndarray],
    gradients: Iterable[np.ndarray],
    learning_rate: float,
    kl_clip: float,
) -> float:
    """Return min(1, sqrt(kl_clip / sum |lr^2 <U, grad>|)) over all layers with factors."""
    moved = sum(
        abs(learning_rate**2 * np.sum(u * g)) for u, g in zip(directions, gradients, strict=True)
    )
    return 1.0 if moved <= kl_clip else math.sqrt(kl_clip / moved)


def momentum_update(
    parameters: Arrays,
    velocities: Arrays,
    gradients: Arrays,
    learning_rate: float = 0.01,
    momentum: float = 0.9,
) -> tuple[Arrays, Arrays]:
    """Return (parameters, velocities) after v <- momentum v + g, w <- w - learning_rate v."""
    velocities = [momentum * v + g for v, g in zip(velocities, gradients, strict=True)]
    parameters = [w - learning_rate * v for w, v in zip(parameters, velocities, strict=True)]
    return parameters, velocities


@dataclass(frozen=True)
class Layer:
    """Inputs and derivatives of a layer with factors in one batch.

    Attributes:
        name: its parameters are ``name.weight`` and, if it has a bias, ``name.bias``.
        inputs: (N, ..., in), or (N, C, H, W) for a convolution.
        derivatives: dL/dy, L the mean loss: (N, ..., out) or (N, O, H', W').
        window: that of a convolution, None for a fully connected layer.
    """

    name: str
    inputs: np.ndarray
    derivatives: np.ndarray
    window: Window | None = None

    def factors(
        self, *, homogeneous: bool, formulas: str = "thor"
    ) -> tuple[np.ndarray, np.ndarray, Positions]:
        """Return (A, G, positions) by THOR's formulas or by those of MindSpore's GPU branch."""
        choice("formulas", formulas, ("thor", "upstream_gpu"))
        if formulas == "upstream_gpu":
            return upstream_factors(self.inputs, self.derivatives, self.window)
        if self.window is None:
            return kronecker_factors(self.inputs, self.derivatives, homogeneous=homogeneous)
        columns = patches(self.inputs, **vars(self.window))
        return kronecker_factors(
            columns, self.derivatives, homogeneous=homogeneous, layout="patches"
        )


@dataclass
class Thor:
    """Whole updates: ``parameters = thor.update(parameters, gradients, layers)``.

    The fields are the options of ``labkit.algorithms.thor.ThorUpdate``. ``learning_rate`` and
    ``damping`` are a number, a sequence with one entry per update, or a function of the update's
    number; ``weight_decay`` is a number, or a dict by parameter name (0 for missing names).

    Attributes:
        updates: number of updates made so far.
        factors: name -> (A, G, positions), the running averages.
        refreshed: name -> (A, G, positions, damping) from which the inverses were last made.
        frozen: names that the trace rule has frozen.
        decisions: name -> decision at the last refresh.
        velocities: name -> velocity of the momentum.
    """

    learning_rate: ByUpdate
    damping: ByUpdate
    momentum: float = 0.9
    weight_decay: float | dict[str, float] = 0.0
    frequency: int = 100
    split: int | None = 128
    bias: str = "homogeneous"
    factor_decay: float = 0.0
    damping_split: str = "equal"
    trace_rule: TraceRule | None = None
    kl_clip: float | None = None
    formulas: str = "thor"
    updates: int = 0
    factors: dict = field(default_factory=dict)
    refreshed: dict = field(default_factory=dict)
    frozen: set = field(default_factory=set)
    decisions: dict = field(default_factory=dict)
    velocities: Parameters = field(default_factory=dict)

    def __post_init__(self) -> None:
        choice("bias", self.bias, ("homogeneous", "plain"))
        choice("formulas", self.formulas, ("thor", "upstream_gpu"))
        if self.formulas == "upstream_gpu" and self.bias != "plain":
            raise InputError("formulas 'upstream_gpu' have no homogeneous bias; expected 'plain'")
        integer("frequency", self.frequency)

    def update(
        self, parameters: Parameters, gradients: Parameters, layers: Sequence[Layer]
    ) -> Parameters:
        """Return the new parameters; ``layers`` has a ``Layer`` for each layer with factors."""
        if self.updates % self.frequency == 0:
            self._observe(parameters, layers)
            self._refresh(_at(self.damping, self.updates))
        directions = self.directions(gradients, layers)
        rate = _at(self.learning_rate, self.updates)
        self.updates += 1
        return self._optimizer(parameters, directions, rate)

    def directions(self, gradients: Parameters, layers: Sequence[Layer]) -> Parameters:
        """Return U by parameter name, or the gradient itself for layers without factors."""
        before, after = {}, {}
        for layer in layers:
            weight, bias, groups = self._parts(layer, gradients)
            before[layer.name] = gradient_matrix(weight, bias, groups)
            a_factor, g_factor, positions, damping = self.refreshed[layer.name]
            after[layer.name] = thor_direction(
                *(a_factor, g_factor, positions, before[layer.name], damping),
                split=self.split,
                damping_split=self.damping_split,
            )
        rate, factor = _at(self.learning_rate, self.updates), 1.0
        if self.kl_clip is not None:
            factor = kl_clip_factor(after.values(), before.values(), rate, self.kl_clip)
        made = dict(gradients)
        for layer in layers:
            weight, bias, _ = self._parts(layer, gradients)
            matrix = factor * after[layer.name]
            weight, bias = weight_and_bias(matrix, weight.shape, bias is not None)
            made[f"{layer.name}.weight"] = weight
            if bias is not None:
                made[f"{layer.name}.bias"] = bias
        return made

    def _parts(self, layer: Layer, values: Parameters) -> tuple[np.ndarray, np.ndarray | None, int]:
        """Return (weight, bias if it is homogeneous or else None, groups)."""
        bias = values.get(f"{layer.name}.bias") if self.bias == "homogeneous" else None
        return values[f"{layer.name}.weight"], bias, layer.window.groups if layer.window else 1

    def _observe(self, parameters: Parameters, layers: Sequence[Layer]) -> None:
        for layer in layers:
            homogeneous = self._parts(layer, parameters)[1] is not None
            a, g, positions = layer.factors(homogeneous=homogeneous, formulas=self.formulas)
            old_a, old_g, _ = self.factors.get(layer.name, (None, None, None))
            a = running_average(old_a, a, self.factor_decay)
            g = running_average(old_g, g, self.factor_decay)
            self.factors[layer.name] = (a, g, positions)

    def _refresh(self, damping: float) -> None:
        for name, (a, g, positions) in self.factors.items():
            decision = self._decide(name, a, g, positions, damping)
            self.decisions[name] = decision
            if decision == "freeze":
                self.frozen.add(name)
            if decision == "refresh":
                self.refreshed[name] = (a, g, positions, damping)

    def _decide(
        self, name: str, a: np.ndarray, g: np.ndarray, positions: Positions, damping: float
    ) -> str:
        if self.trace_rule is None or name not in self.refreshed:
            return "refresh"
        if name in self.frozen:
            return "freeze"
        now = trace_of_fisher(a, g, positions, damping)
        return self.trace_rule.decide(now, trace_of_fisher(*self.refreshed[name]))

    def _optimizer(self, parameters: Parameters, directions: Parameters, rate: float) -> Parameters:
        names = list(parameters)
        decays = self.weight_decay
        if not isinstance(decays, dict):
            decays = dict.fromkeys(names, decays)
        slopes = [directions[n] + decays.get(n, 0.0) * parameters[n] for n in names]
        velocities = [self.velocities.get(n, np.zeros_like(parameters[n])) for n in names]
        values = [np.asarray(parameters[n], dtype=np.float64) for n in names]
        values, velocities = momentum_update(values, velocities, slopes, rate, self.momentum)
        self.velocities = dict(zip(names, velocities, strict=True))
        return dict(zip(names, values, strict=True))


def upstream_factors(
    inputs: np.ndarray, derivatives: np.ndarray, window: Window | None
) -> tuple[np.ndarray, np.ndarray, Positions]:
    """Return (A (1, in, in), G (1, out, out), (T of A, T of G)) as MindSpore's THOR makes them.

    They follow nn/layer/thor_layer.py (DenseThor, Conv2dThor) and nn/optim/thor.py (ThorGpu) of
    MindSpore 2.10.0, and differ from ``kronecker_factors`` in three places:

        dense        A = sum x x^T / in, for a batch of N rows: N / in times too large
        convolution  patches and derivatives are averaged over the batch before the outer product:
                     A = mean(p) mean(p)^T summed over positions / T_a, of rank <= T_a
        convolution  patches are those of pad_mode "same", however the layer pads, so there are T_a
                     positions but T_g derivatives. The damping is sqrt(damping / T_a) and
                     sqrt(damping / T_g); the update is divided by T_a

    Upstream's G of a dense layer is correct. Upstream gives a bias no curvature.

    Args:
        inputs: (N, in), or (N, C, H, W) with a ``window``.
        derivatives: dL/dy of the mean loss, (N, out) or (N, O, H', W').
        window: that of a convolution, None for a fully connected layer.
    """
    if window is None:
        if np.ndim(inputs) != 2:
            raise InputError(
                f"inputs: expected shape (N, in), upstream's only, got {np.shape(inputs)}"
            )
        a_factor, g_factor, _ = kronecker_factors(inputs, derivatives, homogeneous=False)
        return a_factor * len(inputs) / inputs.shape[1], g_factor, (1, 1)
    if window.groups != 1:
        raise InputError(f"groups: expected 1, upstream's only, got {window.groups}")
    rows, outputs = derivatives.shape[:2]
    height, width = inputs.shape[2:]
    around = same_padding((height, width), window.kernel, window.stride)
    columns = patches(inputs, window.kernel, window.stride, around)[:, 0].mean(axis=0)
    slopes = derivatives.reshape(rows, outputs, -1).mean(axis=0)
    a_factor = columns @ columns.T / columns.shape[1]
    g_factor = rows**2 * slopes @ slopes.T / slopes.shape[1]
    return a_factor[None], g_factor[None], (columns.shape[1], slopes.shape[1])


def _at(value: ByUpdate, update: int) -> float:
    """Return a number, a sequence's entry for the update, or a function's value at it."""
    if callable(value):
        return float(value(update))
    values = np.asarray(value)
    if values.ndim == 0:
        return float(values)
    if update >= len(values):
        raise InputError(f"{len(values)} values, none for update {update}; expected one an update")
    return float(values[update])
