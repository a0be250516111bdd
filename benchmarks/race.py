"""A race of trainings: trains what a plan still lacks, stores it and prints the tables.

    python benchmarks/NAME.py            prints the stored race
    python benchmarks/NAME.py --all      trains what is not yet done, and stores it for the labs

Finished trainings stay in runs/bench/NAME, by setting, seed, limits and images; a change of labkit
is not noticed: delete the folder to train anew.
"""

import csv
import hashlib
import io
import json
import math
import statistics
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from side_by_side import RESULTS, look_at_machine, print_table

import labkit
from labkit.base.arguments import Parser
from labkit.base.files import write_json, write_text
from labkit.data.mnist import load_arrays
from labkit.data.prepare import prepare
from labkit.labs import results
from labkit.reference.lenet import cross_entropy
from labkit.steps.losses import LossNet

FOLDER = Path(results.__file__).parent
MOMENTUM = 0.9
# The split is independent of a training's seed: all are validated on the same images.
_SPLIT_SEED = 0
_EVALUATION_BATCH = 1000


class Training(NamedTuple):
    """A planned training: fields of its row, images that it has, what is trained, its arguments."""

    row: dict
    part: str  # for ``Race.images``
    setting: dict
    seed: int  # of weights and order
    limits: dict  # further arguments of ``Race.train``


def training(stage: str, part: str, setting: dict, seed: int, limits: dict, **more) -> Training:
    """Return a training whose row has all of its setting."""
    return Training({"stage": stage, **setting, "seed": seed} | more, part, setting, seed, limits)


def mnist(plan: dict, data: Path | None) -> Callable[[str], "Images"]:
    """Start MindSpore; return a function: part of the race -> its images."""
    labkit.start(device="CPU")
    return partial(images_for, data or prepare("mnist"), **plan["images"])


def at_end(plan: dict, row: dict, outcome: dict) -> dict:
    """Return a row's fields for the end of its training; no accuracy if it was never judged."""
    last = outcome["curve"][-1] if outcome["curve"] else {}
    fields = {"updates": last.get("update", 0), "last_accuracy": last.get("accuracy")}
    return fields | {"last_loss": last.get("loss"), "failure": outcome.get("failure") or None}


@dataclass(frozen=True)
class Race:
    """How the trainings of a race are listed, carried out and told in rows."""

    name: str
    plan: dict
    # (plan, rows) -> trainings in order; a row is appended after each training, so that later ones
    # can depend on it
    planned: Callable[[dict, list[dict]], Iterable[Training]]
    # (setting, images, seed, **limits) -> outcome, ready for JSON, with its ``curve``
    train: Callable[..., dict]
    # (plan, row so far, outcome) -> the other fields of the row
    end: Callable[[dict, dict, dict], dict] = at_end
    # (plan, rows) -> fields of the head that follow from the rows
    decided: Callable[[dict, list[dict]], dict] = lambda plan, rows: {}
    # adds what is measured after the trainings
    finish: Callable[[results.Stored, Callable], None] = lambda stored, images: None
    # (plan, folder or None) -> function: part -> images
    images: Callable[[dict, Path | None], Callable[[str], Any]] = mnist
    # stage whose curves are not stored
    no_curves: str | None = None

    def main(self, description: str) -> None:
        """Carry out the command line; ``description`` is the program's docstring."""
        parser = Parser(description=description.splitlines()[0])
        parser.add_argument("--all", action="store_true", help="train what is not yet done")
        parser.add_argument("--data", type=Path, help="folder of the images")
        given = parser.parse_args()
        if given.all:
            write(self.name, self.trained(given.data, RESULTS / self.name), FOLDER)
        self.show(results.load(self.name))

    def show(self, stored: results.Stored) -> None:
        """Print the head, and for each setting of a stage what its trainings reached."""
        for name, value in stored.head.items():
            if name != "plan":
                print(f"{name}: {json.dumps(value)}")
        first = next(iter(self.planned(stored.head["plan"], [])))
        for (stage,), rows in grouped(stored.rows, "stage").items():
            own = [name for name in first.row if name not in ("stage", "seed")]
            own = [name for name in own if len({row[name] for row in rows}) > 1]
            means = [name for name in rows[0] if name not in (*first.row, "run")]
            print(f"\n{stage}, {len(rows)} trainings\n")
            lines = [
                [*map(str, setting), *(mean_of(group, name) for name in means)]
                for setting, group in grouped(rows, *own).items()
            ]
            print_table([*own, *means], lines)

    def trained(self, data: Path | None, work: Path) -> results.Stored:
        """Return the race, with the trainings that are finished in ``work``."""
        plan, machine = self.plan, look_at_machine()
        images = lru_cache(maxsize=1)(self.images(plan, data))
        rows, curves = [], {}
        for run, (fields, *key) in enumerate(self.planned(plan, rows), start=1):
            part, setting, seed, limits = key
            key = json.dumps([*key, plan["images"]], sort_keys=True)
            path = work / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"
            if not path.exists():
                outcome = self.train(setting, images(part), seed, **limits)
                write_json(path, outcome, "the training", indent=None)
            outcome = json.loads(path.read_text())
            row = {"run": run} | fields
            rows.append(row | self.end(plan, row, outcome))
            if row["stage"] != self.no_curves and outcome["curve"]:
                curves[run] = outcome["curve"]
            print(rows[-1], flush=True)
        head = {"command": f"python benchmarks/{self.name}.py --all", **machine, "plan": plan}
        stored = results.Stored(head | self.decided(plan, rows), rows, curves)
        self.finish(stored, images)
        return stored


