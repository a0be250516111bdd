"""Figures of lab 05, and its interactive pictures, which are given an axis. No MindSpore import.

The pictures' valley is w^T H w / 2, lowest at 0; it is searched by the float64 twin of
``SubspaceStep``.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.labs.figures import common as plots
from labkit.reference.subspace import ProjectedBFGS

# The end of stage one and what may follow it: name in figures and colour.
METHODS = {
    "stage_one": ("end of stage one", plots.GREY),
    "same_rate": ("same rate", plots.RED),
    "tenth": ("a tenth of the rate", plots.ORANGE),
    "to_zero": ("rate down to 0", plots.GREEN),
    "large_batch": ("large batch", plots.PURPLE),
    "average": ("average of snapshots", "black"),
    "projected_bfgs": ("projected BFGS", plots.BLUE),
    "projected_sgd": ("projected SGD", plots.SKY),
}
_ERRORS = (100.0, 50.0, 20.0, 10.0, 7.0, 5.0, 4.0, 3.0, 2.5, 2.0, 1.0)


def spectrum(shares: Mapping[str, np.ndarray], title: str) -> Figure:
    """Share of the variance along each component, in per cent; ``shares`` is label -> (K,)."""
    figure, axis = plots.axes(width=6.4, height=3.6)
    for (label, values), color, mark in zip(shares.items(), plots.PALETTE, cycle("oxs^")):
        style = {"color": color, "markersize": 4, "linewidth": 1, "label": label}
        axis.plot(np.arange(1, len(values) + 1), 100 * values, mark + "-", **style)
    axis.set(xscale="log", yscale="log", xlabel="component", title=title)
    axis.set_ylabel("share of the variance (%)")
    longest = max(map(len, shares.values()))
    plots.label_ticks(axis, [tick for tick in (1, 2, 4, 8, 16, 32, 64) if tick <= longest], "x")
    plots.label_ticks(axis, (0.01, 0.1, 1, 10, 100))
    axis.legend(frameon=False)
    return figure


def path(
    losses: np.ndarray, grid: Sequence[np.ndarray], points: np.ndarray, marks: Mapping[str, Any]
) -> Figure:
    """The path of stage one over the loss in the plane of two components.

    ``losses`` (B, A), in nats, are on a grid with the coordinates (A,) and (B,); ``points`` (N, 2)
    are the path's, in order; ``marks`` is label -> (2,).
    """
    figure, axis = plots.axes(width=7.2, height=4.4)
    levels = np.geomspace(losses.min(), losses.max(), 22)
    drawn = axis.contourf(*grid, losses, levels=levels, cmap="Greys_r", norm="log")
    axis.plot(*points.T, ".-", label="snapshots", color=plots.BLUE, linewidth=1, markersize=5)
    kinds = (("o", plots.ORANGE), ("D", plots.RED))
    style = {"markersize": 9, "markeredgecolor": "white"}
    for (label, place), (mark, color) in zip(marks.items(), kinds, strict=True):
        axis.plot(*place, mark, color=color, label=label, **style)
    axis.set(xlabel="first component (length)", ylabel="second component (length)")
    axis.set_title("Stage one, from above")
    axis.grid(False)
    nice = np.sort(np.outer((1, 2, 5), 10.0 ** np.arange(-6, 4)).ravel())
    bar = figure.colorbar(drawn, ax=axis, label="training loss (nats)")
    plots.label_ticks(bar.ax, nice[(nice >= losses.min()) & (nice <= losses.max())])
    figure.legend(frameon=False, loc="outside lower center", ncols=3, fontsize=9)
    return figure


def line_search(
    rates: np.ndarray, losses: Sequence, slope: float, sigma: float, trials: Sequence, title: str
) -> Figure:
    """The loss along a direction, the bound of the search, and the lengths that it tries.

    ``losses``, in nats, are at the lengths ``rates``, which begin at 0, where the loss falls by
    ``slope``; the search requires its share ``sigma``. A trial is (length, loss, whether taken).
    """
    figure, axis = plots.axes(width=6.4, height=3.6)
    axis.plot(rates, losses, color=plots.BLUE, label="loss")
    axis.plot(rates, losses[0] + slope * rates, ":", color="grey", label="slope at 0")
    bound = {"color": plots.ORANGE, "label": f"bound, {sigma:g} of the slope"}
    axis.plot(rates, losses[0] + sigma * (slope * rates), "--", **bound)
    _tried(axis, trials)
    low, high = min(losses), max(losses)
    axis.set_ylim(low - 0.15 * (high - low), high + 0.05 * (high - low))
    axis.set(xlabel="length of the step, in units of d", ylabel="loss (nats)", title=title)
    axis.legend(frameon=False, fontsize=9)
    return figure


def _tried(axis: Axes, trials: Sequence[tuple[float, float, bool]]) -> None:
    """Draw trials, (x, y, whether taken)."""
    for accepted, color, label in ((False, plots.RED, "refused"), (True, plots.GREEN, "accepted")):
        places = [(x, y) for x, y, taken in trials if taken == accepted]
        if places:
            axis.plot(*zip(*places, strict=True), "o", color=color, markersize=6, label=label)


def race(curves: Mapping[str, tuple], start: float, average: float, title: str) -> Figure:
    """Test error after stage one, which ends at accuracy ``start``, over epochs of stage two.

    ``curves`` is method -> (epochs, accuracies), ``average`` the accuracy of the snapshots' mean.
    """
    figure, axis = plots.axes(width=7.2, height=3.8)
    for method, (epochs, right) in curves.items():
        label, color = METHODS[method]
        style = {"marker": "s" if "projected" in method else "o", "markersize": 4}
        axis.plot([0, *epochs], plots.errors([start, *right]), color=color, label=label, **style)
    label, color = METHODS["average"]
    axis.axhline(100 - 100 * average, linestyle="--", color=color, label=label, linewidth=1.2)
    return plots.error_figure(figure, _ERRORS, "epochs of stage two", title)


def by_method(panels: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """Test error of each method: a dot for each seed, a bar for their mean, two panels a row.

    ``panels`` is title -> {method: accuracies by seed}, of the same methods.
    """
    methods = list(next(iter(panels.values())))
    figure, grid = plots.axes(-(-len(panels) // 2), 2, width=3.6, height=0.3 * len(methods) + 1.1)
    for axis, (title, accuracies) in zip(figure.axes, panels.items(), strict=True):
        for place, method in enumerate(methods):
            color, errors = METHODS[method][1], plots.errors(accuracies[method])
            axis.plot(errors, [place] * errors.size, "o", color=color, markersize=4, alpha=0.6)
            axis.plot([errors.mean()] * 2, [place - 0.3, place + 0.3], color=color, linewidth=2.5)
        names = [METHODS[method][0] if axis in grid[..., 0] else "" for method in methods]
        axis.set_yticks(range(len(methods)), names, fontsize=9)
        axis.set(xlabel="test error (%)", ylim=(len(methods) - 0.5, -0.5))
        axis.set_title(title, fontsize=10)  # at 12 "batch 32, 30% random labels" is too wide
    return figure


def swept(panels: Mapping[str, Mapping[float, Sequence[float]]]) -> Figure:
    """Test error over settings: panels of name -> {value: accuracies by seed}, with their mean."""
    figure, drawn = plots.side_by_side(panels, width=4.0)
    for axis, name, by_value in drawn:
        errors = {value: plots.errors(right) for value, right in by_value.items()}
        plots.mean_and_seeds(axis, errors, plots.BLUE, "mean", marker="o", markersize=4, alpha=0.6)
        axis.set(xscale="log", xlabel=name, ylabel="test error (%)", title=f"by {name}")
        plots.label_ticks(axis, sorted(by_value), "x")
    return figure


# Interactive pictures.

_TURN = np.pi / 6  # angle of the valley's floor
_AXES = np.array([[np.cos(_TURN), -np.sin(_TURN)], [np.sin(_TURN), np.cos(_TURN)]])
HESSIAN = _AXES @ np.diag((0.1, 3.5)) @ _AXES.T  # curvatures along the floor and across it
START = (-2.8, -0.7)
RATE = 0.4  # learning rate of gradient descent, which diverges from 2 / 3.5 on
_SIDE = 3.4  # half the width of the picture


class Searched(NamedTuple):
    """An update's ``start`` and ``end`` (2,), and (step size, place (2,), taken) of each trial.

    ``plain`` (2,) is where gradient descent arrives in the same update, with the same batches.
    """

    start: np.ndarray
    trials: list[tuple[float, np.ndarray, bool]]
    end: np.ndarray
    plain: np.ndarray


def loss_at(place: np.ndarray) -> float:
    """Return the valley's loss at a place (2,)."""
    return float(place @ HESSIAN @ place) / 2


