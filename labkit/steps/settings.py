"""What a resumed training must share with the interrupted one, and whether it does."""

import ast
from dataclasses import fields

from mindspore import nn

from labkit.steps.gradients import GradientOptions

# Of the options that are not said. A checkpoint holds all of them, an older one those given alone;
# a weight that is not said was the number of rows.
_DEFAULTS = {field.name: repr(field.default) for field in fields(GradientOptions)}
_DEFAULTS |= {"weighted": "True", "normalise": "'samples'"}
del _DEFAULTS["nonfinite"]
_LONGEST = 1000  # characters of a setting that is a value
# Looked at by themselves, or only taken over.
_OF_WEIGHTS = ("normalise", "derived", "elements_per_row")


def effective(options: GradientOptions, weighted: bool) -> dict[str, str]:
    """Return the options of a gradient stage that are in force, as text; ``nonfinite`` as it is."""
    texts = {name: repr(value) for name, value in vars(options).items()}
    return texts | {"weighted": repr(weighted), "nonfinite": options.nonfinite}


def differing(own: dict, saved: dict) -> tuple[dict, dict]:
    """Return those of a step's settings that differ from a checkpoint's: (own, the checkpoint's).

    A default is what it is, said or not. A step that derives its weights from the loss goes on from
    weights by rows that were the same so far, and from those of its own kind. Where the rows were
    asked for, nobody looked at whether they were the same, and a step with other weights does not
    go on from them; an older checkpoint says neither.
    """
    older = "batch_axis" not in saved
    own, saved = _DEFAULTS | own, _DEFAULTS | saved
    names = [
        name
        for name in sorted((own.keys() | saved.keys()).difference(_OF_WEIGHTS))
        if _value(own.get(name)) != _value(saved.get(name))
    ]
    derived = own.get("derived")
    if saved["normalise"] not in (own["normalise"], derived):
        names.append("normalise")
    elif not older and derived and "derived" not in saved and derived != repr("unknown"):
        # A loss that is not known is taken for a mean over rows.
        own["normalise"] = derived
        names.append("normalise")
    return {n: own.get(n) for n in names}, {n: saved.get(n) for n in names}


def take_over(step: nn.Cell, saved: dict) -> None:
    """Give a step what it cannot know of the interrupted training: the unit of its weights."""
    if "elements_per_row" in saved:
        step.gradient.objective.check.elements_per_row = _value(saved["elements_per_row"])


def _value(text: object) -> object:
    """Return the value that a text stands for, so that 1 is 1.0; the text where it is no value."""
    if not isinstance(text, str) or len(text) > _LONGEST:
        return text
    try:
        return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        # Deep nesting is a MemoryError of the parser, or a RecursionError.
        return text
