"""Curves of records: several runs overlaid as SVG, and one as text for a terminal.

A panel shows one column of records.csv over updates or over seconds. It takes its colours from the
page; its text is sized for a phone's screen, where the panel is as wide as it was drawn.
A text chart is plain ASCII: any terminal and any log can show it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup, escape

_WIDTH, _HEIGHT = 340, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 10, 8, 34
# A phone draws 340 points side by side; more only make the page larger.
_POINTS = 400
_WINDOW = 25
# Lines of one panel that can still be distinguished: seven colours, four patterns of dashes.
_COLOURS, _DASHES = 7, ("", "6 3", "2 3", "8 3 2 3")
MOST = _COLOURS * len(_DASHES)
_X_NAMES = ("update", "step", "epoch")
_NOT_DRAWN = ("images", "seconds", *_X_NAMES)
# Units of columns and metrics whose names are these words or end in them.
_UNITS = {"seconds": "s", "accuracy": "0 to 1", "loss": "nats", "mb": "MB"}
_UNITS |= {"batch size": "images", "train images": "images", "micro steps": "micro-batches"}
FIRST = ("loss", "training_loss", "accuracy")
_LABEL = 10  # characters before the axis of a text chart

Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """One run's curve: ``number`` chooses its colour and dashes, the same in every panel."""

    label: str
    number: int
    points: Sequence[Point]


@dataclass(frozen=True)
class Panel:
    """One picture: ``loss (nats) over time (s)``, its lines, whether y is logarithmic, the SVG."""

    title: str
    lines: tuple[Line, ...]
    logarithmic: bool
    svg: Markup


def columns(rows: Sequence[Mapping]) -> list[str]:
    """Return the columns of records that are drawn, loss and accuracy first."""
    names = [name for name in rows[0] if name not in _NOT_DRAWN] if rows else []
    return sorted(names, key=lambda name: (name not in FIRST, names.index(name)))


def points(rows: Sequence[Mapping], x: str, y: str) -> list[Point]:
    """Return (x, y) of each row with both; "update" falls back to step, epoch or row number."""
    counts = x == "update" and bool(rows) and x not in rows[0]
    if counts:
        x = next((name for name in _X_NAMES if name in rows[0]), "")
    numbered = enumerate(rows, start=1)
    pairs = [(row.get(x, number if counts else None), row.get(y)) for number, row in numbered]
    return [(float(a), float(b)) for a, b in pairs if a is not None and b is not None]


def panel(lines: Iterable[Line], x: str, y: str) -> Panel:
    """Draw ``lines`` over each other; losses and other noisy columns as running means."""
    lines = tuple(replace(line, points=_thin(_smooth(line.points, y))) for line in lines)
    heights = [b for line in lines for _, b in line.points if is_drawn(b)]
    # A training that diverged to infinity still has a finite beginning.
    logarithmic = bool(heights) and min(heights) > 0 and max(heights) > 30 * min(heights)
    title = f"{with_unit(y)} over {with_unit(x)}"
    return Panel(title, lines, logarithmic, _draw(lines, title, x, heights, logarithmic))


def with_unit(name: str) -> str:
    """Return the name of a column or a metric as an axis shows it: ``loss (nats)``."""
    words = name.replace("_", " ")
    lower = f" {words.lower()}"
    unit = next((unit for end, unit in _UNITS.items() if lower.endswith(f" {end}")), "")
    words = "time" if name == "seconds" else words.removesuffix(" mb")
    return f"{words} ({unit})" if unit else words


def is_drawn(value: float) -> bool:
    """Return whether a value fits on an axis: finite, and the sum of two does not overflow."""
    return abs(value) < 1e300


def look(number: int) -> tuple[int, str]:
    """Return the colour and the dashes of line ``number``."""
    return number % _COLOURS, _DASHES[number // _COLOURS % len(_DASHES)]


def ticks(low: float, high: float) -> list[float]:
    """Return about six round numbers from ``low`` to ``high``.

    If the two are too close for floats to divide the interval, return only ``low``.
    """
    raw = (high - low) / 6
    if not raw > 0 or not math.isfinite(raw) or high + raw == high or low - raw == low:
        return [low]
    size = 10.0 ** math.floor(math.log10(raw))
    step = next((size * n for n in (1, 2, 5, 10) if size * n >= raw * 0.999), size * 10)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)] or [low]


def chart(curve: Sequence[Point], title: str, x: str, width: int = 72, height: int = 10) -> str:
    """Return a curve as text: ``height`` lines of at most ``width`` characters, and its axes.

    Each column shows the mean of the points that fall into it. Points that are not finite are left
    out, and their number is stated. Positive values over more than two decades get a logarithmic
    axis, and the title says so.
    """
    finite = [(a, b) for a, b in curve if is_drawn(a) and is_drawn(b)]
    lost = len(curve) - len(finite)
    note = f", {lost} not finite" if lost else ""
    if not finite:
        return f"{title}: no numbers yet{note}"
    columns = max(10, width - _LABEL - 2)
    means = _means(finite, columns)
    low, high = min(means.values()), max(means.values())
    up = _Axis(low, high, 0, height - 1, 0 < 100 * low < high)
    rows = {column: round(up.place(value)) for column, value in means.items()}
    labels = {round(up.place(value)): f"{value:.4g}" for value in (low, high)}
    lines = [f"{title}{', logarithmic' if up.logarithmic else ''}{note}"]
    for row in reversed(range(height)):
        stars = "".join("*" if rows.get(column) == row else " " for column in range(columns))
        lines.append(f"{labels.get(row, ''):>{_LABEL}} |{stars}".rstrip())
    lines.append(" " * _LABEL + " +" + "-" * columns)
    xs = [a for a, _ in finite]
    first, last = f"{min(xs):g}", f"{max(xs):g}"
    middle = x.center(max(0, columns - len(first) - len(last)))
    return "\n".join([*lines, " " * (_LABEL + 2) + f"{first}{middle}{last}"])


