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

STATES = ("passed", "wrong", "not attempted", "error")
SECONDS = 10.0


@dataclass(frozen=True)
class Mark:
    """One exercise: its function's name, one of ``STATES``, what the check said, and notes."""

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


def look(folder: Path, labs: Sequence[Lab], seconds: float = SECONDS) -> list[LabMarks]:
    """Return the marks of every one of ``labs`` that has exercises, from its copy in ``folder``.

    seconds  how long the check of one answer may take

    A lab without a copy, or with one that cannot be read, has a ``problem`` and no mark that is
    better than "not attempted". Raises ``InputError`` if an answer ends the judge, and
    ``RuntimeError`` if the judge itself fails.
    """
    asked = {lab: answers.exercises(_cells(lab.path)) for lab in labs}
    found, problems = {}, {}
    for lab in (lab for lab in labs if asked[lab]):
        try:
            cells = _copy(folder / lab.path.name)
        except InputError as error:
            problems[lab] = str(error)
            continue
        found[lab] = {one.name: answers.find(cells, one.name) for one in asked[lab]}
    verdicts = _judge(folder, found, asked, seconds)
    return [
        LabMarks(
            lab,
            folder / lab.path.name,
            tuple(
                _mark(one, found.get(lab, {}).get(one.name), verdicts.get((lab, one)))
                for one in asked[lab]
            ),
            problems.get(lab, ""),
        )
        for lab in labs
        if asked[lab]
    ]


def _copy(path: Path) -> list[answers.Cell]:
    if not path.exists():
        raise InputError("no copy yet")
    return _cells(path)


def _cells(path: Path) -> list[answers.Cell]:
    return answers.code_cells(notebook_files.read(path))


def _mark(
    exercise: answers.Exercise, answer: answers.Answer | None, verdict: Mapping | None
) -> Mark:
    if answer is None:
        return Mark(exercise.name, "not attempted")
    if answer.problem:
        return Mark(exercise.name, "error", answer.problem, tuple(answer.notes))
    # Why a name is missing helps who has no verdict to be glad about.
    notes = [] if verdict["state"] == "not attempted" else answer.notes
    return Mark(exercise.name, verdict["state"], verdict["message"], tuple(notes))


def _judge(folder: Path, found: Mapping, asked: Mapping, seconds: float) -> dict:
    """Return (lab, exercise) -> verdict of every answer that can be executed."""
    wanted = [(lab, one) for lab in found for one in asked[lab] if not found[lab][one.name].problem]
    if not wanted:
        return {}
    requests = [
        {"name": one.name, "module": one.module, "code": answer.code, "attempt": answer.attempt}
        for lab, one in wanted
        if (answer := found[lab][one.name])
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
        last = done.stdout.count("\n")
        raise InputError(
            f"the process that judges was ended by {name}, with the answer to "
            f"{requests[min(last, len(requests) - 1)]['name']}: does the answer end processes?"
        )
    if done.returncode:
        raise RuntimeError(f"the judge exited with {done.returncode}:\n{done.stderr.strip()}")
    verdicts = map(json.loads, done.stdout.splitlines())
    return dict(zip(wanted, verdicts, strict=True))
