"""Compare a lab's headline metrics with the stored run of the same lab, preset and parameters.

The stored runs are in labs.json beside this module, which benchmarks/reference_runs.py makes:

    preset -> lab -> command, device, git, versions, parameters, whether any seed is compared, and
    metrics: name -> value, kind and amount of the tolerance, its reason, and the [seed, value] of
    every run that was made to determine it

Kinds of tolerance: "absolute" (at most ``amount`` away from the stored value), "at most" (not above
``amount``: an error, for which smaller is better), "equal" (the stored value itself), "none" (shown
beside the stored value but not judged, since seeds differ too much for any meaningful amount).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from labkit.errors import InputError

# Not in labkit/labs/results: files there are inputs of the labs; this one would be its own input.
FOLDER = Path(__file__).resolve().parent
NAME = "labs.json"
_MISSING = object()


@dataclass(frozen=True)
class Row:
    """One headline metric compared with the stored run.

    Attributes:
        metric: name of the metric.
        value: the run's value; None if it has none.
        verdict: the verdict in words: "within", "outside by 0.003", "not compared: ...".
        reference: the stored value.
        tolerance: the tolerance as a table shows it.
        within: whether the value is inside the tolerance; None if it cannot be compared.
        by: value minus stored value; None if one of them is not a number.
        reason: the reason for the tolerance.
    """

    metric: str
    value: Any
    verdict: str
    reference: Any = None
    tolerance: str = ""
    within: bool | None = None
    by: float | None = None
    reason: str = ""


def load(folder: Path | None = None) -> dict[str, Any]:
    """Return the stored runs: preset -> lab -> entry; raise ``InputError`` if unreadable."""
    path = Path(folder or FOLDER) / NAME
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"the stored runs in {path} cannot be read ({error}); "
            "benchmarks/reference_runs.py makes them"
        ) from error


def stored(results: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the stored run of the lab and preset of a results.json, or None."""
    return load().get(results.get("preset", ""), {}).get(results.get("lab", ""))


def against_reference(results: Mapping[str, Any]) -> list[Row]:
    """Compare the headline metrics of a results.json with the stored run of its lab and preset.

    If a parameter differs from the stored run's, nothing is compared, and the verdict names it;
    the seed may differ if the stored tolerances cover seeds.

    Args:
        results: contents of the file; a run that has not passed gives no rows.

    Returns:
        A row for each stored metric and each headline metric that is not stored.

    Raises:
        InputError: if labs.json cannot be read.
    """
    if results.get("status", "passed") != "passed":
        return []
    metrics, entry = results.get("metrics") or {}, stored(results)
    headline = [name for name in results.get("headline") or () if name in metrics]
    if entry is None:
        lab, preset = results.get("lab"), results.get("preset")
        why = f"not compared: no stored run of {lab} at preset {preset}"
        return [Row(name, metrics[name], why) for name in headline]
    why = why_not(results, entry)
    rows = [
        _judged(name, metrics.get(name, _MISSING), known, why)
        for name, known in entry["metrics"].items()
    ]
    others = [name for name in headline if name not in entry["metrics"]]
    return rows + [Row(name, metrics[name], "not compared: not stored") for name in others]


def why_not(results: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    """Return "" if a run's parameters allow a comparison with ``entry``, else why they do not.

    The seed may differ if the stored tolerances cover seeds.
    """
    parameters, known = results.get("parameters") or {}, entry["parameters"]
    free = ("seed",) if entry["any_seed"] else ()
    differ = [
        name
        for name in {**known, **parameters}
        if name not in free and parameters.get(name, _MISSING) != known.get(name, _MISSING)
    ]
    if not differ:
        return ""
    texts = [f"{name} is {parameters.get(name)}, stored {known.get(name)}" for name in differ[:3]]
    more = f" and {len(differ) - 3} more" if len(differ) > 3 else ""
    return f"not compared: {', '.join(texts)}{more}"


def is_within(value: Any, reference: Any, kind: str, amount: float | None) -> bool:
    """Return whether ``value`` is inside the tolerance around ``reference``.

    NaN is inside only for kind "none"; other values that are not numbers, also for "equal".
    """
    if kind in ("equal", "none"):
        return kind == "none" or value == reference
    if amount is None or not is_number(value):
        return False
    if kind == "at most":
        return value <= amount
    # A little slack for rounding, or 0.9825 would be more than 0.0020 away from 0.9805.
    return is_number(reference) and abs(value - reference) <= amount * (1 + 1e-9)


def is_number(value: Any) -> bool:
    """Return whether a value of a JSON file is a number whose difference to others is defined."""
    # It is not for NaN, infinity, and integers that are too large for a float.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def change(before: Any, now: Any) -> float | None:
    """Return ``now`` minus ``before``; None if one of them is not a number."""
    return now - before if is_number(before) and is_number(now) else None


def tolerance_text(known: Mapping[str, Any]) -> str:
    """Return a stored metric's tolerance: ``± 0.004``, ``at most 1e-06``, ``equal``, ``none``."""
    if known["kind"] in ("equal", "none"):
        return known["kind"]
    return f"{'±' if known['kind'] == 'absolute' else 'at most'} {known['amount']:g}"


def _judged(metric: str, value: Any, known: Mapping[str, Any], why: str) -> Row:
    """Compare a metric with its stored entry, unless ``why`` gives a reason not to."""
    reference, kind, amount = known["value"], known["kind"], known.get("amount")
    tolerance, reason = tolerance_text(known), known["reason"]
    row = partial(Row, metric, reference=reference, tolerance=tolerance, reason=reason)
    if why:
        return row(None if value is _MISSING else value, why)
    if value is _MISSING:
        return row(None, "outside: the run has no such metric", within=False)
    if kind == "none":
        return row(value, "not compared: no tolerance")
    by = change(reference, value)
    if is_within(value, reference, kind, amount):
        return row(value, "within", within=True, by=by)
    beyond = change(amount, value) if kind == "at most" else by and abs(by) - (amount or 0)
    return row(value, "outside" + (f" by {beyond:.3g}" if beyond else ""), within=False, by=by)
