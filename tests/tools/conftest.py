"""The command, called in the process of the test, and a project of small labs."""

import json

import pytest
from typer.testing import CliRunner

from labkit.tools import cli
from labkit.tools import run as runner
from tests.support.lab_projects import FINISH, write_labs

LABS = {
    "01_one": [FINISH],
    "02_fails": ["x = 1", "raise ValueError('of this cell')"],
    "03_hangs": ["import time; time.sleep(300)"],
}


@pytest.fixture(scope="session")
def call():
    """A function that calls the command and returns (exit code, stdout, stderr)."""

    def invoke(*words):
        done = CliRunner().invoke(cli.app, list(map(str, words)), catch_exceptions=False)
        return done.exit_code, done.stdout, done.stderr

    return invoke


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The folder of a project with three labs, which is the working folder."""
    monkeypatch.setattr(runner, "prepare", lambda name: None)
    monkeypatch.delenv("LABKIT_PRESET", raising=False)  # `make test` sets it
    monkeypatch.chdir(write_labs(tmp_path / "project", LABS))
    return tmp_path / "project"


@pytest.fixture
def results(project):
    """A function: folder of a run, lab -> what its results.json holds."""
    return lambda folder, lab: json.loads((project / folder / lab / "results.json").read_text())
