"""Compare one step with another, stage by stage, tensor by tensor."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from labkit.errors import InputError
from labkit.migration.fixtures import Digest
from labkit.migration.trace import STAGES, Trace

# Largest difference of a tensor over the largest value of the reference's: that of the requirement,
# or about ten times what was measured for ResNet-18 and -50 against float64.
STEP_TOLERANCE = {
    "preprocessing": 1e-6,
    "weights": 0.0,
    "forward": 1e-4,
    "loss": 1e-5,
    "gradients": 1e-3,
    "update": 1e-3,
    "statistics": 1e-4,
}
# A tensor whose largest value is below this share of its stage's is rounding noise, such as the
# gradient of a convolution's bias before BatchNorm.
_NOISE = 1e-6


@dataclass(frozen=True)
class Row:
    """One tensor of one stage."""

    stage: str
    name: str
    difference: float  # the largest over the largest value of the reference, or infinite
    tolerance: float  # that of the stage
    passed: bool
    note: str = ""  # why a difference is infinite


def compare_step(actual: Trace, reference: Trace) -> list[Row]:
    """Return a ``Row`` for each tensor of each stage, in the order in which a fault spreads.

    ``actual`` is the step to judge, from ``trace``, not a recorded one. An update is known only to
    the spacing of float32 numbers of its weight's size, which is subtracted from its difference. In
    the stage ``forward`` only cells that both sides have are compared; in every other one a tensor
    that one side lacks is a failed row. Raises ``InputError`` if there is nothing to compare.
    """
    if not (rows := [row for stage in STAGES for row in _rows(stage, actual, reference)]):
        raise InputError(f"nothing to compare between {actual.origin} and {reference.origin}")
    return rows


def first_difference(rows: Sequence[Row]) -> Row | None:
    """Return the first row that failed, which is where to look; None if all passed."""
    return next((row for row in rows if not row.passed), None)


def stage_table(rows: Sequence[Row]) -> str:
    """Return one line per stage: tensors, failures, and the first failed or the worst tensor."""
    lines = ["stage          tensors  failed  largest difference  tolerance  at"]
    for stage in dict.fromkeys(row.stage for row in rows):
        of_stage = [row for row in rows if row.stage == stage]
        failed = [row for row in of_stage if not row.passed]
        # Show the first fault of a failed stage, and the worst tensor of a stage that passed.
        shown = failed[0] if failed else max(of_stage, key=lambda row: row.difference)
        note = f" ({shown.note})" if shown.note else ""
        lines.append(
            f"{stage:14}{len(of_stage):>8}{len(failed):>8}  {shown.difference:>18.1e}  "
            f"{shown.tolerance:>9.0e}  {shown.name}{note}"
        )
    return "\n".join(lines)


def _rows(stage: str, actual: Trace, reference: Trace) -> Iterator[Row]:
    ours, theirs = actual.stages.get(stage, {}), reference.stages.get(stage, {})
    tolerance = STEP_TOLERANCE[stage]
    floor = _NOISE * max(filter(np.isfinite, map(_largest, theirs.values())), default=0.0)
    common = [name for name in theirs if name in ours]
    if stage == "forward" and ours and theirs and not common:
        note = "no cell has the same name on both sides"
        yield Row(stage, next(iter(theirs)), np.inf, tolerance, False, note)
    for name in common if stage == "forward" else {**theirs, **ours}:
        if name in common:
            weight = reference.stages["weights"].get(name) if stage == "update" else None
            slack = 0.0 if weight is None else float(np.spacing(np.float32(_largest(weight))))
            difference, note = _difference(ours[name], theirs[name], floor, slack)
        else:
            difference, note = np.inf, f"{(reference if name in ours else actual).origin} lacks it"
        yield Row(stage, name, difference, tolerance, bool(difference <= tolerance), note)


def _difference(value: object, expected: object, floor: float, slack: float) -> tuple[float, str]:
    value = np.asarray(value)
    shape = expected.shape if isinstance(expected, Digest) else np.asarray(expected).shape
    if value.shape != shape:
        hint = ": transposed?" if value.shape == shape[::-1] else ""
        return np.inf, f"shape {value.shape}, expected {shape}{hint}"
    if not np.isfinite(value).all() or not np.isfinite(_largest(expected)):
        return np.inf, "not finite"
    scale = max(_largest(expected), floor) or 1.0
    if isinstance(expected, Digest):
        off = expected.distance(value)
    else:
        off = np.abs(value.astype(np.float64) - np.asarray(expected, np.float64)).max(initial=0.0)
    return max(float(off) - slack, 0.0) / scale, ""


def _largest(value: object) -> float:
    if isinstance(value, Digest):
        return value.largest
    return float(np.abs(np.asarray(value, np.float64)).max(initial=0.0))
