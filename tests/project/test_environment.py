"""scripts/environment.sh and `make clean`: what is installed when, and what is removed.

The interpreters are stand-ins: shell scripts that answer as Python would and record what they
were asked to install. `make test` itself has just done the real installation.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.make_commands import needs_make, run_make

ROOT = Path(__file__).parents[2]
TOOLS = "sh dirname cat cksum ls rm mkdir cp kill sleep tail grep flock touch".split()
FAKE = """#!/bin/sh
case "$*" in
-V) echo "Python {version}" ;;
*sys.version_info*) exit {unfit} ;;
"-m venv "*) mkdir -p "$3/bin" "$3/lib/python3/site-packages"
    : >"$3/pyvenv.cfg" && cp "$0" "$3/bin/python" && echo "venv {version}" >>"$LOG" ;;
"-m pip install"*) echo "pip $*" >>"$LOG"
    case "$PIP" in
    offline) exit 1 ;;
    disk_full) : >"$VENV/lib/python3/site-packages/half"; exit 1 ;;
    killed) kill -9 $PPID ;;
    slow) while [ ! -e "$LOG.go_on" ]; do sleep 0.05; done ;;
    esac ;;
esac
"""


class Project:
    """A copy of the files that the script needs, with stand-ins for Python on the PATH."""

    def __init__(self, folder):
        self.folder, self.bin, self.log = folder / "my project", folder / "bin", folder / "log"
        (self.folder / "scripts").mkdir(parents=True)
        self.bin.mkdir()
        shutil.copy(ROOT / "scripts" / "environment.sh", self.folder / "scripts")
        (self.folder / "pyproject.toml").write_text("[project]\n")
        (self.folder / "constraints.txt").write_text("numpy==1.26.4\n")
        for tool in TOOLS:
            if path := shutil.which(tool):
                (self.bin / tool).symlink_to(path)
        self.python("python3", "3.11.7")

    def python(self, name, version, *, fits=True):
        path = self.bin / name
        path.write_text(FAKE.format(version=version, unfit=0 if fits else 1))
        path.chmod(0o755)
        return path

    def start(self, *arguments, **environment):
        own = {"PATH": str(self.bin), "LOG": str(self.log), "VENV": ".venv", "PIP": ""}
        return subprocess.Popen(
            ["sh", "scripts/environment.sh", *arguments],
            cwd=self.folder,
            env=own | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def call(self, *arguments, code=0, **environment):
        process = self.start(*arguments, **environment)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == code, (process.returncode, said)
        return said

    def done(self):
        """Return the actions since the last call, each "venv", "base" or "test"."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return [
            "test" if "test]" in line else "base" if line.startswith("pip") else "venv"
            for line in lines
        ]


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


@pytest.fixture
def installed(project):
    project.call("base")
    assert project.done() == ["venv", "base"]
    return project


def test_the_first_fitting_python_is_taken(project):
    project.python("python3", "3.13.0", fits=False)
    project.python("python3.11", "3.11.2")
    project.call("base")
    assert "3.11.2" in project.log.read_text()


def test_without_a_fitting_python_the_message_says_what_was_found(project):
    project.python("python3", "3.10.13", fits=False)
    said = project.call("base", code=2)
    for words in ("needs Python 3.11 or 3.12", "python3 (Python 3.10.13)", "not found", "PYTHON="):
        assert words in said
    assert not (project.folder / ".venv").exists()
    other = project.python("my python", "3.12.1")
    project.call("base", PYTHON=str(other))


def test_each_content_of_the_two_files_is_installed_once(installed):
    assert installed.call("base") == ""
    installed.call("test")
    installed.call("base")
    installed.call("test")
    assert installed.done() == ["test"]
    for name in ("pyproject.toml", "constraints.txt"):
        with (installed.folder / name).open("a") as file:
            file.write("# 2\n")
        installed.call("base")
        installed.call("base")
        assert installed.done() == ["base"]


def test_an_environment_that_does_not_fit_any_more_is_made_again(installed):
    newer = {"PYTHON": str(installed.python("python3.12", "3.12.1"))}
    installed.call("base", **newer)
    assert installed.done() == ["venv", "base"]
    installed.folder = installed.folder.rename(installed.folder.with_name("moved"))
    installed.call("base", **newer)
    assert installed.done() == ["venv", "base"]
    installed.call("base", **newer)
    assert installed.done() == []


@pytest.mark.parametrize(
    ("how", "code", "then"),
    [("offline", 2, []), ("disk_full", 2, ["venv", "base"]), ("killed", -9, ["venv", "base"])],
)
def test_a_half_installed_environment_is_not_taken_for_whole(installed, how, code, then):
    """Without a network pip has changed nothing, and what was installed still works."""
    installed.call("test", code=code, PIP=how)
    installed.done()
    installed.call("base")
    assert installed.done() == then
    assert not (installed.folder / ".venv/lib/python3/site-packages/half").exists()


def test_an_environment_of_its_own_is_removed_and_no_other(installed, tmp_path):
    other = tmp_path / "other"
    (other / "bin").mkdir(parents=True)
    (other / "mine.txt").touch()
    assert "move it away" in installed.call("base", code=2, VENV=str(other))
    shutil.copy(installed.bin / "python3", other / "bin" / "python")
    (other / "lib/python3/site-packages").mkdir(parents=True)
    installed.call("base", VENV=str(other))  # one that fits is used
    assert "stays" in installed.call("remove", code=2, VENV=str(other))
    assert (other / "mine.txt").exists()
    installed.call("remove")
    installed.call("remove")
    assert not (installed.folder / ".venv").exists()


GOES = [
    "runs/01/results.json", "build/x.py", "dist/x.tar.gz", "mindspore_labs.egg-info/PKG-INFO",
    ".pytest_cache/x", "labkit/nets/__pycache__/x.pyc", "notebooks/.ipynb_checkpoints/01.ipynb",
    "tests/kernel_meta/x", "rank_0/om/analyze_fail.ir",
]  # fmt: skip
STAYS = [
    "labkit/run.py", "work/01_lab.ipynb", "work/__pycache__/mine.pyc", "rank_1/weights.npz",
    "datasets/MNIST_Data/train/x", ".venv/pyvenv.cfg", "mine/runs/results.json",
]  # fmt: skip


@needs_make
def test_clean_takes_what_the_project_made_and_nothing_else(installed):
    shutil.copy(ROOT / "Makefile", installed.folder)
    for folder in ("benchmarks", "data_scripts", "examples"):
        (installed.folder / folder).mkdir()
    for name in (*GOES, *STAYS):
        (installed.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (installed.folder / name).touch()
    for _ in range(2):
        done = run_make(installed.folder, "clean")
        assert done.returncode == 0, done.stderr
        assert [name for name in GOES if (installed.folder / name).exists()] == []
        assert [name for name in STAYS if not (installed.folder / name).exists()] == []
    assert not (installed.folder / "rank_0").exists()
    done = run_make(installed.folder, "distclean", PATH=f"{installed.bin}:{os.environ['PATH']}")
    assert done.returncode == 0 and not (installed.folder / ".venv").exists(), done.stderr
