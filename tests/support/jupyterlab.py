"""JupyterLab as `make lab` starts it, and what a person does and sees there in a browser."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.support.living import wait_until

ROOT = Path(__file__).resolve().parents[2]
_CHROMIUM = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_ADDRESS = re.compile(r"(http://127\.0\.0\.1:(\d+))/lab\S*\?token=(\w+)")
_STATE = """() => {
  const prompts = [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')];
  const dialog = document.querySelector('.jp-Dialog');
  const kernel = document.querySelector('.jp-Notebook-ExecutionIndicator');
  return {
    running: prompts.filter(box => box.textContent.includes('*')).length,
    run: prompts.filter(box => /\\d/.test(box.textContent)).length,
    kernel: (document.querySelector('.jp-Toolbar-kernelName') || {}).textContent || 'No Kernel',
    status: kernel ? kernel.getAttribute('data-status') : '',
    dialog: dialog ? dialog.textContent : '',
  };
}"""
_OUTPUTS = """() => [...document.querySelectorAll('.jp-OutputArea-output')]
    .filter(box => /(error|stderr)$/.test(box.getAttribute('data-mime-type')))
    .map(box => box.textContent)"""


@contextmanager
def chromium():
    """Yield a headless browser of Playwright; if there is none, skip the test and say why."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    path = next(filter(None, map(shutil.which, _CHROMIUM)), None)
    if path is None:
        pytest.skip("no Chromium here: on Debian and Ubuntu, `apt-get install chromium`")
    # root cannot use the sandbox; a container has little /dev/shm
    arguments = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


class Server:
    """Context manager that runs `labkit lab` on the copies in ``folder``.

    The first port that it tries is taken. ``home`` is the user's: JUPYTER_PATH has another
    "python3" kernel, which does not start, and by their settings the server listens to all.
    """

    def __init__(self, folder: Path, home: Path, log: Path):
        self.folder, self.home, self.log = folder, home, log

    def __enter__(self) -> "Server":
        _spoil(self.home)
        # In the user's folders alone, the kernel would lose to that of the Python environment.
        own = {"HOME": str(self.home), "JUPYTER_PATH": str(self.home / "jupyter")}
        # Variables that a shell may hold after `labkit run`, and a user's own matplotlib setting.
        own |= {"LABKIT_RUN": "/nowhere", "LABKIT_HEADLESS": "1", "MPLBACKEND": "Agg"}
        own |= {"PYTHONPATH": str(ROOT), "LABKIT_PRESET": "smoke"}
        command = [sys.executable, "-m", "labkit.tools.cli", "lab", "--folder", str(self.folder)]
        with socket.create_server(("127.0.0.1", 0)) as taken, self.log.open("wb") as log:
            self.taken = taken.getsockname()[1]
            self.process = psutil.Popen(
                [*command, "--no-browser", "--port", str(self.taken)], env=os.environ | own,
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
            try:
                wait_until(self._listens, 120)
            except BaseException:
                self.process.kill()
                raise
        return self

    def _listens(self) -> bool:
        match = _ADDRESS.search(self.log.read_text(encoding="utf-8", errors="replace"))
        if match is None:
            return False
        self.address, self.port, self.token = match[1], int(match[2]), match[3]
        with socket.socket() as asking:  # the address is printed up to 0.3 s before
            return asking.connect_ex(("127.0.0.1", self.port)) == 0

    def __exit__(self, *exception: object) -> None:
        processes = [self.process, *self.process.children(recursive=True)]
        self.process.terminate()
        _, left = psutil.wait_procs(processes, timeout=30)
        for process in left:
            process.kill()
        assert not left, f"the server or its kernels did not end: {left}"

    def ask(self, path: str, method: str = "GET", token: str | None = None):
        """Return the answer of the server's REST interface as a Python object."""
        request = urllib.request.Request(f"{self.address}/api/{path}", method=method)
        request.add_header("Authorization", f"token {self.token if token is None else token}")
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None


def _spoil(home: Path) -> None:
    spec = {"argv": ["/bin/false"], "display_name": "Another", "language": "python"}
    settings = ".jupyter/lab/user-settings/@jupyterlab/notebook-extension"
    for name, text in {
        "jupyter/kernels/python3/kernel.json": json.dumps(spec),
        ".jupyter/jupyter_server_config.py": "c.ServerApp.ip = '0.0.0.0'\n",
        # Otherwise JupyterLab removes cells that are out of view from the page, with their outputs.
        f"{settings}/tracker.jupyterlab-settings": '{"windowingMode": "none"}',
    }.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)


class LabPage:
    """One browser page on one server's JupyterLab."""

    def __init__(self, page):
        self.page, self.complaints = page, []
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def open(self, server: Server, name: str) -> None:
        """Open the copy of a notebook, and wait for its kernel."""
        path = (server.folder / f"{name}.ipynb").relative_to(ROOT).as_posix()
        self.page.goto(f"{server.address}/lab/tree/{path}?reset&token={server.token}")
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=90_000)
        wait_until(self._is_idle, 90)

    def run_all(self, seconds: float) -> None:
        """Choose Run All Cells in the menu, and wait until every code cell has a number."""
        self.page.locator(".lm-MenuBar-item", has_text="Run").first.click()
        self.page.locator(".lm-Menu-itemLabel").get_by_text("Run All Cells", exact=True).click()
        self.page.wait_for_timeout(500)  # until the prompts have turned to stars
        wait_until(self._is_idle, seconds)
        cells = self.page.locator(".jp-CodeCell").count()
        assert self.page.evaluate(_STATE)["run"] == cells, self.noise()

    def _is_idle(self) -> bool:
        """Return whether the page's kernel is idle; fail if a dialog comes up."""
        self.page.wait_for_timeout(500)
        state = self.page.evaluate(_STATE)
        assert not state["dialog"], state["dialog"]
        connected = state["kernel"] != "No Kernel"
        return connected and state["running"] == 0 and state["status"] == "idle"

    def noise(self) -> list[str]:
        """Return the text of every error and of every output on stderr."""
        return self.page.evaluate(_OUTPUTS)
