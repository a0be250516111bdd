"""The MNIST script: verified files or none, from every source."""

import dataclasses
import errno
import gzip
import hashlib
import os
import shutil
from pathlib import Path

import pytest

from labkit.errors import InputError
from tests.support.data_archives import SCRIPTS, load, pack, served, tree
from tests.support.data_worlds import Mnist, times, tree_sums, write_mnist

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
PUBLISHED_MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}


@pytest.fixture
def script():
    return load("mnist")


@pytest.fixture
def small(tmp_path):
    return Mnist(tmp_path / "own")


# ---- the bundled files


def test_bundled_files_are_the_published_ones(script):
    bundled = SCRIPTS / "bundled" / "mnist"
    readme = (bundled / "README.md").read_text(encoding="utf-8")
    for name, md5 in PUBLISHED_MD5.items():
        packed = (bundled / f"{name}.gz").read_bytes()
        content = gzip.decompress(packed)
        assert hashlib.md5(content).hexdigest() == md5
        sha256 = hashlib.sha256(content).hexdigest()
        assert script.DATASETS["mnist"].sha256[name] == sha256
        for stated in (md5, sha256, hashlib.sha256(packed).hexdigest()):
            assert stated in readme
    assert "CC BY-SA 3.0" in readme and "LeCun" in readme


def test_bundled_data_is_prepared_in_the_tutorials_layout(script, mnist):
    known = script.DATASETS["mnist"].sha256
    expected = {f"{folder}/{name}": known[name] for name, folder in script.FILES.items()}
    assert tree_sums(mnist) == expected and mnist.name == "MNIST_Data"
    before, lines = times(mnist), []
    script.prepare(out=mnist, say=lines.append)
    assert "already, verified" in lines[0] and times(mnist) == before
    for name, folder in script.FILES.items():
        path = mnist / folder / name
        assert f"  {path}  {path.stat().st_size} bytes  SHA-256 {known[name]}" in lines


def test_a_file_that_cannot_be_read_is_not_replaced(small, tmp_path, monkeypatch):
    (tmp_path / "pipe" / "train").mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe" / "train" / "train-images-idx3-ubyte")
    with pytest.raises(
        InputError, match="train-images-idx3-ubyte: expected a regular file, got a pipe"
    ):
        small.prepare(tmp_path / "pipe")
    out = small.prepare(tmp_path / "out")
    opened = small.script.open_file

    def refuse(path):
        if path.parent == out / "train":
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path)

    monkeypatch.setattr(small.script, "open_file", refuse)
    with pytest.raises(InputError, match=r"cannot be read \(Permission denied\). Remove it"):
        small.prepare(out)


def test_other_data_is_never_overwritten(small, mnist, tmp_path):
    out = small.prepare(tmp_path / "out")
    for source in ("bundled", write_mnist(tmp_path / "other", seed=1)):
        with pytest.raises(InputError, match="holds other data .* Remove it, or choose"):
            small.prepare(out, source)
    assert tree(out) == small.installed()
    # If own files are requested, official ones in their place are not accepted.
    before = tree_sums(mnist)
    with pytest.raises(InputError, match="holds other data"):
        small.prepare(mnist)
    assert tree_sums(mnist) == before


# ---- own files


@pytest.mark.parametrize(
    ("kind", "suffix"), [("folder", ".gz"), ("zip", ""), ("tar.gz", ""), ("tar", ".gz")]
)
def test_own_folders_and_archives_are_taken(small, tmp_path, kind, suffix):
    files = write_mnist(tmp_path / "data", suffix=suffix).iterdir()
    placed = [(f"a/../../{path.name}", path.read_bytes()) for path in files]
    source, lines = pack(kind, tmp_path / f"files.{kind}", placed), []
    out = small.prepare(tmp_path / "x" / "out", source, lines.append)
    assert tree(out) == small.installed()
    assert not (tmp_path / "train-images-idx3-ubyte").exists()
    warnings = [line for line in lines if line.startswith("warning: ")]
    assert len(warnings) == 4
    assert all("is not that of the official MNIST" in line for line in warnings)


