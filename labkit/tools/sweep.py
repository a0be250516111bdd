"""`labkit sweep`: one lab over a grid of parameters, several runs at once, each on a core.

Runs that have passed with the same parameters are not repeated, so an interrupted sweep continues
where it stopped, and with one more seed in the grid only that seed is run.
"""

import csv
import hashlib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.base.arguments import is_number, parse_several
from labkit.base.files import whole_file
from labkit.errors import InputError
from labkit.tools import run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Grid = Mapping[str, Sequence[Any]]
TABLE, FIGURE = "sweep.csv", "sweep.png"
SEED = "seed"
_OWN = ("status", "seconds", "peak_memory_mb")


def grid_of(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Return ``{"seed": [1, 2]}`` for ``["seed=1,2"]``; a value may be a list in brackets.

    Raises:
        InputError: if a text is not NAME=VALUE,VALUE, or gives a value twice.
    """
    grid = run.values(texts, parse_several)
    for name, values in grid.items():
        for index, value in enumerate(values):
            if (type(value), value) in [(type(other), other) for other in values[:index]]:
                raise InputError(f"-p {name}: expected each value once, got {value!r} twice")
    if not grid:
        raise InputError("-p: expected at least one parameter, as in -p seed=1,2,3, got none")
    return grid


def tasks(lab: str, grid: Grid, **options: str) -> list[run.Task]:
    """Return a checked task for each point of the grid, the last parameter changing fastest.

    Args:
        lab: number, name or path of the lab.
        grid: values by name.
        **options: ``preset`` and ``device``, as for ``run.tasks``.
    """
    made = []
    for point in itertools.product(*grid.values()):
        parameters = dict(zip(grid, point, strict=True))
        (task,) = run.tasks([lab], parameters=parameters, **options)
        made.append(replace(task, folder=Path("runs", folder_name(parameters))))
    return made


def folder_name(parameters: Mapping[str, Any]) -> str:
    """Return ``micro_steps=4,seed=1``: the same for the same values, whatever their order."""
    name = ",".join(f"{key}={parameters[key]}" for key in sorted(parameters))
    plain = re.sub(r"[^\w.+=,-]+", "_", name, flags=re.ASCII)[:120]
    if plain == name:
        return name
    return f"{plain[:110]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def write(results: Sequence[Mapping[str, Any]], grid: Grid, folder: Path) -> list[Path]:
    """Write sweep.csv, a row per run, and sweep.png into ``folder``; return their paths.

    Columns: parameters, status, seconds, memory, and every metric that is a number.
    """
    lines = [_line(each) for each in results]
    columns = list(dict.fromkeys([*grid, *_OWN, *(name for line in lines for name in line)]))
    with whole_file(folder / TABLE, "the table") as temporary:
        with temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)
    passed = [each for each in results if each["status"] == "passed"]
    if not passed:
        return [folder / TABLE]
    with whole_file(folder / FIGURE, "the figure") as temporary:
        figure(passed, grid).savefig(temporary, format="png", dpi=110, bbox_inches="tight")
    return [folder / TABLE, folder / FIGURE]


def row(results: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a run's line of the closing table: its parameters, status, seconds, headline."""
    _, status, _, seconds, headline = run.row(results)
    return (*map(str, run.parameters_of(results).values()), status, seconds, headline)


def _line(results: Mapping[str, Any]) -> dict[str, Any]:
    line = {**run.parameters_of(results), "status": results["status"]}
    line["seconds"] = results.get("total_seconds", "")
    line["peak_memory_mb"] = results.get("peak_memory_mb", "")
    for name, value in results.get("metrics", {}).items():
        if isinstance(value, bool | int | float) or value in ("nan", "inf", "-inf"):
            line[f"{name} (metric)" if name in line else name] = value
    return line


def figure(results: Sequence[Mapping[str, Any]], grid: Grid) -> "Figure":
    """Draw every headline metric, and the seconds, over the first parameter of the grid.

    Runs that differ only in the seed are dots, a line joins their means; each combination of the
    other parameters has its own colour.
    """
    from labkit.labs.figures import common as plots

    first, *others = grid
    several = [name for name in others if name != SEED and len(grid[name]) > 1]
    names = [n for n in results[0].get("headline", ()) if is_number(results[0]["metrics"].get(n))]
    numbers = all(is_number(value) for value in grid[first])
    drawn, axes = plots.axes(1, len(names) + 1, width=4.2, height=3.2)
    for axis, name in zip(axes if names else [axes], [*names, "seconds"], strict=True):
        groups: dict[str, dict[float, list[float]]] = {}
        for each in results:
            value = each["metrics"].get(name) if name in names else each["total_seconds"]
            if not is_number(value):
                continue
            asked = each["requested"]
            label = ", ".join(f"{key} {asked[key]}" for key in several)
            place = asked[first] if numbers else float(grid[first].index(asked[first]))
            groups.setdefault(label, {}).setdefault(place, []).append(value)
        for number, (label, dots) in enumerate(groups.items()):
            color = plots.PALETTE[number % len(plots.PALETTE)]
            plots.mean_and_seeds(axis, dots, color, label or None, marker="o", markersize=4)
        if not numbers:
            axis.set_xticks(range(len(grid[first])), [str(value) for value in grid[first]])
        axis.set(xlabel=first.replace("_", " "), ylabel=name)
        if several:
            axis.legend(frameon=False, fontsize=8)
    return drawn
