"""Parameters and gradients for the tests of optimizers, without a network."""

import numpy as np
from mindspore import Parameter, Tensor

SHAPES = {"wide": (3, 7), "bias": (5,), "tall": (6, 4), "scale": ()}


def parameters(dtype=np.float32, shapes=SHAPES):
    """One Parameter for each name and shape, with the same values at each call."""
    draw = np.random.default_rng(0)
    values = {name: np.asarray(draw.normal(0, 0.1, shape)) for name, shape in shapes.items()}
    return [Parameter(Tensor(value.astype(dtype)), name) for name, value in values.items()]


def gradients(updates, dtype=np.float32, shapes=SHAPES):
    """For each update a gradient for each of ``parameters``, of very different sizes."""
    draw = np.random.default_rng(1)
    sizes = 10.0 ** draw.integers(-4, 1, (updates, len(shapes)))
    return [
        [
            np.asarray(draw.normal(0, s, shape)).astype(dtype)
            for s, shape in zip(own, shapes.values(), strict=True)
        ]
        for own in sizes
    ]


def values(parameters):
    return [parameter.asnumpy().astype(np.float64) for parameter in parameters]


def apply(optimizer, parts):
    """Make an update of gradients given as arrays."""
    return optimizer(tuple(map(Tensor, parts)))