def test_official_files_from_a_folder_bring_no_warning(script, mnist, tmp_path):
    lines = []
    script.prepare(source=mnist, out=tmp_path / "out", say=lines.append)
    assert not any("warning" in line for line in lines)
    with pytest.raises(InputError, match="this is MNIST; expected Fashion-MNIST, or --dataset mn"):
        script.prepare("fashion-mnist", source=mnist, out=tmp_path / "fashion")


TEST_LABELS = "t10k-labels-idx1-ubyte"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        # One fault of a file; data/test_idx.py tests the others.
        (b"\0\0\x08\x01\0\0\0\x13" + bytes(19), "20 images.*19 labels"),
        (None, "holds no t10k-labels-idx1-ubyte"),
    ],
)
def test_a_bad_source_is_refused_and_nothing_is_written(small, tmp_path, content, message):
    (small.source / TEST_LABELS).unlink()
    if content is not None:
        (small.source / TEST_LABELS).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        small.prepare(tmp_path / "new" / "out")
    assert str(small.source) in str(caught.value) and ".part-" not in str(caught.value)
    assert not (tmp_path / "new").exists()


def given_sources(script, dataset, **sources):
    """Make the script use other places as official sources."""
    known = script.DATASETS[dataset]
    script.DATASETS[dataset] = dataclasses.replace(known, sources=known.sources | sources)


def test_bundled_files_must_match_to_the_bit(small, tmp_path):
    given_sources(small.script, "mnist", bundled=str(small.source))
    with pytest.raises(InputError, match="SHA-256 .*; expected ba891046e6505d7a"):
        small.script.prepare(out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


# ---- download


@pytest.fixture
def server(small, tmp_path):
    """A server of the small set, which the script takes for the official one."""
    packed = write_mnist(tmp_path / "served", suffix=".gz")
    with served({path.name: path.read_bytes() for path in packed.iterdir()}) as server:
        small.be_official(server.address)
        yield server


def test_mirrors_and_archives_are_taken_by_their_address(small, server, tmp_path):
    lines = []
    out = small.prepare(tmp_path / "a", "download", lines.append)
    assert sum(line.startswith("downloading http://127.0.0.1") for line in lines) == 4
    shutil.make_archive(str(tmp_path / "MNIST_Data"), "zip", small.source)
    server.files["MNIST_Data.zip"] = (tmp_path / "MNIST_Data.zip").read_bytes()
    small.prepare(tmp_path / "b", f"{server.address}/MNIST_Data.zip")
    assert tree(out) == tree(tmp_path / "b") == small.installed()


@pytest.mark.parametrize("fault", ["checksum", "missing", "limit"])
def test_a_bad_download_is_refused(small, server, tmp_path, monkeypatch, fault):
    message = "t10k-labels-idx1-ubyte: SHA-256 .*; expected"
    content = b"\0\0\x08\x01\0\0\0\x14" + bytes([3] * 20)
    server.files[f"{TEST_LABELS}.gz"] = gzip.compress(content)
    if fault == "missing":
        del server.files[f"{TEST_LABELS}.gz"]
        message = "cannot be downloaded .*404.* give --source a folder"
    if fault == "limit":
        monkeypatch.setattr(small.script, "MAX_DOWNLOAD", 10)
        message = "more than the 10 bytes expected"
    for source in ("download", server.address):  # a mirror must hold the official files too
        with pytest.raises(InputError, match=message):
            small.prepare(tmp_path / "out", source)
    assert not (tmp_path / "out").exists()


# ---- Fashion-MNIST as Debian packages it


@pytest.mark.skipif(not DEBIAN.is_dir(), reason="package dataset-fashion-mnist is not installed")
def test_the_packaged_fashion_mnist_is_the_official_one(script, tmp_path):
    out = script.prepare("fashion-mnist", "debian", tmp_path / "out")
    known = script.DATASETS["fashion-mnist"].sha256
    assert tree_sums(out) == {f"{folder}/{n}": known[n] for n, folder in script.FILES.items()}


def test_the_package_that_is_not_installed_is_named(script, tmp_path):
    given_sources(script, "fashion-mnist", debian=str(tmp_path / "absent"))
    with pytest.raises(InputError, match="apt-get install dataset-fashion-mnist"):
        script.prepare("fashion-mnist", "debian", tmp_path / "out")
