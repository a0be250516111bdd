"""Exercises of lab 02, migration: plain specifications, cases, learners' mistakes."""

import functools
import math
from collections.abc import Callable

import numpy as np

from labkit.labs.exercises import check as checks
from labkit.labs.exercises.check import Advice, Exercise, draw
from labkit.labs.exercises.on_resnet import OnResNet
from labkit.runtime import pynative


def same_padding(size: int, kernel: int, stride: int) -> list[int]:
    """Padding [before, after] that pad_mode="same" adds along one axis."""
    total = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
    return [total // 2, total - total // 2]


def running_variance(old: float, values: np.ndarray, torch_momentum: float) -> float:
    """PyTorch's running variance after a batch: momentum is the weight of the new, unbiased one."""
    return (1 - torch_momentum) * old + torch_momentum * np.var(values, ddof=1)


def smooth_targets(label: int, classes: int, smoothing: float) -> np.ndarray:
    """PyTorch's target distribution: 1 - e + e/C at the label, e/C elsewhere."""
    targets = np.full(classes, smoothing / classes)
    targets[label] += 1 - smoothing
    return targets


def preprocess(pixels: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Pixels 0 .. 255 after Normalize; ``mean`` and ``std`` are those of pixels 0 .. 1."""
    return (np.asarray(pixels, np.float64) - 255 * np.asarray(mean)) / (255 * np.asarray(std))


def scheduled_rate(update: int, updates: int, warmup: int, rate: float) -> float:
    """A linear warm-up to ``rate``, then a cosine down to 0."""
    if update < warmup:
        return rate * (update + 1) / warmup
    return rate * (1 + math.cos(math.pi * (update - warmup) / (updates - warmup))) / 2


def load_weights(resnet: OnResNet) -> np.ndarray:
    """Logits of the network after all of PyTorch's tensors have been loaded into it."""
    from labkit import migration

    migration.load(resnet.network, resnet.state)
    return resnet.logits()


def first_fault(resnet: OnResNet) -> int:
    """Place of the first stage whose output differs between the two networks."""
    return _differing(resnet)[0]


@functools.cache  # the specification and four mistakes call it, and it takes a second
def _differing(resnet: OnResNet) -> list[int]:
    """Places of all stages whose outputs differ, found with forward hooks."""
    outputs: dict[str, list] = {name: [] for name in resnet.stages}
    for network in (resnet.right, resnet.wrong):
        for name, kept in outputs.items():
            getattr(network, name).register_forward_hook(
                lambda cell, inputs, output, kept=kept: kept.append(output.asnumpy().copy())
            )
        with pynative():
            network(resnet.images)
    both = enumerate(outputs.values())
    # Both run the same kernels: outputs that should agree are equal to the bit.
    return [place for place, (right, wrong) in both if not np.array_equal(right, wrong)]


_PADDINGS = [(64, 7, 2), (32, 3, 2), (32, 3, 1), (33, 3, 2), (32, 1, 2), (7, 2, 2)]
_VARIANCES = [(1.0, draw(0, 8), 0.1), (0.5, draw(1, 5), 0.3), (2.0, draw(2, 64), 0.01)]
_PIXELS = np.array([[0.0, 128.0, 255.0], [10.0, 20.0, 30.0]])
_MEAN, _STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
_RATES = [(update, 100, 10, 0.4) for update in (0, 4, 9, 10, 55, 99)] + [(0, 10, 1, 0.1)]

_RESNETS = [(OnResNet(fault),) for fault in ("layer2", "maxpool")]

EXERCISES = (
    Exercise(running_variance, _VARIANCES),
    Exercise(preprocess, [(_PIXELS, _MEAN, _STD), (_PIXELS[0], np.full(3, 0.5), np.full(3, 0.25))]),
    Exercise(smooth_targets, [(2, 10, 0.1), (0, 3, 0.3), (4, 5, 0.0)]),
    Exercise(same_padding, _PADDINGS, rtol=0.0),
    Exercise(scheduled_rate, _RATES),
    # float32: the same kernels on the same tensors; the tolerance is for other machines.
    Exercise(load_weights, [(OnResNet(),)], rtol=1e-4),
    Exercise(first_fault, _RESNETS, rtol=0.0),
)

hint = Advice(EXERCISES)


# Mistakes that learners make.


def _halves(total: int) -> list[int]:
    return [total // 2, total - total // 2]


def _label_at(label: int, classes: int, at_label: float, elsewhere: float) -> np.ndarray:
    targets = np.full(classes, elsewhere)
    targets[label] = at_label
    return targets


def _after_warmup(rate_at: Callable) -> Callable:
    """A schedule with the right warm-up, then ``rate_at(update, updates, warmup, rate)``."""
    return lambda i, n, warmup, rate: (scheduled_rate if i < warmup else rate_at)(
        i, n, warmup, rate
    )


def _cosine(part: float) -> float:
    return (1 + math.cos(math.pi * part)) / 2


def _load(resnet: OnResNet, name_of: Callable[[str], str]) -> np.ndarray:
    """Logits after loading tensors by ``name_of(last part of a parameter's name)``; "" skips."""
    from mindspore import Tensor

    for parameter in resnet.network.get_parameters():
        path, _, last = parameter.name.rpartition(".")
        if other := name_of(last):
            parameter.set_data(Tensor(resnet.state[f"{path}.{other}"]))
    return resnet.logits()


_TORCH = {
    "weight": "weight",
    "bias": "bias",
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}


def _without(*lasts: str) -> Callable:
    return lambda resnet: _load(resnet, lambda last: "" if last in lasts else _TORCH[last])


HINTS: dict[str, checks.Hints] = {
    "same_padding": (
        (lambda size, kernel, stride: [(kernel - 1) // 2] * 2,
         "that is PyTorch's, which is the same for every size"),
        (lambda *case: same_padding(*case)[::-1],
         "an odd number of rows: on which side does MindSpore put the extra?"),
        (lambda *case: [sum(same_padding(*case))] * 2,
         "what both sides need together was put on each side"),
        (lambda size, kernel, stride: _halves(
            max((size // stride - 1) * stride + kernel - size, 0)),
         "the last rows are in no window: how many outputs are there to be?"),
        (lambda size, kernel, stride: _halves(max(-(-size // stride) * stride + kernel - size, 0)),
         "one stride too far: how many strides lie between n windows?"),
        (lambda size, kernel, stride: _halves((-(-size // stride) - 1) * stride + kernel - size),
         "padding below 0: what if the kernel is shorter than the stride?"),
    ),
    "running_variance": (
        (lambda old, values, momentum: running_variance(old, values, 1 - momentum),
         "that is MindSpore's momentum: whose weight is PyTorch's?"),
        (lambda old, values, momentum: (1 - momentum) * old + momentum * np.var(values),
         "the running statistics take the unbiased variance: divided by what?"),
        (lambda old, values, momentum: momentum * old + (1 - momentum) * np.var(values),
         "both the momentum and the variance are the other framework's or the biased one"),
        (lambda old, values, momentum: (1 - momentum) * old + momentum * np.std(values, ddof=1),
         "a deviation was mixed with a variance: is a square missing?"),
        (lambda old, values, momentum: np.var(values, ddof=1),
         "that is this batch's variance: what has become of the old one?"),
        (lambda old, values, momentum: (1 - momentum) * old + momentum * np.mean(values),
         "the mean of the values was taken for their variance"),
    ),
    "smooth_targets": (
        (lambda label, classes, e: _label_at(label, classes, 1 - e, e / (classes - 1)),
         "that is CrossEntropySmooth of the document, not PyTorch's"),
        (lambda label, classes, e: _label_at(label, classes, 1 - e, e / classes),
         "they sum to less than 1: who else has a share of e?"),
        (lambda label, classes, e: _label_at(label, classes, 1.0, 0.0),
         "there is no smoothing in them"),
        (lambda label, classes, e: _label_at(label, classes, 1.0, 0.0) + e / classes,
         "they sum to more than 1: was anything taken from the label?"),
        (lambda label, classes, e: _label_at(label, classes, 1.0, e),
         "every class got the whole of e: among how many is it shared?"),
        (lambda label, classes, e: _label_at(label, classes, e, 0.0) + (1 - e) / classes,
         "the label is hardly ahead: which part is e, and which is the rest?"),
    ),
    "preprocess": (
        (lambda pixels, mean, std: (pixels - mean) / std,
         "the constants are for pixels from 0 to 1, and these go to 255"),
        (lambda pixels, mean, std: (pixels / 255 - mean) * std,
         "the spread has become smaller: which way does a deviation rescale?"),
        (lambda pixels, mean, std: (pixels - 255 * mean) / std,
         "the mean fits pixels to 255 now: does the deviation?"),
        (lambda pixels, mean, std: (pixels - mean) / (255 * std),
         "the deviation fits pixels to 255 now: does the mean?"),
        (lambda pixels, mean, std: pixels / 255, "from 0 to 1 now: what are `mean` and `std` for?"),
        (lambda pixels, mean, std: (pixels - np.mean(pixels)) / np.std(pixels),
         "this image's own mean and deviation: are they the data set's?"),
    ),
    "scheduled_rate": (
        (lambda i, n, warmup, rate: rate * _cosine(min(i, warmup) / warmup),
         "that is the document's: no warm-up, and the floor after `warmup`"),
        (lambda i, n, warmup, rate: (
            rate * i / warmup if i < warmup else scheduled_rate(i, n, warmup, rate)),
         "the first update has the rate 0 and does nothing"),
        (_after_warmup(lambda i, n, warmup, rate: rate * _cosine(i / n)),
         "after the warm-up it jumps: where does the cosine begin?"),
        (_after_warmup(lambda i, n, warmup, rate: rate * _cosine((i - warmup) / n)),
         "it does not reach 0: how many updates has the cosine?"),
        (_after_warmup(lambda i, n, warmup, rate: rate), "after the warm-up it stays where it is"),
        (_after_warmup(lambda i, n, warmup, rate: 2 * scheduled_rate(i, n, warmup, rate)),
         "after the warm-up it jumps to twice the rate"),
        (_after_warmup(lambda i, n, warmup, rate: rate * (n - i) / (n - warmup)),
         "it comes down in a straight line"),
    ),
    "load_weights": (
        (lambda resnet: resnet.logits(), "the network is as it was: nothing was loaded"),
        (lambda resnet: _load(resnet, (_TORCH | {"gamma": "bias", "beta": "weight"}).__getitem__),
         "two tensors of BatchNorm have changed places: which of them scales?"),
        (_without("moving_mean", "moving_variance"),
         "the running statistics are MindSpore's initial ones: are they parameters to be trained?"),
        (_without("gamma", "beta", "moving_mean", "moving_variance"),
         "BatchNorm was left out: its parameters have other names"),
        (_without("gamma", "beta"), "BatchNorm has its statistics, and not its scale and shift"),
    ),
    "first_fault": (
        (lambda resnet: _differing(resnet)[-1],
         "that is the last one that differs: which way does a fault spread?"),
        (lambda resnet: _differing(resnet)[0] - 1, "that stage still agrees"),
        (lambda resnet: _differing(resnet)[0] + 1,
         "one too far: its input differs already, or places were counted from 1"),
        (lambda resnet: len(_differing(resnet)), "that is how many stages differ"),
        (lambda resnet: 0, "the first stage of all agrees in both"),
    ),
}  # fmt: skip

check = functools.partial(checks.check, EXERCISES, hints=HINTS)
