"""What the tests of several stored races, and of the programs that made them, have in common."""

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from labkit.labs import results


def assert_it_says_how_it_was_made(stored, root):
    """The stored race names a program of this project, versions, cores and a date."""
    program, option = stored.head["command"].removeprefix("python ").split()
    assert option == "--all" and (root / program).is_file()
    assert set(stored.head["versions"]) == {"labkit", "mindspore", "numpy", "python"}
    assert stored.head["cores"] >= 1 and len(stored.head["date"]) == 10


def assert_planned(stored, name, module, root, monkeypatch):
    """The stored plan is the one called ``name`` in a module of benchmarks/."""
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    plans = importlib.import_module(module).PLANS
    sys.modules.pop(module)
    assert stored.head["plan"] == json.loads(json.dumps(plans[name]))


def assert_small(race, size):
    """The race's files, its module among them, are four, of fewer than ``size`` bytes together."""
    files = list(Path(results.stored.FOLDER).glob(f"{race}.*"))
    files += Path(results.stored.FOLDER).glob(f"{race}_curves.*")
    assert len(files) == 4
    assert sum(path.stat().st_size for path in files) < size


def quick_twice(race, load, programs, root, mnist, folder):
    """Run benchmarks/RACE.py --quick twice in ``folder``; return (its output, the stored race).

    Every training that is planned has its row, and the second run trains nothing again.
    """
    program = folder / "benchmarks"  # what it writes goes beside it
    shutil.copytree(programs, program)
    out = folder / "runs" / "bench" / f"{race}_quick"
    command = [sys.executable, f"{race}.py", "--quick", "--data", str(mnist)]
    environment = os.environ | {"PYTHONPATH": str(root)}
    finished = []
    for _ in range(2):
        done = subprocess.run(
            command, cwd=program, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        finished.append({path.name: path.stat().st_mtime_ns for path in out.glob("*.json")})
    stored = load(out / "stored")  # checks the rows against the plan
    assert finished[0] == finished[1] and len(finished[0]) == len(stored.rows)
    return done.stdout, stored
