"""A ResNet with PyTorch's tensors, for exercises of lab 02 that are solved in MindSpore itself."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from labkit.runtime import pynative

if TYPE_CHECKING:  # importing MindSpore takes seconds, which other exercises need not wait
    from mindspore import Tensor, nn

_CHANNELS = [16, 16, 32, 64, 128]  # a quarter of ResNet-18's
_CLASSES, _IMAGES, _SIDE = 10, 2, 32


class OnResNet:
    """A ResNet of one basic block per stage, and two images: an exercise function's argument.

    Everything is computed in PyNative mode, operator by operator. Every copy builds its own
    networks on first use, and an answer takes half a second; a ResNet-18 took twice that.

    Args:
        fault: the stage of ``wrong`` that pads with "same"; a stage that has padding

    Attributes:
        stages: names of the network's parts, in the order of the calls
    """

    stages = ("conv1", "maxpool", "layer1", "layer2", "layer3", "layer4", "fc")

    def __init__(self, fault: str = "maxpool"):
        self.fault = fault

    def __deepcopy__(self, memo: object) -> OnResNet:
        return OnResNet(self.fault)

    def __eq__(self, other: object) -> bool:
        # Loading weights does not count as changing an argument: the caller's data stay intact.
        return isinstance(other, OnResNet) and other.fault == self.fault

    def __hash__(self) -> int:
        return hash(self.fault)

    @property
    def images(self) -> Tensor:
        """Two images (2, 3, 32, 32)."""
        from mindspore import Tensor

        from labkit.migration import rule

        return Tensor(rule.batch(_IMAGES, _SIDE, _CLASSES)[0])

    @cached_property
    def state(self) -> dict[str, np.ndarray]:
        """PyTorch's tensors for ``network``, by PyTorch's names."""
        from labkit.migration import pairs, rule

        return rule.state({pair.torch: pair.torch_shape for pair in pairs(_resnet())})

    @cached_property
    def network(self) -> nn.Cell:
        """A ResNet with initial weights that are always the same."""
        from labkit.nets.initialisers import initialise

        network = _resnet()
        initialise(network, "torchvision", 1)
        return network

    @cached_property
    def right(self) -> nn.Cell:
        """A ResNet with the tensors of ``state``."""
        return self._with_state(_resnet())

    @cached_property
    def wrong(self) -> nn.Cell:
        """Like ``right``, except for the stage ``fault``."""
        network, other = _resnet(), _resnet(2)
        setattr(network, self.fault, getattr(other, self.fault))
        return self._with_state(network)

    def logits(self) -> np.ndarray:
        """Return the logits (2, 10) of ``network`` for the images, in evaluation mode."""
        with pynative():
            return self.network.set_train(False)(self.images).asnumpy()

    def _with_state(self, network: nn.Cell) -> nn.Cell:
        from labkit.migration import load

        load(network, self.state)
        return network.set_train(False)


def _resnet(differences: int = 0) -> nn.Cell:
    from labkit.nets.resnet import BLOG, ResidualBlockBase, ResNet

    return ResNet(
        ResidualBlockBase, [1] * 4, _CHANNELS[:4], _CHANNELS[1:], [1, 2, 2, 2], _CLASSES,
        differences=BLOG[:differences],
    )  # fmt: skip
