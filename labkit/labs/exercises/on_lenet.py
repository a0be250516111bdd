"""LeNet with a few images, for exercises that are solved in MindSpore itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from labkit.errors import InputError
from labkit.nets.lenet import LeNet5
from labkit.runtime import pynative
from labkit.steps.losses import LossNet

IMAGES = 12
INPUTS, OUTPUTS, WEIGHT = 84, 10, 6  # sizes of the last layer, fc3, and its weight's number


class OnLeNet:
    """A new LeNet-5 and 12 random images from a seed, the argument of an exercise's function.

    Every copy has its own network, with the same initial weights. Everything is computed in
    PyNative mode, operator by operator. Hazard: if copies shared one network, they would share
    the memory of ``asnumpy``, and an answer would change when the next copy is trained.

    ``room`` is how many images it takes at once.
    """

    def __init__(self, seed: int, room: int = IMAGES):
        self.seed, self.room = seed, room

    def __deepcopy__(self, memo: object) -> OnLeNet:
        return type(self)(self.seed, self.room)

    @property
    def parameters(self) -> list:
        """The trainable ``Parameter`` objects, in order."""
        return list(self._optimizer.parameters)

    def micro_batches(self, sizes: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """Return the first images and labels, cut into micro-batches of these sizes."""
        random = np.random.default_rng(self.seed)
        images = random.normal(size=(IMAGES, 1, 32, 32)).astype(np.float32)
        # Each class has its own brightness, so that gradients of micro-batches differ in size.
        labels = np.sort(random.integers(0, 10, IMAGES)).astype(np.int32)
        images += labels[:, None, None, None] / 5
        ends = zip(sizes, np.cumsum(sizes), strict=True)
        parts = [slice(end - size, end) for size, end in ends]
        return [(Tensor(images[part]), Tensor(labels[part])) for part in parts]

    def gradients(self, images: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        """Return the gradient of a micro-batch's mean loss, a Tensor for each parameter."""
        if len(images) > self.room:
            raise InputError(f"out of memory: room for {self.room} images, not for {len(images)}")
        with pynative():
            return self._value_and_grad(images, labels)[1]

    def loss(self, images: Tensor, labels: Tensor) -> float:
        """Return the mean loss of a micro-batch."""
        with pynative():
            return float(self._loss_net(images, labels)[0].asnumpy())

    def update(self, gradients: Sequence[Tensor | np.ndarray]) -> None:
        """Call the optimizer, Momentum with rate 0.1 and 0.9, once with these gradients."""
        with pynative():
            parts = (g if isinstance(g, Tensor) else Tensor(np.float32(g)) for g in gradients)
            self._optimizer(tuple(parts))

    @cached_property
    def _loss_net(self) -> nn.Cell:
        ms.set_seed(self.seed)
        loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
        return LossNet(LeNet5(), loss_fn)

    @cached_property
    def _optimizer(self) -> nn.Optimizer:
        return nn.Momentum(self._loss_net.trainable_params(), 0.1, 0.9)

    @cached_property
    def _value_and_grad(self) -> Any:
        # Made in graph mode it compiles, in whatever mode it is called: 0.3 s for each batch size.
        with pynative():
            return ms.value_and_grad(self._loss_net, None, self._optimizer.parameters)


