"""A lab's run folder, for its notebook: figures, files, and results.json at the end."""

import contextlib
import itertools
import os
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from labkit.base.files import make_folder, whole_file, write_json
from labkit.base.project import project_root, version
from labkit.errors import refuse_unknown
from labkit.labs.run_files import FIGURES, RECORDS, RESULTS, plain
from labkit.training.records import Records

_FIGURE_DPI = 110


@dataclass(frozen=True)
class Run:
    """One execution of one lab and the folder it writes to; made by ``Run.open``.

    Attributes:
        lab: name of the lab.
        preset: smoke, lab or paper.
        parameters: the lab's parameters, by name.
        runtime: what ``labkit.start`` returned.
        folder: the run folder.
        started: start of the run, in seconds of ``time.monotonic``.
    """

    lab: str
    preset: str
    parameters: Mapping[str, Any]
    runtime: Any
    folder: Path
    started: float

    @classmethod
    def open(
        cls, lab: str, *, preset: str, parameters: Mapping[str, Any], runtime: Any = None
    ) -> "Run":
        """Open the run folder: ``$LABKIT_RUN`` if set, else a new ``runs/<lab>-<preset>-<time>``.

        ``runs`` is made in the project around the working folder, or else in the working folder.

        Args:
            lab: name of the lab.
            preset: smoke, lab or paper.
            parameters: the lab's parameters, by name.
            runtime: what ``labkit.start`` returned.

        Raises:
            InputError: if the folder cannot be made.
        """
        asked = os.environ.get("LABKIT_RUN")
        if asked:
            folder = Path(asked).resolve()
            make_folder(folder)
        else:
            folder = new_folder((project_root() or Path.cwd()) / "runs", f"{lab}-{preset}-")
        return cls(lab, preset, dict(parameters), runtime, folder, time.monotonic())

    def path(self, name: str) -> Path:
        """Return the path of a file in the run folder; make its parent folder.

        Args:
            name: name of the file, relative to the run folder.
        """
        place = self.folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def figure(self, figure: Any, name: str) -> Path:
        """Save a figure as ``figures/<name>.png`` and return its path.

        Args:
            figure: a matplotlib figure.
            name: name of the file, without its suffix.
        """
        place = self.path(f"{FIGURES}/{name}.png")
        with whole_file(place, "the figure") as temporary:
            figure.savefig(temporary, format="png", dpi=_FIGURE_DPI, bbox_inches="tight")
        return place

    def records(self, name: str) -> Records:
        """Return new records for a custom loop, written row by row to ``<name>/records.csv``.

        Records of an earlier execution are replaced.

        Args:
            name: name of the folder.
        """
        place = self.path(f"{name}/{RECORDS}")
        place.unlink(missing_ok=True)
        return Records(place)

    def finish(self, metrics: Mapping[str, Any], headline: Sequence[str] = ()) -> Path:
        """Write results.json with status "passed".

        Under `labkit run` the status stays "running" until the kernel has ended and the runner
        writes the final status, because a later cell may still fail.

        Args:
            metrics: numbers, texts, booleans, or lists and mappings of them. NaN and the infinities
                are written as the texts "nan", "inf" and "-inf".
            headline: names of the metrics that the closing table of `labkit run` shows.

        Returns:
            The path of results.json.

        Raises:
            InputError: if a headline is not a metric; nothing is written then.
            TypeError: if a metric cannot be written; nothing is written then.
        """
        for name in headline:
            refuse_unknown("headline metric", name, metrics)
        device = getattr(self.runtime, "device", None)
        record = describe(self.lab, self.preset, self.parameters, device)
        if is_dataclass(self.runtime) and not isinstance(self.runtime, type):
            record["runtime"] = plain(asdict(self.runtime), "runtime")
        record["seconds"] = round(time.monotonic() - self.started, 3)
        record["metrics"] = plain(dict(metrics), "metrics")
        record["headline"] = list(headline)
        record["status"] = "passed"
        place = self.folder / RESULTS
        # A later cell may still fail: under `labkit run` the runner writes the final status.
        if os.environ.get("LABKIT_HEADLESS") and os.environ.get("LABKIT_RUN"):
            record["status"] = "running"
        write_json(place, record, "results.json", indent=2, allow_nan=False, parents=False)
        return place


def describe(
    lab: str, preset: str, parameters: Mapping[str, Any], device: str | None
) -> dict[str, Any]:
    """Return the part of results.json that every run has, whether it passed or failed."""
    packages = {name: installed_version(name) for name in ("mindspore", "numpy")}
    packages["labkit"] = version()
    return {
        "lab": lab,
        "preset": preset,
        "parameters": plain(dict(parameters), "parameters"),
        "device": device,
        "versions": {
            "python": platform.python_version(),
            **packages,
            "platform": platform.platform(),
        },
        "git": git_revision(Path(__file__).parent),
    }


def new_folder(parent: Path, prefix: str = "") -> Path:
    """Make and return ``parent/<prefix><time>``, numbered if it already exists for that second.

    Raises:
        InputError: if the folder cannot be made.
    """
    stamp = prefix + time.strftime("%Y%m%d-%H%M%S")
    make_folder(parent)
    for number in itertools.count(1):
        folder = parent / (stamp if number == 1 else f"{stamp}-{number}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise AssertionError("unreachable")


def installed_version(package: str) -> str | None:
    """Return the version of an installed package without importing it, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def git_revision(folder: Path) -> str | None:
    """Return the git revision of the checkout that labkit runs from, with "+" if it was changed.

    None if it is no checkout: an unpacked archive inside the user's own repository must not record
    that repository's revision.
    """
    root = project_root(folder)
    if root is None or not (root / ".git").exists():
        return None
    revision, changes = _git(root, "rev-parse", "HEAD"), _git(root, "status", "--porcelain")
    return revision and revision + ("" if changes == "" else "+")


def _git(root: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
