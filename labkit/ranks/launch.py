"""Start a program on ranks, and report at once what failed where: ``labkit.launch``.

MindSpore's msrun by itself uses a fixed port, waits 600 s for missing ranks, answers every error
with "please check logs", and waits for its scheduler after a rank was lost: a run of two ranks in
which one raises took 45 s with msrun alone, and 15 s with ``launch``.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from labkit.base.arguments import integer, number, wrong
from labkit.errors import InputError, WorkerFailed, WorkersTimedOut
from labkit.ranks import cluster

_POLL = 0.05  # seconds; an exit code can be read for up to a second, until msrun collects it
_SETTLE = 1.0  # seconds for ranks that fail together to end, before one of them is named
_GRACE = 3.0  # seconds for ranks that got a signal to end
_LINES = 20  # of the log of a rank that failed
_STARTED = re.compile(r"^Start (scheduler|worker) process", re.M)
_FAILED = re.compile(r"Worker process (\d+) exit with exception\. Error code: (-?\d+)")
# What a rank writes only because another rank is gone.
_ECHO = re.compile(
    r"time[d-]? ?out|heartbeat|reconnect|broken pipe|peer|Launch kernel failed", re.I
)
# What MindSpore writes for its own developers, and what Python's fault handler adds.
_NOISE = re.compile(
    r"\s*$|\[(DEBUG|INFO|WARNING)\]|-{10,}$|- C\+\+ Call Stack|mindspore/ccsrc/\S+:\d+ "
    r"|Extension modules: |Thread 0x\w+ \(most recent call first\):$|  <no Python frame>"
)


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


@dataclass(frozen=True)
class Plan:
    """What ``launch`` starts: msrun's command, its variables, and the ranks of this machine.

    ``count`` is the number of ranks on all machines.
    """

    command: list[str]
    variables: dict[str, str]
    ranks: range
    count: int


def launch(
    script: str | os.PathLike,
    *args: str | os.PathLike | float,
    workers: int,
    timeout: float | None,
    log_dir: str | os.PathLike | None = None,
    cwd: str | os.PathLike | None = None,
    show: bool = False,
    **options: Any,
) -> Launched:
    """Run a program on ``workers`` ranks of this machine; return when all have succeeded.

        launch("train.py", "--epochs", 3, workers=2, timeout=600)
        launch("-m", "labkit.recipes", "train", "thor", "--run_distribute", "True", workers=8,
               timeout=None, log_dir="runs/logs")

    However the call ends, even by Ctrl-C, it leaves no process running; if this process is killed,
    so are msrun and, where ``labkit.start`` has joined them, the ranks.

    Args:
        script: a Python file, or ``-m`` with a module's name as the first of ``args``. msrun runs
            it on every rank, and once more as the scheduler, where joining (``labkit.start`` with
            ``distribute=True``) does not return before the ranks have ended.
        *args: arguments of the program.
        workers: number of ranks on this machine, see ``plan``.
        timeout: seconds for the whole call; None for no limit.
        log_dir: folder for worker_<rank>.log, scheduler.log and msrun.log; None: not kept.
        cwd: working folder of the ranks; None for that of this process.
        show: print what this machine's first rank writes, but for MindSpore's own log.
        **options: as for ``plan``: nodes, node_rank, master, env, cluster_timeout.

    Returns:
        The ranks' logs and output.

    Raises:
        InputError: if the program cannot be started.
        WorkerFailed: as soon as a rank ends with a nonzero exit code or by a signal.
        WorkersTimedOut: when the time is up.
    """
    began = time.monotonic()
    until = float("inf") if timeout is None else began + number("timeout", timeout, above=0)
    work = Path("." if cwd is None else cwd).resolve()
    if not work.is_dir():
        raise wrong("cwd", str(cwd), "a folder")
    if script != "-m" and not (work / script).is_file():
        raise InputError(f"script: expected a Python file or -m, got {script}")
    with ExitStack() as stack:
        logs = _log_folder(log_dir, stack)
        made = plan((script, *args), logs, workers=workers, **options)
        job = stack.enter_context(_started(made, logs, work))
        shown = 0
        while not job.is_over():
            if show:
                shown = _show(job.path(made.ranks[0]), shown)
            if time.monotonic() > until:
                raise _timed_out(job, timeout)
            time.sleep(_POLL)
        if show:
            _show(job.path(made.ranks[0]), shown, ended=True)
        if job.failed():
            raise _error(job)
        written = job.written()
    kept = {} if log_dir is None else written["logs"]
    return Launched(kept, written["output"], time.monotonic() - began)


def plan(
    program: Sequence[str | os.PathLike | float],
    logs: Path,
    *,
    workers: int,
    cluster_timeout: int = 60,
    nodes: int = 1,
    node_rank: int = 0,
    master: str | None = None,
    env: Mapping[str, str] | None = None,
) -> Plan:
    """Return what ``launch`` would start.

    Args:
        program: the program and its arguments.
        logs: folder for the logs.
        workers: number of ranks on this machine. On a CPU, each uses an equal share of the cores
            from ``labkit.start`` on, if they can be divided equally; with ``LOCAL_WORLD_SIZE`` set
            to "1" in ``env``, every rank uses all cores.
        cluster_timeout: seconds for the ranks to find each other.
        nodes: number of machines. Call ``launch`` on each, with the same number of workers; the
            numbering of ranks continues from node to node.
        node_rank: number of this machine.
        master: ``HOST:PORT`` of node 0, the same on all nodes. One node does not need it: a free
            port of the loopback address is used. Hazard: MindSpore asks processes that join for no
            password, and encrypts nothing: HOST must be an address in a network that you trust.
        env: variables for the ranks, in addition to this process's.

    Raises:
        InputError: for an invalid argument, or if msrun is not installed.
    """
    workers, nodes = integer("workers", workers), integer("nodes", nodes)
    integer("node_rank", node_rank, 0, nodes - 1)
    if nodes > 1 and master is None:
        raise InputError(f"master: expected HOST:PORT of node 0 for {nodes} nodes, got None")
    host, _, port = (master or f"127.0.0.1:{free_port()}").rpartition(":")
    if not host or not port.isdigit():
        raise wrong("master", master, "HOST:PORT")
    beside = Path(sys.executable).parent / "msrun"
    msrun = str(beside) if beside.is_file() else shutil.which("msrun")
    if msrun is None:
        raise InputError("msrun is not installed; expected it beside this Python, from mindspore")
    command = [
        *(msrun, "--worker_num", nodes * workers, "--local_worker_num", workers, "--join", "True"),
        *("--master_addr", host, "--master_port", port, "--cluster_time_out", cluster_timeout),
        # Otherwise msrun follows each log with a "tail -f". There is no rank with this number.
        *("--log_dir", logs, "--tail_worker_log", nodes * workers),
        *(("--node_rank", node_rank) if nodes > 1 else ()),
        *("python", *program),
    ]
    ranks = range(node_rank * workers, (node_rank + 1) * workers)
    variables = _variables(workers, nodes, env or {})
    return Plan([str(part) for part in command], variables, ranks, nodes * workers)


def _variables(workers: int, nodes: int, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that msrun gets on top of this process's."""
    own = {
        "PYTHONFAULTHANDLER": "1",  # a rank that hangs says where
        "PYTHONUNBUFFERED": "1",  # the last lines of a killed rank are in its log
    }
    if nodes == 1:
        # Seconds after which ranks that wait for each other ask again. MindSpore's 3 to 5 are for
        # thousands: two that add three numbers took 12 to 16 s, now 8 to 10.
        own |= dict.fromkeys(("MS_RETRY_INTERVAL_LOWER", "MS_RETRY_INTERVAL_UPPER"), "1")
    own |= {name: os.environ[name] for name in own if name in os.environ}
    own[cluster.RANKS_HERE] = str(workers)
    # In a notebook labkit.start hides MindSpore's errors, because every cell causes false ones.
    if "ipykernel" in sys.modules and os.environ.get("GLOG_v") == "4":
        own["GLOG_v"] = "3"
    # msrun starts "python": that of this interpreter's environment must come first.
    own["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return own | dict(env) | {"PYTHONPATH": _python_path((env or os.environ).get("PYTHONPATH"))}


def _python_path(before: str | None) -> str:
    """Return PYTHONPATH with the folder that this labkit was imported from in front."""
    root = str(Path(__file__).resolve().parents[2])
    # An installed labkit is found anyway, and its folder would precede the standard library.
    own = [] if root.endswith("-packages") else [root]
    return os.pathsep.join([*own, *filter(None, (before or "").split(os.pathsep))])


def child_environment() -> dict[str, str]:
    """Return this process's variables, with a PYTHONPATH by which a child finds this labkit."""
    return os.environ | {"PYTHONPATH": _python_path(os.environ.get("PYTHONPATH"))}


def free_port() -> int:
    """Return a port of the loopback address that nobody uses now."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        return holder.getsockname()[1]


def _log_folder(log_dir: str | os.PathLike | None, stack: ExitStack) -> Path:
    """Return the folder for logs, without those of an earlier call."""
    if log_dir is None:
        return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="labkit-ranks-")))
    folder = Path(log_dir).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in (*folder.glob("worker_*.log"), folder / "scheduler.log"):
            old.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"log_dir {folder} cannot be written ({error.strerror})") from error
    return folder


class _Job:
    """A running msrun and the ranks it has started on this machine.

    Attributes:
        pids: rank -> pid, once all have started.
        codes: rank -> exit code, -n for signal n, of those that have ended, in that order.
    """

    def __init__(self, process: subprocess.Popen, logs: Path, made: Plan) -> None:
        self.process, self.logs = process, logs
        self.ranks, self.count = made.ranks, made.count
        self.pids: dict[int, int] = {}
        self.codes: dict[int, int] = {}

    def is_over(self) -> bool:
        """Return whether all ranks have ended well, or one failed and others had time to do so."""
        over = self.process.poll() is not None
        self.look()
        if self.failed():
            self.wait(_SETTLE)
        elif over and self.process.returncode:
            code, tail = self.process.returncode, _tail(self.log("msrun"))
            raise WorkerFailed(f"msrun {_words(code)}\n{tail}", exit_code=code, tail=tail)
        return over or bool(self.failed()) or not self.running()

    def look(self) -> None:
        """Note which ranks have started and which have ended since the last look."""
        log = self.log("msrun")
        if not self.pids:
            # msrun starts the scheduler, where that is on this machine, and then ranks in order.
            children, started = self._children(), _STARTED.findall(log)
            children.sort(key=lambda child: (child.create_time(), child.pid))
            if len(started) == len(children) and started.count("worker") == len(self.ranks):
                own = children[-len(self.ranks) :]
                self.pids = {rank: child.pid for rank, child in zip(self.ranks, own, strict=True)}
        logged = {int(pid): int(code) for pid, code in _FAILED.findall(log)}
        codes = {rank: _exit_code(pid) for rank, pid in self.pids.items()}
        ended = [rank for rank in self.running() if codes.get(rank) is not None]
        # msrun names one, before it kills the others.
        for rank in sorted(ended, key=lambda rank: self.pids[rank] not in logged):
            self.codes[rank] = codes[rank] or logged.get(self.pids[rank], 0)

    def _children(self, recursive: bool = False) -> list[psutil.Process]:
        with contextlib.suppress(psutil.Error):
            return psutil.Process(self.process.pid).children(recursive)
        return []

    def wait(self, seconds: float) -> None:
        """Wait for all ranks to end, for so many seconds at most."""
        until = time.monotonic() + seconds
        while self.running() and time.monotonic() < until:
            time.sleep(_POLL)
            self.look()

    def running(self) -> list[int]:
        """Return the ranks that have not ended."""
        return [rank for rank in self.ranks if rank not in self.codes]

    def failed(self) -> list[int]:
        """Return the ranks that have failed, in the order in which they ended."""
        return [rank for rank, code in self.codes.items() if code]

    def path(self, rank: int) -> Path:
        """Return the path of a rank's log."""
        return self.logs / f"worker_{rank}.log"

    def log(self, name: int | str) -> str:
        """Return what a rank or "msrun" has written so far."""
        path = self.path(name) if isinstance(name, int) else self.logs / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def written(self) -> dict[str, Any]:
        """Return the ranks' logs and output, for an error."""
        logs = {rank: self.path(rank) for rank in self.ranks}
        return {"logs": logs, "output": {rank: self.log(rank) for rank in logs}}

    def send(self, number: int) -> None:
        """Send the running ranks a signal, and give them time to end.

        SIGABRT makes each write a stack trace of each thread. After SIGTERM a training closes its
        files and its lock; msrun, which kills all others once one has ended, is stopped meanwhile.
        """
        self.process.send_signal(signal.SIGSTOP)
        for pid in (self.pids[rank] for rank in self.running() if rank in self.pids):
            with contextlib.suppress(psutil.Error, OSError):
                psutil.Process(pid).rlimit(psutil.RLIMIT_CORE, (0, 0))  # no core file of gigabytes
                os.kill(pid, number)
        self.wait(_GRACE)

    def end(self) -> None:
        """Kill msrun and everything below it; each rank leads a session of its own."""
        family = {*self.pids.values(), *(child.pid for child in self._children(recursive=True))}
        self.process.kill()
        for pid in family:
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(OSError):
                    kill(pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def _started(made: Plan, logs: Path, work: Path) -> Iterator[_Job]:
    """Start msrun and yield it as a ``_Job``; on leaving, end whatever is left of it."""
    with (logs / "msrun.log").open("wb") as log:
        process = subprocess.Popen(
            made.command,
            cwd=work,
            env=os.environ | made.variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=cluster.die_with_parent,
        )
        job = _Job(process, logs, made)
        try:
            yield job
        except (KeyboardInterrupt, SystemExit):
            job.send(signal.SIGTERM)
            raise
        finally:
            job.end()


def _show(log: Path, place: int, ended: bool = False) -> int:
    """Print the whole lines of a log from ``place`` on; return the place behind them."""
    if not log.exists():
        return place
    with log.open("rb") as file:
        file.seek(place)
        text = file.read()
    text = text if ended else text[: text.rfind(b"\n") + 1]
    for line in text.decode(errors="replace").splitlines(keepends=True):
        if not _NOISE.match(line):
            print(line, end="", flush=True)
    return place + len(text)


def _error(job: _Job) -> WorkerFailed:
    """Return the error of the rank that failed by itself, not of those it made fail."""
    failed = job.failed()
    rank = next((rank for rank in failed if not _is_echo(job, rank)), failed[0])
    code, tail = job.codes[rank], _tail(job.log(rank))
    return WorkerFailed(
        f"rank {rank} of {job.count} {_words(code)}; log: {job.path(rank)}\n{tail}",
        ranks=[rank],
        exit_code=code if code > 0 else None,
        signal=signal.Signals(-code).name if code < 0 else None,
        tail=tail,
        **job.written(),
    )


def _is_echo(job: _Job, rank: int) -> bool:
    """Return whether a rank failed only because another is gone, or was killed with it."""
    if rank == job.failed()[0] and job.codes[rank] < 0:
        return False
    lines = _tail(job.log(rank)).splitlines()
    return job.codes[rank] == -signal.SIGKILL or any(map(_ECHO.search, lines[-3:]))


def _timed_out(job: _Job, timeout: float | None) -> WorkersTimedOut:
    """Return the error of ranks that hang, with where each of them was."""
    hanging = job.running()
    job.send(signal.SIGABRT)
    tail = "\n".join(f"rank {rank}:\n{_tail(job.log(rank))}" for rank in hanging)
    names = f"rank{'s' if len(hanging) > 1 else ''} {', '.join(map(str, hanging))}"
    return WorkersTimedOut(
        f"not ended after {timeout:g} s: {names} of {job.count} still ran\n{tail}",
        ranks=hanging,
        tail=tail,
        **job.written(),
    )


def _words(code: int) -> str:
    """Return how a process ended, in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name
    hint = ": out of memory, or from outside" if code == -signal.SIGKILL else ""
    return f"was ended by {name}{hint}"


def _tail(log: str) -> str:
    """Return the last lines of a log that say something to its user."""
    return "\n".join([line for line in log.splitlines() if not _NOISE.match(line)][-_LINES:])


def _exit_code(pid: int) -> int | None:
    """Return a process's exit code: None while it runs, 0 once its parent has collected it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return os.waitstatus_to_exitcode(int(stat[-1])) if stat[0] in "ZX" else None
