"""A run's inputs change when, and only when, something that decides its outputs does."""

import copy
import os
import tracemalloc

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from labkit.errors import InputError
from labkit.tools.running import digests


@pytest.fixture
def project(tmp_path):
    for name in ("labkit/nets/lenet.py", "labkit/tools/running/runner.py", "labkit/tools/cli.py",
                 "data_scripts/mnist.py", "notebooks/data/train/0/a.png"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    return tmp_path


def of(project, notebook=None, preset="smoke", device="auto", **parameters):
    notebook = notebook or new_notebook(cells=[new_code_cell("1 + 1", id="a")])
    return digests.of_run(project, nbformat.from_dict(notebook), preset, device, parameters)


def test_the_same_inputs_are_the_same(project):
    both = of(project, rate=0.1, data="data"), of(project, data="data", rate=0.1)
    assert digests.changed(*both) == []


@pytest.mark.parametrize(
    ("path", "kinds"),
    [
        ("labkit/nets/lenet.py", ["labkit"]),
        ("data_scripts/mnist.py", ["data"]),
        ("notebooks/data/train/0/a.png", ["parameters"]),
        ("notebooks/data/train/0/b.png", ["parameters"]),
        # Code that starts labs or shows their results is in none of their digests.
        ("labkit/tools/running/runner.py", []),
        ("labkit/tools/cli.py", []),
        ("labkit/__pycache__/a.pyc", []),
        ("labkit/.hidden", []),
    ],
)
def test_a_changed_file_is_of_its_kind(project, path, kinds):
    before = of(project, data="data")
    (project / path).parent.mkdir(exist_ok=True)
    (project / path).write_text("22")
    assert digests.changed(before, of(project, data="data")) == kinds


def test_bytes_count_with_the_name_of_their_file(project):
    left, right = (project / "labkit/nets" / name for name in ("lenet.py", "resnet.py"))
    right.write_text("2")
    before = of(project)
    left.write_text("2")
    right.write_text("1")
    assert digests.changed(before, of(project)) == ["labkit"]


@pytest.mark.parametrize(
    "asked", [{"preset": "lab"}, {"device": "CPU"}, {"rate": 0.2}, {"rate": None}, {"seed": 1}]
)
def test_what_was_asked_for_counts(project, asked):
    assert digests.changed(of(project, rate=0.1), of(project, **{"rate": 0.1, **asked})) == [
        "parameters"
    ]


def test_outputs_do_not_count_and_sources_do(project):
    notebook = new_notebook(cells=[new_code_cell("1 + 1", id="a")])
    executed = copy.deepcopy(notebook)
    executed.cells[0].execution_count = 7
    assert of(project, notebook) == of(project, executed)
    executed.cells[0].source = "1 + 2"
    assert digests.changed(of(project, notebook), of(project, executed)) == ["notebook"]


def test_another_version_of_a_package_counts(project, monkeypatch):
    before = of(project)
    monkeypatch.setattr(digests, "installed_version", lambda name: "9.9" + name)
    assert digests.changed(before, of(project)) == ["versions"]


class TestPlaces:
    def test_a_text_that_is_no_path_of_anything_is_a_text(self, tmp_path):
        for value in ("~nobody/x", "x" * 300, "a\0b", "nowhere", "/proc/1/fd/x"):
            assert digests._listing(value, tmp_path) == []

    def test_names_sizes_and_times_count_and_nothing_else(self, tmp_path):
        (tmp_path / "data" / "a").mkdir(parents=True)
        file = tmp_path / "data" / "a" / "1"
        file.write_text("one")
        os.mkfifo(tmp_path / "data" / "pipe")
        (tmp_path / "data" / "circle").symlink_to(tmp_path / "data")
        listings = [digests._listing("data", tmp_path)]
        assert digests._listing("data", tmp_path) == listings[0]
        for change in (
            lambda: file.write_text("two!"),
            lambda: os.utime(file, ns=(1, 1)),
            lambda: file.rename(file.with_name("2")),
            lambda: (tmp_path / "data" / "3").write_text(""),
        ):
            change()
            listings.append(digests._listing("data", tmp_path))
        assert len({listing[0] for listing in listings}) == len(listings)
        assert digests._listing("data/3", tmp_path) != digests._listing("data/a/2", tmp_path)

    def test_many_files_take_little_memory(self, tmp_path):
        for number in range(2000):
            (tmp_path / f"image_{number:06d}.jpg").touch()
        tracemalloc.start()
        digests._listing(str(tmp_path), tmp_path)
        taken = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert taken < 300_000  # a list of the files took 1100 bytes per file

    def test_more_files_than_any_data_set_has_are_refused(self, tmp_path, monkeypatch):
        monkeypatch.setattr(digests, "_MOST_FILES", 2)
        for name in "ab":
            (tmp_path / name).touch()
        digests._listing(".", tmp_path)
        (tmp_path / "c").touch()
        with pytest.raises(InputError, match="more than 2 files"):
            digests._listing(".", tmp_path)
