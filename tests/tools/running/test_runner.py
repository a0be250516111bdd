"""Labs run in their own kernels and leave whole folders; one lab's failure is its own."""

import errno
import json
import sys
from dataclasses import replace

import nbformat
import pytest

from labkit.errors import InputError
from labkit.labs.run_files import read_results, status_of
from labkit.tools.running import execution, request, runner
from labkit.tools.running.execution import Execution
from tests.support.lab_projects import OPEN, ROOT, write_lab, write_labs

DRAW = """import json
from matplotlib import pyplot as plt
figure = plt.figure(figsize=(2, 1))
plt.plot([1, 2])
run.figure(figure, "loss")
executed = open(os.environ["LABKIT_RUN"] + "/01_good.ipynb")"""
RESULTS = """run.finish({"rate": rate, "sizes": sizes, "preset": preset, "device": device,
            "python": sys.executable, "folder": os.getcwd(), "run": os.environ["LABKIT_RUN"],
            "headless": os.environ["LABKIT_HEADLESS"],
            "whole": os.fstat(executed.fileno()).st_nlink == 0}, headline=["rate"])
print("status", json.load(open(os.environ["LABKIT_RUN"] + "/results.json"))["status"])"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """(project, outcome, reported lines) of a run of a lab that passes."""
    # Placeholders that papermill and Jupyter would fill in must stay as they are.
    project = tmp_path_factory.mktemp("project") / "a {preset} $HOME"
    write_labs(project, {"01_good": [OPEN, DRAW, RESULTS]})
    shadow = project / "jupyter" / "kernels" / "python3"
    shadow.mkdir(parents=True)
    (shadow / "kernel.json").write_text(
        json.dumps({"argv": ["/bin/false"], "display_name": "other", "language": "python"})
    )
    lines = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        # Another environment's kernel of the same name, found before this one's.
        patch.setenv("JUPYTER_PATH", str(project / "jupyter"))
        patch.setenv("MPLBACKEND", "Agg")
        patch.setenv("LABKIT_RUN", "/nowhere")
        asked = request.check(
            preset="smoke", device="CPU", parameters=["rate=1e-3", "sizes=[1, a]"], start=project
        )
        (outcome,) = runner.run(asked, say=lambda event: lines.append(event.text))
    return project, outcome, lines


def test_parameters_and_variables_reach_the_notebook(ran):
    project, outcome, _ = ran
    metrics = outcome.results["metrics"]
    assert (metrics["rate"], metrics["sizes"]) == (0.001, [1, "a"])
    assert (metrics["preset"], metrics["device"]) == ("smoke", "CPU")
    assert metrics["headless"] == "1"
    assert metrics["folder"] == str(project / "notebooks")
    assert metrics["run"] == str(outcome.folder)
    # This holds whatever kernels are installed.
    assert metrics["python"] == sys.executable
    # After each cell the notebook is replaced, not overwritten: a full disk leaves the last one.
    assert metrics["whole"]


def test_a_passed_lab_leaves_a_whole_folder(ran):
    project, outcome, _ = ran
    folder = outcome.folder
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    assert names == ["01_good.ipynb", "figures", "figures/loss.png", "log.txt", "results.json"]
    results = json.loads((folder / "results.json").read_text())
    assert results == outcome.results
    assert results["status"] == "passed"
    assert results["notebook"] == "01_good.ipynb"
    assert results["total_seconds"] > results["seconds"] > 0
    assert set(results["inputs"]) == {"notebook", "labkit", "data", "parameters", "versions"}
    assert 10 < results["peak_memory_mb"] < 1000
    assert "pid" not in results and "error" not in results
    run = json.loads((folder.parent / "run.json").read_text())
    assert run["labs"] == ["01_good"]
    assert run["parameters"] == {"01_good": {"rate": 0.001, "sizes": [1, "a"]}}
    assert (project / "runs" / "latest").resolve() == folder.parent


def test_the_executed_notebook_opens_again_and_shows_its_figure(ran):
    notebook = nbformat.read(ran[1].notebook, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert notebook.metadata.language_info.name == "python"
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    assert any("image/png" in out.get("data", {}) for out in outputs)
    assert not any(out.get("name") == "stderr" for out in outputs), "the kernel itself warned"
    # Its links still lead to the same places.
    card = notebook.cells[0].source
    link = card.split("(")[1].split(")")[0]
    assert (ran[1].folder / link).resolve() == ran[0] / "pyproject.toml"
    assert card.endswith("[here](#here)")


def test_a_kernel_whose_port_was_taken_is_started_again(tmp_path, monkeypatch):
    """Jupyter looks for free ports, but another program may take one before the kernel does."""
    write_labs(tmp_path, {"01_lab": ["1"]})
    said, starts = [], []

    def papermill(source, output, *_):
        starts.append(output)
        if len(starts) < 3:
            text = "zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:37413')"
            output.with_name("kernel.log").write_text(text)
            return RuntimeError("Kernel died before replying to kernel_info")
        return None

    monkeypatch.setattr(execution, "_papermill", papermill)
    source = tmp_path / "notebooks" / "01_lab.ipynb"
    arguments = (source, tmp_path / "01_lab.ipynb", {}, {}, said.append)
    assert execution.execute(*arguments).failure is None
    assert [event.text for event in said] == [
        "01_lab: another program took the kernel's port; starting it again"
    ] * 2
    # Three times in a row is not a coincidence.
    starts[:] = []
    monkeypatch.setattr(execution, "_STARTS", 2)
    failure = execution.execute(*arguments).failure
    assert len(starts) == 2 and "Address already in use" in failure.log[0]


def test_printed_lines_are_passed_on_whole(ran):
    log = ran[1].folder.joinpath("log.txt").read_text().splitlines()
    # A lab of more than 5 s reports its progress.
    log, lines = (
        [line for line in lines if not line.startswith("01_good: cell ")] for lines in (log, ran[2])
    )
    assert lines == log
    assert lines[:5] == [
        "01_good: preset smoke, device CPU",
        "    half a line",
        "        bar 2%",
        "    the end",
        "    status running",
    ]
    assert len(lines) == 6 and lines[5].startswith("01_good: passed after ")


@pytest.mark.parametrize(
    ("failures", "code"),
    [([], 0), ([None], 0), ([None, "InputError"], 2), (["InputError", "ValueError"], 1)],
)
def test_the_exit_code_is_2_only_if_bad_input_is_all_that_was_wrong(ran, failures, code):
    outcomes = [
        replace(ran[1], results={"status": "failed", "error": {"name": name, "message": "x",
                                                               "cell": 3}})
        if name else ran[1]
        for name in failures
    ]  # fmt: skip
    assert runner.exit_code(outcomes) == code


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project whose one lab needs MNIST, with the execution itself left out."""
    project = tmp_path / "project"
    write_labs(project, {"01_data": ["Mnist()"]})
    monkeypatch.setattr(runner, "execute", lambda *_: Execution(None, 0.0))
    return project


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A stand-in for the checkout that labkit is imported from."""
    monkeypatch.setattr(runner, "own_checkout", lambda: tmp_path / "own")
    return tmp_path / "own"


def data_script(project, source):
    (project / "data_scripts").mkdir(parents=True)
    (project / "data_scripts" / "mnist.py").write_text(source)


def test_data_is_prepared_first_and_said_so(project, own):
    data_script(own, "open('prepared', 'w').close()")
    data_script(project, "open('executed', 'w').close()")
    lines = []
    runner.run(request.check(start=project), say=lambda event: lines.append(event.text))
    assert lines[0] == "data: preparing mnist with data_scripts/mnist.py"
    assert (own / "prepared").exists()
    # If labkit is not imported from a project, the scripts of that project are not trusted.
    assert not list(own.parent.rglob("executed"))


@pytest.mark.parametrize(
    ("source", "error", "said"),
    [
        ("import sys\nsys.exit(sys.stderr.write('cut short') and 2)", InputError, "cut short"),
        # A broken script is not bad input.
        ("1 / 0", RuntimeError, "(?s)exited with 1.*ZeroDivisionError"),
    ],
)
def test_without_its_data_a_run_creates_nothing(project, own, source, error, said):
    data_script(own, source)
    with pytest.raises(error, match=said):
        runner.run(request.check(start=project))
    assert not (project / "runs").exists()


OUT = {
    "out": (lambda out: out.write_text(""), "is not a folder"),
    "out/deeper": (lambda out: out.parent.write_text(""), "is not a folder"),
    "gone": (lambda out: out.symlink_to("nowhere"), "is not a folder"),
    "/proc/labkit": (lambda out: None, "cannot write to"),
    "used": (
        lambda out: (out / "01_data" / "checkpoint").mkdir(parents=True),
        "--out: expected a folder with no files in 01_data",
    ),
}


@pytest.mark.parametrize("name", OUT)
def test_an_output_folder_that_cannot_be_used_is_refused(project, name):
    make, message = OUT[name]
    make(project / name)
    before = sorted(project.rglob("*"))
    with pytest.raises(InputError, match=message):
        runner.run(request.check(start=project), project / name)
    assert sorted(project.rglob("*")) == before


def test_latest_is_never_put_over_a_users_folder(project):
    (project / "runs" / "latest").mkdir(parents=True)
    with pytest.raises(InputError, match="latest is in the way"):
        runner.run(request.check(start=project))
    assert list((project / "runs").iterdir()) == [project / "runs" / "latest"]


def test_a_lab_that_is_running_says_so_with_its_process(project, monkeypatch):
    during = {}

    def look(source, output, *_):
        during.update(read_results(output.parent)[0])
        return Execution(None, 0.0)

    monkeypatch.setattr(runner, "execute", look)
    runner.run(request.check(start=project), project / "out")
    assert status_of(during) == "running"
    assert status_of(read_results(project / "out" / "01_data")[0]) == "passed"


@pytest.mark.parametrize("name", ["write_results", "execute"])
def test_a_full_disk_is_the_failure_of_the_lab_that_filled_it(project, monkeypatch, name):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    write_lab(project, "02_too")
    asked = request.check(start=project)
    with monkeypatch.context() as patch:
        patch.setattr(runner, name, full)
        outcomes = runner.run(asked, project / "out")
    assert runner.exit_code(outcomes) == 1 and len(outcomes) == 2
    for outcome in outcomes:
        assert outcome.failure.name == "OSError" and "No space left" in outcome.failure.message
        assert read_results(outcome.folder)[0]["status"] == "failed"


def test_an_interrupted_lab_says_so_in_its_results(project, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "execute", interrupt)
    with pytest.raises(KeyboardInterrupt):
        runner.run(request.check(start=project), project / "out")
    results = json.loads((project / "out" / "01_data" / "results.json").read_text())
    assert results["status"] == results["error"]["cause"] == "interrupted"
    assert "pid" not in results
