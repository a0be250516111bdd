"""Rows of plain numbers, in memory and in a CSV file. No MindSpore import."""

import csv
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TextIO

from labkit.base import arguments
from labkit.base.arguments import names_checked, wrong
from labkit.base.files import whole_file
from labkit.base.input_files import open_file
from labkit.errors import InputError

_BYTES = 512 << 20
# Columns times lines: some 60 bytes and a microsecond each. 90 epochs of ImageNet in batches of 256
# are 0.45 million rows of 8 columns.
_CELLS = 6_000_000
_LONGEST_LINE = 1 << 16
# Columns of a search in the subspace, as they were named up to version 0.1.0.
_OLD_SEARCH, _SEARCH = ("trials", "rate", "failed_searches"), {"rate": "step_size"}
_NO_FLOAT = 10**300  # a figure cannot convert a larger integer to a float


class Records:
    """Rows (dicts of numbers with the same keys), kept in memory and, given a path, in a CSV file.

    Args:
        path: CSV file, or None; rows are written as they are added, so that a killed run leaves
            those it had.
    """

    def __init__(self, path: str | os.PathLike | None = None) -> None:
        self.rows: list[dict] = []
        self.path = None if path is None else Path(path)
        self._file: TextIO | None = None

    def add(self, **row: float) -> None:
        """Append one row; its keys must be those of the rows before it."""
        if self.rows and row.keys() != self.rows[0].keys():
            raise wrong("columns of a row", list(row), str(list(self.rows[0])))
        self.rows.append(row)
        if self.path is not None:
            self._write(self.path, row)

    def column(self, name: str) -> list:
        """Return one column, in order."""
        return [row[name] for row in self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def keep_first(self, count: int) -> None:
        """Discard all rows after the first ``count``; the file is replaced, never half-written.

        Raises:
            InputError: If the file cannot be written; it then stays as it was.
        """
        del self.rows[count:]
        self.close()
        if self.path is None:
            return
        with (
            whole_file(self.path, "the records") as temporary,
            temporary.open("w", newline="") as file,
        ):
            if self.rows:
                writer = csv.DictWriter(file, list(self.rows[0]), lineterminator="\n")
                writer.writeheader()
                writer.writerows(self.rows)

    def remove_file(self) -> None:
        """Remove an earlier training's file, if any; raise ``InputError`` if that fails."""
        if self.path is None:
            return
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise InputError(f"cannot replace the records {self.path}: {error.strerror}") from error

    def sync(self) -> None:
        """Flush the rows to disk: a power cut loses what the system still holds in memory."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Write everything out and close the file; ``add`` opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, path: Path, row: dict) -> None:
        if self._file is None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = open(path, "a", newline="", buffering=1)
            except OSError as error:
                raise InputError(f"cannot write the records {path}: {error}") from error
        writer = csv.DictWriter(self._file, list(row), lineterminator="\n")
        if len(self.rows) == 1:
            writer.writeheader()
        writer.writerow(row)


@names_checked
def read_records(path: str | os.PathLike) -> Records:
    """Read a CSV file of records; a last line cut short by a kill is left out.

    Raises:
        InputError: For a file that is missing or cannot be read, and for a row with values that
            are not numbers.
    """
    records = Records()
    for number, row in _rows(path):
        if isinstance(row, Exception):
            raise InputError(f"{path}, line {number}: {row}; expected numbers") from row
        records.rows.append(row)
    return records


def read_usable(path: str | os.PathLike) -> list[dict]:
    """Return the rows of a CSV file of records that can be read, skipping those that cannot.

    After a power cut the end of a file may be missing, or zeros.

    Raises:
        InputError: For a file that is missing or cannot be read at all.
    """
    return [row for _, row in _rows(path) if not isinstance(row, Exception)]


def _rows(path: str | os.PathLike) -> Iterator[tuple[int, dict | Exception]]:
    """Yield (line, row) of a file of records; for a bad row, the exception that says why."""
    path = arguments.path("path", path)
    if not path.is_file():
        raise InputError(f"no records at {path}")
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > _BYTES:
                raise InputError(f"{path} has {size} bytes; expected at most {_BYTES}")
            yield from _parsed(path, file)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def _parsed(path: Path, file: BinaryIO) -> Iterator[tuple[int, dict | Exception]]:
    names = None
    for number, line in enumerate(_lines(file), start=1):
        if number * len(names or (0,)) > _CELLS:
            raise InputError(
                f"{path} has more than {_CELLS} cells (columns times lines); expected no more"
            )
        if len(line) > _LONGEST_LINE:
            yield number, ValueError(f"a line of more than {_LONGEST_LINE} bytes")
            if names is None:
                return
            continue
        cells = _cells(line.removesuffix(b"\r").decode(errors="replace"))
        if names is None:
            names = cells
            if set(_OLD_SEARCH) <= set(names):
                names = [_SEARCH.get(name, name) for name in names]
            if len(set(names)) < len(names) or not all(name.isprintable() for name in names):
                yield number, ValueError(f"{line[:80]!r} as names of columns")
                return
        elif cells:
            try:
                yield number, dict(zip(names, map(_number, cells), strict=True))
            except ValueError:
                yield number, ValueError(f"{dict(zip(names, cells, strict=False))}"[:300])


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield each line without its line end; for a line that is too long, its beginning.

    Text after the last line end was cut short, and is left out.
    """
    while line := file.readline(_LONGEST_LINE + 1):
        end = line
        while len(end) > _LONGEST_LINE and not end.endswith(b"\n"):
            end = file.readline(_LONGEST_LINE + 1)
        if not end.endswith(b"\n"):
            return
        yield line.removesuffix(b"\n")


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return [line]


def _number(text: str) -> float:
    # Plain numbers only: Python also accepts 1_000, spaces, and digits of other scripts.
    if not text.isascii() or "_" in text or text != text.strip():
        raise ValueError(text)
    try:
        number = int(text)
    except ValueError:
        return float(text)
    if abs(number) >= _NO_FLOAT:
        raise ValueError(f"an integer of {len(text)} digits")
    return number
