"""Other weights for a while: an average of them, or those of a checkpoint."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from mindspore import Tensor, nn

from labkit.base.arguments import wrong
from labkit.steps.state import set_state


@contextmanager
def swapped(network: nn.Cell, values: Mapping[str, Any]) -> Iterator[None]:
    """Give Parameters of a network other values inside a ``with``, and their own back after it.

    ``values``: name -> array, Tensor or Parameter of the shape of the network's Parameter. Names
    that it lacks keep their values. Raises ``InputError`` for an unknown name or another shape.

    >>> with swapped(network, averages):
    ...     results = evaluate(network, loss_fn, validation)
    """
    own, others = {parameter.name: parameter for parameter in network.get_parameters()}, {}
    for name, value in values.items():
        if name not in own or np.shape(value) != own[name].shape:
            expected = f"the shape {own[name].shape}" if name in own else "names in the network"
            raise wrong(f"values[{name!r}]", np.shape(value), expected)
        others[name] = Tensor(value, own[name].dtype)
    kept = {name: own[name].clone() for name in others}
    try:
        for name, value in others.items():
            set_state(own[name], value)
        yield
    finally:
        for name, value in kept.items():
            set_state(own[name], value)
