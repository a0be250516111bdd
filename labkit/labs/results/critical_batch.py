"""The critical batch size of LeNet on MNIST: stored trainings, and the curve through them.

S, the updates to an accuracy, over B, the images of one update: while B is small, twice the batch
halves S; where it is large, S stays. McCandlish et al. 2018, arXiv:1812.06162, join the two limits,
with E = B S images in all, by (S / S_min - 1) (E / E_min - 1) = 1, which is

    S(B) = S_min + E_min / B = S_min (1 + B_crit / B),    B_crit = E_min / S_min

At the critical batch size a training takes twice the fewest updates and twice the fewest images.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from labkit.base.arguments import number, wrong
from labkit.errors import InputError, refuse_unknown
from labkit.labs.results import stored as files
from labkit.labs.results.adasum_race import setting_of
from labkit.labs.results.stored import Stored, by_seed

NAME = "critical_batch"
BATCH = 32  # images of one worker
# method -> what combines the workers. "adasum" is at a single worker's learning rate, the others
# at the best one for so many workers.
METHODS = {"mean": "mean", "adasum": "adasum", "adasum tuned": "adasum"}
# A B_crit that is so many times smaller or larger than every measured batch is 0, or infinite.
_FAR = 100.0
_STEPS = 20_000  # of the search for B_crit, by a thousandth each


@dataclass(frozen=True)
class Curve:
    """S(B) = s_min + e_min / B.

    Attributes:
        s_min: updates with the largest batches; 0.0: they go on falling as 1 / B
        e_min: images with the smallest batches; 0.0: the updates do not depend on B
        error: root mean square of ln(measured / curve), about the relative deviation
    """

    s_min: float
    e_min: float
    error: float

    @property
    def b_crit(self) -> float:
        """The critical batch size in images; 0.0 of a flat curve, infinite of perfect scaling."""
        return self.e_min / self.s_min if self.s_min else math.inf

    def updates(self, batch: float) -> float:
        """Return S at a batch size."""
        return self.s_min + self.e_min / batch


def fit(updates: Mapping[int, Sequence[float | None]]) -> Curve:
    """Return the curve nearest to measured updates, by least squares of the logarithms.

    Args:
        updates: images of one update -> updates to the accuracy, of each training

    Raises:
        InputError: for fewer than two batch sizes, and for what is no number above 0, as of a
            training that has not reached the accuracy.
    """
    trained = [batch for batch, trainings in updates.items() if trainings]
    if len(trained) < 2:
        raise InputError(f"updates: expected two batch sizes or more, got {trained}")
    pairs = [
        (math.log(number("batch size", batch, above=0)), math.log(number("updates", each, above=0)))
        for batch, trainings in updates.items()
        for each in trainings
    ]
    batch, seen = np.array(pairs).T
    # For a given B_crit the best ln S_min is a mean, so that the search has one dimension.
    crit = np.linspace(batch.min() - math.log(_FAR), batch.max() + math.log(_FAR), _STEPS)
    off = seen - np.logaddexp(0, crit[:, None] - batch)
    best = int(off.std(axis=1).argmin())
    if best == 0:
        return Curve(math.exp(seen.mean()), 0.0, float(seen.std()))
    if best == _STEPS - 1:
        return Curve(0.0, math.exp((seen + batch).mean()), float((seen + batch).std()))
    s_min = math.exp(off[best].mean())
    return Curve(s_min, s_min * math.exp(crit[best]), float(off[best].std()))


def load(folder: str | os.PathLike | None = None) -> Stored:
    """Return the stored trainings; as ``results.load``."""
    return files.load(NAME, folder)


def rate_of(stored: Stored, method: str, workers: int) -> float:
    """Return the learning rate at which a method of ``METHODS`` was raced with so many workers."""
    refuse_unknown("method", method, METHODS)
    tuned = stored.head["tuned"][METHODS[method]]
    name = str(1 if method == "adasum" else workers)
    if name not in tuned:
        raise wrong("workers", workers, f"one of those raced: {', '.join(tuned)}")
    return tuned[name]


def updates(stored: Stored, method: str) -> dict[int, list[int | None]]:
    """Return images of one update -> updates to the target by seed, of a method of ``METHODS``.

    None is a training that did not reach the target. A single worker is the same for every method.
    """
    by_batch = {}
    for workers in stored.head["plan"]["workers"]:
        setting = setting_of(rate_of(stored, method, workers), workers, METHODS[method])
        rows = by_seed(stored.select(stage="race", **setting), setting, NAME)
        by_batch[workers * BATCH] = [row["to_target"] for row in rows]
    return by_batch


def curves(stored: Stored, method: str) -> tuple[Curve, list[Curve]]:
    """Return the curve through all trainings of a method, and one through those of each seed."""
    by_batch = updates(stored, method)
    alone = [{b: [seeds[n]] for b, seeds in by_batch.items()} for n in range(len(by_batch[BATCH]))]
    return fit(by_batch), [fit(each) for each in alone]
