"""LeNet with a few images, for exercises that are solved in MindSpore itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.runtime import pynative

if TYPE_CHECKING:  # importing MindSpore takes seconds, which other exercises need not wait
    from mindspore import Tensor, nn

IMAGES = 12


class OnLeNet:
    """A new LeNet-5 and 12 random images, the argument of an exercise's function.

    Every copy has its own network, with the same initial weights. Everything is computed in
    PyNative mode, operator by operator. Hazard: if copies shared one network, they would share
    the memory of ``asnumpy``, and an answer would change when the next copy is trained.

    Args:
        seed: seed of the weights and images

    Attributes:
        parameters: the trainable parameters, in order
        learning_rate: learning rate of ``update``, which uses Momentum with 0.9
    """

    learning_rate = 0.1

    def __init__(self, seed: int):
        self.seed = seed

    def __deepcopy__(self, memo: object) -> OnLeNet:
        return type(self)(self.seed)

    def __eq__(self, other: object) -> bool:
        # Training it does not count as changing an argument: the caller's data stay intact.
        return isinstance(other, OnLeNet) and other.seed == self.seed

    def __hash__(self) -> int:
        return hash(self.seed)

    @property
    def parameters(self) -> list:
        """The trainable ``Parameter`` objects, in order."""
        return list(self._optimizer.parameters)

    def micro_batches(self, sizes: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """Return the first images and labels, cut into micro-batches of these sizes."""
        from mindspore import Tensor

        stops = np.cumsum(sizes)
        random = np.random.default_rng(self.seed)
        images = random.normal(size=(IMAGES, 1, 32, 32)).astype(np.float32)
        # Each class has its own brightness, so that gradients of micro-batches differ in size.
        labels = np.sort(random.integers(0, 10, IMAGES)).astype(np.int32)
        images += labels[:, None, None, None] / 5
        return [
            (Tensor(images[stop - size : stop]), Tensor(labels[stop - size : stop]))
            for size, stop in zip(sizes, stops, strict=True)
        ]

    def gradients(self, images: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        """Return the gradient of a micro-batch's mean loss, a Tensor for each parameter."""
        with pynative():
            return self._value_and_grad(images, labels)[1]

    def loss(self, images: Tensor, labels: Tensor) -> float:
        """Return the mean loss of a micro-batch."""
        with pynative():
            return float(self._loss_net(images, labels)[0].asnumpy())

    def update(self, gradients: Sequence[Tensor]) -> None:
        """Call the optimizer once with these gradients."""
        with pynative():
            self._optimizer(tuple(gradients))

    @cached_property
    def _loss_net(self) -> nn.Cell:
        import mindspore as ms
        from mindspore import nn

        from labkit.nets.lenet import LeNet5
        from labkit.steps.losses import LossNet

        ms.set_seed(self.seed)
        loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
        return LossNet(LeNet5(), loss_fn)

    @cached_property
    def _optimizer(self) -> nn.Optimizer:
        from mindspore import nn

        return nn.Momentum(self._loss_net.trainable_params(), self.learning_rate, 0.9)

    @cached_property
    def _value_and_grad(self) -> Any:
        import mindspore as ms

        # Made in graph mode it compiles, in whatever mode it is called: 0.3 s for each batch size.
        with pynative():
            return ms.value_and_grad(self._loss_net, None, self._optimizer.parameters)


def each_gradient(lenet: OnLeNet, sizes: Sequence[int]) -> list[list[np.ndarray]]:
    """Return the micro-batches' gradients, an array for each parameter."""
    batches = lenet.micro_batches(sizes)
    return [[gradient.asnumpy() for gradient in lenet.gradients(*batch)] for batch in batches]


def update_of_each(lenet: OnLeNet, sizes: Sequence[int], updates: int) -> list[np.ndarray]:
    """Return the parameters after an update for every single micro-batch, which is a mistake."""
    for _ in range(updates):
        for batch in lenet.micro_batches(sizes):
            lenet.update(lenet.gradients(*batch))
    return [parameter.asnumpy() for parameter in lenet.parameters]


def by_parameter(lenet: OnLeNet, vector: np.ndarray) -> list[np.ndarray]:
    """Split a vector of all weights into an array for each parameter."""
    ends = np.cumsum([parameter.size for parameter in lenet.parameters])[:-1]
    parts = zip(lenet.parameters, np.split(vector, ends), strict=True)
    return [part.reshape(parameter.shape) for parameter, part in parts]
