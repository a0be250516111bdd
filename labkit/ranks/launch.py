"""Start a program on ranks, and say at once what failed where: ``labkit.launch``.

MindSpore's msrun by itself takes a fixed port, waits 600 s for ranks that do not come, answers
every error with "please check logs", and after a rank was lost waits for its scheduler: a run of
two ranks in which one raises took 45 s by msrun alone, and 15 s by ``launch``.
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

_POLL = 0.02  # seconds; an exit code can be read for up to a second, until msrun looks itself
_SETTLE = 1.0  # seconds for ranks that fail together to do so, before one of them is named
_PARTING = 30.0  # seconds for ranks to end after the scheduler; MindSpore ends them within 25
_WHERE = 3.0  # seconds for hanging ranks to write where they are


@dataclass(frozen=True)
class Launched:
    """What ranks left that have all ended with exit code 0.

    Attributes:
        logs: rank -> path of its log; empty where no folder for logs was given.
        output: rank -> all it has written, to standard output and standard error.
        seconds: that the call took.
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
    """Run a program on ``workers`` ranks of this machine; return when all have ended well.

        launch("train.py", "--epochs", 3, workers=2, timeout=600)
        launch("-m", "labkit.recipes.thor", "train", "--run_distribute", "True", workers=8,
               timeout=None, log_dir="runs/logs")

    However it ends, by Ctrl-C or by the end of this process too, no process is left, nor one that
    a rank has started.

    Args:
        script: a Python file, or ``-m`` with a module's name as the first of ``args``. msrun runs
            it on every rank, and once more as the scheduler: there, joining (``labkit.start`` with
            ``distribute=True``) does not return before the ranks have ended.
        *args: arguments of the program.
        workers: ranks of this machine. On a CPU each keeps to an equal share of its cores from
            ``labkit.start`` on, where they can be shared equally; with ``LOCAL_WORLD_SIZE`` "1"
            in ``env`` all use all.
        timeout: seconds for all of it; None for no limit.
        cluster_timeout: seconds for the ranks to find each other.
        nodes: how many machines. Call it on each, with the same number of workers; ranks are
            numbered on from node to node.
        node_rank: which machine this is.
        master: ``HOST:PORT`` of node 0, the same on all. With one node none is needed: a free port
            of the loopback address is taken. Hazard: MindSpore asks nobody who joins for a
            password, and encrypts nothing: HOST must be an address of a network that you trust.
        log_dir: folder for worker_<rank>.log, scheduler.log and msrun.log; None: not kept.
        cwd: folder that the ranks work in; this process's if None.
        env: variables for the ranks, in addition to this process's.

    Returns:
        The ranks' logs and output.

    Raises:
        InputError: when the program cannot be started.
        WorkerFailed: as soon as a rank ends with an exit code that is not 0, or by a signal; and
            within about a minute after another node has failed or cannot be reached any more.
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
    """Return when all ranks have ended well; raise what went wrong."""
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
    """The folder for logs, without what an earlier call left there."""
    if log_dir is None:
        made = tempfile.TemporaryDirectory(prefix="labkit-ranks-")
        return Path(stack.enter_context(made))
    folder = plans.folder("log_dir", log_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for rank in plan.ranks:
            (folder / f"worker_{rank}.log").unlink(missing_ok=True)
        # They are written from their start, and where one is a link, into what it points to.
        msrun.own_log(folder, plan).unlink(missing_ok=True)
        if plan.node_rank == 0:
            (folder / "scheduler.log").unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"log_dir {folder} cannot be written ({error.strerror})") from error
    return folder
