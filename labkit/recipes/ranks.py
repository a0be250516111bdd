"""Start the ranks of a recipe's command: the options for it, and the start itself.

On every device MindSpore's msrun starts the ranks, through ``labkit.launch``, which reports at once
what failed and where. The tutorials' ways work as well: on Ascend the ranks get a rank table, which
also sets their number; on GPU OpenMPI's mpirun can start them. On any other device the same command
starts as many ranks with msrun and prints a line that says so.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit import runtime
from labkit.base.arguments import integer, wrong
from labkit.base.files import make_folder
from labkit.errors import InputError, WorkerFailed
from labkit.ranks import rank_table
from labkit.ranks.launch import launch, plan, python_path

_FOLLOW = 0.2  # seconds between two reads of the first rank's log
_PORT = 8118  # on a rank table's first server: msrun's default
_NOISE = re.compile(rb"\[(DEBUG|INFO|WARNING)\] [A-Z_]+\(")  # MindSpore's log
_TOGETHER = 60  # seconds for the ranks of one machine to find each other
_NODES = 600  # the same on several machines, each of which is started by hand


@dataclass(frozen=True)
class Start:
    """The ranks to start on this machine; each of ``nodes`` machines starts as many.

    Attributes:
        command: command of each rank, after ``python -m``.
        ranks: number of ranks on this machine.
        nodes: number of machines.
        node_rank: number of this machine, from 0.
        master: ``HOST:PORT`` of the first machine, or None.
        logs: folder for the ranks' logs.
        by_mpirun: whether mpirun starts the ranks, not msrun.
        variables: environment variables of each rank, in addition to those of this process.
        why: explanation of what a user may not expect, or "".
    """

    command: tuple[str, ...]
    ranks: int
    nodes: int
    node_rank: int
    master: str | None
    logs: Path
    by_mpirun: bool = False
    variables: dict[str, str] = field(default_factory=dict)
    why: str = ""

    def options(self) -> dict[str, Any]:
        """Return the arguments for ``launch`` and ``plan``."""
        return {
            "workers": self.ranks,
            "cluster_timeout": _TOGETHER if self.nodes == 1 else _NODES,
            "nodes": self.nodes,
            "node_rank": self.node_rank,
            "master": self.master,
            "env": self.variables,
        }


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how many ranks are started, and where."""
    group = parser.add_argument_group("several ranks")
    add = group.add_argument
    add("--ranks", type=int, metavar="N", help="start N ranks on this machine, one device each")
    add("--nodes", type=int, metavar="N", help="machines; call the command on each (1)")
    add("--node_rank", type=int, metavar="K", help="which of them this is, from 0 on (0)")
    add("--master", metavar="HOST:PORT", help="of machine 0, the same on all")
    words = "Ascend's rank table: gives the ranks of machine K, and is handed to them"
    add("--rank_table", metavar="FILE", help=words)
    add("--mpirun", action="store_true", help="start them by OpenMPI's mpirun, on GPU")
    add("--log_dir", metavar="FOLDER", help="of the ranks' logs (the run folder's name with -log)")
    words = "print the commands, their environment and the steps of an epoch; start nothing"
    add("--dry-run", action="store_true", help=words)


