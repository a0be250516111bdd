"""What differs between two runs: parameters, versions, inputs, metrics, status. No MindSpore.

Times are listed separately: they always differ between runs, so they do not count as a difference.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from labkit.tools.reports.read import LabRun, RunFolder
from labkit.tools.reports.reference import change, is_within, stored, why_not

_GROUPS = ("parameters", "versions", "runtime", "inputs", "metrics")
_RUN = ("status", "preset", "device", "git")
# A digest of the parameters, and a parameter that the runtime repeats.
_REPEATED = (("inputs", "parameters"), ("runtime", "seed"))
_TIMES = ("seconds", "total_seconds")
_TIME_WORDS = re.compile(r"\b(ms|seconds|minutes)\b")
NOTHING = "(none)"


@dataclass(frozen=True)
class Difference:
    """One difference between two runs.

    Attributes:
        lab: name of the lab, or of the run of a sweep.
        group: parameters, versions, runtime, inputs, metrics, run; or times, which do not count.
        name: name of the value that differs.
        left: value of the first run; "(none)" if it has no such value.
        right: value of the second run.
        change: right minus left, if both are numbers.
        within: whether a metric is inside the stored tolerance; None if no tolerance is stored for
            these parameters.
    """

    lab: str
    group: str
    name: str
    left: Any
    right: Any
    change: float | None = None
    within: bool | None = None


def compare(left: RunFolder, right: RunFolder) -> list[Difference]:
    """Return every difference between two runs, lab by lab; for sweeps, run by run."""
    ours, theirs = _by_key(left), _by_key(right)
    if len(ours) == len(theirs) == 1:
        (first,), (second,) = ours.values(), theirs.values()
        if first.lab == second.lab:
            # Two folders of the same lab, whatever their names.
            theirs = dict.fromkeys(ours, second)
    differences = []
    for key in dict.fromkeys([*ours, *theirs]):
        own, other = ours.get(key), theirs.get(key)
        if own and other:
            differences += _compare_labs(key, own, other)
        else:
            was, now = (lab.status if lab else NOTHING for lab in (own, other))
            differences.append(Difference(key, "run", "lab", was, now))
    return differences


def counting(differences: Iterable[Difference]) -> list[Difference]:
    """Return the differences without the times."""
    return [each for each in differences if each.group != "times"]


def as_json(differences: Iterable[Difference]) -> dict[str, list[dict]]:
    """Return the differences and, separately, the times in a form that JSON can hold."""
    differences = list(differences)
    return {
        "differences": [asdict(each) for each in counting(differences)],
        "times": [asdict(each) for each in differences if each.group == "times"],
    }


def number(value: Any) -> str:
    """Return a value as a table shows it: floats to six significant digits, None as a dash."""
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def is_time(metric: str) -> bool:
    """Return whether a metric is a time, judging by its name: ``mean: ms``."""
    return bool(_TIME_WORDS.search(metric))


def _compare_labs(key: str, left: LabRun, right: LabRun) -> list[Difference]:
    sides = [{**lab.results, "status": lab.status} for lab in (left, right)]
    tolerances = _tolerances(left, right)
    differing = [("run", *values) for values in _differing(sides, _RUN)]
    for group in _GROUPS:
        for name, ours, theirs in _differing([side.get(group, {}) for side in sides]):
            if (group, name) not in _REPEATED:
                kind = "times" if group == "metrics" and is_time(name) else group
                differing.append((kind, name, ours, theirs))
    differing += [("times", *values) for values in _differing(sides, _TIMES)]
    differences = []
    for group, name, ours, theirs in differing:
        known = tolerances.get(name) if group == "metrics" else None
        within = _within(known, ours, theirs) if known else None
        each = Difference(key, group, name, ours, theirs, change(ours, theirs), within)
        differences.append(each)
    return differences


def _differing(
    sides: Sequence[Mapping], names: Iterable[str] | None = None
) -> Iterable[tuple[str, Any, Any]]:
    """Yield (name, left, right) for each name whose values differ, inside nested mappings too."""
    for name in names or dict.fromkeys([*sides[0], *sides[1]]):
        left, right = (side.get(name, NOTHING) for side in sides)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            for inner, *values in _differing((left, right)):
                yield f"{name}.{inner}", *values
        elif left != right or type(left) is not type(right):
            yield name, left, right


def _within(known: Mapping[str, Any], left: Any, right: Any) -> bool | None:
    kind, amount = known["kind"], known.get("amount")
    if kind == "none":
        return None
    if kind == "at most":
        return all(is_within(value, None, kind, amount) for value in (left, right))
    return is_within(right, left, kind, amount)


def _tolerances(left: LabRun, right: LabRun) -> Mapping[str, Any]:
    """Return the stored metrics with their tolerances, if these apply to both runs; else {}."""
    entry = stored(left.results)
    if entry is None or stored(right.results) != entry:
        return {}
    return {} if any(why_not(lab.results, entry) for lab in (left, right)) else entry["metrics"]


def _by_key(run: RunFolder) -> dict[str, LabRun]:
    return {(lab.folder.name if run.kind == "sweep" else lab.lab): lab for lab in run.labs}
