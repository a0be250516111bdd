"""The IDX reader accepts what the format allows and names the fault of everything else."""

import gzip
import tracemalloc

import numpy as np
import pytest

from labkit.data import idx
from labkit.errors import InputError
from tests.support.idx_files import write_idx

IMAGES = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3)
LABELS = np.array([0, 9, 3, 3, 7], dtype=np.uint8)


def header(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(4, "big") for number in numbers)


def store(path, content: bytes):
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.fixture(params=["", ".gz"], ids=["plain", "gzip"])
def suffix(request) -> str:
    return request.param


@pytest.fixture
def pair(tmp_path, suffix):
    images = write_idx(tmp_path / f"images{suffix}", IMAGES)
    return images, write_idx(tmp_path / f"labels{suffix}", LABELS)


def test_what_is_written_is_read_back(pair):
    images, labels = idx.read_pair(*pair)
    np.testing.assert_array_equal(images, IMAGES)
    np.testing.assert_array_equal(labels, LABELS)
    assert images.dtype == labels.dtype == np.uint8
    assert idx.check_pair(*pair) == idx.check_pair(*pair, size=(4, 3)) == (5, 4, 3)
    with pytest.raises(InputError, match="images of 4 x 3; expected 28 x 28"):
        idx.check_pair(*pair, size=(28, 28))


BROKEN_IMAGES = {
    "wrong magic number": (header(2052, 5, 4, 3) + bytes(60), "magic number 2052; expected 2051"),
    "labels for images": (header(2049, 5) + bytes(60), "2049 .a file of labels.; expected 2051"),
    "count too large": (header(2051, 6, 4, 3) + bytes(60), "60.*expected 72"),
    "count too small": (header(2051, 4, 4, 3) + bytes(60), "expected 48.*header says 4 images"),
    "truncated": (header(2051, 5, 4, 3) + bytes(59), "59.*expected 60"),
    "trailing byte": (header(2051, 5, 4, 3) + bytes(61), "expected 60"),
    "no pixels": (header(2051, 5, 4, 3), "expected 60"),
    "no images": (header(2051, 0, 4, 3), "0 x 4 x 3"),
    "absurd count": (header(2051, 2**32 - 1, 4, 3) + bytes(60), "4294967295 x 4 x 3"),
    "half a header": (header(2051, 5), "8 bytes in all; expected a header of 16"),
    "empty": (b"", "0 bytes in all"),
}


BROKEN_LABELS = {
    "wrong magic number": (header(2051, 5) + bytes(5), "magic number 2051.*expected 2049"),
    "count too large": (header(2049, 6) + bytes(5), "5.*expected 6"),
    "trailing byte": (header(2049, 5) + bytes(6), "expected 5"),
    "label 10": (header(2049, 5) + bytes([0, 1, 10, 11, 2]), "label 10 at position 2 .2 such"),
    "one label too few": (header(2049, 4) + bytes(4), "5 images and .* has 4 labels"),
    "one label too many": (header(2049, 6) + bytes(6), "5 images and .* has 6 labels"),
}


@pytest.mark.parametrize(
    ("place", "fault"), [(0, fault) for fault in BROKEN_IMAGES] + [(1, f) for f in BROKEN_LABELS]
)
@pytest.mark.parametrize("read", ["read_pair", "check_pair"])
def test_a_broken_file_is_refused(tmp_path, suffix, pair, place, fault, read):
    content, message = (BROKEN_IMAGES, BROKEN_LABELS)[place][fault]
    path = store(tmp_path / f"broken{suffix}", content)
    files = (path, pair[1]) if place == 0 else (pair[0], path)
    with pytest.raises(InputError, match=message) as caught:
        getattr(idx, read)(*files)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("read", ["read_pair", "check_pair"])
@pytest.mark.parametrize("keep", [5, 30, -9, -1])
def test_gzip_cut_short_is_refused(tmp_path, keep, read):
    noise = np.random.default_rng(0).integers(0, 256, (5, 4, 3), dtype=np.uint8)
    whole = write_idx(tmp_path / "whole.gz", noise)
    labels = write_idx(tmp_path / "labels.gz", LABELS)
    cut = tmp_path / "cut.gz"
    cut.write_bytes(whole.read_bytes()[:keep])
    with pytest.raises(InputError, match="cut.gz: the gzip file is cut short or damaged"):
        getattr(idx, read)(cut, labels)


def test_gzip_content_without_its_suffix_says_so(tmp_path):
    (tmp_path / "images").write_bytes(gzip.compress(header(2051, 5, 4, 3) + bytes(60)))
    with pytest.raises(InputError, match="a gzip file; its name should end in .gz"):
        idx.read_images(tmp_path / "images")


@pytest.mark.parametrize("read", [idx.read_images, idx.read_labels])
def test_missing_file_and_folder_are_refused(tmp_path, suffix, read):
    with pytest.raises(InputError, match="No such file"):
        read(tmp_path / f"absent{suffix}")
    (tmp_path / f"folder{suffix}").mkdir()
    with pytest.raises(InputError, match="directory"):
        read(tmp_path / f"folder{suffix}")


def test_wrong_labels_are_counted_in_little_memory(tmp_path):
    # The positions of all wrong labels once took 8 bytes each: 2.6 GB for a file of 261 kB.
    path = tmp_path / "labels.gz"
    labels = np.full(6_000_000, 255, np.uint8)
    labels[:3_000_000] = 9
    write_idx(path, labels)
    tracemalloc.start()
    with pytest.raises(InputError, match=r"label 255 at position 3000000 \(3000000 such labels\)"):
        idx.read_labels(path)
    assert tracemalloc.get_traced_memory()[1] < 12e6
    tracemalloc.stop()


def test_a_file_is_in_memory_once(tmp_path):
    path = write_idx(tmp_path / "images.gz", np.zeros((10, 1000, 1000), np.uint8))
    tracemalloc.start()
    assert idx.read_images(path).shape == (10, 1000, 1000)
    assert tracemalloc.get_traced_memory()[1] < 14e6
    tracemalloc.stop()
