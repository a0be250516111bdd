"""Weight decay d for the weights alone: MindSpore's optimizers, like torch's, go by g + d w."""

from mindspore import Parameter, nn

from labkit.base.arguments import number, wrong
from labkit.nets.initialisers import NORMS


def decay_groups(network: nn.Cell, weight_decay: float) -> list[dict]:
    """Return parameter groups for any ``nn.Optimizer``, in the order of ``trainable_params()``.

    A Parameter gets an explicit 0.0 instead of ``weight_decay`` >= 0 if a normalisation layer owns
    it (batch, layer, group, instance; ``nn`` and ``mint.nn``), or if its rank is 0 or 1.

    The usual list, ``[{"params": a, "weight_decay": d}, {"params": b}, ...]``, selected by names
    that contain 'beta', 'gamma' or 'bias', has two pitfalls: it misses mint.nn's normalisation
    layers (``weight``) and takes a layer called ``bias_net`` for a bias; and its second group gets
    the ``weight_decay`` given to the optimizer itself, not 0.

    Raises ``InputError`` if there is nothing to train, or ``weight_decay`` is not a number >= 0.
    """
    if not (parameters := network.trainable_params()):
        raise wrong("network", type(network).__name__, "a trainable Parameter")
    weight_decay = number("weight_decay", weight_decay, at_least=0)
    exempt = set()
    for _, cell in network.cells_and_names():
        if isinstance(cell, NORMS):
            exempt |= {id(parameter) for parameter in cell.get_parameters(expand=False)}
        elif isinstance(cell, nn.MultiheadAttention):  # biases of rank 3: further keys and values
            exempt |= {id(cell.bias_k), id(cell.bias_v)}
    groups: dict[float, list[Parameter]] = {weight_decay: [], 0.0: []}
    for parameter in parameters:
        decays = parameter.ndim > 1 and id(parameter) not in exempt
        groups[weight_decay if decays else 0.0].append(parameter)
    # MindSpore refuses a group without parameters.
    filled = [
        {"params": members, "weight_decay": decay} for decay, members in groups.items() if members
    ]
    return [*filled, {"order_params": parameters}]
