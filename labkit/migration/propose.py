"""Rules proposed for names that do not match, from the order, kind and shapes of cells."""

import difflib
import re
from collections.abc import Iterator, Mapping

from mindspore import nn

from labkit.migration.names import Rule, Shape, pairs, shapes_of

_OF_ONE_CELL = ("weight", "bias", "running_mean", "running_var")


def propose(network: nn.Cell, state: Mapping) -> list[Rule]:
    """Return rules under which the tensors of ``state``, arrays or shapes by name, may match.

    Cells are paired in the order of both sides where kind and shapes agree, and the tensors of one
    cell by their attributes: by order alone a BatchNorm's four tensors, all of one shape, would
    match and be wrong. Nothing proves the pairing: look at the rules, then compare the outputs.
    """
    ours = _cells({pair.torch: pair.torch_shape for pair in pairs(network)})
    theirs = _cells(shapes_of(state))
    paired: dict[int, int] = {}
    # First the cells of blocks with cells of the same kinds; then what is left.
    both = {kind for kind, _ in ours} & {kind for kind, _ in theirs}
    blocks = _blocks(ours, both), _blocks(theirs, both)
    for a, b in _aligned(*([kinds for kinds, _ in side] for side in blocks)):
        paired |= _paired(ours, theirs, blocks[0][a][1], blocks[1][b][1])
    left = [i for i in range(len(ours)) if i not in paired.values()]
    paired |= _paired(ours, theirs, left, [j for j in range(len(theirs)) if j not in paired])
    targets = {
        name: own
        for j, i in sorted(paired.items())
        for name, own in zip(theirs[j][1], ours[i][1], strict=True)
    }
    return _rules(targets, [name for _, names in theirs for name in names])


def _aligned(ours: list, theirs: list) -> list[tuple[int, int]]:
    """Return the places of equal elements, in the order of both."""
    blocks = difflib.SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks()
    return [(i + k, j + k) for i, j, size in blocks for k in range(size)]


def _paired(ours: list, theirs: list, left: list[int], free: list[int]) -> dict[int, int]:
    """Pair cells of one kind, theirs -> ours: in the order of both sides, then those left."""
    in_order = _aligned([ours[i][0] for i in left], [theirs[j][0] for j in free])
    paired = {free[b]: left[a] for a, b in in_order}
    for j in (j for j in free if j not in paired):
        same = (i for i in left if ours[i][0] == theirs[j][0] and i not in paired.values())
        if (i := next(same, None)) is not None:
            paired[j] = i
    return paired


def _blocks(cells: list[tuple[tuple, list[str]]], both: set) -> list[tuple[frozenset, list[int]]]:
    """Return (kinds that both sides have, cells) of what lies below each first number of a name."""
    blocks: dict[str, list[int]] = {}
    for place, (_, names) in enumerate(cells):
        numbered = re.match(r"(.*?\.\d+)\.", names[0])
        blocks.setdefault(numbered[1] if numbered else names[0], []).append(place)
    return [(frozenset(both.intersection(cells[i][0] for i in b)), b) for b in blocks.values()]


def _cells(shapes: Mapping[str, Shape]) -> list[tuple[tuple, list[str]]]:
    """Return (kind with shapes, names) of each cell, and of each tensor with a name of its own."""
    cells: dict[str, dict[str, str]] = {}
    for name in shapes:
        module, _, attribute = name.rpartition(".")
        cells.setdefault(module if attribute in _OF_ONE_CELL else f"{name}.", {})[attribute] = name
    listed = []
    for key, names in cells.items():
        own = sorted(names.items())
        sizes = ((a, tuple(n for n in shapes[name] if n != 1)) for a, name in own)
        kind = tuple(size if key.endswith(".") else (a, size) for a, size in sizes)
        listed.append((kind, [name for _, name in own]))
    return listed


def _rules(targets: Mapping[str, str], names: list[str]) -> list[Rule]:
    """Return few rules that turn each name into its target, and leave the others as they are."""
    now, wanted = {name: name for name in names}, set(targets.values())
    rules: list[Rule] = []
    while True:
        best: tuple[Rule | None, dict[str, str]] = None, {}
        for name, target in targets.items():
            if now[name] == target:
                continue
            for rule in _candidates(now[name], target):
                changed = {n: found[1][0] for n, old in now.items() if (found := rule.names(old))}
                # Names without a target may change too, as by a prefix that all have.
                right = all(
                    targets.get(n, new) == new and (n in targets or new not in wanted)
                    for n, new in changed.items()
                )
                if right and len(changed) > len(best[1]):
                    best = rule, changed
            if best[0]:
                break
        if best[0] is None:
            return rules
        rules.append(best[0])
        now |= best[1]


def _candidates(name: str, target: str) -> Iterator[Rule]:
    """Yield rules that turn ``name`` into ``target``, from the words that differ to all."""
    if name.endswith(f".{target}"):
        yield Rule("^" + re.escape(name.removesuffix(target)), "")
    old, new = name.split("."), target.split(".")
    most = min(len(old), len(new)) - 1
    tail = next((k for k in range(most) if old[-1 - k] != new[-1 - k]), most)
    head = next((k for k in range(most - tail) if old[k] != new[k]), most - tail)
    for first, last, general in ((head, tail, 1), (0, tail, 1), (0, 0, 1), (0, tail, 0), (0, 0, 0)):
        words, ours, at, groups = [], new[first : len(new) - last], 0, 0
        for word in map(re.escape, old[first : len(old) - last]):
            if general and word.isdigit() and word in ours[at:]:
                groups, at = groups + 1, ours.index(word, at) + 1
                ours[at - 1], word = rf"\{groups}", r"(\d+)"
            words.append(word)
        start, end = r"\b" if first else "^", r"\b" if last else "$"
        yield Rule(start + r"\.".join(words) + end, ".".join(ours))
