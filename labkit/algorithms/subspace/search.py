"""The direction and length of a step, decided in float64 between the compiled graphs."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from labkit.base.arguments import choice, integer, number

# A longer direction is rejected: its squares leave the range of float32.
_LONGEST = 1e18


@dataclass(frozen=True)
class Constants:
    """Constants of the search and of the residual.

    Attributes:
        rho: factor between the step sizes of consecutive trials, 0 < rho < 1.
        sigma: share of the predicted decrease that the loss must show, 0 < sigma < 1.
        trials: maximum number of trials of a search, an integer >= 1.
        gamma: momentum of the residual, 0 <= gamma < 1.
        alpha: factor of the residual, >= 0; 0 leaves the optimizer only its weight decay.
        curvature: a pair enters B only if y.s > curvature |y| |s|, 0 <= curvature < 1.
        failure: what a failed search does: ``reset`` discards B and the pair; ``rollback`` keeps
            both as before the update.

    Raises:
        InputError: if a value is invalid.
    """

    rho: float = 0.55
    sigma: float = 0.4
    trials: int = 20
    gamma: float = 0.9
    alpha: float = 0.001
    curvature: float = 1e-8
    failure: Literal["reset", "rollback"] = "reset"

    def __post_init__(self) -> None:
        choice("failure", self.failure, ("reset", "rollback"))
        for name in ("rho", "sigma"):
            number(name, getattr(self, name), above=0, below=1)
        for name in ("gamma", "curvature"):
            number(name, getattr(self, name), at_least=0, below=1)
        number("alpha", self.alpha, at_least=0)
        integer("trials", self.trials)


CONSTANT_NAMES = tuple(field.name for field in fields(Constants))


@dataclass(frozen=True)
class LastSearch:
    """The search of the most recent update: its ``trials``, and whether one was ``accepted``.

    ``step_size`` is rho^m of that trial, 0.0 if the search failed and took no step in the subspace;
    ``failures`` counts the failed searches so far.
    """

    trials: int
    accepted: bool
    step_size: float
    failures: int


@dataclass(frozen=True)
class Memory:
    """What a search remembers: B (K, K), and the last update's P g (K,) and step s (K,), if any.

    All are float32, as a checkpoint holds them; what is computed from them is float64.
    """

    inverse: np.ndarray
    gradient: np.ndarray
    step: np.ndarray
    has_pair: bool

    @classmethod
    def empty(cls, components: int) -> "Memory":
        """Return the memory before the first search: B = I, no pair."""
        zeros = np.zeros(components, np.float32)
        return cls(np.eye(components, dtype=np.float32), zeros, zeros, False)


def updated_inverse(memory: Memory, gradient: np.ndarray, constants: Constants) -> np.ndarray:
    """Return B (K, K) after the pair that ``gradient`` = P g (K,) completes, float64."""
    inverse = memory.inverse.astype(np.float64)
    if not memory.has_pair:
        return inverse
    s = memory.step.astype(np.float64)
    y: np.ndarray = gradient - memory.gradient.astype(np.float64)
    product = y @ s
    if not product > constants.curvature * np.linalg.norm(y) * np.linalg.norm(s):
        return inverse
    left = np.eye(len(s)) - np.outer(s, y) / product
    return left @ inverse @ left.T + np.outer(s, s) / product


def descent(inverse: np.ndarray, gradient: np.ndarray) -> tuple[np.ndarray, float]:
    """Return (d, g_k.d) for d = -B g_k, float32 (K,); (zeros, 0.0) if d does not descend."""
    direction = (-inverse @ gradient).astype(np.float32)
    slope = float(gradient @ direction.astype(np.float64))
    if slope < 0 and np.linalg.norm(direction.astype(np.float64)) < _LONGEST:
        return direction, slope
    return np.zeros_like(direction), 0.0


def line_search(
    loss_at: Callable[[float], float], loss: float, slope: float, constants: Constants
) -> tuple[int, float]:
    """Return (trials made, step size): the first rho^m that lowers the loss enough, or 0.0.

    ``loss_at`` is step size -> loss at w + step size P^T d, ``loss`` that at w, ``slope`` g_k.d; if
    that is not < 0 there is nothing to search.
    """
    if not slope < 0:
        return 0, 0.0
    for m in range(constants.trials):
        size = float(np.float32(constants.rho**m))
        # A loss that is not finite is not low enough.
        if loss_at(size) < loss + constants.sigma * size * slope:
            return m + 1, size
    return constants.trials, 0.0


def after_search(
    memory: Memory,
    inverse: np.ndarray,
    gradient: np.ndarray,
    direction: np.ndarray,
    size: float,
    failure: str,
) -> Memory:
    """Return the memory after a search with step size ``size``, 0.0 if it failed."""
    if size:
        float32 = (inverse.astype(np.float32), gradient.astype(np.float32))
        return Memory(*float32, np.float32(size) * direction, True)
    return Memory.empty(len(direction)) if failure == "reset" else memory
