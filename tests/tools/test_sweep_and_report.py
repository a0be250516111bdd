"""`labkit sweep` and `labkit report`, on the results of small labs."""

import csv
import json
from html.parser import HTMLParser

import pytest

from labkit.tools.report import differences, is_within, judged, read
from labkit.tools.sweep import folder_name, grid_of


def test_a_sweep_is_every_combination_once(call, project):
    words = ("sweep", "01", "--preset", "smoke", "-p", "rate=1,2,010", "-p", "sizes=[1],[2]")
    code, out, _ = call(*words)
    assert code == 0 and "10    [2]    passed  " in out  # the closing table has the parameters
    folder = project / "runs/sweeps/01_one-smoke"
    rows = list(csv.DictReader((folder / "sweep.csv").read_text().splitlines()))
    assert [(row["rate"], row["sizes"], row["doubled"]) for row in rows] == [
        (str(rate), sizes, str(2 * rate)) for rate in (1, 2, 10) for sizes in ("[1]", "[2]")
    ]
    assert (folder / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert call(*words)[1].count("passed before") == 6


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "expected at least one parameter"),
        (["rate="], "expected values separated by commas"),
        (["rate=1,,2"], "expected values separated by commas"),
        (["rate=1,1"], "expected each value once, got 1 twice"),
        (["rate"], "expected NAME=VALUE"),
    ],
)
def test_grids_that_are_refused(texts, message):
    with pytest.raises(ValueError, match=message):
        grid_of(texts)


def test_values_of_a_grid():
    grid = grid_of(["a=1,1e-3,True,None,x", "b=[1, 2],3", "c=#a,*b,1:30"])
    assert grid == {
        "a": [1, 0.001, True, None, "x"],
        "b": [[1, 2], 3],
        "c": ["#a", "*b", "1:30"],
    }
    assert folder_name({"b": 1, "a": "x"}) == "a=x,b=1"
    assert folder_name({"a": "x/y"}) != folder_name({"a": "x_y"})


def loads_from_outside(page):
    """Return what a page loads from elsewhere."""
    outside = []

    class Links(HTMLParser):
        def handle_starttag(self, tag, attributes):
            for name, value in attributes:
                if name in ("src", "href") and tag in ("script", "link", "img"):
                    outside.extend([value] if not value.startswith("data:") else [])

    Links().feed(page.read_text())
    return outside


def test_a_report_of_two_runs(call, project):
    call("run", "01", "-p", "rate=1", "--out", "a")
    call("run", "01", "02", "-p", "rate=2", "--out", "b")
    assert call("report", "a", "b")[0] == 0
    text = (project / "report.html").read_text()
    place = text.index
    assert place("What differs") < place("metrics: doubled") < place("What ran")
    assert "of this cell" in text
    pages = sorted((project / "report_notebooks").iterdir())
    assert [page.name for page in pages] == ["a-01_one.html", "b-01_one.html", "b-02_fails.html"]
    for page in (project / "report.html", *pages):
        assert loads_from_outside(page) == []
    assert "<math" in pages[0].read_text() and "$x^2$" not in pages[0].read_text()
    code, out, _ = call("report", "a", "b", "--check")
    assert code == 1 and "01_one: metrics: doubled: 2 | 4" in out
    assert call("report", "a", "--check")[:2] == (0, "")


def test_times_do_not_count(call, project):
    for name in "ab":
        call("run", "01", "-p", "rate=1", "--out", name)
    listed = differences([read(project / name) for name in "ab"])
    assert listed and all(each.is_time for each in listed)


def test_runs_of_one_name_are_told_apart(call, project):
    for folder in ("a/run", "b/run"):
        call("run", "01", "--out", folder)
    assert call("report", "a/run", "b/run", "--no-notebooks")[0] == 0
    text = (project / "report.html").read_text()
    assert "<th>a/run</th><th>b/run</th>" in text
    assert "got one twice" in call("report", "a/run", "a/../a/run")[2]


def test_a_folder_without_a_run(call, project):
    (project / "empty").mkdir()
    code, _, err = call("report", "empty")
    assert code == 2 and "holds no run" in err


def stored(monkeypatch, tmp_path, **metrics):
    entry = {"parameters": {"rate": 1, "seed": 1}, "any_seed": True, "metrics": metrics}
    path = tmp_path / "headlines.json"
    path.write_text(json.dumps({"lab": {"01": entry}}))
    monkeypatch.setattr("labkit.tools.report.HEADLINES", path)


def test_headline_numbers_beside_the_stored_run(monkeypatch, tmp_path):
    known = {"value": 0.98, "kind": "absolute", "amount": 0.002, "reason": "seeds"}
    stored(monkeypatch, tmp_path, accuracy=known)
    results = {"lab": "01", "preset": "lab", "parameters": {"rate": 1, "seed": 7}}
    for value, verdict in ((0.9805, "within"), (0.97, "outside"), (None, "outside")):
        (row,) = judged(results | {"metrics": {"accuracy": value}})
        assert row == ("accuracy", value, 0.98, "± 0.002", verdict)
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
        (5, 1, "none", None, True),
    ],
)
def test_tolerances(value, reference, kind, amount, expected):
    assert is_within(value, reference, kind, amount) is expected
