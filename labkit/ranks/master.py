"""Node 0 as seen from another node: whether MindSpore's scheduler is there and can be reached.

The scheduler, on node 0, gives up on a rank that it has not heard from for 30 s. On another node
only the ranks notice that the scheduler is gone, and MindSpore ends them by SIGTERM: 25 s after it
was killed, 37 to 42 s after the link was cut. A rank that handles SIGTERM as an exception, as the
recipes do, receives it only when it is back in Python: one that was in a function written in C
still ran 150 s after the cut. So the calling process keeps its own connection, on which nothing is
ever sent: the kernel of each side answers for it, however busy the processes are.
"""

import errno
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager

from labkit.base.arguments import wrong
from labkit.ranks.plan import Plan

_SILENCE = "MS_NODE_TIMEOUT"  # seconds, MindSpore's own
_AGAIN = 1.0  # seconds between attempts to connect: the scheduler listens after some seconds
_PROBE = 5  # seconds between the kernel's own checks that the other side answers
_UNDER_WAY = (errno.EINPROGRESS, errno.EALREADY)


class Master:
    """A silent connection to the scheduler."""

    def __init__(self, host: str, port: int, silence: int) -> None:
        """Prepare a connection to the scheduler.

        Args:
            host: name or address of node 0.
            port: port that the scheduler listens on.
            silence: seconds without an answer after which the scheduler counts as gone.
        """
        self._name, self._silence = f"node 0 at {host}:{port}", silence
        first = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self._family, self._address = first[0], first[4]
        self._connected, self._next = False, 0.0
        self._gone: str | None = None
        self._since = 0.0
        self._socket = self._made()

    def look(self) -> None:
        """Note whether the scheduler is there, without waiting."""
        if self._connected:
            self._listen()
        elif self._gone is None and time.monotonic() >= self._next:
            self._next = time.monotonic() + _AGAIN
            self._connect()

    def gone(self, seconds: float = 0.0) -> str | None:
        """Return how a connected scheduler was lost, as a sentence without its full stop.

        Args:
            seconds: how long it must have been gone. The result is None until then, and while the
                scheduler is there or has not been connected yet.
        """
        return self._gone if time.monotonic() - self._since >= seconds else None

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _made(self) -> socket.socket:
        made = socket.socket(self._family)
        made.setblocking(False)
        for option in (socket.SO_KEEPALIVE, socket.SO_REUSEADDR):
            made.setsockopt(socket.SOL_SOCKET, option, 1)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * self._silence)
        return made

    def _connect(self) -> None:
        """Begin to connect, or check an attempt that has begun."""
        error = self._socket.connect_ex(self._address)
        # On one machine the kernel may give a client the very port that it connects to, while
        # nobody listens there yet: a connection to itself. SO_REUSEADDR lets the scheduler bind it.
        itself = self._socket.getsockname() == self._address
        self._connected = error in (0, errno.EISCONN) and not itself
        if not self._connected and error not in _UNDER_WAY:
            self._socket.close()
            self._socket = self._made()

    def _listen(self) -> None:
        what = "has ended: the call there says why"
        try:
            if self._socket.recv(4096):
                return
        except BlockingIOError:
            return
        except ConnectionResetError:
            pass
        except OSError as error:
            what = f"cannot be reached ({error.strerror})"
        self._gone, self._since = f"{self._name} {what}", time.monotonic()
        self._connected = False


@contextmanager
def watched(plan: Plan, variables: Mapping[str, str]) -> Iterator[Master | None]:
    """Yield the connection of the plan's node to node 0, or None if it is node 0 itself.

    Raises:
        InputError: on another node, if the variables have an MS_NODE_TIMEOUT that is not a
            positive integer (seconds).
    """
    if plan.node_rank == 0:
        yield None
        return
    text = variables.get(_SILENCE, "30")
    if not (text.isascii() and text.isdigit() and int(text)):
        raise wrong(_SILENCE, text, "seconds")
    with closing(Master(plan.host, plan.port, int(text))) as master:
        yield master
