"""Run folders of each kind are read back, also with missing, damaged or planted files."""

import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from labkit.errors import InputError
from labkit.labs import run_files
from labkit.tools.reports import difference, live, page, read
from labkit.tools.running import folders as run_folders
from tests.support import run_folders as folders


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


def test_a_sweep_has_its_table_and_a_lab_for_each_run_in_the_order_of_numbers(tmp_path):
    sweep = read.read(folders.write_sweep(tmp_path / "s", seeds=(10, 2, 1)))
    assert (sweep.kind, sweep.about["grid"]) == ("sweep", {"seed": [10, 2, 1]})
    assert [row["test accuracy"] for row in sweep.table] == ["0.98"] * 3
    assert [lab.label for lab in sweep.labs] == ["seed=1", "seed=2", "seed=10"]
    assert [path.stem for path in sweep.figures] == ["test accuracy"]
    # 59 kB, which without a limit would become 100 million cells.
    text = ",".join(f"c{number}" for number in range(10_000)) + "\n" + "1\n" * 10_000
    (sweep.folder / "sweep.csv").write_text(text)
    sweep = read.read(sweep.folder)
    assert sweep.table == [] and "sweep.csv cannot be read" in sweep.problems[0]
    assert "sweep.csv cannot be read" in page.render([sweep])


@pytest.mark.parametrize("write", [folders.write_lab, folders.write_sweep])
def test_a_figure_that_is_larger_than_a_page_is_left_out(tmp_path, write):
    write(tmp_path / "r")
    with open(tmp_path / "r" / "figures" / "huge.png", "wb") as file:
        file.write(folders.png())
        file.truncate(1 << 40)  # a sparse file: a few kB on the disk
    (tmp_path / "r" / "figures" / "no.png").write_text("no picture")
    run = read.read(tmp_path / "r")
    html = page.render([run])
    for problem in ("figures/huge.png is left out", "figures/no.png is not a PNG picture"):
        assert any(problem in text for text in run.problems + run.labs[0].problems)
        assert problem in html and html.count("data:image/png") >= 1


def test_labels_are_the_shortest_that_are_different(tmp_path):
    places = [folders.write_run(tmp_path / name / "same") for name in ("a", "b")]
    assert [run.label for run in read.read_all(places)] == ["a/same", "b/same"]
    both = read.read_all([folders.write_sweep(tmp_path / name / "s") for name in ("c", "d")])
    labels = [lab.label for run in both for lab in run.labs]
    assert labels == ["c/s: seed=1", "c/s: seed=2", "d/s: seed=1", "d/s: seed=2"]


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
    with pytest.raises(InputError, match="no run at"):
        read.read(tmp_path / "missing")
    with pytest.raises(InputError, match="RUN: expected each folder once"):
        read.read_all([run, run])


def test_only_names_of_folders_in_the_run_are_followed(tmp_path):
    """A requested lab without a folder has not started."""
    (tmp_path / "other.ipynb").write_text("{}")
    place = folders.write_run(tmp_path / "run", notebook="../other.ipynb")
    names = ["x" * 300, "a/" + "y" * 300, "\0", "..", folders.LAB, "02_later"]
    (place / "run.json").write_text(json.dumps({"labs": names}))
    run = read.read(place)
    statuses = {lab.lab: lab.status for lab in run.labs}
    assert statuses == {folders.LAB: "passed", "02_later": "not started"}
    assert sum("not a folder name" in problem for problem in run.problems) == 4
    own = place / folders.LAB / f"{folders.LAB}.ipynb"
    for name in ("../other.ipynb", "z" * 300 + ".ipynb"):
        run.labs[0].results["notebook"] = name
        assert run.labs[0].notebook == own
        page.render([run])


