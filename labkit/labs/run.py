"""A lab's run folder: figures, records.csv files, log.txt, the notebook, and results.json."""

import contextlib
import itertools
import math
import os
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from labkit.base.files import make_folder, whole_file, write_json
from labkit.base.project import own_checkout, project_root, version
from labkit.errors import refuse_unknown
from labkit.training.records import Records

RESULTS, RECORDS = "results.json", "records.csv"
LOG, FIGURES = "log.txt", "figures"


@dataclass(frozen=True)
class Run:
    """One execution of one lab and the folder it writes to; made by ``Run.open``.

    ``runtime`` is what ``labkit.start`` returned; ``started`` is in seconds of ``time.monotonic``.
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

        ``runs`` is in the project around the working folder, or else in the working folder.

        Raises:
            InputError: if the folder cannot be made.
        """
        asked = os.environ.get("LABKIT_RUN")
        if asked:
            folder = make_folder(asked).resolve()
        else:
            folder = new_folder((project_root() or Path.cwd()) / "runs", f"{lab}-{preset}-")
        # What does not compile is explained there, and not in rank_0/ beside the notebook.
        os.environ.setdefault("MS_OM_PATH", str(folder))
        return cls(lab, preset, dict(parameters), runtime, folder, time.monotonic())

    def path(self, name: str) -> Path:
        """Return the path of a file in the run folder; make its parent folder."""
        place = self.folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def figure(self, figure: Any, name: str) -> None:
        """Save a matplotlib figure as ``figures/<name>.png``."""
        with whole_file(self.path(f"{FIGURES}/{name}.png"), "the figure") as temporary:
            figure.savefig(temporary, format="png", dpi=110, bbox_inches="tight")

    def records(self, name: str) -> Records:
        """Return new records for a custom loop, written row by row to ``<name>/records.csv``.

        Records of an earlier execution are replaced.
        """
        place = self.path(f"{name}/{RECORDS}")
        place.unlink(missing_ok=True)
        return Records(place)

    def finish(self, metrics: Mapping[str, Any], headline: Sequence[str] = ()) -> Path:
        """Write results.json and return its path; nothing is written if an argument is refused.

        Its status is "passed"; under `labkit run` "running" until the kernel has ended, because a
        later cell may still fail. The closing table of `labkit run` shows the ``headline`` metrics.

        Raises:
            InputError: if a headline is not a metric.
            TypeError: if a metric cannot be written, see ``plain``.
        """
        for name in headline:
            refuse_unknown("headline metric", name, metrics)
        headless = os.environ.get("LABKIT_HEADLESS") and os.environ.get("LABKIT_RUN")
        device = getattr(self.runtime, "device", None)
        record = describe(self.lab, self.preset, self.parameters, device) | {
            "runtime": self.runtime and plain(vars(self.runtime), "runtime"),
            "seconds": round(time.monotonic() - self.started, 3),
            "metrics": plain(metrics, "metrics"),
            "headline": list(headline),
            "status": "running" if headless else "passed",
        }
        place = self.folder / RESULTS
        write_json(place, record, RESULTS, indent=2, allow_nan=False)
        return place


def describe(
    lab: str, preset: str, parameters: Mapping[str, Any], device: str | None
) -> dict[str, Any]:
    """Return the part of results.json that every run has, whether it passed or failed."""
    versions = {name: installed_version(name) for name in ("mindspore", "numpy")}
    versions |= {"labkit": version(), "platform": platform.platform()}
    return {
        "lab": lab,
        "preset": preset,
        "parameters": plain(parameters, "parameters"),
        "device": device,
        "versions": {"python": platform.python_version(), **versions},
        "git": _git_revision(),
    }


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
    value = value.asnumpy() if hasattr(value, "asnumpy") else value
    if hasattr(value, "tolist"):
        return plain(value.tolist(), name)
    expected = "numbers, texts, lists and mappings of them"
    raise TypeError(f"{name}: expected {expected}, got {type(value).__name__}")


def new_folder(parent: Path, prefix: str = "") -> Path:
    """Make and return ``parent/<prefix><time>``, numbered if it already exists for that second."""
    make_folder(parent)
    stamp = prefix + time.strftime("%Y%m%d-%H%M%S")
    for suffix in itertools.chain([""], (f"-{number}" for number in itertools.count(2))):
        with contextlib.suppress(FileExistsError):
            (parent / (stamp + suffix)).mkdir()
            break
    return parent / (stamp + suffix)


def now() -> str:
    """Return the time as ISO 8601 text, with the offset from UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def last_lines(path: Path, count: int) -> list[str]:
    """Return the last lines of a log that are not empty, as a terminal shows them."""
    # As bytes: text mode would make a line of each state of a progress bar.
    text = path.read_bytes().decode("utf-8", "replace") if path.exists() else ""
    lines = (line.rstrip("\r").rsplit("\r", 1)[-1].rstrip() for line in text.split("\n"))
    return [line for line in lines if line][-count:]


def installed_version(package: str) -> str | None:
    """Return the version of an installed package without importing it, or None."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def _git_revision() -> str | None:
    """Return the git revision of the checkout that labkit runs from, with "+" if it was changed."""
    root = own_checkout()
    # An unpacked archive inside the user's own repository must not record that one's revision.
    if root is None or not (root / ".git").exists():
        return None
    options = ("--always", "--abbrev=40", "--exclude=*", "--dirty=+")
    command = ["git", "-C", str(root), "describe", *options]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        return done.stdout.strip()
    return None
