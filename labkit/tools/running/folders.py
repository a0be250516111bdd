"""Run folders as the runner makes them: permitted places, run.json, results.json."""

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from labkit.base.arguments import wrong
from labkit.base.files import refusal, refuse_links
from labkit.errors import InputError
from labkit.labs.run import describe
from labkit.labs.run_files import (
    RESULTS,
    RUN,
    SWEEP,
    now,
    plain,
    read_json,
    runner_stamp,
    usable,
    write_json,
    write_results,
)
from labkit.tools import notebook_files
from labkit.tools.labs import Lab
from labkit.tools.running import digests
from labkit.tools.running.execution import Execution, Failure
from labkit.tools.running.request import Request

_REPLACED = "replaced"
# Kept if results.json cannot be rewritten in full; the rest describes the inputs.
_KEPT = ("lab", "preset", "status", "total_seconds", "started", "host", "headline", "metrics")


def refuse_used(request: Request, out: Path | None, runs: Path) -> None:
    """Raise ``InputError`` if a run's output would collide with files or cannot be written."""
    if out is None:
        refuse_unwritable(runs)
        latest = runs / "latest"
        if latest.exists() and not latest.is_symlink():
            raise InputError(f"{latest} is in the way: expected a link, or nothing; move it away")
        return
    if (out / SWEEP).exists():
        raise wrong("--out", str(out), "a folder that holds no sweep")
    # run.json has one preset and one device.
    run = read_run(out) if os.path.lexists(out / RUN) else {}
    for name in ("preset", "device"):
        before, asked = run.get(name), getattr(request, name)
        if run and before != asked:
            raise InputError(
                f"{out} holds a run with {name} {before}; expected the same, got {asked}: give "
                "another --out"
            )
    for folder in (out / lab.name for lab in request.labs):
        refuse_unwritable(folder)
        # Two runs in one folder would mix their records and checkpoints.
        if folder.exists() and any(folder.iterdir()):
            hint = f" Continue that run with --resume {out}, or remove {folder}"
            raise wrong("--out", str(out), f"a folder with no files in {folder.name}", hint)


def refuse_unwritable(folder: Path) -> None:
    """Raise ``InputError`` unless ``folder`` exists and can be written to, or can be made."""
    if reason := refusal(folder):
        raise InputError(f"cannot write to {folder}: {reason}")


def point_latest(runs: Path, folder: Path) -> None:
    """Make ``runs/latest`` a link to ``folder``."""
    temporary = runs / f".latest-{os.getpid()}"
    # Left by a killed process; in containers every runner may have the same process id.
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(folder.name)
    os.replace(temporary, runs / "latest")


def set_aside(folder: Path) -> Path:
    """Move ``out/name`` to ``out/replaced/name-N``; nothing in it is lost."""
    number = 1
    while (target := folder.parent / _REPLACED / f"{folder.name}-{number}").exists():
        number += 1
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(folder, target)
    return target


def write_run(folder: Path, request: Request) -> None:
    """Write run.json: what was asked for, so that the run can be resumed."""
    known = read_run(folder) if os.path.lexists(folder / RUN) else {}
    names = [*known.get("labs", ()), *(lab.name for lab in request.labs)]
    record = {
        "labs": list(dict.fromkeys(names)),
        "preset": request.preset,
        "device": request.device,
        "parameters": {**known.get("parameters", {}), **request.parameters},
        "started": known.get("started", now()),
    }
    write_json(folder / RUN, record)


def read_run(folder: Path) -> dict[str, Any]:
    """Return the contents of run.json; raise ``InputError`` if ``folder`` is not a run's folder."""
    refuse_links(folder)
    record, _ = read_json(folder / RUN)
    if not record:
        raise InputError(
            f"{folder} holds no readable {RUN}; expected the folder of a `labkit run`, such as "
            "runs/latest"
        )
    # The type of each key and, for a list or mapping, of its elements.
    kinds = {"labs": (list, str), "preset": (str, str), "device": (str, str)}
    for name, (kind, part) in {**kinds, "parameters": (dict, dict)}.items():
        value = record.get(name)
        parts = value.values() if isinstance(value, dict) else value
        if not isinstance(value, kind) or not all(isinstance(own, part) for own in parts):
            raise InputError(f"{folder / RUN} has no usable {name!r}: {value!r}")
    try:
        # The record is written again, as JSON, which has no NaN and no infinity.
        json.dumps(record, allow_nan=False)
    except ValueError as error:
        raise InputError(f"{folder / RUN} holds NaN or infinity; expected numbers") from error
    return record


def unwritable(error: OSError) -> Failure:
    """Return the failure of a lab whose folder cannot be written."""
    return Failure(type(error).__name__, f"its folder cannot be written: {error}", None)


def inputs_of(lab: Lab, request: Request) -> dict[str, str]:
    """Return the digests of a lab's inputs."""
    notebook = notebook_files.read(lab.path)
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
) -> tuple[dict[str, Any], list[str]]:
    """Write results.json of a lab that has ended, whether or not the notebook wrote its own.

    Returns:
        The contents of results.json, and what was unusable in the notebook's own.
    """
    written, problems = usable(_written(folder))
    results = _complete({**before, **written}, ending, seconds)
    try:
        write_results(folder, results)
    except OSError as error:
        if ending.failure is None:
            ending = replace(ending, failure=unwritable(error))
            results = _complete(results, ending, seconds)
        _write_over(folder, results)
    return results, problems


def stopped(folder: Path, error: Exception) -> dict[str, Any]:
    """Write and return results.json of a lab that ``error`` stopped outside its notebook."""
    failure = Failure(type(error).__name__, str(error), None)
    written, _ = usable(_written(folder))
    results = {"metrics": {}, **written, "status": "failed", "error": asdict(failure)}
    for name in ("pid", "pid_created"):
        results.pop(name, None)
    try:
        write_results(folder, results)
    except OSError:  # a folder that vanished, a full disk: the sweep's table says so
        _write_over(folder, results)
    return results


def _written(folder: Path) -> dict[str, Any]:
    """Return the contents of results.json, usable or not, in a form that can be written again."""
    return plain(read_json(folder / RESULTS)[0], RESULTS)


def _write_over(folder: Path, results: Mapping[str, Any]) -> None:
    """Overwrite the results.json that says "running" with the essentials when the disk is full.

    The text must fit into the existing file, since there is no room for a second one. If nothing
    can be written (the folder has vanished), the file is left as it is.
    """
    error = dict(results.get("error") or {})
    error |= {"message": str(error.get("message", ""))[:200], "log": []}
    short = {name: results[name] for name in _KEPT if name in results} | {"error": error}
    least = {name: short[name] for name in short if name not in ("headline", "metrics")}
    with suppress(OSError), (folder / RESULTS).open("r+b") as file:
        size = file.seek(0, 2)
        for record in (results, short, least):
            text = json.dumps(dict(record), allow_nan=False, ensure_ascii=False).encode()
            if len(text) < size:
                file.seek(0)
                file.write(text.ljust(size - 1) + b"\n")
                return


def _complete(written: Mapping[str, Any], ending: Execution, seconds: float) -> dict[str, Any]:
    """Return the results with the fields that only the runner knows."""
    results = {name: written[name] for name in written if name not in ("pid", "pid_created")}
    results |= {
        "total_seconds": round(seconds, 3),
        "peak_memory_mb": round(ending.peak_memory / 1e6, 1),
        "status": "passed",
    }
    if failure := ending.failure:
        status = "interrupted" if failure.cause == "interrupted" else "failed"
        results |= {"status": status, "error": asdict(failure)}
    return results
