"""The race of THOR against Momentum, from its stored rows: who needs how many updates, and seconds.

Updates to an accuracy are counted on the test set, over seeds; seconds are updates times the mean
time of one, which ``benchmarks/thor_race.py`` has measured in turns, refreshes included.
"""

from collections.abc import Mapping

from labkit.errors import InputError, refuse_unknown
from labkit.labs.results.stored import Stored, mean_steps, steps_to

OPTIMIZERS = ("Momentum", "THOR")


def compare(
    stored: Stored, net: str, target: float, epochs: Mapping[str, float] | None = None
) -> dict[str, dict]:
    """Return what each optimizer needs for ``target``: optimizer -> numbers.

    target  test accuracy, 0 .. 1
    epochs  optimizer -> length of the cosine, for its best setting of that length; where it is
            not given, the winner of the tuning

    setting  what it was trained with
    steps    updates to the target, by seed; None: that training never got there
    mean     of steps; None where one of them is None
    at_least mean of steps, where a training that never got there counts with all its updates
    seconds  mean times the mean time of an update; None likewise
    ms       that time, in milliseconds
    last     test accuracy at the end of the training, by seed

    Raises ``InputError`` for a net, optimizer or length that was not raced.
    """
    refuse_unknown("net", net, stored.head["tuned"])
    for optimizer in epochs or {}:
        refuse_unknown("optimizer", optimizer, OPTIMIZERS)
    found = {}
    for optimizer in OPTIMIZERS:
        setting = _setting(stored, net, optimizer, (epochs or {}).get(optimizer))
        rows = race_rows(stored, net, optimizer, setting["epochs"])
        steps = [steps_to(stored.curves[row["run"]], target) for row in rows]
        bounds = [row["updates"] if s is None else s for s, row in zip(steps, rows, strict=True)]
        found[optimizer] = {
            "setting": setting,
            "steps": steps,
            "mean": mean_steps(steps),
            "at_least": mean_steps(bounds),
            "seconds": seconds_of(stored, net, optimizer, mean_steps(steps)),
            "ms": stored.head["times"][net][optimizer]["ms"],
            "last": [row["last_accuracy"] for row in rows],
        }
    return found


def race_rows(stored: Stored, net: str, optimizer: str, epochs: float) -> list[dict]:
    """Return the race's rows of one optimizer at one length, by seed."""
    rows = stored.select(stage="race", net=net, optimizer=optimizer, epochs=epochs)
    return sorted(rows, key=lambda row: row["seed"])


def _setting(stored, net, optimizer, epochs):
    raced = stored.head["tuned"][net][optimizer]
    if epochs is None:
        return raced[0]
    for setting in raced:
        if setting["epochs"] == epochs:
            return setting
    known = ", ".join(str(setting["epochs"]) for setting in raced)
    raise InputError(f"epochs is {epochs!r} for {optimizer}; expected one of those raced: {known}")


def seconds_of(stored: Stored, net: str, optimizer: str, updates: float | None) -> float | None:
    """Return the seconds that so many updates take on the machine that the times are from."""
    if updates is None:
        return None
    return updates * stored.head["times"][net][optimizer]["ms"] / 1e3
