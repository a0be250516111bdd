"""The example program trains, and resumes where it was left."""

import importlib.util


def test_the_example_learns_the_circle(root, tmp_path, capsys):
    spec = importlib.util.spec_from_file_location("own_network", root / "examples/own_network.py")
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    assert program.main(tmp_path) > 0.93  # always the larger class: 0.53
    capsys.readouterr()
    assert program.main(tmp_path) > 0.93
    assert "resumed after micro-batch 625" in capsys.readouterr().out
