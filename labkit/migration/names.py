"""Which PyTorch tensor is which MindSpore parameter: a map made from the network's own cells.

The cells' paths are taken for the modules' paths (``renames`` says where they differ), and the
kind of cell says what its parameters are called and how they lie in memory:

    nn.BatchNorm*, nn.InstanceNorm*   gamma, beta, moving_mean, moving_variance
                                      <- weight, bias, running_mean, running_var
    nn.LayerNorm, nn.GroupNorm        gamma, beta <- weight, bias
    nn.Embedding, nn.EmbeddingLookup  embedding_table <- weight
    nn.PReLU                          w <- weight
    nn.Conv1d, nn.Conv1dTranspose     weight (out, in, 1, k) <- (out, in, k)
    everything else                   the same name and shape (mint.nn, Dense, Conv2d, Conv3d, LSTM)

``num_batches_tracked`` of PyTorch's BatchNorm counts batches and takes no part in training there
(its momentum is a number): MindSpore has no such parameter, so it is carried along beside them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from mindspore import nn
from mindspore.nn.layer.normalization import _BatchNorm, _InstanceNorm

from labkit.errors import InputError, nearest

COUNTER = "num_batches_tracked"
_NORM = {"gamma": "weight", "beta": "bias"}
_STATISTICS = {"moving_mean": "running_mean", "moving_variance": "running_var"}
# First match counts. (cells, names there -> here)
_RULES = (
    ((_BatchNorm, _InstanceNorm), _NORM | _STATISTICS),
    ((nn.LayerNorm, nn.GroupNorm), _NORM),
    ((nn.Embedding, nn.EmbeddingLookup), {"embedding_table": "weight"}),
    ((nn.PReLU,), {"w": "weight"}),
)
_ONE_DIMENSIONAL = (nn.Conv1d, nn.Conv1dTranspose)


@dataclass(frozen=True)
class Pair:
    """One parameter under both names, with both shapes (the same values in the same order)."""

    mindspore: str
    torch: str
    shape: tuple[int, ...]
    torch_shape: tuple[int, ...]


def pairs(network, renames: Mapping[str, str] | None = None) -> list[Pair]:
    """Return a ``Pair`` for each place of a parameter in ``network``, in its own order.

    A parameter that two cells share (tied weights) has two pairs, as it has two names in PyTorch.

    renames  parts of MindSpore paths -> parts of PyTorch paths, whole words between dots:
             ``{"end_point": "fc", "e2.0": "conv2"}``

    Raises ``InputError`` for a rename that changes no path, and where two parameters come out under
    one PyTorch name.
    """
    renames = dict(renames or {})
    unused, found = set(renames), []
    for path, cell in network.cells_and_names():
        for attribute, parameter in cell._params.items():
            if parameter is None:
                continue
            own = f"{path}.{_torch_attribute(cell, attribute)}" if path else attribute
            name, used = renamed(own, renames)
            unused -= used
            shape = tuple(parameter.shape)
            found.append(Pair(parameter.name, name, shape, _torch_shape(cell, shape)))
    if unused:
        raise InputError(f"renames that change no name of the network: {', '.join(sorted(unused))}")
    _refuse_twice(found)
    return found


@dataclass(frozen=True)
class Match:
    """What belongs together, and what does not.

    pairs       on both sides with the right shape
    missing     names of the network that the PyTorch tensors do not have
    unknown     names of the PyTorch tensors that the network does not have
    misshapen   (pair, shape that came)
    carried     ``num_batches_tracked`` of BatchNorms that are paired
    """

    pairs: tuple[Pair, ...]
    missing: tuple[str, ...]
    unknown: tuple[str, ...]
    misshapen: tuple[tuple[Pair, tuple[int, ...]], ...]
    carried: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether every parameter has its counterpart and nothing is left over."""
        return not (self.missing or self.unknown or self.misshapen)

    def __str__(self) -> str:
        lines = [f"{len(self.pairs)} parameters match, {len(self.carried)} counters are carried"]
        for name in self.missing:
            lines.append(f"  no PyTorch tensor for: {name}{nearest(name, self.unknown)}")
        lines += [f"  no parameter of the network for: {name}" for name in self.unknown]
        for pair, came in self.misshapen:
            hint = ": transposed?" if came == pair.torch_shape[::-1] else ""
            lines.append(f"  {pair.torch}: shape {came} came, expected {pair.torch_shape}{hint}")
        return "\n".join(lines)


def match(network, state: Mapping, renames: Mapping[str, str] | None = None) -> Match:
    """Hold the parameters of ``network`` against PyTorch tensors by name and shape.

    state    PyTorch name -> array (anything with a shape)
    renames  see ``pairs``
    """
    wanted = {pair.torch: pair for pair in pairs(network, renames)}
    shapes = {name: tuple(np.shape(value)) for name, value in state.items()}
    matched = [pair for name, pair in wanted.items() if shapes.get(name) == pair.torch_shape]
    modules = {pair.torch.rpartition(".")[0] for pair in matched if ".running_" in f".{pair.torch}"}
    carried = [
        name
        for name in shapes
        if name not in wanted
        and name.rpartition(".")[2] == COUNTER
        and name.rpartition(".")[0] in modules
    ]
    return Match(
        pairs=tuple(matched),
        missing=tuple(name for name in wanted if name not in shapes),
        unknown=tuple(name for name in shapes if name not in wanted and name not in carried),
        misshapen=tuple(
            (pair, shapes[name])
            for name, pair in wanted.items()
            if name in shapes and shapes[name] != pair.torch_shape
        ),
        carried=tuple(carried),
    )


def _torch_attribute(cell, attribute):
    for kinds, names in _RULES:
        if isinstance(cell, kinds):
            return names.get(attribute, attribute)
    return attribute


def _torch_shape(cell, shape):
    if isinstance(cell, _ONE_DIMENSIONAL) and len(shape) == 4:
        return shape[:2] + shape[3:]
    return shape


def renamed(name: str, renames: Mapping[str, str]) -> tuple[str, set[str]]:
    """Return a dotted name with every rename applied, longest first, and those that changed it."""
    used, text = set(), f".{name}."
    for old in sorted(renames, key=len, reverse=True):
        new = text.replace(f".{old}.", f".{renames[old]}.")
        if new != text:
            used.add(old)
        text = new
    return text.strip("."), used


def _refuse_twice(found):
    by_name = {}
    for pair in found:
        other = by_name.setdefault(pair.torch, pair)
        if other is not pair:
            raise InputError(
                f"{other.mindspore} and {pair.mindspore} both become {pair.torch}; check renames"
            )
