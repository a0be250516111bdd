"""A race of trainings: trains what a plan still lacks, stores, checks and prints the table.

A plan is a dict; ``Race`` says how its trainings are listed, carried out and told in rows. The
other functions here load images, train and judge.
"""

import argparse
import csv
import hashlib
import io
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mindspore import Tensor, nn
from side_by_side import RESULTS, look_at_machine

import labkit
from labkit.base.arguments import Parser
from labkit.base.files import write_json, write_text
from labkit.base.project import version
from labkit.data.mnist import load_arrays
from labkit.data.prepare import prepare
from labkit.errors import InputError, refuse_unknown
from labkit.labs.results import CURVES, FOLDER, Stored, load
from labkit.reference.lenet import cross_entropy
from labkit.steps.losses import LossNet

MOMENTUM = 0.9
# The split is independent of a training's seed: all are validated on the same images.
_SPLIT_SEED = 0
_EVALUATION_BATCH = 1000


class Training(NamedTuple):
    """A planned training.

    Attributes:
        stage: what it is for, such as "tune" or "race"
        setting: what is trained; part of its row, as ``columns`` are
        seed: seed of weights and order
        part: images that it is trained on and judged by, for ``Race.images``
        limits: further arguments of ``Race.train``
        columns: further fields of its row
    """

    stage: str
    setting: dict
    seed: int
    part: str
    limits: dict
    columns: dict = {}

    def fields(self) -> dict:
        """Return the fields of the row that the plan decides."""
        return {"stage": self.stage, **self.setting, "seed": self.seed, **self.columns}


def mnist(plan: dict, data: Path | None) -> Callable[[str], "Images"]:
    """Start MindSpore; return a function: part of the race -> its images."""
    labkit.start(device="CPU")
    return partial(images_for, data or prepare("mnist"), **plan["images"])


