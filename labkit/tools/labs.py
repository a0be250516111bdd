"""The labs of a project: their notebooks, names and parameters."""

import ast
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from labkit.base.arguments import local_path, wrong
from labkit.errors import InputError, nearest

_TITLE = re.compile(r"^#\s+(?:\d+\s*·\s*)?(.+?)\s*$", re.MULTILINE)


class Lab(NamedTuple):
    """One notebook, number "01"."""

    number: str
    name: str
    title: str
    path: Path


def find_labs(project: Path) -> tuple[Lab, ...]:
    """Return the labs of ``project`` in reading order: every ``notebooks/NN_name.ipynb``."""
    return tuple(map(read_lab, sorted((project / "notebooks").glob("[0-9][0-9]_*.ipynb"))))


def pick(labs: Sequence[Lab], names: Iterable[str]) -> tuple[Lab, ...]:
    """Return the labs that ``names`` select, each once and in that order; no name means all labs.

    A lab is selected by its number (``01`` or ``1``), its name, its name without the number, or the
    path of a notebook; a second notebook not by its number.
    """
    called: dict[str, Lab] = {}
    for lab in reversed(labs):  # of two notebooks with a number, it means the one not in depth
        short = lab.name.split("_", 1)[1]
        called |= dict.fromkeys((lab.number, str(int(lab.number)), short, lab.name), lab)
    known = {lab.path: lab for lab in labs}
    picked = []
    for name in filter(None, map(str.strip, ",".join(names).split(","))):
        if name.endswith(".ipynb"):
            place = local_path("LAB", name).resolve()
            picked.append(known.get(place) or read_lab(place))
        elif name in called:
            picked.append(called[name])
        else:
            expected = ", ".join(lab.name for lab in labs)
            hint = nearest(name, called)
            raise InputError(f"unknown lab {name!r}; expected one of: {expected}.{hint}")
    return tuple(dict.fromkeys(picked)) or tuple(labs)


def read_lab(notebook: Path) -> Lab:
    """Return the lab of a notebook; the title of one that cannot be read is the reason."""
    number, _, short_name = notebook.stem.partition("_")
    try:
        cells = read_notebook(notebook)["cells"]
        card = next((cell["source"] for cell in cells if cell["cell_type"] == "markdown"), "")
    except InputError as error:
        card = f"# {error}"
    title = _TITLE.search(card)
    shown = title[1] if title else short_name.replace("_", " ")
    return Lab(number, notebook.stem, shown, notebook)


def parameter_names(lab: Lab) -> list[str]:
    """Return the names assigned in the lab's one cell tagged ``parameters``, in order."""
    cells = [cell for cell in read_notebook(lab.path)["cells"] if "parameters" in tags(cell)]
    try:
        tree = ast.parse("\n".join(cell["source"] for cell in cells))
    except SyntaxError as error:
        raise wrong(f"the parameters of {lab.path}", error.text, "assignments in Python") from error
    named = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    names = [node.id for node in named if isinstance(node.ctx, ast.Store)]
    if len(cells) != 1 or not {"preset", "device"} <= set(names):
        expected = "one cell tagged 'parameters' that sets preset and device"
        raise wrong(str(lab.path), f"{len(cells)} cells that set {names}", expected)
    return names


def read_notebook(path: Path) -> dict[str, Any]:
    """Return the notebook at ``path``, every cell's source as one string; or raise InputError."""
    try:  # as JSON: importing nbformat alone would take 1.4 s
        notebook = json.loads(path.read_text("utf-8"))
        for cell in notebook["cells"]:
            read = {"source": "".join(cell["source"]), "cell_type": str(cell["cell_type"])}
            cell |= read | {"metadata": dict(cell.get("metadata") or {})}
        notebook["metadata"] = dict(notebook.get("metadata") or {})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"cannot read the notebook {path}: {error!r}") from error
    return notebook


def tags(cell: Mapping[str, Any]) -> list[str]:
    """Return the tags of a cell."""
    return cell["metadata"].get("tags") or []
