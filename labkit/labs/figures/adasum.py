"""A figure of lab 04, and what its sliders draw on an axis. No MindSpore import."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.labs.figures import common as plots
from labkit.reference import adasum_pair

# One name, colour, mark and size of the mark for each reduction, in all figures.
NAMES = {"adasum": "Adasum", "mean": "mean", "sum": "sum"}
COLORS = {"adasum": plots.BLUE, "mean": plots.ORANGE, "sum": plots.RED}
MARKS = {"sum": ("o", 9), "adasum": ("D", 6), "mean": ("s", 8)}
_ERRORS = (100.0, 50.0, 20.0, 10.0, 5.0, 2.0, 1.0, 0.5)
_SEED: dict[str, Any] = {"marker": ".", "markersize": 5}


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


def two_vectors(axis: Axes, angle: float, ratio: float) -> str:
    """Draw two vectors, their sum, Adasum and mean, and beside them the lengths at every angle.

    They are ``angle`` degrees apart, from 0 to 180, and of the lengths 1 and ``ratio``. Returns a
    sentence with the lengths.
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
    plane.set(xlim=(-1.6, 2.7), ylim=(-0.4, 2.8), aspect="equal")
    plane.legend(frameon=False, fontsize=7, loc="upper right", title="length", title_fontsize=7)
    lengths.set(xticks=(0, 90, 180), ylim=(-0.1, 2.6))
    lengths.set_xlabel("angle (degrees)", fontsize=8)
    lengths.set_ylabel("length", fontsize=8)
    for each in (plane, lengths):
        each.grid(alpha=0.25)
        each.tick_params(labelsize=7)
    said = (f"{NAMES[name]} {np.linalg.norm(made):.2f}" for name, made in _combined(a, b).items())
    return f"{angle:g}° apart; lengths: {', '.join(said)}"


def tree(axis: Axes, workers: float) -> str:
    """Draw how ``workers`` vectors are combined, level by level, as ``AdasumStep`` does.

    Neighbours are combined in pairs, drawn in blue; if their number is odd, the last three
    together. A number says how many workers a vector is combined of. Returns the title.
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
    title = f"{workers:g} workers: {height} level{'s' * (height > 1)}"
    title += f", {threes} × three" if threes else ""
    limits = {"xlim": (-0.8, int(workers) - 0.2), "ylim": (-0.5, 4.5)}
    plots.small(axis, title, xlabel="workers", ylabel="level", xticks=[], yticks=range(5), **limits)
    return title


def _combined(a: np.ndarray, b: np.ndarray) -> dict[str, np.ndarray]:
    return {"sum": a + b, "adasum": adasum_pair(a, b), "mean": (a + b) / 2}


def _at(angle: float, length: float) -> np.ndarray:
    radians = np.deg2rad(angle)
    return length * np.array([np.cos(radians), np.sin(radians)])


def _node(axis: Axes, x: float, y: float, made: int, color: str) -> None:
    ink = "white" if color == COLORS["adasum"] else "black"
    axis.plot(x, y, "o", color=color, markeredgecolor=plots.GREY, markersize=12, zorder=2)
    axis.text(x, y, str(made), ha="center", va="center", fontsize=7, color=ink, zorder=3)


def _arrow(axis: Axes, start: np.ndarray, end: np.ndarray, color: str, width: float) -> None:
    style = {"arrowstyle": "-|>", "color": color, "linewidth": width, "shrinkA": 0, "shrinkB": 0}
    axis.annotate("", tuple(end), tuple(start), arrowprops=style, zorder=2)


def _mark(axis: Axes, place: Sequence[float] | np.ndarray, name: str, label: str = "") -> None:
    """Draw a reduction's mark, hollow but for Adasum's, so that both are visible where two meet."""
    (mark, size), color = MARKS[name], COLORS[name]
    style: dict[str, Any] = {"color": color, "markersize": size, "clip_on": False, "zorder": 3}
    style["markerfacecolor"] = color if name == "adasum" else "none"
    axis.plot(*place, mark, label=label or None, **style)
