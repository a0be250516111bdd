"""Start a program on ranks, and report at once what failed where: ``labkit.launch``.

MindSpore's msrun by itself uses a fixed port, waits 600 s for missing ranks, answers every error
with "please check logs", and waits for its scheduler after a rank was lost.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from labkit.base import machine
from labkit.base.arguments import integer, local_path, number, wrong
from labkit.base.files import make_folder
from labkit.errors import WorkerFailed, WorkersTimedOut
from labkit.ranks import cluster

_POLL = 0.05  # seconds; an exit code can be read for up to a second, until msrun collects it
_LOGGED = 0.2  # seconds within which msrun logs an exit code that it has collected
_SETTLE = 1.0  # seconds for ranks that fail together to end, before one of them is named
_LINES = 20  # of the log of a rank that failed
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


def launch(
    script: str | os.PathLike,
    *args: str | os.PathLike | float,
    workers: int,
    timeout: float | None,
    log_dir: str | os.PathLike | None = None,
    cwd: str | os.PathLike | None = None,
    show: bool = False,
    cluster_timeout: int = 60,
    nodes: int = 1,
    node_rank: int = 0,
    master: str | None = None,
    env: Mapping[str, str] | None = None,
) -> dict[int, str]:
    """Run a program on ``workers`` ranks of this machine; return rank -> all that it wrote.

    However the call ends, even by Ctrl-C, it leaves no process running; if this process is killed,
    so are msrun and, where ``labkit.start`` has joined them, the ranks.

    Args:
        script: a Python file, or ``-m`` with a module's name as the first of ``args``. msrun runs
            it on every rank, and once more as the scheduler, where ``labkit.start`` with
            ``distribute=True`` does not return before the ranks have ended.
        workers: number of ranks on this machine. On a CPU, each uses an equal share of the cores
            from ``labkit.start`` on, if they can be divided equally; with ``LOCAL_WORLD_SIZE`` set
            to "1" in ``env``, every rank uses all cores.
        timeout: seconds for the whole call; None for no limit.
        log_dir: folder for worker_<rank>.log, scheduler.log and msrun.log; None: not kept.
        cwd: working folder of the ranks.
        show: print what this machine's first rank writes, but for MindSpore's own log.
        cluster_timeout: seconds for the ranks to find each other.
        nodes: number of machines, on each of which ``launch`` is called.
        node_rank: number of this machine; the numbering of ranks continues from node to node.
        master: ``HOST:PORT`` of node 0, the same on all nodes; one alone takes a free port of the
            loopback address. Hazard: MindSpore asks processes that join for no password, and
            encrypts nothing: HOST must be an address in a network that you trust.
        env: variables for the ranks, in addition to this process's.

    Raises:
        InputError: elsewhere than on Linux; for an argument out of range, and if ``log_dir``
            cannot be written.
        WorkerFailed: as soon as a rank ends with a nonzero exit code or by a signal.
        WorkersTimedOut: when the time is up.
    """
    machine.need_linux("launch")
    until = math.inf if timeout is None else time.monotonic() + number("timeout", timeout, above=0)
    workers, nodes = integer("workers", workers), integer("nodes", nodes)
    first = workers * integer("node_rank", node_rank, 0, nodes - 1)
    if nodes == 1 and master is None:
        master = f"127.0.0.1:{free_port()}"
    if script != "-m" and not (Path(cwd or ".") / script).is_file():
        raise wrong("script", str(script), "a Python file, or -m and a module")
    host, _, port = str(master).rpartition(":")
    if not host or not port.isdigit():
        raise wrong("master", master, f"HOST:PORT of node 0 for {nodes} nodes")
    with contextlib.ExitStack() as stack:
        if log_dir is None:
            logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="labkit-ranks-")))
        else:
            logs = local_path("log_dir", log_dir).absolute()
            make_folder(logs)
            for old in logs.glob("worker_*.log"):  # of an earlier call
                old.unlink()
        command = [
            *("msrun", "--worker_num", nodes * workers),
            *("--local_worker_num", workers, "--join", "True"),
            *("--master_addr", host, "--master_port", port, "--cluster_time_out", cluster_timeout),
            # Otherwise msrun follows each log with a "tail -f". There is no rank with this number.
            *("--log_dir", logs, "--tail_worker_log", nodes * workers),
            *(("--node_rank", node_rank) if nodes > 1 else ()),
            *("python", script, *args),
        ]
        variables = child_environment(_variables(workers, nodes) | dict(env or {}))
        # msrun, and the "python" that it starts, are those of this interpreter's environment.
        own = str(Path(sys.executable).parent)
        variables["PATH"] = os.pathsep.join([own, variables.get("PATH", "")])
        with (logs / "msrun.log").open("wb") as log:
            msrun = machine.start_child(list(map(str, command)), log, cwd=cwd, env=variables)
        ranks = _Ranks(msrun, logs, range(first, first + workers), log_dir is not None)
        stack.callback(ranks.end)
        shown, over = 0, False
        while not over:
            time.sleep(_POLL)
            over = ranks.are_over()
            if show:
                shown = _show(ranks.log(first), shown, over)
            if not over and time.monotonic() > until:
                raise ranks.timed_out(timeout)
        if ranks.failed():
            raise ranks.error()
        return {rank: ranks.log(rank) for rank in ranks.numbers}


def _variables(workers: int, nodes: int) -> dict[str, str]:
    """Return the variables that ``launch`` sets."""
    # A rank that hangs says where; the last lines of a killed one are in its log.
    own = {"PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"}
    if nodes == 1:
        # Seconds after which ranks that wait for each other ask again. MindSpore's 3 to 5 are for
        # thousands: two that add three numbers took 12 to 16 s, now 8 to 10.
        own |= dict.fromkeys(("MS_RETRY_INTERVAL_LOWER", "MS_RETRY_INTERVAL_UPPER"), "1")
    own |= {name: os.environ[name] for name in own if name in os.environ}
    own[cluster.RANKS_HERE] = str(workers)
    if os.environ.get("GLOG_v") == "4":  # as in a notebook: msrun would not say which rank failed
        own["GLOG_v"] = "3"
    return own


def child_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's variables and ``more``, by which a child finds this labkit."""
    variables = os.environ | dict(more or {})
    root = str(Path(__file__).resolve().parents[2])
    # An installed labkit is found anyway, and its folder would precede the standard library.
    own = [] if root.endswith("-packages") else [root]
    before = filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))
    return variables | {"PYTHONPATH": os.pathsep.join([*own, *before])}


