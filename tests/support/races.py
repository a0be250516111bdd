"""Shared by the tests of the programs that make stored races."""

import os
import shutil
import subprocess
import sys

from labkit.labs import results


def quick_twice(race, programs, root, data, folder):
    """Run benchmarks/RACE.py --quick twice in ``folder``; return the stored race.

    Assert that every planned training has its row and that the second run trains nothing again.
    """
    program = folder / "benchmarks"  # its output goes beside it
    shutil.copytree(programs, program)
    out, finished = folder / "runs" / "bench" / f"{race}_quick", []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, f"{race}.py", "--quick", "--data", str(data)],
            cwd=program,
            env=os.environ | {"PYTHONPATH": str(root)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        finished.append({path.name: path.stat().st_mtime_ns for path in out.glob("*.json")})
    stored = results.load(race, out / "stored")
    assert finished[0] == finished[1] and len(finished[0]) == len(stored.rows)
    return stored
