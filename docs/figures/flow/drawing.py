"""Boxes, arrows and formulas as SVG, in the labs' colours, on a light and on a dark page.

Coordinates are units of the viewBox, 440 wide; no transformation is used, so that a test can read
every place as it stands. Colours are classes with fixed values, and a media query sets those of a
dark page: a reader that knows no media queries shows the light picture.
"""

import re
from collections.abc import Iterable, Sequence
from xml.sax.saxutils import escape

from labkit.labs.figures.common import BLUE, GREEN, ORANGE, PURPLE, RED

WIDTH = 440
LEFT, RIGHT = 16, WIDTH - 16
# At a width of 400 px the smallest text, a subscript, is 9.1 px high.
TITLE, TEXT, SMALL, INDEX = 16, 13, 11.5, 10
HUES = {
    "blue": BLUE,
    "orange": ORANGE,
    "green": GREEN,
    "red": RED,
    "purple": PURPLE,
    "grey": "#777777",
}
# Of a page: its ground, its text, text of less weight. They are those of the reports' pages.
PAGES = {"light": ("#ffffff", "#1b1b1b", "#595959"), "dark": ("#16181b", "#e6e6e6", "#a8a8a8")}
_TINT = {"light": 0.13, "dark": 0.2}  # share of a colour in what fills a box
_LINES = {"light": 3.6, "dark": 5.0}  # contrast of lines to the ground
_SANS = 'system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",sans-serif'
_SERIF = '"STIX Two Text","Cambria Math",Cambria,"Liberation Serif","Times New Roman",serif'
_RUN = re.compile(r"([_^])\{([^}]*)\}")


