"""The exercises of lab 03 that are solved in MindSpore: a tap behind LeNet's last layer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit import reference
from labkit.labs.exercises.check import Hints
from labkit.labs.exercises.on_lenet import IMAGES, OnLeNet
from labkit.runtime import pynative

if TYPE_CHECKING:  # importing MindSpore takes seconds, which other exercises need not wait
    from mindspore import Tensor, nn

INPUTS, OUTPUTS, WEIGHT = 84, 10, 6  # sizes of fc3, and the number of its weight


class OnTappedLeNet(OnLeNet):
    """``OnLeNet`` with a place for a tap behind its last layer, fc3; all 12 images at once."""

    def through(self, tap: nn.Cell) -> tuple[Tensor, ...]:
        """Return what the backward pass of ``tap`` returns for a (84, 84) and g (10, 10).

        Args:
            tap: called as tap(p, y, a, g); its result replaces y
        """
        shapes = (INPUTS, INPUTS), (OUTPUTS, OUTPUTS)
        return tuple(self._backward(tap, shapes)[-2:])

    def seen(self) -> tuple[list[Tensor], Tensor, Tensor]:
        """Return each parameter's gradient, fc3's input p, and d, the loss' derivative by y."""
        shapes = (IMAGES, INPUTS), (IMAGES, OUTPUTS)
        *gradients, p, d = self._backward(_witness(), shapes)
        return gradients, p, d

    def _backward(self, tap: nn.Cell, shapes: Sequence[tuple[int, int]]) -> tuple[Tensor, ...]:
        import mindspore as ms
        from mindspore import Parameter, ops

        (batch,) = self.micro_batches([IMAGES])
        parameters = self.parameters
        # In PyNative mode the derivative by a tensor without requires_grad would be zeros.
        extras = [Parameter(ops.zeros(shape), name=f"a{n}") for n, shape in enumerate(shapes)]
        cells = self._loss_net.network._cells
        layer = cells["fc3"]
        cells["fc3"] = _behind(layer, tap, extras)
        try:
            with pynative():
                weights = ms.ParameterTuple([*parameters, *extras])
                return ms.value_and_grad(self._loss_net, None, weights)(*batch)[1]
        finally:
            cells["fc3"] = layer


def _behind(layer: nn.Cell, tap: nn.Cell, extras: Sequence[Any]) -> nn.Cell:
    """Return a cell that calls ``layer`` and then ``tap``."""
    from mindspore import nn

    class Behind(nn.Cell):
        def __init__(self) -> None:
            super().__init__(auto_prefix=False)
            self.layer, self.tap = layer, tap
            self.a, self.g = extras

        def construct(self, p: Tensor) -> Tensor:
            return self.tap(p, self.layer(p), self.a, self.g)

    return Behind()


def _witness() -> nn.Cell:
    """Return a tap whose backward pass gives p and d themselves."""
    from mindspore import nn, ops

    class Witness(nn.Cell):
        def construct(self, p: Tensor, y: Tensor, a: Tensor, g: Tensor) -> Tensor:
            return y

        def bprop(
            self, p: Tensor, y: Tensor, a: Tensor, g: Tensor, out: Tensor, dout: Tensor
        ) -> tuple[Tensor, ...]:
            return ops.zeros_like(p), dout, p, dout

    return Witness()


def lenet_factors(lenet: OnTappedLeNet) -> list[np.ndarray]:
    """A and G of fc3, computed in float64 from the p and d that a tap has seen."""
    _, p, d = lenet.seen()
    return _factors(p.asnumpy(), d.asnumpy())


def _factors(p: np.ndarray, d: np.ndarray) -> list[np.ndarray]:
    p, d = p.astype(np.float64), d.astype(np.float64)
    return [p.T @ p / len(p), len(d) * d.T @ d]


def lenet_thor(lenet: OnTappedLeNet, damping: float, updates: int) -> list[np.ndarray]:
    """Parameters after updates with the inverses of update 0 on both sides of fc3's gradient."""
    return _train(lenet, damping, updates)


def _train(
    lenet: OnTappedLeNet,
    damping: float,
    updates: int,
    *,
    power: float = 0.5,
    frequency: int = 10**6,
    sides: str = "both",
    scale: float = 1.0,
) -> list[np.ndarray]:
    """Like ``lenet_thor``, with ``damping**power`` in each factor and G multiplied by ``scale``."""
    from mindspore import Tensor

    inverses: list[np.ndarray] = []
    for update in range(updates):
        gradients, p, d = lenet.seen()
        if update % frequency == 0:
            a, g = _factors(p.asnumpy(), d.asnumpy())
            inverses = [reference.damped_inverse(f, damping**power) for f in (a, scale * g)]
        left = inverses[1] if sides != "A" else np.eye(OUTPUTS)
        right = inverses[0] if sides != "G" else np.eye(INPUTS)
        direction = left @ gradients[WEIGHT].asnumpy() @ right
        gradients[WEIGHT] = Tensor(direction.astype(np.float32))
        lenet.update(gradients)
    return [parameter.asnumpy() for parameter in lenet.parameters]


def _means(lenet: OnTappedLeNet) -> list[np.ndarray]:
    p, d = (part.asnumpy() for part in lenet.seen()[1:])
    return [np.outer(p.mean(0), p.mean(0)), np.outer(d.sum(0), d.sum(0))]


def _scaled(a: float, g: float) -> Any:
    def mistake(lenet: OnTappedLeNet) -> list[np.ndarray]:
        return [factor * by for factor, by in zip(lenet_factors(lenet), (a, g), strict=True)]

    return mistake


def _plain(lenet: OnTappedLeNet, damping: float, updates: int) -> list[np.ndarray]:
    for _ in range(updates):
        lenet.update(lenet.seen()[0])
    return [parameter.asnumpy() for parameter in lenet.parameters]


HINTS: dict[str, Hints] = {
    "lenet_factors": (
        (_scaled(1.0, 1 / IMAGES**2),
         "d is the derivative of the mean loss: how much larger is that of one image's?"),
        (_scaled(1.0, IMAGES), "G is a sum over the images: it grows with the batch"),
        (_scaled(IMAGES, 1.0), "A is a sum over the images: it grows with the batch"),
        (_scaled(1.0, 1 / IMAGES), "the sum of the outer products of d is there: is it G yet?"),
        (_means, "averages before the outer product: that forgets the batch"),
        (_scaled(0.0, 0.0), "both are zeros: does `bprop` return something for a and g?"),
    ),
    "lenet_thor": (
        (partial(_train, frequency=1),
         "the inverses are made again at each update: they were to be kept"),
        (partial(_train, power=1.0),
         "the whole damping went into each factor: their product gets its square"),
        (partial(_train, sides="A"), "only the inputs' side is there: G is missing"),
        (partial(_train, sides="G"), "only the outputs' side is there: A is missing"),
        (partial(_train, scale=1 / IMAGES**2),
         "G is too small: of which loss is d the derivative?"),
        (_plain, "that is Momentum with the plain gradient: what did the inverses do?"),
    ),
}  # fmt: skip
