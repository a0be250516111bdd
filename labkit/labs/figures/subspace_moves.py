"""Interactive figures of lab 05: a search in a valley, noisy steps, accuracy over components.

No MindSpore import: the valley is searched by the float64 twin of ``SubspaceStep``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from labkit.labs.figures import common as plots
from labkit.reference.subspace import ProjectedBFGS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Curvatures along the valley's floor and across it, and the angle of the floor.
CURVATURES, ANGLE = (0.1, 3.5), np.pi / 6
START = (-2.8, -0.7)
RATE = 0.4  # learning rate of gradient descent, which diverges from 2 / 3.5 on
UPDATES = 16
_SIDE = 3.4  # half the width of the picture


def hessian() -> np.ndarray:
    """Return the valley's matrix H (2, 2); its loss is w^T H w / 2, lowest at 0."""
    turned = np.array([[np.cos(ANGLE), -np.sin(ANGLE)], [np.sin(ANGLE), np.cos(ANGLE)]])
    return turned @ np.diag(CURVATURES) @ turned.T


@dataclass(frozen=True)
class Searched:
    """One update: its start, its trials and its end.

    Attributes:
        start: w (2,) before the update
        trials: (step size, place (2,), whether it was accepted) of each trial
        end: w (2,) after the update
    """

    start: np.ndarray
    trials: tuple[tuple[float, np.ndarray, bool], ...]
    end: np.ndarray


@cache
def searches(noise: float = 0.0, sigma: float = 0.4, updates: int = UPDATES) -> tuple:
    """Return a ``Searched`` for each update of projected BFGS in the valley, in the whole plane.

    Args:
        noise: deviation of a batch's minimum from the valley's, in each coordinate; an update's
            gradient and trials use the same batch, as in ``SubspaceStep``
        sigma: share of the predicted decrease that a trial must reach
        updates: number of updates
    """
    matrix, random = hessian(), np.random.default_rng(0)
    search, place = ProjectedBFGS(np.eye(2), sigma=sigma), np.array(START)
    done = []
    for _ in range(updates):
        low = noise * random.normal(size=2)
        tried: list[np.ndarray] = []

        def loss_of(w: np.ndarray, low: np.ndarray = low, tried: list = tried) -> float:
            tried.append(w)
            return float((w - low) @ matrix @ (w - low)) / 2

        start, place = place, search.update(place, matrix @ (place - low), loss_of)
        places = tried[1:]  # the first is the start, whose loss the trials are compared with
        trials = [
            (search.rho**m, w, bool(search.rate) and m == len(places) - 1)
            for m, w in enumerate(places)
        ]
        done.append(Searched(start, tuple(trials), place))
    return tuple(done)


@cache
def descents(noise: float = 0.0, updates: int = UPDATES, rate: float = RATE) -> np.ndarray:
    """Return places (updates + 1, 2) of gradient descent, with the same start and batches."""
    matrix, random, places = hessian(), np.random.default_rng(0), [np.array(START)]
    for _ in range(updates):
        low = noise * random.normal(size=2)
        places.append(places[-1] - rate * matrix @ (places[-1] - low))
    return np.array(places)


def loss_at(place: np.ndarray) -> float:
    """Return the valley's loss at a place (2,)."""
    return float(place @ hessian() @ place) / 2


def search(axis: Axes, update: float, noise: float, sigma: float) -> None:
    """Draw the valley, the paths up to an update, and BFGS's trials in that update.

    Args:
        axis: axis to draw on
        update: number of the update, from 1
        noise: noise of the batches, as in ``searches``
        sigma: as in ``searches``
    """
    number = int(update)
    done = searches(float(noise), float(sigma))[:number]
    now = done[-1]
    _valley(axis)
    plain = descents(float(noise))[: number + 1]
    axis.plot(*plain.T, ".-", color=plots.PURPLE, linewidth=1, markersize=4, label="gradient")
    way = np.array([search.start for search in done] + [now.end])
    axis.plot(*way.T, ".-", color=plots.BLUE, linewidth=1.2, markersize=5, label="BFGS")
    for accepted, color, label in ((False, plots.RED, "refused"), (True, plots.GREEN, "accepted")):
        places = [place for _, place, taken in now.trials if taken == accepted]
        if places:
            axis.plot(*np.transpose(places), "o", color=color, markersize=6, label=label)
    axis.plot([0], [0], "*", color="black", markersize=9)
    lengths = [size for size, _, taken in now.trials if taken]
    said = f"step {lengths[0]:.3f} of d" if lengths else "no step"
    axis.set_title(
        f"update {number}, noise {noise:g}, σ {sigma:g}; trials: {len(now.trials)}, {said}\n"
        f"loss {loss_at(now.end):.1e}; gradient descent {loss_at(plain[-1]):.1e}",
        fontsize=8,
    )
    axis.legend(frameon=False, fontsize=7, loc="lower right")