@dataclass(frozen=True)
class Race:
    """How the trainings of a race are listed, carried out and told in rows.

    Attributes:
        name: name of the stored race
        plans: "all" and "quick" -> plan
        planned: (plan, rows) -> trainings in order; a row is appended after each training, so that
            later ones can depend on it
        train: (setting, images, seed, **limits) -> outcome, ready for JSON, with its ``curve``
        updates_of: (plan, row) -> planned updates; None if the training stopped earlier
        show: prints the stored race
        of_curve: (plan, row so far, curve) -> fields of the row that follow from the curve
        of_outcome: outcome -> the other fields
        fields: training -> fields of its row that the plan decides
        decided: (plan, rows) -> fields of the head that follow from the rows
        finish: (stored, plan, images) -> None, adds what is measured after the trainings
        check_more: raises an error if what is special to this race is wrong
        images: (plan, folder or None) -> function: part -> images
        meaning: what the fields mean, for the head
        keeps: row -> whether its curve is stored
        packages: packages beside MindSpore and NumPy whose versions are stored
    """

    name: str
    plans: dict
    planned: Callable[[dict, list[dict]], Iterable[Training]]
    train: Callable[..., dict]
    updates_of: Callable[[dict, dict], int | None]
    show: Callable[[Any], None]
    of_curve: Callable[[dict, dict, list[dict]], dict] = lambda plan, row, curve: at_end(curve)
    of_outcome: Callable[[dict], dict] = lambda outcome: {"failure": outcome["failure"] or None}
    fields: Callable[[Training], dict] = Training.fields
    decided: Callable[[dict, list[dict]], dict] = lambda plan, rows: {}
    finish: Callable[[Stored, dict, Callable], None] = lambda stored, plan, images: None
    check_more: Callable[[Stored], None] = lambda stored: None
    images: Callable[[dict, Path | None], Callable[[str], Any]] = mnist
    meaning: dict = field(default_factory=dict)
    keeps: Callable[[dict], bool] = lambda row: True
    packages: tuple[str, ...] = ()

    def main(self, description: str) -> None:
        """Carry out the command line; ``description`` is the program's docstring."""
        parser = Parser(
            description=description, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        what = parser.add_mutually_exclusive_group()
        for option in self.plans:
            what.add_argument(f"--{option}", dest="train", action="store_const", const=option)
        parser.add_argument("--anew", action="store_true", help="forget the finished trainings")
        parser.add_argument("--data", type=Path, help="folder of the images")
        parser.add_argument("--out", type=Path, help="folder of the stored race")
        options = parser.parse_args()
        # Only --all replaces the race that came with labkit.
        work = RESULTS / (self.name + ("_quick" if options.train == "quick" else ""))
        out = options.out or (work / "stored" if options.train == "quick" else FOLDER)
        if options.train:
            stored = self.trained(options.train, options.data, work, options.anew)
            self.check(stored)
            write(self.name, stored, out)
        self.show(load(self.name, out))

    def trained(self, option: str, data: Path | None, work: Path, anew: bool = False) -> Stored:
        """Return the race of a plan, with the trainings that are finished in ``work``.

        A finished training is identified by its setting, seed, limits and images; a change of
        labkit is not noticed.
        """
        plan, machine = self.plans[option], look_at_machine()
        images = lru_cache(maxsize=1)(self.images(plan, data))
        rows, curves = [], {}
        for run, training in enumerate(self.planned(plan, rows), start=1):
            _, setting, seed, part, limits, _ = training
            key = json.dumps([part, setting, seed, limits, plan["images"]], sort_keys=True)
            path = work / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"
            if anew or not path.exists():
                outcome = self.train(setting, images(part), seed, **limits)
                write_json(path, outcome, "the training", indent=None)
            outcome = json.loads(path.read_text())
            row = {"run": run} | self.fields(training)
            row |= self.of_curve(plan, row, outcome["curve"]) | self.of_outcome(outcome)
            rows.append(row)
            if self.keeps(row) and outcome["curve"]:
                curves[run] = outcome["curve"]
            print(row, flush=True)
        versions = {name: metadata.version(name) for name in ("mindspore", "numpy", *self.packages)}
        head = {
            "command": f"python benchmarks/{self.name}.py --{option}",
            "versions": {"labkit": version()} | versions | {"python": platform.python_version()},
            "cores": os.cpu_count(),
            "date": time.strftime("%Y-%m-%d"),
            "idle_before": machine["idle_before"],
        }
        if self.meaning:
            head["meaning"] = self.meaning
        stored = Stored(head | {"plan": plan} | self.decided(plan, rows), rows, curves)
        self.finish(stored, plan, images)
        return stored

    def check(self, stored: Stored) -> None:
        """Raise ``InputError`` unless the rows agree with the plan, the curves and the head."""
        plan, rows, missing = stored.head["plan"], [], 0
        for number, training in enumerate(self.planned(plan, rows), start=1):
            if number > len(stored.rows):
                missing = 1
                break
            row, curve = stored.rows[number - 1], stored.curves.get(number, [])
            for point in curve:
                if point["accuracy"] is not None and not 0 <= point["accuracy"] <= 1:
                    raise InputError(f"row {number}: expected accuracies 0 to 1, got {point}")
            expected = {"run": number} | self.fields(training)
            if self.keeps(row):
                expected |= self.of_curve(plan, row, curve)
                _expect(f"row {number}, by its curve", row, expected)
                updates = self.updates_of(plan, row)
                if updates is not None:
                    expected["updates"] = updates
            _expect(f"row {number}, by its plan and curve", row, expected)
            rows.append(row)
        if missing or len(rows) != len(stored.rows):
            more = "more than " if missing else ""
            count = f"expected {more}{len(rows)}, as planned, got {len(stored.rows)}"
            raise InputError(f"rows: {count}")
        for name, value in self.decided(plan, stored.rows).items():
            if stored.head[name] != json.loads(json.dumps(value)):
                raise InputError(f"{name}: not those of the best trainings of the tuning: {value}")
        self.check_more(stored)


def _expect(what: str, row: dict, expected: dict) -> None:
    # Compared as strings, since a NaN is not equal to itself.
    wrong = {name: row[name] for name in expected if str(row[name]) != str(expected[name])}
    if wrong:
        raise InputError(f"{what}: expected { {n: expected[n] for n in wrong} }, got {wrong}")


def write(name: str, stored: Stored, folder: str | os.PathLike) -> None:
    """Write the three files of ``name`` into ``folder``, each atomically."""
    refuse_unknown("stored result", name, CURVES)
    folder, what = Path(folder), "the stored result"
    points = [{"run": run, **point} for run, points in stored.curves.items() for point in points]
    for path, rows, names in (
        (f"{name}.csv", stored.rows, stored.rows[0]),
        (f"{name}_curves.csv", points, CURVES[name]),
    ):
        file = io.StringIO()
        writer = csv.DictWriter(file, list(names), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_text(folder / path, file.getvalue(), what)
    write_json(folder / f"{name}.json", stored.head, what)


def steps_to(curve: Iterable[dict], target: float) -> int | None:
    """Return the update of the first point with at least ``target`` accuracy, or None.

    A curve is judged at intervals of several updates; the number is rounded up to such an update.
    """
    judged = (point for point in curve if point["accuracy"] is not None)
    return next((point["update"] for point in judged if point["accuracy"] >= target), None)


def rounded(rate: float) -> float:
    """Return a learning rate rounded to six significant digits, as in the tables."""
    return float(f"{rate:.6g}")


def at_end(curve: list[dict]) -> dict:
    """Return a row's fields for the end of its training; no accuracy if it was never judged."""
    last = curve[-1] if curve else {"update": 0, "accuracy": None, "loss": None}
    return {
        "updates": last["update"],
        "last_accuracy": last["accuracy"],
        "last_loss": last["loss"],
    }


def percents(accuracies: list[float] | None) -> list[str]:
    """Return the mean and the individual accuracies in %, as two columns; empty for None."""
    if accuracies is None:
        return ["", ""]
    texts = " ".join(f"{100 * accuracy:.2f}" for accuracy in accuracies)
    return [f"{100 * statistics.mean(accuracies):.2f}", texts]


@dataclass(frozen=True)
class Images:
    """Data of a training: images (N, 1, 32, 32) float32, labels (N,), and those it is judged by.

    ``rows`` selects the images that it trains on.
    """

    images: np.ndarray
    labels: np.ndarray
    rows: np.ndarray
    judged_images: np.ndarray
    judged_labels: np.ndarray


def images_for(
    data_path: Path, part: str, *, held_out: int, train: int | None, test: int | None
) -> Images:
    """Return the ``Images`` of a part of the race.

    Args:
        data_path: folder with train/ and test/ of MNIST
        part: "validation": the training set without ``held_out`` images, which judge it; "test":
            the whole training set, judged by the test set; "as published": as "test", with the two
            rescalings in the order of MindSpore's tutorial
        held_out: number of images held out
        train: use only the first ``train`` images of the training set; None: all
        test: use only the first ``test`` images of the test set; None: all
    """
    rescale = "seed" if part == "as published" else "correct"
    images, labels = load_arrays(data_path, "train", train, rescale=rescale)
    if part != "validation":
        judged = load_arrays(data_path, "test", test, rescale=rescale)
        return Images(images, labels, np.arange(len(labels)), *judged)
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(labels))
    out = np.sort(order[:held_out])
    return Images(images, labels, np.sort(order[held_out:]), images[out], labels[out])


def loss_net_of(network: nn.Cell) -> LossNet:
    """Return the network with the mean cross-entropy of its logits."""
    return LossNet(network, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"))


def batches(rows: np.ndarray, total: int, seed: Any, size: int) -> Iterator[np.ndarray]:
    """Yield ``total`` batches of rows, in a new order each epoch, without incomplete batches."""
    random = np.random.default_rng(seed)
    made = 0
    while True:
        order = random.permutation(rows)
        for start in range(0, len(order) - size + 1, size):
            if made == total:
                return
            made += 1
            yield order[start : start + size]


def run(
    step: Callable,
    network: nn.Cell,
    data: Images,
    stream: Iterable[np.ndarray],
    judged: Container[int],
    *,
    workers: int = 1,
    after: Callable[[int], object] = lambda update: None,
    extra: Callable[[], dict] = dict,
    stop_at: float | None = None,
) -> dict:
    """Train on the batches of ``stream`` and return the outcome, ready for JSON.

    Args:
        step: makes an update from every ``workers`` batches
        network: network that ``step`` trains
        data: the images
        stream: rows of each batch
        judged: updates after which the network is judged
        workers: batches in an update
        after: called after each update with its number
        extra: returns further fields of a point
        stop_at: stop at the first evaluation with at least this accuracy

    Returns:
        ``curve``, points as ``labkit.labs.results`` stores them; ``failure``, what stopped the
        training, or an empty string; ``seconds``, with compilation, without judging.
    """
    curve, losses, failure, seconds = [], [], "", 0.0
    begin = time.perf_counter()
    try:
        for number, rows in enumerate(stream, start=1):
            losses.append(step(Tensor(data.images[rows]), Tensor(data.labels[rows])))
            update, rest = divmod(number, workers)
            if rest:
                continue
            after(update)
            if update not in judged:
                continue
            training_loss = float(np.mean([float(loss.asnumpy()) for loss in losses]))
            seconds += time.perf_counter() - begin
            accuracy, loss = judge(network, data)
            point = {"update": update, "accuracy": accuracy, "loss": loss}
            curve.append(point | {"training_loss": training_loss} | extra())
            losses, begin = [], time.perf_counter()
            if not math.isfinite(loss + training_loss):
                failure = "the loss is not finite"
                break
            if stop_at is not None and accuracy >= stop_at:
                break
    except (FloatingPointError, RuntimeError, ValueError) as error:
        failure = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return {"curve": curve, "failure": failure, "seconds": seconds}


def updating(step: Callable, data: Images, stream: Iterator[np.ndarray]) -> Callable[[], float]:
    """Return a function that makes one update with the next batch and waits for its loss."""

    def call():
        rows = next(stream)
        return float(step(Tensor(data.images[rows]), Tensor(data.labels[rows])).asnumpy())

    return call


def judge(network: nn.Cell, data: Images) -> tuple[float, float]:
    """Return (accuracy, mean loss) over all images that the training is judged by."""
    network.set_train(False)
    starts = range(0, len(data.judged_labels), _EVALUATION_BATCH)
    parts = (data.judged_images[start : start + _EVALUATION_BATCH] for start in starts)
    logits = np.concatenate([network(Tensor(part)).asnumpy() for part in parts])
    network.set_train(True)
    return score(logits, data.judged_labels)


def score(logits: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Return (accuracy, mean cross-entropy in nats) of logits (N, classes) and labels (N,)."""
    loss, _ = cross_entropy(logits.astype(np.float64), labels)
    return float((logits.argmax(axis=1) == labels).mean()), loss
