"""Node 0 as another node sees it, with a server of the tests in place of the scheduler.

tests/recipes/test_two_nodes_on_ranks.py uses the scheduler itself.
"""

import re
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import closing

import pytest

from labkit.ranks import master as masters
from labkit.ranks import processes
from labkit.ranks.master import Master
from tests.support.living import wait_until
from tests.support.namespaces import ADDRESSES, machines
from tests.support.ports import free_port


@pytest.fixture
def port():
    return free_port()


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(masters, "_AGAIN", 0.01)


def looked(master, condition):
    """Call ``look`` until the condition is true."""

    def look():
        master.look()
        return condition()

    wait_until(look, 10)


def connected(master, port):
    """Return the scheduler's side of a connection that ``master`` makes."""
    with socket.create_server(("127.0.0.1", port)) as server:
        server.settimeout(10)
        looked(master, lambda: master._connected)
        return server.accept()[0]


def test_before_the_scheduler_listens_nothing_is_wrong(port):
    with closing(Master("127.0.0.1", port, 30)) as master:
        for _ in range(5):
            master.look()
            time.sleep(0.02)
        assert master.gone() is None
        with connected(master, port) as other:
            master.look()
            assert master.gone() is None
            other.setblocking(False)
            with pytest.raises(BlockingIOError):  # nothing is ever sent
                other.recv(1)


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_an_end_is_noticed_and_stays(port, reset):
    with closing(Master("127.0.0.1", port, 30)) as master:
        with connected(master, port) as other:
            if reset:
                other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        looked(master, master.gone)
        assert master.gone() == f"node 0 at 127.0.0.1:{port} has ended: the call there says why"
        for _ in range(20):  # it is not connected again, and the time since its end grows
            master.look()
            time.sleep(0.02)
        assert master.gone(0.3) == master.gone() and master.gone(10) is None


def test_the_kernel_is_asked_to_notice_silence(port):
    with closing(Master("127.0.0.1", port, 7)) as master, connected(master, port):
        option = master._socket.getsockopt
        assert option(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert option(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 7000
        assert option(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 5


def test_a_client_that_is_connected_with_itself_is_not_connected(port):
    """The kernel may give a client the port that it connects to while nothing listens there."""
    with closing(Master("127.0.0.1", port, 30)) as master:
        master._socket.bind(("127.0.0.1", port))
        master._socket.setblocking(True)
        master._socket.connect(("127.0.0.1", port))
        master._socket.setblocking(False)
        assert master._socket.getsockname() == master._socket.getpeername()
        master.look()
        assert not master._connected and master.gone() is None
        with connected(master, port):
            assert master._socket.getsockname() != master._socket.getpeername()


SERVE = "import socket, sys; s = socket.create_server((sys.argv[1], 8118)); c = s.accept(); input()"
WATCH = """
import sys, time
from labkit.ranks import master as masters
masters._PROBE, masters._AGAIN = 1, 0.1
master = masters.Master(sys.argv[1], 8118, 2)
until = time.monotonic() + 30
while not master.gone() and time.monotonic() < until:
    before = master._connected
    master.look()
    if master._connected > before:
        print("connected", flush=True)
    time.sleep(0.01)
print(master.gone(), flush=True)
"""


@pytest.mark.slow
def test_a_cable_that_is_pulled_is_noticed_and_a_scheduler_that_stands_still_is_no_end():
    with machines() as nodes:
        server, client = [
            nodes.start(
                machine,
                [sys.executable, "-c", code, ADDRESSES[0]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=processes.child_environment(),
            )
            for machine, code in enumerate((SERVE, WATCH))
        ]
        try:
            assert client.stdout.readline() == "connected\n"
            server.send_signal(signal.SIGSTOP)
            time.sleep(4)  # twice the allowed silence
            assert client.poll() is None
            nodes.cut(0)
            began = time.monotonic()
            said = client.stdout.readline()
            assert 1 < time.monotonic() - began < 6
            assert re.fullmatch(rf"node 0 at {ADDRESSES[0]}:8118 cannot be reached \(.+\)\n", said)
        finally:
            for process in (server, client):
                process.kill()
                process.communicate()
