"""The folders of runs: where one may be made, run.json in it, and what is moved out of its way."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from labkit.base.files import refuse_links
from labkit.errors import InputError
from labkit.labs.run_files import RUN, SWEEP, now, read_json, write_json
from labkit.tools.labs import Lab
from labkit.tools.running.request import Request

_REPLACED = "replaced"


def refuse_used(labs: Iterable[Lab], out: Path | None, runs: Path) -> None:
    """Raise ``InputError`` if what a run would write is in the way or cannot be written."""
    if out is None:
        refuse_unwritable(runs)
        latest = runs / "latest"
        if latest.exists() and not latest.is_symlink():
            raise InputError(f"{latest} is in the way: expected a link, or nothing; move it away")
        return
    if (out / SWEEP).exists():
        raise InputError(f"{out} holds a sweep; give another --out")
    if os.path.lexists(out / RUN):
        read_run(out)  # it is added to: one that is damaged would be lost
    for folder in (out / lab.name for lab in labs):
        refuse_unwritable(folder)
        # Two runs in one folder would mix their records and checkpoints.
        if folder.exists() and any(folder.iterdir()):
            raise InputError(
                f"{folder} already holds files; continue that run with --resume {out}, give "
                "another --out, or remove it"
            )


def refuse_unwritable(folder: Path) -> None:
    """Raise ``InputError`` unless ``folder`` exists and can be written to, or can be made."""
    existing = folder.absolute()
    while not os.path.lexists(existing):
        existing = existing.parent
    if not existing.is_dir():
        raise InputError(f"cannot write to {folder}: {existing} is not a folder")
    try:
        # Asking the permissions is not enough: root may write anywhere, and not in /proc.
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror} ({existing})") from error


def point_latest(runs: Path, folder: Path) -> None:
    """Let ``runs/latest`` point to ``folder``."""
    temporary = runs / f".latest-{os.getpid()}"
    # Left by a process that was killed; in containers every runner may have the same number.
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(folder.name)
    os.replace(temporary, runs / "latest")


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
    """Return what run.json of ``folder`` says; ``InputError`` where that is no run's folder."""
    refuse_links(folder)
    record, _ = read_json(folder / RUN)
    keys = {"labs": list, "preset": str, "device": str, "parameters": dict}
    if not record:
        raise InputError(
            f"{folder} holds no readable {RUN}; expected the folder of a `labkit run`, such as "
            "runs/latest"
        )
    for name, kind in keys.items():
        if not isinstance(record.get(name), kind):
            raise InputError(f"{folder / RUN} has no usable {name!r}: {record.get(name)!r}")
    if not all(isinstance(name, str) for name in record["labs"]):
        raise InputError(f"{folder / RUN} names labs {record['labs']!r}; expected texts")
    for lab, own in record["parameters"].items():
        if not isinstance(own, dict):
            raise InputError(f"{folder / RUN} has no usable parameters of {lab!r}: {own!r}")
    try:
        # What is written again must be JSON, which has no NaN and no infinity.
        json.dumps(record, allow_nan=False)
    except ValueError as error:
        raise InputError(f"{folder / RUN} holds NaN or infinity; expected numbers") from error
    return record


def set_aside(out: Path, name: str) -> Path:
    """Move the folder ``out/name`` to ``out/replaced/name-N``; nothing in it is lost."""
    number = 1
    while (target := out / _REPLACED / f"{name}-{number}").exists():
        number += 1
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(out / name, target)
    return target
