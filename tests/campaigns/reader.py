"""What the campaign knows about a reader: how its inputs are made, and what reads them."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.campaigns.mutate import SPECIALS, Tree


@dataclass(frozen=True)
class Reader:
    """One reader.

    Attributes:
        make: function of a ``random.Random`` that makes an input: a damaged valid one, or a crafted
            one.
        doors: functions of the input's folder and of a folder to write to, each called once. They
            call labkit's own functions that read such a file.
        heavy: whether it needs MindSpore or PyTorch, which take seconds to import.
    """

    make: Callable[[random.Random], Tree]
    doors: Sequence[Callable[[Path, Path], object]]
    heavy: bool = False


def with_special(rule: random.Random, tree: Tree, share: float = 0.02) -> Tree:
    """Return the tree, rarely with a pipe, device, folder or broken link in place of a file."""
    if rule.random() < share:
        tree = tree | {rule.choice(sorted(tree)): rule.choice(SPECIALS)}
    return tree
