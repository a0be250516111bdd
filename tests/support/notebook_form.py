"""What a lab's notebook must hold (header card, sections, proofs), and what its text must not.

``scripts.notebooks.rules`` checks its outputs, before they are written back;
``tests.support.links`` checks its links.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from labkit.tools.notebook_files import tags
from labkit.tools.running.digests import ANCHOR, NAVIGATION
from scripts.notebooks.rules import COMPARED, NO_ALT, PATH, compared_text
from tests.support.texts import tree_of, without_code, without_fences

CARD = ("You will be able to", "You need to know", "Takes", "Data")
SECTIONS = (
    "Question",
    "Idea",
    "Parameters",
    "Data",
    "From scratch",
    "With labkit",
    "Compare",
    "What we learned",
    "Exercises",
)
# The introduction teaches no technique to build or to compare, but MindSpore's own parts, between
# "Parameters" and "This machine", and how to use the labs.
INTRODUCTION = (
    "Question",
    "The labs",
    "Parameters",
    "This machine",
    "How a lab works",
    "What we learned",
    "Exercises",
    "Words",
)
# The second notebook of a lab, "# 03 · THOR in depth", may have any sections between these.
IN_DEPTH = ("Question", "Parameters", "What we learned")
# Sections that a lab names after their subject: (number of the lab, section): their heading.
BY_SUBJECT = {
    ("01", "Compare"): "Train, and compare",
    ("02", "With labkit"): "The network, block by block, beside its original",
    ("02", "Compare"): "Ten steps",
}
PROVEN = ("With labkit", "Compare")  # the sections in which something must be asserted

_SECTION = re.compile(r"^## (\d+) · (.+?)\s*$", re.MULTILINE)
_MATHS = re.compile(r"\$\$.+?\$\$|\$[^$\n]+\$", re.DOTALL)
_TRUTH = re.compile(r"(?:: | {2})(?:True|False)$", re.MULTILINE)
_NUMBER = re.compile(r"(?<![\w.])(\d+(?:[ ,]\d{3})*(?:\.\d+)?(?:e-?\d+)?)(\s*%)?(?![\w])")


@dataclass(frozen=True)
class _Section:
    number: int
    name: str
    cells: Sequence[Mapping]


def source_faults(notebook: Mapping) -> list[str]:
    """Return the faults in the part of a notebook that a person writes; empty if it has none."""
    faults = []
    for number, cell in enumerate(notebook["cells"]):
        if match := PATH.search(cell["source"]):
            faults.append(f"cell {number}: a path of one machine: {match[0]}")
        if cell["cell_type"] == "markdown" and (match := NO_ALT.search(cell["source"])):
            faults.append(f"cell {number}: a picture without alternative text: {match[0][:60]}")
    return faults


def form_faults(notebook: Mapping) -> list[str]:
    """Return the faults in a notebook's header card, sections and proofs; empty if it has none."""
    cells = notebook["cells"]
    card = cells[0]["source"] if cells else ""
    faults = [
        f"the header card has no row **{row}**" for row in CARD if f"| **{row}** |" not in card
    ]
    lab = card[2:4]
    is_in_depth = card.split("\n", 1)[0].endswith(" in depth")
    sections = _sections(cells)
    numbers = [section.number for section in sections]
    if numbers != list(range(1, len(numbers) + 1)):
        faults.append(f"sections are numbered {numbers}; expected 1, 2, 3 and so on")
    order = INTRODUCTION if lab == "00" else IN_DEPTH if is_in_depth else SECTIONS
    faults += _order_faults(lab, order, [section.name for section in sections])
    if is_in_depth and not any(map(_asserts, cells)):
        faults.append("nothing is asserted")
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            faults += [f"cell {number}: {fault}" for fault in _proof_faults(cell, cells)]
    for section in sections:
        wanted = next((name for name in PROVEN if _fits(lab, name, section.name)), None)
        if wanted and lab != "00" and not any(map(_asserts, section.cells)):
            faults.append(f"section {section.name!r} asserts nothing; {wanted!r} is a proof")
        if section.name == "What we learned":
            faults += _unproven_numbers(section.cells, cells)
    return faults


def _sections(cells: Sequence[Mapping]) -> list[_Section]:
    sections: list[_Section] = []
    inside: list[Mapping] = []
    for cell in cells:
        if NAVIGATION in tags(cell):
            continue
        if cell["cell_type"] == "markdown":
            for number, name in _SECTION.findall(without_fences(cell["source"])):
                inside = []
                sections.append(_Section(int(number), name, inside))
        inside.append(cell)
    return sections


