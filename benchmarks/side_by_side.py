"""Functions shared by the benchmarks: child processes, medians, one table, one JSON file."""

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from labkit.base.files import write_json
from labkit.base.project import version
from labkit.labs.run import installed_version

RESULTS = Path(__file__).resolve().parent.parent / "runs" / "bench"
# If less than this share of time is idle before a measurement, other processes are running.
_IDLE = 0.9


class Target(NamedTuple):
    """A measured figure and its upper limit."""

    what: str
    measured: float
    most: float


def in_child(program: str, *arguments: str, environment: dict | None = None) -> dict:
    """Run ``program`` with ``arguments`` in a process of its own and return its last line as JSON.

    Variables of ``environment`` are added; one with the value None is removed.
    """
    variables = os.environ | (environment or {})
    variables = {name: value for name, value in variables.items() if value is not None}
    command = [sys.executable, program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} exited with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def interleaved_ms(contestants: dict, rounds: int, steps: int) -> dict[str, float]:
    """Return the median milliseconds of one call of each contestant, timed in turn.

    Contestants are functions without arguments that wait for their result. The first round, which
    compiles and warms up, does not count.
    """
    taken = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, call in contestants.items():
            begin = time.perf_counter()
            for _ in range(steps):
                call()
            if number:
                taken[name].append((time.perf_counter() - begin) / steps * 1e3)
    return {name: statistics.median(values) for name, values in taken.items()}


def medians(runs: list[dict[str, float]]) -> dict[str, float]:
    """Return the median over processes of each number."""
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def print_table(header: list[str], rows: list[list]) -> None:
    """Print rows of strings and numbers in columns."""
    texts = [header] + [[f"{x:.3f}" if isinstance(x, float) else str(x) for x in r] for r in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    for first, *rest in texts:
        others = (text.rjust(width) for text, width in zip(rest, widths[1:], strict=True))
        print("  ".join([first.ljust(widths[0]), *others]))


def look_at_machine(seconds: float = 1.0) -> dict:
    """Return a description of the machine and its load; warn if the load spoils the figures.

    The share of idle processor time is measured over ``seconds``. Call it before measuring.
    """
    before = _processor_times()
    time.sleep(seconds)
    spent = [after - start for start, after in zip(before, _processor_times(), strict=True)]
    idle = (spent[3] + spent[4]) / max(1, sum(spent))  # idle and waiting for disks
    if idle < _IDLE:
        print(
            f"warning: only {idle:.0%} of the processor time is idle; another process is at work, "
            "and the times below are not the machine's (PyTorch's suffer most)",
            file=sys.stderr,
        )
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return {
        "versions": {
            "labkit": version(),
            **{name: installed_version(name) for name in ("mindspore", "torch", "numpy")},
            "python": platform.python_version(),
        },
        "cores": os.cpu_count(),
        "processor": next(names, platform.processor()),
        "date": time.strftime("%Y-%m-%d"),
        "idle_before": round(idle, 3),
    }


def _processor_times():
    # user, nice, system, idle, iowait, irq, softirq, steal; guest time is included in user.
    with open("/proc/stat") as file:
        return [int(ticks) for ticks in file.readline().split()[1:9]]


def write_results(name: str, results: dict, machine: dict, targets: Iterable[Target] = ()) -> None:
    """Print which targets are met, and write ``<name>.json`` to ``runs/bench``.

    The file holds the results, the targets and what ``look_at_machine`` returned.
    """
    targets = list(targets)
    if targets:
        print()
        rows = [
            [*target, "met" if target.measured <= target.most else "MISSED"] for target in targets
        ]
        print_table(["target", "measured", "at most", ""], rows)
    path = RESULTS / f"{name}.json"
    write_json(path, {"machine": machine, **results, "targets": targets}, "the results")
    print(f"\nwritten to runs/bench/{path.name}")