@cache
def searches(noise: float = 0.0, sigma: float = 0.4) -> list[Searched]:
    """Return 16 updates of projected BFGS in the valley, in the whole plane.

    Args:
        noise: deviation of a batch's minimum from the valley's, in each coordinate; an update's
            gradient and trials use the same batch, as in ``SubspaceStep``
        sigma: share of the predicted decrease that a trial must reach
    """
    search, end, plain, done = ProjectedBFGS(np.eye(2), sigma=sigma), np.array(START), START, []
    for low in noise * np.random.default_rng(0).normal(size=(16, 2)):
        tried: list[np.ndarray] = []

        def loss_of(w: np.ndarray, low: np.ndarray = low, tried: list = tried) -> float:
            tried.append(w)
            return loss_at(w - low)

        start, end = end, search.update(end, HESSIAN @ (end - low), loss_of)
        plain = plain - RATE * HESSIAN @ (plain - low)
        trials = [(search.rho**m, place, False) for m, place in enumerate(tried[1:])]
        if search.rate:
            trials[-1] = (*trials[-1][:2], True)
        done.append(Searched(start, trials, end, plain))
    return done


def search(axis: Axes, update: float, noise: float, sigma: float) -> None:
    """Draw the valley, the paths up to an update, from 1, and BFGS's trials in that update."""
    done = searches(float(noise), float(sigma))[: int(update)]
    now = done[-1]
    plain = np.array([START] + [each.plain for each in done])
    axis.plot(*plain.T, ".-", color=plots.PURPLE, linewidth=1, markersize=4, label="gradient")
    way = np.array([each.start for each in done] + [now.end])
    axis.plot(*way.T, ".-", color=plots.BLUE, linewidth=1.2, markersize=5, label="BFGS")
    _tried(axis, [(*place, taken) for _, place, taken in now.trials])
    axis.plot([0], [0], "*", color="black", markersize=9)
    lengths = [size for size, _, taken in now.trials if taken]
    said = f"step {lengths[0]:.3f} of d" if lengths else "no step"
    title = f"update {update:g}, noise {noise:g}, σ {sigma:g}; trials: {len(now.trials)}, {said}\n"
    title += f"loss {loss_at(now.end):.1e}; gradient descent {loss_at(now.plain):.1e}"
    _valley(axis, title, "lower right")


