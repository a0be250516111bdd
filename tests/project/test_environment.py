"""scripts/environment.sh and `make clean`: what is installed when, and what is removed.

The interpreters are stand-ins: shell scripts that answer as Python would and record what they
were asked to install. `make test` itself has just done the real installation.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAKE = """#!/bin/sh
case "$*" in
-V) echo "Python {version}" ;;
*sys.version_info*) exit {unfit} ;;
"-m venv "*) mkdir -p "$3/bin" "$3/lib/python3/site-packages"
    : >"$3/pyvenv.cfg" && cp "$0" "$3/bin/python" && echo venv >>"$LOG" ;;
"-m pip --version") [ "$PIP" != none ] && [ "$PIP" != never ] ;;
"-m ensurepip") echo ensurepip >>"$LOG" && [ "$PIP" != never ] ;;
"-m pip "*"--no-deps mindcv "*) echo networks >>"$LOG" && [ "$PIP" != no_networks ] ;;
"-m pip "*" -e "*) case "$PIP-$*" in -*test]*) echo test ;; -* | none-*) echo base ;; esac >>"$LOG"
    case "$PIP" in
    offline) exit 1 ;;
    disk_full) : >"$VENV/lib/python3/site-packages/half"; exit 1 ;;
    killed) kill -9 $PPID ;;
    esac ;;
esac
"""
# The real Python; pip and what builds are those of the environment that runs the tests.
REAL = """#!/bin/sh
case "$*" in
"-m venv "*) {python} -m venv --without-pip "$3"
    echo {site} >"$(echo "$3"/lib/*/site-packages)/x.pth" ;;
