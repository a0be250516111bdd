"""Run the notebooks as `make test` does, many times in a row, and count the failures.

    python benchmarks/smoke_runs.py --rounds 50 [--jobs 2]

A round runs all notebooks at preset smoke under nbval, in one process on a core of its own.
Finished rounds are kept in runs/bench/smoke_runs.jsonl (with the revision they ran at), so that an
interrupted series continues; --anew forgets them. Exit code 1 if any notebook has failed.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as xml
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from statistics import median

from labkit.base.command_line import Parser
from labkit.base.cores import usable_cores
from labkit.labs.run import git_revision
from labkit.tools import console

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "runs" / "bench" / "smoke_runs.jsonl"
NBVAL = ["--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout", "300"]
NBVAL += ["--nbval-sanitize-with", "notebooks/sanitize.cfg"]


def main() -> int:
    """Run the missing rounds and print a table; return the exit code."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=1, help="rounds at once, each on one core")
    parser.add_argument("--anew", action="store_true", help="forget the finished rounds")
    options = parser.parse_args()
    cores = usable_cores()
    if options.rounds < 1 or not 1 <= options.jobs <= len(cores):
        parser.error(f"expected --rounds >= 1 and --jobs from 1 to {len(cores)}")
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    if options.anew:
        KEPT.unlink(missing_ok=True)
    free: SimpleQueue = SimpleQueue()
    for core in cores[: options.jobs]:
        free.put(core)
    lock = threading.Lock()

    def run_round(number: int) -> None:
        core = free.get()
        try:
            row = {"revision": git_revision(ROOT), **run_notebooks(core)}
        finally:
            free.put(core)
        with lock, KEPT.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        failed = sorted({failure["notebook"] for failure in row["failures"]})
        console.line(f"round {number}: {row['seconds']:.0f} s, failed: {', '.join(failed) or 0}")

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(run_round, range(len(kept()) + 1, options.rounds + 1)))
    return show(kept())


def run_notebooks(core: int) -> dict:
    """Run all notebooks once on one core; return seconds by notebook and what failed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = ["taskset", "-c", str(core), sys.executable, "-m", "pytest", "notebooks", *NBVAL]
        command += ["-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        began = time.monotonic()
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | {"LABKIT_PRESET": "smoke"},
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.monotonic() - began
        if done.returncode not in (0, 1):
            raise RuntimeError(f"pytest exited with {done.returncode}:\n{done.stdout[-3000:]}")
        return {"seconds": seconds, **read(report)}


def read(report: Path) -> dict:
    """Return number of cells, seconds by notebook and failures from pytest's JUnit report."""
    cases = list(xml.parse(report).iter("testcase"))
    spent, failures = Counter(), []
    for case in cases:
        notebook = case.get("classname").removesuffix(".ipynb").rpartition(".")[2]
        spent[notebook] += float(case.get("time"))
        for failure in (*case.findall("failure"), *case.findall("error")):
            text = (failure.text or failure.get("message") or "")[-2000:]
            failures.append({"notebook": notebook, "cell": case.get("name"), "text": text})
    return {"cells": len(cases), "spent": dict(spent), "failures": failures}


def kept() -> list[dict]:
    """Return the finished rounds; remove a truncated last line from the file."""
    if not KEPT.exists():
        return []
    whole, end, _ = KEPT.read_bytes().rpartition(b"\n")
    os.truncate(KEPT, len(whole + end))  # or the next round's line would be appended to it
    return [json.loads(line) for line in whole.splitlines()]


def show(rounds: list[dict]) -> int:
    """Print seconds and failures of each notebook; return 1 if there are any, else 0."""
    names = sorted({name for each in rounds for name in each["spent"]})
    failed = Counter(name for each in rounds for name in {f["notebook"] for f in each["failures"]})
    rows = [
        (name, str(len(rounds)), str(failed[name]), f"{middle(rounds, name):.1f}") for name in names
    ]
    console.table(("notebook", "rounds", "failed", "median seconds"), rows)
    for each in rounds:
        for failure in each["failures"]:
            console.line(f"{failure['notebook']}, {failure['cell']}:\n{failure['text']}")
    return 1 if failed else 0


def middle(rounds: list[dict], name: str) -> float:
    """Return the median seconds of a notebook."""
    return median(each["spent"].get(name, 0.0) for each in rounds)


if __name__ == "__main__":
    sys.exit(main())
