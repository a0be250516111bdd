"""Trainings killed by SIGKILL at random moments end as those that were left in peace, bit by bit.

    python -m tests.campaigns.kills --kills 100 --minutes 60 --seed 0 --only THOR

One training after the other: accumulation, THOR, Adasum, subspace, and two ranks. Each is killed
and resumed until it has ended; then the SHA-256 of all Parameters (of each rank) and the records,
all columns but seconds and memory, are those of a training that was not killed. Of two ranks, one
of them or the program that has started them is killed. A failure prints the seed of its training.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

from labkit.training.records import read_records
from tests.campaigns.killed import RANKS, STEPS
from tests.support.trainings import ROOT, comparable

MOMENTS = ("at any time", "while it trains", "in a checkpoint", "in a record")
_MOST = 6  # kills of one training
SECONDS = 300  # for a process to begin, or to end
LAUNCH = (
    "import sys; from labkit import launch; "
    "launch('-m', 'tests.campaigns.killed', *sys.argv[2:], workers=int(sys.argv[1]), timeout=600)"
)


class Failed(AssertionError):
    """A training did not end as it should have."""


class Training:
    """One training in a folder of its own, which may take many processes."""

    def __init__(self, kind, folder):
        self.kind, self.folder, self.run = kind, Path(folder), Path(folder) / "run"
        self.ranks = RANKS.get(kind, 1)

    def started(self):
        """Start a process that goes on with the training."""
        command = ["-m", "tests.campaigns.killed", self.kind, str(self.folder)]
        if self.ranks > 1:
            command = ["-c", LAUNCH, str(self.ranks), self.kind, str(self.folder)]
        log = (self.folder / "log").open("ab")
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        return subprocess.Popen(
            [sys.executable, *command], cwd=ROOT, stdout=log, stderr=log, env=environment
        )

    def ended(self):
        return all((self.folder / f"ended-{rank}").exists() for rank in range(self.ranks))

    def result(self):
        """Return the digests of all ranks and the records."""
        digests = [(self.folder / f"ended-{n}").read_text() for n in range(self.ranks)]
        left = [path.name for path in self.run.rglob(".*")]
        if left:
            raise Failed(f"{left} left in {self.run}")
        return digests, comparable(read_records(self.run / "records.csv").rows)

    def to_its_end(self):
        """Let it train in peace; return how it ended."""
        process = self.started()
        if process.wait(SECONDS) or not self.ended():
            raise Failed(f"exit code {process.returncode}:\n{self.last_lines()}")
        return self.result()

    def last_lines(self):
        return (self.folder / "log").read_text(errors="replace")[-3000:]

    def written(self):
        """Return what changes with each checkpoint and each record."""
        names = {path.name for path in (self.run / "checkpoint").glob("step-*")}
        records = self.run / "records.csv"
        return names, records.stat().st_size if records.exists() else 0


def killed_once(training, moment, draw):
    """Start the training and kill it at a moment; return whether it was killed."""
    before = training.written()
    process = training.started()
    killed = False
    try:
        _wait(training, process, before, moment, draw)
        victims = [process]
        if training.ranks > 1 and draw.random() < 0.7:
            victims = _ranks(process) or victims
        if process.poll() is None:
            draw.choice(victims).kill()
            killed = True
        code = process.wait(SECONDS)
    finally:
        if process.poll() is None:
            process.kill()
    _all_over(training)
    # A launch whose rank was killed raises; one that had just ended was not killed after all.
    if code not in (0, -signal.SIGKILL) and not (killed and training.ranks > 1):
        raise Failed(f"exit code {code}:\n{training.last_lines()}")
    return code != 0


def _wait(training, process, before, moment, draw):
    """Return when the moment has come, or the process has ended."""
    until = time.monotonic() + SECONDS
    if moment == "at any time":
        # Imports, the lock, the resume and the compilation take seconds, the training one or two.
        until = time.monotonic() + draw.uniform(0, 15)
    number = draw.randint(1, 6)
    seen, begun = before, False
    while process.poll() is None and time.monotonic() < until:
        now = training.written()
        if now != before and not begun:
            begun = True
            if moment == "while it trains":
                until = time.monotonic() + draw.uniform(0, 0.7)
        if moment == "in a checkpoint" and begun:
            if any((training.run / "checkpoint").glob(".part-*/*")):
                number -= 1
                if not number:
                    time.sleep(draw.choice((0, 0, 0.0005, 0.002)))
                    return
                while any((training.run / "checkpoint").glob(".part-*")):
                    time.sleep(0.0005)
        if moment == "in a record" and now[1] != seen[1]:
            number -= 1
            if not number:
                return
        seen = now
        time.sleep(0.0005)


def _ranks(process):
    """Return the processes of the ranks that a launch has started."""
    found = []
    try:
        children = psutil.Process(process.pid).children(recursive=True)
    except psutil.Error:
        return found
    for child in children:
        try:
            if "tests.campaigns.killed" in child.cmdline() and "MS_ROLE" in child.environ():
                if child.environ()["MS_ROLE"] == "MS_WORKER":
                    found.append(child)
        except psutil.Error:
            continue
    return found


def _all_over(training):
    """Wait until no process of the training is left; labkit ends those of ranks."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        if not any(
            str(training.folder) in _arguments(process) for process in psutil.process_iter()
        ):
            return
        time.sleep(0.1)
    raise Failed(f"processes of {training.folder} are left")


def _arguments(process):
    try:
        if process.status() == psutil.STATUS_ZOMBIE or process.pid == os.getpid():
            return ()
        return process.cmdline()
    except psutil.Error:
        return ()


def campaign(kinds, kills, minutes, seed, folder, say=print):
    """Kill trainings of ``kinds`` in turn until ``kills`` are made; return kind -> kills.

    Raises ``Failed`` where one ended otherwise than undisturbed.
    """
    until = time.monotonic() + 60 * minutes
    expected, made, ended, number = {}, Counter(), Counter(), 0
    most = max(1, min(_MOST, kills // len(kinds)))
    while sum(made.values()) < kills and time.monotonic() < until:
        kind = min(kinds, key=lambda one: (made[one], kinds.index(one)))
        if kind not in expected:
            (Path(folder) / f"{kind} in peace").mkdir()
            expected[kind] = Training(kind, Path(folder) / f"{kind} in peace").to_its_end()
        number += 1
        draw = random.Random(f"{seed} {number}")
        place = Path(folder) / f"{kind} {number}"
        place.mkdir()
        training, times = Training(kind, place), Counter()
        while time.monotonic() < until and sum(times.values()) < most:
            if sum((made + times).values()) >= kills:
                break
            moment = draw.choice(MOMENTS)
            if not killed_once(training, moment, draw):
                break
            times[moment] += 1
        made[kind] += sum(times.values())
        found = training.result() if training.ended() else training.to_its_end()
        if found != expected[kind]:
            raise Failed(f"{kind}, --seed {seed}, training {number}: ended otherwise; {place}")
        ended[kind] += 1
        shown = ", ".join(f"{count} {moment}" for moment, count in times.items()) or "none"
        say(f"{kind}: {sum(times.values())} kills ({shown}); ended as in peace", flush=True)
    total = f"{sum(made.values())} kills in {sum(ended.values())} trainings, all ended as in peace"
    say(f"{total}: " + ", ".join(f"{kind} {made[kind]}" for kind in kinds), flush=True)
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=list(STEPS), action="append")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="labkit-kills-") as folder:
        try:
            campaign(given.only or list(STEPS), given.kills, given.minutes, given.seed, folder)
        except Failed as failure:
            print(f"failed: {failure}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
