"""Progress reports of a run: each is an ``Event``, shown as a line of text or a JSON object."""

import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from labkit.labs.run_files import last_state


@dataclass(frozen=True)
class Event:
    """One thing that happened.

    Attributes:
        kind: one of the kinds below.
        text: the event as one line for people.
        lab: name of the lab; None if the event does not belong to a lab.
        values: the event as plain numbers and strings, for programs.

    Kinds, with their values:
        data: a data set is prepared (name).
        started: a lab begins (preset, device, folder).
        output: a line that a lab printed, or a remark about the run (text).
        progress: every few seconds; for a lab (cell, cells, seconds, section, last), for a sweep
            (done, runs, running).
        ended: a lab has ended (status, device, total_seconds, metrics, headline, error).
        skipped: the lab has already passed with the same inputs (folder).
        replaced: an old run from other inputs has been moved away (changed, folder).
        sweep: a sweep begins (runs, jobs, grid).
        run: one run of a sweep has ended (done, runs, run, status).
        finished: the last event (exit_code; for a run also folder and labs, for a sweep files).

    Events from a run of a sweep have its name as ``run``.
    """

    kind: str
    text: str
    lab: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the event as one JSON object."""
        return {"event": self.kind, **({"lab": self.lab} if self.lab else {}), **self.values}


Say = Callable[[Event], None]


def remark(text: str, lab: str | None = None) -> Event:
    """Return a remark about the run or about one of its labs."""
    return Event("output", f"{lab}: {text}" if lab else text, lab, {"text": text})


# Why a lab failed, in words; for an exception, its name is shown instead.
CAUSES = {
    "died": "its kernel died",
    "memory": "out of memory",
    "timeout": "out of time",
    "interrupted": "stopped from outside",
}
_LONGEST = 120  # characters of a printed line that progress repeats
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


class Progress:
    """Passes on a notebook's printed lines and reports, every few seconds, which cell is running.

    Used as a context manager around an execution; papermill writes the notebook's standard output
    to it as to a file.

    Args:
        lab: name of the lab.
        cells: number of code cells in the notebook.
        say: called with each ``Event``.
        every: seconds between two progress events.
    """

    def __init__(self, lab: str, cells: int, say: Say, every: float = 5.0) -> None:
        self.cell = 0  # code cells started so far: the n of the running cell's In [n]
        self.last = ""  # last line printed
        self._section = ""  # heading above the running cell
        self._silent = True  # the running cell has printed nothing
        self._lab, self._cells, self._say, self._every = lab, cells, say, every
        self._started = time.monotonic()
        self._partial = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._report, daemon=True)

    def __enter__(self) -> "Progress":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()
        self.write("\n")

    def cell_started(self, cell: Mapping[str, Any], cell_index: int) -> None:
        """Count a cell that is about to run; pass on an unterminated line of the previous cell."""
        self.write("\n")
        if is_executed(cell):
            self.cell += 1
            self._silent = True
        elif cell["cell_type"] == "markdown" and (headings := _HEADING.findall(cell["source"])):
            self._section = _short(headings[-1].strip())

    def write(self, text: str) -> None:
        """Pass on the complete lines of ``text``, indented; keep an incomplete last line."""
        *lines, self._partial = (self._partial + text).split("\n")
        for line in lines:
            if shown := last_state(line).rstrip():
                self.last, self._silent = _short(shown.strip()), False
                self._say(Event("output", f"    {shown}", self._lab, {"text": shown}))

    def flush(self) -> None:
        """Do nothing: papermill flushes after every message, even in the middle of a line."""

    def _report(self) -> None:
        while not self._over.wait(self._every):
            seconds = time.monotonic() - self._started
            at = {"cell": self.cell, "cells": self._cells, "seconds": round(seconds, 1)}
            text = f"{self._lab}: cell {self.cell}/{self._cells}, {seconds:.0f} s"
            # The last line of a cell that takes minutes is more informative than its number.
            doing = self._section if self._silent else self.last
            text += f" · {doing}" if doing else ""
            values = {**at, "section": self._section, "last": self.last}
            self._say(Event("progress", text, self._lab, values))


def merge_streams(cell: Any, cell_index: int = 0, execute_reply: Any = None) -> None:
    """Join consecutive outputs of ``cell`` on the same stream, in place.

    Of a line that redraws itself with carriage returns, only the last state is kept. nbclient's own
    coalesce_streams does this in time quadratic in the length of a line: 300 000 characters without
    a line end took a minute, during which no time limit was enforced.
    """
    merged: list = []
    for output in cell["outputs"]:
        if _stream(output) and merged and _stream(merged[-1]) == _stream(output):
            merged[-1]["text"] += output["text"]
        else:
            merged.append(output)
    for output in merged:
        if _stream(output):
            output["text"] = "\n".join(map(last_state, output["text"].split("\n")))
    cell["outputs"] = merged


def _stream(output: Mapping[str, Any]) -> str | None:
    return output["name"] if output["output_type"] == "stream" else None


def _short(line: str) -> str:
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def is_executed(cell: Mapping[str, Any]) -> bool:
    """Return whether the kernel runs ``cell``, which then gets the next number ``In [n]``."""
    return cell["cell_type"] == "code" and bool("".join(cell["source"]).strip())
