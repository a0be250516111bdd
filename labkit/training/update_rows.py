"""The rows that a training writes, one for each update, and what of them can be read again."""

from labkit.training.records import read_usable

RECORDS = "records.csv"
DAMAGED = "records.csv.damaged"


def row_of(step, epoch, seconds, memory) -> dict:
    """Return the row of a step's last update, made in ``epoch`` (from 1).

    seconds  of training so far
    memory   of this process at most so far, in MB
    """
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
        **step.more_to_record,
        "seconds": round(seconds, 3),
        "peak_memory_mb": round(memory, 1),
    }


def rows_until_now(path, step) -> tuple[list[dict], bool]:
    """Return the rows in a file of records up to a step's last update, and whether all fit.

    A row of other columns than the step's next one would be refused in the middle of the training.
    A damaged byte in the header changes a name and not its length: such rows are the step's.
    """
    columns, updates = list(row_of(step, 0, 0.0, 0.0)), int(step.updates.asnumpy())
    rows: list[dict] = []
    fit = True
    # There is no file before the first update.
    for row in read_usable(path) if path.is_file() else []:
        if list(row) != columns:
            fit = False
            if [len(name) for name in row] != [len(name) for name in columns]:
                continue
            row = dict(zip(columns, row.values(), strict=True))
        if not isinstance(row["update"], int) or not 0 < row["update"] <= updates:
            continue
        before = [0, 0] + [one["update"] for one in rows[-2:]]
        if before[-2] < row["update"] <= before[-1]:
            rows.pop()  # its number is a damaged one: those after it go on below
        if not rows or rows[-1]["update"] < row["update"]:
            rows.append(row)
    return rows, fit


def updates_missing(rows, updates, count) -> str:
    """Return which updates have no row, of ``count`` rows up to update ``updates``."""
    before, parts = max(updates - count, 0), []
    for number in [*(row["update"] for row in rows if row["update"] > before), updates + 1]:
        if number > before + 1:
            parts.append((before + 1, number - 1))
        before = number
    shown = ", ".join(f"{a} to {b}" if a < b else str(a) for a, b in parts[:5])
    return f" (of updates {shown}{', ...' if len(parts) > 5 else ''})"
