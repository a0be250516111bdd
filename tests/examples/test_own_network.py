"""The example program trains, and resumes where it was left."""

import importlib


def test_the_example_learns_the_circle(root, tmp_path, capsys, monkeypatch):
    # By its name, not from its path: MindSpore's compiler looks for the module of a Cell.
    monkeypatch.syspath_prepend(root / "examples")
    program = importlib.import_module("own_network")
    assert program.main(tmp_path) > 0.93  # always the larger class: 0.53
    capsys.readouterr()
    assert program.main(tmp_path) > 0.93
    assert "resumed after micro-batch 625" in capsys.readouterr().out
