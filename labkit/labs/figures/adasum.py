"""Figures of lab 04: vectors and their sums, cosines, races and sweeps. No MindSpore import."""

import numpy as np

from labkit.labs.figures import common as plots
from labkit.reference import adasum_pair

# One name, colour and mark for each reduction, in all figures.
NAMES = {"adasum": "Adasum", "mean": "mean", "sum": "sum"}
COLORS = {"adasum": plots.BLUE, "mean": plots.ORANGE, "sum": plots.RED}
MARKS = {"sum": "o", "adasum": "D", "mean": "s"}
_VECTORS = {"a": "black", "b": "#777777"}
_SMALL = (50.0, 20.0, 10.0, 5.0, 2.0, 1.0)


def two_vectors(angle=60.0, ratio=1.5):
    """Two vectors, what sum, mean and Adasum make of them, and its length at every angle.

    angle  between them, degrees from 0 to 180
    ratio  |b| / |a|; a has length 1
    """
    figure, (plane, lengths) = plots.axes(1, 2, width=4.8, height=3.6)
    a, b = np.array([1.0, 0.0]), _at(angle, ratio)
    for (name, color), vector in zip(_VECTORS.items(), (a, b), strict=True):
        _arrow(plane, vector, color, name, 2.0)
    for name, vector in _combined(a, b).items():
        plane.plot(*zip((0, 0), vector, strict=True), color=COLORS[name], linewidth=1.2, zorder=1)
        _mark(plane, *vector, name, label=NAMES[name])
    plane.set(xlim=(-2.3, 3.3), ylim=(-0.5, 2.7), xlabel="first coordinate")
    plane.set(ylabel="second coordinate", title=f"{angle:.0f}° apart, |b| = {ratio:.2g} |a|")
    plane.set_aspect("equal")
    plane.legend(frameon=False, ncols=5, fontsize=8, loc="upper center", columnspacing=1.0)
    angles = np.linspace(0, 180, 181)
    made = [_combined(a, _at(one, ratio)) for one in angles]
    for name in MARKS:
        sizes = [np.linalg.norm(one[name]) for one in made]
        lengths.plot(angles, sizes, color=COLORS[name], label=NAMES[name])
        _mark(lengths, angle, np.linalg.norm(_combined(a, b)[name]), name)
    lengths.axvline(angle, color="grey", linewidth=0.8, linestyle="--", zorder=0)
    lengths.set(xlabel="angle between a and b (degrees)", ylabel="length (of a is 1)")
    lengths.set(xticks=range(0, 181, 45), ylim=(-0.1, 3.1), title="Length of the result")
    lengths.legend(frameon=False)
    return figure


def _at(angle, length):
    radians = np.deg2rad(angle)
    return length * np.array([np.cos(radians), np.sin(radians)])


def _combined(a, b):
    return {"sum": a + b, "adasum": adasum_pair(a, b), "mean": (a + b) / 2}


def _arrow(axis, vector, color, label, width):
    style = {"arrowstyle": "-|>", "color": color, "linewidth": width, "shrinkA": 0, "shrinkB": 0}
    axis.annotate("", vector, (0, 0), arrowprops=style, zorder=2)
    axis.plot([], [], color=color, linewidth=width, label=label)


def _mark(axis, x, y, name, label=None):
    # Hollow and of different sizes: where two of them meet, both are seen.
    size = {"sum": 9, "adasum": 6, "mean": 8}[name]
    axis.plot(
        [x], [y], MARKS[name], color=COLORS[name], markersize=size, label=label, clip_on=False,
        markerfacecolor=COLORS[name] if name == "adasum" else "none", zorder=3,
    )  # fmt: skip


def step_lengths(found, workers):
    """Length of N workers' Adasum, over N, between the mean's 1 and the sum's N.

    found  label -> lengths, in units of one worker's vector, for each number in ``workers``
    """
    figure, axis = plots.axes(width=6.4, height=3.6)
    for (label, lengths), color in zip(found.items(), plots.PALETTE, strict=False):
        axis.plot(workers, lengths, ".-", color=color, label=label)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.set_xticks(workers, [str(count) for count in workers])
    axis.set_yticks([0.5, 1, 2, 4, 8], ["0.5", "1", "2", "4", "8"])
    axis.minorticks_off()
    axis.set(xlabel="workers", ylabel="length (one worker's is 1)")
    axis.set_title("How far Adasum goes")
    figure.legend(frameon=False, loc="outside right center", fontsize=9)
    return figure


