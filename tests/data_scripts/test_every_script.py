"""All data scripts write whole units or none, do nothing twice and touch nothing of others."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from labkit.errors import InputError
from tests.support.data_archives import SCRIPTS, load, ranges, served, tree
from tests.support.data_worlds import WORLDS, Cifar, ImageNet, Mnist, killed, times

# Place, function and call at which the script is killed, and the units that are complete then.
KILLS = [
    ("cifar10", Path, "write_bytes", 5, 0),
    ("cifar10", Path, "write_bytes", 45, 2),
    ("cifar10", os, "replace", 2, 1),
    ("cifar10", os, "rename", 6, 5),
    ("own images", Path, "write_bytes", 45, 0),  # all are checked before the first appears
    ("own images", os, "rename", 1, 0),
    ("own images", os, "rename", 6, 5),
    ("imagenet", os, "replace", 1, 0),
    ("imagenet", os, "replace", 4, 0),
    ("imagenet", os, "rename", 3, 2),
    ("imagenet", os, "rename", 6, 5),
    ("mnist", os, "replace", 1, 0),
    ("mnist", os, "replace", 4, 3),
    ("color digits", Path, "mkdir", 9, 0),
    ("color digits", os, "rename", 1, 0),
]


@pytest.fixture
def world(request, tmp_path):
    return WORLDS[request.param](tmp_path / "source")


def every(*names):
    return pytest.mark.parametrize("world", names or list(WORLDS), indirect=True)


def data(folder) -> dict[str, bytes]:
    """Return the files without the manifest, which holds times and places."""
    return {name: content for name, content in tree(folder).items() if name != "manifest.json"}


def units(files: dict, world) -> set[str]:
    """Return what appears whole: class folders, or MNIST's files."""
    if isinstance(world, Mnist):
        return set(files)
    return {name.rpartition("/")[0] for name in files}


def refused(world, out, message, **options) -> str:
    """Return the message of a refusal; only the state of an archive may be written."""

    def held():
        return {n: c for n, c in tree(out.parent).items() if not n.endswith("manifest.json")}

    before = held()
    with pytest.raises(InputError, match=message) as caught:
        world.prepare(out, **options)
    assert held() == before and ".part-" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("world", "place", "point", "count", "complete"), KILLS, indirect=["world"]
)
def test_killed_at_any_moment_leaves_whole_units(world, tmp_path, place, point, count, complete):
    whole, out = data(world.prepare(tmp_path / "whole")), tmp_path / "data" / "out"
    killed(place, point, count, lambda: world.prepare(out))
    left = data(out)
    assert left.items() <= whole.items() and len(units(left, world)) == complete
    for unit in units(left, world):
        assert {n for n in left if n.startswith(unit)} == {n for n in whole if n.startswith(unit)}
    assert list(out.parent.rglob(".part-*")), "the kill came before anything was written"
    world.prepare(out)
    assert data(out) == whole and not list(out.parent.rglob(".part-*"))
    assert not list(out.parent.rglob(".lock"))


@every("cifar10", "imagenet", "color digits")
def test_a_second_call_needs_no_source_and_writes_nothing(world, tmp_path):
    out = world.prepare(tmp_path / "out")
    before, lines = times(out), []
    source = {"source": "download"} if isinstance(world, Cifar) else {}
    if isinstance(world, ImageNet):
        shutil.rmtree(world.source)
    world.prepare(out, say=lines.append, **source)
    assert "already" in lines[0] and times(out) == before


@every("own images", "mnist")
def test_the_same_files_of_ones_own_are_no_conflict(world, tmp_path):
    whole = data(world.prepare(tmp_path / "out"))
    world.prepare(tmp_path / "out")
    assert data(tmp_path / "out") == whole


@every("cifar10", "own images", "imagenet", "mnist")
@pytest.mark.parametrize("damage", ["cut", "missing", "unit missing"])
def test_what_is_damaged_is_made_again(world, tmp_path, damage):
    out, lines = world.prepare(tmp_path / "out"), []
    whole = data(out)
    name = sorted(whole)[-1]
    if damage == "cut":
        (out / name).write_bytes(whole[name][:-1])
    elif damage == "missing":
        (out / name).unlink()
    else:
        shutil.rmtree((out / name).parent)
    world.prepare(out, say=lines.append)
    assert data(out) == whole
    if damage == "cut" and not type(world).__name__.endswith("Own"):
        assert any(line.startswith("replacing a damaged") for line in lines)


@pytest.mark.parametrize(
    ("world", "name", "message"),
    [
        ("cifar10", "val/cat/mine.png", "val/cat holds other data"),
        ("own images", "val/cat/mine.png", "val/cat holds other data"),
        ("imagenet", "train/n00000001/mine.JPEG", "train/n00000001 holds other data"),
        ("color digits", "mine.jpg", "holds other data .no manifest.json"),
    ],
    indirect=["world"],
)
def test_other_data_is_never_touched(world, tmp_path, name, message):
    (tmp_path / "out" / name).parent.mkdir(parents=True)
    (tmp_path / "out" / name).write_bytes(b"mine")
    refused(world, tmp_path / "out", message)


