"""The report is one page that loads nothing and escapes everything from files."""

import pytest

from labkit.errors import InputError
from labkit.tools.reports import page, read, reference, tables
from tests.support import run_folders as folders
from tests.support.html_pages import check

EVIL = "<script>alert(1)</script>\"'&"


@pytest.fixture
def known(tmp_path, monkeypatch):
    """A stored run of the lab to which the folders belong."""
    monkeypatch.setattr(reference, "FOLDER", folders.stored(tmp_path / "stored"))


def render(*places):
    return page.render(read.read_all(places))


def test_one_run_is_one_page_and_its_notebook_another(tmp_path, known):
    run = folders.write_run(tmp_path / "r")
    out = page.write([run])
    assert out == run / "report.html"
    report = check(out.read_text())
    assert len(report.images) == 1 and "within" in report.text
    (link,) = [link for link in report.links if not link.startswith("#")]
    beside = (out.parent / link).read_text()
    assert "<mfrac><mn>1</mn><mi>n</mi></mfrac>" in beside
    assert check(beside).links == ["../report.html"]
    (run / folders.LAB / f"{folders.LAB}.ipynb").write_text('{"cells": 3')
    text = check(page.write([run]).read_text()).text
    assert "cannot be converted" in text and "not converted" in text


def test_what_differs_stands_before_what_is_equal_and_what_ran(tmp_path, known):
    changes = {
        "parameters": {**folders.PARAMETERS, "learning_rate": 0.5},
        "versions": {"python": "3.12.1", "mindspore": "2.10.0"},
    }
    html = render(folders.write_run(tmp_path / "a"), folders.write_run(tmp_path / "b", **changes))
    text = check(html).text.split("What differs", 2)[2]
    words = ("3.12.1", "parameter learning_rate", "What is equal", "What ran")
    places = [text.index(word) for word in words]
    assert places == sorted(places) and "Failures" not in text
    equal = text[places[2] : places[3]]
    assert "parameter epochs" in equal and "learning_rate" not in equal
    assert "not compared: learning_rate is 0.5, stored 0.01" in text


def test_what_cannot_be_read_is_not_called_equal(tmp_path):
    runs = [folders.write_run(tmp_path / name) for name in ("a", "b")]
    sentence = f"Parameters and inputs are the same in all runs of {folders.LAB}"
    assert sentence in check(render(*runs)).text
    (runs[1] / folders.LAB / "results.json").write_text("{")
    assert sentence not in check(render(*runs)).text


def test_a_metric_outside_its_tolerance_has_its_distance_and_the_reason(tmp_path, known):
    metrics = {**folders.METRICS, "test accuracy": 0.97}
    text = check(render(folders.write_run(tmp_path / "r", metrics=metrics))).text
    assert "outside by 0.007" in text and "spread of four seeds" in text and "-0.012" in text
    assert "0 within, 1 outside" in text


def test_a_failure_has_cause_cell_and_last_lines(tmp_path):
    error = {"name": "MemoryError", "message": "none left", "cell": 7, "cause": "memory"}
    log = "first\nthe last line\n"
    run = folders.write_run(tmp_path / "r", status="failed", error=error, log=log)
    text = check(render(run)).text
    assert "Cause: memory, in cell 7" in text and "MemoryError: none left" in text
    assert "the last line" in text and "No metrics" in text


def test_interrupted_runs_and_those_not_started_are_named_so(tmp_path):
    text = check(render(folders.write_run(tmp_path / "r", status="running", pid=2**30))).text
    assert "1 interrupted" in text and "Cause: not recorded" in text
    (tmp_path / "run.json").write_text('{"labs": ["01_a"]}')
    assert "1 not started" in check(render(tmp_path)).text


def test_everything_that_comes_from_files_is_escaped(tmp_path):
    lab = folders.write_lab(
        tmp_path / f"r{EVIL.replace('/', '')}",
        lab=EVIL,
        status="failed",
        git=EVIL,
        parameters={EVIL: EVIL},
        versions={EVIL: EVIL},
        metrics={EVIL: EVIL},
        error={"name": EVIL, "message": EVIL, "cause": EVIL, "cell": EVIL},
        log=f"{EVIL}\n",
    )
    (lab / "figures" / "training.png").rename(lab / "figures" / "<b>.png")
    (lab / "records.csv").write_text("update,loss,<i>x</i>\n1,2,3\n2,1,4\n")
    html = render(lab)
    assert "alert(1)" in check(html).text
    assert "<i>" not in html and "<b>" not in html


