"""Headless Chromium of the distribution, driven by Playwright; or the reason why there is none."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
HOW = "no Chromium here: on Debian and Ubuntu, as root, `apt-get install chromium`"


def _find() -> tuple[str | None, str]:
    """Return (path, "") of a Chromium, or (None, how to get one); nothing is installed."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    return path, "" if path else HOW


def _arguments() -> list[str]:
    """Return Chromium's arguments: root cannot use the sandbox, a container has little /dev/shm."""
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    return [*sandbox, "--disable-dev-shm-usage", "--force-color-profile=srgb"]


@contextmanager
def launched() -> Iterator[Any]:
    """Yield a browser of Playwright; if there is none, skip the test and say why."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    path, why = _find()
    if path is None:
        pytest.skip(why)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=_arguments())
        yield browser
        browser.close()
