"""The results of a sweep: sweep.csv, a row a run, and a figure of every metric."""

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.base.files import whole_file
from labkit.base.input_files import open_file
from labkit.errors import InputError
from labkit.labs.run_files import FIGURES, SWEEP_TABLE
from labkit.tools.running import grid
from labkit.tools.running.sweep import Row

_LONGEST_HEADER = 1 << 16  # bytes
_OWN = ("status", "cause", "seconds", "peak_memory_mb")


def table(rows: Sequence[Row]) -> tuple[list[str], list[dict[str, Any]]]:
    """Return (columns, rows) of a tidy table: parameters, status, cause, seconds, metrics.

    A metric is a number or a truth; lists and mappings stay in results.json. A run that failed has
    empty cells where it has no metric.
    """
    parameters = list(dict.fromkeys(name for row in rows for name in row.parameters))
    numbers = [_numbers(row.results.get("metrics", {})) for row in rows]
    metrics = dict.fromkeys(name for values in numbers for name in values)
    # A lab may call a metric like a parameter.
    titles = {
        name: f"{name} (metric)" if name in (*parameters, *_OWN) else name for name in metrics
    }
    written = []
    for row, values in zip(rows, numbers, strict=True):
        line = {name: grid.text(row.parameters[name]) for name in row.parameters}
        line |= {
            "status": row.results.get("status", "failed"),
            "cause": row.results.get("error", {}).get("cause", ""),
            "seconds": row.results.get("total_seconds", ""),
            "peak_memory_mb": row.results.get("peak_memory_mb", ""),
        }
        written.append(line | {titles[name]: value for name, value in values.items()})
    return [*parameters, *_OWN, *titles.values()], written


def write(rows: Sequence[Row], axes: Mapping[str, Sequence[Any]], folder: Path) -> list[Path]:
    """Write sweep.csv and the figures into ``folder``; return their paths, the table first."""
    from labkit.labs.figures.common import png
    from labkit.tools.running import sweep_plots

    columns, lines = table(rows)
    place = folder / SWEEP_TABLE
    before = _drawn_before(place)
    with whole_file(place, "the table") as temporary:
        with temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)
    written = [place]
    passed = [row for row in rows if row.results.get("status") == "passed"]
    for name in columns[len(rows[0].parameters) + len(_OWN) :] + ["seconds"]:
        with_none = [(row.parameters, _value(row, name)) for row in passed]
        values = [(where, value) for where, value in with_none if value is not None]
        if not values:
            continue
        target = folder / FIGURES / f"{_file_name(name)}.png"
        with whole_file(target, "the figure") as temporary:
            temporary.write_bytes(png(sweep_plots.metric(name, values, axes)))
        written.append(target)
    for name in before:
        path = folder / FIGURES / f"{name}.png"
        if path not in written:  # of a metric that the table no longer has
            path.unlink(missing_ok=True)
    return written


def _drawn_before(place: Path) -> list[str]:
    """Return what the figures of the table at ``place`` are called, where there is one.

    Other figures are not the sweep's, and stay.
    """
    try:
        with open_file(place) as file:
            header = file.readline(_LONGEST_HEADER).decode("utf-8", "replace")
        columns = next(csv.reader([header]), [])
    except (OSError, InputError, csv.Error):
        return []
    return [_file_name(name) for name in columns]


def _value(row: Row, name: str) -> float | None:
    if name == "seconds":
        value = row.results.get("total_seconds")
    else:
        value = _numbers(row.results.get("metrics", {})).get(name.removesuffix(" (metric)"))
    return float(value) if value is not None and math.isfinite(value) else None


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float | int | bool]:
    """Return the metrics that are one number each; "nan" and "inf" are results.json's texts."""
    numbers = {}
    for name, value in metrics.items():
        if value in ("nan", "inf", "-inf"):
            value = float(value)
        if isinstance(value, bool | int | float):
            numbers[name] = value
    return numbers


def _file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name).strip("_") or "metric"
