"""The rows that a training writes, one per update, and which of them can be read again."""

import shutil
import sys
from pathlib import Path
from typing import Any

from labkit.base.files import whole_file
from labkit.steps.step import Step
from labkit.training.records import read_usable

RECORDS = "records.csv"
DAMAGED = "records.csv.damaged"


def row_of(step: Step, epoch: int, seconds: float) -> dict[str, Any]:
    """Return the row of a step's last update, made in ``epoch`` (from 1)."""
    last = step.last_update
    rates = {
        "learning_rate" if group == 0 else f"learning_rate_{group}": rate
        for group, rate in enumerate(last.learning_rate)
    }
    return {
        "epoch": epoch,
        "update": last.number,
        "images": last.images,
        "loss": last.loss,
        "gradient_norm": last.gradient_norm,
        **rates,
        **step.update.more_to_record,
        "seconds": round(seconds, 3),
        "peak_memory_mb": round(peak_memory_mb(), 1),
    }


def peak_memory_mb() -> float:
    """Return the largest resident memory of this process so far, in MB (10^6 bytes).

    NaN on Windows, where Python cannot tell.
    """
    try:
        import resource
    except ImportError:
        return float("nan")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


def rows_before(folder: Path, step: Step, count: int, writes: bool) -> list[dict]:
    """Return the rows of the updates that a step has made; report which of ``count`` are missing.

    The rank that ``writes`` the folder keeps a copy of a damaged file beside it.
    """
    path = folder / RECORDS
    rows, whole = _rows_until_now(path, step)
    missing = count - len(rows)
    if writes and path.is_file() and (missing > 0 or not whole):
        with whole_file(folder / DAMAGED, "the damaged records") as copy:
            shutil.copyfile(path, copy)
        print(f"labkit: {path} is damaged; kept as it was in {DAMAGED}", flush=True)
    if writes and missing > 0:
        updates = _updates_missing(rows, int(step.updates.asnumpy()), count)
        print(
            f"labkit: {path} lacks {missing} of the {count} rows that were written before the "
            f"checkpoint (of updates {updates}); the training continues without them",
            flush=True,
        )
    return rows


def _rows_until_now(path: Path, step: Step) -> tuple[list[dict], bool]:
    """Return the rows in a file of records up to a step's last update, and whether all fit.

    Rows whose columns differ from those of the step's next row are left out: ``add`` would refuse
    that one in the middle of the training. Names of the same lengths are accepted: a damaged byte
    in the header changes a name but not its length.
    """
    columns, updates = list(row_of(step, 0, 0.0)), int(step.updates.asnumpy())
    lengths = [len(name) for name in columns]
    rows: list[dict] = []
    whole = True
    # There is not a file before the first update.
    for row in read_usable(path) if path.is_file() else []:
        if list(row) != columns:
            whole = False
            if [len(name) for name in row] != lengths:
                continue
            row = dict(zip(columns, row.values(), strict=True))
        number = row["update"]
        if not isinstance(number, int) or not 0 < number <= updates:
            continue
        earlier, last = ([0, 0] + [kept["update"] for kept in rows[-2:]])[-2:]
        if earlier < number <= last:
            rows.pop()  # its number is damaged: the rows after it continue from a smaller one
        if not rows or rows[-1]["update"] < number:
            rows.append(row)
    return rows, whole


def _updates_missing(rows: list[dict], updates: int, count: int) -> str:
    """Return which updates have no row, of ``count`` rows up to update ``updates``."""
    before, gaps = max(updates - count, 0), []
    for number in [*(row["update"] for row in rows if row["update"] > before), updates + 1]:
        if number > before + 1:
            gaps.append((before + 1, number - 1))
        before = number
    shown = ", ".join(f"{a} to {b}" if a < b else str(a) for a, b in gaps[:5])
    return f"{shown}{', ...' if len(gaps) > 5 else ''}"
