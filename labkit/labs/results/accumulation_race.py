"""Stored trainings of the tutorial with and without its four bugs, as lab 01 reads them."""

import os

from labkit.errors import refuse_unknown
from labkit.labs.results import stored as files
from labkit.labs.results.stored import Stored, by_seed

NAME = "accumulation_race"
BUGS = ("four", "none")
# Losses that the tutorial prints: the first one, the last one of the first epoch, and the 459th one
# of the second epoch. A row has each in the column ``loss_`` + value: ``loss_first`` ...
PRINTED = {"epoch 1, step 1": "first", "epoch 1, the last step": "end", "epoch 2, step 459": "459"}


def load(folder: str | os.PathLike | None = None) -> Stored:
    """Return the stored trainings; as ``results.load``."""
    return files.load(NAME, folder)


def values(
    stored: Stored, column: str, bugs: str = "four", learning_rate: float = 0.01
) -> list[float]:
    """Return a column of one setting's trainings, by seed.

    Args:
        stored: the stored trainings
        column: name of a column, such as ``last_accuracy``, or ``loss_`` + a value of ``PRINTED``
        bugs: one of ``BUGS``
        learning_rate: learning rate of the trainings

    Raises:
        InputError: if there is no such column, or the setting was not trained.
    """
    refuse_unknown("column", column, stored.rows[0])
    refuse_unknown("bugs", bugs, BUGS)
    setting = {"bugs": bugs, "learning_rate": learning_rate}
    return [row[column] for row in by_seed(stored.select(**setting), setting, NAME)]
