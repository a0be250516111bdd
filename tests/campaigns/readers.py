"""Campaign: every reader of labkit gets damaged and crafted input, in a child process with limits.

    python -m tests.campaigns.readers --minutes 20                   every reader, shared among them
    python -m tests.campaigns.readers --count 10000 --jobs 2         so many inputs a reader
    python -m tests.campaigns.readers --reader tar --seed 12345 --count 1         one input again

A reader may return a result, or raise an ``InputError`` of one line. A traceback, an abort, more
than 10 s of computing, more than 1 GB of memory, or a file that appears or changes outside the
input's own folders is a failure: the seed and the command to repeat it are printed, and the exit
code is 1.

The inputs of a reader are numbered; reader and number determine the content of an input.
"""

import argparse
import itertools
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path

from tests.campaigns import worker
from tests.campaigns.mutate import write
from tests.campaigns.table import READERS

SECONDS = 10.0  # of computing per door; a reader may have several doors
MEMORY = 10**9
LIFE = 1000  # inputs per child: memory that it retains would hide what a single input takes


@dataclass
class Tally:
    """How the inputs of one reader ended: counts by kind, failures by seed, slowest and largest."""

    reader: str
    kinds: Counter = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)
    slowest: tuple[float, int] = (0.0, -1)
    largest: tuple[int, int] = (0, -1)

    @property
    def inputs(self) -> int:
        """The number of inputs that the reader got."""
        return sum(self.kinds.values())

    def line(self) -> str:
        """Return the tally as one line of a table."""
        kinds = (f"{self.kinds[kind]:7}" for kind in ("result", "refused", "failure"))
        (slow, at), (large, where) = self.slowest, self.largest
        worst = f"{slow:6.2f} s ({at})  {large / 1e6:6.0f} MB ({where})"
        return f"{self.reader:12} {self.inputs:7} {' '.join(kinds)}  {worst}"


class Child:
    """A process that reads inputs; it is replaced after its death or after ``LIFE`` inputs."""

    def __init__(self, reader: str, place: Path):
        self._begin = worker.begin, (reader, place)

    def __enter__(self):
        self._log = tempfile.NamedTemporaryFile()
        arguments = (*self._begin[1], self._log.name)
        self._pool = ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), self._begin[0], arguments,
            max_tasks_per_child=LIFE,
        )  # fmt: skip
        return self

    def __exit__(self, *_):
        self._pool.shutdown()
        self._log.close()

    def call(self, function: Callable, *arguments: object) -> dict:
        """Return the function's result from the process, or a failure if the process dies."""
        try:
            return self._pool.submit(function, *arguments).result()
        except BrokenProcessPool:
            self._log.seek(0, os.SEEK_END)
            self._log.seek(max(0, self._log.tell() - 1500))
            text = f"died\n{self._log.read().decode('utf-8', 'replace')}"
            self.again()
            return {"kind": "failure", "text": text, "seconds": 0.0, "memory": 0}

    def again(self):
        """Continue with a new process."""
        self.__exit__()
        self.__enter__()


class Campaign:
    """One reader's inputs, read one after another in their own scratch folder."""

    def __init__(self, reader: str, say: Callable[[str], None]):
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
            (base / "home").mkdir()
            with Child(self.tally.reader, place) as child:
                for number in numbers:
                    if time.monotonic() > until:
                        return
                    self._read(number, base, place, child)

    def _read(self, number: int, base: Path, place: Path, child: Child) -> None:
        tree = self._make(random.Random(f"{self.tally.reader} {number}"))
        folder, out = place / "input", place / "out"
        for path in (folder, out):
            path.mkdir()
        write(tree, folder)
        before = _outside(base, place)
        answer = child.call(worker.answer, folder, out)
        if (after := _outside(base, place)) != before:
            answer |= {"kind": "failure", "text": f"outside: {sorted(before ^ after)}"}
        if answer["seconds"] > SECONDS or answer["memory"] > MEMORY:
            took = f"{answer['seconds']:.1f} s, {answer['memory'] / 1e6:.0f} MB"
            answer |= {"kind": "failure", "text": f"took {took}: {answer['text']}"}
            child.again()
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
    """Return the names, sizes and times of files outside the input's own folders."""
    seen = {(path.name, "") for path in os.scandir(place)}
    for path in (base, base / "outside"):
        for entry in os.scandir(path):
            # The time of a folder changes with the names in it.
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

    Args:
        readers: names of the readers.
        seed: number of the first input.
        count: inputs per reader; None: as many as there is time for.
        minutes: time for all readers together, in equal shares; None: until ``count`` is reached.
        jobs: readers at a time.
        say: called with the report of each failure.
    """
    campaigns = [Campaign(name, say) for name in readers]
    share = float("inf") if minutes is None else 60 * minutes * jobs / len(campaigns)

    def numbers() -> Iterable[int]:
        return itertools.count(seed) if count is None else range(seed, seed + count)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda each: each.run(numbers(), time.monotonic() + share), campaigns))
    return [each.tally for each in campaigns]


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return 0, or 1 if an input made a reader fail."""
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
