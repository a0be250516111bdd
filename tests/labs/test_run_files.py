"""The JSON of a run folder is written whole and read with tolerance; its status can be trusted."""

import json
import os
import socket
from pathlib import Path

import psutil
import pytest

from labkit.labs import run_files
from tests.support import run_folders


@pytest.mark.parametrize("umask, mode", [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_who_may_read_the_results_is_the_umask_s_to_say(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        path = run_files.write_results(tmp_path, {"a": 1})
        run_files.write_results(tmp_path, {"a": 2})
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == mode
    assert os.listdir(tmp_path) == ["results.json"]


def test_a_path_that_is_no_utf_8_is_written(tmp_path):
    name = os.fsdecode(b"caf\xe9.png")
    record = {"file": run_files.plain(Path(name), "file"), "é": "😀"}
    path = run_files.write_results(tmp_path, record)
    assert json.loads(path.read_text(encoding="utf-8")) == {"file": name, "é": "😀"}


def test_a_folder_that_is_gone_is_not_made_again(tmp_path):
    with pytest.raises(FileNotFoundError):
        run_files.write_results(tmp_path / "gone", {})
    assert not (tmp_path / "gone").exists()


def test_a_run_that_says_running_is_believed_while_its_process_lives():
    stamp = run_files.runner_stamp()
    running = run_folders.results(status="running", **stamp)
    for changes, status in [
        ({}, "running"),
        ({"host": None}, "running"),
        ({"pid": 2**30}, "interrupted"),
        ({"pid": -1}, "interrupted"),
        ({"pid": None}, "interrupted"),
        # The pid now belongs to a process that is younger than the run.
        ({"pid_created": psutil.Process().create_time() - 60}, "interrupted"),
        ({"host": "another", "pid": 2**30}, "running"),
        ({"host": "another", "status": "failed"}, "failed"),
        ({"status": "lost"}, "unknown"),
        ({"status": None}, "unknown"),
    ]:
        assert run_files.status_of({**running, **changes}) == status, changes
    assert run_files.other_host({"host": "another"}) == "another"
    assert run_files.other_host({"host": socket.gethostname()}) is None


def test_values_of_the_wrong_kind_are_left_out_and_said(tmp_path):
    changes = {"metrics": [1], "seconds": True, "headline": ["gone"], "status": "lost"}
    lab = run_folders.write_lab(tmp_path / "l", **changes)
    results, problems = run_files.read_results(lab)
    assert "metrics" not in results and "seconds" not in results and results["headline"] == []
    assert problems[:2] == [
        "results.json: seconds is true, left out",
        "results.json: metrics is [1], left out",
    ]
    assert problems[2].startswith('results.json: status is "lost", expected')


def test_the_last_lines_of_a_long_log(tmp_path):
    log = tmp_path / "log.txt"
    log.write_text("".join(f"{number}\n\n" for number in range(50_000)))
    assert run_files.last_lines(log, 2) == ["49998", "49999"]
    log.write_bytes(b"half a letter \xc3\n")
    assert run_files.last_lines(log, 15) == ["half a letter \ufffd"]
    assert run_files.last_lines(tmp_path / "none", 15) == []


def test_the_last_state_of_a_line():
    lines = ["a", "a\rb", "a\rb\r", "\r", "a\r\r\r", ""]
    assert list(map(run_files.last_state, lines)) == ["a", "b", "b", "", "a", ""]
