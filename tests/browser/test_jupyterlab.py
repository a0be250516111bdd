"""A notebook in JupyterLab as a person uses it: `make lab`, a browser, Run All Cells."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import nbformat
import psutil
import pytest

from tests.support.living import wait_until

ROOT = Path(__file__).resolve().parents[2]
_CHROMIUM = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_ADDRESS = re.compile(r"(http://127\.0\.0\.1:(\d+))/lab\S*\?token=(\w+)")
_IDLE = """() => {
  const dialog = document.querySelector('.jp-Dialog');
  if (dialog) throw new Error(dialog.textContent);
  const name = document.querySelector('.jp-Toolbar-kernelName');
  const kernel = document.querySelector('.jp-Notebook-ExecutionIndicator');
  const prompts = [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')];
  return name && name.textContent !== 'No Kernel' && kernel.dataset.status === 'idle'
    && !prompts.some(box => box.textContent.includes('*'));
}"""
_NOISE = """() => [...document.querySelectorAll('.jp-OutputArea-output')]
    .filter(box => /(error|stderr)$/.test(box.getAttribute('data-mime-type')))
    .map(box => box.textContent)"""
_PICTURES = """() => [...document.querySelectorAll('.jp-OutputArea-output img')].map(box => [
    box.naturalWidth, box.getBoundingClientRect().right,
    box.closest('.jp-OutputArea-output').getBoundingClientRect().right,
  ])"""
_SETTINGS = ".jupyter/lab/user-settings/@jupyterlab/notebook-extension"
# A user's settings: another "python3" kernel, which does not start, and a server for all to reach.
_HOME = {
    "jupyter/kernels/python3/kernel.json": json.dumps(
        {"argv": ["/bin/false"], "display_name": "Another", "language": "python"}
    ),
    ".jupyter/jupyter_server_config.py": "c.ServerApp.ip = '0.0.0.0'\n",
    # Otherwise JupyterLab removes cells that are out of view from the page, with their outputs.
    f"{_SETTINGS}/tracker.jupyterlab-settings": '{"windowingMode": "none"}',
}
# Variables that a shell may hold after `labkit run`, and a user's own matplotlib setting.
_LEFT = {"LABKIT_RUN": "/nowhere", "LABKIT_HEADLESS": "1", "MPLBACKEND": "Agg"}


class Server:
    """`labkit lab` on copies of the notebooks inside the project, where they find its data sets.

    The first port that it tries is taken.
    """

    def __init__(self, home: Path):
        kept = ROOT / "runs" / "browser" / time.strftime("%Y%m%d-%H%M%S")
        kept.mkdir(parents=True)
        self.folder, self.log = kept / "work", kept / "server.log"
        # In the user's folders alone, the kernel would lose to that of the Python environment.
        own = {"HOME": str(home), "JUPYTER_PATH": str(home / "jupyter")}
        own |= _LEFT | {"PYTHONPATH": str(ROOT), "LABKIT_PRESET": "smoke"}
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

    def _listens(self) -> bool:
        match = _ADDRESS.search(self.log.read_text(encoding="utf-8", errors="replace"))
        if match is None:
            return False
        self.address, self.port, self.token = match[1], int(match[2]), match[3]
        with socket.socket() as asking:  # the address is printed up to 0.3 s before
            return asking.connect_ex(("127.0.0.1", self.port)) == 0

    def end(self) -> None:
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


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    for name, text in _HOME.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    server = Server(home)
    yield server
    server.end()


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


def run_all(page, server, name, seconds):
    """Open the copy of a notebook, choose Run All Cells, and wait until every cell has a number."""
    path = (server.folder / f"{name}.ipynb").relative_to(ROOT).as_posix()
    page.goto(f"{server.address}/lab/tree/{path}?reset&token={server.token}")
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=90_000)
    page.wait_for_function(_IDLE, timeout=90_000, polling=500)
    page.locator(".lm-MenuBar-item", has_text="Run").first.click()
    page.locator(".lm-Menu-itemLabel").get_by_text("Run All Cells", exact=True).click()
    page.wait_for_timeout(1000)  # until the prompts have turned to stars
    page.wait_for_function(_IDLE, timeout=1000 * seconds, polling=500)
    numbered = page.locator(".jp-CodeCell .jp-InputPrompt", has_text=re.compile(r"\d"))
    assert numbered.count() == page.locator(".jp-CodeCell").count()


def test_it_is_for_this_machine_behind_a_token_on_this_interpreter(server):
    """A user's own kernel "python3" does not come first."""
    assert server.port != server.taken
    with pytest.raises(urllib.error.HTTPError, match="403"):
        server.ask("kernels", token="")
    kernel = server.ask("kernels", "POST")
    lines = [process.cmdline() for process in server.process.children(recursive=True)]
    assert [line[0] for line in lines if kernel["id"] in " ".join(line)] == [sys.executable]
    server.ask(f"kernels/{kernel['id']}", "DELETE")
    assert "0.0.0.0" not in server.log.read_text()


# Of notebook 01: a training with its bar and its figure, a figure with sliders, what they need.
_SHORT = (
    *("preset: str", "open_lab(", "def lenet(", "def accumulate(", "def train("),
    *("moving(votes", "uneven = ", "records = fit("),
)


@pytest.mark.slow
def test_every_cell_runs_and_is_to_be_seen(server):
    """nbval runs the cells of all notebooks."""
    notebook = nbformat.read(server.folder / "01_gradient_accumulation.ipynb", as_version=4)
    kept = [cell for cell in notebook.cells if any(words in cell.source for words in _SHORT)]
    assert len(kept) == len(_SHORT)
    kept[-1].source = kept[-1].source.replace("progress=None", 'progress="a pass"')
    notebook.cells = kept
    nbformat.write(notebook, server.folder / "short.ipynb")
    with chromium() as browser:
        page, complaints = browser.new_page(viewport={"width": 1280, "height": 900}), []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        run_all(page, server, "short", 300)
        assert page.evaluate(_NOISE) == []
        pictures = page.evaluate(_PICTURES)
        assert pictures
        for width, right, edge in pictures:
            assert width > 0 and right <= edge + 1
        assert page.locator(".jp-OutputArea-output .widget-hprogress").count()

        slider = page.locator("label", has_text="images in the second piece").locator("input")
        said = page.locator(".jp-OutputArea-output p[aria-live]")
        slider.scroll_into_view_if_needed()
        first = said.inner_text()
        slider.press("ArrowRight")
        assert slider.input_value() == "1" and said.inner_text() != first
        assert page.evaluate(_NOISE) == complaints == []
