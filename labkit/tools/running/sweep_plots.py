"""Figures of a sweep: a metric over the first parameter, the spread over seeds. No MindSpore."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.base.arguments import is_number
from labkit.labs.figures import common as plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Grid = Mapping[str, Sequence[Any]]
SEED = "seed"
_MARKS = "osD^vP*"
# A metric that ends so, or is called so, has the unit.
_UNITS = {"seconds": "s", "accuracy": "fraction", "loss": "nats", "mb": "MB"}
_UNITS |= {"batch size": "images", "train images": "images", "micro steps": "micro-batches"}


def metric(name: str, values: Sequence[tuple[Mapping[str, Any], float]], axes: Grid) -> "Figure":
    """Draw one metric over the first parameter of a sweep.

    Runs that differ in their seed alone are one dot each, their mean a line, and a band from the
    smallest to the largest; each combination of the other parameters has a colour of its own.

    Args:
        name: of the metric.
        values: (parameters, value) of each run that has it.
        axes: the grid; its first parameter is the horizontal axis.
    """
    first, *others = axes
    several = [other for other in others if other != SEED and len(axes[other]) > 1]
    groups: dict[tuple, list[tuple[int, float]]] = {}
    for parameters, value in values:
        group = tuple(parameters[other] for other in several)
        groups.setdefault(group, []).append((_index(axes[first], parameters[first]), value))
    where, ticks = _places(axes[first])
    figure, axis = plots.axes(width=6.4 if len(groups) > 1 else 5.2, height=3.6)
    for number, (group, dots) in enumerate(groups.items()):
        label = ", ".join(f"{key} {_short(x)}" for key, x in zip(several, group, strict=True))
        _series(axis, where, dots, number, label)
    if ticks is not None:
        axis.set_xscale("log" if ticks == "log" else "linear")
        labels = [_short(value) for value in axes[first]]
        axis.set_xticks(where, labels, minor=False)
        axis.minorticks_off()
        if max(map(len, labels)) > 6:
            axis.tick_params(axis="x", rotation=30)
    axis.set(xlabel=_labelled(first), ylabel=_labelled(name))
    axis.set_title(_title(axes, first), fontsize=9)
    if several:
        axis.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _series(
    axis: "Axes", where: Sequence[float], dots: Sequence[tuple[int, float]], number: int, label: str
) -> None:
    color, mark = plots.PALETTE[number % len(plots.PALETTE)], _MARKS[number % len(_MARKS)]
    by_place: dict[int, list[float]] = {}
    for place, value in dots:
        by_place.setdefault(place, []).append(value)
    places = sorted(by_place)
    x = [where[place] for place in places]
    middle = [np.mean(by_place[place]) for place in places]
    axis.plot(x, middle, color=color, label=label or None, zorder=2)
    axis.plot(
        [where[place] for place, _ in dots], [value for _, value in dots],
        mark, color=color, markersize=5, alpha=0.7, zorder=3,
    )  # fmt: skip
    if any(len(values) > 1 for values in by_place.values()):
        low, high = ([end(by_place[place]) for place in places] for end in (min, max))
        axis.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0, zorder=1)


def _places(values: Sequence[Any]) -> tuple[list[float], str | None]:
    """Return where the values of the first parameter lie, and how the axis is divided."""
    if not all(map(is_number, values)):
        return list(range(len(values))), "names"
    numbers = [float(value) for value in values]
    # 1, 2, 4, 8 and 0.001, 0.01, 0.1 are steps by a factor: equal distances show them best.
    geometric = min(numbers) > 0 and max(numbers) / min(numbers) >= 8
    return numbers, "log" if geometric else ("names" if len(numbers) <= 8 else None)


def _index(values: Sequence[Any], value: Any) -> int:
    return next(i for i, x in enumerate(values) if type(x) is type(value) and x == value)


def _labelled(name: str) -> str:
    words = name.lower().replace("_", " ")
    unit = next((unit for word, unit in _UNITS.items() if f" {words}".endswith(f" {word}")), "")
    shown = name if len(name) <= 40 else name.replace(", ", ",\n", 1)
    return f"{shown} ({unit})" if unit else shown


def _title(axes: Grid, first: str) -> str:
    fixed = [f"{k} {_short(v[0])}" for k, v in axes.items() if k != first and len(v) == 1]
    seeds = len(axes.get(SEED, ())) if first != SEED else 0
    if seeds > 1:
        fixed.append(f"{seeds} seeds: dots; line: mean; band: smallest to largest")
    return ", ".join(fixed)


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
