"""Match PyTorch tensors with MindSpore parameters, by a map made from the network's own cells.

The paths of cells are assumed to be those of PyTorch's modules, except for ``renames``. The type of
a cell determines the names of its parameters and their layout, by the rules below; all others have
the same name and shape (mint.nn, Dense, Conv2d, Conv3d, and LSTM, GRU, RNN: the same order of
gates, the same two biases). tests/migration/test_layers.py compares each with PyTorch.

``num_batches_tracked`` of PyTorch's BatchNorm counts batches and does not affect training if
momentum is a number; MindSpore has no such parameter, so it is carried beside the parameters.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from mindspore import Parameter, nn
from mindspore.nn.layer.normalization import _BatchNorm, _InstanceNorm

from labkit.errors import InputError, nearest

COUNTER = "num_batches_tracked"
_NORM = {"gamma": "weight", "beta": "bias"}
_STATISTICS = {"moving_mean": "running_mean", "moving_variance": "running_var"}
# The first match counts: (cells, attribute -> name in PyTorch). InstanceNorm's statistics, never
# read, have none, as with PyTorch's track_running_stats=False.
_RULES = (
    ((_BatchNorm,), _NORM | _STATISTICS),
    ((_InstanceNorm,), _NORM | dict.fromkeys(_STATISTICS)),
    ((nn.LayerNorm, nn.GroupNorm), _NORM),
    ((nn.Embedding, nn.EmbeddingLookup), {"embedding_table": "weight"}),
    ((nn.PReLU,), {"w": "weight"}),
)
_ONE_DIMENSIONAL = (nn.Conv1d, nn.Conv1dTranspose)  # weight (out, in, 1, k) <- (out, in, k)


@dataclass(frozen=True)
class Pair:
    """One parameter under both names, with its shape in PyTorch."""

    mindspore: str
    torch: str
    torch_shape: tuple[int, ...]


def pairs(network: nn.Cell, renames: Mapping[str, str] | None = None) -> list[Pair]:
    """Return a ``Pair`` for each place of a parameter in ``network``, in the network's order.

    A parameter that two cells share (tied weights) has two pairs, as it has two names in PyTorch.
    ``renames`` are parts of MindSpore paths -> parts of PyTorch paths, whole words between dots:
    ``{"end_point": "fc", "e2.0": "conv2"}``.

    Raises:
        InputError: if a rename changes no path, two names are the same, or a cell computes
            something else than PyTorch's module.
    """
    unused = set(renames or {})
    paired: dict[str, Pair] = {}
    parameters: dict[str, Parameter] = {}
    for path, cell in _places(network):
        if isinstance(cell, nn.Conv2dTranspose) and np.any(cell.output_padding):
            why = "with output_padding appends zeros where PyTorch's computes values"
            raise InputError(f"{'.'.join(path) or 'the network'}: nn.Conv2dTranspose {why}")
        names = next((names for kinds, names in _RULES if isinstance(cell, kinds)), {})
        for attribute, parameter in cell._params.items():
            attribute = names.get(attribute, attribute)
            if parameter is None or attribute is None:
                continue
            name, used = renamed(".".join((*path, attribute)), renames or {})
            unused -= used
            shape = tuple(parameter.shape)
            if isinstance(cell, _ONE_DIMENSIONAL) and len(shape) == 4:
                shape = shape[:2] + shape[3:]
            if name in paired:
                both = f"{paired[name].mindspore} and {parameter.name}"
                raise InputError(f"{both} both become {name}; check renames")
            paired[name] = Pair(parameter.name, name, shape)
            if parameters.setdefault(parameter.name, parameter) is not parameter:
                raise InputError(f"two parameters of the network are called {parameter.name}")
    if unused:
        raise InputError(f"renames that change no name of the network: {', '.join(sorted(unused))}")
    return list(paired.values())


def _places(cell: nn.Cell, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple, nn.Cell]]:
    """Yield (path, cell) for each place in a network; a cell used in two places comes twice."""
    yield path, cell
    for name, child in cell._cells.items():
        if child is not None:
            # nn.BatchNorm3d holds its parameters in an inner cell ``bn2d``.
            yield from _places(child, path if isinstance(cell, nn.BatchNorm3d) else (*path, name))


@dataclass(frozen=True)
class Match:
    """The parameters and tensors that belong together, and those that do not."""

    pairs: tuple[Pair, ...]  # parameters that both sides have, with the right shape
    carried: tuple[str, ...]  # ``num_batches_tracked`` of BatchNorms that are paired
    problems: tuple[str, ...]  # a line for each other name of either side

    def __str__(self) -> str:
        found = f"{len(self.pairs)} parameters match, {len(self.carried)} counters are carried"
        return "\n  ".join((found, *self.problems))


def match(network: nn.Cell, state: Mapping, renames: Mapping[str, str] | None = None) -> Match:
    """Match the parameters of ``network`` with PyTorch tensors, arrays by name, by their shapes."""
    wanted = {pair.torch: pair for pair in pairs(network, renames)}
    shapes = {name: tuple(np.shape(value)) for name, value in state.items()}
    unknown = [name for name in shapes if name not in wanted]
    of_norms = {name.replace("running_var", COUNTER) for name in wanted}
    carried = tuple(name for name in unknown if name in of_norms)
    unknown = [name for name in unknown if name not in carried]
    matched, problems = [], []
    for name, pair in wanted.items():
        expected, shape = pair.torch_shape, shapes.get(name)
        if shape == expected:
            matched.append(pair)
        elif shape is None:
            problems.append(f"no PyTorch tensor for: {name}{nearest(name, unknown)}")
        else:
            hint = ": transposed?" if shape == expected[::-1] else ""
            problems.append(f"{name}: shape {shape}, expected {expected}{hint}")
    problems += [f"no parameter of the network for: {name}" for name in unknown]
    return Match(tuple(matched), carried, tuple(problems))


def renamed(name: str, renames: Mapping[str, str]) -> tuple[str, set[str]]:
    """Return a dotted name with every rename applied, and the renames that changed it.

    One pass from the left, the longest rename first, so that two names can be swapped. A part
    renamed to an empty text is left out.
    """
    if not renames:
        return name, set()
    olds = sorted(renames, key=lambda old: -old.count("."))
    whole_words = re.compile(rf"(?<![^.])(?:{'|'.join(map(re.escape, olds))})(?![^.])")
    words = whole_words.sub(lambda found: renames[found[0]], name).split(".")
    return ".".join(filter(None, words)), set(whole_words.findall(name))
