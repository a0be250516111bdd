"""Which checkout is meant, and its version."""

import pytest

from labkit.base import project as project_file
from labkit.base.project import find_project, own_checkout, project_root, version
from labkit.errors import InputError


@pytest.mark.parametrize("text", ['[project]\nname = "mindspore"\n', "not toml", ""])
def test_the_project_is_the_nearest_one_above(tmp_path, monkeypatch, text):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "mindspore-labs"\n')
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (inner.parent / "pyproject.toml").write_text(text)
    monkeypatch.chdir(inner)
    assert project_root() == find_project() == tmp_path


def test_elsewhere_it_is_the_checkout_that_labkit_is_imported_from(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_project() == own_checkout() == root
    assert version() in (root / "pyproject.toml").read_text()
    monkeypatch.setattr(project_file, "__file__", "/site-packages/labkit/base/project.py")
    with pytest.raises(InputError, match=f"no labs here: {tmp_path}"):
        find_project()