*) exec {python} "$@" ;;
esac
"""
PLACES = {"user": "1", "target": "nowhere", "prefix": "nowhere", "root": "nowhere"}
GOES = ["runs/01/results.json", "dist/x.tar.gz", "mindspore_labs.egg-info/PKG-INFO",
        "labkit/nets/__pycache__/x.pyc", "notebooks/.ipynb_checkpoints/01.ipynb",
        "tests/kernel_meta/x", "rank_0/om/analyze_fail.ir"]  # fmt: skip
STAYS = ["labkit/run.py", "work/01_lab.ipynb", "work/__pycache__/mine.pyc", "rank_1/weights.npz",
         "datasets/MNIST_Data/train/x", ".venv/pyvenv.cfg", "mine/runs/results.json"]  # fmt: skip


def write(path, text="", mode=0o644):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


class Project:
    """A copy of the files that the script needs, with stand-ins for Python on the PATH."""

    def __init__(self, folder):
        self.folder, self.bin, self.log = folder / "my project", folder / "bin", folder / "log"
        for name in ("scripts/environment.sh", "Makefile", "pyproject.toml", "constraints.txt"):
            write(self.folder / name, (ROOT / name).read_text())
        self.python("python3", unfit=1)
        self.python("python3.12", unfit=1)
        self.python("python3.11")

    def python(self, name, version="3.11.7", unfit=0):
        return write(self.bin / name, FAKE.format(version=version, unfit=unfit), 0o755)

    def call(self, what, code=0, program=("sh", "scripts/environment.sh"), **environment):
        """Call the script, or make, in the project; return what it says."""
        own = {"PATH": f"{self.bin}:{os.environ['PATH']}", "LOG": str(self.log), "VENV": ".venv"}
        own |= {"PIP": ""} | environment
        settings = {"cwd": self.folder, "env": own, "text": True, "stdout": subprocess.PIPE}
        done = subprocess.run([*program, what], **settings, stderr=subprocess.STDOUT)
        assert done.returncode == code, (done.returncode, done.stdout)
        return done.stdout

    def done(self):
        """Return the actions since the last call, each "venv", "base", "test" or "networks"."""
        lines = self.log.read_text().split() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return lines


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


def test_each_content_of_the_two_files_is_installed_once(project):
    for extra in ("base", "base", "test", "base", "test", "all", "test", "all"):
        project.call(extra)
    assert project.done() == ["venv", "base", "test", "test", "networks"]
    with (project.folder / "constraints.txt").open("a") as file:
        file.write("# 2\n")
    project.call("base")
    project.call("base")
    assert project.done() == ["base"]
    newer = {"PYTHON": str(project.python("my python", "3.12.1"))}
    project.call("base", **newer)
    project.folder = project.folder.rename(project.folder.with_name("moved"))
    project.call("base", **newer)
    assert project.done() == ["venv", "base", "venv", "base"]


@pytest.mark.parametrize(
    ("how", "code", "then"),
    [("offline", 2, []), ("disk_full", 2, ["venv", "base"]), ("killed", -9, ["venv", "base"])],
)
def test_a_half_installed_environment_is_not_taken_for_whole(project, how, code, then):
    """Without a network pip has changed nothing, and what was installed still works."""
    project.call("base")
    project.call("test", code=code, PIP=how)
    project.done()
    project.call("base")
    assert project.done() == then
    assert not (project.folder / ".venv/lib/python3/site-packages/half").exists()


def test_the_slow_tests_need_the_networks_of_others(project):
    """Where one of them cannot be installed no test is run, and none skipped."""
    said = project.call("test", code=2, program=["make"], ALL="1", PIP="no_networks")
    assert "The installation failed" in said and project.done()[-1] == "networks"


@pytest.mark.parametrize("given", ["variables", "file"])
def test_pip_installs_into_the_environment_whatever_else_is_set(project, given):
    """The real pip, on a project without dependencies, without a network."""
    for name in ("LICENSE", "README.md", "labkit/__init__.py"):
        write(project.folder / name)
    text = '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
    text += '[project]\nname = "mindspore-labs"\nversion = "1"\noptional-dependencies.labs = []\n'
    write(project.folder / "pyproject.toml", text)
    real = REAL.format(python=sys.executable, site=sysconfig.get_path("purelib"))
    write(project.bin / "python3", real, 0o755)
    lines = "".join(f"{name} = {place}\n" for name, place in PLACES.items())
    config = write(project.bin / "pip.conf", f"[install]\n{lines}no-deps = 1\n[global]\n{lines}")
    own = {"PYTHONHOME": "nowhere", "PYTHONPATH": "nowhere", "PIP_NO_INDEX": "1"}
    if given == "file":
        own["PIP_CONFIG_FILE"] = str(config)
    else:
        own |= {f"PIP_{name.upper()}": place for name, place in PLACES.items()}
        own |= {"PIP_PYTHON": "/nowhere", "PIP_DRY_RUN": "1"}
    project.call("base", **own)
    assert list(project.folder.glob(".venv/lib/*/site-packages/mindspore_labs-1.dist-info/RECORD"))
    assert not list(project.folder.rglob("nowhere"))


@pytest.mark.parametrize(
    ("pip", "code", "done"), [("none", 0, ["ensurepip", "base"]), ("never", 2, ["ensurepip"])]
)
def test_an_environment_without_pip(project, pip, code, done):
    """As uv makes them; one that cannot be used stays as it is."""
    own = project.python("own/bin/python").parents[1]
    (own / "lib/python3/site-packages").mkdir(parents=True)
    said = project.call("base", code=code, VENV=str(own), PIP=pip)
    assert project.done() == done and ("uv pip install" in said) == (code == 2)
    assert not (own / ".incomplete").exists()


def test_what_cannot_be_used_is_refused_and_stays(project):
    other = project.bin.with_name("other")
    (other / "bin").mkdir(parents=True)
    assert "move it away" in project.call("base", code=2, VENV=str(other))
    assert "not made by make" in project.call("remove", code=2, VENV=str(other))
    project.python("python3.11", "3.10.13", unfit=1)
    said = project.call("base", code=2)
    assert "needs Python 3.11 or 3.12" in said and "python3.11 (Python 3.10.13)" in said
    assert not (project.folder / ".venv").exists() and list(other.iterdir()) == [other / "bin"]


def test_clean_takes_what_the_project_made_and_nothing_else(project):
    project.call("base")
    for name in (*GOES, *STAYS, "benchmarks/x", "data_scripts/x", "examples/x"):
        write(project.folder / name)
    project.call("clean", program=["make"])
    assert [name for name in (*GOES, *STAYS) if (project.folder / name).exists()] == STAYS
    project.call("distclean", program=["make"])
    assert not (project.folder / ".venv").exists()
