"""`labkit sweep` and `labkit report`, on the results of small labs."""

import csv
import json
import re

import pytest

from labkit.tools.report import is_within, judged


def test_a_sweep_is_every_combination_once(call, project):
    words = ("sweep", "01", "--preset", "smoke", "-p", "rate=1,010", "-p", "sizes=[1],[2]")
    code, out, _ = call(*words)
    assert code == 0 and "10    [2]    01_one  passed  " in out  # the closing table
    folder = project / "runs/sweeps/01_one-smoke"
    rows = list(csv.DictReader((folder / "sweep.csv").read_text().splitlines()))
    assert [(row["rate"], row["sizes"], row["doubled"]) for row in rows] == [
        (str(rate), sizes, str(2 * rate)) for rate in (1, 10) for sizes in ("[1]", "[2]")
    ]
    assert (folder / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert call(*words)[1].count("passed before") == 4


def test_a_report_of_two_runs(call, project):
    call("run", "01", "-p", "rate=1", "--out", "a/run")
    call("run", "01", "02", "-p", "rate=2", "--out", "b/run")
    assert call("report", "a/run", "b/run")[0] == 0
    text = (project / "report.html").read_text()
    place = text.index
    assert place("What differs") < place("metrics: doubled") < place("Times, which do not count")
    assert "of this cell" in text and "<th>a/run</th><th>b/run</th>" in text
    pages = sorted((project / "report_notebooks").iterdir())
    assert [page.name for page in pages] == ["0-01_one.html", "1-01_one.html", "2-02_fails.html"]
    assert not re.search(r"<(script|link)|<img[^>]* src=.(?!data:)", text)  # from elsewhere
    code, out, _ = call("report", "a/run", "b/run", "--check")
    assert code == 1 and "01_one: metrics: doubled: 2 | 4\n" in out and "seconds" not in out
    assert call("report", "a/run", "--check") == (0, "", "")


def test_headline_numbers_beside_the_stored_run(monkeypatch, tmp_path):
    known = {"value": 0.98, "kind": "absolute", "amount": 0.002, "reason": "seeds"}
    entry = {"parameters": {"rate": 1, "seed": 1}, "any_seed": True, "metrics": {"accuracy": known}}
    path = tmp_path / "headlines.json"
    path.write_text(json.dumps({"lab": {"01": entry}}))
    monkeypatch.setattr("labkit.tools.report.HEADLINES", path)
    results = {"lab": "01", "preset": "lab", "parameters": {"rate": 1, "seed": 7}}
    for value, verdict in ((0.9805, "within"), (0.97, "outside"), (None, "outside")):
        row = judged(results | {"metrics": {"accuracy": value}})
        assert row == [("accuracy", value, 0.98, "± 0.002", verdict)]
    other = results | {"parameters": {"rate": 2}, "metrics": {"accuracy": 0.5}}
    assert judged(other)[0][4] == "not compared: another rate"
    assert judged({"lab": "02", "metrics": {"a": 1}, "headline": ["a"]})[0][4].endswith("run")


@pytest.mark.parametrize(
    ("value", "reference", "kind", "amount", "expected"),
    [
        (0.9825, 0.9805, "absolute", 0.002, True),
        (0.9826, 0.9805, "absolute", 0.002, False),
        (float("nan"), 1.0, "absolute", 1.0, False),
        (1e-7, None, "at most", 1e-6, True),
        (2e-6, None, "at most", 1e-6, False),
        ("a", "a", "equal", None, True),
        ("a", "b", "equal", None, False),
    ],
)
def test_tolerances(value, reference, kind, amount, expected):
    assert is_within(value, reference, kind, amount) is expected
