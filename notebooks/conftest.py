"""What `pytest --nbval-lax notebooks/` needs to pass as it is, also with -n 2 of pytest-xdist."""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("LABKIT_PRESET", "smoke")  # `lab`, which the text speaks of: half an hour
_NO_PROFILE = tempfile.TemporaryDirectory(prefix="ipython-")  # as in a run: not the user's own
os.environ["IPYTHONDIR"] = _NO_PROFILE.name


def pytest_configure(config):
    option = config.option
    if not getattr(option, "nbval_sanitize_with", ""):
        option.nbval_sanitize_with = str(Path(__file__).with_name("sanitize.cfg"))
    # One kernel executes the cells of a notebook: its file must not be split.
    if getattr(option, "dist", "no") in ("load", "worksteal", "loadgroup"):
        option.dist = "loadfile"