@every("cifar10", "imagenet")
@pytest.mark.parametrize("fault", ["other bit", "cut short"])
def test_another_archive_than_the_official_one_is_refused(world, tmp_path, fault):
    known = world.known
    path = world.source if isinstance(world, Cifar) else world.path("train")
    content = bytearray(path.read_bytes())
    content[4] ^= 1  # in CIFAR the time in the gzip header: the content stays intact
    path.write_bytes(content if fault == "other bit" else content[:-512])
    options = {} if isinstance(world, Cifar) else {"known": known}
    message = "SHA256 .*; expected" if fault == "other bit" else "bytes; expected|cut short"
    refused(world, tmp_path / "out", message, **options)


@every("cifar10", "own images", "imagenet")
def test_a_disk_too_small_is_refused(world, tmp_path, monkeypatch):
    room = SimpleNamespace(f_bavail=1, f_frsize=4096, f_files=0, f_favail=0)
    monkeypatch.setattr(os, "statvfs", lambda path: room)
    refused(world, tmp_path / "out", "Make room")


@pytest.mark.parametrize(
    ("world", "folder"),
    [("cifar10", "CIFAR10"), ("imagenet", "ImageNet"), ("mnist", "MNIST_Data"),
     ("color digits", "color_digits_32px_20_10")],
    indirect=["world"],
)  # fmt: skip
def test_the_default_folder_is_the_projects(world, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(world.script, "PROJECT", tmp_path / "project")
    assert world.prepare(None) == tmp_path / "project/datasets" / folder


COMMANDS = {
    ("cifar10", "--dataset", "cifar-10"): "unknown dataset 'cifar-10'; expected one of",
    ("cifar10", "--source", "downlod"): "Did you mean 'download'?",
    ("cifar10", "--source", "/absent"): "absent is not there",
    ("cifar10", "--source", "x" * 300): "xxx is not there",
    ("imagenet",): "needs an account",
    ("imagenet", "--source", "x" * 300): "xxx holds no ILSVRC2012_img_train.tar",
    ("imagenet", "--source", "x", "--only", "trian"): "Did you mean 'train'?",
    ("mnist", "--dataset", "fashon-mnist"): "Did you mean 'fashion-mnist'?",
    ("mnist", "--source", "bundeld"): "Did you mean 'bundled'?",
    ("mnist", "--source", "/absent"): "absent is not there",
    ("mnist", "--source", __file__): "is not a whole archive",
    ("mnist", "--source", "debian"): "MNIST has no source 'debian'; expected bundled, download",
    ("mnist", "--dataset", "fashion-mnist", "--source", "bundled"): "expected download, debian",
    ("color_digits", "--train", "15"): "train: expected a multiple of 10",
}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_command_ends_with_2_and_a_message(words, tmp_path, capsys):
    name, *arguments = words
    assert load(name).main([*arguments, "--out", str(tmp_path / "new")]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"{name}.py: ") and COMMANDS[words] in said
    assert not (tmp_path / "new").exists()


@every("mnist", "color digits")
def test_the_script_runs_as_a_program(world, tmp_path):
    script, out = Path(world.script.__file__), tmp_path / "out"
    source = [] if world.source is None else ["--source", world.source]
    command = [sys.executable, script, *source, "--out", out]
    if world.source is None:
        command += ["--train", "20", "--val", "10"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=SCRIPTS.parent, timeout=60)
    assert done.returncode == 0, done.stderr
    assert str(out) in done.stdout and data(out)
    command[command.index(out)] = tmp_path / "out" / "train" / "file" / "below"
    (out / "train" / "file").write_text("x")
    done = subprocess.run(command, capture_output=True, text=True, cwd=SCRIPTS.parent, timeout=60)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "expected a folder that can be written" in done.stderr


@every("cifar10", "imagenet")
def test_what_broke_off_is_downloaded_on_and_removed(world, tmp_path, monkeypatch):
    official = [world.source] if isinstance(world, Cifar) else list(world.source.iterdir())
    monkeypatch.setattr(world.script, "ATTEMPTS", 1)
    with served({path.name: path.read_bytes() for path in official}) as server:
        server.cuts = [5000]
        with pytest.raises(InputError, match="5000 bytes; expected"):
            world.prepare(tmp_path / "out", source=server.address)
        out = world.prepare(tmp_path / "out", source=server.address)
        assert ranges(server)[:2] == [None, "bytes=5000-"]
        assert len(server.asked) == len(official) + 1
        assert sorted(os.listdir(out)) == ["manifest.json", "train", "val"]
        assert json.loads((out / "manifest.json").read_text())["official"]
        assert data(out) == data(world.prepare(tmp_path / "from the file"))
        server.files.clear()
        refused(world, tmp_path / "new", "cannot be downloaded .*404", source=server.address)
        assert not (tmp_path / "new").exists()
