"""Trainings killed by SIGKILL at random moments end bit-equal to undisturbed ones.

    python -m tests.campaigns.kills --kills 100 --minutes 60 --seed 0 --only THOR

The trainings take turns: accumulation, THOR, Adasum, subspace, and two ranks. Each is killed and
resumed until it ends; then the SHA-256 of all Parameters (of each rank) and the records, in all
columns but seconds and memory, equal those of a training that was not killed. With two ranks, one
of them or the program that started them is killed. A failure prints the seed of its training.
"""

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.support.killed_training import MOMENTS, SECONDS, STEPS, Failed, Training
from tests.support.living import ranks_of

KINDS = [kind for kind in STEPS if kind != "wide"]
OUTSIDE = ("at any time", "while it trains")
_MOST = 6  # kills per training


def killed_once(training, moment, draw):
    """Start the training and kill it at a moment; return whether it was killed."""
    before = training.written()
    process = training.started(*([] if moment in OUTSIDE else [moment]))
    try:
        if moment in OUTSIDE:
            _wait(training, process, before, moment, draw)
            victims = [process]
            if training.ranks > 1 and draw.random() < 0.7:
                victims = [*ranks_of(process.pid).values()] or victims
            if process.poll() is None:
                draw.choice(victims).kill()
    finally:
        code = training.exit_code(process)
    # A launch whose rank was killed raises; if it had just ended, nothing was killed after all.
    if code not in (0, -signal.SIGKILL) and training.ranks == 1:
        raise Failed(f"exit code {code}:\n{training.last_lines()}")
    return code != 0


def _wait(training, process, before, moment, draw):
    """Return when the moment has come, or the process has ended."""
    # Imports, the lock, the resume and the compilation take seconds; the training takes 1 to 2 s.
    until = time.monotonic() + (draw.uniform(0, 15) if moment == "at any time" else SECONDS)
    begun = moment == "at any time"
    while process.poll() is None and time.monotonic() < until:
        if not begun and training.written() != before:
            begun, until = True, time.monotonic() + draw.uniform(0, 0.7)
        time.sleep(0.0005)


def campaign(kinds, kills, minutes, seed, folder, say=print):
    """Kill trainings of ``kinds`` in turn until ``kills`` are made; return kind -> kills.

    Raises:
        Failed: if a training ended differently from an undisturbed one.
    """
    folder, until = Path(folder), time.monotonic() + 60 * minutes
    expected, made, number = {}, Counter(), 0
    most = max(1, min(_MOST, kills // len(kinds)))
    while sum(made.values()) < kills and time.monotonic() < until:
        kind = min(kinds, key=lambda kind: (made[kind], kinds.index(kind)))
        if kind not in expected:
            expected[kind] = Training(kind, folder / f"{kind} in peace").to_its_end()
        number += 1
        draw = random.Random(f"{seed} {number}")
        training, moments = Training(kind, folder / f"{kind} {number}"), []
        while time.monotonic() < until and len(moments) < min(most, kills - sum(made.values())):
            moment = draw.choice((*OUTSIDE, *OUTSIDE, *MOMENTS))
            if not killed_once(training, moment, draw):
                break
            moments.append(moment)
        made[kind] += len(moments)
        result = training.result() if training.ended() else training.to_its_end()
        if result != expected[kind]:
            place = training.folder
            raise Failed(f"{kind}, --seed {seed}, training {number}: ended otherwise; {place}")
        say(f"{kind}: killed {', '.join(moments) or 'never'}; ended as in peace", flush=True)
    total = f"{sum(made.values())} kills in {number} trainings, all ended as in peace"
    say(f"{total}: " + ", ".join(f"{kind} {made[kind]}" for kind in kinds), flush=True)
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=KINDS, action="append")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="labkit-kills-") as folder:
        try:
            campaign(asked.only or KINDS, asked.kills, asked.minutes, asked.seed, folder)
        except AssertionError as failure:
            print(f"failed: {failure}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
