"""Reads a picture of docs/figures: its boxes, lines and texts, and the size of each text.

A reader's fonts are unknown: widths are those of DejaVu, which comes with matplotlib and is wider
than the fonts that the pictures request.
"""

import re
from dataclasses import dataclass
from functools import cache
from xml.etree import ElementTree

SVG = "{http://www.w3.org/2000/svg}"
_STEP = re.compile(r"([MLQHVhvz])([^MLQHVhvz]*)")


@dataclass(frozen=True)
class Rect:
    left: float
    top: float
    right: float
    bottom: float
    kind: frozenset = frozenset()
    text: str = ""

    def holds(self, other: "Rect", margin: float = 0.0) -> bool:
        return (
            self.left + margin <= other.left
            and other.right <= self.right - margin
            and self.top + margin <= other.top
            and other.bottom <= self.bottom - margin
        )

    def meets(self, other: "Rect") -> bool:
        return (
            max(self.left, other.left) < min(self.right, other.right)
            and max(self.top, other.top) < min(self.bottom, other.bottom)
        )  # fmt: skip

    @property
    def area(self) -> float:
        return (self.right - self.left) * (self.bottom - self.top)

    def border_distance(self, x: float, y: float) -> float:
        """Return how far a point is from the rectangle's border."""
        dx = max(self.left - x, 0, x - self.right)
        dy = max(self.top - y, 0, y - self.bottom)
        if dx or dy:
            return (dx * dx + dy * dy) ** 0.5
        return min(x - self.left, self.right - x, y - self.top, self.bottom - y)


class Picture:
    """The contents of a file and their positions; all rectangles are in units of the viewBox."""

    def __init__(self, text: str):
        self.text = text
        self.root = ElementTree.fromstring(text)
        self.width, self.height = map(float, self.root.attrib["viewBox"].split()[2:])
        self.style = self.root.findtext(f"{SVG}style")
        rects = [_rect(element) for element in self.root.iter(f"{SVG}rect")]
        self.page = rects[0]
        self.boxes = rects[1:]
        self.texts = [_measured(element) for element in self.root.iter(f"{SVG}text")]
        self.sizes = [
            float(element.attrib["font-size"])
            for element in self.root.iter()
            if "font-size" in element.attrib
        ]
        self.segments = [
            segment
            for element in self.root.iter(f"{SVG}path")
            if "line" in element.attrib["class"].split()
            for segment in _segments(element.attrib["d"])
        ]
        tips = (e.attrib["points"].split()[0] for e in self.root.iter(f"{SVG}polygon"))
        self.tips = [tuple(map(float, tip.split(","))) for tip in tips]

    def under(self, place: Rect) -> Rect:
        """Return the smallest box, or the page, in which the middle of ``place`` lies."""
        x, y = (place.left + place.right) / 2, (place.top + place.bottom) / 2
        around = [
            b for b in (self.page, *self.boxes)
            if b.left <= x <= b.right and b.top <= y <= b.bottom
        ]  # fmt: skip
        return min(around, key=lambda box: box.area)

    def colours(self, dark: bool) -> dict[tuple[str, ...], dict[str, str]]:
        """Return a theme's {classes of a selector: {property: #rrggbb}}; ("text",) is all text."""
        light, _, rest = self.style.partition("@media (prefers-color-scheme:dark)")
        colours: dict[tuple[str, ...], dict[str, str]] = {}
        for part in (light, rest) if dark else (light,):
            for selector, body in re.findall(r"([\w. ]+)\{([^{}]*)\}", part):
                values = dict(re.findall(r"(fill|stroke):(#[0-9a-f]{6})", body))
                key = tuple(sorted(selector.strip(". ").split(".")))
                colours.setdefault(key, {}).update(values)
        return colours


def _rect(element: ElementTree.Element) -> Rect:
    at = element.attrib
    x, y = float(at.get("x", 0)), float(at.get("y", 0))
    kind = frozenset(at["class"].split())
    return Rect(x, y, x + float(at["width"]), y + float(at["height"]), kind)


def _segments(data: str) -> list[tuple[float, float, float, float]]:
    """Return the straight segments of a path; a curve is replaced by its chord."""
    x = y = start_x = start_y = 0.0
    pieces = []
    for step, numbers in _STEP.findall(data):
        values = [float(number) for number in numbers.split()]
        was = (x, y)
        if step == "M":
            x, y = start_x, start_y = values
        elif step in "LQ":
            x, y = values[-2:]
        elif step in "Hh":
            x = values[0] + (x if step == "h" else 0)
        elif step in "Vv":
            y = values[0] + (y if step == "v" else 0)
        else:
            x, y = start_x, start_y
        if step != "M":
            pieces.append((*was, x, y))
    return pieces


@cache
def _extent(text: str, serif: bool, italic: bool, bold: bool, size: float) -> tuple:
    """Return (width, height above the baseline, depth below it) of one run of text."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath, text_to_path

    family, style = ("DejaVu Serif" if serif else "DejaVu Sans"), ("italic" if italic else "normal")
    weight = "bold" if bold else "normal"
    font = FontProperties(family=family, style=style, weight=weight, size=size)
    # The advance: a trailing space has a width but no ink.
    width = text_to_path.get_text_width_height_descent(text, font, ismath=False)[0]
    ink = TextPath((0, 0), text.strip() or "x", prop=font, usetex=False).vertices
    heights = ink[:, 1]
    return width, max(heights), -min(heights)


def _measured(element: ElementTree.Element) -> Rect:
    size = float(element.attrib["font-size"])
    bold = "bold" in element.attrib.get("class", "")
    runs = [(element.text, "", size, 0.0)]
    shift = 0.0
    for span in element:
        shift += float(span.attrib.get("dy", 0))
        own = float(span.attrib.get("font-size", size))
        runs.append((span.text, span.attrib.get("class", ""), own, shift))
        runs.append((span.tail, "", size, shift))
    width, top, bottom = 0.0, 0.0, 0.0
    for text, kind, own, moved in runs:
        if text:
            names = kind.split()
            run, high, deep = _extent(text, "m" in names, "i" in names, bold, own)
            width += run
            top, bottom = max(top, high - moved), max(bottom, deep + moved)
    x, y = float(element.attrib["x"]), float(element.attrib["y"])
    share = {"start": 0.0, "middle": 0.5, "end": 1.0}[element.attrib.get("text-anchor", "start")]
    left = x - share * width
    kinds = frozenset(element.attrib.get("class", "").split())
    return Rect(left, y - top, left + width, y + bottom, kinds, "".join(element.itertext()))


def crosses(segment: tuple[float, float, float, float], rect: Rect) -> bool:
    """Return whether a line segment meets the interior of a rectangle."""
    x, y, to_x, to_y = segment
    low, high = 0.0, 1.0
    for start, delta, least, most in (
        (x, to_x - x, rect.left, rect.right),
        (y, to_y - y, rect.top, rect.bottom),
    ):
        if delta == 0:
            if not least < start < most:
                return False
            continue
        first, last = sorted(((least - start) / delta, (most - start) / delta))
        low, high = max(low, first), min(high, last)
    return low < high
