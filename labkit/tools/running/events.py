"""What happens in a run, told as it happens: each an ``Event``, a line of text or a JSON object."""

import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from labkit.tools.running.streams import last_state


@dataclass(frozen=True)
class Event:
    """One thing that happened.

    kind    "data", "started", "output" (a line that the lab printed), "progress" (every few
            seconds), "skipped", "ended"
    text    the same as one line for people
    lab     name of the lab; None where it is of none
    values  plain numbers and texts, for programs
    """

    kind: str
    text: str
    lab: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the event as one JSON object."""
        return {"event": self.kind, **({"lab": self.lab} if self.lab else {}), **self.values}


Say = Callable[[Event], None]
_LONGEST = 120  # characters of a printed line that progress repeats
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


class Progress:
    """Passes a notebook's printed lines on and says, every few seconds, which cell is running.

    say    takes an ``Event``
    every  seconds between two that say how far it is

    Used as a context manager around an execution; papermill writes the notebook's standard output
    to it as to a file.
    """

    def __init__(self, lab: str, cells: int, say: Say, every: float = 5.0):
        self.cell = 0  # code cells started so far: the n of the running cell's In [n]
        self.last = ""  # line printed
        self._section = ""  # heading of the part that the running cell is in
        self._silent = True  # the running cell has printed nothing
        self._lab, self._cells, self._say, self._every = lab, cells, say, every
        self._started = time.monotonic()
        self._partial = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._report, daemon=True)

    def __enter__(self) -> "Progress":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        self._end_line()

    def cell_started(self, cell: Mapping[str, Any], cell_index: int) -> None:
        """Count a cell that is about to run; pass on what the last one left without line end."""
        self._end_line()
        if is_executed(cell):
            self.cell += 1
            self._silent = True
        elif cell["cell_type"] == "markdown" and (found := _HEADING.findall(cell["source"])):
            self._section = _short(found[-1].strip())

    def write(self, text: str) -> None:
        """Pass on the complete lines of ``text``, indented; a rest waits for its line end."""
        *lines, self._partial = (self._partial + text).split("\n")
        for line in lines:
            self._pass_on(line)

    def flush(self) -> None:
        """Do nothing: papermill flushes after every message, also in the middle of a line."""

    def _end_line(self) -> None:
        line, self._partial = self._partial, ""
        self._pass_on(line)

    def _pass_on(self, line: str) -> None:
        line = last_state(line).rstrip()
        if line:
            self.last, self._silent = _short(line.strip()), False
            self._say(Event("output", f"    {line}", self._lab, {"text": line}))

    def _report(self) -> None:
        while not self._stop.wait(self._every):
            seconds = time.monotonic() - self._started
            values = {"cell": self.cell, "cells": self._cells, "seconds": round(seconds, 1)}
            values |= {"section": self._section, "last": self.last}
            text = f"{self._lab}: cell {self.cell}/{self._cells}, {seconds:.0f} s"
            # What a cell that takes minutes has printed last says more than its number.
            doing = self._section if self._silent else self.last
            text += f" · {doing}" if doing else ""
            self._say(Event("progress", text, self._lab, values))


def _short(line: str) -> str:
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def is_executed(cell: Mapping[str, Any]) -> bool:
    """Return whether the kernel runs ``cell``, which then gets the next number ``In [n]``."""
    return cell["cell_type"] == "code" and bool("".join(cell["source"]).strip())
