"""Files from others are read with limits, and without waiting."""

import json
import os

import pytest

from labkit.base.input_files import parse_json, read_bytes, read_json, read_text, usable_name
from labkit.errors import InputError


@pytest.mark.parametrize("kind", ["fifo", "/dev/zero", "/dev/null", "folder"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, kind):
    path = tmp_path / "file"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(kind)
    with pytest.raises(InputError, match="expected a regular file"):
        read_bytes(path)


def test_a_link_to_a_file_is_read_and_a_missing_one_says_so(tmp_path):
    (tmp_path / "a").write_text("x\r\ny")
    (tmp_path / "b").symlink_to("a")
    assert read_text(tmp_path / "b") == "x\ny"
    with pytest.raises(FileNotFoundError):
        read_text(tmp_path / "c")
    with pytest.raises(InputError, match="not a file name"):
        read_text(f"{tmp_path}/\0")
    for path in (None, 3, b"a"):
        with pytest.raises(InputError, match="path: expected a path, got"):
            read_text(path)


def test_the_limit_is_exact_and_what_is_no_utf_8_refused(tmp_path):
    (tmp_path / "a").write_bytes(b"{}\xff")
    assert read_bytes(tmp_path / "a", 3) == b"{}\xff"
    with pytest.raises(InputError, match="more than 2 bytes"):
        read_bytes(tmp_path / "a", 2)
    with pytest.raises(InputError, match="not UTF-8 text"):
        read_json(tmp_path / "a")


@pytest.mark.parametrize(
    "text, expected",
    [
        ("[" * 100_000, "levels"),
        ("[" * 101 + "]" * 101, "levels"),
        ('{"a":' * 900 + "1" + "}" * 900, "levels"),
        ("9" * 5000, "not JSON"),
        ("", "not JSON"),
        ("[" + "1," * 2_000_001 + "1]", "at most 2000000 values, got 200000"),
    ],
)
def test_json_with_no_end_of_it_is_refused(text, expected):
    with pytest.raises(InputError, match=expected):
        parse_json(text)


def test_json_within_the_limits_is_what_the_standard_library_reads():
    """The exception is half of a surrogate pair, which becomes the replacement character."""
    deep = "[" * 100 + "]" * 100
    assert parse_json(deep) == json.loads(deep)
    value = parse_json('{"\\ud800": [1e999, "a\\udfffb", "\\ud83d\\ude00", "\\\\ud800"]}')
    assert value == {"\ufffd": [float("inf"), "a\ufffdb", "😀", "\\ud800"]}


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "\0", "x" * 256, "é" * 128, "\ud800", 1])
def test_names_that_a_folder_can_hold_and_not(name):
    assert not usable_name(name)
    assert usable_name("x" * 255) and usable_name("é" * 127)
