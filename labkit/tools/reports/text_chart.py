"""A curve as lines of text, for a terminal. Plain ASCII: any terminal and any log can show it."""

import math
from collections.abc import Sequence

from labkit.tools.reports.curves import Point, is_drawn

_LABEL = 10


def chart(curve: Sequence[Point], title: str, x: str, width: int = 72, height: int = 10) -> str:
    """Return a curve as a chart of ``height`` lines of at most ``width`` letters, and its axes.

    Each column shows the mean of the points that fall into it. Points that are not finite are left
    out, and their number is said. Positive values over more than two decades get a logarithmic
    axis, which the title says.
    """
    finite = [(a, b) for a, b in curve if is_drawn(a) and is_drawn(b)]
    lost = len(curve) - len(finite)
    note = f", {lost} not finite" if lost else ""
    if not finite:
        return f"{title}: no numbers yet{note}"
    columns = max(10, width - _LABEL - 2)
    means = _means(finite, columns)
    values = list(means.values())
    logarithmic = min(values) > 0 and max(values) > 100 * min(values)
    note = f", logarithmic{note}" if logarithmic else note
    scaled = {column: math.log10(b) if logarithmic else b for column, b in means.items()}
    low, high = min(scaled.values()), max(scaled.values())
    grid = [[" "] * columns for _ in range(height)]
    for column, value in scaled.items():
        # Halves: the span of two huge numbers would be an infinity.
        part = (value / 2 - low / 2) / (high / 2 - low / 2) if high > low else 0.5
        grid[height - 1 - round(part * (height - 1))][column] = "*"
    labels = {0: max(values), height - 1: min(values)} if high > low else {height // 2: values[0]}
    lines = [f"{title}{note}"]
    for number, row in enumerate(grid):
        label = f"{labels[number]:.4g}" if number in labels else ""
        lines.append(f"{label:>{_LABEL}} |{''.join(row)}".rstrip())
    lines.append(" " * _LABEL + " +" + "-" * columns)
    return "\n".join([*lines, _foot(finite, x, columns)])


def _means(curve: Sequence[Point], columns: int) -> dict[int, float]:
    """Return column -> mean of its points; x from left to right over all columns."""
    xs = [a for a, _ in curve]
    low, span = min(xs), max(xs) - min(xs)
    cells: dict[int, list[float]] = {}
    for a, b in curve:
        column = round((a - low) / span * (columns - 1)) if 0 < span < math.inf else 0
        cells.setdefault(column, []).append(b)
    return {column: math.fsum(b / len(all_) for b in all_) for column, all_ in cells.items()}


def _foot(curve: Sequence[Point], x: str, columns: int) -> str:
    first, last = f"{min(a for a, _ in curve):g}", f"{max(a for a, _ in curve):g}"
    middle = x.center(max(0, columns - len(first) - len(last)))
    return " " * (_LABEL + 2) + f"{first}{middle}{last}"