def _smooth(curve: Sequence[Point], y: str) -> Sequence[Point]:
    """Return the running mean of ``_WINDOW`` points if ``y`` is measured at every update."""
    if len(curve) < 4 * _WINDOW or "accuracy" in y or y in ("learning_rate", "peak_memory_mb"):
        return curve
    from labkit.labs.figures.common import smooth

    heights = [b for _, b in curve]
    if not all(map(is_drawn, heights)):
        return curve
    return [(a, float(b)) for (a, _), b in zip(curve, smooth(heights, _WINDOW), strict=True)]


def _thin(curve: Sequence[Point]) -> Sequence[Point]:
    """Return at most about ``_POINTS`` points: the lowest and the highest of each stretch."""
    if len(curve) <= _POINTS:
        return curve
    stretch = -(-2 * len(curve) // _POINTS)
    kept = [curve[0]]
    for start in range(0, len(curve), stretch):
        part = curve[start : start + stretch]
        heights = [b for _, b in part]
        finite = [place for place, b in enumerate(heights) if is_drawn(b)] or [0]
        # Values that cannot be drawn stay: they break the line there.
        places = {place for place, b in enumerate(heights) if not is_drawn(b)}
        places |= {min(finite, key=heights.__getitem__), max(finite, key=heights.__getitem__)}
        kept += [part[place] for place in sorted(places)]
    return [*kept, curve[-1]]


def _draw(
    lines: Sequence[Line], title: str, x: str, heights: Sequence[float], logarithmic: bool
) -> Markup:
    xs = [a for line in lines for a, _ in line.points if is_drawn(a)]
    alt = escape(f"{title}: {', '.join(line.label for line in lines)}")
    parts = [f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{alt}">']
    if xs and heights:
        across = _Axis(min(xs), max(xs), _LEFT, _WIDTH - _RIGHT, False)
        up = _Axis(min(heights), max(heights), _HEIGHT - _BOTTOM, _TOP, logarithmic)
        parts += _frame(across, up, x)
        parts += [_path(line, across, up) for line in lines]
    else:
        middle = f'x="{_WIDTH / 2}" y="{_HEIGHT / 2}" class="middle"'
        parts.append(f"<text {middle}>no numbers</text>")
    return Markup("".join([*parts, "</svg>"]))


class _Axis:
    """Maps values to places on the picture."""

    def __init__(
        self, low: float, high: float, start: float, end: float, logarithmic: bool
    ) -> None:
        self.scale = math.log10 if logarithmic else float
        if low == high:
            # A constant is drawn as a horizontal line in the middle.
            margin = abs(low) * 0.1 or 0.5
            low, high = (low / 1.1, high * 1.1) if logarithmic else (low - margin, high + margin)
        self.low, self.high, self.start, self.end = low, high, start, end
        self.logarithmic = logarithmic

    def place(self, value: float) -> float:
        low, high = self.scale(self.low), self.scale(self.high)
        part = (self.scale(value) - low) / ((high - low) or 1.0)
        return self.start + part * (self.end - self.start)

    def ticks(self) -> list[float]:
        if not self.logarithmic:
            return ticks(self.low, self.high)
        low, high = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        every = max(1, (high - low) // 5)
        whole = [10.0**power for power in range(low, high + 1, every) if abs(power) < 300]
        return [value for value in whole if self.low <= value <= self.high] or [self.low]


def _frame(across: _Axis, up: _Axis, x: str) -> list[str]:
    parts = []
    for value in up.ticks():
        place = up.place(value)
        parts.append(
            f'<path class="grid" d="M{_LEFT} {place:.1f}H{_WIDTH - _RIGHT}"/>'
            f'<text class="end" x="{_LEFT - 5}" y="{place + 4:.1f}">{_tick(value)}</text>'
        )
    for value in across.ticks():
        place = across.place(value)
        # The last number must not extend beyond the edge of the picture.
        anchor = "end" if place > _WIDTH - _RIGHT - 14 else "middle"
        parts.append(
            f'<path class="grid" d="M{place:.1f} {_TOP}V{_HEIGHT - _BOTTOM}"/>'
            f'<text class="{anchor}" x="{place:.1f}" y="{_HEIGHT - _BOTTOM + 14}">'
            f"{_tick(value)}</text>"
        )
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(
        f'<text class="middle" x="{middle}" y="{_HEIGHT - 4}">{escape(with_unit(x))}</text>'
    )
    return parts


def _path(line: Line, across: _Axis, up: _Axis) -> str:
    drawn, pen = [], "M"
    for a, b in line.points:
        if not (is_drawn(a) and is_drawn(b)):
            pen = "M"
            continue
        drawn.append(f"{pen}{across.place(a):.1f} {up.place(b):.1f}")
        pen = "L"
    colour, dash = look(line.number)
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    name = f"<title>{escape(line.label)}</title>"
    return f'<path class="line c{colour}"{dashes} d="{"".join(drawn)}">{name}</path>'


def _tick(value: float) -> str:
    if value and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.3g}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:.6g}"


def _means(curve: Sequence[Point], columns: int) -> dict[int, float]:
    """Return column -> mean of its points; x spans all columns from left to right."""
    xs = [a for a, _ in curve]
    low, span = min(xs), (max(xs) - min(xs)) or 1.0
    cells: dict[int, list[float]] = {}
    for a, b in curve:
        cells.setdefault(round((a - low) / span * (columns - 1)), []).append(b)
    return {column: math.fsum(b / len(all_) for b in all_) for column, all_ in cells.items()}
