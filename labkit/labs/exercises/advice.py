"""Hints on demand: two for each exercise, the second only when asked again."""

from collections.abc import Mapping

from labkit.errors import refuse_unknown


class Advice:
    """Prints an exercise's first hint when called with its name, and both when called again.

    Args:
        hints: exercise -> (where to look, what to do)

    >>> hint = Advice({"mean": ("what is it divided by?", "divide by the number of samples")})
    >>> hint("mean")
    mean, hint 1 of 2: what is it divided by?
    """

    def __init__(self, hints: Mapping[str, tuple[str, str]]):
        self.hints = dict(hints)
        self._asked: set[str] = set()

    def __call__(self, name: str) -> None:
        """Print the hints of the exercise ``name``; raises ``InputError`` if it is unknown."""
        refuse_unknown("exercise", name, self.hints)
        shown = 2 if name in self._asked else 1
        self._asked.add(name)
        for number, text in enumerate(self.hints[name][:shown], start=1):
            print(f"{name}, hint {number} of 2: {text}")
