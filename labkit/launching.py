"""Start a program on ranks, and say at once what failed where: ``labkit.launch``.

MindSpore's msrun by itself takes a fixed port, waits 600 s for ranks that do not come, answers
every error with "please check logs", and after a rank was lost waits for its scheduler: 45 s from
an exception in a rank to its end, measured with two ranks.
"""

import os
import signal
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from labkit import launch_plan, msrun, rank_logs
from labkit.errors import InputError, WorkerFailed, WorkersTimedOut

_POLL = 0.02  # seconds; an exit code can be read for up to a second, until msrun looks itself
_SETTLE = 1.0  # seconds for ranks that fail together to do so, before one of them is named
_WHERE = 3.0  # seconds for hanging ranks to write where they are
_LINES = 20  # of the log of the one that failed; shared out among those that hang


@dataclass(frozen=True)
class Launched:
    """What ranks left that have all ended with exit code 0.

    logs     rank -> path of its log; empty where no folder for logs was given
    output   rank -> all it has written, to standard output and standard error
    seconds  that the call took
    """

    logs: dict[int, Path]
    output: dict[int, str]
    seconds: float


def launch(
    script: str | os.PathLike,
    *args: str | os.PathLike | float,
    workers: int,
    timeout: float | None,
    cluster_timeout: int = 60,
    nodes: int = 1,
    node_rank: int = 0,
    master: str | None = None,
    log_dir: str | os.PathLike | None = None,
    cwd: str | os.PathLike | None = None,
    env: Mapping[str, str] | None = None,
) -> Launched:
    """Run a program on ``workers`` ranks of this machine; return when all have ended well.

        launch("train.py", "--epochs", 3, workers=2, timeout=600)
        launch("-m", "labkit.recipes.thor", "train", "--run_distribute", "True", workers=8,
               timeout=None, log_dir="runs/logs")

    script   a Python file, or ``-m`` with a module's name as the first of ``args``. msrun runs it
             on every rank, and once more as the scheduler: there, joining (``labkit.start`` with
             ``distribute=True``) does not return before the ranks have ended.
    timeout  seconds for all of it; None for no limit
    cluster_timeout  seconds for the ranks to find each other
    nodes, node_rank, master  for several machines: how many, which one this is, and ``HOST:PORT``
             of node 0, the same on all. Call it on each, with the same number of workers; ranks
             are numbered on from node to node. Alone, no master is needed: a free port is taken.
    log_dir  folder for worker_<rank>.log, scheduler.log and msrun.log; if None, they are not kept
    cwd      folder that the ranks work in; this process's if None
    env      variables for the ranks, in addition to this process's

    Raises ``InputError`` for what cannot be started, ``WorkerFailed`` as soon as a rank ends with
    an exit code that is not 0, or by a signal, and ``WorkersTimedOut`` when the time is up.
    However it ends, by Ctrl-C or by the end of this process too, no process is left, nor one that
    a rank has started.
    """
    began = time.monotonic()
    work = launch_plan.folder("cwd", "." if cwd is None else cwd, exists=True)
    plan = launch_plan.plan(
        script,
        args,
        workers=workers,
        timeout=timeout,
        cluster_timeout=cluster_timeout,
        nodes=nodes,
        node_rank=node_rank,
        master=master,
        cwd=work,
    )
    variables = msrun.environment(plan, _variables(env))
    with ExitStack() as stack:
        logs = _logs(log_dir, plan, stack)
        job = stack.enter_context(msrun.started(plan, logs, work, variables))
        _watch(job, plan, began + plan.timeout, kept=log_dir is not None)
        output = {rank: job.log(rank) for rank in plan.ranks}
        kept = {rank: job.path(rank) for rank in plan.ranks if log_dir is not None}
    return Launched(kept, output, time.monotonic() - began)


def _watch(job, plan, until, kept):
    """Return when all ranks have ended well; raise what went wrong."""
    while True:
        job.look()
        if job.failed() or job.process.poll() is not None:
            settled = time.monotonic() + _SETTLE
            while time.monotonic() < settled and not job.ended_well():
                time.sleep(_POLL)
                job.look()
        if job.ended_well():
            return
        if job.failed():
            raise _failure(job, plan, kept)
        if job.process.poll() is not None:
            raise _msrun_failure(job, plan, kept)
        if time.monotonic() >= until:
            raise _timed_out(job, plan, kept)
        time.sleep(_POLL)


