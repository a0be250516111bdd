"""The critical batch size of LeNet on MNIST, for the mean of N workers and for Adasum.

    python benchmarks/critical_batch.py [--all]    as race.py says

Number of updates until 97 % of 2 000 held-out training images are classified correctly, over the
batch of one update: 32 images for each of N workers, 1 to 32. Momentum 0.9 and a constant learning
rate, since a schedule would need the length of the training in advance. The rate is tuned for each
N to minimise the updates to the target; Adasum is also trained at the rate of a single worker,
since it promises to need no other. The test set is not used.

The tuning for one reduction and N begins at the best rate of the previous N (for Adasum, at that of
a single worker) and tries the neighbours of the best rate so far until both have been tried. A
training ends after as many updates as the best one so far took to the target: it is no better.

The race uses the best rate of each N, and for Adasum the single worker's rate as well. A training
ends if it has not reached the target after three times the updates of the best one in the tuning.
If that happens to a seed, the tuning's seed was lucky with an unstable rate, and the next best rate
is raced too: the rate that counts is the tuning's best one at which every seed reaches the target.

The updates at which trainings are judged grow by 5 %. The updates to the target, which are those at
the first evaluation that reaches it, are thus rounded up by the same relative amount at every N.
"""

import time
from collections.abc import Mapping, Sequence

import numpy as np
import race
from adasum_race import BATCH, make_step, setting_of

REDUCTIONS = ("mean", "adasum")
PATIENCE = 3
_FIRST, _GROWTH = 32, 1.05  # first update at which a training is judged, and growth factor
PLAN = {
    "workers": (1, 2, 4, 8, 16, 32),
    "rates": (0.00375, 0.0075, 0.015, 0.03, 0.06, 0.12, 0.24),  # in increasing order
    "start": 0.015,  # rate at which a single worker's tuning begins
    "tuning_seed": 100,
    "seeds": (1, 2, 3),
    "target": 0.97,
    "most": 5000,
    "images": {"held_out": 2000, "train": None, "test": None},
}


def judged_at(most: int) -> set[int]:
    """Return the updates after which a training of at most ``most`` is judged."""
    judged, at = {most}, float(_FIRST)
    while at < most:
        judged.add(round(at))
        at = max(at * _GROWTH, at + 1)
    return judged


def fewest(tried: Mapping[float, int | None]) -> float | None:
    """Return the rate with the fewest updates to the target, the first of equal ones; or None."""
    there = {rate: updates for rate, updates in tried.items() if updates is not None}
    return min(there, key=there.__getitem__) if there else None


def next_rate(
    rates: Sequence[float], start: float, tried: Mapping[float, int | None]
) -> float | None:
    """Return the rate that a tuning tries next, or None if both neighbours of the best are tried.

    It begins with ``start`` and raises ``RuntimeError`` if no rate from there down gets to the
    target.
    """
    if not tried:
        return start
    best = fewest(tried)
    at = rates.index(min(tried) if best is None else best)
    for index in (at - 1,) if best is None else (at + 1, at - 1):
        if 0 <= index < len(rates) and rates[index] not in tried:
            return rates[index]
    if best is None:
        raise RuntimeError(f"no learning rate of a tuning got to the target: {list(tried)}")
    return None


def reached(rows: Sequence[Mapping], stage: str, reduction: str, workers: int, rate=None) -> list:
    """Return the rows of one kind of training, of one rate or all, in order."""
    setting = setting_of(rate, workers, reduction) | {"stage": stage}
    if rate is None:
        del setting["learning_rate"]
    return [row for row in rows if setting.items() <= row.items()]


def tried(rows: Sequence[Mapping], reduction: str, workers: int) -> dict:
    """Return rate -> updates to the target, None if it was not reached, from one tuning's rows."""
    tune = reached(rows, "tune", reduction, workers)
    return {row["learning_rate"]: row["to_target"] for row in tune}


