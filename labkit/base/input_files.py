"""Files made by others: whole, of the expected kind, or one clear line."""

import json
import os
from collections.abc import Callable
from io import BufferedReader
from typing import Any

from labkit.base import arguments
from labkit.errors import InputError


def open_file(path: str | os.PathLike) -> BufferedReader:
    """Open a regular file for reading bytes.

    Raises:
        OSError: as ``open`` does.
        InputError: for a folder, a pipe or a device, or if ``path`` is not a path.
    """
    path = arguments.path("path", path)
    if path.exists() and not path.is_file():
        what = "a directory" if path.is_dir() else "a pipe, a device or a socket"
        raise InputError(f"{path}: expected a regular file, got {what}")
    return open(path, "rb")


def read_text(path: str | os.PathLike) -> str:
    """Return the text of a file, with line feeds as line ends.

    Raises:
        OSError: as ``open`` does.
        InputError: as ``open_file`` does, and for text that is not UTF-8.
    """
    with open_file(path) as file:
        content = file.read()
    try:
        return content.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error.reason} at {error.start})") from error


def read_json(path: str | os.PathLike) -> Any:
    """Return the value in a JSON file; errors as in ``read_text`` and ``parse_json``."""
    return parse_json(read_text(path))


def parse_json(text: str, object_pairs_hook: Callable | None = None) -> Any:
    """Return the value of a JSON text.

    Raises:
        InputError: for text that is not JSON.
    """
    try:
        return json.loads(text, object_pairs_hook=object_pairs_hook)
    except ValueError as error:
        raise InputError(f"not JSON: {error}") from error
