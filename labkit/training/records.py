"""Rows of plain numbers, in memory and in a CSV file. No MindSpore import."""

import csv
import os
from typing import TextIO

from labkit.base.arguments import local_path, wrong
from labkit.base.files import whole_file
from labkit.errors import InputError

RECORDS = "records.csv"


class Records:
    """Rows (dicts of numbers with the same keys), kept in memory and, given a path, in a CSV file.

    Rows are written as they are added, so that a killed run leaves those it had. ``dropped``: how
    many non-finite micro-batches the step of a training had left out when ``fit`` ended.
    """

    def __init__(self, path: str | os.PathLike | None = None) -> None:
        self.rows: list[dict] = []
        self.dropped = 0
        self.path = None if path is None else local_path("path", path)

    def add(self, **row: float) -> None:
        """Append one row; its keys must be those of the rows before it."""
        if self.rows and row.keys() != self.rows[0].keys():
            raise wrong("columns of a row", list(row), str(list(self.rows[0])))
        self.rows.append(row)
        if self.path is not None:
            with self.path.open("a", newline="") as file:
                _write(file, [row], header=len(self.rows) == 1)

    def column(self, name: str) -> list:
        """Return one column, in order."""
        return [row[name] for row in self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        last = self.rows[-1] if self.rows else {}
        shown = ", ".join(f"{n}={v if isinstance(v, int) else f'{v:.6g}'}" for n, v in last.items())
        dropped = f", {self.dropped} micro-batches dropped" if self.dropped else ""
        return f"Records({len(self)} rows{shown and ', the last: ' + shown}{dropped})"

    def go_on_from(self, count: int) -> None:
        """Take over the file's first ``count`` rows, and cut it there; print which it lacks."""
        if self.path is None:
            return
        self.rows = read_records(self.path).rows[:count] if self.path.is_file() else []
        if len(self) < count:  # after a power cut
            print(f"labkit: {self.path} lacks rows {len(self) + 1} to {count}; it goes on without")
        with whole_file(self.path, "the records") as part, part.open("w", newline="") as file:
            _write(file, self.rows, header=bool(self.rows))


def read_records(path: str | os.PathLike) -> Records:
    """Read a CSV file of records, up to the first line that a kill or a power cut has spoiled."""
    records, path = Records(), local_path("path", path)
    if not path.is_file():
        raise InputError(f"no records at {path}")
    text = path.read_text(encoding="utf-8", errors="replace")
    for cells in csv.DictReader(text[: text.rfind("\n") + 1].splitlines()):
        try:
            row = {name: _number(cell) for name, cell in cells.items()}
        except (AttributeError, ValueError):  # too few cells, too many, or text
            break
        records.rows.append(row)
    return records


def _number(cell: str) -> int | float:
    return int(cell) if cell.removeprefix("-").isdigit() else float(cell)


def _write(file: TextIO, rows: list[dict], header: bool) -> None:
    writer = csv.DictWriter(file, list(rows[0]) if rows else [], lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
