"""Figures of lab 04, and its interactive pictures, which are given an axis. No MindSpore import."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.labs.figures import common as plots
from labkit.labs.results import Curve
from labkit.reference import adasum_pair

# One name, colour, mark and size of the mark for each reduction, in all figures.
NAMES = {"adasum": "Adasum", "mean": "mean", "sum": "sum"}
COLORS = {"adasum": plots.BLUE, "mean": plots.ORANGE, "sum": plots.RED}
MARKS = {"sum": ("o", 9), "adasum": ("D", 6), "mean": ("s", 8)}
_UPDATES = (50, 100, 200, 500, 1000, 2000)
_ERRORS = (100.0, 50.0, 20.0, 10.0, 5.0, 2.0, 1.0, 0.5)
_SEED: dict[str, Any] = {"marker": ".", "markersize": 5}
# Limits that contain every step of both orders from 30 to 150 degrees, at rates up to 1.5.
_WIDE, _HIGH = (-3.1, 1.6), (-2.6, 1.0)


def race(curves: Mapping[str, tuple[str, Sequence[float], Sequence[float]]], title: str) -> Figure:
    """Test error over updates; ``curves`` is label -> (reduction, updates, accuracies).

    A reduction's first curve is solid, its second dashed.
    """
    figure, axis = plots.axes(width=6.8, height=3.8)
    drawn: list[str] = []
    for label, (reduction, updates, right) in curves.items():
        style = ("-", "--")[drawn.count(reduction)]
        axis.plot(updates, plots.errors(right), style, color=COLORS[reduction], label=label)
        drawn.append(reduction)
    return plots.error_figure(figure, _ERRORS, "update", title)


def over_settings(
    accuracies: Mapping[str, Mapping], xlabel: str, title: str, single: float | None = None
) -> Figure:
    """Test error over a setting, with a single worker's value marked.

    ``accuracies`` is reduction -> {value: accuracies by seed}, None for a failed training.
    """
    figure, axis = plots.axes(width=6.8, height=3.8)
    for name, by_setting in accuracies.items():
        errors = {setting: plots.errors(right) for setting, right in by_setting.items()}
        plots.mean_and_seeds(axis, errors, COLORS[name], NAMES[name], **_SEED)
    axis.set_xscale("log")
    plots.label_ticks(axis, sorted(set().union(*accuracies.values())), "x")
    axis.tick_params(axis="x", labelsize=8)
    if single is not None:
        axis.axvline(single, color="grey", linewidth=0.8, linestyle="--", zorder=0)
    return plots.error_figure(figure, _ERRORS, xlabel, title)


def critical_batch(
    updates: Mapping[str, Mapping[int, Sequence[float]]], curves: Mapping[str, Curve]
) -> Figure:
    """Updates to an accuracy over the images of one update, with each critical batch size.

    ``updates`` is reduction -> {images: updates by seed}, ``curves`` has the curve through them.
    """
    figure, axis = plots.axes(width=7.6, height=4.0)
    for name, by_batch in updates.items():
        color, critical = COLORS[name], curves[name].b_crit
        plots.mean_and_seeds(axis, by_batch, color, NAMES[name], **_SEED)
        if 0 < critical < np.inf:
            twice = curves[name].updates(critical)
            axis.vlines(critical, 1, twice, linewidth=0.8, color=color)
            label = f"$B_{{crit}}$ of {NAMES[name]}: {critical:.0f}"
            axis.plot([critical], [twice], MARKS[name][0], color=color, label=label)
    first = next(iter(updates.values()))
    batches = sorted(first)
    halved = [batches[0] * np.mean(first[batches[0]]) / batch for batch in batches]
    axis.plot(batches, halved, ":", color="grey", linewidth=1.2, label="perfect scaling", zorder=0)
    axis.set(xscale="log", yscale="log", xlabel="images of one update", ylabel="updates")
    axis.set_title("updates to 97 % of held-out images")
    plots.label_ticks(axis, batches, "x")
    plots.label_ticks(axis, _UPDATES)
    every = [each for by_batch in updates.values() for seeds in by_batch.values() for each in seeds]
    axis.set_ylim(0.75 * min(every), 1.3 * max(every))
    figure.legend(frameon=False, loc="outside right center", fontsize=9)
    return figure


def two_vectors(axis: Axes, angle: float, ratio: float) -> None:
    """Draw two vectors, their sum, Adasum and mean, and beside them the lengths at every angle.

    They are ``angle`` degrees apart, from 0 to 180, and of the lengths 1 and ``ratio``.
    """
    plots.small(axis, f"{angle:g}° apart, |b| = {ratio:g} |a|")
    axis.set_axis_off()
    plane = axis.inset_axes((0.0, 0.0, 0.58, 1.0))
    lengths = axis.inset_axes((0.74, 0.0, 0.26, 1.0))
    a, b = _at(0, 1.0), _at(angle, ratio)
    for vector, color, name, below in ((a, "black", "a", -12), (b, plots.GREY, "b", 4)):
        _arrow(plane, np.zeros(2), vector, color, 2.0)
        plane.annotate(name, tuple(vector), (-3, below), textcoords="offset points", color=color)
    angles = np.linspace(0, 180, 181)
    every = [_combined(a, _at(degrees, ratio)) for degrees in angles]
    for name, vector in _combined(a, b).items():
        plane.plot(*zip((0, 0), vector, strict=True), color=COLORS[name], linewidth=1, zorder=1)
        length = float(np.linalg.norm(vector))
        _mark(plane, vector, name, f"{NAMES[name]}: {length:.2f}")
        sizes = [np.linalg.norm(vectors[name]) for vectors in every]
        lengths.plot(angles, sizes, color=COLORS[name], label=NAMES[name])
        _mark(lengths, (angle, length), name)
    plane.set(xlim=(-2.1, 3.1), ylim=(-0.6, 3.2), aspect="equal")
    plane.legend(frameon=False, fontsize=7, loc="upper right", title="length", title_fontsize=7)
    lengths.set(xticks=(0, 90, 180), ylim=(-0.1, 3.1))
    lengths.set_xlabel("angle (degrees)", fontsize=8)
    lengths.set_ylabel("length", fontsize=8)
    for each in (plane, lengths):
        each.grid(alpha=0.25)
        each.tick_params(labelsize=7)


def both_orders(axis: Axes, angle: float, rate: float) -> None:
    """Draw two steps of SGD in both orders from 0, their mean, and the one step of Adasum.

    The losses are (x.w + 1)^2 / 2 and (y.w + 1)^2 / 2 with |x| = |y| = 1, ``angle`` degrees apart
    (30 to 150), so their curvatures are x x^T and y y^T; the contours show the mean loss. ``rate``
    is that of every step, in units of 1 / |x|^2, up to 1.5.
    """
    x, y = _at(0, 1.0), _at(angle, 1.0)
    grid = np.stack(np.meshgrid(np.linspace(*_WIDE, 80), np.linspace(*_HIGH, 80)), -1)
    loss = ((grid @ x + 1) ** 2 + (grid @ y + 1) ** 2) / 4
    levels = np.linspace(0.2, 3.0, 8) ** 2
    axis.contour(*np.moveaxis(grid, -1, 0), loss, levels, colors="#BBBBBB", linewidths=0.7)
    ends, orders = [], ((x, y, "black", "x, then y"), (y, x, plots.GREY, "y, then x"))
    for first, second, color, name in orders:
        middle = -rate * first  # at 0 the gradient is the vector
        ends.append(middle - rate * (second @ middle + 1) * second)
        _arrow(axis, np.zeros(2), middle, color, 1.3)
        _arrow(axis, middle, ends[-1], color, 1.3)
        axis.plot([], [], color=color, label=name)
    mean = np.mean(ends, axis=0)
    axis.plot(*zip(*ends, strict=True), ":", color="black", linewidth=1)
    axis.plot(*mean, "*", color="black", markersize=11, label="mean of both orders")
    for name, vector in _combined(x, y).items():
        _mark(axis, -rate * vector, name, f"one step, {NAMES[name]}")
    off = np.linalg.norm(mean + rate * adasum_pair(x, y))
    title = f"{angle:g}° apart, rate {rate:g} / |x|²\nAdasum to the mean of both orders: {off:.2f}"
    axis.set_title(title, fontsize=9)
    axis.set(xlim=_WIDE, ylim=_HIGH, aspect="equal", xlabel="first weight", ylabel="second weight")
    axis.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def tree(axis: Axes, workers: float) -> None:
    """Draw how ``workers`` vectors are combined, level by level, as ``AdasumStep`` does.

    Neighbours are combined in pairs, drawn in blue; if their number is odd, the last three
    together. A number says how many workers a vector is combined of.
    """
    vectors, height, threes = [(float(number), 1) for number in range(int(workers))], 0, 0
    for x, made in vectors:
        _node(axis, x, 0, made, "white")
    while len(vectors) > 1:
        below, vectors, height = vectors, [], height + 1
        while below:
            size = 3 if len(below) == 3 else 2
            group, below = below[:size], below[size:]
            threes += size == 3
            x, made = float(np.mean([place for place, _ in group])), sum(of for _, of in group)
            for place, _ in group:
                axis.plot([place, x], [height - 1, height], color=plots.GREY, zorder=1)
            _node(axis, x, height, made, COLORS["adasum"] if size == 2 else plots.SKY)
            vectors.append((x, made))
    title = f"{workers:g} workers: {height} levels" + (f", {threes} × three" if threes else "")
    limits = {"xlim": (-0.8, int(workers) - 0.2), "ylim": (-0.5, 4.5)}
    plots.small(axis, title, xlabel="workers", ylabel="level", xticks=[], yticks=range(5), **limits)


def _combined(a: np.ndarray, b: np.ndarray) -> dict[str, np.ndarray]:
    return {"sum": a + b, "adasum": adasum_pair(a, b), "mean": (a + b) / 2}


def _at(angle: float, length: float) -> np.ndarray:
    radians = np.deg2rad(angle)
    return length * np.array([np.cos(radians), np.sin(radians)])


def _node(axis: Axes, x: float, y: float, made: int, color: str) -> None:
    box = {"boxstyle": "circle,pad=0.25", "facecolor": color, "edgecolor": plots.GREY}
    ink = "white" if color == COLORS["adasum"] else "black"
    axis.text(x, y, str(made), ha="center", va="center", fontsize=7, color=ink, bbox=box, zorder=3)


def _arrow(axis: Axes, start: np.ndarray, end: np.ndarray, color: str, width: float) -> None:
    style = {"arrowstyle": "-|>", "color": color, "linewidth": width, "shrinkA": 0, "shrinkB": 0}
    axis.annotate("", tuple(end), tuple(start), arrowprops=style, zorder=2)


def _mark(axis: Axes, place: Sequence[float] | np.ndarray, name: str, label: str = "") -> None:
    """Draw a reduction's mark, hollow but for Adasum's, so that both are visible where two meet."""
    (mark, size), color = MARKS[name], COLORS[name]
    style: dict[str, Any] = {"color": color, "markersize": size, "clip_on": False, "zorder": 3}
    style["markerfacecolor"] = color if name == "adasum" else "none"
    axis.plot(*place, mark, label=label or None, **style)
