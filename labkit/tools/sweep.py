"""`labkit sweep`: one lab over a grid of parameters; what has passed is not repeated."""

import csv
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from labkit.base.arguments import is_number, parse_several
from labkit.base.files import whole_file
from labkit.errors import InputError
from labkit.tools import run

Grid = Mapping[str, Sequence[Any]]


def grid_of(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Return ``{"seed": [1, 2]}`` for ``["seed=1,2"]``; a value may be a list in brackets."""
    grid = run.values(texts, parse_several)
    if not grid:
        raise InputError("-p: expected at least one parameter, as in -p seed=1,2,3, got none")
    return grid


def tasks(lab: str, grid: Grid, options: Mapping[str, str]) -> list[run.Task]:
    """Return a task for each point of the grid, the last parameter changing fastest."""
    made = {}
    for point in itertools.product(*grid.values()):
        parameters = dict(zip(grid, point, strict=True))
        (task,) = run.tasks([lab], {**parameters, **options})
        name = ",".join(f"{key}={parameters[key]}" for key in sorted(parameters))
        made[name] = replace(task, folder="runs/" + quote(name, safe="=,+[] "))
    return list(made.values())


def write(results: Sequence[Mapping[str, Any]], grid: Grid, folder: Path) -> None:
    """Write sweep.csv, a row per run, and sweep.png into ``folder``."""
    lines = [_line(each) for each in results]
    columns = dict.fromkeys(name for line in lines for name in line)
    with whole_file(folder / "sweep.csv", "the table") as temporary:
        with temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)
    if passed := [each for each in results if each["status"] == "passed"]:
        with whole_file(folder / "sweep.png", "the figure") as temporary:
            figure(passed, grid).savefig(temporary, format="png", dpi=110, bbox_inches="tight")


def _line(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row: parameters, status, seconds, memory, and every metric that is a number."""
    line = run.parameters_of(results["requested"]) | {"status": results["status"]}
    line |= {"seconds": results["total_seconds"], "peak_memory_mb": results["peak_memory_mb"]}
    for name, value in results.get("metrics", {}).items():
        if isinstance(value, bool | int | float) or value in ("nan", "inf", "-inf"):
            line[f"{name} (metric)" if name in line else name] = value
    return line


def figure(results: Sequence[Mapping[str, Any]], grid: Grid) -> Any:
    """Return a figure of each headline metric, and the seconds, by the grid's first parameter.

    Runs that differ only in the seed are dots, a line joins their means; each combination of the
    other parameters has its own colour.
    """
    from labkit.labs.figures import common as plots

    first, *others = grid
    several = [name for name in others if name != "seed" and len(grid[name]) > 1]
    names = [n for n in results[0].get("headline", ()) if is_number(results[0]["metrics"][n])]
    drawn, axes = plots.axes(1, len(names) + 1, width=4.2, height=3.2)
    for axis, name in zip(axes if names else [axes], [*names, "total_seconds"], strict=True):
        groups: dict[str, dict[float, list[float]]] = {}
        for each in results:
            asked: dict[str, Any] = each["requested"]
            value: Any = {**each, **each.get("metrics", {})}.get(name)
            label = ", ".join(f"{key} {asked[key]}" for key in several)
            place = grid[first].index(asked[first])
            if is_number(value):
                groups.setdefault(label, {}).setdefault(place, []).append(value)
        for (label, dots), color in zip(groups.items(), itertools.cycle(plots.PALETTE)):
            plots.mean_and_seeds(axis, dots, color, label or None, marker="o", markersize=4)
        axis.set_xticks(range(len(grid[first])), map(str, grid[first]))
        axis.set(xlabel=first.replace("_", " "), ylabel=name.replace("_", " "))
        if several:
            axis.legend(frameon=False, fontsize=8)
    return drawn
