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


def filled(path=None, rows=ROWS):
    records = Records(path)
    for row in rows:
        records.add(**row)
    return records


def test_what_is_written_is_read_back_to_the_last_bit(tmp_path):
    filled(tmp_path / "records.csv").close()
    rows = read_records(tmp_path / "records.csv").rows
    assert rows == ROWS
    assert [type(value) for value in rows[0].values()] == [int, float, float]


def test_other_columns_are_refused_and_leave_no_trace(tmp_path):
    records = filled(tmp_path / "records.csv")
    with pytest.raises(InputError, match="columns of a row: expected"):
        records.add(update=4, loss=1.0)
    records.close()
    assert read_records(tmp_path / "records.csv").rows == records.rows == ROWS


@pytest.mark.parametrize("cut", [1, 5, 11])
def test_a_line_cut_short_by_a_kill_is_left_out(tmp_path, cut):
    path = tmp_path / "records.csv"
    filled(path).close()
    path.write_bytes(path.read_bytes()[:-cut])
    assert read_records(path).rows == ROWS[:2]


@pytest.mark.parametrize("line", ["1,two,3.0", "1,2.0", "1,2.0,3.0,4.0"])
def test_a_row_that_is_not_numbers_is_refused_with_its_line(tmp_path, line):
    path = tmp_path / "records.csv"
    path.write_text(f"update,loss,rate\n1,2.0,3.0\n{line}\n")
    with pytest.raises(InputError, match=r"records.csv, line 3: expected a number in each column"):
        read_records(path)


# name -> (function: bytes of the file -> bytes after a power cut, rows that are left)
POWER_CUTS = {
    "nothing": (lambda data: data, 2),
    "the end": (lambda data: data[: data.index(b"\n2") + 3], 1),
    "zeros": (lambda data: data[: data.index(b"\n2") + 1] + bytes(20), 1),
    "zeros and a line": (lambda data: data[: data.index(b"\n2") + 1] + bytes(20) + b"\n", 1),
    "all": (lambda data: b"", 0),
}


@pytest.mark.parametrize("name", POWER_CUTS)
def test_rows_go_on_after_those_that_are_left(tmp_path, capsys, name):
    """The checkpoint had two rows, the file three; what is missing of the two is printed."""
    path = tmp_path / "records.csv"
    filled(path).close()
    harm, left = POWER_CUTS[name]
    path.write_bytes(harm(path.read_bytes()))
    records = Records(path)
    records.go_on_from(2)
    assert records.rows == ROWS[:left]
    missing = f"lacks rows {left + 1} to 2 of those written before the checkpoint"
    assert (missing in capsys.readouterr().out) == (left < 2)
    records.add(**ROWS[2])
    records.close()
    assert read_records(path).rows == [*ROWS[:left], ROWS[2]]
