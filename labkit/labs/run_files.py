"""The files of a run folder: their names, and how the JSON files are written and read.

run.json and sweep.json record what was requested of a run or a sweep. A lab's own folder holds
results.json (its settings and its outcome), any number of records.csv, figures/*.png, the executed
notebook, log.txt and, after a failure, kernel.log.

A file may come from another machine, be half written or damaged: readers leave out the unusable
parts and describe each in a sentence.
"""

import json
import math
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from labkit.base import files, input_files, locks
from labkit.errors import InputError

RUN, RESULTS, RECORDS = "run.json", "results.json", "records.csv"
SWEEP, SWEEP_TABLE, SWEEP_RUNS = "sweep.json", "sweep.csv", "runs"
LOG, KERNEL_LOG, FIGURES = "log.txt", "kernel.log", "figures"
STATUSES = ("passed", "failed", "running", "interrupted")
# Every key of results.json that is read again, with the type it must have.
_KINDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("lab", "preset", "device", "git", "started", "notebook"), str),
    **dict.fromkeys(("parameters", "versions", "runtime", "inputs", "metrics", "error"), dict),
    **dict.fromkeys(("seconds", "total_seconds", "peak_memory_mb", "pid_created"), (int, float)),
    **dict.fromkeys(("status", "host"), str),
    "headline": list,
    "pid": int,
}


def read_json(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the object in a JSON file, and what is wrong with the file.

    Returns:
        ``({}, [])`` if the file does not exist; ``{}`` and a sentence if it cannot be read or does
        not hold an object.
    """
    try:
        content = input_files.read_json(path)
    except FileNotFoundError:
        return {}, []
    except (OSError, InputError) as error:
        return {}, [f"{path.name} cannot be read: {error}"]
    if not isinstance(content, dict):
        return {}, [f"{path.name} is not a JSON object: {_short(content)}"]
    return content, []


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write run.json, sweep.json or results.json, whole or not at all, into an existing folder.

    Raises:
        InputError: if it cannot be written.
    """
    # parents=False: if a lab has removed its folder, a new folder would lack all its other files.
    files.write_json(path, record, "the file", indent=2, allow_nan=False, parents=False)


def write_results(folder: Path, record: Mapping[str, Any]) -> Path:
    """Write results.json into ``folder`` and return its path.

    Raises:
        OSError: if the folder is gone, or the file cannot be written.
    """
    with _system_errors():
        write_json(folder / RESULTS, record)
    return folder / RESULTS


def write_text(path: Path, text: str) -> None:
    """Write a text file of a run; raise errors as ``write_results`` does."""
    with _system_errors():
        files.write_text(path, text, "the file", parents=False)


@contextmanager
def _system_errors() -> Iterator[None]:
    """Raise the system's own error if a file cannot be written: a full disk ends one lab only."""
    try:
        yield
    except InputError as error:
        raise (error.__cause__ or error) from None


def read_results(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the usable part of results.json, and a sentence for each part that is not."""
    content, problems = read_json(folder / RESULTS)
    results, more = usable(content)
    return results, problems + more


def usable(content: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the usable part of the content of a results.json, and a sentence for each other part.

    Every returned key has the type that labkit writes; a null value counts as a missing key.
    """
    results: dict[str, Any] = {}
    problems: list[str] = []
    for name, value in content.items():
        kind = _KINDS.get(name)
        if value is None or kind is None:
            continue
        if not isinstance(value, kind) or isinstance(value, bool):
            problems.append(f"{RESULTS}: {name} is {_short(value)}, left out")
            continue
        results[name] = value
    if "headline" in results:
        metrics = results.get("metrics", {})
        results["headline"] = [
            name for name in results["headline"] if isinstance(name, str) and name in metrics
        ]
    if results.get("status", "passed") not in STATUSES:
        problems.append(f"{RESULTS}: status is {_short(results['status'])}, expected {STATUSES}")
    return results, problems


def status_of(results: Mapping[str, Any]) -> str:
    """Return passed, failed, running, interrupted, or unknown.

    A status "running" in results.json is accepted as long as the process it names is alive, and
    always if the process is on another host, where it cannot be checked.
    """
    status = results.get("status")
    if status not in STATUSES:
        return "unknown"
    if status == "running" and not other_host(results):
        process = {"pid": results.get("pid"), "created": results.get("pid_created")}
        return "interrupted" if locks.has_ended(locks.owner() | process) else "running"
    return status


def other_host(results: Mapping[str, Any]) -> str | None:
    """Return the host that a lab runs on if it is a different host, else None."""
    host = results.get("host")
    return host if host and host != socket.gethostname() else None


def runner_stamp() -> dict[str, Any]:
    """Return the entries of results.json that name this process as the runner of the lab."""
    owner = locks.owner()
    return {"host": owner["host"], "pid": owner["pid"], "pid_created": owner["created"]}


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


def last_lines(path: Path, count: int, limit: int = 20_000) -> list[str]:
    """Return the last lines of a log that are not empty, as a terminal shows them.

    Args:
        path: path of the log; a log that cannot be read has no lines.
        count: largest number of lines.
        limit: largest number of bytes to read, from the end.
    """
    try:
        with input_files.open_file(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - limit))
            text = file.read(limit).decode("utf-8", "replace")
    except (OSError, InputError):
        return []
    lines = (last_state(line).rstrip() for line in text.split("\n"))
    return [line for line in lines if line][-count:]


def last_state(line: str) -> str:
    """Return what a terminal finally shows of a line that carriage returns redraw."""
    return line.rstrip("\r").rsplit("\r", 1)[-1]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
