"""Functions shared by the races: arguments, finished trainings, tables and their checks.

Finished trainings are kept on disk; a table is checked to agree with its plan.
"""

import argparse
import csv
import hashlib
import io
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from _side_by_side import RESULTS, look_at_machine

import labkit
from labkit.base.arguments import Parser
from labkit.base.files import write_json, write_text
from labkit.base.project import version
from labkit.errors import InputError, refuse_unknown
from labkit.labs.results import Stored, load
from labkit.labs.results.races import CURVES, FOLDER


def arguments(
    description: str,
    options: Sequence[str],
    data: str = "train/ and test/ of MNIST",
    *,
    figure: bool = False,
) -> argparse.Namespace:
    """Return a race's arguments; ``train`` is the option that was given, or None.

    Args:
        description: the program's docstring
        options: names of the mutually exclusive flags
        data: description of what the folder of ``--data`` holds
        figure: whether the program can draw its race, with ``--figure``
    """
    parser = Parser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    for option in options:
        what.add_argument(f"--{option}", dest="train", action="store_const", const=option)
    parser.add_argument("--anew", action="store_true", help="forget the finished trainings")
    parser.add_argument("--data", type=Path, help=f"folder with {data}")
    parser.add_argument("--out", type=Path, help="where the stored race is; default: as said above")
    if figure:
        parser.add_argument("--figure", type=Path, help="also draw the race into this PNG file")
    return parser.parse_args()


def train_and_show(
    name: str,
    options: argparse.Namespace,
    train_all: Callable[[argparse.Namespace, Path, dict], Stored],
    check: Callable[[Stored], None],
    show: Callable[[Stored], None],
    draw: Callable[[Stored, Path], None] | None = None,
) -> None:
    """Train and store a race, if asked for; then print it, and draw it.

    Only --all replaces the race that came with labkit.

    Args:
        name: name of the stored race
        options: result of ``arguments``
        train_all: (options, folder for finished trainings, machine) -> the race
        check: raises an error if the race does not agree with its plan
        show: prints the race
        draw: writes its figure
    """
    work = RESULTS / (name + ("_quick" if options.train == "quick" else ""))
    out = options.out or (FOLDER if options.train in (None, "all") else work / "stored")
    if options.train:
        machine = look_at_machine()
        labkit.start(device="CPU")
        stored = train_all(options, work, machine)
        check(stored)
        write(name, stored, out)
    stored = load(name, out)
    show(stored)
    if draw and options.figure:
        import matplotlib

        matplotlib.use("agg")
        draw(stored, options.figure)


def write(name: str, stored: Stored, folder: str | os.PathLike) -> None:
    """Write the three files of ``name`` into ``folder``, each atomically."""
    refuse_unknown("stored result", name, CURVES)
    folder, what = Path(folder), "the stored result"
    points = [{"run": run, **point} for run, points in stored.curves.items() for point in points]
    write_text(folder / f"{name}.csv", _as_csv(stored.rows, stored.rows[0]), what)
    write_text(folder / f"{name}_curves.csv", _as_csv(points, CURVES[name]), what)
    write_json(folder / f"{name}.json", stored.head, what)


