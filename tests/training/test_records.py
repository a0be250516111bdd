"""Rows of numbers in memory and in a CSV file."""

import os
import tracemalloc

import pytest

from labkit.errors import InputError
from labkit.training import records as records_module
from labkit.training.records import Records, read_records, read_usable

ROWS = [
    {"update": 1, "loss": 0.1, "rate": 1e-12},
    {"update": 2, "loss": 1 / 3, "rate": 2.5},
    {"update": 3, "loss": float("inf"), "rate": 0.05000000074505806},
]


def filled(path=None, rows=ROWS):
    records = Records(path)
    for row in rows:
        records.add(**row)
    records.close()
    return records


def test_what_is_written_is_read_back_to_the_last_bit(tmp_path):
    filled(tmp_path / "records.csv")
    rows = read_records(tmp_path / "records.csv").rows
    assert rows == ROWS
    assert [type(value) for value in rows[0].values()] == [int, float, float]


def test_a_row_is_in_the_file_at_once(tmp_path):
    records = Records(tmp_path / "deep" / "records.csv")
    records.add(**ROWS[0])
    assert (tmp_path / "deep" / "records.csv").read_text() == "update,loss,rate\n1,0.1,1e-12\n"
    records.close()


def test_without_a_path_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    records = filled()
    records.remove_file()
    records.keep_first(1)
    assert records.column("update") == [1] and len(records) == 1
    assert list(tmp_path.iterdir()) == []


def test_other_columns_are_refused_and_leave_no_trace(tmp_path):
    records = filled(tmp_path / "records.csv")
    for other in ({"update": 4}, {"update": 4, "loss": 1.0, "norm": 2.0}):
        with pytest.raises(InputError, match="columns of a row: expected .'update', 'loss'"):
            records.add(**other)
    assert records.rows == ROWS and read_records(tmp_path / "records.csv").rows == ROWS


@pytest.mark.parametrize("cut", [1, 5, 11])
def test_a_line_cut_short_by_a_kill_is_left_out(tmp_path, cut):
    path = tmp_path / "records.csv"
    filled(path)
    path.write_bytes(path.read_bytes()[:-cut])
    assert read_records(path).rows == ROWS[:2]


@pytest.mark.parametrize("text", ["", "upda", "update,loss,rate\n"])
def test_a_file_cut_short_before_its_first_row_holds_none(tmp_path, text):
    path = tmp_path / "records.csv"
    path.write_text(text)
    assert read_records(path).rows == []


@pytest.mark.parametrize("line", ["1,two,3.0", "1,2.0", "1,2.0,3.0,4.0", ",,", f"1,2.0,{10**300}"])
def test_a_row_that_is_not_numbers_is_refused_with_its_line(tmp_path, line):
    path = tmp_path / "records.csv"
    path.write_text(f"update,loss,rate\n1,2.0,3.0\n{line}\n")
    with pytest.raises(InputError, match="line 3: .*expected numbers"):
        read_records(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="no records at"):
        read_records(tmp_path / "none.csv")


@pytest.mark.parametrize("count", [0, 2])
def test_the_first_rows_are_kept_and_more_can_follow(tmp_path, count):
    path = tmp_path / "records.csv"
    records = filled(path)
    records.keep_first(count)
    assert read_records(path).rows == ROWS[:count] == records.rows
    records.add(**ROWS[2])
    records.close()
    assert read_records(path).rows == [*ROWS[:count], ROWS[2]]
    assert path.read_text().count("update,loss,rate") == 1
    assert [place.name for place in tmp_path.iterdir()] == ["records.csv"]


