"""Parameters for ``reference.lenet_gradients``."""

import numpy as np

SHAPES = {
    "conv1": (6, 1, 5, 5),
    "conv2": (16, 6, 5, 5),
    "fc1": (120, 400),
    "fc2": (84, 120),
    "fc3": (10, 84),
}


def lenet_parameters(seed: int, *, conv_bias: bool = False) -> dict[str, np.ndarray]:
    """Return normal parameters by the names of ``LeNet5``: deviation 1 / sqrt(in), biases 0.1."""
    random = np.random.default_rng(seed)
    parameters = {}
    for name, shape in SHAPES.items():
        parameters[f"{name}.weight"] = random.normal(size=shape) / np.sqrt(np.prod(shape[1:]))
        if conv_bias or name.startswith("fc"):
            parameters[f"{name}.bias"] = random.normal(scale=0.1, size=shape[0])
    return parameters
