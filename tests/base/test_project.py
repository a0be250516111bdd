"""Which checkout is meant, and its version."""

from pathlib import Path

import pytest

from labkit.base import project as project_file
from labkit.base.project import find_project, own_checkout, project_root, version
from labkit.errors import InputError


@pytest.fixture
def project(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "mindspore-labs"\n')
    (tmp_path / "notebooks").mkdir()
    return tmp_path


@pytest.fixture
def installed_elsewhere(tmp_path, monkeypatch):
    """labkit as installed by pip: its own files are not in a checkout."""
    file = tmp_path / "site-packages" / "labkit" / "base" / "project.py"
    monkeypatch.setattr(project_file, "__file__", str(file))


@pytest.mark.parametrize("text", ['[project]\nname = "mindspore"\n', "not toml", ""])
def test_the_project_is_the_nearest_one_above(project, text):
    inner = project / "a" / "b"
    inner.mkdir(parents=True)
    (inner.parent / "pyproject.toml").write_text(text)
    assert project_root(inner) == find_project(inner) == project


def test_elsewhere_it_is_the_checkout_that_labkit_is_imported_from(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_project() == own_checkout() == root
    assert version() in (root / "pyproject.toml").read_text()


def test_outside_of_a_checkout_it_says_what_to_do(tmp_path, installed_elsewhere):
    with pytest.raises(InputError, match="no labs here: .* Change into the cloned project first"):
        find_project(Path(tmp_path))
    assert own_checkout() is None
