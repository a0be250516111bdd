"""TeX in a notebook's text to SVG, by matplotlib's own reader: no network and no script.

It knows a part of TeX. What it cannot read stays on the page as TeX, readable in its own letters.
"""

import re
from functools import cache
from html import escape
from html.parser import HTMLParser

# mathtext takes 1 s and 500 kB of SVG for 1000 characters, and preparing TeX for it is quadratic.
# The longest formula of the labs has 143 characters, 2 braces deep; a notebook holds 1200.
_LONGEST, _DEEPEST, _PAGE = 500, 8, 10_000
_SIZE = 12.0  # units of the picture to one em
_ONE = r"(\{|\\[A-Za-z]+|[^\s{}\\])"
# Outside these a dollar may be money: text that was escaped for HTML is matched, tags are not.
_MATHS = re.compile(r"\$\$(.+?)\$\$|\$(?=[^\s$])([^$\n]*?[^\s$\\]|[^\s$\\])\$(?!\d)", re.DOTALL)
_PLAIN = {
    r"\tfrac": r"\frac",
    r"\dfrac": r"\frac",
    r"\bmod": r"\ \mathrm{mod}\ ",
    r"\lVert": r"\|",
    r"\rVert": r"\|",
    r"\lvert": "|",
    r"\rvert": "|",
}
_BIG = re.compile(r"\\(?:bigg?|Bigg?)[lrm]?(?![A-Za-z])")
_ARGUMENTS = {r"\frac": 2, r"\sqrt": 1, r"\mathrm": 1, r"\mathbf": 1, r"\mathbb": 1, r"\hat": 1}
_MOVES = {1: "M", 2: "L", 3: "Q", 4: "C", 79: "Z"}
_POINTS = {1: 1, 2: 1, 3: 2, 4: 3, 79: 1}


class Budget:
    """How many characters of TeX are still drawn on a page."""

    def __init__(self, left: int = _PAGE):
        self.left = left

    def take(self, tex: str) -> bool:
        """Return whether ``tex`` is drawn."""
        self.left -= len(tex)
        return self.left >= 0


def draw_maths(html: str, budget: Budget | None = None) -> str:
    """Return ``html`` with every ``$...$`` and ``$$...$$`` of its text drawn; code stays.

    budget  of the page that it is a part of; what is beyond it stays TeX
    """
    drawer = _Drawer(budget or Budget())
    drawer.feed(html)
    drawer.close()
    drawer.flush()
    return "".join(drawer.parts)


@cache
def svg(tex: str, display: bool = False) -> str:
    """Return ``tex`` (without dollars) as an SVG with the TeX as its label; as code if unreadable.

    display  whether it stands on a line of its own
    """
    label = escape(tex, quote=True)
    kind = "display maths" if display else "maths"
    if len(tex) > _LONGEST or _depth(tex) > _DEEPEST:
        return f'<code class="{kind}">{label}</code>'
    try:
        path, width, height, depth = _outline(readable(tex))
    # mathtext raises ValueError for what it cannot read, and others inside its parser.
    except Exception:
        return f'<code class="{kind}">{label}</code>'
    em = 1 / _SIZE
    return (
        f'<svg class="{kind}" role="img" aria-label="{label}" '
        f'viewBox="0 {-height:.2f} {width:.2f} {height + depth:.2f}" '
        f'style="width:{width * em:.3f}em;height:{(height + depth) * em:.3f}em;'
        f'vertical-align:{-depth * em:.3f}em"><path d="{path}"/></svg>'
    )


def _depth(tex: str) -> int:
    """Return how many braces and ``\\left`` are open at most, or are never closed."""
    deepest = depth = 0
    for found in re.finditer(r"\\left|\\right|[{}]", tex):
        depth += 1 if found[0] in (r"\left", "{") else -1
        deepest = max(deepest, depth)
    return deepest


