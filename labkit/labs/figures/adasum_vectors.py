"""Interactive pictures of lab 04: two vectors, two steps, the tree of workers.

No MindSpore import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from labkit.labs.figures.adasum import COLORS, MARKS, NAMES
from labkit.reference import adasum_pair

if TYPE_CHECKING:  # matplotlib is loaded when the first figure is drawn
    from matplotlib.axes import Axes

_GREY = "#777777"
_SIZES = {"sum": 9, "adasum": 6, "mean": 8}
# Limits that contain every step of both orders from 30 to 150 degrees, at rates up to 1.5.
_WIDE, _HIGH = (-3.1, 1.6), (-2.6, 1.0)


def combined(a: np.ndarray, b: np.ndarray) -> dict[str, np.ndarray]:
    """Return the sum, Adasum and mean of two vectors (d,)."""
    return {"sum": a + b, "adasum": adasum_pair(a, b), "mean": (a + b) / 2}


def two_vectors(axis: Axes, angle: float, ratio: float) -> None:
    """Draw two vectors, their sum, Adasum and mean, and beside them the lengths at every angle.

    Args:
        axis: axis to draw on
        angle: angle between them, degrees from 0 to 180
        ratio: |b| / |a|; a has length 1
    """
    axis.set_axis_off()
    axis.set_title(f"{angle:g}° apart, |b| = {ratio:g} |a|", fontsize=9)
    plane = axis.inset_axes((0.0, 0.0, 0.58, 1.0))
    lengths = axis.inset_axes((0.74, 0.0, 0.26, 1.0))
    a, b = np.array([1.0, 0.0]), _at(angle, ratio)
    for vector, color, name, below in ((a, "black", "a", -12), (b, _GREY, "b", 4)):
        _arrow(plane, np.zeros(2), vector, color, 2.0)
        plane.annotate(name, tuple(vector), (-3, below), textcoords="offset points", color=color)
    angles = np.linspace(0, 180, 181)
    every = [combined(a, _at(degrees, ratio)) for degrees in angles]
    for name, vector in combined(a, b).items():
        plane.plot(*zip((0, 0), vector, strict=True), color=COLORS[name], linewidth=1, zorder=1)
        length = float(np.linalg.norm(vector))
        _mark(plane, vector[0], vector[1], name, f"{NAMES[name]}: {length:.2f}")
        sizes = [np.linalg.norm(vectors[name]) for vectors in every]
        lengths.plot(angles, sizes, color=COLORS[name], label=NAMES[name])
        _mark(lengths, angle, length, name)
    plane.set(xlim=(-2.1, 3.1), ylim=(-0.6, 3.2), aspect="equal")
    plane.legend(frameon=False, fontsize=7, loc="upper right", title="length", title_fontsize=7)
    lengths.set(xticks=(0, 90, 180), ylim=(-0.1, 3.1))
    lengths.set_xlabel("angle (degrees)", fontsize=8)
    lengths.set_ylabel("length", fontsize=8)
    for each in (plane, lengths):
        each.grid(alpha=0.25)
        each.tick_params(labelsize=7)


def _at(angle: float, length: float) -> np.ndarray:
    radians = np.deg2rad(angle)
    return length * np.array([np.cos(radians), np.sin(radians)])


def sgd_step(w: np.ndarray, v: np.ndarray, rate: float) -> np.ndarray:
    """Return w (d,) after a step of SGD on the loss (v.w + 1)^2 / 2, whose curvature is v v^T."""
    return w - rate * (v @ w + 1) * v


def both_orders(axis: Axes, angle: float, rate: float) -> None:
    """Draw two steps of SGD in both orders from 0, their mean, and the one step of Adasum.

    The losses are (x.w + 1)^2 / 2 and (y.w + 1)^2 / 2 with |x| = |y| = 1; the contours show their
    mean.

    Args:
        axis: axis to draw on
        angle: angle between x and y, degrees from 30 to 150
        rate: learning rate of every step, in units of 1 / |x|^2, up to 1.5
    """
    x, y, origin = _at(0, 1.0), _at(angle, 1.0), np.zeros(2)
    grid = np.stack(np.meshgrid(np.linspace(*_WIDE, 80), np.linspace(*_HIGH, 80)), -1)
    loss = ((grid @ x + 1) ** 2 + (grid @ y + 1) ** 2) / 4
    axis.contour(
        grid[..., 0], grid[..., 1], loss, np.linspace(0.2, 3.0, 8) ** 2,
        colors="#BBBBBB", linewidths=0.7,
    )  # fmt: skip
    ends = []
    for first, second, color, name in ((x, y, "black", "x, then y"), (y, x, _GREY, "y, then x")):
        middle = sgd_step(origin, first, rate)
        ends.append(sgd_step(middle, second, rate))
        _arrow(axis, origin, middle, color, 1.3)
        _arrow(axis, middle, ends[-1], color, 1.3)
        axis.plot([], [], color=color, label=name)
    mean = np.mean(ends, axis=0)
    axis.plot(*zip(*ends, strict=True), ":", color="black", linewidth=1)
    axis.plot(*mean, "*", color="black", markersize=11, label="mean of both orders")
    for name, vector in combined(x, y).items():
        x_end, y_end = -rate * vector
        _mark(axis, x_end, y_end, name, f"one step, {NAMES[name]}")
    off = np.linalg.norm(mean + rate * adasum_pair(x, y))
    axis.set(xlim=_WIDE, ylim=_HIGH, aspect="equal")
    axis.set(xlabel="first weight", ylabel="second weight")
    axis.set_title(
        f"{angle:g}° apart, rate {rate:g} / |x|²\nAdasum to the mean of both orders: {off:.2f}",
        fontsize=9,
    )
    axis.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def levels(workers: int) -> list[list[tuple[int, ...]]]:
    """Return, for each level, the vectors of the level below that each vector is combined from.

    Neighbours are combined in pairs; if their number is odd, the last three together.
    """
    made, count = [], workers
    while count > 1:
        paired = count - 3 * (count % 2)
        groups: list[tuple[int, ...]] = [(i, i + 1) for i in range(0, paired, 2)]
        if paired < count:
            groups.append((paired, paired + 1, paired + 2))
        made.append(groups)
        count = len(groups)
    return made


def tree(axis: Axes, workers: float) -> None:
    """Draw how ``workers`` vectors are combined; a number says how many workers made a vector."""
    count = int(workers)
    places = [(float(number), 1) for number in range(count)]
    for x, _ in places:
        _node(axis, x, 0, 1, "white")
    tall = levels(count)
    for height, groups in enumerate(tall, 1):
        above = []
        for group in groups:
            x = float(np.mean([places[i][0] for i in group]))
            made = sum(places[i][1] for i in group)
            for i in group:
                axis.plot([places[i][0], x], [height - 1, height], color=_GREY, zorder=1)
            _node(axis, x, height, made, COLORS["adasum"] if len(group) == 2 else "#56B4E9")
            above.append((x, made))
        places = above
    threes = sum(len(group) == 3 for groups in tall for group in groups)
    said = f", {threes} × three" if threes else ""
    axis.set_title(f"{count} workers: {len(tall)} levels{said}", fontsize=9)
    axis.set(xlim=(-0.8, count - 0.2), ylim=(-0.5, 4.5), xticks=[], yticks=range(5))
    axis.set(xlabel="workers", ylabel="level")
    axis.grid(False)


def _node(axis: Axes, x: float, y: float, made: int, color: str) -> None:
    box = {"boxstyle": "circle,pad=0.25", "facecolor": color, "edgecolor": _GREY}
    ink = "white" if color == COLORS["adasum"] else "black"
    axis.text(x, y, str(made), ha="center", va="center", fontsize=7, color=ink, bbox=box, zorder=3)


def _arrow(axis: Axes, start: np.ndarray, end: np.ndarray, color: str, width: float) -> None:
    style = {"arrowstyle": "-|>", "color": color, "linewidth": width, "shrinkA": 0, "shrinkB": 0}
    axis.annotate("", tuple(end), tuple(start), arrowprops=style, zorder=2)


def _mark(axis: Axes, x: float, y: float, name: str, label: str | None = None) -> None:
    # Hollow and of different sizes, so that both are visible where two meet.
    face = COLORS[name] if name == "adasum" else "none"
    axis.plot(
        [x], [y], MARKS[name], color=COLORS[name], markersize=_SIZES[name], label=label,
        clip_on=False, markerfacecolor=face, zorder=3,
    )  # fmt: skip
