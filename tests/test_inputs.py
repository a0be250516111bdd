"""A run's inputs change when, and only when, something that decides its outputs does."""

import copy

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from labkit import inputs


@pytest.fixture
def project(tmp_path):
    for name in ("labkit/nets/lenet.py", "labkit/running/runner.py", "labkit/cli.py",
                 "data_scripts/mnist.py", "notebooks/data/train/0/a.png"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    return tmp_path


def of(project, notebook=None, preset="smoke", device="auto", **parameters):
    notebook = notebook or new_notebook(cells=[new_code_cell("1 + 1", id="a")])
    return inputs.of_run(project, nbformat.from_dict(notebook), preset, device, parameters)


def test_the_same_inputs_are_the_same(project):
    assert (
        inputs.changed(of(project, rate=0.1, data="data"), of(project, data="data", rate=0.1)) == []
    )


@pytest.mark.parametrize(
    ("path", "kinds"),
    [
        ("labkit/nets/lenet.py", ["labkit"]),
        ("data_scripts/mnist.py", ["data"]),
        ("notebooks/data/train/0/a.png", ["parameters"]),
        ("notebooks/data/train/0/b.png", ["parameters"]),
        # What starts labs and shows what they left is none of their inputs.
        ("labkit/running/runner.py", []),
        ("labkit/cli.py", []),
    ],
)
def test_a_changed_file_is_of_its_kind(project, path, kinds):
    before = of(project, data="data")
    (project / path).write_text("22")
    assert inputs.changed(before, of(project, data="data")) == kinds


@pytest.mark.parametrize(
    "asked", [{"preset": "lab"}, {"device": "CPU"}, {"rate": 0.2}, {"rate": None}, {"seed": 1}]
)
def test_what_was_asked_for_counts(project, asked):
    assert inputs.changed(of(project, rate=0.1), of(project, **{"rate": 0.1, **asked})) == [
        "parameters"
    ]


def test_outputs_do_not_count_and_sources_do(project):
    notebook = new_notebook(cells=[new_code_cell("1 + 1", id="a")])
    executed = copy.deepcopy(notebook)
    executed.cells[0].execution_count = 7
    assert of(project, notebook) == of(project, executed)
    executed.cells[0].source = "1 + 2"
    assert inputs.changed(of(project, notebook), of(project, executed)) == ["notebook"]


def test_another_version_of_a_package_counts(project, monkeypatch):
    before = of(project)
    monkeypatch.setattr(inputs, "installed_version", lambda name: "9.9" + name)
    assert inputs.changed(before, of(project)) == ["versions"]
