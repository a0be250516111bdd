"""A JupyterLab started as `make lab` starts it, despite user settings that would break it."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
_ADDRESS = re.compile(r"(http://127\.0\.0\.1:(\d+))/lab\S*\?token=(\w+)")


class Server:
    """Context manager that runs `labkit lab` on the copies in ``folder``.

    The first port that it tries is taken. ``user`` is a folder for the user's Jupyter settings:
    JUPYTER_PATH has another "python3" kernel, which does not start, and the server listens to all.
    """

    def __init__(self, folder: Path, user: Path, log: Path):
        self.folder, self.user, self.log = folder, user, log
        self.address = self.token = ""
        self.port = self.taken = 0

    def __enter__(self) -> "Server":
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            self.taken = taken.getsockname()[1]
            _spoil(self.user)
            with self.log.open("wb") as log:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "labkit.tools.cli", "lab", "--folder", str(self.folder)]
                    + ["--no-browser", "--port", str(self.taken)],
                    env=self._environment(),
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            try:
                self.address, port, self.token = self._wait_for_address()
            except BaseException:
                self.process.kill()
                raise
        self.port = int(port)
        return self

    def __exit__(self, *exception: object) -> None:
        kernels = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        finally:
            self.process.kill()
            _, left = psutil.wait_procs(kernels, timeout=15)
            for kernel in left:
                kernel.kill()
        assert not left, f"kernels outlived their server: {left}"

    def ask(self, path: str, method: str = "GET", token: str | None = None):
        """Return the answer of the server's REST interface as a Python object."""
        request = urllib.request.Request(f"{self.address}/api/{path}", method=method)
        request.add_header("Authorization", f"token {self.token if token is None else token}")
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def copies_only(self) -> str:
        """Return what `labkit lab --no-server` prints about the same copies."""
        line = [sys.executable, "-m", "labkit.tools.cli", "lab", "--no-server"]
        return subprocess.run(
            [*line, "--folder", str(self.folder)],
            env=self._environment(),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    def kernel_process(self) -> psutil.Process:
        """Return the process of the only running kernel."""
        (kernel,) = self.ask("kernels")
        children = psutil.Process(self.process.pid).children(recursive=True)
        return next(child for child in children if kernel["id"] in " ".join(child.cmdline()))

    def shut_kernels_down(self) -> None:
        """End all kernels: six notebooks at once would take 6 GB."""
        for session in self.ask("sessions"):
            self.ask(f"sessions/{session['id']}", "DELETE")

    def _environment(self) -> dict[str, str]:
        names = {
            "JUPYTER_CONFIG_DIR": "config",
            "JUPYTER_DATA_DIR": "data",
            "JUPYTER_RUNTIME_DIR": "runtime",
            "JUPYTERLAB_SETTINGS_DIR": "settings",
            "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
            "IPYTHONDIR": "ipython",
        }
        own = {name: str(self.user / folder) for name, folder in names.items()}
        # Variables that a shell may hold after `labkit run`, and a user's own matplotlib setting.
        own |= {"LABKIT_RUN": "/nowhere", "LABKIT_HEADLESS": "1", "MPLBACKEND": "Agg"}
        # In the user's folders alone, the kernel would lose to that of the Python environment.
        own |= {"JUPYTER_PATH": own["JUPYTER_DATA_DIR"]}
        own |= {"PYTHONPATH": str(ROOT), "LABKIT_PRESET": "smoke"}
        return {**os.environ, **own}

    def _wait_for_address(self) -> tuple[str, ...]:
        until = time.monotonic() + 120
        while time.monotonic() < until:
            text = self.log.read_text(encoding="utf-8", errors="replace")
            match = _ADDRESS.search(text)
            # The address is printed up to 0.3 s before the server listens.
            if match and _listens(int(match[2])):
                return match.groups()
            if self.process.poll() is not None:
                break
            time.sleep(0.2)
        raise AssertionError(f"JupyterLab did not start:\n{text[-3000:]}")


def _listens(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


def _spoil(user: Path) -> None:
    kernel = user / "data" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    spec = {"argv": ["/bin/false"], "display_name": "Another", "language": "python"}
    (kernel / "kernel.json").write_text(json.dumps(spec))
    (user / "config").mkdir()
    config = "c.ServerApp.ip = '0.0.0.0'\n"
    (user / "config" / "jupyter_server_config.py").write_text(config)
    # Otherwise JupyterLab removes cells that are out of view from the page, with their outputs.
    settings = user / "settings" / "@jupyterlab" / "notebook-extension"
    settings.mkdir(parents=True)
    (settings / "tracker.jupyterlab-settings").write_text('{"windowingMode": "none"}')