def write(name: str, stored: results.Stored, folder: Path) -> None:
    """Write the three files of ``name`` into ``folder``, each atomically."""
    points = [{"run": run, **point} for run, points in stored.curves.items() for point in points]
    for path, rows in ((f"{name}.csv", stored.rows), (f"{name}_curves.csv", points)):
        file = io.StringIO()
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_text(folder / path, file.getvalue(), "the stored result")
    write_json(folder / f"{name}.json", stored.head, "the stored result")


def rounded(rate: float) -> float:
    """Return a learning rate rounded to six significant digits, as in the tables."""
    return float(f"{rate:.6g}")


def steps_to(curve: Iterable[Mapping], target: float) -> int | None:
    """Return the update of the first judged point with at least ``target`` accuracy, or None."""
    return next((point["update"] for point in curve if point["accuracy"] >= target), None)


def grouped(rows: Iterable[dict], *names: str) -> dict[tuple, list[dict]]:
    """Return values of these fields -> rows that have them, in the order of the rows."""
    groups: dict[tuple, list[dict]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return groups


def mean_of(rows: Iterable[dict], column: str) -> float | str:
    """Return the mean of a column; of accuracies, or if it has others, the values in it."""
    values = [row[column] for row in rows]
    if "accuracy" not in column and all(isinstance(value, int | float) for value in values):
        return statistics.mean(map(float, values))
    return ", ".join(dict.fromkeys(str(value)[:40] for value in values))


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
    """Return the ``Images`` of a part of the race, from MNIST's folder.

    "validation": the training set without ``held_out`` images, which judge it; "test": the whole
    training set, judged by the test set; "as published": as "test", with the two rescalings in the
    order of MindSpore's tutorial. Only the first ``train`` and ``test`` images are used; None: all.
    """
    rescale = "seed" if part == "as published" else "correct"
    images, labels = load_arrays(data_path, "train", train, rescale=rescale)
    if part != "validation":
        judged = load_arrays(data_path, "test", test, rescale=rescale)
        return Images(images, labels, np.arange(len(labels)), *judged)
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(labels))
    out = np.sort(order[:held_out])
    return Images(images, labels, np.sort(order[held_out:]), images[out], labels[out])


def seeded(make: Callable[[], nn.Cell], seed: int) -> nn.Cell:
    """Return a new network whose weights follow from the seed."""
    ms.set_seed(seed)
    np.random.seed(seed)
    return make()


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


def evenly(total: int, points: int) -> set[int]:
    """Return ``points`` updates at equal distances, the last one ``total``."""
    return {round(total * number / points) for number in range(1, points + 1)}


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
    """Train on batches and return the outcome, ready for JSON.

    Args:
        step: makes an update of ``network`` from every ``workers`` batches
        data: the images
        stream: rows of each batch
        judged: updates after which the network is judged
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
