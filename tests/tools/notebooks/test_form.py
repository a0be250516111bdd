"""Each rule about a notebook's source and form finds its fault, and nothing else."""

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from scripts.notebooks.rules import COMPARED
from tests.support import notebook_form
from tests.support.lab_cells import printed
from tests.support.notebook_form import (
    CARD,
    IN_DEPTH,
    INTRODUCTION,
    SECTIONS,
    form_faults,
    source_faults,
)

CARD_TEXT = "\n".join(f"| **{row}** | something |" for row in CARD)


def lab(number="03", sections=SECTIONS, title="THOR"):
    """Return a notebook that keeps the rules: a proof per section, 1 % asserted and claimed."""
    cells = [new_markdown_cell(f"# {number} · {title}\n\n{CARD_TEXT}")]
    for i, section in enumerate(sections, 1):
        cells.append(new_markdown_cell(f"## {i} · {section}"))
        cells.append(proof())
        if section == "What we learned":
            cells.append(new_markdown_cell("It agrees to 1 %, for `k = 77` and $n = 78$."))
    return new_notebook(cells=cells)


PROOF = "# exact\nprint('equal:', a == b)\nassert a == b and c < 0.01"


def proof(source=PROOF, said="equal: True"):
    return printed(said + "\n", COMPARED, source=source)


def at(notebook, section):
    """Return the index of a section's heading."""
    sources = [cell.source for cell in notebook.cells]
    return next(i for i, text in enumerate(sources) if text.endswith(f" · {section}"))


def rename(notebook, section, name):
    cell = notebook.cells[at(notebook, section)]
    cell.source = cell.source.replace(section, name)


def swap(notebook, first, second):
    rename(notebook, first, "@")
    rename(notebook, second, first)
    rename(notebook, "@", second)


def test_a_good_notebook_has_no_fault():
    assert source_faults(lab()) == form_faults(lab()) == []
    assert form_faults(lab("00", INTRODUCTION)) == []
    assert form_faults(lab(sections=IN_DEPTH, title="THOR in depth")) == []


def test_a_second_notebook_has_a_question_parameters_a_result_and_a_proof():
    second = lab(sections=[*IN_DEPTH[:-1], "Ranks"], title="THOR in depth")
    assert form_faults(second) == ["0 sections are called 'What we learned'; expected exactly one"]
    second = lab(sections=IN_DEPTH[:-1], title="THOR in depth")
    for cell in second.cells[2::2]:
        cell.source = "a = 1"
        cell.outputs = []
    assert "nothing is asserted" in form_faults(second)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda n: n.cells[2].update(source='open("/home/ann/x")'), "cell 2: a path of one"),
        (lambda n: n.cells.append(new_markdown_cell("in `/home/ann/x`")), ": a path of one"),
        (lambda n: n.cells.append(new_markdown_cell("![](a.png)")), ": a picture"),
        (lambda n: n.cells.append(new_markdown_cell('<img src="a">')), ": a picture"),
    ],
)
def test_a_fault_of_the_source_is_found(spoil, said):
    notebook = lab()
    spoil(notebook)
    (fault,) = source_faults(notebook)
    assert said in fault


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda n: rename(n, "Idea", "Thoughts"), "0 sections are called 'Idea'"),
        (lambda n: rename(n, "Data", "Idea"), "2 sections are called 'Idea'"),
        (lambda n: swap(n, "Data", "Compare"), "'From scratch' comes before 'Data'"),
        (lambda n: swap(n, "What we learned", "Exercises"), "'Exercises' comes before"),
        (
            lambda n: n.cells[at(n, "Idea")].update(source="## 3 · Idea"),
            "sections are numbered [1, 3, 3,",
        ),
        (lambda n: n.cells[0].update(source="# 03 · THOR"), "no row **Takes**"),
        (lambda n: n.cells.insert(-2, new_markdown_cell("And 98.7 %.")), "says 98.7 %; no asser"),
        (lambda n: n.cells.insert(-2, new_markdown_cell("12 000 times")), "says 12 000; no asser"),
    ],
)
def test_a_fault_of_the_sections_is_found(spoil, said):
    notebook = lab()
    spoil(notebook)
    faults = form_faults(notebook)
    assert any(said in fault for fault in faults), faults


HTML = new_output("display_data", data={"text/html": "<b>1</b>"})


@pytest.mark.parametrize(
    ("section", "parts", "said"),
    [
        ("Compare", {"source": "# exact\n1", "outputs": []}, "section 'Compare' asserts nothing"),
        ("With labkit", {"source": "# ±\n1", "outputs": []}, "'With labkit' asserts nothing"),
        ("Data", {"source": "# ±\nprint('equal:', a == b)"}, "8: it prints True or False, and as"),
        ("Data", {"execution_count": None}, "cell 8: it asserts something and was"),
        ("Data", {"source": '# ±\nassert (a, "not equal")'}, "fail: assert (a, 'not equal')"),
        ("Data", {"source": "# ±\nassert True"}, "cannot fail: assert True"),
        ("Data", {"source": "# ±\ndef f():\n    assert a"}, "f asserts something, and nothing"),
        ("Data", {"source": "# ±\ndef f():\n    lab.check(a)"}, "f asserts something, and nothing"),
        ("With labkit", {"source": "# ±\nlab.show(figure)", "outputs": []}, "asserts nothing"),
        ("Data", {"source": "# varies\nassert a == b"}, "but its first line is not '# exact'"),
        ("Data", {"outputs": [HTML]}, "but it shows more than printed lines"),
    ],
)
def test_a_fault_of_a_proof_is_found(section, parts, said):
    notebook = lab()
    notebook.cells[at(notebook, section) + 1].update(parts)
    (fault,) = form_faults(notebook)
    assert said in fault


@pytest.mark.parametrize(
    "cell",
    [
        proof("# exact\nprint(source)", "    done = False"),
        proof("# exact\npassed = check('f', f)", "f: passed: True"),
        proof("# exact\ndef proof():\n    assert a == b\n\n\nproof()", "1"),
        proof("# exact\n%time x = 1\nassert x", "1"),
        proof("# exact\nlab.check(('gap', x, 1))", "gap │ 1 │ 1 ✓"),
        new_markdown_cell("```\n## 1 · Question\n```"),
        new_markdown_cell("### A part of a section"),
        new_code_cell("a / tmp / b"),
        new_markdown_cell("![a curve](a.png) and <img src='a' alt='a curve'>"),
        new_markdown_cell("See https://example.org/home/page."),
    ],
)
def test_what_is_no_fault_of_the_source_or_form(cell):
    notebook = lab()
    notebook.cells.insert(at(notebook, "Data") + 1, cell)
    assert source_faults(notebook) == form_faults(notebook) == []


def test_a_section_may_have_a_subject_and_five_of_them_a_name_of_their_own():
    notebook = lab()
    rename(notebook, "From scratch", "From scratch: one layer's update")
    assert form_faults(notebook) == []
    rename(notebook, "Compare", "Ten steps")
    assert "0 sections are called 'Compare'; expected exactly one" in form_faults(notebook)
    other = lab("02")
    rename(other, "Compare", "Ten steps")
    rename(other, "With labkit", notebook_form.BY_SUBJECT["02", "With labkit"])
    assert form_faults(other) == []
    assert len(notebook_form.BY_SUBJECT) <= 6
