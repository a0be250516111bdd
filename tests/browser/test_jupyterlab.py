"""A notebook in JupyterLab as a person uses it: `make lab`, a browser, Run All Cells."""

import sys
import time
import urllib.error

import pytest

from tests.support.jupyterlab import ROOT, LabPage, Server, chromium

_PICTURES = """() => [...document.querySelectorAll('.jp-OutputArea-output img')].map(box => [
    box.naturalWidth, box.getBoundingClientRect().right,
    box.closest('.jp-OutputArea-output').getBoundingClientRect().right,
  ])"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """JupyterLab on copies of the notebooks inside the project, where they find its data sets."""
    kept = ROOT / "runs" / "browser" / time.strftime("%Y%m%d-%H%M%S")
    kept.mkdir(parents=True)
    with Server(kept / "work", tmp_path_factory.mktemp("home"), kept / "server.log") as lab_server:
        yield lab_server


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


@pytest.mark.slow
def test_every_cell_runs_and_is_to_be_seen(server):
    """nbval runs the cells of all notebooks; this one has figures, a slider and a bar."""
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        lab = LabPage(page)
        lab.open(server, "01_gradient_accumulation")
        lab.run_all(300)  # 20 to 80 s while another test runs
        assert lab.noise() == []
        pictures = page.evaluate(_PICTURES)
        assert pictures
        for width, right, edge in pictures:
            assert width > 0 and right <= edge + 1
        assert page.locator(".jp-OutputArea-output .widget-hprogress").count()

        label = "micro-batches so far"
        slider = page.locator(".widget-slider", has_text=label).locator(".noUi-handle")
        picture = page.locator(".widget-vbox", has_text=label).locator("img")
        slider.scroll_into_view_if_needed()
        seen = [picture.get_attribute("src")]
        for position in ("8.0", "9.0"):
            slider.press("ArrowRight")
            assert slider.get_attribute("aria-valuenow") == position
            page.wait_for_function(
                "([label, before]) => [...document.querySelectorAll('.widget-vbox')]"
                ".find(box => box.textContent.includes(label)).querySelector('img').src !== before",
                arg=[label, seen[-1]],
            )
            seen.append(picture.get_attribute("src"))
        assert len(set(seen)) == 3 and lab.noise() == lab.complaints == []
