"""The files of the project, and the text of its pages and notebooks."""

import io
import re
import subprocess
import tokenize
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from labkit.tools.labs import read_notebook, tags

NAVIGATION = "navigation"  # tag of cells that lead to other notebooks

_FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")


def committed_files(root: Path) -> list[Path]:
    """Return the files that git tracks or would add; outside a checkout, those not in .venv."""
    command = ["git", "-C", str(root), "ls-files", "-z", "-co", "--exclude-standard"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        paths = (root / name for name in done.stdout.rstrip("\0").split("\0"))
    else:
        paths = (path for path in root.rglob("*") if ".venv" not in path.parts)
    return [path for path in paths if path.is_file()]


def own_cells(path: Path) -> list[dict[str, Any]]:
    """Return the cells of a notebook that a person writes: all but the generated navigation."""
    cells = read_notebook(path)["cells"]
    return [cell for cell in cells if NAVIGATION not in tags(cell)]


def markdown(cells: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the markdown of each cell; "" for a code cell, so that positions are kept."""
    return [cell["source"] if cell["cell_type"] == "markdown" else "" for cell in cells]


def text_of(path: Path) -> str:
    """Return as one text a page, the markdown of a notebook's own cells, or a program's words."""
    if path.suffix == ".ipynb":
        return "\n\n".join(markdown(own_cells(path)))
    text = path.read_text(encoding="utf-8")
    return "\n\n".join(words_of(text)) if path.suffix == ".py" else text


def words_of(code: str) -> list[str]:
    """Return the comments and strings of Python code: its prose, and its keys."""
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", None)}
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    return [token.string for token in tokens if token.type in kinds]


def without_fences(text: str) -> str:
    """Return markdown without its code blocks."""
    return _FENCE.sub("", text)


def without_code(text: str) -> str:
    """Return markdown without its code blocks and inline code."""
    return _CODE.sub("", without_fences(text))