def readable(tex: str) -> str:
    """Return ``tex`` in the part of TeX that mathtext reads: ``\\frac12`` as ``\\frac{1}{2}``."""
    opened, closed = (re.findall(_BIG.pattern + re.escape(one), tex) for one in "()")
    if len(opened) == len(closed):
        # As high as what stands between, which is what the writer wanted.
        tex = re.sub(_BIG.pattern + r"\(", lambda _: r"\left(", tex)
        tex = re.sub(_BIG.pattern + r"\)", lambda _: r"\right)", tex)
    tex = _BIG.sub("", tex)
    for name, plain in _PLAIN.items():
        tex = re.sub(re.escape(name) + r"(?![A-Za-z])", lambda _, to=plain: to, tex)
    for name, count in _ARGUMENTS.items():
        tex = _braced(tex, name, count)
    return " ".join(tex.split())


def _braced(tex: str, name: str, count: int) -> str:
    """Put braces around the ``count`` arguments of every ``name`` that stand without."""
    start = 0
    while found := re.compile(re.escape(name) + r"(?![A-Za-z])").search(tex, start):
        place = start = found.end()
        for _ in range(count):
            one = re.compile(r"\s*" + _ONE).match(tex, place)
            if one is None or (name == r"\sqrt" and one[1] == "["):
                break
            if one[1] == "{":
                place = _closing(tex, one.end())
                continue
            tex = f"{tex[:place]}{{{one[1]}}}{tex[one.end() :]}"
            place += len(one[1]) + 2
    return tex


def _closing(tex: str, place: int) -> int:
    """Return the place behind the brace that closes the one before ``place``."""
    depth = 1
    while depth and place < len(tex):
        depth += {"{": 1, "}": -1}.get(tex[place], 0)
        place += 1
    return place


def _outline(tex: str):
    """Return SVG path data of ``tex``, its width, height and depth below the line, for 12 a em."""
    from matplotlib import rc_context
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextToPath

    with rc_context({"mathtext.fontset": "cm"}):
        drawn, font = TextToPath(), FontProperties(size=_SIZE)
        points, codes = drawn.get_text_path(font, f"${tex}$", ismath=True)
        width, height, depth = drawn.get_text_width_height_descent(f"${tex}$", font, ismath=True)
    # The glyphs are outlined at a size of their own, whatever the font's.
    parts, place, scale = [], 0, _SIZE / drawn.FONT_SCALE
    while place < len(codes):
        code = int(codes[place])
        near = points[place : place + _POINTS[code]]
        numbers = " ".join(f"{x * scale:.2f} {-y * scale:.2f}" for x, y in near)
        parts.append("Z" if code == 79 else _MOVES[code] + numbers)
        place += _POINTS[code]
    return "".join(parts), width, height - depth + 1, depth + 1


class _Drawer(HTMLParser):
    """Copies HTML and draws the maths of its text, as long as no ``code`` or ``pre`` is open."""

    def __init__(self, budget: Budget):
        super().__init__(convert_charrefs=True)
        self._budget = budget
        self.parts: list[str] = []
        self._text, self._verbatim = "", 0

    def flush(self):
        text, self._text = self._text, ""
        place = 0
        for found in _MATHS.finditer(text):
            self.parts.append(escape(text[place : found.start()], quote=False))
            tex = (found[1] or found[2]).strip()
            if self._budget.take(tex):
                self.parts.append(svg(tex, display=found[1] is not None))
            else:
                self.parts.append(f'<code class="maths">{escape(tex)}</code>')
            place = found.end()
        self.parts.append(escape(text[place:], quote=False))

    def handle_starttag(self, tag, attrs):
        self.flush()
        self._verbatim += tag in ("code", "pre", "style")
        self.parts.append(self.get_starttag_text())

    def handle_startendtag(self, tag, attrs):
        self.flush()
        self.parts.append(self.get_starttag_text())

    def handle_endtag(self, tag):
        self.flush()
        self._verbatim = max(0, self._verbatim - (tag in ("code", "pre", "style")))
        self.parts.append(f"</{tag}>")

    def handle_data(self, data):
        if self._verbatim:
            self.parts.append(escape(data, quote=False))
        else:
            self._text += data
