"""The progress display: lines in a log, a bar where a person watches."""

import re
import sys
from pathlib import Path

import nbformat
import papermill
import pytest

from labkit.base import progress
from labkit.base.progress import Progress, is_headless


def test_headless_lines_come_at_most_every_five_seconds_and_at_the_end(capsys, monkeypatch):
    now, made = [100.0], []
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress, "is_headless", lambda: True)
    display = Progress("training", 100, done=40)  # a resumed run
    for second in range(1, 61):
        now[0] = 100.0 + 0.9 * second
        display.advance(lambda: made.append(1) or f"at {display.done}")
    lines = capsys.readouterr().out.splitlines()
    # At 0.9 s per step a line is due after six steps, 5.4 s; its text is made only then.
    counts = [int(re.match(r"training (\d+)/100 at \1 (\d+) s$", line)[1]) for line in lines]
    assert counts == [*range(46, 100, 6), 100] and len(made) == len(counts)
    assert lines[-1] == "training 100/100 at 100 54 s"


@pytest.mark.parametrize(
    ("variables", "kernel", "terminal", "expected"),
    [
        ({"LABKIT_HEADLESS": "1", "JPY_SESSION_NAME": "a.ipynb"}, True, True, True),
        ({"JPY_SESSION_NAME": "a.ipynb"}, True, False, False),  # JupyterLab
        ({}, True, False, True),  # papermill, nbconvert, nbval
        ({}, True, True, True),
        ({}, False, True, False),
        ({}, False, False, True),
        ({"JPY_SESSION_NAME": "a.ipynb"}, False, False, True),  # !python train.py in a cell
    ],
)
def test_lines_where_nobody_watches(monkeypatch, variables, kernel, terminal, expected):
    for name in ("LABKIT_HEADLESS", "JPY_SESSION_NAME"):
        monkeypatch.setenv(name, variables.get(name, ""))
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    if kernel:
        monkeypatch.setitem(sys.modules, "ipykernel", progress)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    assert is_headless() is expected


CELL = """from labkit.base.progress import Progress, has_front_end
display = Progress("training", 3)
for _ in range(3):
    display.advance(lambda: "loss 0.5")
print("front end", has_front_end())"""


def test_plain_papermill_stores_lines_and_no_widget(tmp_path, monkeypatch):
    """Unlike `labkit run`, papermill does not set LABKIT_HEADLESS; a notebook may start it."""
    monkeypatch.delenv("LABKIT_HEADLESS", raising=False)
    monkeypatch.setenv("JPY_SESSION_NAME", "notebooks/a.ipynb")
    monkeypatch.setenv("PYTHONPATH", str(Path(progress.__file__).parents[2]))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    nbformat.write(notebook, tmp_path / "in.ipynb")
    options = {"kernel_name": "python3", "language": "python", "progress_bar": False}
    done = papermill.execute_notebook(tmp_path / "in.ipynb", None, **options)
    assert "widget" not in nbformat.writes(done)
    said = [output.text for output in done.cells[-1].outputs if output.output_type == "stream"]
    assert "".join(said) == "training 3/3 loss 0.5 0 s\nfront end False\n"
