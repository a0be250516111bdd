"""Exercises of lab 02, migration: plain specifications, cases, learners' mistakes."""

from __future__ import annotations

import functools
import math

import numpy as np
from mindspore import Tensor, nn

from labkit import migration
from labkit.labs import recorded
from labkit.labs.exercises.check import Exercise, of_lab
from labkit.nets.initialisers import initialise
from labkit.nets.resnet import BLOG, ResidualBlockBase, ResNet
from labkit.runtime import pynative


class OnResNet:
    """A ResNet of one basic block per stage, and two images: an exercise function's argument.

    Everything is computed in PyNative mode, operator by operator. Every copy builds its own
    networks on first use, and an answer takes half a second; a ResNet-18 took twice that. The stage
    ``fault``, one with padding, pads with "same" in ``wrong``; ``stages`` are in the order of the
    calls.
    """

    stages = ("conv1", "maxpool", "layer1", "layer2", "layer3", "layer4", "fc")

    def __init__(self, fault: str = "maxpool"):
        self._fault = fault

    def __deepcopy__(self, memo: object) -> OnResNet:
        return OnResNet(self._fault)

    @property
    def images(self) -> Tensor:
        """Two images (2, 3, 32, 32)."""
        return Tensor(recorded.batch(2, 32, 10)[0])

    @functools.cached_property
    def state(self) -> dict[str, np.ndarray]:
        """PyTorch's tensors for ``network``, by PyTorch's names and in PyTorch's order."""
        shapes = {pair.torch: pair.torch_shape for pair in migration.pairs(_resnet())}
        cells = list(dict.fromkeys(name.rpartition(".")[0] for name in shapes))
        # PyTorch's BatchNorm has weight and bias first, MindSpore's the statistics: equal shapes.
        names = sorted(shapes, key=lambda n: (cells.index(n.rpartition(".")[0]), "running" in n))
        tensors = recorded.state({name: shapes[name] for name in names})
        # Positive vectors: paired by order, a variance below 0 would make the logits NaN.
        return {name: abs(each) if each.ndim == 1 else each for name, each in tensors.items()}

    @functools.cached_property
    def network(self) -> nn.Cell:
        """A ResNet with initial weights that are always the same."""
        network = _resnet()
        initialise(network, "torchvision", 1)
        return network

    @functools.cached_property
    def right(self) -> nn.Cell:
        """A ResNet with the tensors of ``state``."""
        return self._with_state(_resnet())

    @functools.cached_property
    def wrong(self) -> nn.Cell:
        """Like ``right``, except for the stage ``fault``."""
        network, other = _resnet(), _resnet(2)
        setattr(network, self._fault, getattr(other, self._fault))
        return self._with_state(network)

    def logits(self) -> np.ndarray:
        """Return the logits (2, 10) of ``network`` for the images, in evaluation mode."""
        with pynative():
            return self.network.set_train(False)(self.images).asnumpy()

    def _with_state(self, network: nn.Cell) -> nn.Cell:
        migration.load(network, self.state)
        return network.set_train(False)


def _resnet(differences: int = 0) -> nn.Cell:
    sizes = [1] * 4, [16, 16, 32, 64], [16, 32, 64, 128], [1, 2, 2, 2], 10  # a quarter's channels
    return ResNet(ResidualBlockBase, *sizes, differences=BLOG[:differences])


def same_padding(size: int, kernel: int, stride: int) -> list[int]:
    """Padding [before, after] that pad_mode="same" adds along one axis."""
    return _halves(max((math.ceil(size / stride) - 1) * stride + kernel - size, 0))


def _halves(total: int) -> list[int]:
    return [total // 2, total - total // 2]


def scheduled_rate(update: int, updates: int, warmup: int, rate: float) -> float:
    """A linear warm-up to ``rate``, then a cosine down to 0."""
    if update < warmup:
        return rate * (update + 1) / warmup
    return rate * _cosine((update - warmup) / (updates - warmup))


def _cosine(part: float) -> float:
    return (1 + math.cos(math.pi * part)) / 2


def load_weights(resnet: OnResNet) -> np.ndarray:
    """Logits of the network after all of PyTorch's tensors have been loaded into it."""
    migration.load(resnet.network, resnet.state)
    return resnet.logits()


_TORCH = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}
_TORCH |= {"moving_mean": "running_mean", "moving_variance": "running_var"}


def _load(resnet: OnResNet, **names: str) -> np.ndarray:
    """Logits after loading the tensors of the parameters with these last names, and PyTorch's."""
    for parameter in resnet.network.get_parameters():
        path, _, last = parameter.name.rpartition(".")
        if last in names:
            parameter.set_data(Tensor(resnet.state[f"{path}.{names[last]}"]))
    return resnet.logits()


