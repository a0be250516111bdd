"""Answers to each exercise: correct ones from the solution notebook, and wrong ones of learners.

``WRONG`` of a lab lists (exercise, wrong function, part of the hint that it must get). They were
written without looking at labkit's mistakes; what only repeats one of their formulas is left out.
"""

import importlib

_MODULES = {
    "00_start_here": "start",
    "01_gradient_accumulation": "accumulation",
    "02_resnet50_migration": "migration",
    "03_thor": "thor",
    "04_adasum": "adasum",
    "05_dimension_reduction": "subspace",
}
# lab -> (its exercises, their answers)
LABS = {
    lab: tuple(
        importlib.import_module(f"{package}.{name}")
        for package in ("labkit.labs.exercises", "tests.support.answers")
    )
    for lab, name in _MODULES.items()
}
