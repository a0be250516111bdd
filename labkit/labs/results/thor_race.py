"""The stored race of THOR and Momentum: the updates and the seconds that each needs.

Updates to an accuracy are counted on the test set, for each seed; seconds are updates times the
mean time of one update, which ``benchmarks/thor_race.py`` measured for the optimizers in turns,
with refreshes.
"""

from collections.abc import Iterable, Mapping

from labkit.base.arguments import wrong
from labkit.errors import refuse_unknown
from labkit.labs.results.stored import Stored

OPTIMIZERS = ("Momentum", "THOR")


def steps_to(curve: Iterable[Mapping], target: float) -> int | None:
    """Return the update of the first point with at least ``target`` accuracy, or None.

    A curve is judged at intervals of several updates; the number is rounded up to such an update.
    """
    judged = (point for point in curve if point["accuracy"] is not None)
    return next((point["update"] for point in judged if point["accuracy"] >= target), None)


def mean_steps(steps: Iterable[int | None]) -> float | None:
    """Return the mean over trainings; None without trainings, or if one missed the target."""
    steps = list(steps)
    known = [step for step in steps if step is not None]
    if not known or len(known) < len(steps):
        return None
    return sum(known) / len(known)


def compare(
    stored: Stored, net: str, target: float, epochs: Mapping[str, float] | None = None
) -> dict[str, dict]:
    """Return what each optimizer needs for an accuracy.

    Args:
        stored: the stored race
        net: "LeNet" or "ResNet"
        target: test accuracy, 0 .. 1
        epochs: optimizer -> length of the cosine in epochs, to select its best setting of that
            length; an optimizer without an entry uses the winner of the tuning

    Returns:
        optimizer -> ``setting``, what it was trained with; ``steps``, updates to the target by
        seed, None for a training that never reached it; ``mean`` of the steps, None if one is None;
        ``at_least``, the mean in which such a training counts with all its updates; ``seconds`` for
        the mean; ``ms`` of an update; ``last``, test accuracies at the end, by seed.

    Raises:
        InputError: if a net, optimizer or length was not raced.
    """
    refuse_unknown("net", net, stored.head["tuned"])
    for optimizer in epochs or {}:
        refuse_unknown("optimizer", optimizer, OPTIMIZERS)
    sides = {}
    for optimizer in OPTIMIZERS:
        setting = _setting(stored, net, optimizer, (epochs or {}).get(optimizer))
        rows = race_rows(stored, net, optimizer, setting["epochs"])
        steps = [steps_to(stored.curves[row["run"]], target) for row in rows]
        bounds = [row["updates"] if s is None else s for s, row in zip(steps, rows, strict=True)]
        mean, ms = mean_steps(steps), stored.head["times"][net][optimizer]["ms"]
        sides[optimizer] = {
            "setting": setting,
            "steps": steps,
            "mean": mean,
            "at_least": mean_steps(bounds),
            "seconds": None if mean is None else mean * ms / 1e3,
            "ms": ms,
            "last": [row["last_accuracy"] for row in rows],
        }
    return sides


def race_rows(stored: Stored, net: str, optimizer: str, epochs: float) -> list[dict]:
    """Return the race's rows of one optimizer at one length, by seed."""
    rows = stored.select(stage="race", net=net, optimizer=optimizer, epochs=epochs)
    return sorted(rows, key=lambda row: row["seed"])


def _setting(stored: Stored, net: str, optimizer: str, epochs: float | None) -> dict:
    raced = stored.head["tuned"][net][optimizer]
    if epochs is None:
        return raced[0]
    for setting in raced:
        if setting["epochs"] == epochs:
            return setting
    known = ", ".join(str(setting["epochs"]) for setting in raced)
    raise wrong(f"epochs of {optimizer}", epochs, f"one of those raced: {known}")
