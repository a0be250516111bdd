"""Headless Chromium from the distribution's packages, driven by Playwright; or why it is not."""

import os
import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
HOW = "no Chromium here: on Debian and Ubuntu, as root, `apt-get install chromium`"


def find() -> tuple[str | None, str]:
    """Return (path, "") of a Chromium, or (None, how to get one); nothing is installed."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    return path, "" if path else HOW


def arguments() -> list[str]:
    """Return Chromium's arguments: root has no sandbox of its own, a container little /dev/shm."""
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    return [*sandbox, "--disable-dev-shm-usage", "--force-color-profile=srgb"]
