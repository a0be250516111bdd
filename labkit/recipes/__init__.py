"""Full training programs, one per technique, for one device or many."""

import importlib
import os
from typing import Any

from labkit.errors import refuse_unknown

# Name on the command line -> module, name in it.
RECIPES = {
    "accumulation": ("accumulation", "RECIPE"),
    "resnet50": ("resnet50", "RECIPE"),
    "thor": ("thor", "RECIPE"),
    "adasum": ("adasum", "RECIPE"),
    "subspace-1": ("subspace", "STAGE_1"),
    "subspace-2": ("subspace", "STAGE_2"),
}


def recipe(name: str) -> Any:
    """Return the ``Recipe`` of this name on the command line; ``InputError`` if there is none."""
    refuse_unknown("recipe", name, RECIPES)
    os.environ.setdefault("GLOG_v", "3")  # MindSpore reads it when it is imported
    module, attribute = RECIPES[name]
    return getattr(importlib.import_module(f"labkit.recipes.{module}"), attribute)
