"""The MNIST script: verified files or none, from every source."""

import gzip
import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest

from labkit.errors import InputError
from tests.support.data_archives import SCRIPTS, load, tar, tree, tree_sums, write_set
from tests.support.image_files import store

PUBLISHED_MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
TEST_LABELS = "t10k-labels-idx1-ubyte"


@pytest.fixture
def script():
    return load("mnist")


def write_small(folder: Path, seed: int = 0, suffix: str = "") -> Path:
    """Store 40 and 20 images with MNIST's structure in a single folder."""
    random = np.random.default_rng(seed)
    for usage, count in (("train", 40), ("test", 20)):
        images = random.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        write_set(folder, usage, images, random.integers(0, 10, count, dtype=np.uint8), suffix)
    return folder


@pytest.fixture
def small(tmp_path):
    return write_small(tmp_path / "own")


def installed(script, folder) -> dict[str, bytes]:
    return {f"{usage}/{name}": (folder / name).read_bytes() for name, usage in script.FILES.items()}


def test_bundled_files_are_the_published_ones(script):
    bundled = SCRIPTS / "bundled" / "mnist"
    readme = (bundled / "README.md").read_text(encoding="utf-8")
    for name, md5 in PUBLISHED_MD5.items():
        packed = (bundled / f"{name}.gz").read_bytes()
        content = gzip.decompress(packed)
        assert hashlib.md5(content).hexdigest() == md5
        sha256 = hashlib.sha256(content).hexdigest()
        assert script.DATASETS["mnist"]["sha256"][name] == sha256
        for stated in (md5, sha256, hashlib.sha256(packed).hexdigest()):
            assert stated in readme
    assert "CC BY-SA 3.0" in readme and "LeCun" in readme


def test_bundled_data_is_prepared_in_the_tutorials_layout(script, mnist):
    known = script.DATASETS["mnist"]["sha256"]
    expected = {f"{folder}/{name}": known[name] for name, folder in script.FILES.items()}
    assert tree_sums(mnist) == expected and mnist.name == "MNIST_Data"
    before, lines = [path.stat().st_mtime_ns for path in mnist.rglob("*")], []
    script.prepare(out=mnist, say=lines.append)
    assert "already, verified" in lines[0]
    assert [path.stat().st_mtime_ns for path in mnist.rglob("*")] == before


def test_other_data_is_never_overwritten_and_missing_files_are_made_again(script, small, tmp_path):
    out = script.prepare("mnist", small, tmp_path / "out")
    whole = installed(script, small)
    (out / "test" / TEST_LABELS).unlink()
    assert tree(script.prepare("mnist", small, out)) == whole
    for source in ("bundled", write_small(tmp_path / "other", seed=1)):
        with pytest.raises(InputError, match="holds other data .*Remove it, or choose"):
            script.prepare("mnist", source, out)
    assert tree(out) == whole


@pytest.mark.parametrize(("kind", "suffix"), [("folder", ".gz"), ("zip", ""), ("gztar", "")])
def test_own_folders_and_archives_are_taken(script, small, tmp_path, kind, suffix):
    source, lines = write_small(tmp_path / "data" / "deep", suffix=suffix).parent, []
    if kind != "folder":
        source = Path(shutil.make_archive(str(tmp_path / "mine"), kind, source))
    out = script.prepare("mnist", source, tmp_path / "x" / "out", lines.append)
    assert tree(out) == installed(script, small)
    assert sum("is not that of the official MNIST" in line for line in lines) == 4


def test_equal_copies_and_dotted_names_are_taken_and_others_refused(script, small, tmp_path):
    """A popular archive holds each file twice: in a folder of its name, and with a dot."""
    twice = tmp_path / "twice"
    for name in script.FILES:
        store(twice / name, {name: (small / name).read_bytes()})
        shutil.copy(small / name, twice / name.replace("-idx", ".idx"))
    archive = Path(shutil.make_archive(str(tmp_path / "archive"), "zip", twice))
    assert tree(script.prepare("mnist", archive, tmp_path / "out")) == installed(script, small)
    (twice / TEST_LABELS.replace("-idx", ".idx")).write_bytes(b"other")
    with pytest.raises(InputError, match=f"expected one {TEST_LABELS}, got t10k.*, t10k"):
        script.prepare("mnist", twice, tmp_path / "out")


def test_a_bad_source_is_refused_and_nothing_is_written(script, small, tmp_path):
    (small / TEST_LABELS).write_bytes(b"\0\0\x08\x01\0\0\0\x13" + bytes(19))
    (tmp_path / "mine.tar").write_bytes(tar([("../outside", b"x")]))
    (tmp_path / "text").write_text("x")
    before = sorted(tmp_path.iterdir())
    for name, message in (
        ("own", "own: t10k-images.* has 20 images.*19 labels"),
        ("mine.tar", "mine.tar"),  # a member cannot leave the folder
        ("text", "text is not a whole archive"),
    ):
        with pytest.raises(InputError, match=message):
            script.prepare("mnist", tmp_path / name, tmp_path / "new" / "out")
    assert sorted(tmp_path.iterdir()) == before


def test_mirrors_and_archives_are_taken_by_their_address(script, small, tmp_path, monkeypatch):
    packed = write_small(tmp_path / "served", suffix=".gz")
    shutil.make_archive(str(packed / "MNIST_Data"), "zip", small)
    # urllib reads a file: address like any other.
    monkeypatch.setattr(script, "is_address", lambda text: str(text).startswith("file:"))
    known = script.DATASETS["mnist"]
    script.DATASETS["mnist"] = known | {"sources": {"download": packed.as_uri()}}
    with pytest.raises(InputError, match="SHA-256 .*; expected ba891046e6505d7a"):
        script.prepare("mnist", "download", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    script.DATASETS["mnist"]["sha256"] = tree_sums(small)
    for number, source in enumerate(("download", f"{packed.as_uri()}/MNIST_Data.zip")):
        out = script.prepare("mnist", source, tmp_path / str(number))
        assert tree(out) == installed(script, small)
    (packed / f"{TEST_LABELS}.gz").unlink()
    with pytest.raises(InputError, match="cannot be downloaded .* give --source a folder"):
        script.prepare("mnist", "download", tmp_path / "out")


COMMANDS = {
    "mnist --dataset fashon-mnist": "Did you mean 'fashion-mnist'?",
    "mnist --source bundeld": "Did you mean 'bundled'?",
    "cifar10 --dataset cifar-10": "unknown dataset 'cifar-10'; expected one of",
    "cifar10 --source downlod": "Did you mean 'download'?",
    "imagenet": "needs an account",
    "imagenet --source x": "x holds no ILSVRC2012_img_train.tar",
    "imagenet --source x --only trian": "Did you mean 'train'?",
    "color_digits --train 15": "train: expected a multiple of 10",
    "color_digits --size 15": "size: expected an integer >= 16 and <= 512, got 15",
    "color_digits --val 8930": "val: expected an integer >= 10 and <= 8920, got 8930",
}


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_ends_with_2_and_a_message(words, tmp_path, capsys):
    name, *arguments = words.split()
    assert load(name).main([*arguments, "--out", str(tmp_path / "new")]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"{name}.py: ") and COMMANDS[words] in said
    assert not (tmp_path / "new").exists()
