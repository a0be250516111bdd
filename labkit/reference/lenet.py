"""LeNet-5 of ``labkit.nets.lenet`` with softmax cross entropy, forward and backward by hand."""

import numpy as np

from labkit.reference.convolution import Window, convolution_slopes, convolve
from labkit.reference.thor import Layer, Parameters

_WINDOW = Window((5, 5))
_DENSE = ("fc1", "fc2", "fc3")


def lenet_gradients(
    parameters: Parameters, images: np.ndarray, labels: np.ndarray
) -> tuple[float, Parameters, list[Layer]]:
    """Return (mean loss, gradients by name, the layers with their inputs and derivatives).

    images (N, C, 32, 32), labels (N,) integers; parameters by the names of ``LeNet5``.
    """
    x, inputs, active = np.asarray(images, dtype=np.float64), {}, {}
    for name in ("conv1", "conv2"):
        inputs[name] = x
        weight, bias = parameters[f"{name}.weight"], parameters.get(f"{name}.bias")
        active[name] = np.maximum(convolve(x, weight, bias, _WINDOW), 0.0)
        x = _windows(active[name]).max(axis=-1)  # max pooling, (N, C, H/2, W/2)
    pooled_shape, x = x.shape, x.reshape(len(x), -1)
    for name in _DENSE:
        inputs[name] = x
        output = x @ parameters[f"{name}.weight"].T + parameters[f"{name}.bias"]
        x = active[name] = np.maximum(output, 0.0)
    loss, slope = cross_entropy(output, labels)
    gradients: Parameters = {}
    layers: list[Layer] = []
    for name in reversed(_DENSE):
        if name != "fc3":
            slope = slope * (active[name] > 0)
        layers.insert(0, Layer(name, inputs[name], slope))
        gradients[f"{name}.weight"] = slope.T @ inputs[name]
        gradients[f"{name}.bias"] = slope.sum(axis=0)
        slope = slope @ parameters[f"{name}.weight"]
    slope = slope.reshape(pooled_shape)
    for name in ("conv2", "conv1"):
        slope = max_pool_slope(active[name], slope) * (active[name] > 0)
        layers.insert(0, Layer(name, inputs[name], slope, _WINDOW))
        weight = parameters[f"{name}.weight"]
        slope, by_weight, by_bias = convolution_slopes(inputs[name], weight, slope, _WINDOW)
        gradients[f"{name}.weight"] = by_weight
        if f"{name}.bias" in parameters:
            gradients[f"{name}.bias"] = by_bias
    return loss, {name: gradients[name] for name in parameters}, layers


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
    """Return (mean softmax cross entropy, its slope with respect to the logits (N, C))."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_probability = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    rows = np.arange(len(labels))
    slope = np.exp(log_probability)
    slope[rows, labels] -= 1.0
    return float(-log_probability[rows, labels].mean()), slope / len(labels)


def max_pool_slope(x: np.ndarray, derivatives: np.ndarray) -> np.ndarray:
    """Return dL/dx of max pooling over 2 x 2 windows; of equal maxima the first one gets it all."""
    windows = _windows(x)
    first = windows.argmax(axis=-1)[..., None]
    slope = np.zeros_like(windows)
    np.put_along_axis(slope, first, derivatives[..., None], axis=-1)
    rows, channels, height, width, _ = windows.shape
    slope = slope.reshape(rows, channels, height, width, 2, 2)
    return np.swapaxes(slope, 3, 4).reshape(x.shape)


def _windows(x: np.ndarray) -> np.ndarray:
    rows, channels, height, width = x.shape
    windows = x.reshape(rows, channels, height // 2, 2, width // 2, 2)
    return np.swapaxes(windows, 3, 4).reshape(rows, channels, height // 2, width // 2, 4)
