"""Headline metrics of a lab against the stored run of the same lab, preset and parameters.

The stored run is labs.json beside this module, which benchmarks/reference_runs.py makes:

    preset -> lab -> command, device, git, versions, parameters, whether any seed is compared, and
    metrics: name -> value, kind and amount of the tolerance, its reason, and the [seed, value] of
    every run that was made to find it

Kinds of tolerance: "absolute" (at most ``amount`` away from the stored value), "at most" (not above
``amount``: an error, for which smaller is better), "equal" (the stored value itself), "none" (shown
beside the stored value and not judged, where seeds differ so that no amount would say anything).
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from labkit.errors import InputError

# Not in labkit/results: what lies there is an input of the labs, and would be one of itself.
FOLDER = Path(__file__).resolve().parent
NAME = "labs.json"
KINDS = ("absolute", "at most", "equal", "none")
_MISSING = object()


@dataclass(frozen=True)
class Row:
    """One headline metric against the stored run.

    within   whether it is inside the tolerance; None where it cannot be compared
    verdict  the same in words: "within", "outside by 0.003", "not compared: ..."
    by       value minus stored value; None where one of them is no number
    reason   why the tolerance is what it is
    """

    metric: str
    value: Any
    reference: Any
    tolerance: str
    within: bool | None
    verdict: str
    by: float | None
    reason: str


def load(folder: Path | None = None) -> dict[str, Any]:
    """Return all that is stored: preset -> lab -> entry. ``InputError`` if it cannot be read."""
    path = Path(folder or FOLDER) / NAME
    # By its time as well: a program that renews the file reads the new one.
    return _load(path, path.stat().st_mtime_ns if path.exists() else 0)


def stored(results: Mapping[str, Any], folder: Path | None = None) -> Mapping[str, Any] | None:
    """Return the stored run of the lab and preset of a results.json, or None."""
    return load(folder).get(results.get("preset"), {}).get(results.get("lab"))


def against_reference(results: Mapping[str, Any], folder: Path | None = None) -> list[Row]:
    """Compare the headline metrics of a results.json with the stored run of its lab and preset.

    results  as read from the file; what has not passed has no metrics and gives no rows
    folder   where labs.json is; None: the one that came with labkit

    Returns a row for each stored metric and each headline metric that is not stored. Where a
    parameter differs from the stored run's, nothing is compared, and the verdict names it; the
    seed may differ where the stored tolerances cover seeds.

    Raises ``InputError`` if labs.json cannot be read.
    """
    if results.get("status", "passed") != "passed":
        return []
    metrics, entry = results.get("metrics") or {}, stored(results, folder)
    names = [name for name in results.get("headline") or () if name in metrics]
    if entry is None:
        return [_unknown(name, metrics[name], _no_entry(results)) for name in names]
    other = why_not(results, entry)
    rows = [
        judge(name, metrics.get(name, _MISSING), one, other)
        for name, one in entry["metrics"].items()
    ]
    new = [name for name in names if name not in entry["metrics"]]
    return rows + [_unknown(name, metrics[name], "not compared: not stored") for name in new]


def why_not(results: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    """Return "" where a run's parameters allow a comparison with ``entry``, else why they do not.

    The seed is free where the stored tolerances cover seeds.
    """
    given, known = results.get("parameters") or {}, entry["parameters"]
    free = ("seed",) if entry["any_seed"] else ()
    names = [name for name in {**known, **given} if name not in free]
    differ = [name for name in names if given.get(name, _MISSING) != known.get(name, _MISSING)]
    if not differ:
        return ""
    said = [f"{name} is {given.get(name)}, stored {known.get(name)}" for name in differ[:3]]
    more = f" and {len(differ) - 3} more" if len(differ) > 3 else ""
    return f"not compared: {', '.join(said)}{more}"


def judge(metric: str, value: Any, stored_one: Mapping[str, Any], other: str = "") -> Row:
    """Compare one metric with its stored entry; ``other`` says why not to, if so."""
    reference = stored_one["value"]
    missing = value is _MISSING
    if stored_one["kind"] == "none" and not missing:
        other = other or "not compared: no tolerance"
    row = {
        "metric": metric,
        "value": None if missing else value,
        "reference": reference,
        "tolerance": tolerance_text(stored_one),
        "reason": stored_one["reason"],
    }
    if missing or other:
        verdict = "outside: the run has no such metric" if missing else other
        return Row(**row, within=False if missing else None, verdict=verdict, by=None)
    within = is_within(value, reference, stored_one["kind"], stored_one.get("amount"))
    by = value - reference if _is_number(value) and _is_number(reference) else None
    verdict = "within" if within else f"outside{_beyond(value, by, stored_one)}"
    return Row(**row, within=within, verdict=verdict, by=by)


def _beyond(value, by, stored_one) -> str:
    """Return `` by 0.003``: how far a value is beyond its tolerance; "" where that is no number."""
    if stored_one["kind"] == "at most" and _is_number(value):
        return f" by {value - stored_one['amount']:.3g}"
    if by is None:
        return ""
    return f" by {abs(by) - (stored_one.get('amount') or 0):.3g}"


def is_within(value: Any, reference: Any, kind: str, amount: float | None) -> bool:
    """Return whether ``value`` is inside the tolerance around ``reference``.

    NaN and what is no number are inside only of what has no tolerance at all.
    """
    if kind in ("equal", "none"):
        return kind == "none" or value == reference
    if not _is_number(value):
        return False
    if kind == "at most":
        return value <= amount
    # One unit in the last place more, or 0.9825 would not be 0.0020 away from 0.9805.
    return _is_number(reference) and abs(value - reference) <= amount * (1 + 1e-9)


def tolerance_text(stored_one: Mapping[str, Any]) -> str:
    """Return the tolerance as a table shows it: ``± 0.004``, ``at most 1e-06``, ``equal``."""
    kind = stored_one["kind"]
    if kind in ("equal", "none"):
        return kind
    return f"{'±' if kind == 'absolute' else 'at most'} {stored_one['amount']:g}"


def _unknown(metric, value, verdict):
    return Row(metric, value, None, "", None, verdict, None, "")


def _no_entry(results):
    lab, preset = results.get("lab"), results.get("preset")
    return f"not compared: no stored run of {lab} at preset {preset}"


def _is_number(value) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value)


@cache
def _load(path: Path, changed: int) -> dict[str, Any]:
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        for labs in read.values():
            for entry in labs.values():
                _check(entry)
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(
            f"the stored runs in {path} cannot be read ({error}); "
            "benchmarks/reference_runs.py makes them"
        ) from error
    return read


def _check(entry):
    entry["parameters"].items()
    entry["any_seed"]
    for name, one in entry["metrics"].items():
        if one["kind"] not in KINDS or not one["reason"]:
            raise ValueError(f"{name}: kind {one['kind']}, reason {one['reason']!r}")
        if one["kind"] not in ("equal", "none") and not _is_number(one["amount"]):
            raise ValueError(f"{name}: amount {one['amount']}")
        one["value"]  # null is a value (a goal that was not reached); none at all is damage
