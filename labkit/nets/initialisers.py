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

``seed`` is what the migration document's train.py does: XavierUniform and TruncatedNormal() (which
is cut off at -2 and 2, not at two of its standard deviations of 0.01: it is a normal distribution).
``seed_table`` is what its table says instead: kaiming_normal_ is HeNormal, constant_ is Constant.
HeNormal's default is fan_in, while torchvision's ResNet uses fan_out (He et al. 2015, eq. 14): in a
1x1 convolution from 64 to 256 channels the table's weights are twice as large. ``pytorch`` is the
default of torch.nn's layers, kaiming_uniform_(a=sqrt(5)), and of MindSpore's nn.Conv2d and
nn.Dense, except that these draw from the global random state.
"""

import hashlib
import math
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.mint.nn.layer.normalization import _NormBase
from mindspore.nn.layer.normalization import _BatchNorm, _InstanceNorm

from labkit.base import arguments
from labkit.base.arguments import choice, names_checked
from labkit.errors import InputError

# Kinds of layers in MindSpore's ``nn`` and ``mint.nn``: the role of a Parameter follows from the
# Cell that owns it. Names are the user's choice, and ``nn`` and ``mint.nn`` call the same Parameter
# ``gamma`` and ``weight``. nn.BatchNorm3d is not in the list: it holds a layer that is.
NORMS = (
    _BatchNorm,
    _NormBase,
    _InstanceNorm,
    nn.LayerNorm,
    mint.nn.LayerNorm,
    nn.GroupNorm,
    mint.nn.GroupNorm,
)
CONVOLUTIONS_2D = (nn.Conv2d, mint.nn.Conv2d)
CONVOLUTIONS = (*CONVOLUTIONS_2D, nn.Conv1d, nn.Conv3d, mint.nn.Conv1d, mint.nn.Conv3d)
DENSE = (nn.Dense, mint.nn.Linear)

Random = np.random.Generator
Shape = tuple[int, ...]
Rule = Callable[[Random, Shape, Shape], np.ndarray]


def xavier_uniform(random: Random, shape: Shape, weight_shape: Shape) -> np.ndarray:
    bound = math.sqrt(6 / sum(_fans(weight_shape)))
    return random.uniform(-bound, bound, shape)


def kaiming_normal_fan_in(random: Random, shape: Shape, weight_shape: Shape) -> np.ndarray:
    return random.normal(0, math.sqrt(2 / _fans(weight_shape)[0]), shape)


def kaiming_normal_fan_out(random: Random, shape: Shape, weight_shape: Shape) -> np.ndarray:
    return random.normal(0, math.sqrt(2 / _fans(weight_shape)[1]), shape)


def uniform_fan_in(random: Random, shape: Shape, weight_shape: Shape) -> np.ndarray:
    bound = 1 / math.sqrt(_fans(weight_shape)[0])
    return random.uniform(-bound, bound, shape)


def normal_001(random: Random, shape: Shape, weight_shape: Shape) -> np.ndarray:
    return random.normal(0, 0.01, shape)


def zeros(random: Random, shape: Shape, weight_shape: Shape) -> np.ndarray:
    return np.zeros(shape)


def ones(random: Random, shape: Shape, weight_shape: Shape) -> np.ndarray:
    return np.ones(shape)


# Attributes of the layers of nn and mint.nn, including the running statistics.
_NORM_RULES = dict.fromkeys(("gamma", "weight", "moving_variance", "running_var"), ones)
_NORM_RULES |= dict.fromkeys(("beta", "bias", "moving_mean", "running_mean"), zeros)
_NORM_RULES |= {"num_batches_tracked": zeros}
_FAN_IN_RULES = {"weight": uniform_fan_in, "bias": uniform_fan_in}
_PYTORCH = ((CONVOLUTIONS + DENSE, _FAN_IN_RULES), (NORMS, _NORM_RULES))
# For each scheme (kinds of layers, {attribute: rule}); the first pair that fits a layer applies.
SCHEMES = {
    "seed": ((CONVOLUTIONS_2D, {"weight": xavier_uniform}), (DENSE, {"weight": normal_001})),
    "seed_table": ((CONVOLUTIONS_2D, {"weight": kaiming_normal_fan_in}), (NORMS, _NORM_RULES)),
    "torchvision": (
        (CONVOLUTIONS_2D, _FAN_IN_RULES | {"weight": kaiming_normal_fan_out}),
        *_PYTORCH,
    ),
    "pytorch": _PYTORCH,
}


@dataclass(frozen=True)
class Initialised:
    """Result of ``initialise``.

    Attributes:
        scheme: name of the scheme.
        seed: the seed that was used.
        rules: name of a Parameter -> name of its rule.
        untouched: names of the Parameters that no rule covers; they are unchanged.
    """

    scheme: str
    seed: int
    rules: dict[str, str]
    untouched: tuple[str, ...]

    def __str__(self) -> str:
        counts = Counter(self.rules.values())
        done = ", ".join(f"{count} {rule}" for rule, count in counts.items()) or "nothing"
        left = f"; untouched: {', '.join(self.untouched)}" if self.untouched else ""
        return f"{self.scheme}, seed {self.seed}: {done}{left}"


@names_checked
def initialise(network: nn.Cell, scheme: str, seed: int | None = None) -> Initialised:
    """Set the Parameters of ``network`` by ``scheme``, in place; report the rule of each.

    A Parameter's values depend only on the seed, its name (its present name: a Cell around the
    network may prefix it) and its shape, not on the global random state or on other layers.
    Frozen Parameters are set as well. Parameters that no rule covers (embeddings, recurrent and
    transposed layers, a Cell's own Parameters) are left unchanged, and listed.

    Args:
        network: the Cell.
        scheme: a name of ``SCHEMES``; see the docstring of this module.
        seed: 0 .. 2**32 - 1; None: the seed given to ``labkit.start`` or, if there is none, a new
            one, which the result contains.

    Raises:
        InputError: if the scheme is unknown, the seed is out of range, ``network`` is not a Cell,
            or a Parameter is shared by two layers whose rules differ.
    """
    choice("scheme", scheme, SCHEMES)
    if not isinstance(network, nn.Cell):
        raise InputError(f"network: expected a Cell, got a {type(network).__name__}")
    seed = _default_seed() if seed is None else arguments.seed(seed)
    chosen: dict[int, tuple[Parameter, Rule, Shape]] = {}
    for _, cell in network.cells_and_names():
        for parameter, rule, weight_shape in _rules_of(cell, SCHEMES[scheme]):
            _, other, _ = chosen.setdefault(id(parameter), (parameter, rule, weight_shape))
            if other is not rule:
                raise InputError(
                    f"{parameter.name!r} is shared by layers of different rules, {other.__name__} "
                    f"and {rule.__name__}; expected one rule for each Parameter"
                )
    for parameter, rule, weight_shape in chosen.values():
        value = rule(_random(seed, parameter.name), parameter.shape, weight_shape)
        # As in steps.state.set_state, which says when a graph that has run ignores set_data.
        ops.assign(parameter, Tensor(value, parameter.dtype))
    return Initialised(
        scheme,
        seed,
        {parameter.name: rule.__name__ for parameter, rule, _ in chosen.values()},
        tuple(p.name for p in network.get_parameters() if id(p) not in chosen),
    )


def _rules_of(cell: nn.Cell, scheme: tuple) -> Iterator[tuple[Parameter, Rule, Shape]]:
    """Yield (Parameter, rule, shape of the layer's weight) for Parameters of ``cell`` itself."""
    for kinds, rules in scheme:
        if isinstance(cell, kinds):
            weight = getattr(cell, "weight", None)
            for attribute, rule in rules.items():
                parameter = getattr(cell, attribute, None)
                if isinstance(parameter, Parameter):
                    yield parameter, rule, getattr(weight, "shape", ())
            return


def _fans(shape: Shape) -> tuple[int, int]:
    """Return (fan_in, fan_out) of a weight (out, in, k...)."""
    area = math.prod(shape[2:])
    return shape[1] * area, shape[0] * area


def _random(seed: int, name: str) -> Random:
    """Return a random generator that depends only on a seed and a name."""
    words = np.frombuffer(hashlib.sha256(name.encode()).digest(), np.uint32)
    return np.random.default_rng([seed, *words.tolist()])


def _default_seed() -> int:
    known = ms.get_seed()
    return secrets.randbits(32) if known is None else int(known)
