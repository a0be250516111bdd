"""The functions that the solution notebooks define, in this process."""

import ast
import functools
import json
import linecache
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).resolve().parents[2] / "notebooks" / "solutions"


def code(path):
    """Return the sources of a notebook's code cells."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]


@functools.cache
def solved(lab):
    """Return a module of a lab's correct answers and what they use, without calls of ``check``."""
    module = ModuleType(f"solutions_{lab}")
    sys.modules[module.__name__] = module  # MindSpore looks here for functions that it compiles
    for number, source in enumerate(code(FOLDER / f"{lab}.ipynb")):
        tree = ast.parse(source)
        tree.body = [each for each in tree.body if "check(" not in ast.unparse(each)]
        place = f"<cell {number} of {lab}>"
        # And here for their source.
        linecache.cache[place] = len(source), None, source.splitlines(keepends=True), place
        exec(compile(tree, place, "exec"), module.__dict__)
    return module
