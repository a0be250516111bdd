"""TeX to MathML: what is converted, what stays TeX, and that a hostile formula is only text."""

import itertools
import re
import time

import pytest

from labkit.tools import notebook_files
from labkit.tools.reports import notebook_page
from labkit.tools.reports.maths import _ATTRIBUTES, _TAGS, mathml
from tests.support import run_folders as folders

KINDS = {"markdown", "text/html", "text/markdown", "text/latex"}


def test_a_formula_is_an_element_of_its_kind():
    assert mathml(r" \frac12 < x ") == (
        '<math display="inline"><mrow><mfrac><mn>1</mn><mn>2</mn></mfrac><mo>&lt;</mo><mi>x</mi>'
        "</mrow></math>"
    )
    assert mathml("x", display=True).startswith('<math display="block">')
    assert "∑" in mathml(r"\sum_i")
    assert "<mtable" in mathml(r"\begin{aligned}a&=b\\c&=d\end{aligned}")


@pytest.mark.parametrize(
    "tex",
    [
        r"\text{<script>alert(1)</script>}",
        r"\mbox{&lt;script&gt;alert(1)&lt;/script&gt;}",
        r"\href{javascript:alert(1)}{x}",
        r"\style{background:url(http://evil.test)}{x}",
        r"\class{prompt}{x}",
        r'\color{red" onload="alert(1)}x',
        r'\hspace{1em" onload="alert(1)}x',
        r'x" onload="y',
        r"</mrow></math><script>alert(1)</script>",
    ],
)
def test_a_hostile_formula_has_the_elements_and_attributes_of_maths_alone(tex):
    html = mathml(tex)
    tags = re.findall(r"<([^>]*)>", html)
    assert tags
    for tag in tags:
        name, *attributes = re.findall(r'^/?(\w+)|(\w+)="[^"]*"', tag)
        assert name[0] in _TAGS and {attribute for _, attribute in attributes} <= _ATTRIBUTES
        assert re.fullmatch(r'/?\w+( \w+="[^"<>]*")*', tag)


@pytest.mark.parametrize(
    "tex",
    [
        r"\frac{" * 2000,
        "x" * 501,
        r"\left(<b>",
        r"\newcommand{\a}{{\b}{\b}}\newcommand{\b}{{\c}{\c}}\a",
        r"\def\a{\a}\a",
    ],
)
def test_what_is_not_converted_stays_tex(tex):
    began = time.process_time()
    assert mathml(tex) is None
    assert time.process_time() - began < 1


def _kinds(cell):
    shown = (output.get("data", ()) for output in cell.get("outputs", ()))
    return {cell["cell_type"], *itertools.chain(*shown)}


def test_every_formula_of_the_notebooks_is_converted(root, tmp_path):
    """Only cells that can show a formula are converted: the others took a second per notebook."""
    count = 0
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        cells = [cell for cell in notebook_files.read(path)["cells"] if KINDS & _kinds(cell)]
        _, body = notebook_page.convert(folders.write_notebook(tmp_path, *cells))
        count += body.count("<math ")
        outside_code = re.sub(r"<(pre|code)\b.*?</\1>|<[^>]*>", "", body, flags=re.DOTALL)
        assert '<code class="maths' not in body and "$" not in outside_code, path
    assert count > 200


def test_only_formulas_of_markdown_are_converted(tmp_path):
    cells = [
        folders.markdown(r"`$a$` and <b>$b$</b>, $$c$$, \\(d\\) <math><mi>e</mi></math>"),
        folders.markdown("    $f$\n\n\\begin{align}g\\end{align}\n\n$$\\left(<b>$$\n"),
        folders.code(
            "1",
            folders.display("text/latex", r"$\displaystyle h$"),
            folders.display("text/latex", "no formula: $i$"),
        ),
    ]
    _, body = notebook_page.convert(folders.write_notebook(tmp_path, *cells))
    formulas = re.findall(r'<math display="(\w+)">(.*?)</math>', body)
    letters = [(kind, re.search(r"<mi>(.)</mi>", text)[1]) for kind, text in formulas]
    assert letters == [
        ("inline", "b"), ("block", "c"), ("inline", "d"), ("block", "g"), ("inline", "h"),
    ]  # fmt: skip
    assert "<code>$a$</code>" in body and "$f$" in body and "no formula: $i$" in body
    assert '<code class="maths display">\\left(&lt;b&gt;</code>' in body
