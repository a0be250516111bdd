"""Headless Chromium from the distribution's packages, driven by Playwright; or why it is not."""

import os
import shutil
import subprocess
import time

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
# A busy mirror takes a minute or two; a test that waits for longer helps nobody.
INSTALL_SECONDS = 240


def find() -> tuple[str | None, str]:
    """Return (path, "") of a Chromium, installed if root asks; or (None, why there is none)."""
    if path := _there():
        return path, ""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return None, "no Chromium here: on Debian, as root, `apt-get install chromium`"
    install = ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]
    until = time.monotonic() + INSTALL_SECONDS
    for command in (["apt-get", "update"], install):
        try:
            done = subprocess.run(
                command,
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                capture_output=True,
                text=True,
                timeout=max(until - time.monotonic(), 1),
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None, f"`{' '.join(command)}` took longer than {INSTALL_SECONDS} s"
    if path := _there():
        return path, ""
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return None, f"`apt-get install chromium` failed: {last}"


def arguments() -> list[str]:
    """Return Chromium's arguments: root has no sandbox of its own, a container little /dev/shm."""
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    return [*sandbox, "--disable-dev-shm-usage", "--force-color-profile=srgb"]


def _there() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)
