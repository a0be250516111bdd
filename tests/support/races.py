"""What the tests of the programs that make stored races have in common."""

import os
import shutil
import subprocess
import sys

from labkit.labs import results

# The second run has the times of the first one: they would be measured anew.
_WITH_ITS_TIMES = """
import sys, pathlib, {race} as program
from labkit.labs import results
stored = results.load("{race}", pathlib.Path(sys.argv.pop()))
program.times = lambda *_: stored.head["times"]
program.main()
"""


def quick_twice(race, programs, root, data, folder, *, timed=False):
    """Run benchmarks/RACE.py --quick twice in ``folder``; return (its output, the stored race).

    Every training that is planned has its row, and the second run trains nothing again; of a race
    with times (``timed``) it measures none.
    """
    program = folder / "benchmarks"  # what it writes goes beside it
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
