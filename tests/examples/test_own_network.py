"""The example program trains with each technique, and resumes where it was left."""

import importlib

import pytest

from labkit import InputError


@pytest.fixture
def program(root, monkeypatch):
    # By its name, not from its path: MindSpore's compiler looks for the module of a Cell.
    monkeypatch.syspath_prepend(root / "examples")
    return importlib.import_module("own_network")


@pytest.mark.parametrize("technique", ["accumulation", "thor", "both", "adasum"])
def test_the_example_learns_the_circle(program, technique, tmp_path, capsys):
    assert program.main(tmp_path, technique) > 0.93  # always the larger class: 0.53
    capsys.readouterr()
    assert program.main(tmp_path, technique) > 0.93
    assert "resumed after micro-batch 625" in capsys.readouterr().out


def test_an_unknown_technique_is_refused(program, tmp_path):
    with pytest.raises(InputError, match="expected accumulation, thor, both or adasum"):
        program.main(tmp_path, "adasum")
