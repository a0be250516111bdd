"""Notebooks as JSON, as JupyterLab writes them. Importing nbformat alone would take 1.4 s."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labkit.base import input_files
from labkit.base.files import whole_file
from labkit.errors import InputError


def read(path: Path) -> dict[str, Any]:
    """Return the notebook at ``path``; every cell's source as one text.

    Raises:
        InputError: where the file cannot be read or is not a notebook of format 4
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
    """Write ``notebook`` to ``path``, whole or not at all; raises ``InputError`` if refused."""
    cells = [cell | {"source": _lines(cell["source"])} for cell in notebook["cells"]]
    text = json.dumps({**notebook, "cells": cells}, indent=1, ensure_ascii=False, sort_keys=True)
    with whole_file(path, "the notebook") as temporary:
        temporary.write_text(text + "\n", encoding="utf-8", newline="\n")


def tags(cell: Mapping[str, Any]) -> list[str]:
    """Return the tags of a cell."""
    return cell.get("metadata", {}).get("tags", [])


def digest(cell: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits of what a person writes in ``cell``: its kind and its source."""
    text = f"{cell['cell_type']}\n{cell['source']}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _lines(source: str) -> list[str]:
    # As nbformat splits it, so that JupyterLab's next save shows no difference.
    return source.splitlines(keepends=True)
