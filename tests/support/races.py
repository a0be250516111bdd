"""What the tests of the programs that make stored races have in common."""

import os
import shutil
import subprocess
import sys

from labkit.labs import results
from labkit.labs.results import migration_race


def quick_twice(race, programs, root, data, folder, again=()):
    """Run benchmarks/RACE.py --quick twice in ``folder``; return (its output, the stored race).

    Every training that is planned has its row, and the second run, which may be another command,
    trains nothing again.
    """
    program = folder / "benchmarks"  # what it writes goes beside it
    shutil.copytree(programs, program)
    out = folder / "runs" / "bench" / f"{race}_quick"
    options = ["--quick", "--data", str(data)]
    commands = [[f"{race}.py", *options]]
    commands.append([*again, *options, str(out / "stored")] if again else commands[0])
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


def invented_migration(plan, per_epoch, total, contestants):
    """A table of the migration race that its plan allows, and nobody has trained.

    Of a setting number k in ``planned``, k = 0, 1, ..., the loss of update u is
    (1 + k (u - 1) / 100) / u, and the accuracy after epoch e is 0.9 + (e + 3 k) / 400.
    """
    rows, curves = [], {}
    for number, (stage, setting, seed) in enumerate(migration_race.planned(plan)):
        curve = [
            {"update": u, "accuracy": None, "loss": None}
            | {"training_loss": (1 + number * (u - 1) / 100) / u}
            for u in range(1, total + 1)
        ]
        for epoch, point in enumerate(curve[per_epoch - 1 :: per_epoch], start=1):
            point |= {"accuracy": 0.9 + (epoch + 3 * number) / 400, "loss": 0.5 / epoch}
        last = curve[-1]
        rows.append(
            {"run": number + 1, "stage": stage, **setting, "seed": seed, "updates": total}
            | {"last_accuracy": last["accuracy"], "last_loss": last["loss"]}
            | {"other_accuracy": last["accuracy"], "images_differ": 0, "seconds": 1.0}
        )
        curves[number + 1] = curve
    times = {name: {"training": 2.0, "inference": 1.0, "kernels": "x"} for name in contestants}
    return results.Stored({"plan": plan, "times": times}, rows, curves)