def test_a_planted_link_is_not_written_through(tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("mine")
    path = tmp_path / "run" / "records.csv"
    path.parent.mkdir()
    records = filled(path)
    (path.parent / ".records.csv.part").symlink_to(outside)
    records.keep_first(1)
    assert read_records(path).rows == ROWS[:1]
    path.unlink()
    for target in (outside, tmp_path / "missing"):
        path.symlink_to(target)
        with pytest.raises(InputError, match="cannot write the records .*records.csv"):
            Records(path).add(**ROWS[0])
        path.unlink()
    assert outside.read_text() == "mine" and not (tmp_path / "missing").exists()


def test_a_folder_or_a_pipe_in_the_place_of_the_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "folder.csv").mkdir()
    for name in ("pipe.csv", "folder.csv"):
        with pytest.raises(InputError, match=f"cannot write the records .*{name}"):
            Records(tmp_path / name).add(**ROWS[0])
    with pytest.raises(InputError, match="cannot write the records .*folder.csv"):
        Records(tmp_path / "folder.csv").keep_first(0)


def test_the_file_is_removed_once_and_a_folder_in_its_place_is_refused(tmp_path):
    place = tmp_path / "records.csv"
    place.write_text("x\n1\n")
    records = Records(place)
    records.remove_file()
    records.remove_file()
    assert not place.exists()
    place.mkdir()
    with pytest.raises(InputError, match="cannot replace the records .*records.csv: Is a dir"):
        records.remove_file()
    assert place.is_dir()


def test_a_line_without_end_takes_no_memory(tmp_path):
    """A hole takes no space on the disk; followed by a line feed, it is a damaged row."""
    path = tmp_path / "records.csv"
    filled(path, ROWS[:2])
    for end, damaged in ((b"", False), (b"\n3,3,3\n", True)):
        size = path.stat().st_size
        os.truncate(path, 200 << 20)
        with path.open("ab") as file:
            file.write(end)
        tracemalloc.start()
        rows = read_usable(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert rows == ROWS[:2] + [{"update": 3, "loss": 3, "rate": 3}] * damaged
        assert peak < 2 << 20
        if damaged:
            with pytest.raises(InputError, match="line 4: a line of more than 65536 bytes"):
                read_records(path)
        os.truncate(path, size)


def test_the_longest_line_and_one_byte_more(tmp_path):
    path = tmp_path / "records.csv"
    name = "a" * records_module._LONGEST_LINE
    path.write_text(f"{name}\n1\n")
    assert read_records(path).rows == [{name: 1}]
    path.write_text(f"{name}a\n1\n")
    assert read_usable(path) == []
    with pytest.raises(InputError, match="line 1: a line of more than 65536 bytes"):
        read_records(path)


@pytest.mark.parametrize("read", [read_records, read_usable])
def test_the_size_and_the_number_of_cells_are_limited(tmp_path, monkeypatch, read):
    path = tmp_path / "records.csv"
    filled(path)
    monkeypatch.setattr(records_module, "_CELLS", 12)
    assert len(getattr(read(path), "rows", read(path))) == 3
    monkeypatch.setattr(records_module, "_CELLS", 9)
    with pytest.raises(InputError, match="has more than 9 cells"):
        read(path)
    os.truncate(path, (512 << 20) + 1)
    with pytest.raises(InputError, match="has 536870913 bytes; expected at most 536870912"):
        read(path)


def test_a_search_of_before_is_read_under_its_new_name(tmp_path):
    """A search once wrote the column ``rate``; without the other columns it is not a search's."""
    path = tmp_path / "records.csv"
    path.write_text("update,trials,rate,failed_searches\n1,2,0.55,0\n")
    assert read_records(path).rows == [
        {"update": 1, "trials": 2, "step_size": 0.55, "failed_searches": 0}
    ]
    path.write_text("update,rate\n1,0.5\n")
    assert read_records(path).rows == [{"update": 1, "rate": 0.5}]


@pytest.mark.parametrize("names", ["loss,loss", "loss,\x1b[2J", "loss,\rx"])
def test_names_of_columns_that_are_none_are_refused(tmp_path, names):
    """The same name twice, one that would clear a terminal, and one that csv refuses."""
    path = tmp_path / "records.csv"
    path.write_text(f"{names}\n1,2\n")
    with pytest.raises(InputError, match="as names of columns"):
        read_records(path)
