"""results.json of a lab, read with tolerance: what is damaged is left out and said."""

import json
import socket
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from labkit.base import input_files
from labkit.errors import InputError
from labkit.labs.run import RESULTS

_NUMBER = (int, float)
# Every key that a page or a comparison reads, and what it must be to be read.
_KINDS: dict[str, type | tuple[type, ...]] = {
    "lab": str,
    "preset": str,
    "parameters": dict,
    "device": str,
    "versions": dict,
    "git": str,
    "runtime": dict,
    "inputs": dict,
    "started": str,
    "seconds": _NUMBER,
    "total_seconds": _NUMBER,
    "peak_memory_mb": _NUMBER,
    "metrics": dict,
    "headline": list,
    "notebook": str,
    "status": str,
    "error": dict,
    "host": str,
    "pid": int,
    "pid_created": _NUMBER,
}
STATUSES = ("passed", "failed", "running", "interrupted")
# A process cannot have written that a lab started long before the process itself did.
_SLACK_SECONDS = 5.0


def read_json(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the object in the file ``path`` and what is wrong with it; ``{}`` if it is no object.

    A file that is not there is an empty object with nothing wrong.
    """
    try:
        read = input_files.read_json(path)
    except FileNotFoundError:
        return {}, []
    except (OSError, InputError) as error:
        return {}, [f"{path.name} cannot be read: {error}"]
    if not isinstance(read, dict):
        return {}, [f"{path.name} is not a JSON object: {_short(read)}"]
    return read, []


def read_results(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the usable part of ``folder``/results.json, and a sentence for each part that is not.

    Every key that is returned has the type that the runner gives it; null stands for a key that is
    not there.
    """
    read, problems = read_json(folder / RESULTS)
    results, more = usable(read)
    return results, problems + more


def usable(read: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the usable part of what was in a results.json; as ``read_results``."""
    results, problems = {}, []
    for name, value in read.items():
        kind = _KINDS.get(name)
        if value is None or kind is None:
            continue
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
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

    A results.json that says "running" is believed as long as the process it names is alive; and
    where that is of another host, always: from here it is not seen.
    """
    status = results.get("status")
    if status not in STATUSES:
        return "unknown"
    if status == "running" and not elsewhere(results) and not _is_alive(results):
        return "interrupted"
    return status


def elsewhere(results: Mapping[str, Any]) -> str | None:
    """Return the host that a run goes on on, if it is not this one."""
    host = results.get("host")
    return host if host and host != socket.gethostname() else None


def _is_alive(results: Mapping[str, Any]) -> bool:
    """Return whether the process that wrote the file is there, and not another of its number."""
    import psutil

    pid, born, started = (results.get(name) for name in ("pid", "pid_created", "started"))
    try:
        process = psutil.Process(pid) if pid and pid > 0 else None
        if process is None or process.status() == psutil.STATUS_ZOMBIE:
            return False
        if born is not None:
            return abs(process.create_time() - born) < 1
        moment = datetime.fromisoformat(started).timestamp() if started else None
    except (psutil.Error, OverflowError):
        return False
    except ValueError:
        moment = None
    return moment is None or process.create_time() <= moment + _SLACK_SECONDS


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
