"""What a lab records becomes plain JSON; the end of a log is what a terminal shows."""

import math
import os
from pathlib import Path

import numpy as np
import pytest

from labkit.labs import run_files


def test_numbers_and_paths_become_plain_json():
    record = {"a": np.float32(0.5), "b": np.arange(3), "c": (math.inf, -math.inf, math.nan)}
    assert run_files.plain(record, "record") == {
        "a": 0.5,
        "b": [0, 1, 2],
        "c": ["inf", "-inf", "nan"],
    }
    name = os.fsdecode(b"caf\xe9.png")
    assert run_files.plain(Path(name), "file") == name


def test_what_json_cannot_hold_is_refused_by_its_place():
    with pytest.raises(TypeError, match=r"metrics\['a'\]\[1\]: expected numbers.*, got object"):
        run_files.plain({"a": [1, object()]}, "metrics")


def test_the_last_lines_of_a_log(tmp_path):
    log = tmp_path / "log.txt"
    log.write_text("".join(f"{number}\n\n" for number in range(50_000)))
    assert run_files.last_lines(log, 2) == ["49998", "49999"]
    log.write_bytes(b"half a letter \xc3\n0 %\r50 %\r100 %\r\n")
    assert run_files.last_lines(log, 15) == ["half a letter \ufffd", "100 %"]
    assert run_files.last_lines(tmp_path / "none", 15) == []
