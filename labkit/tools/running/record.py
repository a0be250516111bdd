"""results.json, as far as the runner writes it: when a lab begins, and what became of it."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from labkit.labs.run import describe
from labkit.labs.run_files import (
    RESULTS,
    now,
    plain,
    read_json,
    runner_stamp,
    usable,
    write_results,
)
from labkit.tools.labs import Lab
from labkit.tools.running import digests
from labkit.tools.running.execution import Execution, Failure
from labkit.tools.running.request import Request

INTERRUPTED = Failure("KeyboardInterrupt", "stopped from outside", None, "interrupted")
# Of a lab whose results.json cannot be written anew: the rest is what it ran from.
_KEPT = ("lab", "preset", "status", "total_seconds", "started", "host", "headline", "metrics")
_LOST = Failure(
    "RunnerDied", "the process that ran the lab has ended without its results", None, "died"
)


@dataclass(frozen=True)
class Completed:
    """results.json of a lab that is over, why it failed, if so, and what in it was unusable."""

    results: Mapping[str, Any]
    failure: Failure | None
    problems: list[str]


def unwritable(error: OSError) -> Failure:
    """Return what a lab fails with whose folder cannot be written."""
    return Failure(type(error).__name__, f"its folder cannot be written: {error}", None)


def inputs_of(lab: Lab, request: Request) -> dict[str, str]:
    """Return the digests of what a lab is run from."""
    import nbformat

    notebook = nbformat.read(lab.path, as_version=4)
    asked = (request.preset, request.device, request.of(lab))
    return digests.of_run(request.project, notebook, *asked)


def begun(lab: Lab, request: Request) -> dict[str, Any]:
    """Return results.json as it is while the lab runs."""
    device = None if request.device == "auto" else request.device
    record = describe(lab.name, request.preset, request.of(lab), device)
    record |= {"inputs": inputs_of(lab, request), "started": now()}
    record |= {"seconds": None, "metrics": {}, "headline": [], "notebook": lab.path.name}
    return record | {"status": "running", **runner_stamp()}


def completed(
    folder: Path, before: Mapping[str, Any], ending: Execution, seconds: float
) -> Completed:
    """Write results.json of a lab that is over, whether or not the notebook wrote its own."""
    written, problems = usable(_written(folder))
    results = _complete({**before, **written}, ending, seconds)
    try:
        write_results(folder, results)
    except OSError as error:
        if ending.failure is None:
            ending = replace(ending, failure=unwritable(error))
            results = _complete(results, ending, seconds)
        _write_over(folder, results)
    return Completed(results, ending.failure, problems)


def settled(folder: Path) -> dict[str, Any]:
    """Return results.json of a lab whose runner is over, also of one that was killed."""
    results = _written(folder)
    if results.get("status") not in ("passed", "failed", "interrupted"):
        results = {"metrics": {}, **results, "status": "failed", "error": _error(_LOST)}
        try:
            write_results(folder, results)
        except OSError:  # a folder that vanished, a full disk: the sweep's table says so
            _write_over(folder, results)
    return results


def _written(folder: Path) -> dict[str, Any]:
    """Return what is in results.json, usable or not, as it can be written again."""
    return plain(read_json(folder / RESULTS)[0], RESULTS)


def _write_over(folder: Path, results: Mapping[str, Any]) -> None:
    """Write what matters over the results.json that says "running", where the disk is full.

    In the room that the file has: there is none for a second one. What cannot be written at all (a
    folder that vanished) is left.
    """
    path = folder / RESULTS
    error = dict(results.get("error") or {})
    error |= {"message": str(error.get("message", ""))[:200], "log": []}
    short = {name: results[name] for name in _KEPT if name in results} | {"error": error}
    with suppress(OSError), path.open("r+b") as file:
        size = file.seek(0, 2)
        least = {name: short[name] for name in short if name not in ("headline", "metrics")}
        for record in (results, short, least):
            text = json.dumps(dict(record), allow_nan=False, ensure_ascii=False).encode()
            if len(text) < size:
                file.seek(0)
                file.write(text.ljust(size - 1) + b"\n")
                return


def _complete(written: Mapping[str, Any], ending: Execution, seconds: float) -> dict[str, Any]:
    """Return results.json with what only the runner knows."""
    results = {name: written[name] for name in written if name not in ("pid", "pid_created")}
    results |= {
        "total_seconds": round(seconds, 3),
        "peak_memory_mb": round(ending.peak_memory / 1e6, 1),
        "status": "passed",
    }
    if failure := ending.failure:
        status = "interrupted" if failure.cause == "interrupted" else "failed"
        results |= {"status": status, "error": _error(failure)}
    return results


def _error(failure: Failure) -> dict[str, Any]:
    return {**asdict(failure), "log": list(failure.log)}
