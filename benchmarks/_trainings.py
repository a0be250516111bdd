"""What the races share: trainings that are kept when they are done, and how a table was made."""

import hashlib
import json
import os
import platform
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from labkit.tools.labs import version


class Trainings:
    """The trainings of a plan: what is finished is in ``rows`` and ``curves``, and in ``folder``.

    A training is found again by its setting, seed and data; a change of labkit it does not see.

    plan    "images" is handed to ``images_for``
    data    folder with train/ and test/ of MNIST
    anew    forget the finished ones
    train   (setting, images, seed, **limits) -> outcome, ready for JSON, with its ``curve``
    row_of  (run, stage, setting, seed, outcome, **columns) -> row of the table
    said    row -> words for the log
    """

    def __init__(
        self,
        plan: dict,
        data: Path,
        folder: Path,
        anew: bool,
        *,
        train: Callable,
        row_of: Callable,
        said: Callable,
    ):
        self.plan, self._data, self._folder, self._anew = plan, data, folder, anew
        self._train, self._row_of, self._said = train, row_of, said
        self._images = (None, None)
        self.rows, self.curves = [], {}
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, stage: str, setting: dict, seed: int, part: str, limits: dict, **columns) -> dict:
        """Train, unless it is done, and return the new row; ``part`` as in ``images_for``."""
        key = [part, setting, seed, limits, self.plan["images"]]
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
        path = self._folder / f"{digest[:24]}.json"
        outcome = None if self._anew else load_json(path)
        if outcome is None:
            begin = time.perf_counter()
            outcome = self._train(setting, self._part(part), seed, **limits)
            outcome["busy_seconds"] = time.perf_counter() - begin
            path.with_suffix(".part").write_text(json.dumps(outcome))
            os.replace(path.with_suffix(".part"), path)
        run = len(self.rows) + 1
        row = self._row_of(run, stage, setting, seed, outcome, **columns)
        self.rows.append(row)
        self.curves[run] = outcome["curve"]
        print(f"{stage} {seed} {setting}: {self._said(row)}", flush=True)
        return row

    def _part(self, part):
        if self._images[0] != part:
            from _race import images_for

            self._images = (part, images_for(self._data, part, **self.plan["images"]))
        return self._images[1]


def made_by(command: str, machine: dict) -> dict:
    """Return how a table was made: command, versions, cores, day, and how idle the machine was."""
    versions = {name: metadata.version(name) for name in ("mindspore", "numpy")}
    return {
        "command": command,
        "versions": {"labkit": version()} | versions | {"python": platform.python_version()},
        "cores": os.cpu_count(),
        "date": time.strftime("%Y-%m-%d"),
        "idle_before": machine["idle_before"],
    }


def load_json(path: Path):
    """Return what a JSON file holds; None where there is none or a killed program has cut it."""
    try:
        return json.loads(path.read_text())
    except (OSError, json.JSONDecodeError):
        return None
