"""The critical batch size of LeNet on MNIST, for the mean of N workers and for Adasum.

    python benchmarks/critical_batch.py            prints the stored measurement
    python benchmarks/critical_batch.py --all      trains what is not yet done, and stores it
    python benchmarks/critical_batch.py --quick    two workers on few images, into runs/bench

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

--all and --quick reuse finished trainings from runs/bench unless --anew is given.
"""

import time
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from adasum_race import adasum_setting, step_at
from race import Images, Race, Training, at_end, batches, rounded, run, steps_to
from side_by_side import print_table

from labkit.errors import InputError
from labkit.labs.results import BATCH, METHODS, Stored, fit, mean_steps, rate_of, updates_of

REDUCTIONS = ("mean", "adasum")
PATIENCE = 3
_FIRST, _GROWTH = 32, 1.05  # first update at which a training is judged, and growth factor
PLANS = {
    "all": {
        "workers": (1, 2, 4, 8, 16, 32),
        "rates": (0.00375, 0.0075, 0.015, 0.03, 0.06, 0.12, 0.24),  # in increasing order
        "start": 0.015,  # rate at which a single worker's tuning begins
        "tuning_seed": 100,
        "seeds": (1, 2, 3),
        "target": 0.97,
        "most": 5000,
        "images": {"held_out": 2000, "train": None, "test": None},
    },
    # To check that the program runs: takes seconds; the results mean nothing.
    "quick": {
        "workers": (1, 2),
        "rates": (0.015, 0.03),
        "start": 0.015,
        "tuning_seed": 100,
        "seeds": (1,),
        "target": 0.1,
        "most": 40,
        "images": {"held_out": 64, "train": 1088, "test": 64},
    },
}


def judged_at(most: int) -> set[int]:
    """Return the updates after which a training of at most ``most`` is judged."""
    judged, at = {most}, float(_FIRST)
    while at < most:
        judged.add(round(at))
        at = max(at * _GROWTH, at + 1)
    return judged


def fewest(tried: Mapping[float, int | None]) -> float | None:
    """Return the rate with the fewest updates to the target, the first of equal ones; or None.

    Args:
        tried: rate -> updates to the target, None if it was not reached; in order of the trainings
    """
    there = {rate: updates for rate, updates in tried.items() if updates is not None}
    return min(there, key=there.__getitem__) if there else None


def next_rate(
    rates: Sequence[float], start: float, tried: Mapping[float, int | None]
) -> float | None:
    """Return the rate that a tuning tries next, or None if both neighbours of the best are tried.

    Args:
        rates: all rates, increasing
        start: the first rate to try
        tried: as in ``fewest``

    Raises:
        InputError: if no rate from ``start`` down has reached the target.
    """
    if not tried:
        return start
    best = fewest(tried)
    at = rates.index(min(tried) if best is None else best)
    for index in (at - 1,) if best is None else (at + 1, at - 1):
        if 0 <= index < len(rates) and rates[index] not in tried:
            return rates[index]
    if best is None:
        raise InputError(f"no learning rate of a tuning got to the target: {list(tried)}")
    return None


def tried(plan: Mapping, rows: Iterable[Mapping], reduction: str, workers: int) -> dict:
    """Return rate -> updates to the target, None if it was not reached, from one tuning's rows."""
    team = {"stage": "tune", "workers": workers}
    team["reduction"] = adasum_setting(0.0, workers, reduction)["reduction"]
    return {
        row["learning_rate"]: row["to_target"]
        for row in rows
        if team.items() <= row.items() and row["learning_rate"] in plan["rates"]
    }


def arrived(plan: Mapping, rows: Iterable[Mapping], setting: Mapping) -> bool:
    """Return whether every seed of the race reached the target with a setting."""
    raced = {"stage": "race", **setting}.items()
    there = {row["seed"] for row in rows if row["to_target"] and raced <= row.items()}
    return there >= set(plan["seeds"])


def best_rates(plan: Mapping, rows: Sequence[Mapping]) -> dict[str, dict[str, float | None]]:
    """Return reduction -> workers -> the tuning's best rate at which all seeds reach the target.

    The numbers of workers are strings, as in JSON. The rate is None if there is no such rate.
    """
    return {
        reduction: {
            str(workers): fewest(
                {
                    rate: updates
                    for rate, updates in tried(plan, rows, reduction, workers).items()
                    if arrived(plan, rows, adasum_setting(rate, workers, reduction))
                }
            )
            for workers in plan["workers"]
        }
        for reduction in REDUCTIONS
    }


def planned(plan, rows):
    """Yield every training, in order; the caller appends to ``rows`` while it runs."""
    single, *teams = plan["workers"]
    yield from _tuning(plan, rows, "mean", single, plan["start"])
    alone = fewest(tried(plan, rows, "mean", single))
    start = alone
    for workers in teams:
        yield from _tuning(plan, rows, "mean", workers, start)
        start = fewest(tried(plan, rows, "mean", workers))
    for workers in teams:
        yield from _tuning(plan, rows, "adasum", workers, alone)
    yield from _race(plan, rows, "mean", single, alone)
    # As in ``best_rates``: at the tuning's best rate, some seed may not reach the target.
    alone = best_rates(plan, rows)["mean"][str(single)] or alone
    for workers in teams:
        for reduction in REDUCTIONS:
            yield from _race(plan, rows, reduction, workers, alone)


