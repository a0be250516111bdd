"""The critical batch size of LeNet on MNIST: stored trainings, and the curve through them.

S is the number of updates to an accuracy, B the number of images in one update. For small B,
doubling the batch halves S; for large B, S is constant. McCandlish et al. 2018, arXiv:1812.06162,
join the two limits, with E = B S images in all, by (S / S_min - 1) (E / E_min - 1) = 1, which is

    S(B) = S_min + E_min / B = S_min (1 + B_crit / B),    B_crit = E_min / S_min

At the critical batch size a training takes twice the minimum of updates and of images.
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
# method -> reduction over the workers. "adasum" uses a single worker's learning rate, the others
# the best rate for the number of workers.
METHODS = {"mean": "mean", "adasum": "adasum", "adasum tuned": "adasum"}
# A B_crit that is _FAR times smaller or larger than every measured batch counts as 0 or infinite.
_FAR = 100.0
_STEPS = 20_000  # candidates for B_crit, less than a thousandth apart for the stored batch sizes


@dataclass(frozen=True)
class Curve:
    """S(B) = s_min + e_min / B.

    Attributes:
        s_min: limit of the updates for large B; 0.0: they keep falling as 1 / B
        e_min: limit of the images for small B; 0.0: the updates do not depend on B
        error: root mean square of ln(measured / curve), about the relative deviation
    """

    s_min: float
    e_min: float
    error: float

    @property
    def b_crit(self) -> float:
        """The critical batch size in images; 0.0 for a flat curve, infinite for perfect scaling."""
        return self.e_min / self.s_min if self.s_min else math.inf

    def updates(self, batch: float) -> float:
        """Return S at a batch size."""
        return self.s_min + self.e_min / batch


def fit(updates: Mapping[int, Sequence[float | None]]) -> Curve:
    """Fit the curve to measured updates by least squares of the logarithms, and return it.

    Args:
        updates: images of one update -> updates to the accuracy, one for each training

    Raises:
        InputError: if there are fewer than two batch sizes, or a value is not a number above 0,
            such as None for a training that has not reached the accuracy.
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
    # For a given B_crit the best ln S_min is a mean, so the search has one dimension.
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
    """Return the learning rate of a method of ``METHODS`` in the race with ``workers`` workers."""
    refuse_unknown("method", method, METHODS)
    tuned = stored.head["tuned"][METHODS[method]]
    name = str(1 if method == "adasum" else workers)
    if name not in tuned:
        raise wrong("workers", workers, f"one of those raced: {', '.join(tuned)}")
    return tuned[name]


def updates(stored: Stored, method: str) -> dict[int, list[int | None]]:
    """Return images of one update -> updates to the target by seed, for a method of ``METHODS``.

    None: the training did not reach the target. A single worker is the same for every method.
    """
    by_batch = {}
    for workers in stored.head["plan"]["workers"]:
        setting = setting_of(rate_of(stored, method, workers), workers, METHODS[method])
        rows = by_seed(stored.select(stage="race", **setting), setting, NAME)
        by_batch[workers * BATCH] = [row["to_target"] for row in rows]
    return by_batch


def curves(stored: Stored, method: str) -> tuple[Curve, list[Curve]]:
    """Return the curve fitted to all trainings of a method, and the curve of each seed."""
    by_batch = updates(stored, method)
    alone = [{b: [seeds[n]] for b, seeds in by_batch.items()} for n in range(len(by_batch[BATCH]))]
    return fit(by_batch), [fit(each) for each in alone]