def noisy_walk(rate: float, batch: float) -> np.ndarray:
    """Return places (301, 2) of SGD from (-1, 1), where a sample's minimum scatters by 1.

    The mean of ``batch`` minima scatters by 1 / sqrt(batch).
    """
    places = [np.array((-1.0, 1.0))]
    for low in 1 / np.sqrt(batch) * np.random.default_rng(3).normal(size=(300, 2)):
        places.append(places[-1] - rate * HESSIAN @ (places[-1] - low))
    return np.array(places)


def walk(axis: Axes, rate: float, batch: float) -> None:
    """Draw the second half of ``noisy_walk``, its end and its average."""
    late = noisy_walk(rate, batch)[150:]
    mean = late.mean(axis=0)
    axis.plot(*late.T, ".", color=plots.ORANGE, markersize=3, label="weights after each step")
    axis.plot(*late[-1], "o", color=plots.RED, markersize=7, label="the last one")
    axis.plot(*mean, "D", color="black", markersize=6, label="their average")
    typical = np.mean([loss_at(place) for place in late[-20:]])
    said = f"loss of the last 20: {typical:.1e}, of the average: {loss_at(mean):.1e}"
    _valley(axis, f"rate {rate:g}, batch {batch:g}\n{said}", "lower left")


def _valley(axis: Axes, title: str, legend: Any) -> None:
    x, y = np.meshgrid(*2 * [np.linspace(-_SIDE, _SIDE, 61)])
    heights = (HESSIAN[0, 0] * x**2 + 2 * HESSIAN[0, 1] * x * y + HESSIAN[1, 1] * y**2) / 2
    style: dict[str, Any] = {"colors": "#BBBBBB", "linewidths": 0.7, "zorder": 1}
    axis.contour(x, y, heights, np.geomspace(0.05, 12, 5), **style)
    limits = {"xlim": (-_SIDE, _SIDE), "ylim": (-3.3, 2.2), "aspect": "equal"}
    plots.small(axis, title, 8, xlabel="coordinate 1", ylabel="coordinate 2", **limits)
    axis.legend(frameon=False, fontsize=7, loc=legend)


def components(
    axis: Axes, place: float, rows: Mapping[str, tuple[float, float]], digits: Sequence[tuple]
) -> None:
    """Draw test accuracy over the number of components, with that at ``place`` marked, and digits.

    ``rows`` is number of components, or another name -> (training loss, test accuracy); ``digits``
    are (image (32, 32), its label, {row's name: predicted digit}).
    """
    names, right = list(rows), [100 * accuracy for _, accuracy in rows.values()]
    chosen = names[int(place)]
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
