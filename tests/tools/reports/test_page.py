"""The report: one page that loads nothing, with everything from files escaped."""

import pytest

from labkit.errors import InputError
from labkit.tools.reports import page, read, reference
from tests.support import run_folders as folders
from tests.support.html_pages import check

EVIL = "<script>alert(1)</script>\"'&"


@pytest.fixture
def known(tmp_path, monkeypatch):
    """A stored run of the lab that the folders are of."""
    monkeypatch.setattr(reference, "FOLDER", folders.stored(tmp_path / "stored"))


def test_one_run_is_one_page_and_its_notebook_another(tmp_path, known):
    run = folders.write_run(tmp_path / "r")
    out = page.write([run])
    assert out == run / "report.html"
    found = check(out.read_text())
    assert len(found.images) == 1 and "within" in found.text
    (link,) = [link for link in found.links if not link.startswith("#")]
    beside = (out.parent / link).read_text()
    assert "<mfrac><mn>1</mn><mi>n</mi></mfrac>" in beside
    assert check(beside).links == ["../report.html"]


def test_what_differs_stands_before_what_is_equal_and_what_ran(tmp_path, known):
    runs = [
        folders.write_run(tmp_path / "a"),
        folders.write_run(
            tmp_path / "b",
            parameters={**folders.PARAMETERS, "learning_rate": 0.5},
            versions={"python": "3.12.1", "mindspore": "2.10.0"},
        ),
    ]
    text = check(page.render(read.read_all(runs))).text.split("What differs", 2)[2]
    places = [
        text.index(one)
        for one in ("3.12.1", "parameter learning_rate", "What is equal", "What ran", "Failures")
        if one in text
    ]
    assert places == sorted(places) and len(places) == 4
    equal = text[text.index("What is equal") : text.index("What ran")]
    assert "parameter epochs" in equal and "learning_rate" not in equal
    assert "not compared: learning_rate is 0.5, stored 0.01" in text


def test_what_cannot_be_read_is_not_called_equal(tmp_path):
    runs = [folders.write_run(tmp_path / name) for name in ("a", "b")]
    sentence = f"Parameters and inputs are the same in all runs of {folders.LAB}"
    assert sentence in check(page.render(read.read_all(runs))).text
    (runs[1] / folders.LAB / "results.json").write_text("{")
    assert sentence not in check(page.render(read.read_all(runs))).text


def test_a_metric_outside_its_tolerance_is_said_with_by_how_much_and_the_reason(tmp_path, known):
    metrics = {**folders.METRICS, "test accuracy": 0.97}
    run = folders.write_run(tmp_path / "r", metrics=metrics)
    text = check(page.render(read.read_all([run]))).text
    assert "outside by 0.007" in text and "spread of four seeds" in text and "-0.012" in text
    assert "0 within, 1 outside" in text


def test_a_failure_has_cause_cell_and_last_lines(tmp_path):
    error = {"name": "MemoryError", "message": "none left", "cell": 7, "cause": "memory"}
    run = folders.write_run(
        tmp_path / "r", status="failed", error=error, log="first\nthe last line\n"
    )
    text = check(page.render(read.read_all([run]))).text
    assert "Cause: memory, in cell 7" in text and "MemoryError: none left" in text
    assert "the last line" in text and "No metrics" in text


def test_running_and_interrupted_runs_are_said_to_be_so(tmp_path):
    gone = folders.write_run(tmp_path / "gone", status="running", pid=2**30)
    text = check(page.render(read.read_all([gone]))).text
    assert "1 interrupted" in text and "Cause: not recorded" in text
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "run.json").write_text('{"labs": ["01_a"]}')
    assert "1 not started" in check(page.render(read.read_all([empty]))).text


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
    text = page.render(read.read_all([lab]))
    assert "alert(1)" in check(text).text
    assert "<i>" not in text and "<b>" not in text


def test_twelve_runs_have_a_row_each_and_curves_that_differ(tmp_path, known):
    runs = [
        folders.write_run(
            tmp_path / f"run{n:02}", parameters={**folders.PARAMETERS, "seed": n}, rows=30
        )
        for n in range(12)
    ]
    text = page.render(read.read_all(runs))
    check(text)
    # The table of what differs grows down: its head has two names, not thirteen.
    assert '<th scope="col">run</th><th scope="col">parameter seed</th></tr>' in text
    legend = text[text.index('class="legend"') : text.index('class="panels"')]
    looks = {line.split(" d=")[0] + line.split("M1 5H33")[1][:30] for line in
             legend.split("<path ")[1:]}  # fmt: skip
    assert len(looks) == 12


def test_curves_of_one_group_are_laid_over_each_other(tmp_path, known):
    lab = folders.write_lab(tmp_path / "r")
    for name in ("THOR", "Momentum"):
        folders.write_records(lab / "race" / name / "records.csv", 5)
    found = check(page.render(read.read_all([lab])))
    assert f"{folders.LAB}: race" in found.text
    groups = {one["group"]: one for one in page._curves(read.read(lab).labs, {"r": 0})}
    assert [line.label for line in groups["race"]["legend"]] == ["Momentum", "THOR"]
    assert [len(panel.lines) for panel in groups["race"]["panels"]] == [2, 2, 2, 2]
    assert [len(panel.lines) for panel in groups[""]["panels"]] == [1, 1, 1, 1]


def test_a_sweep_shows_its_table_and_figures(tmp_path, known):
    found = check(page.render(read.read_all([folders.write_sweep(tmp_path / "s")])))
    assert "seed = [1, 2]" in found.text and "test accuracy over the sweep s" in [
        image["alt"] for image in found.images
    ]


def test_nothing_is_written_where_the_page_cannot_be(tmp_path, known):
    run = folders.write_run(tmp_path / "r")
    (tmp_path / "file").write_text("")
    (tmp_path / "mine.html").write_text("<!DOCTYPE html>\n<title>My thesis</title>\n")
    before = sorted(tmp_path.rglob("*"))
    for out in ("page.pdf", "r", "x.html/..", "file/page.html", "mine.html"):
        with pytest.raises(InputError, match="cannot write the report"):
            page.write([run], tmp_path / out, notebooks=out != "file/page.html")
    with pytest.raises(InputError, match="no run at"):
        page.write([run, tmp_path / "gone"], tmp_path / "page.html")
    assert sorted(tmp_path.rglob("*")) == before
    assert "My thesis" in (tmp_path / "mine.html").read_text()


def test_several_runs_have_their_page_here_and_it_is_replaced(tmp_path, known, monkeypatch):
    runs = [folders.write_run(tmp_path / name) for name in "ab"]
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert page.write(runs, notebooks=False) == tmp_path / "report.html"


def test_a_notebook_that_cannot_be_converted_is_named(tmp_path, known):
    run = folders.write_run(tmp_path / "r")
    (run / folders.LAB / f"{folders.LAB}.ipynb").write_text('{"cells": 3')
    text = check(page.write([run]).read_text()).text
    assert "cannot be converted" in text and "not converted" in text


def test_values_are_shown_as_they_are_and_what_is_no_letter_as_none(tmp_path, known):
    metrics = {"a": None, "b": True, "c": 1e-9, "d": "nan", "e": [1, 2], "test accuracy": 0.982}
    run = folders.write_run(tmp_path / "r", metrics=metrics, git="\ud800\x00\x1b[31m")
    text = page.write([run], notebooks=False).read_text(encoding="utf-8")
    for shown in ("1e-09", "[1, 2]", "True", "\ufffd"):
        assert shown in check(text).text
