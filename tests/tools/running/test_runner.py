"""Labs run in their own kernels and leave whole folders; one lab's failure is its own."""

import json
import sys

import nbformat
import pytest

from labkit.errors import InputError
from labkit.labs.run_files import read_results, status_of
from labkit.tools.running import execution, request, runner
from labkit.tools.running.execution import Execution, Failure
from tests.support.lab_projects import OPEN, ROOT, write_labs

# What finish leaves is not the end: that the runner says.
FINISH = """import json
from matplotlib import pyplot as plt
figure = plt.figure(figsize=(2, 1))
plt.plot([1, 2])
run.figure(figure, "loss")
run.finish({"rate": rate, "sizes": sizes, "preset": preset, "device": device,
            "python": sys.executable, "folder": os.getcwd(), "run": os.environ["LABKIT_RUN"],
            "headless": os.environ["LABKIT_HEADLESS"]}, headline=["rate"])
print("status", json.load(open(os.environ["LABKIT_RUN"] + "/results.json"))["status"])"""
LABS = {
    "01_good": [OPEN, FINISH],
    "02_late": [OPEN, FINISH, "1 / 0"],
    "03_input": ['from labkit.errors import InputError\nraise InputError("batch is 0")'],
    "04_killed": ['import sys\nsys.__stderr__.write("bad kernel")\nos._exit(9)'],
    "05_plain": ["1 + 1"],
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """All LABS, run once: (project, outcomes by name, lines said)."""
    # What papermill and Jupyter would fill in paths and variables must stay as it is.
    project = tmp_path_factory.mktemp("project") / "a {preset} $HOME"
    write_labs(project, LABS)
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
        outcomes = runner.run(asked, say=lambda event: lines.append(event.text))
    return project, {outcome.lab.name: outcome for outcome in outcomes}, lines


def test_parameters_and_variables_reach_the_notebook(ran):
    project, outcomes, _ = ran
    metrics = outcomes["01_good"].results["metrics"]
    assert (metrics["rate"], metrics["sizes"]) == (0.001, [1, "a"])
    assert (metrics["preset"], metrics["device"]) == ("smoke", "CPU")
    assert metrics["headless"] == "1"
    assert metrics["folder"] == str(project / "notebooks")
    assert metrics["run"] == str(outcomes["01_good"].notebook.parent)


def test_the_kernel_is_this_interpreter_whatever_kernels_are_installed(ran):
    assert ran[1]["01_good"].results["metrics"]["python"] == sys.executable


def test_a_passed_lab_leaves_a_whole_folder(ran):
    project, outcomes, _ = ran
    folder = outcomes["01_good"].notebook.parent
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    assert names == ["01_good.ipynb", "figures", "figures/loss.png", "log.txt", "results.json"]
    results = json.loads((folder / "results.json").read_text())
    assert results == outcomes["01_good"].results
    assert results["status"] == "passed"
    assert results["notebook"] == "01_good.ipynb"
    assert results["total_seconds"] > results["seconds"] > 0
    assert set(results["inputs"]) == {"notebook", "labkit", "data", "parameters", "versions"}
    assert 10 < results["peak_memory_mb"] < 1000
    assert "pid" not in results and "error" not in results
    run = json.loads((folder.parent / "run.json").read_text())
    assert run["labs"] == list(LABS)
    assert run["parameters"] == dict.fromkeys(LABS, {"rate": 0.001, "sizes": [1, "a"]})
    assert (project / "runs" / "latest").resolve() == folder.parent


def test_the_executed_notebook_opens_again_and_shows_its_figure(ran):
    notebook = nbformat.read(ran[1]["01_good"].notebook, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert notebook.metadata.language_info.name == "python"
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    assert any("image/png" in out.get("data", {}) for out in outputs)
    assert not any(out.get("name") == "stderr" for out in outputs), "the kernel itself warned"


def test_the_links_of_the_executed_notebook_lead_where_they_led(ran):
    place = ran[1]["01_good"].notebook
    card = nbformat.read(place, as_version=4).cells[0].source
    link = card.split("(")[1].split(")")[0]
    assert (place.parent / link).resolve() == ran[0] / "pyproject.toml"
    assert card.endswith("[here](#here)")


def test_a_kernel_whose_port_was_taken_is_started_again(tmp_path, monkeypatch):
    """Jupyter looks for free ports, and another program may be quicker than the kernel."""
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
    # Three times in a row is no chance.
    starts[:] = []
    monkeypatch.setattr(execution, "_STARTS", 2)
    failure = execution.execute(*arguments).failure
    assert len(starts) == 2 and "Address already in use" in failure.log[0]


def test_a_failure_after_the_results_were_written_still_counts(ran):
    results = ran[1]["02_late"].results
    assert results["status"] == "failed"
    error = results["error"]
    assert (error["name"], error["message"]) == ("ZeroDivisionError", "division by zero")
    assert (error["cell"], error["cause"], error["log"]) == (5, "exception", ["status running"])
    assert results["metrics"]["rate"] == 0.001
    executed = nbformat.read(ran[1]["02_late"].notebook, as_version=4)
    assert [cell for cell in executed.cells if cell.get("execution_count") == error["cell"]]


def test_failures_of_every_kind_are_recorded_and_the_next_lab_runs(ran):
    outcomes = ran[1]
    assert outcomes["03_input"].failure == Failure("InputError", "batch is 0", 3, "exception")
    assert outcomes["03_input"].refused
    failure = outcomes["04_killed"].failure
    assert (failure.name, failure.cell, failure.cause) == ("DeadKernelError", 3, "died")
    assert failure.message == "the kernel's process exited with code 9"
    assert failure.log == ("bad kernel",)
    killed = outcomes["04_killed"].results
    assert (killed["status"], killed["device"], killed["preset"]) == ("failed", "CPU", "smoke")
    log = outcomes["04_killed"].notebook.with_name("kernel.log")
    assert "bad kernel" in log.read_text()
    assert outcomes["05_plain"].results["status"] == "passed"
    assert outcomes["05_plain"].results["metrics"] == {}


def test_printed_lines_are_passed_on_whole(ran):
    log = ran[1]["01_good"].notebook.with_name("log.txt").read_text().splitlines()
    # A lab of more than 5 s says how far it is.
    log, lines = (
        [line for line in lines if not line.startswith("01_good: cell ")] for lines in (log, ran[2])
    )
    start = lines.index("01_good: preset smoke, device CPU")
    assert log == lines[start : start + 6]
    printed = ["    half a line", "        bar 2%", "    the end", "    status running"]
    assert lines[start + 1 : start + 5] == printed
    assert lines[start + 5].startswith("01_good: passed after ")
    assert any(line.startswith("02_late: failed in cell 5 (ZeroDivisionError)") for line in lines)


def test_the_exit_code_is_2_only_if_bad_input_is_all_that_was_wrong(ran):
    outcomes = ran[1]
    assert runner.exit_code([outcomes["01_good"], outcomes["05_plain"]]) == 0
    assert runner.exit_code([outcomes["01_good"], outcomes["03_input"]]) == 2
    assert runner.exit_code([outcomes["02_late"], outcomes["03_input"]]) == 1
    assert runner.exit_code([outcomes["04_killed"]]) == 1


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project whose one lab needs MNIST, with the execution itself left out."""
    project = tmp_path / "project"
    write_labs(project, {"01_data": ["Mnist()"]})
    monkeypatch.setattr(runner, "execute", lambda *_: Execution(None, 0.0))
    return project


@pytest.fixture
def own(tmp_path, monkeypatch):
    """What stands for the checkout that labkit is imported from."""
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
    # The scripts of a project whose labkit this is not may be anybody's.
    assert not list(own.parent.rglob("executed"))


def test_bad_data_is_bad_input_and_nothing_is_created(project, own):
    data_script(own, "import sys\nsys.exit(sys.stderr.write('mnist.py: cut short') and 2)")
    with pytest.raises(InputError, match="mnist.py: cut short"):
        runner.run(request.check(start=project))
    assert not (project / "runs").exists()


def test_a_broken_data_script_is_no_bad_input(project, own):
    data_script(own, "1 / 0")
    with pytest.raises(RuntimeError, match="(?s)exited with 1.*ZeroDivisionError"):
        runner.run(request.check(start=project))


OUT = {
    "out": (lambda out: out.write_text(""), "is not a folder"),
    "out/deeper": (lambda out: out.parent.write_text(""), "is not a folder"),
    "gone": (lambda out: out.symlink_to("nowhere"), "is not a folder"),
    "/proc/labkit": (lambda out: None, "cannot write to"),
    "used": (lambda out: (out / "01_data" / "checkpoint").mkdir(parents=True), "holds files"),
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


def test_an_interrupted_lab_says_so_in_its_results(project, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "execute", interrupt)
    with pytest.raises(KeyboardInterrupt):
        runner.run(request.check(start=project), project / "out")
    results = json.loads((project / "out" / "01_data" / "results.json").read_text())
    assert results["status"] == results["error"]["cause"] == "interrupted"
    assert "pid" not in results
