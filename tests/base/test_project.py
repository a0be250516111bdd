"""Which checkout is meant: a stranger's code or notebook is never taken for the user's own."""

import os
import shlex
from pathlib import Path

import pytest

from labkit.base import project as project_file
from labkit.base.project import find_project, own_checkout, project_root
from labkit.data import prepare
from labkit.errors import InputError
from tests.support.programs import run_code

NAMES = '[project]\nname = "labkit"\n'


@pytest.fixture
def project(tmp_path):
    (tmp_path / "pyproject.toml").write_text(NAMES)
    (tmp_path / "notebooks").mkdir()
    return tmp_path


@pytest.fixture
def installed_elsewhere(tmp_path, monkeypatch):
    """labkit as installed by pip: its own files are not in a checkout."""
    file = tmp_path / "site-packages" / "labkit" / "base" / "project.py"
    monkeypatch.setattr(project_file, "__file__", str(file))


@pytest.fixture
def another_user(project, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: project.stat().st_uid + 1)


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        ('[project]\nname = "labkit"\n', True),
        ('[project]\nname = "mindspore-labs"\n', True),
        ('[project]\nname = "mindspore"\n', False),
        ("project = 'labkit'\n", False),
        ("not toml", False),
        ("", False),
        pytest.param("x = " + "[" * 5000, False, id="5000 brackets"),
    ],
)
def test_the_project_is_the_nearest_one_above(project, text, ours):
    inner = project / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "pyproject.toml").write_text(text)
    os.mkfifo(project / "a" / "pyproject.toml")  # not waited for
    assert project_root(inner) == (inner if ours else project)
    # If the nearest one has no notebooks, labkit's own checkout is returned.
    assert find_project(inner) == (own_checkout() if ours else project)


def test_outside_a_checkout_the_message_says_so(tmp_path, installed_elsewhere):
    with pytest.raises(InputError, match="Change into the cloned project"):
        find_project(tmp_path)


def test_another_users_project_is_passed_over(project, another_user, request):
    """On a shared machine anybody may put a pyproject.toml into a folder above."""
    assert project_root(project) is None
    # The checkout that labkit is imported from is accepted: root in a container does not own it.
    assert find_project(project) == own_checkout() == Path(project_file.__file__).parents[2]
    request.getfixturevalue("installed_elsewhere")
    with pytest.raises(InputError, match="is another user's checkout.*expected one of your own"):
        find_project(project)


def test_a_checkout_of_the_user_who_called_sudo_is_roots_too(project, monkeypatch):
    """This serves root in a container with a mounted checkout, and a root shell by sudo."""
    owner = project.stat().st_uid
    real = Path.lstat
    theirs = os.stat_result((0o755, 1, 1, 1, owner + 1000, 1, 0, 0, 0, 0))
    monkeypatch.setattr(
        Path, "lstat", lambda path: theirs if path.is_relative_to(project) else real(path)
    )
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for caller in ("", "x", str(owner + 1), "-1", "9" * 5000):
        monkeypatch.setenv("SUDO_UID", caller)
        assert project_root(project) is None
    monkeypatch.setenv("SUDO_UID", str(owner + 1000))
    assert project_root(project) == project
    # Anybody can set the variable; only for root does it come from sudo.
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert project_root(project) is None


def test_a_checkout_that_is_named_is_trusted_and_no_other(
    project, another_user, installed_elsewhere, monkeypatch
):
    inner = project / "it's inner"
    (inner / "notebooks").mkdir(parents=True)
    (inner / "pyproject.toml").write_text(NAMES)
    monkeypatch.chdir(project)
    for named in ("", ".", str(project.parent), str(project / "none")):
        monkeypatch.setenv("LABKIT_PROJECT", named)
        with pytest.raises(InputError, match="If you trust it: export LABKIT_PROJECT=") as refused:
            find_project(inner)
    # What the message says can be pasted into a shell.
    assignment = str(refused.value).rsplit("export ", 1)[1]
    (name, value) = shlex.split(assignment)[0].split("=", 1)
    monkeypatch.setenv(name, value)
    assert find_project(inner) == inner
    monkeypatch.setenv("LABKIT_PROJECT", f"{project}/notebooks/..")
    assert find_project(inner) == project


def test_an_installed_copy_prepares_the_data_of_the_users_checkout(
    project, installed_elsewhere, monkeypatch, request
):
    (project / "data_scripts").mkdir()
    (project / "data_scripts" / "mnist.py").write_text("import sys\nsys.exit('the script')\n")
    monkeypatch.chdir(project / "notebooks")
    with pytest.raises(InputError, match="^the script$"):
        prepare.prepare("mnist")
    request.getfixturevalue("another_user")  # their script is not executed
    with pytest.raises(InputError, match="^mnist cannot be prepared: .* is another user's"):
        prepare.prepare("mnist")
    monkeypatch.chdir("/")
    with pytest.raises(InputError, match="^mnist cannot be prepared: .*the cloned project"):
        prepare.prepare("mnist")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize("part", [".", "pyproject.toml", "notebooks"])
def test_a_project_with_a_part_of_another_users_is_passed_over(project, part):
    os.chown(project / part, 65534, 65534)
    assert project_root(project) is None


def test_a_link_to_this_labkit_makes_no_project_its_own(project):
    (project / "labkit").symlink_to(Path(project_file.__file__).parents[1])
    assert own_checkout() != project


def test_no_code_of_a_project_around_is_executed(project):
    """`labkit doctor data` once executed data_scripts/mnist.py of any project above."""
    program = (
        "from labkit import doctor; print(doctor.checks(names=['data'])[0]())\n"
        "from labkit.data import prepare; print(prepare.prepare('mnist'))\n"
        "from labkit.tools import labs; print(labs.chosen())\n"
    )
    (project / "data_scripts").mkdir()
    (project / "notebooks" / "01_sums.ipynb").write_text('{"cells": []}')
    for name in ("data_scripts/mnist.py", "labkit/__init__.py", "sitecustomize.py", "idx.py"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(f"open({str(project / 'executed')!r}, 'w')\n")
    inner = project / "mine" / "deep"
    inner.mkdir(parents=True)
    done = run_code(program, cwd=inner)
    assert done.returncode == 0, done.stderr
    assert not (project / "executed").exists()
