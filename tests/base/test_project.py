"""Which checkout is meant, by the working folder and by where labkit is imported from."""

from pathlib import Path

import pytest

from labkit.base import project as project_file
from labkit.base.project import find_project, own_checkout, project_root
from labkit.data import prepare
from labkit.errors import InputError

NAMES = '[project]\nname = "mindspore-labs"\n'


@pytest.fixture
def project(tmp_path):
    (tmp_path / "notebooks" / "deeper").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text(NAMES)
    return tmp_path


@pytest.fixture
def installed_elsewhere(tmp_path, monkeypatch):
    """labkit as installed by pip: its own files are not in a checkout."""
    file = tmp_path.parent / "site-packages" / "labkit" / "base" / "project.py"
    monkeypatch.setattr(project_file, "__file__", str(file))


@pytest.mark.parametrize("text", ['[project]\nname = "other"\n', "", "no TOML ["])
def test_the_project_is_the_nearest_one_above(project, text):
    (project / "notebooks" / "pyproject.toml").write_text(text)
    assert project_root(project / "notebooks" / "deeper") == project == find_project(project)
    (project / "notebooks" / "pyproject.toml").write_text(NAMES)
    assert project_root(project / "notebooks" / "deeper") == project / "notebooks"


def test_outside_a_checkout_it_is_labkits_own_or_none(tmp_path, monkeypatch, request):
    assert find_project(tmp_path) == own_checkout() == Path(project_file.__file__).parents[2]
    request.getfixturevalue("installed_elsewhere")
    with pytest.raises(InputError, match="Change into the cloned project"):
        find_project(tmp_path)


def test_an_installed_copy_prepares_the_data_of_the_users_checkout(
    project, installed_elsewhere, monkeypatch
):
    (project / "data_scripts").mkdir()
    (project / "data_scripts" / "mnist.py").write_text("import sys\nsys.exit('the script')\n")
    monkeypatch.chdir(project / "notebooks")
    with pytest.raises(InputError, match="^the script$"):
        prepare.prepare("mnist")
    monkeypatch.chdir("/")
    with pytest.raises(InputError, match="^mnist cannot be prepared: .*the cloned project"):
        prepare.prepare("mnist")