def _tuning(plan, rows, reduction, workers, start):
    while True:
        attempts = tried(plan, rows, reduction, workers)
        rate = next_rate(plan["rates"], start, attempts)
        if rate is None:
            return
        most = attempts[fewest(attempts)] if fewest(attempts) else plan["most"]
        setting = adasum_setting(rate, workers, reduction)
        yield _training(plan, "tune", setting, plan["tuning_seed"], most)


def _race(plan, rows, reduction, workers, alone):
    reached = {r: n for r, n in tried(plan, rows, reduction, workers).items() if n is not None}
    most = PATIENCE * min(reached.values())
    raced = []

    def race(rate):
        raced.append(rate)
        for seed in plan["seeds"]:
            setting = adasum_setting(rate, workers, reduction)
            yield _training(plan, "race", setting, seed, most)

    if reduction == "adasum":
        yield from race(alone)
    for rate in sorted(reached, key=reached.__getitem__):
        if rate not in raced:
            yield from race(rate)
        if arrived(plan, rows, adasum_setting(rate, workers, reduction)):
            return


def _training(plan, stage, setting, seed, most):
    limits = {"most": most, "target": plan["target"]}
    return Training(stage, setting, seed, "validation", limits, {"most": most})


def train(setting: dict, data: Images, seed: int, *, most: int, target: float) -> dict:
    """Train until ``target``; return what ``race.run`` does, and ``processor_seconds``.

    The momentum of a mean is the mean of the workers' momentums, and the mean of their gradients is
    the gradient over all their images: so the mean is trained as a single worker with N times the
    batch. Adasum's workers split the same large batch and take their parts in turn.

    Args:
        setting: from ``adasum_race.adasum_setting``, at a constant learning rate
        data: images for training and for judging
        seed: seed of weights and order
        most: number of updates after which it ends
        target: accuracy at which it ends, 0 .. 1
    """
    begin = time.process_time()
    workers, is_adasum = setting["workers"], setting["reduction"] == "adasum"
    turns = workers if is_adasum else 1
    network, step = step_at(setting | {"workers": turns}, setting["learning_rate"], seed)
    large = batches(data.rows, most, seed, workers * BATCH)
    stream = (rows for batch in large for rows in np.split(batch, turns))
    outcome = run(step, network, data, stream, judged_at(most), workers=turns, stop_at=target)
    # Rounded to six digits: at full precision the table would be twice as large.
    for point in outcome["curve"]:
        point |= {name: rounded(point[name]) for name in ("loss", "training_loss")}
    return outcome | {"processor_seconds": time.process_time() - begin}


def of_curve(plan, row, curve):
    """Return a row's fields that follow from its curve."""
    return at_end(curve) | {"to_target": steps_to(curve, plan["target"])}


def of_outcome(outcome):
    """Return the other fields of a row."""
    seconds = round(outcome["processor_seconds"], 1)
    return {"processor_seconds": seconds, "failure": outcome["failure"] or None}


def show(stored: Stored) -> None:
    """Print updates to the target by batch and method, and the curves fitted to them."""
    target = stored.head["plan"]["target"]
    print(f"\nupdates to {target:.0%}, mean and seeds; rate: the learning rate\n")
    rows = []
    for method in METHODS:
        for batch, updates in updates_of(stored, method).items():
            rate = rate_of(stored, method, batch // BATCH)
            rows.append([method, batch // BATCH, batch, f"{rate:g}", mean_steps(updates), updates])
    print_table(["method", "workers", "batch", "rate", "mean", "by seed"], rows)
    print("\nS(B) = S_min (1 + B_crit / B), through all seeds; B_crit of each seed alone\n")
    rows = []
    for method in METHODS:
        updates = updates_of(stored, method)
        seeds = range(len(updates[BATCH]))
        alone = [fit({batch: [each[n]] for batch, each in updates.items()}) for n in seeds]
        curve, by_seed = fit(updates), " ".join(f"{each.b_crit:.0f}" for each in alone)
        rows.append([method, f"{curve.s_min:.0f}", f"{curve.b_crit:.0f}", by_seed, curve.error])
    print_table(["method", "S_min", "B_crit", "by seed", "error"], rows)


RACE = Race(
    "critical_batch",
    PLANS,
    planned,
    train,
    lambda plan, row: None if row["failure"] or row["to_target"] else row["most"],
    show,
    of_curve,
    of_outcome,
    decided=lambda plan, rows: {"tuned": best_rates(plan, rows)},
    meaning={
        "stage": "tune: of the learning rate; race: at the best one, Adasum's at one worker's as "
        "well",
        "most": "updates after which a training would have ended that had not reached the target",
        "to_target": "first update judged at which the accuracy is at least the target; empty: "
        "never",
        "tuned": "best learning rate of the tuning at which every seed arrives, by reduction, "
        "workers",
        "processor_seconds": "of the training, compiling and judging included",
    },
)

if __name__ == "__main__":
    RACE.main(__doc__)
