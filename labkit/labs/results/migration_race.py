"""The stored race of PyTorch and MindSpore, which train the same network, as lab 02 reads it."""

import os
from typing import Any

from labkit.errors import refuse_unknown
from labkit.labs.results import stored as files
from labkit.labs.results.stored import Stored, by_seed

NAME = "migration_race"
FRAMEWORKS = ("PyTorch", "MindSpore")
AVX2 = "PyTorch, AVX2"
ORDERS = ("given", "backwards")


def load(folder: str | os.PathLike | None = None) -> Stored:
    """Return the stored race; as ``results.load``."""
    return files.load(NAME, folder)


def setting_of(framework: str, order: str = "given") -> dict[str, str]:
    """Return the setting of one training; raise ``InputError`` for an unknown name."""
    refuse_unknown("framework", framework, FRAMEWORKS)
    refuse_unknown("order", order, ORDERS)
    return {"framework": framework, "order": order}


def rows_of(stored: Stored, framework: str, order: str = "given") -> list[dict[str, Any]]:
    """Return the rows of one setting, by seed; raise ``InputError`` if it was not raced."""
    setting = setting_of(framework, order)
    return by_seed(stored.select(**setting), setting, NAME)


def accuracies(stored: Stored, framework: str) -> list[float]:
    """Return validation accuracies 0 .. 1 after the last epoch, by seed."""
    return [row["last_accuracy"] for row in rows_of(stored, framework)]


def gap_and_spread(stored: Stored) -> tuple[float, float]:
    """Return the gap between the frameworks' mean accuracies, and the spread over seeds.

    The spread is the largest accuracy minus the smallest of one framework; of the two frameworks'
    spreads, the smaller is returned.
    """
    ends = [accuracies(stored, framework) for framework in FRAMEWORKS]
    ours, theirs = (sum(by_framework) / len(by_framework) for by_framework in ends)
    return abs(ours - theirs), min(max(each) - min(each) for each in ends)


def loss_differences(
    stored: Stored, seed: int, framework: str, order: str = "given"
) -> list[float]:
    """Return |loss - PyTorch's| / PyTorch's of each update, for the same weights and images.

    Args:
        stored: the stored race
        seed: seed of both trainings
        framework: framework of the training that is compared with PyTorch's in the given order
        order: order of the images in that training

    Raises:
        InputError: if such a training was not raced.
    """
    ours, theirs = (
        [p["training_loss"] for p in stored.curves[_of_seed(stored, seed, *which)["run"]]]
        for which in ((framework, order), ("PyTorch", "given"))
    )
    return [abs(our - their) / their for our, their in zip(ours, theirs, strict=True)]


def _of_seed(stored: Stored, seed: int, framework: str, order: str) -> dict[str, Any]:
    rows = [row for row in rows_of(stored, framework, order) if row["seed"] == seed]
    return by_seed(rows, {"framework": framework, "order": order, "seed": seed}, NAME)[0]
