"""LeNet-5 with its weights as one vector, which lab 05 moves along directions and judges."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from mindspore import Tensor, nn

from labkit import reference
from labkit.nets.lenet import LeNet5
from labkit.reference.lenet import cross_entropy
from labkit.steps.losses import LossNet
from labkit.steps.state import set_state

_PART = 1000  # images per forward pass


class FlatLeNet:
    """A LeNet-5 with softmax cross entropy, at any vector (M,) of its weights.

    The vector holds the weights in the order of ``trainable_params``, as in a ``Basis``. Images are
    (N, 1, 32, 32), losses means over them in nats.
    """

    def __init__(self) -> None:
        self.network = LeNet5()
        self._parameters = self.network.trainable_params()
        loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
        self._loss_net = LossNet(self.network, loss_fn)

    def vector(self, arrays: Mapping[str, Any]) -> np.ndarray:
        """Return weights by name, as from ``parameter_values``, as a float64 vector (M,)."""
        parts = [np.ravel(arrays[parameter.name]) for parameter in self._parameters]
        return np.concatenate(parts).astype(np.float64)

    def by_name(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """Return a vector (M,) as weights by name, in their shapes."""
        parts = np.split(vector, np.cumsum([p.size for p in self._parameters])[:-1])
        pairs = zip(self._parameters, parts, strict=True)
        return {parameter.name: part.reshape(parameter.shape) for parameter, part in pairs}

    def put(self, vector: np.ndarray, network: nn.Cell | None = None) -> nn.Cell:
        """Set the weights of ``network``, or of ``self.network``, to a vector (M,); return it."""
        network, values = network or self.network, self.by_name(vector)
        for parameter in network.trainable_params():
            set_state(parameter, values[parameter.name].astype(np.float32))
        return network

    def loss(self, vector: np.ndarray, images: np.ndarray, labels: np.ndarray) -> float:
        """Return the loss at a vector (M,)."""
        self.put(vector)
        return float(self._loss_net(Tensor(images), Tensor(labels))[0].asnumpy())

    def gradient(
        self, vector: np.ndarray, images: np.ndarray, labels: np.ndarray
    ) -> tuple[float, np.ndarray]:
        """Return (loss, gradient (M,)) at a vector, in float64 NumPy without MindSpore."""
        loss, slopes, _ = reference.lenet_gradients(self.by_name(vector), images, labels)
        return loss, self.vector(slopes)

    def predicted(self, vector: np.ndarray, images: np.ndarray) -> np.ndarray:
        """Return the network's outputs (N, 10) at a vector (M,), float64."""
        self.put(vector)
        parts = np.split(images, range(_PART, len(images), _PART))
        outputs = [self.network(Tensor(part)).asnumpy() for part in parts]
        return np.concatenate(outputs).astype(np.float64)

    def judge(
        self, vector: np.ndarray, images: np.ndarray, labels: np.ndarray
    ) -> tuple[float, float]:
        """Return (share of images classified correctly, loss) at a vector (M,)."""
        outputs = self.predicted(vector, images)
        return float((outputs.argmax(axis=1) == labels).mean()), cross_entropy(outputs, labels)[0]
