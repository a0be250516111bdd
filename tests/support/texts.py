"""The files of the project, and the text of its pages and notebooks."""

import re
import subprocess
from pathlib import Path
from typing import Any

from labkit.tools.labs import read_notebook, tags

_CODE = re.compile(r"^(```|~~~).*?^\1\s*$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


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
    return [cell for cell in read_notebook(path)["cells"] if "navigation" not in tags(cell)]


def text_of(path: Path) -> str:
    """Return the text of a page, or the markdown of a notebook."""
    if path.suffix != ".ipynb":
        return path.read_text(encoding="utf-8")
    cells = read_notebook(path)["cells"]
    return "\n\n".join(cell["source"] for cell in cells if cell["cell_type"] == "markdown")


def without_code(text: str) -> str:
    """Return markdown without its code blocks and inline code."""
    return _CODE.sub("", text)
