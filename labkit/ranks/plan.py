"""What ``labkit.launch`` was asked for, checked before anything is started."""

import math
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path

from labkit.errors import InputError

_PORTS = range(1024, 65536)  # those that msrun takes
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Plan:
    """The checked request; ``workers`` are those of this node, ``command`` is behind ``python``."""

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
    script,
    args: Sequence,
    *,
    workers,
    timeout,
    cluster_timeout,
    nodes,
    node_rank,
    master,
    cwd,
    port,
) -> Plan:
    """Return the request of ``launch`` as a ``Plan``; ``InputError`` for what cannot be run.

    port  of the loopback address, for ranks of this machine alone
    """
    _whole("workers", workers)
    _whole("nodes", nodes)
    _whole("node_rank", node_rank, low=0)
    _whole("cluster_timeout", cluster_timeout)
    if node_rank >= nodes:
        raise InputError(f"node_rank is {node_rank}; expected 0 to {nodes - 1} with nodes={nodes}")
    if timeout is not None and (
        isinstance(timeout, bool) or not isinstance(timeout, Real) or not 0 < timeout < math.inf
    ):
        raise InputError(f"timeout is {timeout!r}; expected seconds > 0, or None for no limit")
    command = _command(script, args, cwd)
    msrun = _beside_python("msrun")
    _beside_python("python")  # msrun looks it up
    if master is None:
        if nodes > 1:
            raise InputError(f"nodes is {nodes} and master is None; expected HOST:PORT of node 0")
        host = _LOOPBACK
    else:
        host, port = _address(master)
        if node_rank == 0:
            _refuse_taken(host, port)
    seconds = math.inf if timeout is None else float(timeout)
    return Plan(msrun, command, workers, nodes, node_rank, host, port, seconds, cluster_timeout)


@contextmanager
def held_port() -> Iterator[int]:
    """Give a free port of the loopback address, which nobody else is given until the end.

    The port is bound and not listened on: a server that sets SO_REUSEADDR, as MindSpore's scheduler
    does, can take it, and the kernel gives it to no other process that asks for any free port. The
    scheduler binds it seconds after it was chosen.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((_LOOPBACK, 0))
        yield holder.getsockname()[1]


def free_port() -> int:
    """Return a port of the loopback address that nothing listens on at this moment."""
    with held_port() as port:
        return port


def folder(name: str, given: str | os.PathLike, exists: bool = False) -> Path:
    """Return ``given`` as an absolute path; ``InputError`` unless it is, or can be, a folder."""
    if not isinstance(given, str | os.PathLike):
        raise InputError(f"{name} is {given!r}; expected a folder")
    path = Path(given).absolute()
    if path.exists() and not path.is_dir():
        raise InputError(f"{name} {path} is not a folder")
    if exists and not path.exists():
        raise InputError(f"{name} {path} is not there; expected a folder")
    return path


def _command(script, args, cwd):
    """The command line behind ``python``: a script's absolute path or -m, then the arguments."""
    for number, part in enumerate((script, *args)):
        if isinstance(part, bool) or not isinstance(part, str | os.PathLike | Real):
            name = f"argument {number}" if number else "script"
            raise InputError(f"{name} is {part!r}; expected a text, a path or a number")
    args = tuple(map(str, args))
    if script == "-m":
        if not args:
            raise InputError("-m came without the name of a module")
        return (script, *args)
    path = cwd / str(script)
    if not path.is_file():
        raise InputError(f"there is no script {path}; expected a Python file, or -m and a module")
    return (str(path), *args)


def _beside_python(name):
    path = Path(sys.executable).parent / name
    if not path.is_file():
        raise InputError(
            f"{name} is not beside {sys.executable}; expected an environment that MindSpore was "
            "installed into. `labkit doctor` says more"
        )
    return path


def _address(master):
    """(host, port) of HOST:PORT; an IPv6 host stands in brackets."""
    expected = "expected HOST:PORT such as 10.0.0.1:8118"
    host, colon, port = master.rpartition(":") if isinstance(master, str) else ("", "", "")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not bare or (bare == host and ":" in host):
        raise InputError(f"master is {master!r}; {expected}")
    if not (port.isascii() and port.isdigit()) or int(port) not in _PORTS:
        raise InputError(f"master is {master!r}; expected a port from 1024 to 65535")
    try:
        socket.getaddrinfo(bare, int(port), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise InputError(f"master is {master!r}, and {bare} has no address ({error})") from None
    return bare, int(port)


def _refuse_taken(host, port):
    """Node 0 is where the ranks meet: the address must be of this machine, and the port free."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family) as probe:
        # As the scheduler does: what is left of a connection that was closed is no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            raise InputError(
                f"master {host}:{port} cannot be used here ({error.strerror}); expected a free "
                "port at an address of this machine, which is node 0"
            ) from None


def _whole(name, value, low=1):
    if isinstance(value, bool) or not isinstance(value, Integral) or value < low:
        raise InputError(f"{name} is {value!r}; expected a whole number >= {low}")
