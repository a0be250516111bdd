"""Full training programs, one per technique, for one device or many."""

import importlib
import os
from typing import Any

from labkit.errors import refuse_unknown

RECIPES = ("accumulation", "resnet50", "thor", "adasum", "subspace-1", "subspace-2")


def recipe(name: str) -> Any:
    """Return the ``Recipe`` of this name on the command line; ``InputError`` if there is none."""
    refuse_unknown("recipe", name, RECIPES)
    os.environ.setdefault("GLOG_v", "3")  # MindSpore reads it when it is imported
    module, _, stage = name.partition("-")
    found = importlib.import_module(f"labkit.recipes.{module}")
    return getattr(found, f"STAGE_{stage}" if stage else "RECIPE")