def mixed(color: str, other: str, share: float) -> str:
    """Return ``share`` of ``color`` and the rest of ``other``, both #rrggbb."""
    pairs = [(int(color[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(share * a + (1 - share) * b):02x}" for a, b in pairs)


def contrast(color: str, other: str) -> float:
    """Return the contrast ratio of two colours as WCAG 2 defines it, 1 to 21."""
    light = []
    for each in (color, other):
        parts = [int(each[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        light.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(light) + 0.05) / (min(light) + 0.05)


def line_color(hue: str, page: str) -> str:
    """Return a colour of the palette, mixed with the page's text until lines of it are seen.

    WCAG 2 asks for a contrast of 3 to the ground, which orange and purple do not have on white.
    """
    ground, ink, _ = PAGES[page]
    made = (mixed(ink, HUES[hue], share / 20) for share in range(21))
    return next(color for color in made if contrast(color, ground) >= _LINES[page])


def _rules(page: str, hues: Iterable[str]) -> str:
    ground, ink, quiet = PAGES[page]
    rules = [f".page{{fill:{ground}}}", f"text{{fill:{ink}}}", f".quiet{{fill:{quiet}}}"]
    rules += [f".line{{stroke:{ink}}}", f".head{{fill:{ink}}}"]
    for hue in hues:
        color, line = HUES[hue], line_color(hue, page)
        rules.append(f".box.{hue}{{fill:{mixed(color, ground, _TINT[page])};stroke:{line}}}")
        rules.append(f".line.{hue}{{stroke:{line}}}.head.{hue}{{fill:{line}}}")
    return "".join(rules)


def _style(hues: Sequence[str]) -> str:
    fixed = (
        f"text{{font-family:{_SANS}}}.m{{font-family:{_SERIF}}}.i{{font-style:italic}}"
        ".bold{font-weight:600}.box{stroke-width:1.5}.line{fill:none;stroke-width:1.5;"
        "stroke-linejoin:round;stroke-linecap:round}.frame{fill:none}.hollow{fill:none!important}"
        ".frame,.dashed{stroke-dasharray:4 4}.thin{stroke-width:1}.thick{stroke-width:2.6}"
    )
    light, dark = (_rules(page, hues) for page in PAGES)
    return f"{fixed}{light}@media (prefers-color-scheme:dark){{{dark}}}"


def _n(value: float) -> str:
    return f"{round(value, 1):g}"


def _runs(markup: str) -> Iterable[tuple[str, str, str]]:
    """Yield (text, class, "" | "_" | "^") of plain text with *formulas* in it."""
    for number, part in enumerate(markup.split("*")):
        if number % 2 == 0:
            if part:
                yield part, "", ""
            continue
        place = 0
        for match in (*_RUN.finditer(part), None):
            plain = part[place : match.start() if match else len(part)]
            yield from ((*run, "") for run in _letters(plain))
            if match:
                yield from ((*run, match[1]) for run in _letters(match[2]))
                place = match.end()


def _letters(formula: str) -> Iterable[tuple[str, str]]:
    """Set the letters of a formula in italics; digits, signs, Σ and the E of a mean upright."""
    for letters, others in re.findall(r"([a-zA-DF-Zα-ω]+)|([^a-zA-DF-Zα-ω]+)", formula):
        yield letters or others, "m i" if letters else "m"


class Drawing:
    """A picture that is added to part by part; later parts lie above earlier ones.

    Args:
        title: what it is called, in the file and at its head
        subtitle: a line below the title
        description: what it shows, for those who do not see it
        height: units of the viewBox
    """

    def __init__(self, title: str, subtitle: str, description: str, height: float):
        self.title, self.description, self.height = title.replace("*", ""), description, height
        self.parts: list[str] = []
        self.text(LEFT, 30, title, TITLE, "start", "bold")
        self.text(LEFT, 48, subtitle, SMALL, "start", "quiet")

    def text(
        self,
        x: float,
        y: float,
        markup: str,
        size: float = TEXT,
        anchor: str = "middle",
        kind: str = "",
    ) -> None:
        """Add a line of text with its baseline at ``y``; *x_{i}^{2}* is a formula."""
        spans, raised = [], 0.0
        for text, name, shift in _runs(markup):
            wanted = {"": 0.0, "_": 3.5, "^": -5.0}[shift]
            dy = f' dy="{_n(wanted - raised)}"' if wanted != raised else ""
            raised = wanted
            own = f' font-size="{INDEX}"' if shift else ""
            kept = f' class="{name}"' if name else ""
            plain = escape(text)
            spans.append(f"<tspan{kept}{own}{dy}>{plain}</tspan>" if kept or dy else plain)
        where = f'x="{_n(x)}" y="{_n(y)}" font-size="{size}"'
        where += "" if anchor == "start" else f' text-anchor="{anchor}"'
        where += f' class="{kind}"' if kind else ""
        self.parts.append(f"<text {where}>{''.join(spans)}</text>")

    def lines(self, x: float, y: float, *markups: str, anchor: str = "middle") -> None:
        """Add lines of small quiet text, the first one's baseline at ``y``."""
        for number, markup in enumerate(markups):
            self.text(x, y + 15 * number, markup, SMALL, anchor, "quiet")

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        hue: str = "grey",
        *lines: str,
        kind: str = "",
        corner: float = 5,
    ) -> None:
        """Add a box with lines of text in its middle: the first one as text, the others small."""
        name = f"box {hue} {kind}".strip()
        place = f'x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}"'
        self.parts.append(f'<rect class="{name}" {place} rx="{_n(corner)}"/>')
        middle = y + height / 2 + 4.5 - 8 * (len(lines) - 1)
        for number, line in enumerate(lines):
            size, quiet = (SMALL, "quiet") if number else (TEXT, "")
            self.text(x + width / 2, middle + 16 * number, line, size, kind=quiet)

    def frame(self, x: float, y: float, width: float, height: float) -> None:
        """Add a dashed frame around what belongs together."""
        place = f'x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}"'
        self.parts.append(f'<rect class="line grey frame thin" {place} rx="8"/>')

    def path(self, data: str, hue: str = "", kind: str = "") -> None:
        """Add a line along ``data``, of M and L."""
        self.parts.append(f'<path class="{" ".join(f"line {hue} {kind}".split())}" d="{data}"/>')

    def arrow(self, *points: tuple[float, float], hue: str = "", kind: str = "") -> None:
        """Add an arrow through ``points``, its corners round, its tip at the last one."""
        (x, y), (tip_x, tip_y) = points[-2:]
        length = ((tip_x - x) ** 2 + (tip_y - y) ** 2) ** 0.5
        dx, dy = (tip_x - x) / length, (tip_y - y) / length
        base = (tip_x - 7 * dx, tip_y - 7 * dy)
        self.path(_rounded([*points[:-1], base]), hue, kind)
        sides = [(base[0] - 3.6 * dy * s, base[1] + 3.6 * dx * s) for s in (1, -1)]
        corners = " ".join(f"{_n(a)},{_n(b)}" for a, b in ((tip_x, tip_y), *sides))
        self.parts.append(f'<polygon class="{f"head {hue}".strip()}" points="{corners}"/>')

    def tiles(self, x: float, y: float, count: int, columns: int, hue: str) -> None:
        """Add ``count`` small squares, the images of a batch, ``columns`` in a row."""
        data = ""
        for number in range(count):
            left, top = x + number % columns * 9, y + number // columns * 9
            data += f"M{_n(left)} {_n(top)}h6v6h-6z"
        self.parts.append(f'<path class="head {hue}" d="{data}"/>')

    def hatch(self, x: float, y: float, width: float, height: float, hue: str) -> None:
        """Add thin slanted lines over a rectangle: a mark that does not need colours."""
        data = ""
        for start in range(8, int(width + height), 8):
            # From the left or lower side up to the upper or right one.
            low = (x + max(0, start - height), y + min(start, height))
            high = (x + min(start, width), y + max(0, start - width))
            data += f"M{_n(low[0])} {_n(low[1])}L{_n(high[0])} {_n(high[1])}"
        self.path(data, hue, "thin")

    def tick(self, x: float, y: float, hue: str = "green") -> None:
        """Add a tick around (x, y)."""
        data = f"M{_n(x - 6)} {_n(y)}L{_n(x - 1.5)} {_n(y + 5)}L{_n(x + 6.5)} {_n(y - 5)}"
        self.path(data, hue, "thick")

    def cross(self, x: float, y: float, hue: str = "red") -> None:
        """Add a cross around (x, y)."""
        a, b, c, d = _n(x - 5), _n(y - 5), _n(x + 5), _n(y + 5)
        self.path(f"M{a} {b}L{c} {d}M{a} {d}L{c} {b}", hue, "thick")

    def svg(self) -> str:
        """Return the file's text."""
        size = f'viewBox="0 0 {WIDTH} {_n(self.height)}"'
        # As wide as a notebook's text; a narrower page shrinks it.
        shown = f'width="{round(1.25 * WIDTH)}" height="{round(1.25 * self.height)}"'
        names = 'role="img" aria-labelledby="title desc"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {shown} {names}>'
        about = f'<title id="title">{escape(self.title)}</title>'
        about += f'\n<desc id="desc">{escape(self.description)}</desc>'
        # The ground is drawn: a dark notebook on a light desktop would show dark text on dark.
        ground = f'<rect class="page" width="{WIDTH}" height="{_n(self.height)}" rx="10"/>'
        body = "\n".join([ground, *self.parts])
        hues = [hue for hue in HUES if re.search(rf'class="[^"]*\b{hue}\b', body)]
        rows = [head, about, f"<style>{_style(hues)}</style>", body, "</svg>"]
        return "\n".join(rows) + "\n"


def _rounded(points: Sequence[tuple[float, float]], radius: float = 7) -> str:
    """Return the data of a line through ``points`` with round corners."""
    data = f"M{_n(points[0][0])} {_n(points[0][1])}"
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        ends = []
        for other in (before, after):
            away = [other[i] - corner[i] for i in (0, 1)]
            length = sum(part**2 for part in away) ** 0.5
            reach = min(radius, length / 2) / length
            ends.append(tuple(corner[i] + reach * away[i] for i in (0, 1)))
        data += f"L{_n(ends[0][0])} {_n(ends[0][1])}Q{_n(corner[0])} {_n(corner[1])}"
        data += f" {_n(ends[1][0])} {_n(ends[1][1])}"
    return f"{data}L{_n(points[-1][0])} {_n(points[-1][1])}"