def _order_faults(lab: str, wanted: Sequence[str], names: list[str]) -> Iterator[str]:
    after = -1
    for section in wanted:
        places = [i for i, name in enumerate(names) if _fits(lab, section, name)]
        expected = BY_SUBJECT.get((lab, section), section)
        if len(places) != 1:
            yield f"{len(places)} sections are called {expected!r}; expected exactly one"
        elif places[0] < after:
            yield f"section {expected!r} comes before {names[after]!r}; expected after it"
        else:
            after = places[0]


def _fits(lab: str, section: str, name: str) -> bool:
    """Return whether heading ``name`` is that of ``section``, alone or with ": " and a subject."""
    expected = BY_SUBJECT.get((lab, section), section)
    return name == expected or name.startswith(f"{expected}: ")


def _asserts(cell: Mapping) -> list[ast.Assert | ast.Call]:
    """Return the assertions and the tables of claims, ``lab.check(...)``, in a cell."""
    if cell["cell_type"] != "code":
        return []
    return [node for node in ast.walk(tree_of(cell)) if _is_assertion(node)]


def _is_assertion(node: ast.AST) -> bool:
    table = isinstance(node, ast.Call) and ast.unparse(node.func) == "lab.check"
    return table or isinstance(node, ast.Assert)


def _proof_faults(cell: Mapping, cells: Sequence[Mapping]) -> Iterator[str]:
    """Yield what makes an assertion worthless: not executed, always true, in an unused function."""
    assertions = _asserts(cell)
    if assertions and cell.get("execution_count") is None:
        yield "it asserts something and was not executed"
    for node in assertions:
        if isinstance(node, ast.Call):  # labkit.labs.claims refuses an empty table
            continue
        if isinstance(node.test, ast.Constant | ast.Tuple | ast.List | ast.JoinedStr):
            yield f"this assertion cannot fail: {ast.unparse(node)[:60]}"
    for function in ast.walk(tree_of(cell)):
        if isinstance(function, ast.FunctionDef) and not _called(function.name, cells):
            if any(map(_is_assertion, ast.walk(function))):
                yield f"{function.name} asserts something, and nothing calls it"
    if not assertions and _TRUTH.search(compared_text(cell)) and not _passed_on(cell):
        yield "it prints True or False, and asserts nothing"
    first = cell["source"].split("\n", 1)[0]
    if COMPARED in tags(cell) and first not in ("# exact", "# ±"):
        yield f"compared (tag {COMPARED}), but its first line is not '# exact' or '# ±'"
    kinds = {output["output_type"] for output in cell.get("outputs", [])}
    if COMPARED in tags(cell) and kinds - {"stream"}:
        yield f"compared (tag {COMPARED}), but it shows more than printed lines"


def _called(name: str, cells: Sequence[Mapping]) -> bool:
    nodes = (n for cell in cells if cell["cell_type"] == "code" for n in ast.walk(tree_of(cell)))
    return any(isinstance(node, ast.Name) and node.id == name for node in nodes)


def _passed_on(cell: Mapping) -> bool:
    """Return whether the cell prints an answer of ``check``, which may be False in an exercise."""
    return "check(" in cell["source"]


def _unproven_numbers(section: Sequence[Mapping], cells: Sequence[Mapping]) -> Iterator[str]:
    """Yield a fault for each number of the closing text in no assertion and no compared line."""
    proven: set[float] = set()
    for cell in cells:
        if _asserts(cell):
            constants = (n.value for n in ast.walk(tree_of(cell)) if isinstance(n, ast.Constant))
            proven |= {float(n) for n in constants if isinstance(n, int | float)}
        if cell["cell_type"] == "code" and COMPARED in tags(cell):
            proven |= {value for _, value in _numbers(compared_text(cell))}
    for cell in section:
        if cell["cell_type"] == "markdown":
            text = _MATHS.sub("", _SECTION.sub("", without_fences(ANCHOR.sub("", cell["source"]))))
            for written, value in _numbers(without_code(text)):
                if not any(abs(value - number) <= 1e-9 * abs(value) for number in proven):
                    yield f"'What we learned' says {written}; no assertion or compared line does"


def _numbers(text: str) -> Iterator[tuple[str, float]]:
    for match in _NUMBER.finditer(text):
        value = float(re.sub("[ ,]", "", match[1]))
        yield match[0], value / 100 if match[2] else value
