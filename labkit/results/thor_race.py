"""The race of THOR against Momentum, from its stored rows: who needs how many updates, and seconds.

Updates to an accuracy are counted on the test set, over seeds; seconds are updates times the mean
time of one, which ``benchmarks/thor_race.py`` has measured in turns, refreshes included.
"""

from labkit.errors import refuse_unknown
from labkit.results.stored import Stored, mean_steps, steps_to

OPTIMIZERS = ("Momentum", "THOR")


def compare(stored: Stored, net: str, target: float) -> dict[str, dict]:
    """Return what each optimizer needs for ``target``: optimizer -> numbers.

    target  test accuracy, 0 .. 1

    steps    updates to the target, by seed; None: that training never got there
    mean     of steps; None where one of them is None
    seconds  mean times the mean time of an update; None likewise
    ms       that time, in milliseconds
    last     test accuracy at the end of the training, by seed

    Raises ``InputError`` for a net that was not raced.
    """
    refuse_unknown("net", net, stored.head["tuned"])
    found = {}
    for optimizer in OPTIMIZERS:
        rows = race_rows(stored, net, optimizer)
        steps = [steps_to(stored.curves[row["run"]], target) for row in rows]
        found[optimizer] = {
            "steps": steps,
            "mean": mean_steps(steps),
            "seconds": seconds_of(stored, net, optimizer, mean_steps(steps)),
            "ms": stored.head["times"][net][optimizer]["ms"],
            "last": [row["last_accuracy"] for row in rows],
        }
    return found


def race_rows(stored: Stored, net: str, optimizer: str) -> list[dict]:
    """Return the race's rows of one optimizer, by seed."""
    rows = stored.select(stage="race", net=net, optimizer=optimizer)
    return sorted(rows, key=lambda row: row["seed"])


def seconds_of(stored: Stored, net: str, optimizer: str, updates: float | None) -> float | None:
    """Return the seconds that so many updates take on the machine that the times are from."""
    if updates is None:
        return None
    return updates * stored.head["times"][net][optimizer]["ms"] / 1e3
