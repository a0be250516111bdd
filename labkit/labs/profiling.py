"""Where the time of a step goes, operator by operator, from MindSpore's own CPU profiler.

A row is one operator of the compiled graph, or with ``by_operator`` one kind: ``count`` and ``ms``
are per call of the step. Kernels run one after another on CPU, so that the times add up; what is
missing to the time of a call is launches and Python (``other``).
"""

import csv
import tempfile
import time
from collections.abc import Callable, Iterable
from numbers import Integral
from pathlib import Path

from labkit.errors import InputError


def operator_times(step: Callable, *batch, calls: int = 3) -> list[dict]:
    """Return the rows (operator, scope, count, ms) of ``calls`` calls of ``step``, slowest first.

    step   a compiled step or network on CPU, called as ``step(*batch)``; its updates are made
    batch  tensors; one call before the measured ones compiles
    calls  measured calls, >= 1

    ``operator`` is the kernel's name (``Conv2D``), ``scope`` the path of the cells around it, which
    begins with ``Gradients`` in the backward pass; MindSpore files the gradients of all equal
    MatMuls under one of them. A last row ``other`` is the rest of the time of a call.

    Raises ``InputError`` off the CPU, whose profilers write other files, and for ``calls`` < 1.
    """
    import mindspore

    device = mindspore.get_context("device_target")
    if device != "CPU":
        raise InputError(
            f"operator_times reads the CPU's profile and the device is {device}; expected CPU. "
            "mindspore.profiler.profile writes a timeline there"
        )
    if isinstance(calls, bool) or not isinstance(calls, Integral) or calls < 1:
        raise InputError(f"calls is {calls!r}; expected an integer >= 1")
    _finished(step(*batch))
    with tempfile.TemporaryDirectory() as folder:
        call = _profile(step, batch, calls, folder)
        rows = _read(Path(folder), calls)
    rest = call - sum(row["ms"] for row in rows)
    return [*rows, {"operator": "other", "scope": "", "count": 1, "ms": max(0.0, rest)}]


def by_operator(rows: Iterable[dict]) -> list[dict]:
    """Return the rows summed over scopes: (operator, count, ms, share of the whole)."""
    sums = {}
    for row in rows:
        total = sums.setdefault(row["operator"], {"count": 0, "ms": 0.0})
        total["count"] += row["count"]
        total["ms"] += row["ms"]
    whole = sum(total["ms"] for total in sums.values()) or 1.0
    summed = [
        {"operator": name, **total, "share": total["ms"] / whole} for name, total in sums.items()
    ]
    return sorted(summed, key=lambda row: -row["ms"])


def _profile(step, batch, calls, folder):
    """Profile into ``folder``; return the mean milliseconds of a call."""
    from mindspore.profiler import ProfilerActivity, profile, tensorboard_trace_handler

    # analyse_flag: no timeline, which takes seconds and prints; the CPU's table is there without.
    handler = tensorboard_trace_handler(folder, analyse_flag=False)
    with profile(activities=[ProfilerActivity.CPU], on_trace_ready=handler):
        begin = time.perf_counter()
        for _ in range(calls):
            _finished(step(*batch))
        return (time.perf_counter() - begin) / calls * 1e3


def _finished(result):
    """Wait for the first tensor of ``result``."""
    while isinstance(result, (tuple, list)):
        result = result[0]
    result.asnumpy()


def _read(folder, calls):
    tables = list(folder.glob("*/FRAMEWORK/cpu_op_detail_info_*.csv"))
    if len(tables) != 1:
        names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
        raise RuntimeError(f"MindSpore's profiler wrote no table of CPU operators, but {names}")
    with tables[0].open(newline="") as file:
        rows = [
            {
                "operator": line["op_type"],
                "scope": line["full_op_name"].rpartition("/")[0],
                "count": int(line["op_occurrences"]) / calls,
                "ms": float(line["op_total_time(ms)"]) / calls,
            }
            for line in csv.DictReader(file)
        ]
    return sorted(rows, key=lambda row: -row["ms"])
