"""scripts/environment.sh: which Python it takes, when it installs, and what an interruption leaves.

The interpreters are stand-ins: shell scripts that answer as Python would and record what they
were asked to install. `make test` itself has just done the real installation.
"""

import shutil
import subprocess
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "environment.sh"
TOOLS = "sh dirname cat cksum tr ls rm rmdir mkdir cp kill sleep".split()
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
    slow) while [ ! -e "$LOG.go_on" ]; do sleep 0.05; done ;;
    outlives) kill -9 $PPID; while [ ! -e "$LOG.go_on" ]; do sleep 0.05; done ;;
    esac ;;
esac
"""


class Project:
    """A copy of the files that the script needs, with stand-ins for Python on the PATH."""

    def __init__(self, folder):
        self.folder, self.bin, self.log = folder / "project", folder / "bin", folder / "log"
        (self.folder / "scripts").mkdir(parents=True)
        self.bin.mkdir()
        shutil.copy(SCRIPT, self.folder / "scripts")
        (self.folder / "pyproject.toml").write_text("[project]\n")
        (self.folder / "constraints.txt").write_text("numpy==1.26.4\n")
        for tool in TOOLS:
            if path := shutil.which(tool):
                (self.bin / tool).symlink_to(path)
        self.python("python3", "3.11.7")

    def python(self, name, version, *, venv=True):
        text = FAKE.format(shown=version, version=version, without_venv=0 if venv else 1)
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def start(self, *arguments, **environment):
        environment = {"PATH": str(self.bin), "LOG": str(self.log), "VENV": ".venv"} | environment
        return subprocess.Popen(
            ["sh", "scripts/environment.sh", *arguments],
            cwd=self.folder,
            env=environment | {"PIP": environment.get("PIP", "")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def call(self, *arguments, code=0, **environment):
        process = self.start(*arguments, **environment)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == code, (process.returncode, said)
        return said

    def wait_until_installing(self):
        until = time.monotonic() + 30
        while not self.log.exists() or "pip" not in self.log.read_text():
            assert time.monotonic() < until
            time.sleep(0.02)

    def go_on(self):
        self.log.with_name(f"{self.log.name}.go_on").touch()

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
    project.python("python3", "3.13.0")
    shim = project.python("python3.12", "3.12.1")
    shim.write_text("#!/bin/sh\nexit 127\n")
    assert "python3.12 does not start" in project.call("base", code=2)


def test_python_given_by_name_is_the_only_one_looked_at(project):
    other = project.python("my python", "3.12.1")
    assert project.call("python", PYTHON=str(other)).strip() == str(other)
    said = project.call("base", code=2, PYTHON="python3.12")
    assert "python3.12: not found" in said and "3.11.7" not in said


def test_a_second_call_installs_nothing_and_the_test_extra_serves_both(installed):
    assert installed.call("base") == ""
    assert installed.done() == []
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


def moved(installed):
    installed.folder = installed.folder.rename(installed.folder.with_name("moved"))
    return {}


def of_another_python(installed):
    return {"PYTHON": str(installed.python("python3.12", "3.12.1"))}


def without_its_python(installed):
    (installed.folder / ".venv" / "bin" / "python").unlink()
    return {}


@pytest.mark.parametrize(
    ("change", "done"),
    [
        (moved, ["base"]),
        (of_another_python, ["venv", "base"]),
        (without_its_python, ["venv", "base"]),
    ],
)
def test_an_environment_that_does_not_fit_any_more_is_made_or_installed_again(
    installed, change, done
):
    installed.call("base", **change(installed))
    assert installed.done() == done
    installed.call("base")
    assert installed.done() == []


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
    assert not (installed.folder / ".venv" / ".claim").exists()


def test_a_folder_that_is_no_environment_is_left_alone(project):
    (project.folder / "photos").mkdir()
    (project.folder / "photos" / "one.png").write_text("")
    said = project.call("base", code=2, VENV="photos")
    assert "photos exists and is not a virtual environment" in said
    assert (project.folder / "photos" / "one.png").exists()


def test_two_at_once_one_installs_and_the_other_is_refused(project):
    first = project.start("base", PIP="slow")
    project.wait_until_installing()
    marker = (project.folder / ".venv" / ".incomplete").read_text().strip()
    for arguments in (["base"], ["test"], ["remove"]):
        assert f"Process {marker} is installing" in project.call(*arguments, code=2)
    project.go_on()
    assert first.communicate(timeout=30) and first.returncode == 0
    assert project.done() == ["venv", "base"]
    assert project.call("base") == "" and project.done() == []


def test_of_many_that_start_together_one_installs(project):
    all_of_them = [project.start("base") for _ in range(8)]
    said = [process.communicate(timeout=60)[0] for process in all_of_them]
    codes = [process.returncode for process in all_of_them]
    assert set(codes) <= {0, 2} and 0 in codes, said
    assert project.done() == ["venv", "base"]
    refused = [text for text, code in zip(said, codes, strict=True) if code]
    assert [text for text in refused if "is installing" not in text] == []
    assert project.call("base") == "" and project.done() == []


@pytest.mark.skipif(shutil.which("flock") is None, reason="flock is not installed")
def test_a_pip_that_outlives_its_script_is_waited_for(project):
    (project.bin / "flock").symlink_to(shutil.which("flock"))
    first = project.start("base", PIP="outlives")
    project.wait_until_installing()
    assert first.wait(30) == -9
    assert "is installing" in project.call("base", code=2)
    project.go_on()
    assert first.communicate(timeout=30)
    project.done()
    project.call("base")
    assert project.done() == ["venv", "base"]


def test_what_the_old_distribution_left_is_taken_away(project):
    """An editable labkit 0.1.0 and mindspore-labs would both own the command `labkit`."""
    project.call("base", PIP="offline", code=1)
    site = project.folder / ".venv/lib/python3/site-packages"
    for name in ("labkit-0.1.0.dist-info", "labkit-0.0.3.dist-info", "labkit_other"):
        (site / name).mkdir()
    for name in ("__editable__.labkit-0.1.0.pth", "__editable___labkit_0_1_0_finder.py"):
        (site / name).touch()
    project.call("base")
    left = sorted(path.name for path in site.iterdir())
    assert left == ["labkit-0.0.3.dist-info", "labkit_other"]


class TestRemove:
    """`make distclean` removes the environment that this script made, and nothing else."""

    @pytest.mark.parametrize(
        "venv",
        [".venv", "my envs/lab", 'it\'s "mine"', "-rf", "a/../b", ".venv/", "$HOME;x", "*", "é"],
    )
    def test_an_environment_of_its_own_goes_wherever_it_is(self, project, venv):
        neighbours = [project.folder / name for name in ("my", "envs", "a", "rf", "other")]
        for folder in neighbours:
            folder.mkdir()
            (folder / "photo.png").touch()
        project.call("base", VENV=venv)
        assert (project.folder / venv / "pyvenv.cfg").exists()
        project.call("remove", VENV=venv)
        assert not (project.folder / venv).exists()
        assert all((folder / "photo.png").exists() for folder in neighbours)
        assert (project.folder / "pyproject.toml").exists()
        assert project.call("remove", VENV=venv) == ""

    def test_outside_the_checkout_too_and_beside_what_was_put_into_it(self, project, tmp_path):
        venv = tmp_path / "my envs" / "lab"
        project.call("base", VENV=str(venv))
        (venv / "notes.txt").write_text("mine")
        (tmp_path / "my envs" / "photo.png").touch()
        assert "What else is in" in project.call("remove", VENV=f"{venv}/")
        assert [path.name for path in venv.iterdir()] == ["notes.txt"]
        assert (tmp_path / "my envs" / "photo.png").exists()

    def test_a_link_and_its_folder_stay(self, project, tmp_path):
        disk = tmp_path / "big disk"
        disk.mkdir()
        (project.folder / ".venv").symlink_to(disk)
        project.call("base")
        project.call("base", PYTHON=str(project.python("python3.12", "3.12.1")))
        assert (disk / "pyvenv.cfg").exists()
        project.call("remove", VENV=".venv/")
        assert (project.folder / ".venv").is_symlink() and list(disk.iterdir()) == []

    def test_somebody_elses_environment_is_used_and_stays(self, project, tmp_path):
        (other := tmp_path / "env" / "bin").mkdir(parents=True)
        (tmp_path / "env" / "lib" / "python3" / "site-packages").mkdir(parents=True)
        (tmp_path / "env" / "pyvenv.cfg").touch()
        shutil.copy(project.bin / "python3", other / "python")
        project.call("base", VENV=str(other.parent))
        assert project.done() == ["base"]
        said = project.call("remove", VENV=str(other.parent), code=2)
        assert "was not made by this script for this checkout, and stays" in said
        assert (other / "python").exists() and (other.parent / "pyvenv.cfg").exists()
        # Nor is it replaced when a different Python is requested.
        newer = str(project.python("python3.12", "3.12.1"))
        said = project.call("base", VENV=str(other.parent), PYTHON=newer, code=2)
        assert "cannot be used as it is" in said and (other / "python").exists()

    def test_the_environment_of_another_checkout_stays(self, project, tmp_path):
        venv = tmp_path / "shared"
        project.call("base", VENV=str(venv))
        second = tmp_path / "second"
        shutil.copytree(project.folder, second)
        first, project.folder = project.folder, second
        assert "and stays" in project.call("remove", VENV=str(venv), code=2)
        project.folder = first
        project.call("remove", VENV=str(venv))
        assert not venv.exists()

    @pytest.mark.parametrize("venv", ["..", ".", "/", "scripts", ".venv/..", "HOME", "nowhere"])
    def test_other_folders_stay(self, installed, tmp_path, venv):
        home = tmp_path / "home"
        home.mkdir()
        for folder in (home, tmp_path, installed.folder):
            # The record that the script would leave if it had made this folder.
            (folder / ".made-by-environment.sh").write_text(f"{installed.folder}\n{folder}\n")
            (folder / "bin").mkdir(exist_ok=True)
        venv = str(home) if venv == "HOME" else venv
        before = sorted(tmp_path.rglob("*"))
        installed.call("remove", VENV=venv, HOME=str(home), code=0 if venv == "nowhere" else 2)
        assert sorted(tmp_path.rglob("*")) == before

    @pytest.mark.parametrize("before", [["remove"], ["base", "remove"], ["test", "remove"]])
    def test_the_environment_of_an_earlier_make_is_adopted(self, installed, before):
        """Otherwise `make distclean` could never remove environments made before records."""
        forget_record(installed)
        for argument in before:
            installed.call(argument)
        assert not (installed.folder / ".venv").exists()

    def test_that_of_an_earlier_make_with_other_pins_is_adopted_and_made_anew(self, installed):
        forget_record(installed)
        (installed.folder / "constraints.txt").write_text("numpy==2\n")
        installed.call("base", PYTHON=str(installed.python("python3.12", "3.12.1")))
        assert installed.done() == ["venv", "base"]
        installed.call("remove")
        assert not (installed.folder / ".venv").exists()

    @pytest.mark.parametrize(
        "how",
        ["no pyvenv.cfg", "no stamp", "other stamp", "linked stamp", "link", "elsewhere", "user's"],
    )
    def test_what_no_earlier_make_has_made_is_not_adopted(self, installed, tmp_path, how):
        venv = installed.folder / ".venv"
        stamp = forget_record(installed)
        place = ".venv"
        if how == "no pyvenv.cfg":
            (venv / "pyvenv.cfg").unlink()
        elif how == "no stamp":
            stamp.unlink()
        elif how == "other stamp":
            for name in ("", "-", "12", "12-", "-12", "1-2-3", "12-x", "12-3.bak"):
                (venv / f".installed-base-{name}").touch()
            (venv / ".installed-more-12-3").touch()
            stamp.unlink()
        elif how == "linked stamp":
            stamp.unlink()
            stamp.symlink_to("/dev/null")
        elif how == "link":
            venv.rename(tmp_path / "disk")
            venv.symlink_to(tmp_path / "disk")
        elif how == "elsewhere":
            place = str(venv.rename(installed.folder / "env").relative_to(installed.folder))
        else:  # made by the user; this script installed into it
            installed.call("test")
            (venv / ".made-by-environment.sh").unlink(missing_ok=True)
            stamp.unlink(missing_ok=True)
            forget_record(installed, empty=False)
        files = sorted((installed.folder / place).rglob("*"))
        assert "and stays" in installed.call("remove", VENV=place, code=2)
        assert sorted((installed.folder / place).rglob("*")) == files

    def test_a_moved_checkout_removes_the_environment_inside_it(self, installed, tmp_path):
        installed.folder = installed.folder.rename(tmp_path / "moved")
        installed.call("remove")
        assert not (installed.folder / ".venv").exists()


def forget_record(installed, *, empty=True):
    """Leave only empty stamps, as the script did before it kept a record; return the first one."""
    venv = installed.folder / ".venv"
    (venv / ".made-by-environment.sh").unlink(missing_ok=True)
    stamps = sorted(venv.glob(".installed-*"))
    for stamp in stamps if empty else ():
        stamp.write_text("")
    return stamps[0]


@pytest.mark.parametrize("venv", ["home", "home/", "project/..", "/"])
def test_no_environment_is_made_in_a_folder_that_holds_more(project, tmp_path, venv):
    (tmp_path / "home").mkdir()
    said = project.call("base", VENV=str(tmp_path / venv), HOME=str(tmp_path / "home"), code=2)
    assert "holds more than a virtual environment" in said
    assert list((tmp_path / "home").iterdir()) == [] and project.done() == []


def test_unknown_arguments_are_refused(project):
    assert "expected base, test, python or remove, got nothing" in project.call(code=2)
    assert "got prod" in project.call("prod", code=2)
