"""MindSpore's msrun as a child process: its command, and the ranks that it has started."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from labkit.ranks import cluster, processes
from labkit.ranks.master import Master
from labkit.ranks.plan import Plan

# Name of a started process: the number of a rank, SCHEDULER, or "msrun" itself.
Name = int | str
SCHEDULER = "the scheduler"
# msrun prints such a line before each process that it starts, in this order; each is a "python".
_STARTS = re.compile(r"^Start (?:scheduler process|worker process with rank id:(\d+)),", re.M)
_PROGRAM = "python"
_PATIENCE = 5.0  # seconds for ranks that are asked to end
# Intervals at which ranks that wait for each other ask again, when they join and when they leave.
# MindSpore's 3 to 5 s are for thousands: two that add three numbers took 12 to 16 s, now 8 to 10.
_INTERVAL = ("MS_RETRY_INTERVAL_LOWER", "MS_RETRY_INTERVAL_UPPER")
_FAILED = re.compile(r"Worker process (\d+) exit with exception\. Error code: (-?\d+)")


class Job:
    """msrun, the processes it has started on this machine, and node 0 if that is elsewhere.

    Attributes:
        process: msrun.
        pids: name -> pid.
        codes: name -> exit code (-n for signal n, None if it could not be observed) of the
            processes that have ended, in the order in which they ended.
    """

    def __init__(
        self,
        process: subprocess.Popen,
        logs: Path,
        plan: Plan,
        sessions: dict[int, float | None],
        master: Master | None,
    ) -> None:
        self.process, self._master = process, master
        self.pids: dict[Name, int] = {}
        self.codes: dict[Name, int | None] = {}
        self._logs, self._plan, self._sessions = logs, plan, sessions

    def look(self) -> None:
        """Note what has started and what has ended since the last look."""
        if self._plan.ranks[-1] not in self.pids:
            self._find()
        for name in self._ended_since():
            self.codes[name] = self._code(self.pids[name])
        if self._master is not None:
            self._master.look()

    def _ended_since(self) -> list[Name]:
        """Return which processes have ended since the last look, in the order of their ends.

        There may be several: msrun kills the others within a second of the first. Its log, written
        before it does so, says which was the first.
        """
        left = {name: pid for name, pid in self.pids.items() if self.codes.get(name) is None}
        if not any(map(_ended, left.values())):
            return []
        # Check all again: the first may have been checked while alive, just before its end.
        ended = [name for name, pid in left.items() if _ended(pid)]
        if len(ended) > 1 and (first := _FAILED.search(self.log("msrun"))):
            ended.sort(key=lambda name: self.pids[name] != int(first[1]))
        return ended

    def _find(self) -> None:
        names = [int(rank) if rank else SCHEDULER for rank in _STARTS.findall(self.log("msrun"))]
        if len(self.pids) == len(names):
            return
        for name, pid in zip(names[len(self.pids) :], self._started(), strict=False):
            self.pids[name] = pid
            # msrun makes each rank the leader of a session.
            self._sessions[pid] = processes.created(pid)
            # Several nodes may run on one machine: only node 0's scheduler is used.
            if name == SCHEDULER and self._plan.node_rank:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def running(self) -> list[int]:
        """Return the ranks, lowest first, that have not ended."""
        return [rank for rank in self._plan.ranks if rank not in self.codes]

    def failed(self) -> list[Name]:
        """Return which processes have failed, in the order in which they ended."""
        well = all(self.codes.get(rank) == 0 for rank in self._plan.ranks)
        # On one node, ranks that have succeeded no longer need the scheduler. On several, it is the
        # scheduler that learns of a rank that another node has lost.
        scheduler = self._plan.node_rank == 0 and not (well and self._plan.nodes == 1)
        return [
            name
            for name, code in self.codes.items()
            if code and (name in self._plan.ranks or scheduler)
        ]

    def ended_well(self) -> bool:
        """Return whether every rank has ended with 0 and the scheduler is no longer needed."""
        over = self.process.poll() is not None
        if self.failed() or (self._plan.nodes > 1 and self._plan.node_rank == 0 and not over):
            return False
        # If a rank's exit code could not be observed, msrun's own 0 says that it succeeded.
        return (over and self.process.returncode == 0) or all(
            self.codes.get(rank) == 0 for rank in self._plan.ranks
        )

    def without_master(self, seconds: float = 0.0) -> str | None:
        """Return how node 0 was lost, if this is another node and it is gone for ``seconds``."""
        return None if self._master is None else self._master.gone(seconds)

    def show_where(self, seconds: float) -> None:
        """Make the running ranks write a stack trace of each thread, which ends them.

        Python's fault handler does it on SIGABRT, even in C code that waits for other ranks.
        """
        asked = [self.pids[rank] for rank in self.running() if rank in self.pids]
        for pid in asked:
            with contextlib.suppress(psutil.Error, OSError):
                psutil.Process(pid).rlimit(psutil.RLIMIT_CORE, (0, 0))  # no core file of gigabytes
                os.kill(pid, signal.SIGABRT)
        until = time.monotonic() + seconds
        while not all(map(_ended, asked)) and time.monotonic() < until:
            time.sleep(0.05)

    def ask(self) -> None:
        """Ask the ranks that handle SIGTERM to end by themselves, files closed, locks released.

        A rank that waits in a collective does not react to it.
        """
        asked = [self.pids[rank] for rank in self.running() if rank in self.pids]
        asked = [pid for pid in asked if _takes(pid, signal.SIGTERM)]
        # Stop msrun: it kills all ranks within a second of the first one's end.
        self.process.send_signal(signal.SIGSTOP)
        for pid in asked:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGTERM)
        until = time.monotonic() + _PATIENCE
        while not all(map(_ended, asked)) and time.monotonic() < until:
            time.sleep(0.05)

    def path(self, name: Name) -> Path:
        """Return the path of the log of a rank, of ``SCHEDULER`` or of ``msrun``."""
        if name in self._plan.ranks:
            return self._logs / f"worker_{name}.log"
        return (
            self._logs / "scheduler.log" if name == SCHEDULER else own_log(self._logs, self._plan)
        )

    def log(self, name: Name) -> str:
        """Return what a rank, ``SCHEDULER`` or ``msrun`` has written so far."""
        path = self.path(name)
        return path.read_text(errors="replace") if path.exists() else ""

    def _started(self) -> list[int]:
        """Return the pids of programs that msrun has started and not in ``pids``, oldest first."""
        started = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children():
                with contextlib.suppress(psutil.NoSuchProcess):
                    if child.name() == _PROGRAM and child.pid not in self.pids.values():
                        started.append((child.create_time(), child.pid))
        return [pid for _, pid in sorted(started)]

    def _code(self, pid: int) -> int | None:
        """Return an ended process's exit code: its own until msrun collects it, then as logged."""
        with contextlib.suppress(OSError, ValueError):
            status = int(Path(f"/proc/{pid}/stat").read_text().rsplit(maxsplit=1)[-1])
            return os.waitstatus_to_exitcode(status)
        line = _FAILED.search(self.log("msrun"))
        return int(line[2]) if line and int(line[1]) == pid else None


