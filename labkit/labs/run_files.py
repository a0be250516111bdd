"""The files of a lab's run folder, and how what they hold is written.

results.json (settings and outcome), any number of records.csv, figures/*.png, the executed
notebook and log.txt.
"""

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESULTS, RECORDS = "results.json", "records.csv"
LOG, FIGURES = "log.txt", "figures"


def plain(value: Any, name: str) -> Any:
    """Return ``value`` as plain JSON types; NumPy and MindSpore numbers and arrays become Python's.

    NaN and the infinities, which JSON does not have, become the texts "nan", "inf" and "-inf".

    Raises:
        TypeError: if it holds anything else; the message gives its place within ``name``.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item, f"{name}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{name}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "asnumpy"):
        value = value.asnumpy()
    if hasattr(value, "tolist"):
        return plain(value.tolist(), name)
    expected = "numbers, texts, lists and mappings of them"
    raise TypeError(f"{name}: expected {expected}, got {type(value).__name__}")


def now() -> str:
    """Return the time as ISO 8601 text, with the offset from UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def last_lines(path: Path, count: int) -> list[str]:
    """Return the last lines of a log that are not empty, as a terminal shows them."""
    # As bytes: text mode would make a line of each state of a progress bar.
    text = path.read_bytes().decode("utf-8", "replace") if path.exists() else ""
    lines = (line.rstrip("\r").rsplit("\r", 1)[-1].rstrip() for line in text.split("\n"))
    return [line for line in lines if line][-count:]
