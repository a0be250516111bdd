"""Which exercises of a learner's notebooks pass; labkit writes nothing, no training is run."""

import json
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.errors import InputError
from labkit.ranks.processes import child_environment, guarded, module_command
from labkit.tools.labs import Lab
from labkit.tools.notebooks import files as notebook_files
from labkit.tools.work import answers

_Task = tuple[Lab, answers.Exercise]


@dataclass(frozen=True)
class Mark:
    """One exercise: its function's name, one of ``judge.STATES``, what the check said, notes."""

    name: str
    state: str
    message: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class LabMarks:
    """The exercises of one lab; ``problem`` says why its notebook could not be looked at, if so."""

    lab: Lab
    path: Path
    marks: tuple[Mark, ...]
    problem: str = ""

    @property
    def passed(self) -> int:
        """How many exercises pass."""
        return sum(mark.state == "passed" for mark in self.marks)


def look(folder: Path, labs: Sequence[Lab], seconds: float = 10.0) -> list[LabMarks]:
    """Return the marks of every one of ``labs`` that has exercises.

    A lab without a copy, or with one that cannot be read, has a ``problem``, and its exercises are
    "not attempted".

    Args:
        folder: where the copies are
        labs: the project's labs
        seconds: how long the check of one answer may take

    Raises:
        InputError: if an answer ends the judge
        RuntimeError: if the judge itself fails
    """
    asked = {lab: answers.exercises(_cells(lab.path)) for lab in labs}
    asked = {lab: exercises for lab, exercises in asked.items() if exercises}
    held: dict[_Task, answers.Answer] = {}
    problems: dict[Lab, str] = {}
    for lab, exercises in asked.items():
        try:
            cells = _copy(folder / lab.path.name)
        except InputError as error:
            problems[lab] = str(error)
        else:
            held |= {(lab, each): answers.find(cells, each.name) for each in exercises}
    verdicts = _judge(folder, held, seconds)
    return [
        LabMarks(
            lab,
            folder / lab.path.name,
            tuple(_mark((lab, each), held, verdicts) for each in exercises),
            problems.get(lab, ""),
        )
        for lab, exercises in asked.items()
    ]


def _copy(path: Path) -> list[answers.Cell]:
    if not path.exists():
        raise InputError("no copy yet")
    return _cells(path)


def _cells(path: Path) -> list[answers.Cell]:
    return answers.code_cells(notebook_files.read(path))


def _mark(
    task: _Task, held: Mapping[_Task, answers.Answer], verdicts: Mapping[_Task, Mapping[str, str]]
) -> Mark:
    name = task[1].name
    if task not in held:
        return Mark(name, "not attempted")
    answer = held[task]
    if answer.problem:
        return Mark(name, "error", answer.problem, tuple(answer.notes))
    verdict = verdicts[task]
    # Why a name is missing helps who has no verdict to be glad about.
    notes = [] if verdict["state"] == "not attempted" else answer.notes
    return Mark(name, verdict["state"], verdict["message"], tuple(notes))


def _judge(
    folder: Path, held: Mapping[_Task, answers.Answer], seconds: float
) -> dict[_Task, Mapping[str, str]]:
    """Return the verdict on every answer that can be executed."""
    tasks = [task for task, answer in held.items() if not answer.problem]
    if not tasks:
        return {}
    requests = [
        {
            "name": exercise.name,
            "module": exercise.module,
            "code": held[lab, exercise].code,
            "attempt": held[lab, exercise].attempt,
        }
        for lab, exercise in tasks
    ]
    request = {"folder": str(folder.resolve()), "seconds": seconds, "answers": requests}
    # An answer may end the judge, who would else end what the answer has started.
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
        name = signal.Signals(-done.returncode).name
        last = min(done.stdout.count("\n"), len(requests) - 1)
        raise InputError(
            f"the process that judges was ended by {name}, with the answer to "
            f"{requests[last]['name']}: does the answer end processes?"
        )
    if done.returncode:
        raise RuntimeError(f"the judge exited with {done.returncode}:\n{done.stderr.strip()}")
    return dict(zip(tasks, map(json.loads, done.stdout.splitlines()), strict=True))
