"""Results of a sweep, without MindSpore: sweep.csv, a row per run, and a figure per metric."""

import csv
import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.base.arguments import is_number
from labkit.base.files import whole_file
from labkit.base.input_files import first_bytes
from labkit.labs.run_files import FIGURES, SWEEP_TABLE
from labkit.tools.reports.curves import with_unit
from labkit.tools.running.request import text
from labkit.tools.running.runner import Outcome

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Grid = Mapping[str, Sequence[Any]]
SEED = "seed"
_LONGEST_HEADER = 1 << 16  # bytes
_OWN = ("status", "cause", "seconds", "peak_memory_mb")
_MARKS = "osD^vP*"


def table(runs: Sequence[Outcome]) -> tuple[list[str], list[dict[str, Any]]]:
    """Return (columns, rows) of a tidy table: parameters, status, cause, seconds, memory, metrics.

    A metric is a number or a boolean; lists and mappings stay in results.json. Metrics that a
    failed run does not have are empty cells.
    """
    parameters = list(dict.fromkeys(name for run in runs for name in run.parameters))
    titles: dict[str, str] = {}
    lines = []
    for run in runs:
        line: dict[str, Any] = {name: text(run.parameters[name]) for name in run.parameters}
        line |= {
            "status": run.results["status"],
            "cause": run.failure.cause if run.failure else "",
            "seconds": run.results.get("total_seconds", ""),
            "peak_memory_mb": run.results.get("peak_memory_mb", ""),
        }
        for name, value in run.results.get("metrics", {}).items():
            if value in ("nan", "inf", "-inf"):  # as results.json spells them
                value = float(value)
            if isinstance(value, bool | int | float):
                # A metric may have the name of a parameter.
                taken = name in (*parameters, *_OWN)
                line[titles.setdefault(name, f"{name} (metric)" if taken else name)] = value
        lines.append(line)
    return [*parameters, *_OWN, *titles.values()], lines


def write(runs: Sequence[Outcome], axes: Grid, folder: Path) -> list[Path]:
    """Write sweep.csv and the figures into ``folder``; return their paths, the table first."""
    from labkit.labs.figures.common import png

    columns, lines = table(runs)
    place = folder / SWEEP_TABLE
    before, names = _file_names(_header_before(place)), _file_names(columns)
    with whole_file(place, "the table") as temporary:
        with temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)
    written = [place]
    for name in [*columns[len(runs[0].parameters) + len(_OWN) :], "seconds"]:
        values = [
            (run.parameters, float(line[name]))
            for run, line in zip(runs, lines, strict=True)
            if line["status"] == "passed"
            if isinstance(line.get(name), bool) or is_number(line.get(name))
        ]
        if not values:
            continue
        target = folder / FIGURES / names[name]
        with whole_file(target, "the figure") as temporary:
            temporary.write_bytes(png(figure(name, values, axes)))
        written.append(target)
    for path in (folder / FIGURES / name for name in before.values()):
        if path not in written:  # figure of a metric that is no longer in the table
            path.unlink(missing_ok=True)
    return written


def _header_before(place: Path) -> list[str]:
    """Return the columns of the earlier table at ``place``, if there is one.

    Only the figures of these columns belong to the sweep; other files in the folder stay.
    """
    header = first_bytes(place, _LONGEST_HEADER).partition(b"\n")[0].decode("utf-8", "replace")
    try:
        return next(csv.reader([header]), [])
    except csv.Error:
        return []


def _file_names(columns: Iterable[str]) -> dict[str, str]:
    """Return column -> file name of its figure, numbered if another column already has the name."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for column in columns:
        letters = (letter if letter.isalnum() else "_" for letter in column)
        plain = "".join(letters).strip("_") or "metric"
        numbered = itertools.chain([plain], (f"{plain}_{n}" for n in itertools.count(2)))
        names[column] = next(f"{name}.png" for name in numbered if f"{name}.png" not in taken)
        taken.add(names[column])
    return names


def figure(name: str, values: Sequence[tuple[Mapping[str, Any], float]], axes: Grid) -> "Figure":
    """Draw one metric over the first parameter of a sweep.

    For runs that differ only in the seed, each run is a dot, a line shows their mean, and a band
    spans the smallest to the largest; each combination of the other parameters has its own colour.

    Args:
        name: name of the metric.
        values: (parameters, value) of each run that has the metric.
        axes: the grid; its first parameter is the horizontal axis.
    """
    from labkit.labs.figures import common as plots

    first, *others = axes
    several = [other for other in others if other != SEED and len(axes[other]) > 1]
    places, ticks = _places(axes[first])
    # As text, since 1, 1.0 and True must stay distinct and a list is not hashable.
    where = dict(zip(map(text, axes[first]), places, strict=True))
    # Combination -> place on the axis -> values.
    groups: dict[tuple, dict[float, list[float]]] = {}
    for parameters, value in values:
        dots = groups.setdefault(tuple(text(parameters[other]) for other in several), {})
        dots.setdefault(where[text(parameters[first])], []).append(value)
    drawn, axis = plots.axes(width=6.4 if len(groups) > 1 else 5.2, height=3.6)
    for number, (group, dots) in enumerate(groups.items()):
        label = ", ".join(f"{key} {x}" for key, x in zip(several, group, strict=True))
        color, mark = plots.PALETTE[number % len(plots.PALETTE)], _MARKS[number % len(_MARKS)]
        plots.mean_and_seeds(axis, dots, color, label or None, mark=mark, size=5, alpha=0.7)
        if any(len(seeds) > 1 for seeds in dots.values()):
            low, high = ([end(dots[x]) for x in sorted(dots)] for end in (min, max))
            axis.fill_between(sorted(dots), low, high, color=color, alpha=0.15, linewidth=0)
    if ticks is not None:
        labels = [_short(value) for value in axes[first]]
        axis.set_xscale(ticks)
        axis.set_xticks(places, labels, minor=False)
        axis.minorticks_off()
        if max(map(len, labels)) > 6:
            axis.tick_params(axis="x", rotation=30)
    axis.set(xlabel=_labelled(first), ylabel=_labelled(name))
    axis.set_title(_title(axes, first), fontsize=9)
    if several:
        axis.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return drawn


def _places(values: Sequence[Any]) -> tuple[list[float], str | None]:
    """Return the positions of the first parameter's values and the scale; None: default ticks."""
    if not all(map(is_number, values)):
        return list(range(len(values))), "linear"
    numbers = [float(value) for value in values]
    # Geometric steps such as 1, 2, 4, 8 or 0.001, 0.01, 0.1 are shown at equal distances.
    geometric = min(numbers) > 0 and max(numbers) / min(numbers) >= 8
    return numbers, "log" if geometric else ("linear" if len(numbers) <= 8 else None)


def _labelled(name: str) -> str:
    label = with_unit(name)
    return label if len(name) <= 40 else label.replace(", ", ",\n", 1)


def _title(axes: Grid, first: str) -> str:
    fixed = [f"{k} {_short(v[0])}" for k, v in axes.items() if k != first and len(v) == 1]
    seeds = len(axes.get(SEED, ())) if first != SEED else 0
    if seeds > 1:
        fixed.append(f"{seeds} seeds: dots; line: mean; band: smallest to largest")
    return ", ".join(fixed)


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
