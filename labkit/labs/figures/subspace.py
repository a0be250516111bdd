"""Figures of lab 05 in depth. No MindSpore import."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.labs.figures import common as plots


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


def swept(panels: Mapping[str, Mapping[float, Sequence[float]]]) -> Figure:
    """Test error over settings: panels of name -> {value: accuracies by seed}, with their mean."""
    figure, drawn = plots.side_by_side(panels, width=4.0)
    for axis, name, by_value in drawn:
        errors = {value: plots.errors(right) for value, right in by_value.items()}
        plots.mean_and_seeds(axis, errors, plots.BLUE, "mean", marker="o", markersize=4, alpha=0.6)
        axis.set(xscale="log", xlabel=name, ylabel="test error (%)", title=f"by {name}")
        axis.set_ylim(0)  # cut off, noise would look like structure
        plots.label_ticks(axis, sorted(by_value), "x")
    return figure
