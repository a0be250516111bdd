"""Answers to each exercise: correct ones from the solution notebook, and wrong ones of learners.

``WRONG`` of a lab lists (exercise, wrong function, part of the hint that it must get). They were
written without looking at labkit's mistakes; what only repeats one of their formulas is left out.
"""

import ast
import functools
import importlib
import json
import linecache
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).resolve().parents[3] / "notebooks" / "solutions"


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


def _pair(name):
    packages = ("labkit.labs.exercises", "tests.support.answers")
    return tuple(importlib.import_module(f"{package}.{name}") for package in packages)


# lab -> (its exercises, their answers, which use ``solved``)
LABS = {
    "00_start_here": _pair("start"),
    "01_gradient_accumulation": _pair("accumulation"),
    "02_resnet50_migration": _pair("migration"),
    "03_thor": _pair("thor"),
    "04_adasum": _pair("adasum"),
    "05_dimension_reduction": _pair("subspace"),
    "06_language_model": _pair("language_model"),
}