def first_fault(resnet: OnResNet) -> int:
    """Place of the first stage whose output differs between the two networks."""
    return _differing(resnet._fault)[0]


@functools.cache  # the specification and two mistakes call it, and it takes a second
def _differing(fault: str) -> list[int]:
    """Places of all stages whose outputs differ, found with forward hooks."""
    resnet, outputs = OnResNet(fault), []
    for network in (resnet.right, resnet.wrong):
        for name in resnet.stages:
            getattr(network, name).register_forward_hook(
                lambda cell, inputs, output: outputs.append(output.asnumpy().copy())
            )
        with pynative():
            network(resnet.images)
    count = len(resnet.stages)
    # Both run the same kernels: outputs that should agree are equal to the bit.
    return [n for n in range(count) if not np.array_equal(outputs[n], outputs[count + n])]


_PADDINGS = [(64, 7, 2), (32, 3, 2), (32, 3, 1), (33, 3, 2), (32, 1, 2), (7, 2, 2)]
_RATES = [(update, 100, 10, 0.4) for update in (0, 4, 9, 10, 55, 99)] + [(0, 10, 1, 0.1)]

EXERCISES = (
    Exercise(same_padding, _PADDINGS, {
        "[(kernel - 1) // 2] * 2": "that is PyTorch's, which is the same for every size",
        "right[::-1]": "an odd number of rows: on which side does MindSpore put the extra?",
        "[sum(right)] * 2": "what both sides need together was put on each side",
        "_halves(max((size // stride - 1) * stride + kernel - size, 0))":
            "the last rows are in no window: how many outputs are there to be?",
        "_halves(max(-(-size // stride) * stride + kernel - size, 0))":
            "one stride too far: how many strides lie between n windows?",
        "_halves((-(-size // stride) - 1) * stride + kernel - size)":
            "padding below 0: what if the kernel is shorter than the stride?",
    }, rtol=0.0),
    Exercise(scheduled_rate, _RATES, {
        "rate * _cosine(min(update, warmup) / warmup)":
            "that is the document's: no warm-up, and the floor after `warmup`",
        "right if update >= warmup else rate * update / warmup":
            "the first update has the rate 0 and does nothing",
        "right if update < warmup else rate * _cosine(update / updates)":
            "after the warm-up it jumps: where does the cosine begin?",
        "right if update < warmup else rate * _cosine((update - warmup) / updates)":
            "it does not reach 0: how many updates has the cosine?",
        "right if update < warmup else rate * _cosine((update - warmup) / (updates - 1 - warmup))":
            "it is 0 at the last update: where would the cosine reach 0?",
        "right if update < warmup else rate * _cosine((update - warmup + 1) / (updates - warmup))":
            "the cosine is one update ahead: what is the rate right after the warm-up?",
        "right if update < warmup else rate": "after the warm-up it stays where it is",
        "right if update < warmup else 2 * right": "after the warm-up it jumps to twice the rate",
        "right if update < warmup else rate * (updates - update) / (updates - warmup)":
            "it comes down in a straight line",
    }),
    Exercise(load_weights, [(OnResNet(),)], {
        "resnet.logits()": "the network is as it was: nothing was loaded",
        "[p.set_data(Tensor(value)) for p, value in zip("
        "resnet.network.get_parameters(), resnet.state.values())] and resnet.logits()":
            "paired by their order, which is not the network's: which names belong together?",
        "_load(resnet, **_TORCH | dict(gamma='bias', beta='weight'))":
            "two tensors of BatchNorm have changed places: which of them scales?",
        "_load(resnet, weight='weight', bias='bias', gamma='weight', beta='bias')":
            "the running statistics are MindSpore's initial ones: are they parameters to be "
            "trained?",
        "_load(resnet, weight='weight', bias='bias')":
            "BatchNorm was left out: its parameters have other names",
        "_load(resnet, **{n: _TORCH[n] for n in _TORCH if n not in ('gamma', 'beta')})":
            "BatchNorm has its statistics, and not its scale and shift",
    }, rtol=1e-4),  # the same kernels on the same tensors; the tolerance is for other machines
    Exercise(first_fault, [(OnResNet(fault),) for fault in ("layer2", "maxpool")], {
        "_differing(resnet._fault)[-1]":
            "that is the last one that differs: which way does a fault spread?",
        "right - 1": "that stage still agrees",
        "right + 1": "one too far: its input differs already, or places were counted from 1",
        "len(_differing(resnet._fault))": "that is how many stages differ",
        "0": "the first stage of all agrees in both",
    }, rtol=0.0),
)  # fmt: skip

check, hint = of_lab(EXERCISES)
