"""What the benchmarks share: child processes, medians, one table, one JSON file."""

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

# Below this share of idle time before a measurement, other processes are at work.
_IDLE = 0.9


def in_child(program: str, *arguments: str, environment: dict | None = None) -> dict:
    """Run ``program`` with ``arguments`` in a process of its own and return its last line as JSON.

    environment  variables to add; None as value takes one out. Raises ``RuntimeError`` with the
    child's words where it fails.
    """
    variables = dict(os.environ)
    for name, value in (environment or {}).items():
        variables.pop(name, None)
        if value is not None:
            variables[name] = value
    command = [sys.executable, program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} exited with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def interleaved_ms(contestants: dict, rounds: int, steps: int) -> dict[str, float]:
    """Return the median milliseconds of one call of each contestant, taken in turns.

    contestants  functions of no arguments, which wait for their result. The first round, which
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
    """Print rows of texts and numbers in columns."""
    texts = [header] + [[f"{x:.3f}" if isinstance(x, float) else str(x) for x in r] for r in rows]
    widths = [max(len(row[i]) for row in texts) for i in range(len(header))]
    for row in texts:
        first, *rest = (
            text.ljust(w) if i == 0 else text.rjust(w)
            for i, (text, w) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join([first, *rest]))


def look_at_machine(seconds: float = 1.0) -> dict:
    """Return what the machine is and how busy others keep it; warn where that spoils the figures.

    seconds  how long the share of idle processor time is taken over. Call it before measuring.
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
    return {
        "cores": os.cpu_count(),
        "platform": platform.platform(),
        "time": time.ctime(),
        "idle_before": round(idle, 3),
        "load_average_before": os.getloadavg(),
    }


def _processor_times():
    # user, nice, system, idle, iowait, irq, softirq, steal; the guests' are in user already.
    with open("/proc/stat") as file:
        return [int(ticks) for ticks in file.readline().split()[1:9]]


def write_json(name: str, results: dict, machine: dict) -> Path:
    """Write ``runs/bench/<name>.json``, ``look_at_machine``'s finding beside the results."""
    folder = Path(__file__).resolve().parent.parent / "runs" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"machine": machine, **results}, indent=1) + "\n")
    print(f"\nwritten to runs/bench/{path.name}")
    return path
