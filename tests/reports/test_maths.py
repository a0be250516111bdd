"""TeX to SVG without a network: what is read, what stays as it is, what is left alone."""

import re

import pytest

from labkit.tools.reports.maths import draw_maths, readable, svg


@pytest.mark.parametrize(
    "given, expected",
    [
        (r"\frac12", r"\frac{1}{2}"),
        (r"\frac{a + b}2", r"\frac{a + b}{2}"),
        (r"\frac s2 + \frac1{2s}", r"\frac{s}{2} + \frac{1}{2s}"),
        (r"\tfrac1T", r"\frac{1}{T}"),
        (r"\sqrt 4 = \sqrt{9}", r"\sqrt{4} = \sqrt{9}"),
        (r"\mathrm E[p]", r"\mathrm{E}[p]"),
        (r"\frac{\frac12}3", r"\frac{\frac{1}{2}}{3}"),
        (r"\Big(a\Big)\Big/", r"\left(a\right)/"),
        (r"\big(a", "(a"),
        (r"\sqrt[3]{x}", r"\sqrt[3]{x}"),
    ],
)
def test_short_forms_are_written_out(given, expected):
    assert readable(given) == expected


def test_maths_is_drawn_with_its_source_as_label():
    drawn = svg(r"\frac{a}{b} < 1")
    assert drawn.startswith("<svg") and 'aria-label="\\frac{a}{b} &lt; 1"' in drawn
    assert "display" in svg("x", display=True)


def test_a_bar_is_above_the_line_and_a_descender_below():
    def box(tex):
        return [float(one) for one in re.search(r'viewBox="([^"]*)"', svg(tex))[1].split()]

    high, low = box(r"\frac{a}{b}"), box("x")
    assert high[3] > 1.5 * low[3]
    # The part below the base line is what the box has more than its height above it.
    assert box("y")[3] + box("y")[1] > low[3] + low[1]


@pytest.mark.parametrize("tex", ["x", "y", r"\frac{a}{b}", r"\sum_i x_i^2"])
def test_the_drawing_is_inside_its_box(tex):
    drawn = svg(tex)
    left, top, width, height = map(float, re.search(r'viewBox="([^"]*)"', drawn)[1].split())
    (path,) = re.findall(r' d="([^"]*)"', drawn)
    numbers = [float(one) for one in re.findall(r"-?[\d.]+", path)]
    assert left <= min(numbers[::2]) and max(numbers[::2]) <= left + width
    assert top <= min(numbers[1::2]) and max(numbers[1::2]) <= top + height


def test_what_cannot_be_read_stays_as_tex():
    assert svg(r"\begin{matrix} <1> \end{matrix}") == (
        r'<code class="maths">\begin{matrix} &lt;1&gt; \end{matrix}</code>'
    )


def test_code_money_and_tags_are_left_alone():
    for text in ("costs $5 and $6", "<code>$n$</code>", "<pre>$a$ <b>$b$</b></pre>", "a $ b $ c"):
        assert draw_maths(text) == text
    drawn = draw_maths('<a href="x?$a$">$n$ &amp; <i>m</i></a><br/>')
    assert drawn.startswith('<a href="x?$a$"><svg') and drawn.endswith("&amp; <i>m</i></a><br/>")


def test_every_formula_of_the_notebooks_can_be_drawn(root):
    import json

    from labkit.tools.reports.maths import _MATHS

    formulas = set()
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        for cell in json.loads(path.read_text())["cells"]:
            if cell["cell_type"] == "markdown":
                found = _MATHS.finditer(re.sub(r"`[^`]*`", "", "".join(cell["source"])))
                formulas |= {(one[1] or one[2]).strip() for one in found}
    assert len(formulas) > 100
    assert [tex for tex in formulas if svg(tex).startswith("<code")] == []