def free_port() -> int:
    """Return a port of the loopback address that nobody uses now."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        return holder.getsockname()[1]


class _Ranks:
    """The ranks of this machine, which msrun starts.

    Attributes:
        started: pids of the ranks that have been seen.
        pids: rank -> pid, once all have started.
        codes: rank -> exit code, -n for signal n, of those that have ended, in that order.
    """

    def __init__(self, msrun: subprocess.Popen, logs: Path, numbers: range, kept: bool) -> None:
        self.msrun, self.logs, self.numbers, self.kept = msrun, logs, numbers, kept
        self.started: set[int] = set()
        self.pids: dict[int, int] = {}
        self.codes: dict[int, int] = {}

    def are_over(self) -> bool:
        """Return whether all have ended well, or one failed and others had time to do so."""
        ended = self.msrun.poll()
        self._look()
        if self.failed():
            time.sleep(_SETTLE)
            self._look()
        elif ended:
            tail = _tail(self.log("msrun"))
            raise WorkerFailed(f"msrun ended with exit code {ended}\n{tail}", None, ended, tail)
        return ended is not None or bool(self.failed()) or not self._running()

    def _look(self) -> None:
        """Note which ranks have started and which have ended since the last look."""
        if len(self.pids) < len(self.numbers):
            # In order of their ranks. One that fails at once may be collected before it is seen.
            self.started |= self._logged().keys() | {
                child.pid for child in self._children() if _leads_session(child.pid)
            }
            if len(self.started) == len(self.numbers):
                self.pids = dict(zip(self.numbers, sorted(self.started), strict=True))
        running = [rank for rank in self._running() if rank in self.pids]
        codes = {rank: machine.exit_code(self.pids[rank]) for rank in running}
        if ended := [rank for rank, code in codes.items() if code is not None]:
            time.sleep(_LOGGED)
        logged = self._logged()
        # msrun names one, before it kills the others.
        for rank in sorted(ended, key=lambda rank: self.pids[rank] not in logged):
            self.codes[rank] = codes[rank] or logged.get(self.pids[rank], 0)

    def _logged(self) -> dict[int, int]:
        """Return pid -> exit code of the rank whose failure msrun has logged."""
        return {int(pid): int(code) for pid, code in _FAILED.findall(self.log("msrun"))}

    def _children(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.Error):
            return psutil.Process(self.msrun.pid).children()
        return []

    def _running(self) -> list[int]:
        return [rank for rank in self.numbers if rank not in self.codes]

    def failed(self) -> list[int]:
        """Return the ranks that have failed, in the order in which they ended."""
        return [rank for rank, code in self.codes.items() if code]

    def log(self, name: int | str) -> str:
        """Return what a rank, or "msrun", has written so far."""
        path = self.logs / (f"worker_{name}.log" if isinstance(name, int) else f"{name}.log")
        return path.read_text(errors="replace") if path.exists() else ""

    def error(self) -> WorkerFailed:
        """Return the error of the rank that failed by itself, not of those it made fail."""
        failed = self.failed()
        rank = next((rank for rank in failed if not self._is_echo(rank)), failed[0])
        code, tail = self.codes[rank], _tail(self.log(rank))
        how = f"ended with exit code {code}"
        if code < 0:  # SIGKILL is also how the system takes back memory
            how = f"was ended by {signal.Signals(-code).name}"
        where = f"; log: {self.logs / f'worker_{rank}.log'}" if self.kept else ""
        return WorkerFailed(f"rank {rank} {how}{where}\n{tail}", rank, code, tail)

    def _is_echo(self, rank: int) -> bool:
        """Return whether a rank failed only because another is gone, or was killed with it."""
        if rank == self.failed()[0] and self.codes[rank] < 0:
            return False
        lines = _tail(self.log(rank)).splitlines()
        return self.codes[rank] == -signal.SIGKILL or any(map(_ECHO.search, lines[-3:]))

    def timed_out(self, timeout: float | None) -> WorkersTimedOut:
        """Return the error of ranks that hang, with a stack trace of each."""
        hanging = self._running()
        for rank in hanging:
            with contextlib.suppress(KeyError, OSError):
                os.kill(self.pids[rank], signal.SIGABRT)
        time.sleep(_SETTLE)
        tail = "\n".join(f"rank {rank}:\n{_tail(self.log(rank))}" for rank in hanging)
        ranks = ", ".join(map(str, hanging))
        return WorkersTimedOut(f"not ended after {timeout:g} s: rank {ranks}\n{tail}", tail=tail)

    def end(self) -> None:
        """Kill msrun with its scheduler, and the ranks, each of which leads a session."""
        below = [child.pid for child in self._children()]
        for pid in (self.msrun.pid, *self.started, *below):
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
        self.msrun.wait()


def _show(log: str, place: int, over: bool) -> int:
    """Print the whole lines of a log from ``place`` on; return the place behind them."""
    text = log[place:] if over else log[place : log.rfind("\n") + 1]
    for line in text.splitlines(keepends=True):
        if not _NOISE.match(line):
            print(line, end="", flush=True)
    return place + len(text)


def _tail(log: str) -> str:
    """Return the last lines of a log that say something to its user."""
    return "\n".join([line for line in log.splitlines() if not _NOISE.match(line)][-_LINES:])


def _leads_session(pid: int) -> bool:
    """Return whether a child of msrun is a rank: the scheduler stays in msrun's own session."""
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False