def test_twelve_runs_have_a_row_each_and_curves_that_differ(tmp_path, known):
    seeds = [{**folders.PARAMETERS, "seed": seed} for seed in range(12)]
    runs = [
        folders.write_run(tmp_path / f"run{number:02}", parameters=parameters, rows=30)
        for number, parameters in enumerate(seeds)
    ]
    html = render(*runs)
    check(html)
    # The table of differences grows downwards: its head has two names, not thirteen.
    assert '<th scope="col">run</th><th scope="col">parameter seed</th></tr>' in html
    legend = html[html.index('class="legend"') : html.index('class="panels"')]
    looks = {line.split(" d=")[0] + line.split("M1 5H33")[1][:30]
             for line in legend.split("<path ")[1:]}  # fmt: skip
    assert len(looks) == 12


def test_curves_of_one_group_are_laid_over_each_other(tmp_path, known):
    lab = folders.write_lab(tmp_path / "r")
    for name in ("THOR", "Momentum"):
        folders.write_records(lab / "race" / name / "records.csv", 5)
    assert f"{folders.LAB}: race" in check(render(lab)).text
    groups = {each["group"]: each for each in page._curves(read.read(lab).labs, {"r": 0})}
    assert [label for label, *_ in groups["race"]["legend"]] == ["Momentum", "THOR"]
    assert [len(panel.lines) for panel in groups["race"]["panels"]] == [2, 2, 2, 2]
    assert [len(panel.lines) for panel in groups[""]["panels"]] == [1, 1, 1, 1]


def test_a_sweep_shows_its_table_and_figures(tmp_path, known):
    report = check(render(folders.write_sweep(tmp_path / "s")))
    assert "seed = [1, 2]" in report.text
    assert "test accuracy over the sweep s" in [image["alt"] for image in report.images]


def test_nothing_is_written_where_the_page_cannot_be(tmp_path, known):
    run = folders.write_run(tmp_path / "r")
    (tmp_path / "file").write_text("")
    (tmp_path / "mine.html").write_text("<!DOCTYPE html>\n<title>My thesis</title>\n")
    (tmp_path / "folder.html").mkdir()
    before = sorted(tmp_path.rglob("*"))
    for out in ("page.pdf", "r", "x.html/..", "file/page.html", "mine.html", "folder.html"):
        with pytest.raises(InputError, match="--out: expected|cannot write the report"):
            page.write([run], tmp_path / out, notebooks=out != "file/page.html")
    with pytest.raises(InputError, match="no run at"):
        page.write([run, tmp_path / "gone"], tmp_path / "page.html")
    assert sorted(tmp_path.rglob("*")) == before
    assert "My thesis" in (tmp_path / "mine.html").read_text()


def test_several_runs_have_their_page_here_with_values_as_they_are(tmp_path, known, monkeypatch):
    """Characters that UTF-8 cannot encode are replaced; so is the page of an earlier report."""
    metrics = {"a": None, "b": True, "c": 1e-9, "d": "nan", "e": [1, 2], "test accuracy": 0.982}
    changes = {"metrics": metrics, "git": "\ud800\x00\x1b[31m"}
    runs = [folders.write_run(tmp_path / name, **changes) for name in "ab"]
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert page.write(runs, notebooks=False) == tmp_path / "report.html"
    text = check((tmp_path / "report.html").read_text(encoding="utf-8")).text
    for shown in ("1e-09", "[1, 2]", "True", "\ufffd"):
        assert shown in text


@pytest.mark.parametrize(
    ("cell", "shown"), [("0.123456789", "0.123457"), ("1234567891", "1234567891"), ("a", "a")]
)
def test_numbers_of_a_table_are_shortened_and_seeds_are_not(cell, shown):
    assert tables._shorter(cell) == shown
