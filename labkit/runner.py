"""Execution of checked labs one after the other, each into its own folder: `labkit run`."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import InputError
from labkit.execution import Failure, execute
from labkit.labs import Lab, mentions
from labkit.request import Request
from labkit.run import RESULTS, describe, new_folder, write_results

# Bundled with the project, so that preparing it needs no network.
_DATA_SETS = ("mnist",)


@dataclass(frozen=True)
class Outcome:
    """One executed lab: what results.json says, the executed notebook, and why it failed, if so."""

    lab: Lab
    results: Mapping[str, Any]
    notebook: Path
    failure: Failure | None

    @property
    def refused(self) -> bool:
        """Whether the lab stopped because its input cannot be used."""
        return self.failure is not None and self.failure.name == "InputError"


def run(
    request: Request,
    out: Path | None = None,
    *,
    say: Callable[[str], None] = print,
    cell_timeout: float | None = None,
) -> list[Outcome]:
    """Execute the labs of ``request`` one after the other and return what became of each.

    Lab ``name`` writes to ``out/name``; without ``out`` to a new ``runs/<time>/name`` of the
    project, and ``runs/latest`` then points to ``runs/<time>``. ``say`` gets the progress, a line a
    call. Raises ``InputError`` before anything is created where ``out`` cannot be used or the data
    cannot be prepared, ``RuntimeError`` where preparing it fails for another reason.
    """
    runs = request.project / "runs"
    _refuse_used(request, out, runs)
    _prepare_data(request, say)
    if out is None:
        out = new_folder(runs)
        _point_latest(runs, out)
    return [_run_lab(lab, request, out / lab.name, say, cell_timeout) for lab in request.labs]


def exit_code(outcomes: Iterable[Outcome]) -> int:
    """Return 0 if all labs passed, 1 if one failed, 2 if only bad input stopped any."""
    failed = [outcome for outcome in outcomes if outcome.failure]
    if not failed:
        return 0
    return 2 if all(outcome.refused for outcome in failed) else 1


def _run_lab(
    lab: Lab,
    request: Request,
    folder: Path,
    say: Callable[[str], None],
    cell_timeout: float | None,
) -> Outcome:
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    notebook = folder / lab.path.name
    parameters = {"preset": request.preset, "device": request.device, **request.parameters}
    started = time.monotonic()
    say(f"{lab.name}: preset {request.preset}, device {request.device}")
    failure = None
    try:
        environment = _kernel_environment(request.preset, folder)
        failure = execute(lab.path, notebook, parameters, environment, say, cell_timeout)
    except BaseException as error:
        # Ctrl-C passes through here: the folder must say that it holds no whole run.
        failure = Failure(type(error).__name__, str(error) or "stopped from outside", None)
        raise
    finally:
        results = _complete_results(lab, request, folder, failure, time.monotonic() - started)
    ending = f"failed in cell {failure.cell} ({failure.name})" if failure else "passed"
    say(f"{lab.name}: {ending} after {results['total_seconds']:.1f} s")
    return Outcome(lab, results, notebook, failure)


def _kernel_environment(preset: str, folder: Path) -> dict[str, str]:
    return {
        "LABKIT_PRESET": preset,
        "LABKIT_RUN": str(folder),
        # labkit.progress then prints plain lines and draws no bar.
        "LABKIT_HEADLESS": "1",
        # A user's MPLBACKEND=Agg would leave the figures out of the executed notebook.
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }


def _complete_results(
    lab: Lab, request: Request, folder: Path, failure: Failure | None, seconds: float
) -> dict[str, Any]:
    """Add to results.json what only the runner knows; write it whole where the notebook did not."""
    place = folder / RESULTS
    if place.exists():
        results = json.loads(place.read_text(encoding="utf-8"))
    else:
        device = None if request.device == "auto" else request.device
        results = describe(lab.name, request.preset, request.parameters, device)
        results |= {"seconds": None, "metrics": {}, "headline": []}
    results |= {"total_seconds": round(seconds, 3), "notebook": lab.path.name, "status": "passed"}
    if failure:
        error = {"name": failure.name, "message": failure.message, "cell": failure.cell}
        results |= {"status": "failed", "error": error}
    write_results(folder, results)
    return results


def _prepare_data(request: Request, say: Callable[[str], None]) -> None:
    for name in _DATA_SETS:
        script = request.project / "data_scripts" / f"{name}.py"
        if not script.exists() or not any(mentions(lab, name) for lab in request.labs):
            continue
        say(f"data: preparing {name} with {script.relative_to(request.project)}")
        command = [sys.executable, str(script)]
        done = subprocess.run(
            command, cwd=request.project, capture_output=True, text=True, check=False
        )
        if done.returncode == 2:
            raise InputError(done.stderr.strip() or f"{name} cannot be prepared")
        if done.returncode:
            raise RuntimeError(f"{script} exited with {done.returncode}:\n{done.stderr.strip()}")


def _refuse_used(request: Request, out: Path | None, runs: Path) -> None:
    """Raise ``InputError`` if what a run would write is in the way or cannot be written."""
    if out is None:
        _refuse_unwritable(runs)
        latest = runs / "latest"
        if latest.exists() and not latest.is_symlink():
            raise InputError(f"{latest} is in the way: expected a link, or nothing; move it away")
        return
    for folder in (out / lab.name for lab in request.labs):
        _refuse_unwritable(folder)
        # Two runs in one folder would mix their records and checkpoints.
        if folder.exists() and any(folder.iterdir()):
            raise InputError(f"{folder} already holds files; give another --out or remove it")


def _refuse_unwritable(folder: Path) -> None:
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


def _point_latest(runs: Path, folder: Path) -> None:
    temporary = runs / f".latest-{os.getpid()}"
    temporary.symlink_to(folder.name)
    os.replace(temporary, runs / "latest")
