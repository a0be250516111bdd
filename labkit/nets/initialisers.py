r"""Initial weights by a named scheme, from a seed and the Parameter's name.

fan_in and fan_out of a weight (out, in, k...) are in * prod(k) and out * prod(k); for a grouped
convolution, in is counted per group, as in PyTorch and MindSpore. U(b) is uniform in [-b, b), N(s)
normal with standard deviation s.

    scheme       weight of Conv2d                 everything else
    seed         U(sqrt(6 / (fan_in + fan_out)))  dense weights N(0.01); the rest untouched
    seed_table   N(sqrt(2 / fan_in))              normalisation 1 and 0; the rest untouched
    torchvision  N(sqrt(2 / fan_out))             as pytorch
    pytorch      U(1 / sqrt(fan_in))              convolutions and dense layers U(1 / sqrt(fan_in)),
                                                  also their biases; normalisation 1 and 0

``seed`` is what the migration document's train.py does: XavierUniform and TruncatedNormal(), which
is cut off at -2 and 2, not at two of its standard deviations of 0.01. ``seed_table`` is what its
table says instead: kaiming_normal_ is HeNormal, whose default is fan_in, while torchvision's ResNet
uses fan_out (He et al. 2015, eq. 14). ``pytorch`` is the default of torch.nn's layers and of
MindSpore's nn.Conv2d and nn.Dense, except that these draw from the global random state.
"""

import hashlib
import math
from collections import Counter

import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.mint.nn.layer.normalization import _NormBase
from mindspore.nn.layer.normalization import _BatchNorm, _InstanceNorm

from labkit.base.arguments import choice
from labkit.errors import InputError

# The role of a Parameter follows from the Cell that owns it. nn.BatchNorm3d holds a BatchNorm2d.
NORMS = (_BatchNorm, _NormBase, _InstanceNorm, nn.LayerNorm, mint.nn.LayerNorm, nn.GroupNorm,
         mint.nn.GroupNorm)  # fmt: skip
CONVOLUTIONS_2D = (nn.Conv2d, mint.nn.Conv2d)
CONVOLUTIONS = (*CONVOLUTIONS_2D, nn.Conv1d, nn.Conv3d, mint.nn.Conv1d, mint.nn.Conv3d)
DENSE = (nn.Dense, mint.nn.Linear)

# Rule -> (whether it is uniform, its bound or else its standard deviation).
_DRAWN = {
    "xavier_uniform": (True, lambda fan_in, fan_out: math.sqrt(6 / (fan_in + fan_out))),
    "uniform_fan_in": (True, lambda fan_in, fan_out: 1 / math.sqrt(fan_in)),
    "kaiming_normal_fan_in": (False, lambda fan_in, fan_out: math.sqrt(2 / fan_in)),
    "kaiming_normal_fan_out": (False, lambda fan_in, fan_out: math.sqrt(2 / fan_out)),
    "normal_001": (False, lambda fan_in, fan_out: 0.01),
}
# Attribute -> rule. nn and mint.nn call the same Parameter gamma and weight.
_OF_NORMS = dict.fromkeys(("gamma", "weight", "moving_variance", "running_var"), "ones")
_OF_NORMS |= dict.fromkeys(("beta", "bias", "moving_mean", "running_mean"), "zeros")
_OF_NORMS |= {"num_batches_tracked": "zeros"}
_FAN_IN = {"weight": "uniform_fan_in", "bias": "uniform_fan_in"}
_PYTORCH = ((CONVOLUTIONS + DENSE, _FAN_IN), (NORMS, _OF_NORMS))
# For each scheme (kinds of layers, {attribute: rule}); the first pair that fits a layer applies.
SCHEMES = {
    "seed": ((CONVOLUTIONS_2D, {"weight": "xavier_uniform"}), (DENSE, {"weight": "normal_001"})),
    "seed_table": ((CONVOLUTIONS_2D, {"weight": "kaiming_normal_fan_in"}), (NORMS, _OF_NORMS)),
    "torchvision": ((CONVOLUTIONS_2D, _FAN_IN | {"weight": "kaiming_normal_fan_out"}), *_PYTORCH),
    "pytorch": _PYTORCH,
}


def initialise(network: nn.Cell, scheme: str, seed: int) -> str:
    """Set the Parameters of ``network`` by ``scheme``, in place, frozen ones too.

    A Parameter's values depend only on the seed, an integer >= 0, on its name (its present name: a
    Cell around the network may prefix it) and on its shape. Returns how many Parameters each rule
    has set, and the names of those that no rule covers.

    Raises:
        InputError: if the scheme is unknown, or a Parameter is shared by layers of different rules.
    """
    choice("scheme", scheme, SCHEMES)
    chosen: dict[int, tuple[Parameter, str, nn.Cell]] = {}
    for _, cell in network.cells_and_names():
        rules = next((rules for kinds, rules in SCHEMES[scheme] if isinstance(cell, kinds)), {})
        for attribute, rule in rules.items():
            parameter = getattr(cell, attribute, None)
            if isinstance(parameter, Parameter):
                _, other, _ = chosen.setdefault(id(parameter), (parameter, rule, cell))
                if other != rule:
                    which = f"{parameter.name!r} is shared by layers of different rules"
                    raise InputError(f"{which}: {other} and {rule}")
    for parameter, rule, cell in chosen.values():
        # As in steps.state.set_state, which says when a graph that has run ignores set_data.
        ops.assign(parameter, Tensor(_value(parameter, rule, cell, seed), parameter.dtype))
    counts = Counter(rule for _, rule, _ in chosen.values())
    done = ", ".join(f"{count} {rule}" for rule, count in counts.items()) or "nothing"
    left = ", ".join(p.name for p in network.get_parameters() if id(p) not in chosen)
    return f"{scheme}, seed {seed}: {done}" + (f"; untouched: {left}" if left else "")


def _value(parameter: Parameter, rule: str, cell: nn.Cell, seed: int) -> np.ndarray:
    if rule in ("zeros", "ones"):
        return np.full(parameter.shape, float(rule == "ones"))
    words = np.frombuffer(hashlib.sha256(parameter.name.encode()).digest(), np.uint32)
    random = np.random.default_rng([seed, *words.tolist()])
    outs, ins, *kernel = cell.weight.shape
    uniform, scale_of = _DRAWN[rule]
    scale = scale_of(ins * math.prod(kernel), outs * math.prod(kernel))
    if uniform:
        return random.uniform(-scale, scale, parameter.shape)
    return random.normal(0, scale, parameter.shape)
