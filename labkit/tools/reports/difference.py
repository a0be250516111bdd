"""What differs between two runs: parameters, versions, inputs, metrics, status. No MindSpore.

Times are listed apart: two runs never take the same, so they do not count as a difference.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from labkit.tools.reports import reference
from labkit.tools.reports.read import LabRun, RunFolder

_GROUPS = ("parameters", "versions", "runtime", "inputs", "metrics")
_SINGLE = ("preset", "device", "git")
# A digest of the parameters, and what a runtime repeats of them.
_REPEATED = (("inputs", "parameters"), ("runtime", "seed"))
_TIMES = ("seconds", "total_seconds")
_TIME_WORDS = re.compile(r"\b(ms|seconds|minutes)\b")
NOTHING = "(none)"


@dataclass(frozen=True)
class Difference:
    """One thing that two runs have differently.

    group   parameters, versions, runtime, inputs, metrics, run; or times, which do not count
    left, right  the values; "(none)" where a run has none
    change  right minus left, if both are numbers
    within  of a metric: whether that is inside the stored tolerance; None where none is stored for
            these parameters
    """

    lab: str
    group: str
    name: str
    left: Any
    right: Any
    change: float | None = None
    within: bool | None = None


def compare(left: RunFolder, right: RunFolder) -> list[Difference]:
    """Return every difference between two RUNs, lab by lab; a sweep's runs by their names."""
    ours, theirs = _by_key(left), _by_key(right)
    if len(ours) == len(theirs) == 1 and _lab(ours) == _lab(theirs):
        # Two folders of one lab, wherever each of them lies.
        theirs = dict(zip(ours, theirs.values(), strict=True))
    found = []
    for key in dict.fromkeys([*ours, *theirs]):
        one, other = ours.get(key), theirs.get(key)
        if one and other:
            found += compare_labs(key, one, other)
        else:
            found.append(Difference(key, "run", "lab", *(_there(run) for run in (one, other))))
    return found


def compare_labs(key: str, left: LabRun, right: LabRun) -> list[Difference]:
    """Return the differences between two executions, named ``key`` in each of them."""
    found = []
    if left.status != right.status:
        found.append(Difference(key, "run", "status", left.status, right.status))
    for name in _SINGLE:
        values = left.results.get(name, NOTHING), right.results.get(name, NOTHING)
        if values[0] != values[1]:
            found.append(Difference(key, "run", name, *values))
    known = _stored_metrics(left, right)
    for group in _GROUPS:
        ours, theirs = left.results.get(group, {}), right.results.get(group, {})
        for name, one, other in differing(ours, theirs):
            if (group, name) in _REPEATED:
                continue
            found.append(_difference(key, group, name, one, other, known))
    for name in _TIMES:
        values = [run.results.get(name, NOTHING) for run in (left, right)]
        if values[0] != values[1]:
            found.append(_difference(key, "times", name, *values, {}))
    return found


def differing(left: Mapping, right: Mapping) -> Iterable[tuple[str, Any, Any]]:
    """Give (name, left, right) for each name whose values differ; mappings inside are opened."""
    for name in dict.fromkeys([*left, *right]):
        one, other = left.get(name, NOTHING), right.get(name, NOTHING)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            for inner, *values in differing(one, other):
                yield f"{name}.{inner}", *values
        elif one != other or type(one) is not type(other):
            yield name, one, other


def is_time(metric: str) -> bool:
    """Return whether the name of a metric says that it is a time: ``mean: ms``."""
    return bool(_TIME_WORDS.search(metric))


def counting(differences: Iterable[Difference]) -> list[Difference]:
    """Return the differences without the times."""
    return [one for one in differences if one.group != "times"]


def as_json(differences: Iterable[Difference]) -> dict[str, list[dict]]:
    """Return the differences, and apart from them the times, as JSON can hold them."""
    differences = list(differences)
    return {
        "differences": [asdict(one) for one in counting(differences)],
        "times": [asdict(one) for one in differences if one.group == "times"],
    }


def number(value: Any) -> str:
    """Return a value as a table shows it: numbers to six places that count, None as a dash."""
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _difference(key, group, name, left, right, stored) -> Difference:
    change = right - left if _is_number(left) and _is_number(right) else None
    if group != "metrics":
        return Difference(key, group, name, left, right, change)
    if is_time(name):
        return Difference(key, "times", name, left, right, change)
    known = stored.get(name)
    within = None
    if known and known["kind"] == "at most":
        limit = known["amount"]
        within = all(reference.is_within(one, None, "at most", limit) for one in (left, right))
    elif known and known["kind"] != "none":
        within = reference.is_within(right, left, known["kind"], known.get("amount"))
    return Difference(key, group, name, left, right, change, within)


def _stored_metrics(left: LabRun, right: LabRun) -> Mapping[str, Any]:
    """Return the stored metrics with their tolerances, where these are made for both runs."""
    entry = reference.stored(left.results)
    if entry is None or reference.stored(right.results) is not entry:
        return {}
    if any(reference.why_not(run.results, entry) for run in (left, right)):
        return {}
    return entry["metrics"]


def _is_number(value) -> bool:
    # An integer that no float can hold has no difference either.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e300


def _by_key(run: RunFolder) -> dict[str, LabRun]:
    return {(lab.folder.name if run.kind == "sweep" else lab.lab): lab for lab in run.labs}


def _lab(runs: Mapping[str, LabRun]) -> str:
    return next(iter(runs.values())).lab


def _there(run: LabRun | None) -> str:
    return run.status if run else NOTHING
