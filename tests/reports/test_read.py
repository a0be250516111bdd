"""Run folders read back: each kind, and whatever is missing or damaged."""

import json
import os
import socket
import time

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from labkit.errors import InputError
from labkit.tools.reports import difference, live, read, results_file
from labkit.tools.reports.page import render
from tests.reports import folders


def test_a_run_its_labs_and_a_lab_alone(tmp_path):
    run = read.read(folders.write_run(tmp_path / "r", labs=("01_a", "02_b")))
    assert (run.kind, run.label) == ("run", "r")
    assert [(lab.lab, lab.label, lab.status) for lab in run.labs] == [
        ("01_a", "r", "passed"),
        ("02_b", "r", "passed"),
    ]
    assert run.labs[0].problems == []
    alone = read.read(tmp_path / "r" / "02_b")
    assert (alone.kind, alone.labs[0].lab) == ("lab", "02_b")
    (rows,) = alone.labs[0].records().values()
    assert [row["loss"] for row in rows] == [1, 0.5, 1 / 3, 0.25]
    assert [path.name for path in alone.labs[0].figures] == ["training.png"]


def test_a_sweep_has_its_table_and_a_lab_for_each_run(tmp_path):
    sweep = read.read(folders.write_sweep(tmp_path / "s"))
    assert (sweep.kind, sweep.about["grid"]) == ("sweep", {"seed": [1, 2]})
    assert [row["test accuracy"] for row in sweep.table] == ["0.98", "0.98"]
    assert [lab.label for lab in sweep.labs] == ["seed=1", "seed=2"]
    assert [path.stem for path in sweep.figures] == ["test accuracy"]


def test_a_table_of_many_columns_and_lines_is_left_out(tmp_path):
    place = folders.write_sweep(tmp_path / "s")
    # 59 kB, and without a limit 100 million cells.
    text = ",".join(f"c{number}" for number in range(10_000)) + "\n" + "1\n" * 10_000
    (place / "sweep.csv").write_text(text)
    sweep = read.read(place)
    assert sweep.table == [] and "sweep.csv cannot be read" in sweep.problems[0]
    assert "sweep.csv cannot be read" in render([sweep])


@pytest.mark.parametrize("whole", ["lab", "sweep"])
def test_a_figure_that_is_larger_than_a_page_is_left_out(tmp_path, whole):
    write = folders.write_lab if whole == "lab" else folders.write_sweep
    run = write(tmp_path / "r")
    with open(tmp_path / "r" / "figures" / "huge.png", "wb") as file:
        file.write(folders.png())
        file.truncate(1 << 40)  # a hole: some kB on the disk
    run = read.read(tmp_path / "r")
    problems = run.problems + run.labs[0].problems
    assert any("figures/huge.png is left out" in problem for problem in problems)
    page = render([run])
    assert "figures/huge.png is left out" in page and page.count("data:image/png") >= 1


def test_runs_of_a_sweep_are_in_the_order_of_their_numbers(tmp_path):
    sweep = read.read(folders.write_sweep(tmp_path / "s", seeds=(10, 2, 1)))
    assert [lab.label for lab in sweep.labs] == ["seed=1", "seed=2", "seed=10"]


def test_labels_are_the_shortest_that_are_different(tmp_path):
    places = [folders.write_run(tmp_path / one / "same") for one in ("a", "b")]
    assert [run.label for run in read.read_all(places)] == ["a/same", "b/same"]
    both = read.read_all([folders.write_sweep(tmp_path / one / "s") for one in ("c", "d")])
    labels = [lab.label for run in both for lab in run.labs]
    assert labels == ["c/s: seed=1", "c/s: seed=2", "d/s: seed=1", "d/s: seed=2"]


def test_what_is_no_run_is_refused_with_the_runs_in_it(tmp_path):
    with pytest.raises(InputError, match="no run at"):
        read.read(tmp_path / "missing")
    run = folders.write_run(tmp_path / "runs" / "20260101-120000")
    with pytest.raises(InputError, match="Did you mean .*20260101-120000"):
        read.read(tmp_path / "runs")
    with pytest.raises(InputError, match="given twice"):
        read.read_all([run, run])