@contextlib.contextmanager
def started(
    plan: Plan, logs: Path, cwd: Path, env: dict[str, str], master: Master | None
) -> Iterator[Job]:
    """Start msrun and yield it as a ``Job``; on leaving, end whatever is left of it."""
    sessions: dict[int, float | None] = {}
    with processes.guarded(sessions) as mark, own_log(logs, plan).open("wb") as log:
        process = subprocess.Popen(
            command(plan, logs),
            cwd=cwd,
            env=env | mark,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        sessions[process.pid] = processes.created(process.pid)
        job = Job(process, logs, plan, sessions, master)
        try:
            yield job
        except (KeyboardInterrupt, SystemExit):
            job.ask()
            raise
        finally:
            process.kill()  # first, or it would log the end of its ranks
            process.wait()


def command(plan: Plan, logs: Path) -> list[str]:
    """Return msrun's command line."""
    parts = [
        *(plan.msrun, "--worker_num", plan.nodes * plan.workers),
        *("--local_worker_num", plan.workers, "--join", "True"),
        *("--master_addr", plan.host, "--master_port", plan.port),
        *("--cluster_time_out", plan.cluster_timeout, "--log_dir", logs),
        # Otherwise msrun follows each log with a "tail -f". There is no rank with this number.
        *("--tail_worker_log", plan.nodes * plan.workers),
        *(("--node_rank", plan.node_rank) if plan.nodes > 1 else ()),
        *(_PROGRAM, *plan.command),
    ]
    return [str(part) for part in parts]


def variables(plan: Plan, name: Name) -> dict[str, str]:
    """Return the variables that msrun itself sets for a rank, or for ``SCHEDULER``."""
    values = {
        "MS_ROLE": "MS_SCHED" if name == SCHEDULER else "MS_WORKER",
        "MS_SCHED_HOST": plan.host,
        "MS_SCHED_PORT": plan.port,
        "MS_WORKER_NUM": plan.nodes * plan.workers,
        "MS_TOPO_TIMEOUT": plan.cluster_timeout,
        "RANK_SIZE": plan.nodes * plan.workers,
        "RANK_ID": 0 if name == SCHEDULER else name,
    }
    if isinstance(name, int):
        values |= {"MS_NODE_ID": name, "DEVICE_ID": name - plan.ranks[0]}
    return {key: str(value) for key, value in values.items()}


def own_variables(plan: Plan, more: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that msrun gets on top of this process's: those it needs, and ``more``.

    PYTHONFAULTHANDLER, PYTHONUNBUFFERED or an interval at which ranks ask again is used as this
    process or ``more`` sets it; PYTHONPATH and PATH are extended. The default interval is 1 s on
    one machine, MindSpore's on several.
    """
    given = os.environ | dict(more)
    own = {
        "PYTHONFAULTHANDLER": "1",
        "PYTHONUNBUFFERED": "1",  # the last lines of a killed rank are in its log
    }
    own = {name: given.get(name, value) for name, value in own.items()}
    own[cluster.RANKS_HERE] = str(plan.workers)
    if plan.nodes == 1 and not any(name in given for name in _INTERVAL):
        own |= dict.fromkeys(_INTERVAL, "1")
    # In a notebook labkit.start hides MindSpore's errors, because every cell causes false ones.
    if "ipykernel" in sys.modules and os.environ.get("GLOG_v") == "4":
        own["GLOG_v"] = "3"
    own |= more
    own["PYTHONPATH"] = processes.python_path(given.get("PYTHONPATH"))
    if plan.command[0] == "-m" and plan.command[1].partition(".")[0] == "labkit":
        # Import nothing from the working folder; a user's own module, however, may be there.
        own["PYTHONSAFEPATH"] = "1"
    # msrun starts "python": that of this interpreter's environment must come first.
    programs = str(Path(sys.executable).parent)
    own["PATH"] = os.pathsep.join([programs, given.get("PATH", os.defpath)])
    return own


def _takes(pid: int, number: int) -> bool:
    """Return whether a process has its own handler for a signal."""
    try:
        caught = re.search(r"^SigCgt:\t(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.M)
    except OSError:
        return False
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


def _ended(pid: int) -> bool:
    # Read directly, not by psutil: 50 times a second this takes 1.4 % of a core instead of 2.1.
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


def own_log(logs: Path, plan: Plan) -> Path:
    """Return the path of msrun's own output, one per node: nodes may share a network disk."""
    return logs / (f"msrun_{plan.node_rank}.log" if plan.nodes > 1 else "msrun.log")
