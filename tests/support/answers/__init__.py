"""Each exercise solved: rightly by its lab's solution notebook, wrongly in the ways learners do.

``WRONG`` of a lab: (exercise, wrong function, a part of the hint that it is to get). Written
without looking at labkit's HINTS; answers that are these' own functions to the letter are left out.
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
