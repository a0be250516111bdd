"""Notebooks as JSON, as JupyterLab writes them. Importing nbformat alone would take 1.4 s."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labkit.base import input_files
from labkit.base.files import whole_file
from labkit.errors import InputError

# Inline code, which stays as it is, or a relative link of markdown; not a URL, an anchor on the
# same page or an absolute path.
_LINK = re.compile(r"`[^`\n]*`|(\]\()(?![a-z]+:|#|/)([^)\s#]+)")


def read(path: Path) -> dict[str, Any]:
    """Return the notebook at ``path``, every cell's source as one string.

    Raises:
        InputError: if the file cannot be read or is not a notebook of format 4
    """
    try:
        notebook = input_files.read_json(path)
        for cell in notebook["cells"]:
            cell["source"] = "".join(cell["source"])
            cell["cell_type"], cell.setdefault("metadata", {})
            if not isinstance(cell.get("id", ""), str) or not isinstance(tags(cell), list):
                raise TypeError
        notebook.setdefault("metadata", {})
    except (OSError, InputError) as error:
        raise InputError(f"cannot read the notebook {path}: {error}") from error
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not a notebook of format 4") from error
    return notebook


def write(path: Path, notebook: Mapping[str, Any]) -> None:
    """Write ``notebook`` to ``path`` atomically; raise ``InputError`` if that is not possible."""
    # Split as nbformat does, so that saving in JupyterLab makes no difference.
    cells = [
        cell | {"source": cell["source"].splitlines(keepends=True)} for cell in notebook["cells"]
    ]
    text = json.dumps({**notebook, "cells": cells}, indent=1, ensure_ascii=False, sort_keys=True)
    with whole_file(path, "the notebook") as temporary:
        temporary.write_text(text + "\n", encoding="utf-8", newline="\n")
        if path.exists():
            shutil.copymode(path, temporary)


def tags(cell: Mapping[str, Any]) -> list[str]:
    """Return the tags of a cell."""
    return cell.get("metadata", {}).get("tags", [])


def digest(cell: Mapping[str, Any]) -> str:
    """Return a digest of 16 hexadecimal digits of a cell's type and source."""
    text = f"{cell['cell_type']}\n{cell['source']}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def relinked(text: str, source: Path, folder: Path, *, with_labs: bool) -> str:
    """Return a notebook's markdown with relative links adapted to another folder.

    Args:
        text: the markdown
        source: folder of the notebook
        folder: folder that the text is copied to
        with_labs: whether the notebooks beside it are copied too, so that links to them stay
    """

    def moved(match: re.Match) -> str:
        if match[1] is None:
            return match[0]
        target = (source / match[2]).resolve()
        if with_labs and target.parent == source.resolve() and target.suffix == ".ipynb":
            return match[0]
        return match[1] + Path(os.path.relpath(target, folder.resolve())).as_posix()

    return _LINK.sub(moved, text)
