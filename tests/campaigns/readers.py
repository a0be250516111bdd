"""Campaign: every reader of labkit gets damaged and crafted input, in a child process with limits.

    python tests/campaigns/readers.py --minutes 20                   every reader, shared among them
    python tests/campaigns/readers.py --count 10000 --jobs 2         so many inputs a reader
    python tests/campaigns/readers.py --reader tar --seed 12345 --count 1         one input again

What may come back is a result, or an ``InputError`` of one line. A traceback, an abort, more than
10 s of computing, more than 1 GB of memory, or a file that appeared or changed outside the input's
own folders is a failure: its seed is printed, and how to repeat it. Exit code 1 where there is one.

The inputs of a reader are numbered; number and reader decide what is in one.
"""

import argparse
import contextlib
import itertools
import json
import os
import random
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 10.0  # of computing, for one reading; a reader may have several doors
WAIT = 40.0  # seconds on the clock within which a child must compute for one, or it hangs
MEMORY = 10**9
LIFE = 1000  # inputs of one child: memory that it keeps would hide what one input takes


@dataclass
class Tally:
    """How the inputs of one reader ended: counts by kind, failures by seed, and the slowest."""

    reader: str
    kinds: Counter = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)
    slowest: tuple[float, int] = (0.0, -1)
    largest: tuple[int, int] = (0, -1)

    @property
    def inputs(self) -> int:
        """How many inputs the reader got."""
        return sum(self.kinds.values())

    def line(self) -> str:
        """Return the tally as one line of a table."""
        kinds = (f"{self.kinds[kind]:7}" for kind in ("result", "refused", "failure"))
        (slow, at), (large, where) = self.slowest, self.largest
        worst = f"{slow:6.2f} s ({at})  {large / 1e6:6.0f} MB ({where})"
        return f"{self.reader:12} {self.inputs:7} {' '.join(kinds)}  {worst}"


class Child:
    """A child process that reads inputs; started again where it died or was killed."""

    def __init__(self, reader: str, place: Path):
        self.reader, self.place = reader, place
        self._process = None
        self._age = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def ask(self, folder: Path, out: Path) -> dict:
        """Return the child's answer; a failure where it gives none."""
        if self._process is None or self._age >= LIFE:
            self.end()
            self._start()
        self._age += 1
        try:
            self._process.stdin.write(json.dumps([str(folder), str(out)]) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return self._dead("died between two inputs")
        # The first input of a child waits for its imports.
        waits, used, begun = WAIT if self._age > 1 else WAIT + 120, 0.0, self._seconds()
        while not select.select([self._process.stdout], [], [], waits)[0]:
            before, used = used, self._seconds() - begun
            if used - before < 1 or used > 3 * SECONDS:
                return self._dead(f"no answer for {waits:.0f} s, {used:.1f} s of computing")
        line = self._process.stdout.readline()
        return json.loads(line) if line else self._dead("died")

    def _seconds(self) -> float:
        """Return the seconds that the child has computed."""
        times = psutil.Process(self._process.pid).cpu_times()
        return times.user + times.system

    def _start(self):
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("worker.py")), self.reader],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=self.place,
            env=os.environ
            | {"OMP_NUM_THREADS": "1", "GLOG_v": "3", "HOME": str(self.place.parent / "home")},
        )
        self._age = 0

    def _dead(self, how: str) -> dict:
        process, errors = self._process, self._errors
        process.kill()
        code = process.wait()
        errors.seek(0, os.SEEK_END)
        errors.seek(max(0, errors.tell() - 1500))
        text = f"{how} (exit code {code})\n{errors.read().decode('utf-8', 'replace')}"
        self.end()
        return {"kind": "failure", "text": text, "seconds": 0.0, "memory": 0}

    def end(self):
        """Kill the child, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            with contextlib.suppress(BrokenPipeError):  # closing sends what was not read
                self._process.stdin.close()
            self._process.stdout.close()
            self._errors.close()
            self._process = None


class Campaign:
    """One reader's inputs, read one after the other in a scratch folder of its own."""

    def __init__(self, reader: str, say: Callable[[str], None]):
        from tests.campaigns.table import READERS

        self.tally, self._say = Tally(reader), say
        self._make = READERS[reader].make

    def run(self, numbers: Iterable[int], until: float = float("inf")) -> None:
        """Read the inputs with these numbers until the clock says ``until``."""
        with tempfile.TemporaryDirectory(prefix="campaign-") as scratch:
            base = Path(scratch)
            (base / "outside").mkdir()
            (base / "outside" / "x").write_text("canary")
            place = base / "work"
            place.mkdir()
            (base / "home").mkdir()  # where matplotlib and others write on import
            with Child(self.tally.reader, place) as child:
                for number in numbers:
                    if time.monotonic() > until:
                        return
                    self._one(number, base, place, child)

    def _one(self, number: int, base: Path, place: Path, child: Child) -> None:
        from tests.campaigns.mutate import write

        tree = self._make(random.Random(f"{self.tally.reader} {number}"))
        folder, out = place / "input", place / "out"
        for path in (folder, out):
            path.mkdir()
        write(tree, folder)
        before = _outside(base, place)
        answer = child.ask(folder, out)
        if (after := _outside(base, place)) != before:
            answer |= {"kind": "failure", "text": f"outside: {sorted(before ^ after)}"}
        if answer["seconds"] > SECONDS or answer["memory"] > MEMORY:
            took = f"{answer['seconds']:.1f} s, {answer['memory'] / 1e6:.0f} MB"
            answer |= {"kind": "failure", "text": f"took {took}: {answer['text']}"}
            child.end()
        self._count(number, answer)
        for path in (folder, out):
            shutil.rmtree(path, ignore_errors=True)

    def _count(self, number, answer):
        tally = self.tally
        tally.kinds[answer["kind"]] += 1
        tally.slowest = max(tally.slowest, (answer["seconds"], number))
        tally.largest = max(tally.largest, (answer["memory"], number))
        if answer["kind"] == "failure":
            tally.failures[number] = answer["text"]
            again = f"--reader {tally.reader} --seed {number} --count 1"
            self._say(f"FAILURE  {again}\n{answer['text'].rstrip()}\n")


