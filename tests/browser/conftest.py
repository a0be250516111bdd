"""One JupyterLab and one browser for the tests in this folder; their pictures are kept."""

import time

import pytest

from tests.support.jupyterlab import ROOT, LabPage, Server, chromium


@pytest.fixture(scope="module")
def kept():
    """The folder of this run's pictures and logs: runs/browser/<time>."""
    folder = ROOT / "runs" / "browser" / time.strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)
    return folder


@pytest.fixture(scope="module")  # Playwright's event loop would conflict with nbclient's
def browser():
    with chromium() as chrome:
        yield chrome


@pytest.fixture(scope="module")
def server(kept, tmp_path_factory):
    """JupyterLab on copies of the notebooks inside the project, where they find its data sets."""
    committed = {path: path.read_bytes() for path in (ROOT / "notebooks").glob("*.ipynb")}
    with Server(kept / "work", tmp_path_factory.mktemp("user"), kept / "server.log") as lab_server:
        yield lab_server
    assert {path: path.read_bytes() for path in committed} == committed


@pytest.fixture
def lab(browser, server, kept, request):
    """A separate page for each test; afterwards no kernel is left."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = LabPage(context.new_page(), server)
    try:
        yield page
        assert page.complaints == []
    finally:
        page.page.screenshot(path=kept / f"{request.node.name.removeprefix('test_')}.png")
        context.close()
        server.shut_kernels_down()
