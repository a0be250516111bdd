"""What the program that repeats the notebooks reads from pytest's report."""

import smoke_runs as program

REPORT = """<testsuites><testsuite>
<testcase classname="notebooks.00_start_here.ipynb" name="Cell 0" time="0.5" />
<testcase classname="notebooks.00_start_here.ipynb" name="Cell 1" time="1.0">
<failure message="differs">Cell 1 differs</failure></testcase>
<testcase classname="notebooks.03_thor.ipynb" name="Cell 0" time="2.0">
<error message="no kernel" /></testcase>
</testsuite></testsuites>"""


def test_every_failure_is_counted_with_its_notebook(tmp_path, capsys):
    (tmp_path / "report.xml").write_text(REPORT)
    report = program.read(tmp_path / "report.xml")
    assert report["cells"] == 3
    assert report["spent"] == {"00_start_here": 1.5, "03_thor": 2.0}
    failed = [(row["notebook"], row["cell"], row["text"]) for row in report["failures"]]
    assert failed == [
        ("00_start_here", "Cell 1", "Cell 1 differs"),
        ("03_thor", "Cell 0", "no kernel"),
    ]
    assert program.show([report]) == 1
    printed = capsys.readouterr().out
    assert "00_start_here, Cell 1:\nCell 1 differs" in printed


def test_rounds_without_a_failure_pass(capsys):
    assert program.show([{"spent": {"00_start_here": 1.5}, "failures": []}] * 2) == 0
    assert ["00_start_here", "2", "0", "1.5"] in [
        line.split() for line in capsys.readouterr().out.splitlines()
    ]


def test_a_round_goes_behind_a_line_that_was_cut_short(tmp_path, monkeypatch):
    monkeypatch.setattr(program, "KEPT", tmp_path / "kept.jsonl")
    program.KEPT.write_text('{"seconds": 1}\n{"secon')
    assert program.kept() == [{"seconds": 1}]
    with program.KEPT.open("a") as file:
        file.write('{"seconds": 2}\n')
    assert program.kept() == [{"seconds": 1}, {"seconds": 2}]