def best_rate(plan: Mapping, rows: Sequence[Mapping], reduction: str, workers: int) -> float | None:
    """Return the tuning's best rate at which every seed of the race reached the target, or None."""

    def arrived(rate):
        raced = reached(rows, "race", reduction, workers, rate)
        return {row["seed"] for row in raced if row["to_target"]} >= set(plan["seeds"])

    tuned = tried(rows, reduction, workers)
    return fewest({rate: updates for rate, updates in tuned.items() if arrived(rate)})


def decided(plan, rows):
    """Return ``tuned``: reduction -> workers, strings as in JSON -> ``best_rate``."""
    rates = {
        reduction: {str(n): best_rate(plan, rows, reduction, n) for n in plan["workers"]}
        for reduction in REDUCTIONS
    }
    return {"tuned": rates}


def planned(plan, rows):
    """Yield every training, in order; the caller appends to ``rows`` while it runs."""
    single, *teams = plan["workers"]
    yield from _tuning(plan, rows, "mean", single, plan["start"])
    alone = start = fewest(tried(rows, "mean", single))
    for workers in teams:
        yield from _tuning(plan, rows, "mean", workers, start)
        start = fewest(tried(rows, "mean", workers))
    for workers in teams:
        yield from _tuning(plan, rows, "adasum", workers, alone)
    yield from _race(plan, rows, "mean", single, alone)
    # At the tuning's best rate, some seed may not reach the target.
    alone = best_rate(plan, rows, "mean", single) or alone
    for workers in teams:
        for reduction in REDUCTIONS:
            yield from _race(plan, rows, reduction, workers, alone)


def _tuning(plan, rows, reduction, workers, start):
    while True:
        attempts = tried(rows, reduction, workers)
        rate = next_rate(plan["rates"], start, attempts)
        if rate is None:
            return
        most = attempts.get(fewest(attempts), plan["most"])
        setting = setting_of(rate, workers, reduction)
        yield _training(plan, "tune", setting, plan["tuning_seed"], most)


def _race(plan, rows, reduction, workers, alone):
    there = {r: n for r, n in tried(rows, reduction, workers).items() if n is not None}
    most = PATIENCE * min(there.values())
    rates = sorted(there, key=there.__getitem__)
    if reduction == "adasum":
        rates = [alone, *rates]
    for number, rate in enumerate(rates):
        if rate not in rates[:number]:
            for seed in plan["seeds"]:
                yield _training(plan, "race", setting_of(rate, workers, reduction), seed, most)
        if (number or reduction == "mean") and best_rate(plan, rows, reduction, workers) == rate:
            return


def _training(plan, stage, setting, seed, most):
    limits = {"most": most, "target": plan["target"]}
    return race.training(stage, "validation", setting, seed, limits, most=most)


def train(setting: dict, data: race.Images, seed: int, *, most: int, target: float) -> dict:
    """Train until ``target``; return what ``race.run`` does, and ``processor_seconds``.

    The momentum of a mean is the mean of the workers' momentums, and the mean of their gradients is
    the gradient over all their images: so the mean is trained as a single worker with N times the
    batch. Adasum's workers split the same large batch and take their parts in turn.
    """
    begin = time.process_time()
    workers, is_adasum = setting["workers"], setting["reduction"] == "adasum"
    turns = workers if is_adasum else 1
    network, step = make_step(setting | {"workers": turns}, seed)
    large = race.batches(data.rows, most, seed, workers * BATCH)
    stream = (rows for batch in large for rows in np.split(batch, turns))
    outcome = race.run(step, network, data, stream, judged_at(most), workers=turns, stop_at=target)
    # Rounded to six digits: at full precision the table would be twice as large.
    for point in outcome["curve"]:
        point |= {name: race.rounded(point[name]) for name in ("loss", "training_loss")}
    return outcome | {"processor_seconds": time.process_time() - begin}


def end(plan, row, outcome):
    """Return the other fields of a row."""
    return race.at_end(plan, row, outcome) | {
        "to_target": race.steps_to(outcome["curve"], plan["target"]),
        "processor_seconds": round(outcome["processor_seconds"], 1),
    }


RACE = race.Race("critical_batch", PLAN, planned, train, end, decided)

if __name__ == "__main__":
    RACE.main(__doc__)