class OnTappedLeNet(OnLeNet):
    """``OnLeNet`` with a place for a tap behind its last layer, fc3; all 12 images at once."""

    def through(self, tap: nn.Cell) -> tuple[Tensor, ...]:
        """Return what the backward pass of ``tap`` returns for a (84, 84) and g (10, 10).

        It is called as tap(p, y, a, g), and its result replaces y. InputError: it changes training.
        """
        *gradients, a, g = self._backward(tap, (INPUTS, INPUTS), (OUTPUTS, OUTPUTS))
        pairs = zip(gradients, self.seen()[0], strict=True)
        if not all(np.allclose(own.asnumpy(), bare.asnumpy(), atol=1e-6) for own, bare in pairs):
            raise InputError("the network's gradients changed: what passes through the tap?")
        return a, g

    def seen(self) -> tuple[list[Tensor], Tensor, Tensor]:
        """Return each parameter's gradient, fc3's input p, and d, the loss' derivative by y."""
        *gradients, p, d = self._backward(_Witness(), (IMAGES, INPUTS), (IMAGES, OUTPUTS))
        return gradients, p, d

    def _backward(self, tap: nn.Cell, *shapes: tuple[int, int]) -> tuple[Tensor, ...]:
        """Return the gradients by all parameters, and by a and g of these shapes."""
        # In PyNative mode the derivative by a tensor without requires_grad would be zeros.
        extras = [Parameter(ops.zeros(shape), name=f"a{n}") for n, shape in enumerate(shapes)]
        parameters = ms.ParameterTuple([*self.parameters, *extras])
        cells = self._loss_net.network._cells
        layer = cells["fc3"]
        cells["fc3"] = _Behind(layer, tap, *extras)
        try:
            with pynative():
                loss_and_gradients = ms.value_and_grad(self._loss_net, None, parameters)
                return loss_and_gradients(*self.micro_batches([IMAGES])[0])[1]
        finally:
            cells["fc3"] = layer


class _Behind(nn.Cell):
    """A layer, and then the tap."""

    def __init__(self, layer: nn.Cell, tap: nn.Cell, a: Parameter, g: Parameter) -> None:
        super().__init__(auto_prefix=False)
        self.layer, self.tap, self.a, self.g = layer, tap, a, g

    def construct(self, p: Tensor) -> Tensor:
        return self.tap(p, self.layer(p), self.a, self.g)


class _Witness(nn.Cell):
    """A tap whose backward pass returns p and dout."""

    def construct(self, p: Tensor, y: Tensor, a: Tensor, g: Tensor) -> Tensor:
        return y

    def bprop(
        self, p: Tensor, y: Tensor, a: Tensor, g: Tensor, out: Tensor, dout: Tensor
    ) -> tuple[Tensor, ...]:
        return ops.zeros_like(p), dout, p, dout


# What specifications and mistakes share. ``combine`` makes one array of a parameter's gradients
# (n, ...), one of each micro-batch.


def each_gradient(lenet: OnLeNet, sizes: Sequence[int]) -> list[list[np.ndarray]]:
    """Return the micro-batches' gradients, an array for each parameter."""
    batches = lenet.micro_batches(sizes)
    return [[gradient.asnumpy() for gradient in lenet.gradients(*batch)] for batch in batches]


def combined(lenet: OnLeNet, sizes: Sequence[int], combine: Callable) -> list[np.ndarray]:
    """Return the combined gradient of each parameter."""
    parts = zip(*each_gradient(lenet, sizes), strict=True)
    return [combine(np.stack(own)) for own in parts]


def trained(lenet: OnLeNet, sizes: Sequence[int], updates: int, combine: Callable) -> list:
    """Return the parameters after updates with the combined gradient."""
    for _ in range(updates):
        lenet.update(combined(lenet, sizes, combine))
    return arrays(lenet)


def update_of_each(lenet: OnLeNet, sizes: Sequence[int], updates: int) -> list[np.ndarray]:
    """Return the parameters after an update for every single micro-batch, which is a mistake."""
    for _ in range(updates):
        for batch in lenet.micro_batches(sizes):
            lenet.update(lenet.gradients(*batch))
    return arrays(lenet)


def arrays(lenet: OnLeNet) -> list[np.ndarray]:
    """Return the parameters' values."""
    return [parameter.asnumpy() for parameter in lenet.parameters]


def by_parameter(lenet: OnLeNet, vector: np.ndarray) -> list[np.ndarray]:
    """Split a vector of all weights into an array for each parameter."""
    ends = np.cumsum([parameter.size for parameter in lenet.parameters])[:-1]
    parts = zip(lenet.parameters, np.split(vector, ends), strict=True)
    return [part.reshape(parameter.shape) for parameter, part in parts]
