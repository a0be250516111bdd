"""`labkit sweep` and `labkit report`, on the results of small labs."""

import csv
import json
import re

import pytest

from labkit.tools.report import judged


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


def test_a_report_of_two_runs(call, project, results):
    call("run", "01", "-p", "rate=1", "--out", "a/run")
    call("run", "01", "02", "-p", "rate=2", "--out", "b/run")
    assert results("b/run", "01_one").get("error") is None
    assert call("report", "a/run", "b/run")[0] == 0
    text = (project / "report.html").read_text()
    place = text.index
    assert place("What differs") < place("metrics: doubled") < place("Times, which do not count")
    assert "of this cell" in text and "<th>a/run</th><th>b/run</th>" in text
    pages = sorted((project / "report_notebooks").iterdir())
    assert [page.name for page in pages] == ["0-01_one.html", "1-01_one.html", "2-02_fails.html"]
    for page in (project / "report.html", *pages):
        own = page.read_text()  # loads nothing from elsewhere
        assert not re.search(r"<(script|link|img)\b[^>]* (src|href)=.(?!data:)", own)
    assert "<math" in pages[0].read_text() and "$x^2$" not in pages[0].read_text()
    code, out, _ = call("report", "a/run", "b/run", "--check")
    assert code == 1 and "01_one: metrics: doubled: 2 | 4\n" in out and "seconds" not in out
    assert call("report", "a/run", "--check") == (0, "", "")


@pytest.mark.parametrize(
    ("value", "reference", "kind", "amount", "tolerance", "verdict"),
    [
        (0.9825, 0.9805, "absolute", 0.002, "± 0.002", "within"),
        (0.9826, 0.9805, "absolute", 0.002, "± 0.002", "outside"),
        (0.9784, 0.9805, "absolute", 0.002, "± 0.002", "outside"),
        (float("nan"), 1.0, "absolute", 1.0, "± 1", "outside"),
        (None, 1.0, "absolute", 1.0, "± 1", "outside"),
        (1e-7, None, "at most", 1e-6, "at most 1e-06", "within"),
        (2e-6, None, "at most", 1e-6, "at most 1e-06", "outside"),
        ("a", "a", "equal", None, "equal", "within"),
        ("a", "b", "equal", None, "equal", "outside"),
        (5, 1, "none", None, "none", "not compared: no tolerance"),
    ],
)
def test_headline_numbers_beside_the_stored_run(
    monkeypatch, tmp_path, value, reference, kind, amount, tolerance, verdict
):
    known = {"accuracy": {"value": reference, "kind": kind, "amount": amount}}
    entry = {"parameters": {"rate": 1, "seed": 1}, "any_seed": True, "metrics": known}
    (tmp_path / "headlines.json").write_text(json.dumps({"lab": {"01": entry}}))
    monkeypatch.setattr("labkit.tools.report.HEADLINES", tmp_path / "headlines.json")
    results = {"lab": "01", "preset": "lab", "metrics": {"accuracy": value}}
    row = judged(results | {"parameters": {"rate": 1, "seed": 7}})
    assert row == [("accuracy", value, reference, tolerance, verdict)]
    ((*_, why),) = judged(results | {"parameters": {"rate": 2}})
    assert why == "not compared: another rate"
    ((*_, why),) = judged(results | {"lab": "02", "headline": ["accuracy"]})
    assert why == "not compared: no stored run"