@pytest.mark.parametrize("beside", ["a run", "a training of one's own"])
def test_a_folder_of_runs_is_no_run_and_its_latest_is_no_fault(tmp_path, beside):
    """`labkit report runs` once asked to remove the link that labkit itself had made."""
    runs = tmp_path / "runs"
    run = folders.write_run(runs / "20260101-120000")
    if beside != "a run":
        folders.write_records(runs / "mine" / "records.csv", 3)
    (runs / "latest").symlink_to(run.name)
    for door in (read.read, live.look):
        with pytest.raises(InputError, match="holds no run .*Did you mean .*20260101") as refused:
            door(runs)
        assert "remove" not in str(refused.value)
        assert ("mine" in str(refused.value)) == (beside != "a run")
    assert read.read(runs / "latest").kind == "run"


def test_a_link_in_a_run_is_still_refused(tmp_path):
    run = folders.write_run(tmp_path / "run")
    (run / "latest").symlink_to(folders.LAB)
    with pytest.raises(InputError, match="latest is a link"):
        read.read(run)
    (run / "latest").unlink()
    (run / "run.json").unlink()
    (run / "run.json").symlink_to("nowhere")
    with pytest.raises(InputError, match="run.json is a link"):
        read.read(run)


def test_a_lab_that_was_asked_for_and_has_no_folder_has_not_started(tmp_path):
    run = folders.write_run(tmp_path / "r")
    (run / "run.json").write_text(json.dumps({"labs": [folders.LAB, "02_later"]}))
    assert [lab.status for lab in read.read(run).labs] == ["passed", "not started"]


def test_a_run_that_says_running_is_believed_while_its_process_lives(tmp_path):
    now = time.strftime("%Y-%m-%dT%H:%M:%S")
    running = folders.results(status="running", pid=os.getpid(), started=now)
    assert results_file.status_of(running) == "running"
    here = {**running, "host": socket.gethostname()}
    assert results_file.status_of({**here, "pid": 2**30}) == "interrupted"
    elsewhere = {**running, "host": "another", "pid": 2**30}
    assert results_file.status_of(elsewhere) == "running"
    assert results_file.status_of({**elsewhere, "status": "failed"}) == "failed"
    assert results_file.status_of({**running, "pid": 2**30}) == "interrupted"
    assert results_file.status_of({**running, "pid": -1}) == "interrupted"
    born = psutil.Process().create_time()
    assert results_file.status_of({**running, "pid_created": born}) == "running"
    assert results_file.status_of({**running, "pid_created": born - 60}) == "interrupted"
    # The number has gone to a process that is younger than the run.
    old = {**running, "started": "2020-01-01T00:00:00"}
    assert results_file.status_of(old) == "interrupted"
    assert results_file.status_of({"status": "running"}) == "interrupted"


def test_values_of_the_wrong_kind_are_left_out_and_said(tmp_path):
    lab = folders.write_lab(tmp_path / "l", metrics=[1], seconds=True, headline=["gone"])
    results, problems = results_file.read_results(lab)
    assert "metrics" not in results and "seconds" not in results and results["headline"] == []
    assert sorted(problem.split(" is ")[0] for problem in problems) == [
        "results.json: metrics",
        "results.json: seconds",
    ]


def test_the_notebook_is_looked_for_in_the_folder_alone(tmp_path):
    (tmp_path / "other.ipynb").write_text("{}")
    lab = folders.write_lab(tmp_path / "l", notebook="../other.ipynb")
    assert read.read_lab(lab, "l").notebook == lab / f"{folders.LAB}.ipynb"


def test_last_lines_are_those_of_the_error_else_of_the_logs(tmp_path):
    lab = read.read_lab(folders.write_lab(tmp_path / "l", log="bar 1%\rbar 2%\r\nend\n"), "l")
    assert lab.last_lines() == ["bar 2%", "end"]
    (lab.folder / "kernel.log").write_text("killed\n")
    assert lab.last_lines() == ["killed"]
    lab.results["error"] = {"log": "log.txt"}
    assert lab.last_lines() == ["bar 2%", "end"]
    lab.results["error"] = {"log": ["a", "b"]}
    assert lab.last_lines() == ["a", "b"]