def _as_csv(rows: list[dict], names: Iterable[str]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


class Trainings:
    """The trainings of a plan; finished ones are in ``rows`` and ``curves``, and in ``folder``.

    A stored training is identified by its setting, seed, limits and data; a change of labkit is not
    noticed.

    Args:
        plan: its "images" select the images and are part of a training's identity
        images: part -> images that are passed to ``train``
        folder: folder of the finished trainings
        anew: ignore the finished trainings
        train: (setting, images, seed, **limits) -> outcome, ready for JSON, with its ``curve``
        row_of: (run, stage, setting, seed, outcome, **columns) -> row of the table
        summary: row -> text for the log
    """

    def __init__(
        self,
        plan: dict,
        images: Callable[[str], object],
        folder: Path,
        anew: bool,
        *,
        train: Callable,
        row_of: Callable,
        summary: Callable,
    ):
        self.plan, self._folder, self._anew = plan, folder, anew
        self._train, self._row_of, self._summary = train, row_of, summary
        self._images = lru_cache(maxsize=1)(images)
        self.rows, self.curves = [], {}

    def add(self, stage: str, setting: dict, seed: int, part: str, limits: dict, **columns) -> dict:
        """Train, unless the training is finished, and return its new row."""
        key = [part, setting, seed, limits, self.plan["images"]]
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
        path = self._folder / f"{digest[:24]}.json"
        outcome = None if self._anew else load_json(path)
        if outcome is None:
            begin = time.perf_counter()
            outcome = self._train(setting, self._images(part), seed, **limits)
            outcome["busy_seconds"] = time.perf_counter() - begin
            write_json(path, outcome, "the training", indent=None)
        run = len(self.rows) + 1
        row = self._row_of(run, stage, setting, seed, outcome, **columns)
        self.rows.append(row)
        self.curves[run] = outcome["curve"]
        print(f"{stage} {seed} {setting}: {self._summary(row)}", flush=True)
        return row


def at_end(curve: list[dict]) -> dict:
    """Return a row's fields for the end of its training; no accuracy if it was never judged."""
    last = curve[-1] if curve else {"update": 0, "accuracy": None, "loss": None}
    return {
        "updates": last["update"],
        "last_accuracy": last["accuracy"],
        "last_loss": last["loss"],
    }


def check(
    stored: Stored,
    planned: list[tuple[str, dict, int]],
    follows: Callable[[dict, list[dict]], dict],
    updates_of: Callable[[dict], int | None],
) -> None:
    """Raise ``InputError`` unless a table agrees with its plan.

    Args:
        stored: the table
        planned: (stage, setting, seed) of every row, in order
        follows: (row, its curve) -> the fields of the row that follow from them
        updates_of: row -> planned number of updates; None if the training stopped earlier
    """
    if len(stored.rows) != len(planned):
        raise InputError(f"rows: expected {len(planned)}, as planned, got {len(stored.rows)}")
    pairs = zip(stored.rows, planned, strict=True)
    for number, (row, (stage, setting, seed)) in enumerate(pairs, start=1):
        curve = stored.curves.get(number, [])
        expected = {"run": number, "stage": stage, "seed": seed, **setting}
        expected |= follows(row, curve)
        if updates_of(row) is not None:
            expected["updates"] = updates_of(row)
            _expect(f"row {number}, by its curve", row, at_end(curve))
        _expect(f"row {number}, by its plan and curve", row, expected)
        for point in curve:
            if point["accuracy"] is not None and not 0 <= point["accuracy"] <= 1:
                raise InputError(f"row {number}: expected accuracies 0 to 1, got {point}")


def _expect(what: str, row: dict, expected: dict) -> None:
    # Compared as strings, since a NaN is not equal to itself.
    wrong = {name: row[name] for name in expected if str(row[name]) != str(expected[name])}
    if wrong:
        raise InputError(f"{what}: expected { {n: expected[n] for n in wrong} }, got {wrong}")


def made_by(program: str, option: str, machine: dict, *packages: str) -> dict:
    """Return how a table was made: command, versions, cores, date, idle share of the machine."""
    versions = {name: metadata.version(name) for name in ("mindspore", "numpy", *packages)}
    return {
        "command": f"python benchmarks/{program}.py --{option}",
        "versions": {"labkit": version()} | versions | {"python": platform.python_version()},
        "cores": os.cpu_count(),
        "date": time.strftime("%Y-%m-%d"),
        "idle_before": machine["idle_before"],
    }


def load_json(path: Path):
    """Return the contents of a JSON file; None if it is missing or truncated by a kill."""
    try:
        return json.loads(path.read_text())
    except (OSError, json.JSONDecodeError):
        return None


def percents(accuracies: list[float] | None) -> list[str]:
    """Return the mean and the individual accuracies in %, as two columns; empty for None."""
    if accuracies is None:
        return ["", ""]
    texts = " ".join(f"{100 * accuracy:.2f}" for accuracy in accuracies)
    return [f"{100 * statistics.mean(accuracies):.2f}", texts]
