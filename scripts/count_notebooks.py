"""Count what the notebooks consist of: `python -m scripts.count_notebooks [NOTEBOOK ...]`.

Of the code lines that a reader sees (cells tagged ``claims`` are collapsed): the share that is
mathematics, which names MindSpore or NumPy or calculates, and the share that is plumbing of the
labs: the lab's own object, figures that move, stored races.
"""

import ast
import re
import sys
from pathlib import Path

import nbformat

_LIBRARIES = {"ms", "nn", "ops", "np", "mint", "mindspore", "Tensor", "Parameter"}
_PLUMBING = re.compile(r"\b(lab|plots|figures)\.\w|open_lab|\bmoving\b|settings\[|labkit\.labs")
_CLAIMS = re.compile(r"lab\.check|^assert\b")
_FIGURE = re.compile(r"lab\.(show|interactive)|\bmoving\(|plt\.show|plt\.(figure|subplots)")


def count(path: Path) -> list[str]:
    """Return one row of the table."""
    cells = nbformat.read(path, as_version=4).cells
    words = sum(len(_prose(c.source).split()) for c in cells if c.cell_type == "markdown")
    code = [c for c in cells if c.cell_type == "code"]
    hidden = [c for c in code if "claims" in c.metadata.get("tags", [])]
    shown = [line for c in code if c not in hidden for line in _lines(c)]
    claims = sum(len(_lines(c)) for c in hidden)
    claims += sum(bool(_CLAIMS.search(line)) for line in shown)
    everything = len(shown) + sum(len(_lines(c)) for c in hidden)

    def share(lines: int, of: int) -> str:
        return f"{lines} ({100 * lines / max(of, 1):.0f} %)"

    first = next((i for i, cell in enumerate(cells) if _pictures(cell)), None)
    return [
        path.stem,
        str(len(cells)),
        str(words),
        str(everything),
        share(claims, everything),
        share(sum(_mathematics(c.source) for c in code if c not in hidden), len(shown)),
        share(sum(bool(_PLUMBING.search(line)) for line in shown), len(shown)),
        f"[{first}]",
    ]


def _lines(cell: nbformat.NotebookNode) -> list[str]:
    stripped = (line.strip() for line in cell.source.splitlines())
    return [line for line in stripped if line and not line.startswith("#")]


def _mathematics(source: str) -> int:
    """Return how many lines name a library of arrays, or calculate."""
    lines = set()
    for node in ast.walk(ast.parse(re.sub(r"^[%!].*$", "", source, flags=re.MULTILINE))):
        named = isinstance(node, ast.Name) and node.id in _LIBRARIES
        if named or isinstance(node, ast.BinOp) and not isinstance(node.left, ast.Constant):
            lines.add(node.lineno)
    return len(lines)


def _prose(source: str) -> str:
    return re.sub(r"^\[\w+\]: data:.*$|<[^>]+>", "", source, flags=re.MULTILINE)


def _pictures(cell: nbformat.NotebookNode) -> bool:
    return (
        "![" in cell.source if cell.cell_type == "markdown" else bool(_FIGURE.search(cell.source))
    )


def main(paths: list[str]) -> None:
    """Print the table as markdown."""
    notebooks = map(Path, paths) if paths else sorted(Path("notebooks").glob("*.ipynb"))
    head = "notebook|cells|words|code lines|claims|mathematics|plumbing|first picture".split("|")
    print("| " + " | ".join(head) + " |\n|" + " --- |" * len(head))
    for path in notebooks:
        print("| " + " | ".join(count(path)) + " |")


if __name__ == "__main__":
    main(sys.argv[1:])
