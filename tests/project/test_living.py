"""The helpers that start processes leave none behind when a test fails."""

import subprocess
import sys
import time

import pytest

from tests.support import programs
from tests.support.living import MARK, interrupted, marked
from tests.support.shell_scripts import assert_nothing_stays

LONG = 60  # seconds that a program sleeps if it is not killed, as it should be


@pytest.fixture(autouse=True)
def _soon():
    """No test waits until a sleeping program ends."""
    before = time.monotonic()
    yield
    assert time.monotonic() - before < LONG / 2


def test_one_that_is_not_to_be_interrupted_is_killed(tmp_path, monkeypatch):
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\nsleep {LONG} &\nsleep {LONG}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(ZeroDivisionError):
        interrupted([], tmp_path, lambda: 1 / 0)
    assert marked(tmp_path) == []


def test_one_that_ends_by_itself_is_not_waited_for(tmp_path):
    assert interrupted(["--version"], tmp_path, lambda: False)[0] == 0


def test_what_a_script_leaves_behind_is_killed(tmp_path):
    script = tmp_path / "script"
    script.write_text('"$PYTHON"\n')
    with pytest.raises(AssertionError):
        assert_nothing_stays(script, [], tmp_path)
    assert marked(tmp_path) == []


def test_code_that_hangs_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "SECONDS", 1)
    with pytest.raises(subprocess.TimeoutExpired):
        programs.run_code(f"import time; time.sleep({LONG})", env={MARK: str(tmp_path)})
    assert marked(tmp_path) == []