def test_last_lines_are_those_of_the_error_else_of_the_logs(tmp_path):
    lab = read.read_lab(folders.write_lab(tmp_path / "l", log="bar 1%\rbar 2%\r\nend\n"), "l")
    assert lab.last_lines() == ["bar 2%", "end"]
    (lab.folder / "kernel.log").write_text("killed\n")
    assert lab.last_lines() == ["killed"]
    lab.results["error"] = {"log": "log.txt"}
    assert lab.last_lines() == ["bar 2%", "end"]
    lab.results["error"] = {"log": ["a", "b"]}
    assert lab.last_lines() == ["a", "b"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
ANYTHING = settings(max_examples=40, suppress_health_check=list(HealthCheck))


@ANYTHING
@given(changes=st.dictionaries(st.sampled_from(sorted(run_files._KINDS)), JSON))
def test_any_values_in_results_json_still_give_a_page(tmp_path_factory, changes):
    lab = folders.write_lab(tmp_path_factory.mktemp("any") / "lab")
    (lab / "results.json").write_text(json.dumps({**folders.results(), **changes}))
    html = page.render(read.read_all([lab]))
    assert html.rstrip().endswith("</html>") and "What ran" in html


@ANYTHING
@given(cut=st.integers(0, 900), junk=st.binary(max_size=6), name=st.sampled_from(
    ["results.json", "records.csv", "log.txt", "figures/training.png", "../run.json"]))  # fmt: skip
def test_a_file_cut_off_or_overwritten_anywhere_still_gives_a_page(
    tmp_path_factory, cut, junk, name
):
    run = folders.write_run(tmp_path_factory.mktemp("cut") / "run")
    place = run / folders.LAB / name
    place.write_bytes(place.read_bytes()[:cut] + junk)
    assert page.render(read.read_all([run])).rstrip().endswith("</html>")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "cannot be read"),
        ("[1]", "is not a JSON object: [1]"),
        ("[" * 100_000, "levels"),
        ('{"metrics": ' + '{"a":' * 900 + "1" + "}" * 901, "levels"),
        ("\0\0", "cannot be read"),
    ],
)
def test_a_results_json_that_is_no_object_is_a_problem(tmp_path, text, problem):
    lab = folders.write_lab(tmp_path / "lab")
    (lab / "results.json").write_text(text)
    run = read.read(lab)
    assert run.labs[0].status == "unknown"
    (sentence,) = run.labs[0].problems
    assert sentence.startswith("results.json ") and problem in sentence
    assert difference.compare(run, run) == []


def test_damaged_records_are_named_and_the_others_are_read(tmp_path):
    lab = folders.write_lab(tmp_path / "lab")
    folders.write_records(lab / "more" / "records.csv", 3)
    (lab / "records.csv").write_text("update,loss\n1,2\n2,oh\n")
    run = read.read_lab(lab, "lab")
    assert list(run.records()) == list(run.records()) == ["more/records.csv"]
    assert len(run.problems) == 1 and "records.csv cannot be read" in run.problems[0]


IN_A_RUN = ["run.json", "sweep.json", "sweep.csv"]
PLANTED = {
    "pipe": os.mkfifo,
    "link": lambda place: place.symlink_to("/dev/zero"),
    "dead link": lambda place: place.symlink_to("/nowhere"),
}


def plant(tmp_path, name, make):
    """Put a special file called ``name`` into a run; return the run and the file."""
    run = (folders.write_sweep if name.startswith("sweep") else folders.write_run)(tmp_path / "run")
    place = run / name if name in IN_A_RUN else run / folders.LAB / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    make(place)
    return run, place


@pytest.mark.parametrize("kind", PLANTED)
@pytest.mark.parametrize("name", ["results.json", ".lock", "deep/er/x", *IN_A_RUN])
def test_every_door_refuses_links_and_special_files_by_name(tmp_path, name, kind):
    """None is opened: a reader would wait, or read until it runs out of memory."""
    run, place = plant(tmp_path, name, PLANTED[kind])
    words = "is not a regular file" if kind == "pipe" else "is a link; expected regular files"
    doors = [read.read, live.look, run_folders.read_run]
    doors += [lambda run: page.write([run], tmp_path / "page.html")]
    for door in doors:
        with pytest.raises(InputError, match=words) as caught:
            door(run)
        assert str(place) in str(caught.value)
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("name", ["results.json", "log.txt", "figures/loss.png", *IN_A_RUN])
def test_a_folder_in_a_files_place_is_a_problem(tmp_path, name):
    run = read.read(plant(tmp_path, name, os.mkdir)[0])
    page.render([run])
    assert live.look(run.folder).status
    if name in IN_A_RUN:
        assert any("regular file" in problem for problem in run.problems)


def test_the_folder_itself_may_be_a_link_and_its_report_may_not_go_through_one(tmp_path):
    run = folders.write_run(tmp_path / "run")
    (tmp_path / "latest").symlink_to(run)
    assert read.read(tmp_path / "latest").folder == run
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "page_notebooks").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="page_notebooks is a link; expected a folder"):
        page.write([run], tmp_path / "page.html")
    assert not any((tmp_path / "elsewhere").iterdir()) and not (tmp_path / "page.html").exists()
