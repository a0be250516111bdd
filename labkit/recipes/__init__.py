"""Full training programs, one per technique, for one device or many."""

import importlib
from typing import TYPE_CHECKING

from labkit.errors import refuse_unknown

if TYPE_CHECKING:
    from labkit.recipes.training import Recipe

# Name on the command line -> module, name in it.
RECIPES = {
    "accumulation": ("accumulation", "RECIPE"),
    "resnet50": ("resnet50", "RECIPE"),
    "thor": ("thor", "RECIPE"),
    "adasum": ("adasum", "RECIPE"),
    "subspace-1": ("subspace", "STAGE_1"),
    "subspace-2": ("subspace", "STAGE_2"),
}


def recipe(name: str) -> "Recipe":
    """Return the recipe of this name on the command line; ``InputError`` if there is none."""
    refuse_unknown("recipe", name, RECIPES)
    module, attribute = RECIPES[name]
    return getattr(importlib.import_module(f"labkit.recipes.{module}"), attribute)
