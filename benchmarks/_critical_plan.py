"""What the measurement of the critical batch size trains, and the same in small.

workers      N; the batch of an update is N times 32
rates        learning rates, in order, of which each tuning tries neighbours
start        rate that a single worker's tuning begins with
tuning_seed  of the tunings; seeds: of the race
target       accuracy at which a training ends, on the images held out

A tuning, for one reduction and N, begins with the best rate of the N before, Adasum's with that of
a single worker, and tries the neighbours of the best so far until none is left. A training ends
when it has made as many updates as the best one before took to the target: it is no better.

The race is at the best rate of each N, for Adasum at the single worker's as well; a training that
has not reached the target after three times the updates of the tuning's one ends. Where a seed of
the race ends so, the tuning's seed was lucky with an unstable rate, and the next best rate is raced
too: the rate that counts is the best one of the tuning that takes every seed to the target.

Trainings are judged after updates that grow by 5 %: the updates to the target, which are the first
judged ones that reach it, are rounded up by the same share at every N.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from _trainings import at_end
from _trainings import check as check_table

from labkit.errors import InputError
from labkit.labs.results import Stored, steps_to
from labkit.labs.results.adasum_race import setting_of

REDUCTIONS = ("mean", "adasum")
PATIENCE = 3
_FIRST, _GROWTH = 32, 1.05  # of the updates after which a training is judged

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
    # To see the program run: seconds, and no meaning.
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
        tried: rate -> updates to the target, None where it was not reached; in order
    """
    there = {rate: updates for rate, updates in tried.items() if updates is not None}
    return min(there, key=there.__getitem__) if there else None


def next_rate(
    rates: Sequence[float], start: float, tried: Mapping[float, int | None]
) -> float | None:
    """Return the rate that a tuning tries next; None: it has tried both neighbours of the best.

    Args:
        rates: all, growing
        start: the first one to be tried
        tried: as in ``fewest``

    Raises:
        InputError: when no rate from ``start`` down has reached the target.
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
    """Return rate -> updates to the target, None where it was not reached, of one tuning's rows."""
    team = {"stage": "tune", "workers": workers}
    team["reduction"] = setting_of(0.0, workers, reduction)["reduction"]
    return {
        row["learning_rate"]: row["to_target"]
        for row in rows
        if all(row[name] == value for name, value in team.items())
        and row["learning_rate"] in plan["rates"]
    }


def arrived(plan: Mapping, rows: Iterable[Mapping], setting: Mapping) -> bool:
    """Return whether every seed of the race has reached the target with a setting."""
    there = {
        row["seed"]
        for row in rows
        if row["stage"] == "race"
        and row["to_target"]
        and all(row[name] == value for name, value in setting.items())
    }
    return there >= set(plan["seeds"])


def best_rates(plan: Mapping, rows: Sequence[Mapping]) -> dict[str, dict[str, float | None]]:
    """Return reduction -> workers, as JSON has them -> the tuning's best rate at which all arrived.

    None where there is no such rate.
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
    """Yield (stage, setting, seed, updates at most) of every training, in order.

    Args:
        plan: one of ``PLANS``
        rows: of the trainings before; it grows while this runs
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
    # As ``best_rates`` has it: the tuning's best rate need not take every seed to the target.
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
    """Raise ``InputError`` unless the rows are what ``stored.head`` says they are."""
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
