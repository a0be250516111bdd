"""scripts/environment.sh: which Python it takes, when it installs, and what an interruption leaves.

The interpreters are stand-ins: shell scripts that answer as Python would and write down what they
were asked to install. The real installation is what `make test` itself has just done.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "environment.sh"
TOOLS = "sh dirname cat cksum tr ls rm mkdir cp kill".split()
FAKE = """#!/bin/sh
case "$*" in
*sys.version_info*) echo "{shown}" ;;
*ensurepip*) exit {without_venv} ;;
"-m venv "*) mkdir -p "$3/bin" "$3/lib/python3/site-packages"
    : >"$3/pyvenv.cfg" && cp "$0" "$3/bin/python" && echo "venv {version}" >>"$LOG" ;;
"-m pip install"*) echo "pip $*" >>"$LOG"
    case "$PIP" in
    offline) exit 1 ;;
    disk_full) : >"$VENV/lib/python3/site-packages/half"; exit 1 ;;
    killed) kill -9 $PPID ;;
    esac ;;
esac
"""


class Project:
    """A copy of what the script needs, with stand-ins for Python on the path."""

    def __init__(self, folder):
        self.folder, self.bin, self.log = folder / "project", folder / "bin", folder / "log"
        (self.folder / "scripts").mkdir(parents=True)
        self.bin.mkdir()
        shutil.copy(SCRIPT, self.folder / "scripts")
        (self.folder / "pyproject.toml").write_text("[project]\n")
        (self.folder / "constraints.txt").write_text("numpy==1.26.4\n")
        for tool in TOOLS:
            if found := shutil.which(tool):
                (self.bin / tool).symlink_to(found)

    def python(self, name, version, *, venv=True):
        text = FAKE.format(shown=version, version=version, without_venv=0 if venv else 1)
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def call(self, *arguments, code=0, **environment):
        environment = {"PATH": str(self.bin), "LOG": str(self.log), "VENV": ".venv"} | environment
        done = subprocess.run(
            ["sh", "scripts/environment.sh", *arguments],
            cwd=self.folder,
            env=environment | {"PIP": environment.get("PIP", "")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def done(self):
        """Return what was done since the last call: venv, base, test."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return [
            "test" if "[test]" in line else "base" if line.startswith("pip") else "venv"
            for line in lines
        ]


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


@pytest.fixture
def installed(project):
    project.python("python3", "3.11.7")
    project.call("base")
    assert project.done() == ["venv", "base"]
    return project


def test_the_first_fitting_python_is_taken(project):
    project.python("python3", "3.13.0")
    project.python("python3.12", "broken")
    project.python("python3.11", "3.11.7")
    assert project.call("python") == "python3.11\n"


def test_without_a_fitting_python_it_is_said_what_came(project):
    project.python("python3", "3.10.13")
    project.python("python3.11", "3.11.2", venv=False)
    said = project.call("base", code=2)
    assert "needs Python 3.11 or 3.12" in said
    assert "python3 is Python 3.10.13" in said
    assert "python3.12: not found" in said
    assert "3.11.2" in said and "apt install python3-venv" in said
    assert "PYTHON=" in said
    assert not (project.folder / ".venv").exists()


def test_a_python_that_does_not_start_is_named(project):
    shim = project.python("python3.12", "3.12.1")
    shim.write_text("#!/bin/sh\nexit 127\n")
    assert "python3.12 does not start" in project.call("base", code=2)


def test_python_given_by_name_is_the_only_one_looked_at(project):
    project.python("python3", "3.11.7")
    other = project.python("my python", "3.12.1")
    assert project.call("python", PYTHON=str(other)).strip() == str(other)
    said = project.call("base", code=2, PYTHON="python3.12")
    assert "python3.12: not found" in said and "3.11.7" not in said


def test_a_second_call_installs_nothing(installed):
    assert installed.call("base") == ""
    assert installed.done() == []


def test_the_test_extra_comes_on_top_and_serves_both(installed):
    installed.call("test")
    assert installed.done() == ["test"]
    installed.call("base")
    installed.call("test")
    assert installed.done() == []


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_changed_pin_is_installed_once_and_so_is_going_back(installed, name):
    installed.call("test")
    installed.done()
    path = installed.folder / name
    before = path.read_text()
    path.write_text(before + "# 2\n")
    installed.call("base")
    installed.call("base")
    assert installed.done() == ["base"]
    installed.call("test")
    assert installed.done() == ["test"]
    path.write_text(before)
    installed.call("base")
    assert installed.done() == ["base"]


def test_a_moved_environment_is_installed_again(installed, tmp_path):
    installed.folder = installed.folder.rename(tmp_path / "moved")
    installed.call("base")
    assert installed.done() == ["base"]


def test_another_python_makes_the_environment_anew(installed):
    other = str(installed.python("python3.12", "3.12.1"))
    installed.call("base", PYTHON=other)
    assert installed.done() == ["venv", "base"]
    installed.call("base", PYTHON=other)
    installed.call("base")
    assert installed.done() == []


def test_an_environment_without_its_python_is_made_anew(installed):
    (installed.folder / ".venv" / "bin" / "python").unlink()
    installed.call("base")
    assert installed.done() == ["venv", "base"]


def test_without_a_network_what_was_installed_still_works(installed):
    said = installed.call("test", code=1, PIP="offline")
    assert "installation failed" in said
    installed.done()
    installed.call("base")
    assert installed.done() == []
    installed.call("test")
    assert installed.done() == ["test"]


@pytest.mark.parametrize(("how", "code"), [("disk_full", 1), ("killed", -9)])
def test_an_interrupted_installation_starts_anew(installed, how, code):
    installed.call("test", code=code, PIP=how)
    installed.done()
    installed.call("base")
    assert installed.done() == ["venv", "base"]
    assert not (installed.folder / ".venv/lib/python3/site-packages/half").exists()


def test_a_running_installation_is_not_disturbed(installed):
    marker = installed.folder / ".venv" / ".incomplete"
    marker.write_text(f"{os.getpid()}\n")
    assert f"Process {os.getpid()} is installing" in installed.call("base", code=2)
    assert installed.done() == [] and marker.exists()


def test_a_folder_that_is_no_environment_is_left_alone(project):
    project.python("python3", "3.11.7")
    (project.folder / "photos").mkdir()
    (project.folder / "photos" / "one.png").write_text("")
    said = project.call("base", code=2, VENV="photos")
    assert "photos exists and is not a virtual environment" in said
    assert (project.folder / "photos" / "one.png").exists()


def test_unknown_arguments_are_refused(project):
    assert "came: nothing" in project.call(code=2)
    assert "came: prod" in project.call("prod", code=2)
