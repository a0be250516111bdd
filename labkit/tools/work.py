"""`labkit lab`: JupyterLab on the learner's own copies of the notebooks, in work/.

A copy begins without outputs. When the project's notebook has changed, a copy that was not edited
is renewed; beside an edited one, which is never overwritten, the new notebook arrives as
NAME.new.ipynb. Edited means that sources differ from those copied; outputs do not count.
"""

import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from labkit.base.files import write_text
from labkit.errors import InputError
from labkit.ranks.launch import python_path
from labkit.tools.labs import Lab, read_notebook

FOLDER = "work"
_COPIED = "labkit_copied"  # digest of the sources that were copied, in the copy's metadata
# Inline code, which stays as it is, or a relative link of markdown to another folder.
_LINK = re.compile(r"`[^`\n]*`|(\]\()(\.\./[^)\s]+)")
# What the check of an exercise prints, see labkit.labs.exercises.check.
_CHECKED = re.compile(r"^(.+): (passed|not attempted yet|\d+ of \d+ public checks)", re.MULTILINE)
# They belong to `labkit run`, or would give the notebooks another kernel or other settings.
_NOT_FOR_KERNELS = ("LABKIT_RUN", "LABKIT_HEADLESS", "MPLBACKEND", "JUPYTER_PATH")


def copy(labs: Sequence[Lab], folder: Path) -> list[str]:
    """Bring the copies of ``labs`` in ``folder`` up to date; return a line for what was done.

    Raises:
        InputError: if the folder is the project's own, or cannot be written.
    """
    if any(lab.path.parent == folder.resolve() for lab in labs):
        raise InputError(f"{folder} holds the project's own notebooks; expected another folder")
    lines = []
    for lab in labs:
        place = folder / lab.path.name
        notebook = _stripped(read_notebook(lab.path), lab.path.parent, folder)
        if not place.exists():
            _write(notebook, place)
            lines.append(f"{place}: your own copy, made now")
            continue
        mine = read_notebook(place)
        copied = mine["metadata"].get(_COPIED)
        if copied == notebook["metadata"][_COPIED]:
            continue
        if copied == digest(mine):
            _write(notebook, place)
            lines.append(f"{place}: renewed; you had not edited it")
        else:
            beside = place.with_suffix(".new.ipynb")
            _write(notebook, beside)
            lines.append(f"{beside}: the lab has changed; your edited copy stays as it is")
    return lines


def digest(notebook: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the types and sources of a notebook's cells."""
    cells = [(cell["cell_type"], cell["source"]) for cell in notebook["cells"]]
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()


def _stripped(notebook: dict[str, Any], source: Path, folder: Path) -> dict[str, Any]:
    """Return a notebook without outputs, its links changed to lead from ``folder``."""

    def moved(match: re.Match) -> str:
        if match[1] is None:
            return match[0]
        return match[1] + os.path.relpath((source / match[2]).resolve(), folder.resolve())

    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell |= {"outputs": [], "execution_count": None}
        else:
            cell["source"] = _LINK.sub(moved, cell["source"])
    metadata = {key: each for key, each in notebook["metadata"].items() if key != "labkit"}
    notebook["metadata"] = metadata | {_COPIED: digest(notebook)}
    return notebook


def _write(notebook: Mapping[str, Any], place: Path) -> None:
    # Split as nbformat does, so that saving in JupyterLab makes no difference.
    cells = [
        cell | {"source": cell["source"].splitlines(keepends=True)} for cell in notebook["cells"]
    ]
    text = json.dumps({**notebook, "cells": cells}, indent=1, ensure_ascii=False, sort_keys=True)
    write_text(place, text + "\n", "the notebook")


def solved(notebook: Path) -> dict[str, bool]:
    """Return exercise -> whether its check has passed, by the outputs that the notebook holds."""
    answers: dict[str, bool] = {}
    for cell in read_notebook(notebook)["cells"]:
        for output in cell.get("outputs", ()):
            found = _CHECKED.findall("".join(output.get("text", "")))
            answers |= {name: said == "passed" for name, said in found}
    return answers


def command(root: Path, notebook: Path, port: int | None, browser: bool) -> list[str]:
    """Return the command line of a JupyterLab that shows ``root`` and opens ``notebook`` in it.

    It listens on this machine alone, behind a token, and has this environment's kernel alone.
    """
    options = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.root_dir": str(root),
        "ServerApp.kernel_spec_manager_class": "jupyter_client.kernelspec.KernelSpecManager",
        "KernelSpecManager.allowed_kernelspecs": "{'python3'}",
        # No network access, and no dialog that asks about it.
        "LabApp.news_url": "None",
        "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
        "LabApp.default_url": f"/lab/tree/{quote(notebook.relative_to(root).as_posix())}",
    }
    if port is not None:
        options["ServerApp.port"] = str(port)
    if os.geteuid() == 0:  # in a container
        options["ServerApp.allow_root"] = "True"
    line = [sys.executable, "-P", "-m", "jupyterlab"]
    line += [f"--{name}={value}" for name, value in options.items()]
    return line if browser else [*line, "--no-browser"]


def environment() -> dict[str, str]:
    """Return the variables of the server and its kernels."""
    kept = {name: text for name, text in os.environ.items() if name not in _NOT_FOR_KERNELS}
    return kept | {
        "JUPYTER_PREFER_ENV_PATH": "1",
        # Without it the debugger warns of Python's frozen modules whenever a kernel starts.
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "PYTHONPATH": python_path(os.environ.get("PYTHONPATH")),
    }