def cosines(panels, updates, ylim=(-0.15, 1.05)):
    """Mean pairwise cosine by layer over training, a panel for each kind of vector.

    panels   title -> (updates, {layer: cosines})
    updates  length of the training
    """
    figure, grid = plots.axes(1, len(panels), width=4.6, height=3.4)
    for axis, (title, (when, by_layer)) in zip(np.atleast_1d(grid), panels.items(), strict=True):
        for (name, values), color in zip(by_layer.items(), plots.PALETTE, strict=False):
            axis.plot(when, values, ".-", color=color, label=name, linewidth=1, markersize=4)
        axis.axhline(0, color="grey", linewidth=0.8)
        axis.set(xlabel="update", ylabel="mean cosine of two workers", title=title)
        axis.set(xlim=(0, updates), ylim=ylim)
    handles, labels = np.atleast_1d(grid)[0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, loc="outside lower center", ncols=len(labels))
    return figure


def race(curves, title):
    """Test error over updates; ``curves`` is label -> (reduction, updates, accuracies 0 .. 1).

    A reduction's first curve is drawn solid, its second dashed.
    """
    figure, axis = plots.axes(width=6.8, height=3.8)
    drawn = {}
    for label, (reduction, updates, right) in curves.items():
        style = ("-", "--", ":")[drawn.setdefault(reduction, 0) % 3]
        drawn[reduction] += 1
        error = 100 - 100 * np.asarray(right)
        axis.plot(updates, error, style, color=COLORS[reduction], label=label)
    axis.set(xlabel="update", title=title)
    _errors(axis)
    figure.legend(frameon=False, loc="outside right center", fontsize=9)
    return figure


def over_rates(found, single=None, title=""):
    """Test error over the learning rate.

    found   reduction -> {learning rate: accuracies 0 .. 1 by seed}; a training that failed is None
    single  the single worker's learning rate, marked
    """
    figure, axis = plots.axes(width=6.8, height=3.8)
    _by_setting(axis, found, "learning rate")
    if single is not None:
        axis.axvline(single, color="grey", linewidth=0.8, linestyle="--", zorder=0)
    axis.set(title=title)
    figure.legend(frameon=False, loc="outside right center", fontsize=9)
    return figure


def over_workers(found, title=""):
    """Test error over the number of workers; ``found`` as in ``over_rates``, by workers."""
    figure, axis = plots.axes(width=6.8, height=3.8)
    _by_setting(axis, found, "workers")
    axis.set(title=title)
    figure.legend(frameon=False, loc="outside right center", fontsize=9)
    return figure


def _by_setting(axis, found, xlabel):
    """Mean over seeds as a line, each seed as a dot."""
    ticks = sorted({setting for points in found.values() for setting in points})
    for name, points in found.items():
        color = COLORS[name.split()[0].lower()]
        style = "--" if len(name.split()) > 1 else "-"
        settings = sorted(points)
        errors = [[_error(one) for one in points[setting]] for setting in settings]
        means = [np.mean(one) for one in errors]
        axis.plot(settings, means, style, color=color, label=NAMES.get(name, name))
        for setting, own in zip(settings, errors, strict=True):
            axis.plot([setting] * len(own), own, ".", color=color, markersize=5)
    axis.set_xscale("log")
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=8)
    axis.set(xlabel=xlabel)
    _errors(axis)


def _error(accuracy):
    return 100.0 if accuracy is None else 100 - 100 * accuracy


def _errors(axis):
    axis.set(yscale="log", ylabel="test error (%)")
    low, high = axis.get_ylim()
    ticks = [tick for tick in (100.0, *_SMALL, 0.5) if low <= tick <= high * 1.01]
    axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
