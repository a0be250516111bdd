"""Links and special files in the folder of a run are not followed: they are refused by name."""

import os

import pytest

from labkit.base.files import refuse_links
from labkit.errors import InputError
from labkit.labs.run import Run
from labkit.tools.reports import live, page
from labkit.tools.reports.read import read, read_all
from labkit.tools.running import folders as run_folders
from tests.reports import folders

NAMES = ("results.json", "records.csv", "log.txt", "kernel.log", f"{folders.LAB}.ipynb",
         "figures/loss.png", "figures", "checkpoint/step-000000001.ckpt", "checkpoint",
         "deep/er/x", ".lock", "report_notebooks")  # fmt: skip


@pytest.fixture
def outside(tmp_path):
    place = tmp_path / "outside"
    place.write_text("a secret")
    return place


def plant(run, name, outside, kind):
    place = run / folders.LAB / name
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_dir():
        for one in place.iterdir():
            one.unlink()
        place.rmdir()
    place.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to({"link": outside, "folder": outside.parent, "gone": "/nowhere"}[kind])
    return place


@pytest.mark.parametrize("kind", ["link", "folder", "gone", "pipe"])
@pytest.mark.parametrize("name", NAMES)
def test_every_door_refuses_them_by_name(tmp_path, outside, name, kind):
    run = folders.write_run(tmp_path / "run")
    (run / "run.json").write_text(
        '{"labs": [], "preset": "smoke", "device": "CPU", "parameters": {}}'
    )
    assert run_folders.read_run(run)["preset"] == "smoke"
    place = plant(run, name, outside, kind)
    words = "is no ordinary file" if kind == "pipe" else "is a link; expected ordinary files"
    for door in (read, lambda run: read_all([run, tmp_path]), live.look, run_folders.read_run,
                 lambda run: page.write([run], tmp_path / "page.html")):  # fmt: skip
        with pytest.raises(InputError, match=words) as caught:
            door(run)
        assert str(place) in str(caught.value)
    assert outside.read_text() == "a secret" and not (tmp_path / "page.html").exists()
    place.unlink()
    read(run)


def test_the_folder_itself_may_be_a_link(tmp_path):
    run = folders.write_run(tmp_path / "run")
    (tmp_path / "latest").symlink_to(run)
    assert read(tmp_path / "latest").folder == run
    refuse_links(tmp_path / "latest")
    refuse_links(tmp_path / "none")


def test_a_report_is_not_written_through_a_link(tmp_path):
    run = folders.write_run(tmp_path / "run")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "page_notebooks").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="page_notebooks is a link; expected a folder"):
        page.write([run], tmp_path / "page.html")
    assert not any((tmp_path / "elsewhere").iterdir()) and not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("given", [False, True])
def test_runs_may_be_a_link_to_another_disk(tmp_path, monkeypatch, given):
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("labkit.labs.run.project_root", lambda: tmp_path)
    monkeypatch.delenv("LABKIT_RUN", raising=False)
    if given:
        monkeypatch.setenv("LABKIT_RUN", "runs/mine")
    run = Run.open("lab", preset="smoke", parameters={})
    run.path("figures/a.png").write_bytes(b"x")
    assert list((tmp_path / "disk").glob("*/figures/a.png"))
    for name in ("../x", "/etc/x", "", "."):
        with pytest.raises(InputError, match="is not the name of a file inside"):
            run.path(name)
    (run.folder / "out").symlink_to(tmp_path)
    with pytest.raises(InputError, match="is not the name of a file inside"):
        run.path("out/x")
