"""The IDX reader accepts what the format allows and names the fault of everything else."""

import gzip

import numpy as np
import pytest

from labkit.data import idx
from labkit.errors import InputError
from tests.support.data_archives import write_idx

SIZE = 5 * 28 * 28
IMAGES = (np.arange(SIZE) % 251).astype(np.uint8).reshape(5, 28, 28)
LABELS = np.array([0, 9, 3, 3, 7], dtype=np.uint8)


def header(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(4, "big") for number in numbers)


@pytest.fixture(params=["", ".gz"], ids=["plain", "gzip"])
def pair(request, tmp_path):
    images = write_idx(tmp_path / f"images{request.param}", IMAGES)
    return images, write_idx(tmp_path / f"labels{request.param}", LABELS)


def test_what_is_written_is_read_back(pair):
    images, labels = idx.read_pair(*pair)
    np.testing.assert_array_equal(images, IMAGES)
    np.testing.assert_array_equal(labels, LABELS)
    assert images.dtype == labels.dtype == np.uint8


BROKEN = [
    (0, header(2052, 5, 28, 28) + bytes(SIZE), "magic number 2052; expected 2051"),
    (0, header(2051, 5, 28, 28) + bytes(SIZE - 1), "3919 bytes follow .* 5 x 28 x 28"),
    (0, header(2051, 5, 28, 28) + bytes(SIZE + 1), "3921 bytes follow .* 5 x 28 x 28"),
    (0, header(2051, 5, 4, 3) + bytes(60), r"images of \(4, 3\) pixels; expected \(28, 28\)"),
    (0, header(2051, 0, 28, 28), "0 bytes follow .* and at least 1"),
    (0, header(2051, 2**32 - 1, 4, 3) + bytes(60), "4294967295 x 4 x 3"),
    (0, header(2051, 5), "bytes follow the header"),
    (0, b"", "cannot be read"),
    (1, header(2051, 5, 4, 3), "magic number 2051.*expected 2049"),
    (
        1,
        header(2049, 5) + bytes([0, 1, 10, 11, 2]),
        "10 at position 2 .2 such labels",
    ),
    (1, header(2049, 4) + bytes(4), "5 images and .* has 4 labels"),
]


@pytest.mark.parametrize(("place", "content", "message"), BROKEN)
def test_a_broken_file_is_refused(pair, place, content, message):
    path = pair[place]
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    with pytest.raises(InputError, match=message) as caught:
        idx.read_pair(*pair)
    assert str(path) in str(caught.value)


def test_gzip_cut_short_and_missing_files_are_named(tmp_path):
    whole = write_idx(tmp_path / "whole.gz", IMAGES).read_bytes()
    (tmp_path / "cut.gz").write_bytes(whole[:30])
    for name in ("cut.gz", "absent"):
        with pytest.raises(InputError, match=f"{name}: cannot be read"):
            idx.read_pair(tmp_path / name, tmp_path / name)
