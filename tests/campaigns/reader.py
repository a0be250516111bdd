"""What the campaign knows of one reader: how inputs for it are made, and what reads them."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.campaigns.mutate import SPECIALS, Tree


@dataclass(frozen=True)
class Reader:
    """One reader.

    make   an input, drawn from a ``random.Random``: a valid one with damage, or a crafted one
    doors  functions of the input's folder and of a folder to write to, each called once: labkit's
           own functions that read such a file
    heavy  whether what it needs is MindSpore or PyTorch, which take seconds to import
    """

    make: Callable[[random.Random], Tree]
    doors: Sequence[Callable[[Path, Path], object]]
    heavy: bool = False


def with_special(rule: random.Random, tree: Tree, share: float = 0.02) -> Tree:
    """Return the tree, seldom with a pipe, a device, a folder or a broken link for a file."""
    if rule.random() < share:
        tree = tree | {rule.choice(sorted(tree)): rule.choice(SPECIALS)}
    return tree
