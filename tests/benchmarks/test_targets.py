"""The closing table of `make bench`."""

import json
import sys

import pytest
import targets

MACHINE = {"time": "now", "cores": 2, "processor": "a chip", "versions": {"torch": "2.13.0"}}


def leave(folder, name, *rows):
    folder.mkdir(exist_ok=True)
    rows = [dict(zip(("what", "measured", "most"), row, strict=True)) for row in rows]
    (folder / f"{name}.json").write_text(json.dumps({"machine": MACHINE, "targets": rows}))


@pytest.fixture
def printed(tmp_path, monkeypatch, capsys):
    """A function: arguments -> lines that the program prints for results in tmp_path / "now"."""
    monkeypatch.setattr(targets, "RESULTS", tmp_path / "now")

    def printed(*arguments):
        monkeypatch.setattr(sys, "argv", ["targets.py", *map(str, arguments)])
        targets.main()
        return capsys.readouterr().out.splitlines()

    return printed


def test_what_is_at_the_limit_is_met_and_what_is_beyond_it_is_not(tmp_path, printed):
    leave(tmp_path / "now", "a", ("a step", 1.2, 1.2), ("a search", 1.41, 1.4))
    leave(tmp_path / "now", "b", ("all labs, s", 464.2, 720.0), ("a share", -0.004, 1 / 30))
    assert printed("a", "b") == [
        "now, 2 cores, a chip, torch 2.13.0",
        "",
        "| what | now | at most |  |",
        "| --- | --- | --- | --- |",
        "| a step | 1.20 | 1.2 | met |",
        "| a search | 1.41 | 1.4 | MISSED |",
        "| all labs, s | 464 | 720 | met |",
        "| a share | -0.004 | 0.0333 | met |",
    ]


def test_figures_of_before_have_a_column(tmp_path, printed):
    leave(tmp_path / "now", "a", ("a step", 1.0, 1.2), ("new", 1.0, 2.0))
    leave(tmp_path / "old", "a", ("a step", 1.5, 1.2))
    lines = printed("--before", tmp_path / "old", "a")
    assert lines[2] == "| what | before | now | at most |  |"
    assert lines[4:] == ["| a step | 1.50 | 1.00 | 1.2 | met |", "| new |  | 1.00 | 2 | met |"]


def test_a_program_without_figures_has_no_rows(tmp_path, printed):
    leave(tmp_path / "now", "a", ("a step", 1.0, 1.2))
    lines = printed("a", "a_race")
    assert lines[4:] == ["| a step | 1.00 | 1.2 | met |"]
