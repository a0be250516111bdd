"""Rows in memory and in a CSV file: to the last bit, and whatever a kill or a power cut leaves."""

import math

import pytest

from labkit.errors import InputError
from labkit.training.records import Records, read_records

ROWS = [
    {"update": 1, "loss": 0.1 + 0.2, "rate": 1e-30},
    {"update": 2, "loss": math.inf, "rate": 2.0**-1074},
    {"update": 3, "loss": -0.5, "rate": 3.0},
]


def filled(path):
    records = Records(path)
    for row in ROWS:
        records.add(**row)
    return records


def test_other_columns_are_refused_and_leave_no_trace(tmp_path):
    records = filled(tmp_path / "records.csv")
    with pytest.raises(InputError, match="columns of a row: expected"):
        records.add(update=4, loss=1.0)
    rows = read_records(tmp_path / "records.csv").rows
    assert rows == records.rows == ROWS  # to the last bit
    assert [type(value) for value in rows[0].values()] == [int, float, float]


# name -> (function: bytes of the file -> bytes after a kill or a power cut, rows that are left)
HARM = {
    "nothing": (lambda data: data, 3),
    "a line cut short": (lambda data: data[:-1], 2),
    "half a line": (lambda data: data[: data.index(b"\n2") + 3], 1),
    "zeros": (lambda data: data[: data.index(b"\n2") + 1] + bytes(20) + b"\n", 1),
    "all": (lambda data: b"", 0),
}


@pytest.mark.parametrize("name", HARM)
def test_rows_go_on_after_those_that_are_left(tmp_path, name):
    """The checkpoint had two rows."""
    path = tmp_path / "records.csv"
    filled(path)
    harm, left = HARM[name]
    path.write_bytes(harm(path.read_bytes()))
    assert read_records(path).rows == ROWS[:left]
    records = Records(path)
    records.go_on_from(2)
    assert records.rows == ROWS[: min(left, 2)]
    records.add(**ROWS[2])
    assert read_records(path).rows == [*ROWS[: min(left, 2)], ROWS[2]]


def test_shown_in_one_line():
    records = Records()
    assert repr(records) == "Records(0 rows)"
    for row in ROWS:
        records.add(**row)
    records.dropped = 2
    expected = "Records(3 rows, the last: update=3, loss=-0.5, rate=3, 2 micro-batches dropped)"
    assert repr(records) == expected
