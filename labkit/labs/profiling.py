"""The time of a step, operator by operator, from MindSpore's own CPU profiler.

A row is one operator of the compiled graph or, with ``by_operator``, one kind of operator;
``count`` and ``ms`` are per call of the step. Kernels run one after another on CPU, so the times
add up; the rest of the time of a call is launches and Python (``other``).
"""

import csv
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from labkit.base.arguments import integer, number
from labkit.errors import InputError


def operator_times(step: Callable, *batch: Any, calls: int = 3) -> list[dict]:
    """Return the rows (operator, scope, count, ms) of ``calls`` calls of ``step``, slowest first.

    ``operator`` is the kernel's name (``Conv2D``), ``scope`` the path of the cells around it, which
    begins with ``Gradients`` in the backward pass; MindSpore reports the gradients of all equal
    MatMuls under one of them. The last row, ``other``, is the rest of the time of a call.

    Args:
        step: a compiled step or network on CPU, called as ``step(*batch)``; its updates take effect
        *batch: tensors; one call before the measured ones compiles
        calls: number of measured calls, >= 1

    Raises:
        InputError: if the device is not the CPU (profilers of other devices write other files), or
            ``calls`` is less than 1.
    """
    import mindspore

    device = mindspore.get_context("device_target")
    if device != "CPU":
        raise InputError(
            f"device: expected CPU, whose profile is read, got {device}; "
            "mindspore.profiler.profile writes a timeline there"
        )
    calls = integer("calls", calls)
    _finished(step(*batch))
    with tempfile.TemporaryDirectory() as folder:
        call = _profile(step, batch, calls, folder)
        rows = _read(Path(folder), calls)
    rest = call - sum(row["ms"] for row in rows)
    return [*rows, {"operator": "other", "scope": "", "count": 1, "ms": max(0.0, rest)}]


def by_operator(rows: Iterable[dict]) -> list[dict]:
    """Return the rows summed over scopes: (operator, count, ms, share of the whole)."""
    sums: dict[str, dict] = {}
    for row in rows:
        total = sums.setdefault(row["operator"], {"count": 0, "ms": 0.0})
        total["count"] += row["count"]
        total["ms"] += row["ms"]
    whole = sum(total["ms"] for total in sums.values()) or 1.0
    summed = [
        {"operator": name, **total, "share": total["ms"] / whole} for name, total in sums.items()
    ]
    return sorted(summed, key=lambda row: -row["ms"])


def calls_per_second(call: Callable[[], object], seconds: float) -> float:
    """Call ``call`` once, to compile it, then for at least ``seconds``; return calls per second."""
    seconds = number("seconds", seconds, at_least=0)
    call()
    calls, begin = 0, time.perf_counter()
    while True:
        call()
        calls += 1
        if (taken := time.perf_counter() - begin) >= seconds:
            return calls / taken


def _profile(step: Callable, batch: tuple, calls: int, folder: str) -> float:
    """Profile into ``folder``; return the mean milliseconds of a call."""
    from mindspore.profiler import ProfilerActivity, profile, tensorboard_trace_handler

    # analyse_flag: skip the timeline, which takes seconds and prints; the CPU's table is written.
    handler = tensorboard_trace_handler(folder, analyse_flag=False)
    with profile(activities=[ProfilerActivity.CPU], on_trace_ready=handler):
        begin = time.perf_counter()
        for _ in range(calls):
            _finished(step(*batch))
        return (time.perf_counter() - begin) / calls * 1e3


def _finished(result: Any) -> None:
    """Wait for the first tensor of ``result``."""
    while isinstance(result, (tuple, list)):
        result = result[0]
    result.asnumpy()


def _read(folder: Path, calls: int) -> list[dict]:
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
