r"""THOR, update by update: which layers are refreshed, and how the weights change.

    U = (1 / T) (G + ..)^-1 dW (A + ..)^-1         for a layer with factors, else the gradient
    g = U + weight_decay w,   v <- momentum v + g,   w <- w - learning_rate v

The factors of a batch enter a running average; the inverses are those of the last refresh.
Source: Chen et al., "THOR, Trace-based Hardware-driven Layer-Oriented Natural Gradient Descent
Computation", AAAI 2021.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labkit.base.arguments import choice
from labkit.reference.convolution import Window, patches, same_padding
from labkit.reference.kronecker import (
    gradient_matrix,
    kronecker_factors,
    thor_direction,
    weight_and_bias,
)

Arrays = list[np.ndarray]
Parameters = dict[str, np.ndarray]


@dataclass(frozen=True)
class TraceRule:
    """Refresh if the change is above ``refresh``, freeze for good below ``freeze``, else skip."""

    refresh: float = 0.01
    freeze: float = 0.001

    def decide(self, trace: float, last: float) -> str:
        """Return "refresh", "skip" or "freeze" by |trace - last| / last, of tr(F + damping I)."""
        change = abs(trace - last) / last
        if math.isnan(change) or change > self.refresh:
            return "refresh"
        return "freeze" if change < self.freeze else "skip"


def running_average(old: np.ndarray | None, new: np.ndarray, decay: float) -> np.ndarray:
    """Return decay old + (1 - decay) new, or ``new`` if ``old`` is None."""
    return new if old is None else decay * old + (1 - decay) * new


def trace_of_fisher(a_factor: np.ndarray, g_factor: np.ndarray, t: int, damping: float) -> float:
    """Return tr(T G (x) A + damping I) = sum over groups of T tr A tr G + damping dim A dim G."""
    pairs = zip(a_factor, g_factor, strict=True)
    return float(sum(t * np.trace(a) * np.trace(g) + damping * len(a) * len(g) for a, g in pairs))


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
    """Inputs and derivatives of a layer with factors, ``name.weight`` and ``.bias``, in a batch."""

    name: str
    inputs: np.ndarray  # (N, ..., in), or (N, C, H, W) for a convolution
    derivatives: np.ndarray  # dL/dy, L the mean loss: (N, ..., out) or (N, O, H', W')
    window: Window | None = None  # that of a convolution
    terms: float | None = None  # how many L is a mean over, such as tokens; None: the N rows

    def factors(
        self, *, homogeneous: bool, formulas: str = "thor"
    ) -> tuple[np.ndarray, np.ndarray, Any]:
        """Return (A, G, positions) by THOR's formulas or by those of MindSpore's GPU branch.

        These ("upstream_gpu") are of DenseThor, Conv2dThor and ThorGpu of 2.10.0, without the bias;
        positions are then (T of A, T of G), and ``labkit.algorithms.thor.layers`` says more.
        """
        choice("formulas", formulas, ("thor", "upstream_gpu"))
        if self.window is None:
            both = self.inputs, self.derivatives
            if formulas == "thor":
                return kronecker_factors(*both, homogeneous=homogeneous, terms=self.terms)
            a, g, _ = kronecker_factors(*both, homogeneous=False)
            return a * len(self.inputs) / self.inputs.shape[1], g, (1, 1)
        if formulas == "thor":
            both = patches(self.inputs, self.window), self.derivatives
            return kronecker_factors(
                *both, homogeneous=homogeneous, layout="patches", terms=self.terms
            )
        rows, outputs = self.derivatives.shape[:2]
        height, width = self.inputs.shape[2:]
        kernel, stride = self.window.kernel, self.window.stride
        around = same_padding((height, width), kernel, stride)
        columns = patches(self.inputs, Window(kernel, stride, around))[:, 0].mean(axis=0)
        slopes = self.derivatives.reshape(rows, outputs, -1).mean(axis=0)
        a = columns @ columns.T / columns.shape[1]
        g = rows**2 * slopes @ slopes.T / slopes.shape[1]
        return a[None], g[None], (columns.shape[1], slopes.shape[1])


@dataclass
class Thor:
    """Whole updates: ``parameters = thor.update(parameters, gradients, layers)``.

    The options are those of ``labkit.algorithms.thor.ThorOptions``; ``learning_rate`` and
    ``damping`` may have one entry per update, ``weight_decay`` one per parameter name.
    """

    learning_rate: float | Sequence[float]
    damping: float | Sequence[float]
    momentum: float = 0.9
    weight_decay: float | dict[str, float] = 0.0
    frequency: int = 100
    split: int | None = 128
    bias: str = "homogeneous"
    factor_decay: float = 0.0
    damping_split: str = "equal"
    trace_rule: TraceRule | None = None
    kl_clip: float | None = None
    updates: int = 0  # made so far
    factors: dict = field(default_factory=dict)  # name -> (A, G, positions), running averages
    # name -> (A, G, positions, damping) from which the inverses were last made
    refreshed: dict = field(default_factory=dict)
    decisions: dict = field(default_factory=dict)  # name -> decision at the last refresh
    velocities: Parameters = field(default_factory=dict)

    def update(
        self, parameters: Parameters, gradients: Parameters, layers: Sequence[Layer]
    ) -> Parameters:
        """Return the new parameters; ``layers`` has a ``Layer`` for each layer with factors."""
        if self.updates % self.frequency == 0:
            self._refresh(layers, parameters)
        made, decays = self.directions(gradients, layers), self.weight_decay
        if not isinstance(decays, dict):
            decays = dict.fromkeys(parameters, decays)
        rate, new = _at(self.learning_rate, self.updates), {}
        for name, value in parameters.items():
            slope = made[name] + decays.get(name, 0.0) * value
            velocity = self.velocities.get(name, np.zeros_like(slope))
            moved = momentum_update([value], [velocity], [slope], rate, self.momentum)
            (new[name],), (self.velocities[name],) = moved
        self.updates += 1
        return new

    def directions(self, gradients: Parameters, layers: Sequence[Layer]) -> Parameters:
        """Return U by parameter name, or the gradient itself for layers without factors."""
        made: Parameters = {}
        rate, moved = _at(self.learning_rate, self.updates), 0.0
        for layer in layers:
            weight, bias = self._parts(layer, gradients)
            matrix = gradient_matrix(weight, bias, layer.window.groups if layer.window else 1)
            a, g, positions, damping = self.refreshed[layer.name]
            options: Any = {"split": self.split, "damping_split": self.damping_split}
            u = thor_direction(a, g, positions, matrix, damping, **options)
            moved += abs(rate**2 * np.sum(u * matrix))
            weight, bias = weight_and_bias(u, weight.shape, bias is not None)
            made[f"{layer.name}.weight"] = weight
            if bias is not None:
                made[f"{layer.name}.bias"] = bias
        factor = 1.0
        if self.kl_clip is not None:  # min(1, sqrt(kl_clip / sum |rate^2 <U, grad>|))
            factor = math.sqrt(self.kl_clip / max(moved, self.kl_clip))
        return gradients | {name: factor * u for name, u in made.items()}

    def _parts(self, layer: Layer, values: Parameters) -> tuple[np.ndarray, np.ndarray | None]:
        """Return a layer's weight, and its bias if that is homogeneous."""
        homogeneous = {"homogeneous": True, "plain": False}[self.bias]
        bias = values.get(f"{layer.name}.bias") if homogeneous else None
        return values[f"{layer.name}.weight"], bias

    def _refresh(self, layers: Sequence[Layer], parameters: Parameters) -> None:
        damping = _at(self.damping, self.updates)
        for layer in layers:
            name, homogeneous = layer.name, self._parts(layer, parameters)[1] is not None
            a, g, positions = layer.factors(homogeneous=homogeneous)
            old_a, old_g, _ = self.factors.get(name, (None, None, None))
            a = running_average(old_a, a, self.factor_decay)
            g = running_average(old_g, g, self.factor_decay)
            self.factors[name] = (a, g, positions)
            decision = "refresh"
            if self.decisions.get(name) == "freeze":
                decision = "freeze"
            elif self.trace_rule is not None and name in self.refreshed:
                now = trace_of_fisher(a, g, positions, damping)
                decision = self.trace_rule.decide(now, trace_of_fisher(*self.refreshed[name]))
            self.decisions[name] = decision
            if decision == "refresh":
                self.refreshed[name] = (a, g, positions, damping)


def _at(values: float | Sequence[float], update: int) -> float:
    return float(values if np.ndim(values) == 0 else values[update])  # type: ignore[arg-type,index]