def _outside(base: Path, place: Path) -> set:
    """Return what is beside the input's own folders: names, sizes, times."""
    seen = {(path.name, "") for path in os.scandir(place)}
    for path in (base, base / "outside"):
        for entry in os.scandir(path):
            # A folder's time changes with the names in it.
            own = entry.name in ("work", "home")
            size = None if own else entry.stat(follow_symlinks=False)
            seen.add((entry.path, size and (size.st_size, size.st_mtime_ns)))
    return seen


def campaign(
    readers: Iterable[str],
    *,
    seed: int = 0,
    count: int | None = None,
    minutes: float | None = None,
    jobs: int = 1,
    say: Callable[[str], None] = print,
) -> list[Tally]:
    """Read inputs ``seed``, ``seed`` + 1, ... of each reader; return how they ended.

    count    inputs a reader; None: as many as there is time for
    minutes  for all readers together, each an equal share; None: until ``count`` is reached
    jobs     readers at a time
    """
    campaigns = [Campaign(name, say) for name in readers]
    share = float("inf") if minutes is None else 60 * minutes * jobs / len(campaigns)

    def numbers() -> Iterable[int]:
        return itertools.count(seed) if count is None else range(seed, seed + count)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda each: each.run(numbers(), time.monotonic() + share), campaigns))
    return [each.tally for each in campaigns]


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return 0, or 1 where an input made a reader fail."""
    sys.path.insert(0, str(ROOT))
    from tests.campaigns.table import READERS

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--reader", action="append", choices=sorted(READERS), help="default: all")
    parser.add_argument("--seed", type=int, default=0, help="number of the first input")
    parser.add_argument("--count", type=int, help="inputs a reader")
    parser.add_argument("--minutes", type=float, help="for all readers together")
    parser.add_argument("--jobs", type=int, default=1, help="readers at a time")
    given = parser.parse_args(arguments)
    minutes = 20.0 if given.minutes is None and given.count is None else given.minutes
    tallies = campaign(
        given.reader or READERS,
        seed=given.seed,
        count=given.count,
        minutes=minutes,
        jobs=given.jobs,
        say=lambda text: print(text, flush=True),
    )
    print(f"{'reader':12} {'inputs':>7} {'result':>7} {'refused':>7} {'failure':>7}  worst (seed)")
    print("\n".join(tally.line() for tally in tallies))
    return 1 if any(tally.failures for tally in tallies) else 0


if __name__ == "__main__":
    sys.exit(main())
