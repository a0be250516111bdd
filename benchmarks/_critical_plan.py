"""Plans of the measurement of the critical batch size, at full and at small size.

workers      N; the batch of an update is N times 32
rates        learning rates in increasing order; a tuning tries neighbours in this list
start        rate at which a single worker's tuning begins
tuning_seed  seed of the tunings; seeds: seeds of the race
target       accuracy on the held-out images at which a training ends

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

from collections.abc import Iterable, Iterator, Mapping, Sequence

from _trainings import at_end
from _trainings import check as check_table

from labkit.errors import InputError
from labkit.labs.results import Stored, steps_to
from labkit.labs.results.races import adasum_setting as setting_of

REDUCTIONS = ("mean", "adasum")
PATIENCE = 3
_FIRST, _GROWTH = 32, 1.05  # first update at which a training is judged, and growth factor

PLANS = {
    "all": {
        "workers": (1, 2, 4, 8, 16, 32),
        "rates": (0.00375, 0.0075, 0.015, 0.03, 0.06, 0.12, 0.24),
        "start": 0.015,
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
    team["reduction"] = setting_of(0.0, workers, reduction)["reduction"]
    return {
        row["learning_rate"]: row["to_target"]
        for row in rows
        if all(row[name] == value for name, value in team.items())
        and row["learning_rate"] in plan["rates"]
    }


def arrived(plan: Mapping, rows: Iterable[Mapping], setting: Mapping) -> bool:
    """Return whether every seed of the race reached the target with a setting."""
    there = {
        row["seed"]
        for row in rows
        if row["stage"] == "race"
        and row["to_target"]
        and all(row[name] == value for name, value in setting.items())
    }
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
                    if arrived(plan, rows, setting_of(rate, workers, reduction))
                }
            )
            for workers in plan["workers"]
        }
        for reduction in REDUCTIONS
    }


def planned(plan: Mapping, rows: Sequence[Mapping]) -> Iterator[tuple[str, dict, int, int]]:
    """Yield (stage, setting, seed, maximum number of updates) of every training, in order.

    Args:
        plan: one of ``PLANS``
        rows: rows of the trainings so far; the caller appends to it while this generator runs
    """
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


def _race(plan, rows, reduction, workers, alone):
    reached = {r: n for r, n in tried(plan, rows, reduction, workers).items() if n is not None}
    most = PATIENCE * min(reached.values())
    raced = []

    def race(rate):
        raced.append(rate)
        for seed in plan["seeds"]:
            yield "race", setting_of(rate, workers, reduction), seed, most

    if reduction == "adasum":
        yield from race(alone)
    for rate in sorted(reached, key=reached.__getitem__):
        if rate not in raced:
            yield from race(rate)
        if arrived(plan, rows, setting_of(rate, workers, reduction)):
            return


def _tuning(plan, rows, reduction, workers, start):
    while True:
        attempts = tried(plan, rows, reduction, workers)
        rate = next_rate(plan["rates"], start, attempts)
        if rate is None:
            return
        most = attempts[fewest(attempts)] if fewest(attempts) else plan["most"]
        yield "tune", setting_of(rate, workers, reduction), plan["tuning_seed"], most


def check(stored: Stored) -> None:
    """Raise ``InputError`` unless the rows agree with ``stored.head``."""
    plan = stored.head["plan"]
    rows, expected = [], []
    for stage, setting, seed, most in planned(plan, rows):
        expected.append((stage, setting | {"most": most}, seed))
        if len(rows) == len(stored.rows):
            break
        rows.append(stored.rows[len(rows)])

    def follows(row, curve):
        return at_end(curve) | {"to_target": steps_to(curve, plan["target"])}

    def updates(row):
        return None if row["failure"] or row["to_target"] else row["most"]

    check_table(stored, expected, follows, updates)
    if stored.head["tuned"] != best_rates(plan, stored.rows):
        raise InputError("the learning rates are not those of the best trainings of the tuning")
