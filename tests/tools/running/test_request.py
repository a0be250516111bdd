"""Everything a user can get wrong about a run is refused before anything is created."""

import json

import pytest

from labkit.errors import InputError
from labkit.tools.running import request


@pytest.fixture
def project(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "labkit"\n')
    (tmp_path / "notebooks").mkdir()
    for name, source in (
        ("01_sums", "preset = device = epochs = rate = None"),
        ("02_thor", "preset = device = epochs = damping = None"),
    ):
        cell = {"cell_type": "code", "metadata": {"tags": ["parameters"]}, "source": source}
        text = json.dumps({"cells": [cell], "nbformat": 4, "nbformat_minor": 5})
        (tmp_path / "notebooks" / f"{name}.ipynb").write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("x=4", 4),
        ("x=0.01", 0.01),
        ("x=1e-3", 0.001),
        ("x=-2.5E+3", -2500.0),
        ("x=true", True),
        ("x=[1, 2e-1]", [1, 0.2]),
        ("x=drop", "drop"),
        ("x=a=b", "a=b"),
        ("x=2024-01-02", "2024-01-02"),
        ("x=e5", "e5"),
        ("x=", None),
        ("x={a: 1}", {"a": 1}),
    ],
)
def test_values_are_typed_as_yaml(text, value):
    parsed = request.parse_parameters([text])["x"]
    assert parsed == value and type(parsed) is type(value)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["epochs"], "is not name=value"),
        (["two words=3"], "is not name=value"),
        (["x=[1"], "cannot be read as YAML"),
        (["x=1", "x=2"], "given twice"),
        (["preset=smoke"], "use --preset smoke"),
    ],
)
def test_unreadable_parameters_are_refused(texts, said):
    with pytest.raises(InputError, match=said):
        request.parse_parameters(texts)


def test_a_right_request_is_returned_whole_and_creates_nothing(project):
    before = sorted(project.rglob("*"))
    checked = request.check(
        ["sums"], preset="smoke", device="CPU", parameters=["epochs=2"], start=project
    )
    assert [lab.name for lab in checked.labs] == ["01_sums"]
    assert (checked.preset, checked.device, checked.of(checked.labs[0])) == (
        "smoke",
        "CPU",
        {"epochs": 2},
    )
    assert checked.project == project.resolve()
    assert sorted(project.rglob("*")) == before


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"names": ["04"]}, "unknown lab '04'"),
        ({"preset": "smok"}, "unknown preset 'smok'.*Did you mean 'smoke'"),
        ({"device": "cpu"}, "unknown device 'cpu'; expected one of: auto, Ascend, GPU, CPU"),
        ({"names": ["1"], "parameters": ["epoch=2"]}, "of lab 01_sums 'epoch'.*mean 'epochs'"),
        # Known to the second lab only: it would be left out silently in the first.
        ({"parameters": ["damping=2"]}, "unknown parameter of lab 01_sums 'damping'"),
    ],
)
def test_what_is_not_there_is_refused(project, asked, said):
    with pytest.raises(InputError, match=said):
        request.check(start=project, **asked)


def test_a_preset_that_a_lab_does_not_have_is_refused(project, monkeypatch):
    monkeypatch.setitem(request.lab_files.LABS, "02_thor", {"smoke": {}, "lab": {}})
    with pytest.raises(InputError, match="unknown preset of lab 02_thor 'paper'"):
        request.check(preset="paper", start=project)


def test_a_device_that_is_not_here_is_refused(project, monkeypatch):
    monkeypatch.setattr(request, "available_devices", lambda: ("CPU",))
    with pytest.raises(
        InputError, match="GPU was asked for and is not here; MindSpore can use: CPU"
    ):
        request.check(device="GPU", start=project)
