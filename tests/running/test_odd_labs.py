"""Labs that do what none should do to its runner, in one `labkit run`; a reader who leaves."""

import json
import os
import subprocess
import sys

import nbformat
import pytest

from tests.running.test_runner import OPEN, ROOT, write_labs

LABS = {
    "01_long": [
        "print('y' * 1_000_000, end='')\nprint('z' * 1_000_000, file=__import__('sys').stderr)"
    ],
    "02_left": ["import sys\nsys.exit(0)", "print('end')"],
    "03_caught": [
        "import time\ntry:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    print('no')"
    ],
    "04_gone": ["import os, shutil\nshutil.rmtree(os.environ['LABKIT_RUN'])"],
    "05_odd": [
        OPEN,
        "import json\nplace = run.finish({})\nfound = json.loads(place.read_text())\n"
        "found |= {'metrics': [1], 'headline': None, 'total_seconds': 'long'}\n"
        "place.write_text(json.dumps(found))",
    ],
    "06_good": ["print('good')"],
}


def labkit(project, *arguments, **options):
    command = [sys.executable, "-m", "labkit.tools.cli", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "LABKIT_PRESET": "smoke"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=project, env=environment, **pipes, **options)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """All LABS, once: (folder, exit code, the ``ended`` event by lab, all events, stderr)."""
    project = tmp_path_factory.mktemp("project")
    write_labs(project, LABS)
    limits = ("--timeout", "12", "--cell-timeout", "11.5")
    process = labkit(project, "run", "--json", "--out", "out", *limits)
    stdout, stderr = process.communicate(timeout=200)
    events = [json.loads(line) for line in stdout.splitlines()]
    ended = {event["lab"]: event for event in events if event["event"] == "ended"}
    return project / "out", process.returncode, ended, events, stderr


def test_every_lab_comes_to_an_end_of_its_own(ran):
    _, code, ended, events, stderr = ran
    assert {lab: event["status"] for lab, event in ended.items()} == {
        "01_long": "passed",
        "02_left": "failed",
        "03_caught": "failed",
        "04_gone": "failed",
        "05_odd": "passed",
        "06_good": "passed",
    }
    assert code == events[-1]["exit_code"] == 1 and events[-1]["event"] == "finished"
    assert "Traceback" not in stderr


def test_a_line_of_a_million_characters_is_kept_and_told_short(ran):
    notebook = json.loads((ran[0] / "01_long" / "01_long.ipynb").read_text())
    texts = {
        output["name"]: "".join(output["text"])
        for cell in notebook["cells"]
        for output in cell.get("outputs", ())
    }
    assert texts == {"stdout": 1_000_000 * "y", "stderr": 1_000_000 * "z" + "\n"}
    lasts = [event["last"] for event in ran[3] if event["event"] == "progress"]
    assert all(len(last) <= 120 for last in lasts)


def test_a_notebook_that_ends_itself_has_not_passed(ran):
    error = ran[2]["02_left"]["error"]
    assert (error["name"], error["cell"], error["cause"]) == ("SystemExit", 3, "exception")
    assert error["message"] == "the notebook was left before its end"


def test_a_cell_that_catches_its_own_time_limit_has_not_kept_it(ran):
    error = ran[2]["03_caught"]["error"]
    assert error["cause"] == "timeout"
    assert error["message"] in ("it took longer than 12 s",) or "12 seconds" in error["message"]


def test_a_lab_whose_folder_vanishes_is_that_labs_failure(ran):
    error = ran[2]["04_gone"]["error"]
    assert error["name"] == "FileNotFoundError" and error["cell"] == 3


def test_what_cannot_be_in_results_is_left_out_and_said(ran):
    folder, _, ended, events, _ = ran
    results = json.loads((folder / "05_odd" / "results.json").read_text())
    assert (results["metrics"], results["headline"], results["status"]) == ({}, [], "passed")
    assert results["total_seconds"] == ended["05_odd"]["total_seconds"] > 0
    said = [event["text"] for event in events if event["event"] == "output"]
    assert "results.json: metrics is [1], left out" in said


def test_a_reader_who_leaves_stops_no_lab(tmp_path):
    write_labs(tmp_path, {"01_good": ["print('good')"], "02_too": ["print('good')"]})
    process = labkit(tmp_path, "run", "--out", "out")
    assert process.stdout.readline().startswith("01_good: preset smoke")
    process.stdout.close()
    with process.stderr:
        stderr = process.stderr.read()
    assert process.wait(60) == 0, stderr
    assert stderr.count("nobody reads standard output any more; going on") == 1
    assert "Traceback" not in stderr and "Exception" not in stderr
    for lab in ("01_good", "02_too"):
        assert (
            json.loads((tmp_path / "out" / lab / "results.json").read_text())["status"] == "passed"
        )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a file system here")
def test_a_full_disk_is_the_failure_of_the_lab_that_filled_it(tmp_path):
    fill = "import os\nopen(os.environ['LABKIT_RUN'] + '/big', 'wb').write(bytes(10**6))"
    write_labs(tmp_path, {"01_fills": [fill], "02_too": ["print('good')"]})
    small = tmp_path / "small"
    small.mkdir()
    mount = f"mount -t tmpfs -o size=300k none '{small}'"
    if subprocess.run(["unshare", "-m", "bash", "-c", mount], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount a file system of their own (unshare)")
    command = f"{mount} && '{sys.executable}' -m labkit.tools.cli run --json --out '{small}/out'"
    command += f"; code=$?; cp -r '{small}/out' '{tmp_path}/kept'; exit $code"
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", command],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "LABKIT_PRESET": "smoke"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    ended = {event["lab"]: event for event in events if event["event"] == "ended"}
    assert list(ended) == ["01_fills", "02_too"] and "Traceback" not in done.stderr
    assert ended["01_fills"]["error"]["name"] == "OSError"
    assert "No space left on device" in ended["01_fills"]["error"]["message"]
    assert (done.returncode, events[-1]["exit_code"]) == (1, 1)
    # What lies there says so too, and can be opened.
    for lab in ("01_fills", "02_too"):
        left = tmp_path / "kept" / lab
        if (left / "results.json").exists():
            assert json.loads((left / "results.json").read_text())["status"] == "failed"
        if (left / f"{lab}.ipynb").exists():
            assert nbformat.read(left / f"{lab}.ipynb", as_version=4).cells
    assert (tmp_path / "kept" / "01_fills" / "results.json").exists()
    assert (tmp_path / "kept" / "01_fills" / "01_fills.ipynb").exists()
