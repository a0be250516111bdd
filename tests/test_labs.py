"""Labs are found, named and read; a notebook that cannot be one is refused with the reason."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.base import project as project_file
from labkit.errors import InputError
from labkit.tools import labs

PARAMETERS = 'preset = os.environ.get("LABKIT_PRESET", "lab")\ndevice = "auto"\nepochs = None\n'


def write(folder, name, card, *sources, tagged=1):
    cells = [{"cell_type": "markdown", "metadata": {}, "source": card}]
    for index, source in enumerate(sources):
        tags = ["parameters"] if index < tagged else []
        cells.append({"cell_type": "code", "metadata": {"tags": tags}, "source": source})
    (folder / "notebooks").mkdir(parents=True, exist_ok=True)
    place = folder / "notebooks" / f"{name}.ipynb"
    place.write_text(json.dumps({"cells": cells, "nbformat": 4, "nbformat_minor": 5}))
    return place


def installed_elsewhere(monkeypatch, folder):
    file = folder / "site-packages" / "labkit" / "base" / "project.py"
    monkeypatch.setattr(project_file, "__file__", str(file))


@pytest.fixture
def project(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "labkit"\n')
    write(tmp_path, "02_thor", "# 02 · THOR", PARAMETERS)
    write(tmp_path, "01_accumulation", "# 01 · Sums\n\n*about 3 minutes*", PARAMETERS, "MNIST()")
    write(tmp_path, "scratch", "# Mine", PARAMETERS)
    return tmp_path


def test_labs_come_in_reading_order_with_their_header_card(project):
    first, second = labs.find_labs(project)
    assert (first.number, first.name, first.title) == ("01", "01_accumulation", "Sums")
    assert (first.minutes, second.minutes) == ("3", "")
    assert second.presets == ("smoke", "lab", "paper")


@pytest.mark.parametrize("name", ["01", "1", "01_accumulation", "accumulation"])
def test_a_lab_answers_to_each_of_its_names(project, name):
    assert [lab.number for lab in labs.pick(labs.find_labs(project), [name])] == ["01"]


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        ([], ["01", "02"]),
        (["02,01"], ["02", "01"]),
        (["2 1", "thor"], ["02", "01"]),
    ],
)
def test_several_labs_run_once_each_in_the_order_given(project, names, numbers):
    assert [lab.number for lab in labs.pick(labs.find_labs(project), names)] == numbers


def test_unknown_lab_is_refused_with_the_nearest_name(project):
    with pytest.raises(InputError, match="unknown lab 'acumulation'.*Did you mean 'accumulation'"):
        labs.pick(labs.find_labs(project), ["acumulation"])
    with pytest.raises(InputError, match="unknown lab '7'; expected one of: 01_accumulation"):
        labs.pick(labs.find_labs(project), ["7"])


def test_a_number_used_twice_is_refused(project):
    write(project, "01_other", "# 01 · Other", PARAMETERS)
    with pytest.raises(InputError, match="could be 01_accumulation and 01_other"):
        labs.pick(labs.find_labs(project), ["1"])


def test_no_labs_at_all_is_an_error(tmp_path):
    with pytest.raises(InputError, match="no lab found"):
        labs.pick(labs.find_labs(tmp_path), [])


def test_parameter_names_come_from_the_syntax_tree(project):
    # Two "=" in a line: papermill's own line reader leaves such a parameter out.
    source = PARAMETERS + "check: bool = 1 == 1\nsizes = [\n    1,\n]\nx.y = 3\n# z = 1\n"
    write(project, "01_accumulation", "# 01 · Sums", source)
    found = labs.parameter_names(labs.find_labs(project)[0])
    assert found == ("preset", "device", "epochs", "check", "sizes")


@pytest.mark.parametrize(
    ("sources", "tagged", "said"),
    [
        ([PARAMETERS], 0, "has 0 cells tagged 'parameters'"),
        ([PARAMETERS, PARAMETERS], 2, "has 2 cells tagged 'parameters'"),
        (["epochs = 3"], 1, "does not set preset and device"),
        (["%time epochs = 3"], 1, "not plain Python"),
    ],
)
def test_a_notebook_without_its_parameters_is_refused(project, sources, tagged, said):
    write(project, "01_accumulation", "# 01 · Sums", *sources, tagged=tagged)
    with pytest.raises(InputError, match=said):
        labs.parameter_names(labs.find_labs(project)[0])


@pytest.mark.parametrize(("text", "said"), [("{", "cannot read"), ("[]", "not a notebook")])
def test_a_broken_notebook_is_named(project, text, said):
    (project / "notebooks" / "03_broken.ipynb").write_text(text)
    with pytest.raises(InputError, match=f"{said}.*03_broken|03_broken.*{said}"):
        labs.find_labs(project)


def test_a_data_set_is_needed_where_the_code_names_it(project):
    first, second = labs.find_labs(project)
    assert labs.mentions(first, "mnist")
    assert not labs.mentions(second, "mnist")


def test_the_project_is_the_nearest_one_above(project):
    inner = project / "a" / "b"
    inner.mkdir(parents=True)
    (project / "a" / "pyproject.toml").write_text('[project]\nname = "other"\n')
    (inner / "pyproject.toml").write_text("not toml")
    assert project_file.find_project(inner) == project.resolve()


def test_outside_a_checkout_the_message_says_so(tmp_path, monkeypatch):
    installed_elsewhere(monkeypatch, tmp_path)
    with pytest.raises(InputError, match="Change into the cloned project"):
        project_file.find_project(tmp_path)


@pytest.mark.parametrize("name", ["labkit", "mindspore-labs"])
def test_both_names_of_the_distribution_are_known(project, name):
    (project / "pyproject.toml").write_text(f'[project]\nname = "{name}"\n')
    assert project_file.project_root(project / "notebooks") == project.resolve()


@pytest.mark.parametrize("text", ["[project]\nname = 'mindspore'\n", "project = 'labkit'\n", ""])
def test_a_pyproject_of_something_else_is_passed_over(project, text):
    inner = project / "inner"
    inner.mkdir()
    (inner / "pyproject.toml").write_text(text)
    assert project_file.project_root(inner) == project.resolve()


def test_another_users_project_is_passed_over(project, tmp_path, monkeypatch):
    """On a shared machine anybody may put a pyproject.toml into a folder above."""
    inner = project / "mine" / "deep"
    inner.mkdir(parents=True)
    assert project_file.project_root(inner) == project.resolve()
    monkeypatch.setattr(os, "geteuid", lambda: project.stat().st_uid + 1)
    assert project_file.project_root(inner) is None
    # But the checkout that labkit is imported from, as root in a container sees it.
    assert (
        project_file.find_project(inner)
        == project_file.own_checkout()
        == Path(project_file.__file__).parents[2]
    )
    installed_elsewhere(monkeypatch, tmp_path)
    with pytest.raises(InputError, match="is another user's checkout.*expected one of your own"):
        project_file.find_project(inner)


def test_a_checkout_of_the_user_who_called_sudo_is_roots_too(project, monkeypatch):
    """A container's root in a mounted checkout, and root's shell by sudo."""
    owner = project.stat().st_uid
    real = Path.lstat
    given = os.stat_result((0o755, 1, 1, 1, owner + 1000, 1, 0, 0, 0, 0))
    monkeypatch.setattr(
        Path, "lstat", lambda path: given if path.is_relative_to(project) else real(path)
    )
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for caller in ("", "x", str(owner + 1), "-1", "9" * 5000):
        monkeypatch.setenv("SUDO_UID", caller)
        assert project_file.project_root(project) is None
    monkeypatch.setenv("SUDO_UID", str(owner + 1000))
    assert project_file.project_root(project) == project.resolve()
    # Anybody can set the variable; only root has got it from sudo.
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert project_file.project_root(project) is None


def test_a_checkout_that_is_named_is_trusted_and_no_other(project, tmp_path, monkeypatch):
    inner = project / "it's inner"
    (inner / "notebooks").mkdir(parents=True)
    (inner / "pyproject.toml").write_text('[project]\nname = "labkit"\n')
    monkeypatch.setattr(os, "geteuid", lambda: project.stat().st_uid + 1)
    installed_elsewhere(monkeypatch, tmp_path)
    monkeypatch.chdir(project)
    for named in ("", ".", str(tmp_path.parent), str(project / "none")):
        monkeypatch.setenv("LABKIT_PROJECT", named)
        with pytest.raises(InputError, match="If you trust it: export LABKIT_PROJECT=") as refused:
            project_file.find_project(inner)
    # What the message says can be pasted into a shell.
    assignment = str(refused.value).rsplit("export ", 1)[1]
    (name, value) = shlex.split(assignment)[0].split("=", 1)
    monkeypatch.setenv(name, value)
    assert project_file.find_project(inner) == inner.resolve()
    monkeypatch.setenv("LABKIT_PROJECT", f"{project}/notebooks/..")
    assert project_file.find_project(inner) == project.resolve()


def test_an_installed_copy_prepares_the_data_of_the_users_checkout(project, tmp_path, monkeypatch):
    from labkit.data import prepare as module

    (project / "data_scripts").mkdir()
    (project / "data_scripts" / "mnist.py").write_text("import sys\nsys.exit('the script')\n")
    installed_elsewhere(monkeypatch, tmp_path)
    monkeypatch.chdir(project / "notebooks")
    with pytest.raises(InputError, match="^the script$"):
        module.prepare("mnist")
    # Another user's script is not executed.
    monkeypatch.setattr(os, "geteuid", lambda: project.stat().st_uid + 1)
    with pytest.raises(InputError, match="^mnist cannot be prepared: .* is another user's"):
        module.prepare("mnist")
    monkeypatch.chdir("/")
    with pytest.raises(InputError, match="^mnist cannot be prepared: .*the cloned project"):
        module.prepare("mnist")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize("part", [".", "pyproject.toml", "notebooks"])
def test_a_project_with_a_part_of_another_users_is_passed_over(project, part):
    os.chown(project / part, 65534, 65534)
    assert project_file.project_root(project) is None


def test_a_link_to_this_labkit_makes_no_project_its_own(project, monkeypatch):
    (project / "labkit").symlink_to(Path(project_file.__file__).parents[1])
    assert project_file.own_checkout() != project.resolve()


@pytest.mark.parametrize(
    "program",
    [
        "from labkit import doctor; print(doctor.checks(names=['data'])[0]())",
        "from labkit.data import prepare; prepare._MNIST; print(prepare.prepare('mnist'))",
        "from labkit.base import project; from labkit.tools import labs; "
        "print(project.find_project(), labs.find_labs(project.find_project()))",
    ],
)
def test_no_code_of_a_project_around_is_executed(project, program):
    """`labkit doctor data` once executed the data_scripts/mnist.py of whatever lay above."""
    (project / "data_scripts").mkdir()
    for name in ("data_scripts/mnist.py", "labkit/__init__.py", "sitecustomize.py", "idx.py"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(f"open({str(project / 'executed')!r}, 'w')\n")
    inner = project / "mine" / "deep"
    inner.mkdir(parents=True)
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        cwd=inner,
        env=os.environ | {"PYTHONPATH": str(Path(project_file.__file__).parents[2])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not (project / "executed").exists()
