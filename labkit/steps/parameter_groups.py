r"""Weight decay for the weights alone, without decay of normalisation layers and biases.

With a group's weight decay d, MindSpore's optimizers, like torch.optim.SGD, update by g + d w.
"""

from collections.abc import Iterable

from mindspore import Parameter, nn

from labkit.base.arguments import number, wrong
from labkit.errors import InputError
from labkit.nets.initialisers import NORMS

# Biases of rank 3: vectors that are appended to keys and values.
_RANK_3_BIASES = {nn.MultiheadAttention: ("bias_k", "bias_v")}


def decay_groups(
    network: nn.Cell, weight_decay: float, *, exempt: Iterable[Parameter | nn.Cell] = ()
) -> list[dict]:
    """Return parameter groups for any ``nn.Optimizer``, in the order of ``trainable_params()``.

    Args:
        network: Cell whose trainable Parameters are grouped, each once.
        weight_decay: d >= 0 of the weights; everything else gets an explicit 0.0.
        exempt: further Parameters and Cells of the network that are not decayed.

    Raises:
        InputError: if the network has no trainable Parameters, ``weight_decay`` is negative or not
            finite, or ``exempt`` is not part of the network.

    A Parameter is not decayed if a normalisation layer owns it (batch, layer, group, instance;
    ``nn`` and ``mint.nn``), whatever its rank, or if its rank is 0 or 1: names do not matter. For a
    vector of shape (1, C, 1, 1) in a Cell of your own, use ``exempt``. A Parameter shared by two
    layers is decayed only if neither exempts it.

    The usual list, ``[{"params": a, "weight_decay": d}, {"params": b}, ...]``, selected by names
    that contain 'beta', 'gamma' or 'bias', has two pitfalls: it misses mint.nn's normalisation
    layers (``weight``) and takes a layer called ``bias_net`` for a bias; and its second group gets
    the ``weight_decay`` given to the optimizer itself, not 0.
    """
    if not isinstance(network, nn.Cell):
        raise InputError(f"network: expected a Cell, got a {type(network).__name__}")
    parameters = network.trainable_params()
    if not parameters:
        raise InputError(f"the network, a {type(network).__name__}, has no trainable Parameter")
    weight_decay = number("weight_decay", weight_decay, at_least=0)
    exempted = _owned_by_norms(network) | _exempted(network, exempt)
    groups: dict[float, list[Parameter]] = {weight_decay: [], 0.0: []}
    for parameter in parameters:
        decays = parameter.ndim > 1 and id(parameter) not in exempted
        groups[weight_decay if decays else 0.0].append(parameter)
    # MindSpore refuses a group without parameters.
    filled = [
        {"params": members, "weight_decay": decay} for decay, members in groups.items() if members
    ]
    return [*filled, {"order_params": parameters}]


def _owned_by_norms(network: nn.Cell) -> set[int]:
    """Return the ids of Parameters that are exempt because of the layer that owns them."""
    ids = set()
    for _, cell in network.cells_and_names():
        if isinstance(cell, NORMS):
            ids |= {id(parameter) for parameter in cell.get_parameters(expand=False)}
        for kind, attributes in _RANK_3_BIASES.items():
            if isinstance(cell, kind):
                ids |= {id(getattr(cell, attribute)) for attribute in attributes}
    return ids


def _exempted(network: nn.Cell, exempt: Iterable[Parameter | nn.Cell]) -> set[int]:
    """Return the ids of the Parameters in ``exempt``, all of which must be the network's."""
    known = {id(parameter) for parameter in network.get_parameters()}
    ids = set()
    # A Parameter or a Cell can be iterated over, too: its rows, its layers.
    for part in [exempt] if isinstance(exempt, Parameter | nn.Cell) else exempt:
        if not isinstance(part, Parameter | nn.Cell):
            raise wrong("exempt", part, "Parameters and Cells of the network")
        members = [part] if isinstance(part, Parameter) else part.get_parameters()
        for parameter in members:
            if id(parameter) not in known:
                raise wrong("exempt", parameter.name, "Parameters of the network")
            ids.add(id(parameter))
    return ids
