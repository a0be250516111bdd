r"""Less BatchNorm: a normalised last layer, and residual blocks that normalise their sum alone.

    y = m  x / |x|  (W / |W|)^T        in place of y = x W^T + b, by row; m one trained number
    |v| = sqrt(max(sum of v^2, 1e-4))  the epsilon of MindSpore's L2Normalize

Of a residual block's BatchNorms only the last one of its main branch is left.

Source: ``mindspore.boost.LessBN`` and ``CommonHeadLastFN`` (2.10.0), and the compiler's pass
``mindspore/ccsrc/frontend/optimizer/irpass/less_batch_normalization.cc`` (patterns 1 to 6), which
works on CPU too. The formula there has a bias; what ``LessBN`` builds has none, nor is one here.
Departures:
- slopes are those of this formula; those of MindSpore's L2Normalize divide by the length itself
  below the epsilon, on CPU: five times too much for a row as short as 2e-3;
- one Dense, the network's last; MindSpore takes the last one of each Cell that holds some, and
  leaves the old one at work where that is a SequentialCell;
- blocks are known by their Cells: an attribute ``downsample``, ``down_sample...`` or
  ``shortcut...``, and two or three pairs of convolution and BatchNorm of their own. The pass looks
  for the operators of ``main + shortcut`` in a graph: it misses ``shortcut + main``, all of
  PyNative mode, a first block behind a max-pool with a padding of its own, and the last block of
  ResNets here; inverted residuals (MobileNetV2) and dense blocks, which it knows, stay whole here;
- Cells are exchanged in place, so that the network is the same function in every mode and where it
  is evaluated; names and the Parameter of the weight stay as they are. A checkpoint of it is for
  networks that went through ``less_bn``: any other network takes ``fc.weight`` without an error;
- gradients are not centralised (``gc_flag``): MindSpore does it for weights whose second axis is a
  multiple of 16, by an operator that the CPU has not.
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
_LISTS = ("params", "order_params")  # of Parameters, in an optimizer's group
_BATCH_NORMS = (nn.BatchNorm2d, nn.SyncBatchNorm)


class NormalisedDense(nn.Cell):
    """Dense layer of directions: (..., in) -> (..., out), each output a cosine times m.

    Args:
        dense: whose weight and activation it has; a bias it has not.
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
    """Return v / |v| of each row (N, D), of the type it has; in float32, where squares fit."""
    wide = ops.cast(rows, ms.float32)
    squares = ops.expand_dims(ops.reduce_sum(wide * wide, 1), 1)
    return ops.cast(wide / ops.sqrt(ops.maximum(squares, EPSILON)), rows.dtype)


@dataclass(frozen=True)
class Conversion:
    """What ``less_bn`` has changed.

    Attributes:
        dense: name of the Dense that is normalised; "" for none.
        batch_norms: names of the BatchNorms that were taken out.
    """

    dense: str
    batch_norms: tuple[str, ...]

    def text(self) -> str:
        """Return what was done in one line."""
        dense = f"the last Dense `{self.dense}` is normalised" if self.dense else "no Dense changed"
        return f"less_bn: {dense}; {len(self.batch_norms)} BatchNorms taken out"


@names_checked
def less_bn(network: nn.Cell, *, fn_flag: bool = True) -> Conversion:
    """Normalise the last Dense of a network and take BatchNorms out of its residual blocks.

    In place, and before the optimizer is made; ``fit_to`` makes one that is there again. A second
    call changes nothing.

    Args:
        network: or a loss net.
        fn_flag: whether the Dense is normalised.

    Returns:
        What was done.

    Raises:
        InputError: where there is no Dense, and ``fn_flag`` asks for one.

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
    """Return the optimizer, or one of its kind and arguments over what the network has to train.

    A multiplier joins its weight's group. MindSpore makes all optimizers again.

    Args:
        optimizer: that may have been made before ``less_bn``.
        network: that ``less_bn`` has changed.

    Raises:
        InputError: for an optimizer that has made updates, or cannot be made again: ``nn.LARS``,
            and schedules of a group of their own.
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
    rate = optimizer.learning_rate if rate is None else rate  # None for one that is a Cell
    arguments = dict(optimizer.init_args)
    arguments |= arguments.pop("kwargs", {})  # nn.Adam's own; MindSpore's copy of an Adam fails
    return type(optimizer)(groups, learning_rate=rate, **arguments)


def _spared(cell: nn.Cell) -> Iterator[tuple[str, nn.Cell, str]]:
    """Yield (name, parent, name there) of the BatchNorms that a residual block does without."""
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
