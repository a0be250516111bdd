"""Figures of lab 04: lengths, cosines, races and sweeps. No MindSpore import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.labs.figures import common as plots

if TYPE_CHECKING:  # matplotlib is loaded when the first figure is drawn
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from labkit.labs.results.critical_batch import Curve

# One name, colour and mark for each reduction, in all figures.
NAMES = {"adasum": "Adasum", "mean": "mean", "sum": "sum"}
COLORS = {"adasum": plots.BLUE, "mean": plots.ORANGE, "sum": plots.RED}
MARKS = {"sum": "o", "adasum": "D", "mean": "s"}
_UPDATES = (50, 100, 200, 500, 1000, 2000)
_ERRORS = (100.0, 50.0, 20.0, 10.0, 5.0, 2.0, 1.0, 0.5)


def step_lengths(lengths: Mapping[str, Sequence[float]], workers: Sequence[int]) -> Figure:
    """Length of N workers' Adasum, over N, between the mean's 1 and the sum's N.

    Args:
        lengths: label -> lengths, in units of one worker's vector, for each number in ``workers``
        workers: numbers of workers
    """
    figure, axis = plots.axes(width=6.4, height=3.6)
    for (label, values), color in zip(lengths.items(), cycle(plots.PALETTE)):
        axis.plot(workers, values, ".-", color=color, label=label)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    plots.label_ticks(axis, workers, "x")
    plots.label_ticks(axis, (0.5, 1, 2, 4, 8))
    axis.set(xlabel="workers", ylabel="length (one worker's is 1)")
    axis.set_title("How far Adasum goes")
    plots.legend_beside(figure)
    return figure


def cosines(
    panels: Mapping[str, tuple[Sequence[int], Mapping[str, Sequence[float]]]], updates: int
) -> Figure:
    """Mean pairwise cosine by layer over training, a panel for each kind of vector.

    Args:
        panels: title -> (updates, {layer: cosines})
        updates: length of the training
    """
    figure, drawn = plots.side_by_side(panels, width=4.6, height=3.4)
    for axis, title, (when, by_layer) in drawn:
        for (name, values), color in zip(by_layer.items(), cycle(plots.PALETTE)):
            axis.plot(when, values, ".-", color=color, label=name, linewidth=1, markersize=4)
        axis.axhline(0, color="grey", linewidth=0.8)
        axis.set(xlabel="update", ylabel="mean cosine of two workers", title=title)
        axis.set(xlim=(0, updates), ylim=(-0.15, 1.05))
    plots.legend_below(figure, drawn[0][0])
    return figure


def race(curves: Mapping[str, tuple[str, Sequence[float], Sequence[float]]], title: str) -> Figure:
    """Test error over updates; ``curves`` is label -> (reduction, updates, accuracies 0 .. 1).

    A reduction's first curve is drawn solid, its second dashed.
    """
    figure, axis = plots.axes(width=6.8, height=3.8)
    drawn: dict[str, int] = {}
    for label, (reduction, updates, right) in curves.items():
        style = ("-", "--", ":")[drawn.setdefault(reduction, 0) % 3]
        drawn[reduction] += 1
        axis.plot(updates, plots.errors(right), style, color=COLORS[reduction], label=label)
    axis.set(xlabel="update", title=title)
    plots.error_axis(axis, _ERRORS)
    plots.legend_beside(figure)
    return figure


def over_rates(
    accuracies: Mapping[str, Mapping[float, Sequence[float | None]]],
    single: float | None = None,
    title: str = "",
) -> Figure:
    """Test error over the learning rate.

    Args:
        accuracies: reduction -> {learning rate: accuracies 0 .. 1 by seed}; None for a
            failed training
        single: the single worker's learning rate, which is marked
        title: title of the figure
    """
    figure, axis = _over_settings(accuracies, "learning rate", title)
    if single is not None:
        axis.axvline(single, color="grey", linewidth=0.8, linestyle="--", zorder=0)
    return figure


def over_workers(
    accuracies: Mapping[str, Mapping[float, Sequence[float | None]]], title: str = ""
) -> Figure:
    """Test error over the number of workers; like ``over_rates``, by workers."""
    return _over_settings(accuracies, "workers", title)[0]


def _over_settings(
    accuracies: Mapping[str, Mapping[float, Sequence[float | None]]], xlabel: str, title: str
) -> tuple[Figure, Axes]:
    """Draw means over seeds as lines, dashed for names of two words, and each seed as a dot."""
    figure, axis = plots.axes(width=6.8, height=3.8)
    for name, by_setting in accuracies.items():
        reduction, *variant = name.split()
        errors = {setting: plots.errors(right) for setting, right in by_setting.items()}
        plots.mean_and_seeds(
            axis, errors, COLORS[reduction.lower()], NAMES.get(name, name),
            line="--" if variant else "-", mark=".", size=5,
        )  # fmt: skip
    axis.set(xscale="log", xlabel=xlabel, title=title)
    ticks = sorted({setting for by_setting in accuracies.values() for setting in by_setting})
    plots.label_ticks(axis, ticks, "x")
    axis.tick_params(axis="x", labelsize=8)
    plots.error_axis(axis, _ERRORS)
    plots.legend_beside(figure)
    return figure, axis


def critical_batch(
    updates: Mapping[str, Mapping[float, Sequence[float]]],
    curves: Mapping[str, Curve],
    title: str = "",
) -> Figure:
    """Updates to an accuracy over the images of one update, with each critical batch size.

    Args:
        updates: method -> {images of one update: updates by seed}; names of two words are dashed
        curves: method -> the curve through them; a B_crit that is finite and not 0 is marked
        title: title of the figure
    """
    figure, axis = plots.axes(width=7.6, height=4.0)
    for name, by_batch in updates.items():
        color, dashed = COLORS[name.split()[0]], " " in name
        style: dict[str, Any] = {"color": color, "linestyle": "--" if dashed else "-"}
        plots.mean_and_seeds(
            axis, by_batch, color, _spelled(name), line=style["linestyle"], mark=".", size=5
        )
        if 0 < (critical := curves[name].b_crit) < np.inf:
            twice = curves[name].updates(critical)
            axis.vlines(critical, 1, twice, linewidth=0.8, **style)
            face = "white" if dashed else color
            label = f"$B_{{crit}}$ of {_spelled(name)}: {critical:.0f}"
            mark = MARKS[name.split()[0]]
            axis.plot([critical], [twice], mark, color=color, markerfacecolor=face, label=label)
    _perfect_scaling(axis, next(iter(updates.values())))
    axis.set(xscale="log", yscale="log", xlabel="images of one update", ylabel="updates")
    axis.set_title(title)
    plots.label_ticks(axis, sorted(next(iter(updates.values()))), "x")
    every = [each for by_batch in updates.values() for seeds in by_batch.values() for each in seeds]
    plots.label_ticks(axis, _UPDATES)
    axis.set_ylim(0.75 * min(every), 1.3 * max(every))
    plots.legend_beside(figure)
    return figure


def _spelled(method: str) -> str:
    reduction, *variant = method.split()
    return " ".join([NAMES[reduction], *variant])


def _perfect_scaling(axis: Axes, updates: Mapping[float, Sequence[float]]) -> None:
    """Draw half the updates for twice the batch, starting at the smallest batch."""
    batches = sorted(updates)
    images = batches[0] * float(np.mean(updates[batches[0]]))
    halved = [images / batch for batch in batches]
    axis.plot(batches, halved, ":", color="grey", linewidth=1.2, label="perfect scaling", zorder=0)
