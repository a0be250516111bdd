"""Figures of lab 05: spectra, paths over the loss, searches and races. No MindSpore import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np

from labkit.labs.figures import common as plots

if TYPE_CHECKING:  # matplotlib is loaded when the first figure is drawn
    from matplotlib.figure import Figure

# The end of stage one and what may follow it: name in figures, colour, line and mark.
METHODS = {
    "stage_one": ("end of stage one", "#777777", "-", "o"),
    "same_rate": ("same rate", plots.RED, "-", "o"),
    "tenth": ("a tenth of the rate", plots.ORANGE, "-", "o"),
    "to_zero": ("rate down to 0", plots.GREEN, "-", "o"),
    "large_batch": ("large batch", plots.PURPLE, "-", "o"),
    "average": ("average of snapshots", "black", "--", "D"),
    "projected_bfgs": ("projected BFGS", plots.BLUE, "-", "s"),
    "projected_sgd": ("projected SGD", "#56B4E9", "-", "s"),
}
_ERRORS = (100.0, 50.0, 20.0, 10.0, 7.0, 5.0, 4.0, 3.0, 2.5, 2.0, 1.0)


def spectrum(shares: Mapping[str, Sequence[float]], title: str) -> Figure:
    """Share of the variance along each component, in per cent; ``shares`` is label -> (K,)."""
    figure, axis = plots.axes(width=6.4, height=3.6)
    marks = ("o", "x", "s", "^")
    for number, (label, values) in enumerate(shares.items()):
        axis.plot(
            np.arange(1, len(values) + 1), 100 * np.asarray(values), marks[number % 4] + "-",
            color=plots.PALETTE[number], markersize=4, linewidth=1, label=label,
        )  # fmt: skip
    axis.set(xscale="log", yscale="log", xlabel="component", title=title)
    axis.set_ylabel("share of the variance (%)")
    longest = max(map(len, shares.values()))
    plots.label_ticks(axis, [tick for tick in (1, 2, 4, 8, 16, 32, 64) if tick <= longest], "x")
    plots.label_ticks(axis, (0.01, 0.1, 1, 10, 100))
    axis.legend(frameon=False)
    return figure


def coordinates(panels: Mapping[str, np.ndarray]) -> Figure:
    """Coordinates along some components over the snapshots, with a panel for each set of them.

    Args:
        panels: title -> (K, N) coordinates; each row is drawn in units of its largest size
    """
    figure, drawn = plots.side_by_side(panels, width=4.4, height=3.0)
    for axis, title, rows in drawn:
        for number, row in enumerate(np.asarray(rows)):
            scaled = row / np.abs(row).max()
            axis.plot(scaled, color=plots.PALETTE[number], label=f"component {number + 1}")
        axis.set(xlabel="snapshot", ylabel="coordinate (largest is 1)", title=title)
        axis.set_ylim(-1.15, 1.15)
    plots.legend_below(figure, drawn[0][0])
    return figure


def path(
    first: np.ndarray,
    second: np.ndarray,
    losses: np.ndarray,
    points: Sequence[Sequence[float]],
    marks: Mapping[str, Sequence[float]],
    title: str,
) -> Figure:
    """The path of the weights over the loss in the plane of two components.

    Args:
        first: the grid's coordinates along the first component, (A,)
        second: the grid's coordinates along the second component, (B,)
        losses: losses at the grid's points, (B, A), nats
        points: points of the path, (N, 2), in order
        marks: label -> (2,)
        title: title of the figure
    """
    figure, axis = plots.axes(width=7.2, height=4.4)
    levels = np.geomspace(losses.min(), losses.max(), 22)
    drawn = axis.contourf(first, second, losses, levels=levels, cmap="Greys_r", norm="log")
    axis.plot(
        *np.asarray(points).T, ".-", color=plots.BLUE, linewidth=1, markersize=5, label="snapshots"
    )
    kinds = (("o", plots.ORANGE), ("D", plots.RED), ("s", plots.GREEN), ("^", plots.PURPLE))
    for (label, (x, y)), (mark, color) in zip(marks.items(), cycle(kinds)):
        axis.plot([x], [y], mark, color=color, markersize=9, markeredgecolor="white", label=label)
    axis.set(xlabel="first component (length)", ylabel="second component (length)", title=title)
    axis.grid(False)
    ticks = _nice(losses.min(), losses.max())
    bar = figure.colorbar(drawn, ax=axis, label="training loss (nats)", ticks=ticks)
    bar.ax.set_yticklabels([f"{tick:g}" for tick in ticks])
    bar.ax.minorticks_off()
    figure.legend(frameon=False, loc="outside lower center", ncols=3, fontsize=9)
    return figure


def _nice(low: float, high: float) -> np.ndarray:
    """Return 1, 2 and 5 times the powers of ten from ``low`` to ``high``."""
    decades = 10.0 ** np.arange(-6, 4)
    every = np.sort(np.concatenate([factor * decades for factor in (1, 2, 5)]))
    return every[(every >= low) & (every <= high)]


def reconstruction(residuals: Mapping[str, Mapping[int, float]], title: str) -> Figure:
    """The part of vectors that K components do not express, over K.

    Args:
        residuals: label -> {K: |residual| / |vector|}
        title: title of the figure
    """
    figure, axis = plots.axes(width=6.4, height=3.6)
    for number, (label, left) in enumerate(residuals.items()):
        counts = sorted(left)
        values = [100 * left[count] for count in counts]
        axis.plot(counts, values, ".-", color=plots.PALETTE[number], label=label)
        axis.set_xticks(counts)
    axis.set(xlabel="components", ylabel="not expressed (%)", title=title, ylim=(0, 105))
    axis.legend(frameon=False, fontsize=9)
    return figure


def line_search(
    rates: Sequence[float],
    losses: Sequence[float],
    slope: float,
    sigma: float,
    accepted: Sequence[tuple[float, float, bool]],
    title: str,
) -> Figure:
    """The loss along a direction, the bound of the search, and the lengths that it tries.

    Args:
        rates: lengths of a fine grid that begins at 0
        losses: losses at these lengths, nats
        slope: slope of the loss at 0
        sigma: share of the slope that the search requires
        accepted: (length, loss, whether it was taken) of each trial
        title: title of the figure
    """
    figure, axis = plots.axes(width=6.4, height=3.6)
    axis.plot(rates, losses, color=plots.BLUE, label="loss")
    start = losses[0]
    drawn = np.asarray(rates)
    axis.plot(drawn, start + slope * drawn, ":", color="grey", label="slope at 0")
    bound = start + sigma * slope * drawn
    axis.plot(drawn, bound, "--", color=plots.ORANGE, label=f"bound, {sigma:g} of the slope")
    for taken, color, label in ((False, plots.RED, "refused"), (True, plots.GREEN, "accepted")):
        own = [(rate, loss) for rate, loss, was in accepted if was == taken]
        if own:
            axis.plot(*zip(*own, strict=True), "o", color=color, label=label)
    low, high = min(losses), max(losses)
    axis.set_ylim(low - 0.15 * (high - low), high + 0.05 * (high - low))
    axis.set(xlabel="length of the step, in units of d", ylabel="loss (nats)", title=title)
    axis.legend(frameon=False, fontsize=9)
    return figure


def race(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    start: float,
    flat: Mapping[str, float],
    title: str,
) -> Figure:
    """Test error after stage one, over epochs of stage two.

    Args:
        curves: method -> (epochs, accuracies 0 .. 1)
        start: accuracy at the end of stage one
        flat: method -> accuracy, for methods without epochs
        title: title of the figure
    """
    figure, axis = plots.axes(width=7.2, height=3.8)
    for method, (epochs, right) in curves.items():
        label, color, style, mark = METHODS[method]
        error = plots.errors([start, *right])
        axis.plot([0, *epochs], error, style, marker=mark, markersize=4, color=color, label=label)
    for method, accuracy in flat.items():
        label, color, style, _ = METHODS[method]
        axis.axhline(100 - 100 * accuracy, linestyle=style, color=color, label=label, linewidth=1.2)
    axis.set(xlabel="epochs of stage two", title=title)
    plots.error_axis(axis, _ERRORS)
    plots.legend_beside(figure)
    return figure


def by_method(panels: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """Test error of each method: a dot for each seed, a bar for their mean, a panel for each race.

    Args:
        panels: title -> {method: accuracies by seed, 0 .. 1}; all with the same methods
    """
    methods = list(next(iter(panels.values())))
    columns = len(panels) if len(panels) <= 3 else 2
    rows, height = -(-len(panels) // columns), 0.3 * len(methods) + 1.1
    figure, grid = plots.axes(rows, columns, width=3.6, height=height)
    flat = np.atleast_1d(grid).ravel()
    for axis in flat[len(panels) :]:
        axis.set_axis_off()
    for axis, (title, accuracies) in zip(flat, panels.items(), strict=False):
        for place, method in enumerate(methods):
            color = METHODS[method][1]
            errors = plots.errors(accuracies[method])
            axis.plot(errors, [place] * errors.size, "o", color=color, markersize=4, alpha=0.6)
            axis.plot([errors.mean()] * 2, [place - 0.3, place + 0.3], color=color, linewidth=2.5)
        axis.set_yticks(range(len(methods)), [""] * len(methods))
        axis.set(xlabel="test error (%)", ylim=(len(methods) - 0.5, -0.5))
        axis.set_title(title, fontsize=10)  # at 12 "batch 32, 30% random labels" is too wide
    names = [METHODS[method][0] for method in methods]
    for first in flat[::columns]:
        first.set_yticks(range(len(methods)), names, fontsize=9)
    return figure


def swept(panels: Mapping[str, Mapping[float, Sequence[float]]]) -> Figure:
    """Test error over the values of settings, a panel for each: mean as a line, seeds as dots.

    Args:
        panels: name of a setting -> {its value: accuracies by seed, 0 .. 1}
    """
    figure, drawn = plots.side_by_side(panels, width=4.0)
    for axis, name, by_value in drawn:
        errors = {value: plots.errors(right) for value, right in by_value.items()}
        plots.mean_and_seeds(axis, errors, METHODS["projected_bfgs"][1], "mean", alpha=0.6)
        axis.set(xscale="log", xlabel=name, ylabel="test error (%)", title=f"by {name}")
        plots.label_ticks(axis, sorted(by_value), "x")
    return figure
