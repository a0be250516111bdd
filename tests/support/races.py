"""Shared by the tests of the programs that make stored races."""

import os
import shutil
import subprocess
import sys

from labkit.labs import results

# The second run reuses the times of the first one, which it would otherwise measure again.
_WITH_ITS_TIMES = """
import sys, pathlib, {race} as program
from labkit.labs import results
stored = results.load("{race}", pathlib.Path(sys.argv.pop()))
program.times = lambda *_: stored.head["times"]
program.main()
"""


def quick_twice(race, programs, root, data, folder, *, timed=False):
    """Run benchmarks/RACE.py --quick twice in ``folder``; return (its output, the stored race).

    Assert that every planned training has its row and that the second run trains nothing again; for
    a race with times (``timed``) the second run measures none.
    """
    program = folder / "benchmarks"  # its output goes beside it
    shutil.copytree(programs, program)
    out = folder / "runs" / "bench" / f"{race}_quick"
    options = ["--quick", "--data", str(data)]
    commands = [[f"{race}.py", *options]]
    again = ["-c", _WITH_ITS_TIMES.format(race=race), *options, str(out / "stored")]
    commands.append(again if timed else commands[0])
    finished = []
    for command in commands:
        done = subprocess.run(
            [sys.executable, *command],
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
    return done.stdout, stored