def _failure(job, plan, kept):
    """The error that names who failed first."""
    failed = job.failed()
    logs = {name: job.log(name) for name in job.pids}
    name, code = failed[0], job.codes[failed[0]]
    if name == msrun.SCHEDULER or code > 0:
        name = rank_logs.first_cause(failed, logs, last=msrun.SCHEDULER)
    if name != failed[0]:  # what has ended it may be msrun, because of the other one
        code = job.codes.get(name)
        code = code if code is not None and code > 0 else None
    error = rank_logs.last_error(logs[name])
    if code is None or code > 0:
        cause = f"failed: {error}" if error else "failed"
        cause += f" (exit code {code})" if code else ""
    else:
        cause = f"was ended by {_signal(-code)}"
        if -code == signal.SIGKILL:
            cause += ": from outside, or because the machine's memory ran out"
    return _error(job, plan, kept, name, cause, code)


def _msrun_failure(job, plan, kept):
    """The error for an msrun that has ended while its ranks had not."""
    code = job.process.returncode
    error = rank_logs.last_error(job.log("msrun"))
    if code < 0:
        cause = f"was ended by {_signal(-code)}"
    else:
        cause = f"failed: {error} (exit code {code})" if error else f"failed (exit code {code})"
    return _error(job, plan, kept, "msrun", cause, code)


def _error(job, plan, kept, name, cause, code):
    tail = rank_logs.tail(job.log(name), _LINES)
    ranks = (name,) if isinstance(name, int) else ()
    who = f"rank {name} of {plan.nodes * plan.workers}" if ranks else name
    return WorkerFailed(
        f"{who} {cause}\n{_shown(name, tail)}{_where(job, name, kept)}",
        ranks=ranks,
        exit_code=code if code is not None and code >= 0 else None,
        signal=_signal(-code) if code is not None and code < 0 else None,
        tail=tail,
        **_left(job, plan, kept),
    )


def _timed_out(job, plan, kept):
    """The error for ranks that run when the time is up; each is made to say where it is."""
    hanging = job.running()
    job.show_where(_WHERE)
    lines = max(_LINES // max(len(hanging), 1), 5)
    tails = {rank: rank_logs.tail(job.log(rank), lines) for rank in hanging}
    said = "".join(_shown(rank, tail) for rank, tail in tails.items())
    return WorkersTimedOut(
        f"not ended after {plan.timeout:g} s: {_still(job, plan, hanging)}\n{said}"
        f"{_where(job, hanging[0] if len(hanging) == 1 else None, kept)}",
        ranks=hanging,
        tail="\n".join(tails.values()),
        **_left(job, plan, kept),
    )


def _still(job, plan, hanging):
    if not hanging:
        return "the ranks of this node had ended, others' had not"
    name = "ranks" if len(hanging) > 1 else "rank"
    still = f"{name} {', '.join(map(str, hanging))} of {plan.nodes * plan.workers} still ran"
    ended = [rank for rank in plan.ranks if rank not in hanging]
    return still + (f", {', '.join(map(str, ended))} had ended" if ended else "")


def _left(job, plan, kept):
    logs = {rank: job.path(rank) for rank in plan.ranks if kept and job.path(rank).exists()}
    return {"logs": logs, "output": {rank: job.log(rank) for rank in plan.ranks}}


def _shown(name, tail):
    who = f"rank {name}" if isinstance(name, int) else name
    indented = "".join(f"    {line}\n" for line in tail.splitlines())
    return f"  last lines of {who}:\n{indented}" if tail else f"  {who} has written nothing\n"


def _where(job, name, kept):
    if not kept:
        return "  no log is kept: log_dir is None"
    return f"  log: {job.path(name)}" if name is not None else f"  logs: {job.path('msrun').parent}"


def _signal(number):
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _variables(env):
    env = dict(env or {})
    for name, value in env.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InputError(f"env has {name!r}: {value!r}; expected texts")
    return env


def _logs(log_dir, plan, stack):
    """The folder for logs, without what an earlier call left there."""
    if log_dir is None:
        made = tempfile.TemporaryDirectory(prefix="labkit-ranks-")
        return Path(stack.enter_context(made))
    folder = launch_plan.folder("log_dir", log_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for rank in plan.ranks:
            (folder / f"worker_{rank}.log").unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"log_dir {folder} cannot be written ({error.strerror})") from error
    return folder
