"""The errors of ranks that did not end well: who, why, the last lines, where the log is."""

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from labkit.errors import WorkerFailed, WorkersTimedOut
from labkit.ranks import msrun, rank_logs
from labkit.ranks.msrun import Name
from labkit.ranks.plan import Plan

Error = TypeVar("Error", bound=WorkerFailed)
_LINES = 20  # of the log of the one that failed; shared out among several


class Failures:
    """Says of a ``Job`` what went wrong; ``kept``: whether the logs are there after the call."""

    def __init__(self, job: msrun.Job, plan: Plan, kept: bool) -> None:
        self._job, self._plan, self._kept = job, plan, kept

    def somebody_is_absent(self) -> bool:
        """Return whether who failed first did so because another one did not join in time."""
        failed = self._job.failed()
        return bool(failed) and rank_logs.is_alone(self._job.log(failed[0]))

    def first_cause(self) -> WorkerFailed:
        """Return the error that names who failed by itself, not who failed because of it."""
        job, failed = self._job, self._job.failed()
        logs = {name: job.log(name) for name in job.pids}
        name = failed[0]
        # Of those that have failed it is known, and not 0.
        code = job.codes[name] or 0
        if lost := self._lost_elsewhere(name, code, logs):
            return lost
        if name == msrun.SCHEDULER or code > 0:
            name = rank_logs.first_cause(failed, logs, last=msrun.SCHEDULER)
        if name != failed[0]:  # what has ended it may be msrun, because of the other one
            own = job.codes.get(name)
            positive = own if own is not None and own > 0 else None
            return self._error(name, _cause(positive, rank_logs.last_error(logs[name])), positive)
        return self._error(name, _cause(code, rank_logs.last_error(logs[name])), code)

    def absent(self, ranks: list[int]) -> WorkerFailed:
        """Return the error for ranks that ran, and had not joined the others in time."""
        seconds = self._plan.cluster_timeout
        # The others may not have noticed yet, and were still waiting for them.
        ranks = [rank for rank in ranks if not rank_logs.joins(self._job.log(rank))] or ranks
        return self._several(
            WorkerFailed,
            f"{_named(ranks)} of {self._ranks()} had not joined the others in {seconds} s",
            ranks,
        )

    def timed_out(self, ranks: list[int]) -> WorkersTimedOut:
        """Return the error for ranks that had not ended in time; their logs say where they were."""
        still = f"{_named(ranks)} of {self._ranks()} still ran"
        ended = [rank for rank in self._plan.ranks if rank not in ranks]
        if ranks and ended:
            still += f", {', '.join(map(str, ended))} had ended"
        elif not ranks:
            still = "the ranks of this node had ended, others' had not"
        message = f"not ended after {self._plan.timeout:g} s: {still}"
        return self._several(WorkersTimedOut, message, ranks)

    def msrun(self) -> WorkerFailed:
        """Return the error for an msrun that has ended while its ranks had not."""
        code = self._job.process.returncode
        return self._error(
            "msrun", _cause(code, rank_logs.last_error(self._job.log("msrun"))), code
        )

    def _lost_elsewhere(
        self, name: Name, code: int, logs: Mapping[Name, str]
    ) -> WorkerFailed | None:
        """The error for a rank of another node, where this node's end because it is gone."""
        echo = name == msrun.SCHEDULER or code == -signal.SIGTERM or rank_logs.is_echo(logs[name])
        if self._plan.nodes == 1 or not echo:
            return None
        lost = rank_logs.lost_ranks(logs.get(msrun.SCHEDULER, ""))
        lost = [rank for rank in lost if rank not in self._plan.ranks]
        if lost:
            message = f"{_named(lost)} of {self._ranks()}, on another node, is gone"
            return self._several(WorkerFailed, f"{message}: the call there says why", lost, False)
        if code == -signal.SIGTERM:
            cause = f"{_cause(code, None)}: MindSpore does that when a rank of another node is gone"
            return self._error(name, cause, code)
        return None

    def _error(self, name: Name, cause: str, code: int | None) -> WorkerFailed:
        tail = rank_logs.tail(self._job.log(name), _LINES)
        ranks = [rank for rank in self._plan.ranks if rank == name]
        who = f"rank {name} of {self._ranks()}" if ranks else name
        where = f"log: {self._job.path(name)}"
        return WorkerFailed(
            f"{who} {cause}\n{_shown(name, tail)}{self._where(where)}",
            ranks=ranks,
            exit_code=code if code is not None and code >= 0 else None,
            signal=_signal(-code) if code is not None and code < 0 else None,
            tail=tail,
            logs=self._kept_logs(),
            output=self._output(),
        )

    def _several(
        self, kind: type[Error], message: str, ranks: list[int], logs: bool = True
    ) -> Error:
        lines = max(_LINES // max(len(ranks), 1), 5)
        tails = {rank: rank_logs.tail(self._job.log(rank), lines) for rank in ranks if logs}
        shown = "".join(_shown(rank, tail) for rank, tail in tails.items())
        where = f"logs: {self._job.path('msrun').parent}"
        return kind(
            f"{message}\n{shown}{self._where(where)}",
            ranks=ranks,
            tail="\n".join(tails.values()),
            logs=self._kept_logs(),
            output=self._output(),
        )

    def _kept_logs(self) -> dict[int, Path]:
        paths = {rank: self._job.path(rank) for rank in self._plan.ranks}
        return {rank: path for rank, path in paths.items() if self._kept and path.exists()}

    def _output(self) -> dict[int, str]:
        return {rank: self._job.log(rank) for rank in self._plan.ranks}

    def _ranks(self) -> int:
        return self._plan.nodes * self._plan.workers

    def _where(self, where: str) -> str:
        return f"  {where}" if self._kept else "  no log is kept: log_dir is None"


def _cause(code: int | None, error: str | None) -> str:
    if code is not None and code < 0:
        cause = f"was ended by {_signal(-code)}"
        if -code == signal.SIGKILL:
            cause += ": from outside, or because the machine's memory ran out"
        return cause
    return ("failed" + (f": {error}" if error else "")) + (f" (exit code {code})" if code else "")


def _shown(name: Name, tail: str) -> str:
    who = f"rank {name}" if isinstance(name, int) else name
    indented = "".join(f"    {line}\n" for line in tail.splitlines())
    return f"  last lines of {who}:\n{indented}" if tail else f"  {who} has written nothing\n"


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
