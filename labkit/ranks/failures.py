"""The errors of ranks that failed: which one, why, its last lines, where the log is."""

import re
import signal
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from labkit.errors import WorkerFailed, WorkersTimedOut
from labkit.ranks import msrun, processes
from labkit.ranks.msrun import Name
from labkit.ranks.plan import Plan

Error = TypeVar("Error", bound=WorkerFailed)
Who = TypeVar("Who", bound=int | str)
_LINES = 20  # of the log of the rank that failed; divided among several
# What MindSpore writes for its own developers, and what Python's fault handler adds.
_NOISE = re.compile(
    r"\s*$|\[(DEBUG|INFO|WARNING)\]|-{10,}$|- C\+\+ Call Stack|mindspore/ccsrc/\S+:\d+ "
    r"|Extension modules: |Thread 0x\w+ \(most recent call first\):$|  <no Python frame>"
)
_OUTSIDE = ": from outside"  # the origin of a signal
_TRACEBACK = "Traceback (most recent call last):"
_COLLECTIVE = re.compile(r"Launch kernel failed: \S*(AllReduce|AllGather|Broadcast)")
# Words of errors that a rank or the scheduler raises only because another rank is gone.
_ECHO = re.compile(
    r"time[d-]? ?out|heartbeat|reconnect|abnormal compute graph node|broken pipe|peer"
    r"|connect\w* .*(refused|reset|lost|closed|fail)|(lost|fail\w*) .*connect"
    rf"|{_COLLECTIVE.pattern}",
    re.IGNORECASE,
)
# Lines above the first words of an error from one of MindSpore's kernels.
_HEADING = re.compile(r"-{10,}$|- .*:$|$")

# MindSpore's error on the ranks that have joined when others have not joined in time.
_ALONE = "Failed to initialize distributed job cluster because some processes"
_JOINING = re.compile(r'management\.py", line \d+ in init$', re.MULTILINE)
_LOST = re.compile(r"The node: (\d+) is timed out")  # in the scheduler's log


