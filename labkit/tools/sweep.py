"""`labkit sweep`: one lab over a grid of parameters; what has passed is not repeated."""

import csv
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from labkit.base.arguments import is_number
from labkit.base.files import whole_file
from labkit.tools import run

Grid = Mapping[str, Sequence[Any]]


def tasks(lab: str, grid: Grid, options: Mapping[str, str]) -> list[run.Task]:
    """Return a task for each point of the grid, the last parameter changing fastest."""
    made = {}
    for point in itertools.product(*grid.values()):
        parameters = dict(zip(grid, point, strict=True))
        (task,) = run.tasks([lab], {**parameters, **options})
        name = ",".join(f"{key}={parameters[key]}" for key in sorted(parameters))
        made[name] = task._replace(folder="runs/" + quote(name, safe="=,+[] "))
    return list(made.values())


def write(results: Sequence[Mapping[str, Any]], grid: Grid, folder: Path) -> None:
    """Write sweep.csv, a row per run, and sweep.png into ``folder``.

    Columns: parameters, status, seconds, memory, and every metric that is a number.
    """
    rows = []
    for each in results:
        row = run.parameters_of(each["requested"]) | {"status": each["status"]}
        row |= {"seconds": each["total_seconds"], "peak_memory_mb": each["peak_memory_mb"]}
        for name, value in each.get("metrics", {}).items():
            if isinstance(value, bool | int | float) or value in ("nan", "inf", "-inf"):
                row[f"{name} (metric)" if name in row else name] = value
        rows.append(row)
    columns = dict.fromkeys(name for row in rows for name in row)
    with whole_file(folder / "sweep.csv", "the table") as temporary:
        with temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    if passed := [each for each in results if each["status"] == "passed"]:
        with whole_file(folder / "sweep.png", "the figure") as temporary:
            figure(passed, grid).savefig(temporary, format="png", dpi=110, bbox_inches="tight")


def figure(results: Sequence[Mapping[str, Any]], grid: Grid) -> Any:
    """Return a figure of each headline metric, and the seconds, by the grid's first parameter.

    Runs that differ only in the seed are dots, a line joins their means; each combination of the
    other parameters has its own colour.
    """
    from labkit.labs.figures import common as plots

    first, *others = grid
    numbers = all(is_number(value) for value in grid[first])
    several = [name for name in others if name != "seed" and len(grid[name]) > 1]
    names = [n for n in results[0].get("headline", ()) if is_number(results[0]["metrics"][n])]
    drawn, axes = plots.side_by_side(dict.fromkeys([*names, "total_seconds"]), 4.2)
    for axis, name, _ in axes:
        groups: dict[str, dict[float, list[float]]] = {}
        for each in results:
            asked: dict[str, Any] = each["requested"]
            value: Any = {**each, **each.get("metrics", {})}.get(name)
            label = ", ".join(f"{key} {asked[key]}" for key in several)
            place = asked[first] if numbers else grid[first].index(asked[first])
            if is_number(value):
                groups.setdefault(label, {}).setdefault(place, []).append(value)
        for (label, dots), color in zip(groups.items(), itertools.cycle(plots.PALETTE)):
            plots.mean_and_seeds(axis, dots, color, label or None, marker="o", markersize=4)
        if not numbers:
            axis.set_xticks(range(len(grid[first])), map(str, grid[first]))
        axis.set(xlabel=first.replace("_", " "), ylabel=name.replace("_", " "))
        if several:
            axis.legend(frameon=False, fontsize=8)
    return drawn