def noisy_walk(rate: float, batch: float, steps: int = 300) -> np.ndarray:
    """Return places (steps + 1, 2) of SGD in the valley, where a sample's minimum scatters by 1.

    Args:
        rate: the learning rate
        batch: samples per batch; the mean of ``batch`` minima scatters by 1 / sqrt(batch)
        steps: number of steps of SGD, which starts at (-1, 1)
    """
    matrix, random = hessian(), np.random.default_rng(3)
    places = [np.array([-1.0, 1.0])]
    for low in 1 / np.sqrt(batch) * random.normal(size=(steps, 2)):
        places.append(places[-1] - rate * matrix @ (places[-1] - low))
    return np.array(places)


def walk(axis: Axes, rate: float, batch: float) -> None:
    """Draw the second half of ``noisy_walk``, its end and its average."""
    places = noisy_walk(float(rate), float(batch))
    late = places[len(places) // 2 :]
    end, mean = late[-20:], late.mean(axis=0)
    _valley(axis)
    axis.plot(*late.T, ".", color=plots.ORANGE, markersize=3, label="weights after each step")
    axis.plot(*late[-1], "o", color=plots.RED, markersize=7, label="the last one")
    axis.plot(*mean, "D", color="black", markersize=6, label="their average")
    typical = np.mean([loss_at(place) for place in end])
    axis.set_title(
        f"rate {rate:g}, batch {batch:g}\nloss of the last 20: {typical:.1e}, "
        f"of the average: {loss_at(mean):.1e}",
        fontsize=8,
    )
    axis.legend(frameon=False, fontsize=7, loc="lower left")


def _valley(axis: Axes) -> None:
    grid = np.linspace(-_SIDE, _SIDE, 61)
    matrix = hessian()
    x, y = np.meshgrid(grid, grid)
    heights = (matrix[0, 0] * x**2 + 2 * matrix[0, 1] * x * y + matrix[1, 1] * y**2) / 2
    levels = np.geomspace(0.05, 12, 5)
    axis.contour(x, y, heights, levels=levels, colors="#BBBBBB", linewidths=0.7)
    axis.set(xlim=(-_SIDE, _SIDE), ylim=(-3.3, 2.2), xlabel="coordinate 1", ylabel="coordinate 2")
    axis.set_aspect("equal")
    axis.grid(False)


def components(
    axis: Axes,
    place: float,
    rows: Mapping[str, tuple[float, float]],
    digits: Sequence[tuple[np.ndarray, int, Mapping[str, int]]],
) -> None:
    """Draw test accuracy over the number of components, with one marked, and some digits.

    Args:
        axis: axis to draw on
        place: place of the marked row, from 0
        rows: number of components, or another name -> (training loss, test accuracy), in order
        digits: (image (32, 32), its label, row's name -> predicted digit)
    """
    names = list(rows)
    chosen = names[int(place)]
    right = [100 * rows[name][1] for name in names]
    axis.plot(right, ".-", color=plots.BLUE, markersize=6)
    axis.plot([int(place)], [right[int(place)]], "o", color=plots.ORANGE, markersize=10)
    axis.set_xticks(range(len(names)), names, fontsize=8)
    axis.set(xlabel="components", ylabel="test accuracy (%)")
    low, high = min(right), max(max(right), min(right) + 1)
    axis.set_ylim(low - 1.3 * (high - low), high + 0.15 * (high - low))
    axis.set_yticks([tick for tick in axis.get_yticks() if low - 0.1 <= tick <= high])
    loss, accuracy = rows[chosen]
    said = f"components: {chosen}; accuracy {accuracy:.2%}, training loss {loss:.3f}"
    axis.set_title(said, fontsize=8)
    width = 0.9 / max(len(digits), 1)
    for number, (image, label, predicted) in enumerate(digits):
        inset = axis.inset_axes((0.05 + number * width, 0.12, 0.8 * width, 0.3))
        inset.imshow(image, cmap="gray_r")
        inset.set(xticks=[], yticks=[])
        color = plots.GREEN if predicted[chosen] == label else plots.RED
        inset.set_title(str(predicted[chosen]), fontsize=9, color=color, pad=2)