class Failures:
    """Explains why a ``Job`` failed; ``kept``: whether the logs are there after the call."""

    def __init__(self, job: msrun.Job, plan: Plan, kept: bool) -> None:
        self._job, self._plan, self._kept = job, plan, kept

    def somebody_is_absent(self) -> bool:
        """Return whether the first to fail did so because another rank did not join in time."""
        failed = self._job.failed()
        return bool(failed) and is_alone(self._job.log(failed[0]))

    def first_cause(self) -> WorkerFailed:
        """Return the error of the process that failed by itself, not of those it made fail."""
        job, failed = self._job, self._job.failed()
        logs = {name: job.log(name) for name in job.pids}
        name = failed[0]
        # The exit code of a failed process is known and not 0.
        code = job.codes[name] or 0
        if lost := self._lost_elsewhere(name, code, logs):
            return lost
        if name == msrun.SCHEDULER or code > 0:
            name = culprit(failed, logs, last=msrun.SCHEDULER)
        if name == failed[0]:
            return self._error(name, code)
        own = job.codes.get(name)
        # A signal may have come from msrun, because of the rank that ended first.
        return self._error(name, own if own is not None and own > 0 else None)

    def absent(self, ranks: list[int]) -> WorkerFailed:
        """Return the error for running ranks that had not joined the others in time."""
        seconds = self._plan.cluster_timeout
        # Some of ``ranks`` may have joined and still be waiting for the absent ones.
        ranks = [rank for rank in ranks if not joins(self._job.log(rank))] or ranks
        return self._several(
            WorkerFailed,
            f"{_named(ranks)} of {self._ranks()} had not joined the others in {seconds} s",
            ranks,
        )

    def timed_out(self, ranks: list[int]) -> WorkersTimedOut:
        """Return the error for ranks that did not end in time; their logs show where they were."""
        still = f"{_named(ranks)} of {self._ranks()} still ran"
        ended = [rank for rank in self._plan.ranks if rank not in ranks]
        if ranks and ended:
            still += f", {', '.join(map(str, ended))} had ended"
        elif not ranks:
            still = "the ranks of this node had ended, others' had not"
        message = f"not ended after {self._plan.timeout:g} s: {still}"
        return self._several(WorkersTimedOut, message, ranks)

    def msrun(self) -> WorkerFailed:
        """Return the error for an msrun that ended before its ranks."""
        return self._error("msrun", self._job.process.returncode)

    def cut_off(self) -> WorkerFailed:
        """Return the error for the ranks of a node that has lost node 0."""
        who = f"{_named(self._plan.ranks)} of {self._ranks()}"
        message = f"{self._job.without_master()}; {who} cannot go on without it"
        return self._several(WorkerFailed, message, list(range(self._plan.workers)), False)

    def _lost_elsewhere(
        self, name: Name, code: int, logs: Mapping[Name, str]
    ) -> WorkerFailed | None:
        """Return the error for a lost rank of another node that made this node's ranks end."""
        by_sigterm = code in (-signal.SIGTERM, 128 + signal.SIGTERM)
        echo = name == msrun.SCHEDULER or by_sigterm or is_echo(logs[name])
        if self._plan.nodes == 1 or not echo:
            return None
        if self._job.without_master():
            return self.cut_off()
        lost = lost_ranks(logs.get(msrun.SCHEDULER, ""))
        lost = [rank for rank in lost if rank not in self._plan.ranks]
        if lost:
            message = (
                f"{_named(lost)} of {self._ranks()}, on another node, stopped answering: "
                "the call there says why, or that machine cannot be reached"
            )
            return self._several(WorkerFailed, message, lost, False)
        if by_sigterm:
            more = ": from outside, or by MindSpore, because a rank of another node is gone"
            return self._error(name, code, more)
        return None

    def _error(self, name: Name, code: int | None, more: str = "") -> WorkerFailed:
        log = self._job.log(name)
        lines = tail(log, _LINES)
        ranks = [rank for rank in self._plan.ranks if rank == name]
        who = f"rank {name} of {self._ranks()}" if ranks else name
        return self._made(
            WorkerFailed,
            f"{who} {_cause(code, last_error(log), more)}\n{_shown(name, lines)}",
            f"log: {self._job.path(name)}",
            ranks=ranks,
            tail=lines,
            exit_code=code if code is not None and code >= 0 else None,
            signal=processes.signal_name(-code) if code is not None and code < 0 else None,
        )

    def _several(
        self, kind: type[Error], message: str, ranks: list[int], logs: bool = True
    ) -> Error:
        lines = max(_LINES // max(len(ranks), 1), 5)
        tails = {rank: tail(self._job.log(rank), lines) for rank in ranks if logs}
        shown = "".join(_shown(rank, text) for rank, text in tails.items())
        where = f"logs: {self._job.path('msrun').parent}"
        lines_of_all = "\n".join(tails.values())
        return self._made(kind, f"{message}\n{shown}", where, ranks=ranks, tail=lines_of_all)

    def _made(self, kind: type[Error], message: str, where: str, **more: Any) -> Error:
        """Return the error, with the paths and the contents of the logs."""
        where = f"  {where}" if self._kept else "  no log is kept: log_dir is None"
        paths = {rank: self._job.path(rank) for rank in self._plan.ranks}
        logs = {rank: path for rank, path in paths.items() if self._kept and path.exists()}
        output = {rank: self._job.log(rank) for rank in self._plan.ranks}
        return kind(f"{message}{where}", logs=logs, output=output, **more)

    def _ranks(self) -> int:
        return self._plan.nodes * self._plan.workers


def _cause(code: int | None, error: str | None, more: str = "") -> str:
    if code == 128 + signal.SIGTERM and error is None:
        # A rank that cleaned up first, as labkit's commands do.
        return f"was ended by SIGTERM{more or _OUTSIDE} (exit code {code})"
    if code is not None and code < 0:
        cause = f"was ended by {processes.signal_name(-code)}"
        if -code == signal.SIGKILL:
            cause += f"{_OUTSIDE}, or because the machine's memory ran out"
        elif -code == signal.SIGTERM:
            cause += more or _OUTSIDE
        return cause
    if error is not None and _COLLECTIVE.search(error):
        # The timeout of a collective on CPU is 30 s, or MS_CPU_COMM_OP_TIMEOUT.
        error += ": not every rank arrived in time; one has ended, or is behind"
    return ("failed" + (f": {error}" if error else "")) + (f" (exit code {code})" if code else "")


def _shown(name: Name, lines: str) -> str:
    who = f"rank {name}" if isinstance(name, int) else name
    indented = "".join(f"    {line}\n" for line in lines.splitlines())
    return f"  last lines of {who}:\n{indented}" if lines else f"  {who} has written nothing\n"


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


# ---- what a log says


def tail(log: str, lines: int = 20) -> str:
    """Return the last lines of a log, without MindSpore's notes and C++ call stacks."""
    return "\n".join([line for line in log.splitlines() if not _NOISE.match(line)][-lines:])


def last_error(log: str) -> str | None:
    """Return the line ``Name: message`` of the last traceback in a log; None without one."""
    _, traceback, after = log.rpartition(f"{_TRACEBACK}\n")
    if not traceback:
        return None
    # The first line that is not indented. A traceback cut off in the middle has none.
    lines = iter(after.splitlines())
    error = next((line for line in lines if line and not line[0].isspace()), None)
    if error is None or not error.endswith(": "):
        return error
    return error + next((line for line in lines if not _HEADING.match(line)), "")


def is_echo(log: str) -> bool:
    """Return whether the last error in a log is one caused by another rank being gone."""
    error = last_error(log)
    return error is not None and _ECHO.search(error) is not None


def is_alone(log: str) -> bool:
    """Return whether the last error in a log says that not all ranks joined in time."""
    return _ALONE in (last_error(log) or "")


def joins(log: str) -> bool:
    """Return whether a log that ends with a stack trace shows its rank waiting for the others."""
    return is_alone(log) or _JOINING.search(log) is not None


def lost_ranks(scheduler: str) -> list[int]:
    """Return the ranks that the scheduler no longer heard from, according to its log."""
    return sorted({int(rank) for rank in _LOST.findall(scheduler)})


def culprit(ended: Sequence[Who], logs: Mapping[Who, str], last: Who) -> Who:
    """Return which of the failed processes failed by itself.

    Usually this is the first to end; if its error says that a different rank is gone, it is the
    first with an error that does not. A rank may take seconds from its error to its end, and in
    that time others may fail and end before it.

    Args:
        ended: names of the failed processes, in the order in which they ended.
        logs: log of every process that was started, including those that still run.
        last: name whose own error counts only if no other process has one (the scheduler).
    """
    own = [name for name in logs if last_error(logs[name]) and not is_echo(logs[name])]
    own.sort(key=lambda name: (name == last, ended.index(name) if name in ended else len(ended)))
    first = ended[0]
    only_echo = first == last or is_echo(logs.get(first, ""))
    return own[0] if only_echo and own else first
