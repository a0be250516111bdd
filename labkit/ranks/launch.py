"""Start a program on ranks, and report at once what failed where: ``labkit.launch``.

MindSpore's msrun by itself uses a fixed port, waits 600 s for missing ranks, answers every error
with "please check logs", and waits for its scheduler after a rank was lost: a run of two ranks in
which one raises took 45 s with msrun alone, and 15 s with ``launch``.
"""

import os
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from labkit.base.arguments import names_checked, wrong
from labkit.errors import InputError
from labkit.ranks import msrun
from labkit.ranks import plan as plans
from labkit.ranks.failures import Failures
from labkit.ranks.master import watched

_POLL = 0.02  # seconds; an exit code can be read for up to a second, until msrun collects it
_SETTLE = 1.0  # seconds for ranks that fail together to end, before one of them is named
_PARTING = 30.0  # seconds for ranks to end after the scheduler; MindSpore ends them within 25
_WHERE = 3.0  # seconds for hanging ranks to write their stack traces


@dataclass(frozen=True)
class Launched:
    """Logs and output of ranks that have all ended with exit code 0.

    Attributes:
        logs: rank -> path of its log; empty if no folder for logs was given.
        output: rank -> everything it has written to standard output and standard error.
        seconds: how long the call took, in seconds.
    """

    logs: dict[int, Path]
    output: dict[int, str]
    seconds: float


@names_checked
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
    """Run a program on ``workers`` ranks of this machine; return when all have succeeded.

        launch("train.py", "--epochs", 3, workers=2, timeout=600)
        launch("-m", "labkit.recipes.thor", "train", "--run_distribute", "True", workers=8,
               timeout=None, log_dir="runs/logs")

    However the call ends, even by Ctrl-C or with this process, it leaves no process running, not
    even one that a rank has started.

    Args:
        script: a Python file, or ``-m`` with a module's name as the first of ``args``. msrun runs
            it on every rank, and once more as the scheduler, where joining (``labkit.start`` with
            ``distribute=True``) does not return before the ranks have ended.
        *args: arguments of the program.
        workers: number of ranks on this machine. On a CPU, each uses an equal share of the cores
            from ``labkit.start`` on, if they can be divided equally; with ``LOCAL_WORLD_SIZE`` set
            to "1" in ``env``, every rank uses all cores.
        timeout: seconds for the whole call; None for no limit.
        cluster_timeout: seconds for the ranks to find each other.
        nodes: number of machines. Call ``launch`` on each, with the same number of workers; the
            numbering of ranks continues from node to node.
        node_rank: number of this machine.
        master: ``HOST:PORT`` of node 0, the same on all nodes. One node does not need it: a free
            port of the loopback address is used. Hazard: MindSpore asks processes that join for no
            password, and encrypts nothing: HOST must be an address in a network that you trust.
        log_dir: folder for worker_<rank>.log, scheduler.log and msrun.log; None: not kept.
        cwd: working folder of the ranks; None for that of this process.
        env: variables for the ranks, in addition to this process's.

    Returns:
        The ranks' logs and output.

    Raises:
        InputError: if the program cannot be started.
        WorkerFailed: as soon as a rank ends with a nonzero exit code or by a signal; and within
            about a minute after another node has failed or can no longer be reached.
        WorkersTimedOut: when the time is up.
    """
    began = time.monotonic()
    work = plans.folder("cwd", "." if cwd is None else cwd, exists=True)
    with ExitStack() as stack:
        plan = plans.plan(
            script,
            args,
            workers=workers,
            timeout=timeout,
            cluster_timeout=cluster_timeout,
            nodes=nodes,
            node_rank=node_rank,
            master=master,
            cwd=work,
            port=stack.enter_context(plans.held_port()),
        )
        variables = os.environ | msrun.own_variables(plan, _checked(env))
        node_0 = stack.enter_context(watched(plan, variables))
        logs = _logs(log_dir, plan, stack)
        job = stack.enter_context(msrun.started(plan, logs, work, variables, node_0))
        _watch(job, plan, began + plan.timeout, kept=log_dir is not None)
        output = {rank: job.log(rank) for rank in plan.ranks}
        kept = {rank: job.path(rank) for rank in plan.ranks if log_dir is not None}
    return Launched(kept, output, time.monotonic() - began)


def _watch(job: msrun.Job, plan: plans.Plan, until: float, kept: bool) -> None:
    """Return when all ranks have succeeded; raise the error that explains a failure."""
    say = Failures(job, plan, kept)
    while True:
        job.look()
        if job.failed() or job.process.poll() is not None:
            absent = job.running() if say.somebody_is_absent() else []
            if absent:
                job.show_where(_SETTLE)
            _settle(job)
        if job.ended_well():
            return
        if job.failed():
            raise say.absent(absent) if absent else say.first_cause()
        if job.process.poll() is not None:
            raise say.msrun()
        if job.without_master(_PARTING):
            raise say.cut_off()
        if time.monotonic() >= until:
            hanging = job.running()
            job.show_where(_WHERE)
            raise say.timed_out(hanging)
        time.sleep(_POLL)


def _settle(job: msrun.Job) -> None:
    """Wait for ranks that fail together."""
    settled = time.monotonic() + _SETTLE
    while time.monotonic() < settled and not job.ended_well():
        time.sleep(_POLL)
        job.look()


def _checked(env: Mapping[str, str] | None) -> Mapping[str, str]:
    env = {} if env is None else env
    if not isinstance(env, Mapping):
        raise wrong("env", env, "a mapping of texts to texts")
    for name, value in env.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise wrong("env", {name: value}, "texts")
    return env


def _logs(log_dir: str | os.PathLike | None, plan: plans.Plan, stack: ExitStack) -> Path:
    """Return the folder for logs, without files that an earlier call left there."""
    if log_dir is None:
        made = tempfile.TemporaryDirectory(prefix="labkit-ranks-")
        return Path(stack.enter_context(made))
    folder = plans.folder("log_dir", log_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for rank in plan.ranks:
            (folder / f"worker_{rank}.log").unlink(missing_ok=True)
        # Logs are overwritten from their start, and through a link its target would be.
        msrun.own_log(folder, plan).unlink(missing_ok=True)
        if plan.node_rank == 0:
            (folder / "scheduler.log").unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"log_dir {folder} cannot be written ({error.strerror})") from error
    return folder