def test_a_log_of_many_lines_gives_its_last(tmp_path):
    lab = folders.write_lab(tmp_path / "l", log="".join(f"{n}\n" for n in range(50_000)))
    assert read.tail(lab / "log.txt", 2) == ["49998", "49999"]
    (lab / "log.txt").write_bytes(b"half a letter \xc3\n")
    assert read.tail(lab / "log.txt") == ["half a letter \ufffd"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
KEYS = sorted(results_file._KINDS)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(changes=st.dictionaries(st.sampled_from(KEYS), JSON))
def test_any_values_in_results_json_still_give_a_page(tmp_path_factory, changes):
    lab = folders.write_lab(tmp_path_factory.mktemp("any") / "lab")
    (lab / "results.json").write_text(json.dumps({**folders.results(), **changes}))
    page = render(read.read_all([lab]))
    assert page.rstrip().endswith("</html>") and "What ran" in page


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(cut=st.integers(0, 900), junk=st.binary(max_size=6), name=st.sampled_from(
    ["results.json", "records.csv", "log.txt", "figures/training.png", "../run.json"]))  # fmt: skip
def test_a_file_cut_off_or_overwritten_anywhere_still_gives_a_page(
    tmp_path_factory, cut, junk, name
):
    run = folders.write_run(tmp_path_factory.mktemp("cut") / "run")
    place = run / folders.LAB / name
    place.write_bytes(place.read_bytes()[:cut] + junk)
    assert render(read.read_all([run])).rstrip().endswith("</html>")


@pytest.mark.parametrize("text", ["", "[1]", "[" * 100_000, '{"lab": "\\ud800"}', "\0\0"])
def test_what_is_no_object_is_named(tmp_path, text):
    lab = folders.write_lab(tmp_path / "lab")
    (lab / "results.json").write_text(text)
    found = read.read_lab(lab, "lab")
    assert found.status == "unknown"
    if "lab" not in text:
        assert any("results.json" in problem for problem in found.problems)


def test_damaged_records_are_named_and_the_others_are_read(tmp_path):
    lab = folders.write_lab(tmp_path / "lab")
    folders.write_records(lab / "more" / "records.csv", 3)
    (lab / "records.csv").write_text("update,loss\n1,2\n2,oh\n")
    found = read.read_lab(lab, "lab")
    assert list(found.records()) == ["more/records.csv"]
    assert "records.csv cannot be read" in found.problems[0]


IN_A_LAB = ["results.json", "log.txt", "kernel.log", "figures/training.png"]
IN_A_RUN = ["run.json", "sweep.json", "sweep.csv"]


@pytest.mark.parametrize("name", [*IN_A_LAB, *IN_A_RUN])
@pytest.mark.parametrize("kind", ["fifo", "/dev/zero"])
def test_pipes_and_links_to_devices_are_refused_by_name(tmp_path, name, kind):
    """None is opened: a reader would wait, or read until its memory ends."""
    place = _place(tmp_path, name)
    _special(place / name, kind)
    for door in (read.read, live.look):
        with pytest.raises(InputError, match=f"{name} is (a link|no ordinary file)"):
            door(place)


@pytest.mark.parametrize("name", [*IN_A_LAB, *IN_A_RUN])
def test_a_folder_in_a_files_place_is_a_problem(tmp_path, name):
    place = _place(tmp_path, name)
    _special(place / name, "folder")
    run = read.read(place)
    render([run])
    if name in IN_A_RUN:
        assert any("regular file" in problem for problem in run.problems)
    else:
        assert run.labs[0].last_lines() is not None
        assert live.look(place).status


def _place(tmp_path, name):
    if name in IN_A_LAB:
        return folders.write_lab(tmp_path / "lab")
    return (folders.write_run if name == "run.json" else folders.write_sweep)(tmp_path / "run")


def _special(path, kind):
    if path.exists():
        path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(kind)


def test_names_that_no_folder_can_hold_are_said(tmp_path):
    place = folders.write_run(tmp_path / "run")
    names = ["x" * 300, "a/" + "y" * 300, "\0", "..", folders.LAB]
    (place / "run.json").write_text(json.dumps({"labs": names}))
    (place / folders.LAB / "results.json").write_text(
        json.dumps(folders.results(notebook="z" * 300 + ".ipynb"))
    )
    run = read.read(place)
    assert [lab.lab for lab in run.labs] == [folders.LAB]
    assert sum("no name of a folder" in problem for problem in run.problems) == 4
    assert run.labs[0].notebook.name == f"{folders.LAB}.ipynb"
    render([run])


def test_metrics_in_each_other_900_times_are_a_problem(tmp_path):
    place = folders.write_lab(tmp_path / "lab")
    (place / "results.json").write_text('{"metrics": ' + '{"a":' * 900 + "1" + "}" * 901)
    run = read.read(place)
    assert any("levels" in problem for problem in run.labs[0].problems)
    difference.compare(run, run)
