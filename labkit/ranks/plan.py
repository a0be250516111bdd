"""The request to ``labkit.launch``, checked before anything is started."""

import math
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from pathlib import Path

from labkit.base import arguments
from labkit.base.arguments import integer, number, wrong
from labkit.errors import InputError

_PORTS = range(1024, 65536)  # those that msrun accepts
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Plan:
    """The checked request; ``workers`` is per node, ``command`` is what follows ``python``."""

    msrun: Path
    command: tuple[str, ...]
    workers: int
    nodes: int
    node_rank: int
    host: str
    port: int
    timeout: float
    cluster_timeout: int

    @property
    def ranks(self) -> range:
        """The numbers of this node's ranks."""
        return range(self.node_rank * self.workers, (self.node_rank + 1) * self.workers)


def plan(
    script: str | os.PathLike,
    args: Sequence[str | os.PathLike | float],
    *,
    workers: int,
    timeout: float | None,
    cluster_timeout: int,
    nodes: int,
    node_rank: int,
    master: str | None,
    cwd: Path,
    port: int,
) -> Plan:
    """Return the request of ``launch`` as a ``Plan``; raise ``InputError`` if it cannot be run.

    ``port`` is a port of the loopback address, used if ``master`` is None.
    """
    workers, nodes = integer("workers", workers), integer("nodes", nodes)
    node_rank = integer("node_rank", node_rank, 0, nodes - 1)
    cluster_timeout = integer("cluster_timeout", cluster_timeout)
    seconds = math.inf if timeout is None else number("timeout", timeout, above=0)
    command = _command(script, args, cwd)
    msrun = _beside_python("msrun")
    _beside_python("python")  # msrun looks it up
    if master is None:
        if nodes > 1:
            raise wrong("master", master, f"HOST:PORT of node 0 with nodes={nodes}")
        host = _LOOPBACK
    else:
        host, port = _address(master)
        if node_rank == 0:
            _refuse_taken(host, port)
    return Plan(msrun, command, workers, nodes, node_rank, host, port, seconds, cluster_timeout)


@contextmanager
def held_port() -> Iterator[int]:
    """Yield a free port of the loopback address, reserved until the end of the block.

    The port is bound but not listened on: a server that sets SO_REUSEADDR, as MindSpore's scheduler
    does, can take it, but the kernel gives it to no other process that asks for any free port. The
    scheduler binds it seconds after it was chosen.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((_LOOPBACK, 0))
        yield holder.getsockname()[1]


def folder(name: str, path: str | os.PathLike, exists: bool = False) -> Path:
    """Return ``path`` made absolute; raise ``InputError`` unless it is or can become a folder."""
    path = arguments.path(name, path, "a folder").absolute()
    if path.exists() and not path.is_dir():
        raise InputError(f"{name}: expected a folder, got {path}, which is a file")
    if exists and not path.exists():
        raise InputError(f"{name}: expected a folder, got {path}, which is not there")
    return path


def _command(script: object, args: Sequence[object], cwd: Path) -> tuple[str, ...]:
    """Return the command line after ``python``: a script's absolute path or -m, then arguments."""
    for position, part in enumerate((script, *args)):
        if isinstance(part, bool) or not isinstance(part, str | os.PathLike | Real):
            name = f"argument {position}" if position else "script"
            raise wrong(name, part, "a text, a path or a number")
    texts = tuple(map(str, args))
    if script == "-m":
        if not texts:
            raise InputError("-m: expected the name of a module as the first argument")
        return ("-m", *texts)
    path = cwd / str(script)
    if not path.is_file():
        raise InputError(f"there is no script {path}; expected a Python file, or -m and a module")
    return (str(path), *texts)


def _beside_python(name: str) -> Path:
    path = Path(sys.executable).parent / name
    if not path.is_file():
        raise InputError(
            f"{name} is not beside {sys.executable}; expected an environment that MindSpore was "
            "installed into. `labkit doctor` says more"
        )
    return path


def _address(master: object) -> tuple[str, int]:
    """Return (host, port) of HOST:PORT; an IPv6 host is written in brackets."""
    host, colon, port = master.rpartition(":") if isinstance(master, str) else ("", "", "")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not bare or (bare == host and ":" in host):
        raise wrong("master", master, "HOST:PORT such as 10.0.0.1:8118")
    if not (port.isascii() and port.isdigit()) or int(port) not in _PORTS:
        raise wrong("master", master, "a port from 1024 to 65535")
    try:
        socket.getaddrinfo(bare, int(port), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise InputError(f"master is {master!r}, and {bare} has no address ({error})") from None
    return bare, int(port)


def _refuse_taken(host: str, port: int) -> None:
    """Raise ``InputError`` unless node 0's address is of this machine and its port is free."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family) as probe:
        # As the scheduler does: the remains of a closed connection do not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            raise InputError(
                f"master {host}:{port} cannot be used here ({error.strerror}); expected a free "
                "port at an address of this machine, which is node 0"
            ) from None
