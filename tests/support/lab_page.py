"""What a person does in JupyterLab, and what the page then shows."""

import time
from pathlib import Path

_STATE = """() => {
  const prompts = [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')];
  const dialog = document.querySelector('.jp-Dialog');
  const kernel = document.querySelector('.jp-Notebook-ExecutionIndicator');
  return {
    running: prompts.filter(box => box.textContent.includes('*')).length,
    run: prompts.filter(box => /\\d/.test(box.textContent)).length,
    kernel: (document.querySelector('.jp-Toolbar-kernelName') || {}).textContent || '',
    status: kernel ? kernel.getAttribute('data-status') : '',
    dialog: dialog ? dialog.textContent : '',
  };
}"""
_OUTPUTS = """kind => [...document.querySelectorAll(
    `.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.${kind}"]`
  )].map(box => box.textContent)"""
_PICTURES = """() => [...document.querySelectorAll('.jp-OutputArea-output img')].map(box => ({
    alt: box.alt, width: box.naturalWidth,
    right: box.getBoundingClientRect().right,
    edge: box.closest('.jp-OutputArea-output').getBoundingClientRect().right,
  }))"""
_CUT = """() => [...document.querySelectorAll('.jp-OutputArea-output, .jp-RenderedMarkdown')]
    .filter(box => box.scrollWidth > box.clientWidth + 1)
    .map(box => `${box.scrollWidth} > ${box.clientWidth}: ${box.textContent.slice(0, 200)}`)"""


class LabPage:
    """One browser page on one server's JupyterLab."""

    def __init__(self, page, server, pictures: Path):
        self.page, self.server, self.pictures = page, server, pictures
        self.complaints: list[str] = []
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        pictures.mkdir(parents=True, exist_ok=True)

    def open(self, path: str) -> None:
        """Open the notebook at ``path`` below the server's root, and wait for its kernel."""
        address = f"{self.server.address}/lab/tree/{path}?reset&token={self.server.token}"
        self.page.goto(address)
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=90_000)
        started = lambda state: state["kernel"] != "No Kernel" and state["status"] == "idle"  # noqa: E731
        self.wait(started, 90, "the kernel is idle")

    def run_all(self, seconds: float) -> None:
        """Choose Run All Cells in the menu, and wait until every code cell has a number."""
        self.menu("Run", "Run All Cells")
        cells = self.page.locator(".jp-CodeCell").count()
        done = lambda state: (  # noqa: E731
            state["running"] == 0 and state["run"] > 0 and state["status"] == "idle"
        )
        self.page.wait_for_timeout(500)  # until the prompts have turned to stars
        state = self.wait(done, seconds, "all cells have run")
        assert state["run"] == cells, f"{state['run']} of {cells} cells ran: {self.errors()}"

    def menu(self, name: str, entry: str) -> None:
        """Choose ``entry`` of the menu ``name``."""
        self.page.locator(".lm-MenuBar-item", has_text=name).first.click()
        self.page.locator(".lm-Menu-itemLabel").get_by_text(entry, exact=True).click()

    def wait(self, fine, seconds: float, what: str) -> dict:
        """Return the page's state once ``fine`` accepts it; fail if a dialog comes up."""
        until = time.monotonic() + seconds
        while True:
            state = self.page.evaluate(_STATE)
            assert not state["dialog"], state["dialog"]
            if fine(state):
                return state
            assert time.monotonic() < until, f"waited {seconds} s until {what}: {state}"
            self.page.wait_for_timeout(500)

    def slider(self, label: str):
        """Return the knob of the slider ``label``."""
        return self.page.locator(".widget-slider", has_text=label).locator(".noUi-handle")

    def errors(self) -> list[str]:
        """Return the text of every error output."""
        return self.page.evaluate(_OUTPUTS, "error")

    def noise(self) -> list[str]:
        """Return the text of every output on stderr."""
        return self.page.evaluate(_OUTPUTS, "stderr")

    def images(self) -> list[dict]:
        """Return each picture's alternative text, width in pixels, right edge and its limit."""
        return self.page.evaluate(_PICTURES)

    def cut(self) -> list[str]:
        """Return the outputs and texts that are wider than their box."""
        return self.page.evaluate(_CUT)

    def cell(self, text: str):
        """Return the code cell that holds ``text``."""
        return self.page.locator(
            ".jp-CodeCell", has=self.page.locator(".jp-InputArea", has_text=text)
        )

    def type_into(self, cell, source: str) -> None:
        """Replace the source of ``cell`` and run it, as a person does: select all, paste, run."""
        cell.scroll_into_view_if_needed()
        cell.locator(".cm-content").click()
        self.page.keyboard.press("Control+a")
        self.page.keyboard.insert_text(source)
        self.page.keyboard.press("Control+Enter")
        self.page.wait_for_timeout(300)
        self.wait(lambda s: s["running"] == 0 and s["status"] == "idle", 60, "the cell has run")

    def picture(self, name: str) -> None:
        """Save a picture of the window."""
        self.page.screenshot(path=self.pictures / f"{name}.png")

    def whole(self, name: str, height: int = 2400) -> None:
        """Save pictures of the whole notebook, from top to bottom."""
        size = self.page.viewport_size
        self.page.set_viewport_size({"width": size["width"], "height": height})
        self.page.wait_for_timeout(1000)  # until the notebook has taken the new height
        place = ".jp-NotebookPanel:not(.lm-mod-hidden) .jp-WindowedPanel-outer"
        total, room = self.page.evaluate(
            f"() => {{const box = document.querySelector('{place}'); "
            "return [box.scrollHeight, box.clientHeight]}"
        )
        for number, top in enumerate(range(0, total, room)):
            self.page.evaluate(f"top => {{document.querySelector('{place}').scrollTop = top}}", top)
            self.page.wait_for_timeout(300)
            self.picture(f"{name}-{number:02}")
        self.page.set_viewport_size(size)
