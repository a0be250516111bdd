"""Check which exercises of a learner's notebooks pass; labkit writes no file, runs no training."""

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from labkit.errors import InputError
from labkit.ranks.processes import child_environment, guarded, module_command, signal_name
from labkit.tools import notebook_files
from labkit.tools.labs import Lab
from labkit.tools.work import answers


@dataclass(frozen=True)
class Mark:
    """One exercise: its function's name, one of ``judge.STATES``, the check's message, notes."""

    name: str
    state: str
    message: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class LabMarks:
    """The marks of one lab; ``problem`` says why its notebook could not be read, else is empty."""

    lab: Lab
    path: Path
    marks: tuple[Mark, ...]
    problem: str = ""

    @property
    def passed(self) -> int:
        """Number of exercises that pass."""
        return sum(mark.state == "passed" for mark in self.marks)


def look(folder: Path, labs: Sequence[Lab], seconds: float = 10.0) -> list[LabMarks]:
    """Return the marks of each of ``labs`` that has exercises.

    A lab whose copy is missing or cannot be read has a ``problem``, and its exercises are
    "not attempted".

    Args:
        folder: folder of the copies
        labs: the project's labs
        seconds: time limit for the check of one answer, seconds

    Raises:
        InputError: if an answer kills the judge
        RuntimeError: if the judge itself fails
    """
    asked = {lab: each for lab in labs if (each := answers.exercises(_cells(lab.path)))}
    held: dict[Lab, list[answers.Answer]] = {}
    problems = {}
    for lab, exercises in asked.items():
        path = folder / lab.path.name
        try:
            cells = _cells(path)
        except InputError as error:
            problems[lab] = str(error) if path.exists() else "no copy yet"
        else:
            held[lab] = [answers.find(cells, *each) for each in exercises.items()]
    to_judge = [answer for each in held.values() for answer in each if not answer.problem]
    verdicts = iter(_judge(folder, to_judge, seconds))
    results = []
    for lab, exercises in asked.items():
        marks = [_mark(answer, verdicts) for answer in held.get(lab, ())]
        marks = marks or [Mark(name, "not attempted") for name in exercises]
        path = folder / lab.path.name
        results.append(LabMarks(lab, path, tuple(marks), problems.get(lab, "")))
    return results


def _cells(path: Path) -> list[answers.Cell]:
    return answers.code_cells(notebook_files.read(path))


def _mark(answer: answers.Answer, verdicts: Iterator[Mapping[str, str]]) -> Mark:
    """Return the mark of ``answer``; if it was judged, from the next of ``verdicts``."""
    if answer.problem:
        return Mark(answer.name, "error", answer.problem, tuple(answer.notes))
    verdict = next(verdicts)
    # The notes explain a verdict; without an attempt there is nothing to explain.
    notes = [] if verdict["state"] == "not attempted" else answer.notes
    return Mark(answer.name, verdict["state"], verdict["message"], tuple(notes))


def _judge(folder: Path, held: Sequence[answers.Answer], seconds: float) -> list[Mapping[str, str]]:
    """Return the verdicts on the answers ``held``, in their order."""
    if not held:
        return []
    requests = [asdict(answer) for answer in held]
    request = {"folder": str(folder.resolve()), "seconds": seconds, "answers": requests}
    # An answer may kill the judge, which would otherwise end what the answer has started.
    with guarded() as mark:
        done = subprocess.run(
            module_command("labkit.tools.work.judge"),
            input=json.dumps(request),
            capture_output=True,
            text=True,
            check=False,
            env=child_environment() | mark,
        )
    if done.returncode < 0:
        name = signal_name(-done.returncode)
        last = min(done.stdout.count("\n"), len(held) - 1)
        raise InputError(
            f"the process that judges was ended by {name}, with the answer to "
            f"{held[last].name}: does the answer end processes?"
        )
    if done.returncode:
        raise RuntimeError(f"the judge exited with {done.returncode}:\n{done.stderr.strip()}")
    return [json.loads(line) for line in done.stdout.splitlines()]
