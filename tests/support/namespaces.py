"""Two network namespaces joined by a virtual cable: two machines inside this one.

They can reach each other and nothing else; addresses and cable exist only inside them.
"""

import os
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager, suppress

import psutil
import pytest

ADDRESSES = ("198.51.100.1", "198.51.100.2")  # of a range reserved for documentation
_PREFIX, _CABLE = "labkit-test", "cable"


class Machines:
    """The two machines, 0 and 1."""

    def __init__(self, names):
        self.names = names

    def start(self, machine, command, **options):
        """Start a command on a machine; return the process, which is the command's own."""
        return subprocess.Popen(["ip", "netns", "exec", self.names[machine], *command], **options)

    def cut(self, machine):
        """Unplug the cable from a machine."""
        _ip("-n", self.names[machine], "link", "set", _CABLE, "down")

    def processes(self):
        """Return the PIDs of all processes on both machines."""
        return [int(pid) for name in self.names for pid in _ip("netns", "pids", name).split()]


@contextmanager
def machines():
    """Yield two ``Machines`` and remove them with all their processes; if impossible, skip."""
    if shutil.which("ip") is None:
        pytest.skip("no network namespaces: ip, of the package iproute2, is not installed")
    if os.geteuid():
        pytest.skip("no network namespaces: to make them takes root")
    names = [f"{_PREFIX}-{os.getpid()}-{machine}" for machine in (0, 1)]
    try:
        try:
            _remove_left_over()
            _join(names)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces: {' '.join(error.cmd)}: {error.stderr.strip()}")
        yield Machines(names)
    finally:
        for name in names:
            _remove(name)


def _join(names):
    for name in names:
        _ip("netns", "add", name)
        _ip("netns", "exec", name, "true")
    end, peer = (("name", _CABLE, "netns", name) for name in names)
    _ip("link", "add", *end, "type", "veth", "peer", *peer)
    for name, address in zip(names, ADDRESSES, strict=True):
        _ip("-n", name, "address", "add", f"{address}/24", "dev", _CABLE)
        for interface in ("lo", _CABLE):
            _ip("-n", name, "link", "set", interface, "up")


def _remove(name):
    """End the processes in a namespace and remove it, if it exists."""
    until = time.monotonic() + 30
    with suppress(subprocess.CalledProcessError):
        while (pids := _ip("netns", "pids", name).split()) and time.monotonic() < until:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.05)
        _ip("netns", "delete", name)


def _remove_left_over():
    """Remove the namespaces of test processes that were killed."""
    for line in _ip("netns", "list").splitlines():
        name = line.split()[0]
        if name.startswith(f"{_PREFIX}-") and not psutil.pid_exists(int(name.split("-")[2])):
            _remove(name)


def _ip(*arguments):
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True)
    return done.stdout
