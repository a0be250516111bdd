"""Rows of plain numbers, in memory and in a CSV file. No MindSpore import."""

import csv
import os
from pathlib import Path

from labkit.errors import InputError


class Records:
    """Rows (dicts of numbers with the same keys), kept in memory and, given a path, in a CSV file.

    path   CSV file, or None; written as rows come, so that a killed run leaves what it had
    """

    def __init__(self, path=None):
        self.rows: list[dict] = []
        self.path = None if path is None else Path(path)
        self._file = None

    def add(self, **row) -> None:
        """Append one row; its keys must be those of the rows before it."""
        if self.rows and row.keys() != self.rows[0].keys():
            raise InputError(f"a row with {list(row)} came; expected {list(self.rows[0])}")
        self.rows.append(row)
        if self.path is not None:
            self._write(row)

    def column(self, name) -> list:
        """Return one column, in order."""
        return [row[name] for row in self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def keep_first(self, count) -> None:
        """Forget all rows after the first ``count``; the file is replaced, never half-written."""
        del self.rows[count:]
        self.close()
        if self.path is None:
            return
        temporary = self.path.with_name(f".{self.path.name}.part")
        with temporary.open("w", newline="") as file:
            if self.rows:
                writer = csv.DictWriter(file, list(self.rows[0]), lineterminator="\n")
                writer.writeheader()
                writer.writerows(self.rows)
        os.replace(temporary, self.path)

    def close(self) -> None:
        """Write everything out and close the file; ``add`` opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, row):
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a", newline="", buffering=1)
        writer = csv.DictWriter(self._file, list(row), lineterminator="\n")
        if len(self.rows) == 1:
            writer.writeheader()
        writer.writerow(row)


def read_records(path) -> Records:
    """Read a CSV file of records; a last line cut short by a kill is left out.

    Raises ``InputError`` for a missing file and for a row that is not numbers.
    """
    records = Records()
    path = Path(path)
    if not path.is_file():
        raise InputError(f"no records at {path}")
    text = path.read_text()
    lines = text.splitlines()
    if text and not text.endswith("\n"):
        lines.pop()
    for number, row in enumerate(csv.DictReader(lines), start=2):
        try:
            records.rows.append({name: _number(value) for name, value in row.items()})
        except (TypeError, ValueError) as error:
            raise InputError(f"{path}, line {number}: {row}; expected numbers") from error
    return records


def _number(text):
    try:
        return int(text)
    except ValueError:
        return float(text)
