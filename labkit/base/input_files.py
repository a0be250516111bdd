"""Files made by others, read with limits: no read waits, and none goes on without end.

A run folder, a rank table or settings may come from anywhere. A named pipe waits forever for a
writer, /dev/zero never ends, and a few bytes of JSON can become many objects.
"""

import json
import os
import stat
from collections.abc import Callable
from io import BufferedReader
from typing import Any, NamedTuple

from labkit.base import arguments
from labkit.errors import InputError

# The largest text that labkit writes is an executed notebook with its pictures, of some MB.
TEXT_BYTES = 64 << 20
# A JSON list or mapping takes three bytes in the file and up to 230 in memory: 2 million, 0.5 GB.
_VALUES = 2_000_000
_DEEPEST = 100


class Place(NamedTuple):
    """A tensor in a file: its type, its shape, and the byte where its numbers begin."""

    kind: str
    shape: tuple[int, ...]
    start: int


def open_file(path: str | os.PathLike) -> BufferedReader:
    """Open a regular file for reading bytes, without waiting.

    Raises:
        OSError: As ``open`` does.
        InputError: For a folder, a pipe, a device or a socket, or if ``path`` is not a path.
    """
    path = arguments.path("path", path)
    try:
        # O_NONBLOCK: opening a pipe would wait for a writer. O_NOCTTY: do not adopt a terminal.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except ValueError as error:
        raise InputError(f"{path} is not a file name ({error})") from error
    kind = os.fstat(handle).st_mode
    if not stat.S_ISREG(kind):
        os.close(handle)
        what = "a directory" if stat.S_ISDIR(kind) else "a pipe, a device or a socket"
        raise InputError(f"{path}: expected a regular file, got {what}")
    return open(handle, "rb")


def read_bytes(path: str | os.PathLike, limit: int = TEXT_BYTES) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: As ``open`` does.
        InputError: As in ``open_file``, and for more than ``limit`` bytes.
    """
    with open_file(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise InputError(f"{path} has more than {limit} bytes; expected at most so many")
    return content


def first_bytes(path: str | os.PathLike, count: int) -> bytes:
    """Return the first ``count`` bytes of a regular file, or b"" if it cannot be read."""
    try:
        with open_file(path) as file:
            return file.read(count)
    except (OSError, InputError):
        return b""


def read_text(path: str | os.PathLike, limit: int = TEXT_BYTES) -> str:
    """Return the text of a regular file, with line feeds as line ends.

    Raises:
        OSError: As ``open`` does.
        InputError: As in ``read_bytes``, and for text that is not UTF-8.
    """
    content = read_bytes(path, limit)
    try:
        return content.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error.reason} at {error.start})") from error


def read_json(path: str | os.PathLike) -> Any:
    """Return the value in a JSON file; errors as in ``read_text`` and ``parse_json``."""
    return parse_json(read_text(path))


def parse_json(text: str, object_pairs_hook: Callable | None = None) -> Any:
    """Return the value of a JSON text; every string in it can be written as UTF-8.

    A lone surrogate, which JSON can spell and UTF-8 cannot, becomes U+FFFD.

    Raises:
        InputError: For text that is not JSON, more than 100 levels, or more than 2 million values.
    """
    values = text.count(",") + text.count("[") + text.count("{")
    if values > _VALUES:
        raise InputError(f"expected JSON of at most {_VALUES} values, got {values}")
    try:
        value = json.loads(text, object_pairs_hook=object_pairs_hook)
    except RecursionError as error:
        raise InputError(f"JSON of more than {_DEEPEST} levels") from error
    except ValueError as error:
        raise InputError(f"not JSON: {error}") from error
    if _depth(value) > _DEEPEST:
        raise InputError(f"JSON of more than {_DEEPEST} levels")
    # Only an escape can spell a lone surrogate; then the value is written and read once more.
    if "\\ud" in text or "\\uD" in text:
        whole = json.dumps(value, ensure_ascii=False)
        letters = whole.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        value = json.loads(letters, object_pairs_hook=object_pairs_hook)
    return value


def _depth(value: Any) -> int:
    """Return how deeply lists and mappings are nested, without recursion."""
    depth, level = 0, [value] if isinstance(value, dict | list) else []
    while level and depth <= _DEEPEST:
        depth += 1
        parts = (node.values() if isinstance(node, dict) else node for node in level)
        level = [node for part in parts for node in part if isinstance(node, dict | list)]
    return depth


def usable_name(name: object) -> bool:
    """Return whether ``name`` is text that can name one entry of a folder."""
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\0" in name:
        return False
    try:
        return len(os.fsencode(name)) <= 255
    except UnicodeEncodeError:
        return False