def without_options(arguments: Sequence[str]) -> list[str]:
    """Return the arguments without those of ``add_options``: each rank is called with them."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_options(parser)
    return parser.parse_known_args(list(arguments))[1]


def asked(options: argparse.Namespace) -> bool:
    """Return whether the options ask for ranks to be started."""
    names = ("ranks", "nodes", "node_rank", "master", "rank_table", "log_dir")
    return options.mpirun or any(getattr(options, name) is not None for name in names)


def prepare(options: argparse.Namespace, command: Sequence[str], run_folder: str) -> Start:
    """Return the start that the options ask for.

    Args:
        options: the parsed options.
        command: command of each rank: the module and its arguments.
        run_folder: the run folder, after which the folder of logs is named by default.

    Raises:
        InputError: if options exclude each other, or the rank table does not fit.
    """
    if options.run_distribute or options.device_num is not None:
        raise InputError(
            "--run_distribute and --device_num are for a command that msrun starts; expected "
            "neither with --ranks, --nodes or --rank_table, which start the ranks"
        )
    nodes = 1 if options.nodes is None else options.nodes
    node_rank, ranks = options.node_rank or 0, options.ranks
    auto = options.device_target == "auto"
    device = runtime.available_devices()[0] if auto else options.device_target
    variables, why, master = {}, "", options.master
    if options.rank_table is not None:
        table = rank_table.read(options.rank_table)
        nodes = len(table["server_list"])
        ranks = _ranks_of(table, node_rank, options)
        if nodes > 1 and master is None:
            master = f"{table['server_list'][0]['server_id']}:{_PORT}"
        if device == "Ascend":
            variables["RANK_TABLE_FILE"] = str(Path(options.rank_table).absolute())
        else:
            why = f"a rank table is Ascend's: on {device} it says the number of ranks alone"
    if ranks is None:
        raise InputError("expected --ranks N, the ranks of this machine, or --rank_table FILE")
    for name, count in (("ranks", ranks), ("nodes", nodes)):
        integer(name, count)
    integer("node_rank", node_rank, 0, nodes - 1)
    by_mpirun = options.mpirun and device == "GPU"
    if by_mpirun and nodes > 1:
        raise InputError("--mpirun starts the ranks of one machine; expected no --nodes with it")
    if options.mpirun and not by_mpirun:
        why = f"MindSpore takes mpirun on GPU alone, and this is {device}"
    return Start(
        command=(*command, "--run_distribute", "True", "--device_num", str(ranks * nodes)),
        ranks=ranks,
        nodes=nodes,
        node_rank=node_rank,
        master=master,
        logs=Path(options.log_dir or f"{run_folder.rstrip('/')}-log"),
        by_mpirun=by_mpirun,
        variables=variables,
        why=why,
    )


def _ranks_of(table: dict, node_rank: int, options: argparse.Namespace) -> int:
    """Return the number of ranks on one server of a table; msrun numbers them consecutively."""
    servers = table["server_list"]
    integer("node_rank", node_rank, 0, len(servers) - 1)
    counts = {len(server["device"]) for server in servers}
    if len(counts) > 1:
        raise InputError(f"the servers have {sorted(counts)} devices; expected as many on each")
    ranks = counts.pop()
    for name, value in {"ranks": ranks, "nodes": len(servers)}.items():
        if (given := getattr(options, name)) not in (None, value):
            raise wrong(f"--{name}", given, f"{value}, as in the rank table")
    first = node_rank * ranks
    for place, device in enumerate(servers[node_rank]["device"]):
        held, expected = (device["device_id"], device["rank_id"]), (str(place), str(first + place))
        if held != expected:
            raise InputError(
                f"server {node_rank} of the rank table has device {held[0]} as rank {held[1]}; "
                f"expected device {expected[0]} as rank {expected[1]}: msrun numbers both through"
            )
    return ranks


def run(start: Start, say: str) -> int:
    """Start the ranks, show the first one's output, wait until all have ended; return 0, 1 or 2.

    Args:
        start: the ranks to start.
        say: name at the beginning of an error message.
    """
    ranks = "1 rank" if start.ranks == 1 else f"{start.ranks} ranks"
    machines = f" on each of {start.nodes} machines" if start.nodes > 1 else ""
    by = "mpirun" if start.by_mpirun else "msrun"
    why = f" ({start.why})" if start.why else ""
    print(f"labkit: {ranks}{machines} by {by}, logs in {start.logs}{why}", flush=True)
    try:
        if start.by_mpirun:
            _by_mpirun(start)
        else:
            with _shown(start.logs / f"worker_{start.node_rank * start.ranks}.log"):
                launch("-m", *start.command, timeout=None, log_dir=start.logs, **start.options())
    except WorkerFailed as error:
        print(f"{say}: {error}", file=sys.stderr)
        return 2 if error.exit_code == 2 else 1
    return 0


def _mpirun(start: Start) -> list[str]:
    program = shutil.which("mpirun")
    if program is None:
        raise InputError("mpirun is not on the PATH; expected OpenMPI, or no --mpirun")
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [program, *root, "-n", str(start.ranks), sys.executable, "-m", *start.command]


def _by_mpirun(start: Start) -> None:
    """Start the ranks with mpirun, which ends all if one fails and returns its exit code."""
    command, log = _mpirun(start), start.logs / "mpirun.log"
    make_folder(start.logs)
    own = {"PYTHONPATH": python_path(os.environ.get("PYTHONPATH"))} | start.variables
    with _shown(log), log.open("wb") as output:
        code = subprocess.run(
            command,
            env=os.environ | own,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        ).returncode
    if code:
        raise WorkerFailed(f"mpirun ended with exit code {code}; its log is {log}", exit_code=code)


@contextlib.contextmanager
def _shown(path: Path) -> Iterator[None]:
    """Print what is written to a file while the body runs."""
    with contextlib.suppress(OSError):  # if there can be no log, the start reports it
        path.unlink()
    over = threading.Event()

    def follow() -> None:
        place, last = 0, False
        while not last:
            last = over.wait(_FOLLOW)
            with contextlib.suppress(OSError), path.open("rb") as file:
                file.seek(place)
                lines = file.readlines()
                if lines and not lines[-1].endswith(b"\n") and not last:
                    del lines[-1]
                place += sum(map(len, lines))
                shown = b"".join(line for line in lines if not _NOISE.match(line))
                print(shown.decode(errors="replace"), end="", flush=True)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def show(start: Start | Sequence[str]) -> None:
    """Print the command and its variables in shell syntax; start nothing.

    Args:
        start: the ranks, or the command of a single process after ``python -m``.
    """
    variables: dict[str, str] = {}
    if not isinstance(start, Start):
        who, command = "one process", ["python", "-m", *start]
    elif start.by_mpirun:
        who, command, variables = "mpirun", _mpirun(start), start.variables
    else:
        made = plan(("-m", *start.command), start.logs, **start.options())
        ranks = f"ranks {made.ranks[0]} to {made.ranks[-1]}"
        who, command, variables = f"msrun starts {ranks}", made.command, made.variables
    given = [f"{key}={shlex.quote(value)}" for key, value in variables.items()]
    print(f"# {who}\n{' '.join([*given, shlex.join(command)])}", flush=True)
