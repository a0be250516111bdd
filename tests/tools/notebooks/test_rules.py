"""Each rule about outputs finds its fault and ignores what only looks like one."""

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from scripts.notebooks.rules import COMPARED, output_faults
from tests.support.lab_cells import printed, shown


def good():
    compared = printed("4 steps, shape (2, 3): True\n", COMPARED)
    return new_notebook(cells=[new_markdown_cell("# 03 · Adasum"), new_code_cell(""), compared])


def test_a_good_notebook_has_no_fault():
    assert output_faults(good()) == []


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        (new_code_cell("x = 1"), "not executed"),
        (printed("saved in /home/ann/runs"), "/home/ann"),
        (printed("see file:///root/x.log"), "/root/x.log"),
        (printed("in C:\\Users\\ann"), "C:\\U"),
        (printed("in /project-of-ann/x"), "/project-of-ann"),
        (shown("text/html", "<a href='/tmp/x'>"), "/tmp/x"),
        (shown("text/html", "<img src='x'>"), "a picture without"),
        (shown("image/png", "aGk="), "a PNG without"),
        (shown("image/png", "aGk=", {"image/png": {"alt": " "}}), "a PNG without"),
        (printed("took 3 s", COMPARED), "'3 s'"),
        (printed("peak 812.5 MiB", COMPARED), "'812.5 MiB'"),
        (printed("on 2026-01-02", COMPARED), "'2026-01-02'"),
        (printed("loss 2.302572", COMPARED), "'2.302572'"),
        (printed("loss 2.302572 │ 1 │ 1 ✓", COMPARED), "'2.302572'"),
        (printed("", COMPARED), "no text to compare"),
    ],
)
def test_a_fault_of_the_outputs_is_found(cell, said):
    notebook = good()
    notebook.cells.append(cell)
    faults = output_faults(notebook, ["/project-of-ann"])
    assert len(faults) == 1, faults
    assert faults[0].startswith("cell 3: ") and said in faults[0]


def test_an_error_output_is_found():
    notebook = good()
    error = new_output("error", ename="ValueError", evalue="no", traceback=[])
    notebook.cells[1].outputs = [error]
    assert output_faults(notebook) == ["cell 1: an error: ValueError"]


@pytest.mark.parametrize(
    "cell",
    [
        printed("took 3 s, loss 2.302572"),
        printed("https://example.org/home/page and runs/home/x and 1/tmp/2"),
        printed("10 000 images, lr 0.0125, 4 steps, 2 hidden", COMPARED),
        printed("a claim │ 0.000302 │ < 1e-4 ✓", COMPARED),
        shown("image/png", "aGk=", {"image/png": {"alt": "loss over updates"}}),
        new_code_cell(""),
    ],
)
def test_what_is_no_fault_of_the_outputs(cell):
    notebook = good()
    notebook.cells.append(cell)
    assert output_faults(notebook) == []
