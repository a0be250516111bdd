"""The race of THOR against Momentum, from its stored rows: who needs how many updates, and seconds.

Updates to an accuracy are counted on the test set, over seeds; seconds are updates times the mean
time of one, which ``benchmarks/thor_race.py`` has measured in turns, refreshes included.
"""

from labkit.errors import InputError, refuse_unknown
from labkit.results.stored import Stored, mean_steps, steps_to

OPTIMIZERS = ("Momentum", "THOR")


def compare(stored: Stored, net: str, target: float, tuned_for: float) -> dict[str, dict]:
    """Return what each optimizer needs for ``target``: optimizer -> numbers.

    target     test accuracy, 0 .. 1
    tuned_for  validation accuracy that the settings were tuned to reach soon

    steps    updates to the target, by seed; None: that training never got there
    mean     of steps; None where one of them is None
    seconds  mean times the mean time of an update; None likewise
    ms       that time, in milliseconds
    last     test accuracy at the end of the training, by seed

    Raises ``InputError`` for a net or tuning that the race has not run.
    """
    refuse_unknown("net", net, stored.head["tuned"])
    found = {}
    for optimizer in OPTIMIZERS:
        rows = race_rows(stored, net, optimizer, tuned_for)
        steps = [steps_to(stored.curves[row["run"]], target) for row in rows]
        found[optimizer] = {
            "steps": steps,
            "mean": mean_steps(steps),
            "seconds": seconds_of(stored, net, optimizer, mean_steps(steps)),
            "ms": stored.head["times"][net][optimizer]["ms"],
            "last": [row["last_accuracy"] for row in rows],
        }
    return found


def race_rows(stored: Stored, net: str, optimizer: str, tuned_for: float) -> list[dict]:
    """Return the race's rows of one optimizer with the setting tuned for ``tuned_for``, by seed."""
    tuned = stored.head["tuned"][net][optimizer]
    if str(tuned_for) not in tuned:
        raise InputError(f"the race is not tuned for {tuned_for!r}; expected {', '.join(tuned)}")
    rows = [
        row
        for row in stored.select(stage="race", net=net, optimizer=optimizer)
        if str(tuned_for) in str(row["tuned_for"]).split(" and ")
    ]
    return sorted(rows, key=lambda row: row["seed"])


def seconds_of(stored: Stored, net: str, optimizer: str, updates: float | None) -> float | None:
    """Return the seconds that so many updates take on the machine that the times are from."""
    if updates is None:
        return None
    return updates * stored.head["times"][net][optimizer]["ms"] / 1e3
