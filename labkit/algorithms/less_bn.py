r"""Less BatchNorm: a normalised last layer, and residual blocks with one BatchNorm each.

    y = m  x / |x|  (W / |W|)^T        in place of y = x W^T + b, by row; m one trained number
    |v| = sqrt(max(sum of v^2, 1e-4))  the epsilon of MindSpore's L2Normalize

A residual block keeps only the last BatchNorm of its main branch.

Source: ``mindspore.boost.LessBN`` and ``CommonHeadLastFN`` (2.10.0), and the compiler's pass
``mindspore/ccsrc/frontend/optimizer/irpass/less_batch_normalization.cc`` (patterns 1 to 6), which
works on CPU too. The documented formula has a bias; the layer that ``LessBN`` builds does not, and
neither does labkit's. Departures:
- derivatives are those of this formula; on CPU, those of MindSpore's L2Normalize divide by the
  length itself below the epsilon: five times too much for a row of length 2e-3;
- one Dense, the network's last; MindSpore takes the last one of each Cell that holds any, and
  leaves the old one in effect if that Cell is a SequentialCell;
- blocks are recognised by their Cells: an attribute ``downsample``, ``down_sample...`` or
  ``shortcut...``, and two or three pairs of convolution and BatchNorm of their own. The pass looks
  for the operators of ``main + shortcut`` in a graph: it misses ``shortcut + main``, all of
  PyNative mode, a first block after a max-pool with its own padding, and the last block of labkit's
  ResNets; inverted residuals (MobileNetV2) and dense blocks, which it recognises, stay whole in
  labkit;
- Cells are exchanged in place, so that the network is the same function in every mode and in
  evaluation; names and the Parameter of the weight are unchanged. Load its checkpoints only into
  networks changed by ``less_bn``: any other network accepts ``fc.weight`` without an error;
- gradients are not centralised (``gc_flag``): MindSpore does it for weights whose second axis is a
  multiple of 16, by an operator that does not exist on CPU.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from labkit.base.arguments import flag, names_checked
from labkit.errors import InputError
from labkit.nets.layers import exchange
from labkit.steps.state import integer_of

EPSILON = 1e-4
_SHORTCUTS = ("downsample", "down_sample", "shortcut")
_LISTS = ("params", "order_params")  # lists of Parameters in an optimizer's group
_BATCH_NORMS = (nn.BatchNorm2d, nn.SyncBatchNorm)


class NormalisedDense(nn.Cell):
    """Dense layer of directions: (..., in) -> (..., out), each output a cosine times m.

    Args:
        dense: layer whose weight and activation it takes; it has no bias.
    """

    def __init__(self, dense: nn.Dense):
        super().__init__()
        self.weight = dense.weight
        name = f"{dense.weight.name.removesuffix('weight')}multiplier"
        self.multiplier = Parameter(Tensor([1.0], ms.float32), name=name)
        self.activation = dense.activation if dense.activation_flag else nn.Identity()
        self.matmul = ops.MatMul(transpose_b=True)

    def construct(self, inputs: Tensor) -> Tensor:
        rows = directions(ops.reshape(inputs, (-1, inputs.shape[-1])))
        cosines = self.matmul(rows, ops.cast(directions(self.weight), rows.dtype))
        outputs = ops.cast(self.multiplier, rows.dtype) * cosines
        return self.activation(ops.reshape(outputs, (*inputs.shape[:-1], -1)))


def directions(rows: Tensor) -> Tensor:
    """Return v / |v| of each row (N, D) in its type, computed in float32, where squares fit."""
    wide = ops.cast(rows, ms.float32)
    squares = ops.expand_dims(ops.reduce_sum(wide * wide, 1), 1)
    return ops.cast(wide / ops.sqrt(ops.maximum(squares, EPSILON)), rows.dtype)


@dataclass(frozen=True)
class Conversion:
    """What ``less_bn`` has changed.

    Attributes:
        dense: name of the Dense that is normalised; "" for none.
        batch_norms: names of the BatchNorms that were removed.
    """

    dense: str
    batch_norms: tuple[str, ...]

    def text(self) -> str:
        """Return a one-line summary."""
        dense = f"the last Dense `{self.dense}` is normalised" if self.dense else "no Dense changed"
        return f"less_bn: {dense}; {len(self.batch_norms)} BatchNorms taken out"


@names_checked
def less_bn(network: nn.Cell, *, fn_flag: bool = True) -> Conversion:
    """Normalise the last Dense of a network and remove BatchNorms from its residual blocks.

    Changes the network in place. Call it before making the optimizer; ``fit_to`` makes an existing
    one again. A second call changes nothing.

    Args:
        network: network or loss net.
        fn_flag: whether the Dense is normalised.

    Returns:
        The changes that were made.

    Raises:
        InputError: if there is no Dense and ``fn_flag`` is True.

    >>> network = resnet18(10)
    >>> print(less_bn(network).text())
    """
    flag("fn_flag", fn_flag)
    cells = list(network.cells_and_names())
    dense = [
        (_joined(path, name), parent, name, child)
        for path, parent in cells
        for name, child in parent.name_cells().items()
        if isinstance(child, nn.Dense)
    ]
    normalises = fn_flag and not any(isinstance(cell, NormalisedDense) for _, cell in cells)
    if normalises and not dense:
        raise InputError("less_bn normalises the last nn.Dense: expected one in the network, got 0")
    spared = [(path, *place) for path, cell in cells for place in _spared(cell)]
    for _, _, parent, name in spared:
        exchange(parent, name, nn.Identity())
    names = tuple(_joined(path, full_name) for path, full_name, *_ in spared)
    if not normalises:
        return Conversion("", names)
    full_name, parent, name, last = dense[-1]
    exchange(parent, name, NormalisedDense(last))
    return Conversion(full_name, names)


@names_checked
def fit_to(optimizer: nn.Optimizer, network: nn.Cell) -> nn.Optimizer:
    """Return the optimizer, or one made again, with its arguments, for the network's parameters.

    A multiplier joins its weight's group. MindSpore makes all optimizers again.

    Args:
        optimizer: optimizer that may have been made before ``less_bn``.
        network: network that ``less_bn`` has changed.

    Raises:
        InputError: if the optimizer no longer fits and has made updates or cannot be made again:
            ``nn.LARS``, and groups with a learning rate of their own.
    """
    there = {id(parameter) for parameter in network.get_parameters()}
    held = {id(parameter) for parameter in optimizer.parameters}
    layers = [cell for _, cell in network.cells_and_names() if isinstance(cell, NormalisedDense)]
    added = {id(each.weight): each.multiplier for each in layers if id(each.multiplier) not in held}
    if held <= there and not held & added.keys():
        return optimizer
    remakable = hasattr(optimizer, "init_args") and not isinstance(optimizer, nn.LARS)
    if not remakable or optimizer.is_group_lr or integer_of(optimizer.global_step[0]):
        raise InputError(
            f"less_bn changes the network's parameters, and this {type(optimizer).__name__} cannot "
            "be made again for them; expected less_bn(network) before the optimizer is made"
        )

    def changed(parameters: Iterable[Parameter]) -> list[Parameter]:
        kept = [parameter for parameter in parameters if id(parameter) in there]
        return kept + [added[id(parameter)] for parameter in kept if id(parameter) in added]

    groups: list[Any] = changed(optimizer.parameters)
    if optimizer.is_group:
        given = optimizer.init_params["params"]
        parts = [group | {n: changed(group[n]) for n in _LISTS if n in group} for group in given]
        groups = [group for group in parts if any(group.get(name) for name in _LISTS)]
    rate = optimizer.init_learning_rate
    rate = optimizer.learning_rate if rate is None else rate  # None if it is a Cell
    arguments = dict(optimizer.init_args)
    arguments |= arguments.pop("kwargs", {})  # nn.Adam's own; MindSpore's copy of an Adam fails
    return type(optimizer)(groups, learning_rate=rate, **arguments)


def _spared(cell: nn.Cell) -> Iterator[tuple[str, nn.Cell, str]]:
    """Yield (name, parent, name in it) of the BatchNorms to remove from a residual block."""
    if not any(name.startswith(_SHORTCUTS) for name in (*vars(cell), *cell.name_cells())):
        return
    children = cell.name_cells().items()
    own = [(name, each) for name, each in children if _is_convolution(each) or _is_norm(each)]
    convolutions, norms = own[::2], own[1::2]
    paired = all(_is_convolution(c) for _, c in convolutions) and all(_is_norm(n) for _, n in norms)
    if not paired or len(convolutions) != len(norms) or len(norms) not in (2, 3):
        return
    for name, _ in norms[:-1]:
        yield name, cell, name
    for name, branch in children:
        parts = list(branch.name_cells().items())
        if name.startswith(_SHORTCUTS) and len(parts) == 2 and _is_norm(parts[1][1]):
            yield f"{name}.{parts[1][0]}", branch, parts[1][0]


def _is_norm(cell: nn.Cell) -> bool:
    return isinstance(cell, _BATCH_NORMS)


def _is_convolution(cell: nn.Cell) -> bool:
    weight = getattr(cell, "weight", None)
    return isinstance(weight, Parameter) and weight.ndim == 4


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}".strip(".")
