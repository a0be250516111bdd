"""How many cores a process may use: the same answer everywhere, on every system."""

import os
import re
import subprocess
import sys
from pathlib import Path

from labkit.base import cores
from labkit.base.cores import usable_cores

ROOT = Path(__file__).parents[2]


def test_the_cores_it_is_pinned_to(monkeypatch):
    assert usable_cores() == sorted(os.sched_getaffinity(0))
    program = "from labkit.base.cores import usable_cores; print(usable_cores())"
    core = usable_cores()[-1]
    done = subprocess.run(
        ["taskset", "-c", str(core), sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"[{core}]\n"


def test_all_of_the_machine_where_the_system_does_not_say(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert usable_cores() == [0, 1, 2]
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores() == [0]


def test_cores_are_divided_and_none_is_left_out(monkeypatch):
    monkeypatch.setattr(cores, "usable_cores", lambda: [1, 3, 4, 6, 7])
    assert cores.equal_shares(1) == [{1, 3, 4, 6, 7}]
    assert cores.equal_shares(2) == [{1, 3}, {4, 6, 7}]
    assert cores.equal_shares(5) == [{1}, {3}, {4}, {6}, {7}]
    assert cores.equal_shares(10) == [{1}, {1}, {3}, {3}, {4}, {4}, {6}, {6}, {7}, {7}]


def test_where_the_system_pins_nothing(monkeypatch):
    monkeypatch.delattr(os, "sched_setaffinity")
    assert not cores.keep_to({0}) and not cores.keep_to({0}, all_threads=True)


def test_a_pipeline_a_sweep_and_a_basis_do_without(monkeypatch):
    """This is the case on macOS, where the first data set once raised AttributeError."""
    from labkit.tools.running import pool

    from labkit.algorithms.subspace import components
    from labkit.base import arguments

    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert arguments.fit_workers(8) == 2
    assert pool.jobs_of(None, 5, memory=1) == 2
    assert components._Blocks(type("Snapshots", (list,), {"size": 3})()).threads == 2


def test_nobody_asks_the_system_itself():
    asks = re.compile(r"os\.sched_getaffinity\(")
    for path in [*(ROOT / "labkit").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py")]:
        text = path.read_text(encoding="utf-8")
        assert path.name == "cores.py" or not asks.search(text), path
