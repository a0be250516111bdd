"""Lab 02: wrong answers."""

import functools
import math

import numpy as np
from mindspore import Tensor

from tests.support.answers import solved

right = solved("02_resnet50_migration")
_first_fault = functools.cache(right.first_fault)  # it builds two networks
NAMES = [
    ("gamma", "weight"), ("beta", "bias"),
    ("moving_mean", "running_mean"), ("moving_variance", "running_var"),
]  # fmt: skip


def _load(resnet, names=NAMES, parameters=lambda network: network.get_parameters()):
    for parameter in parameters(resnet.network):
        name = parameter.name
        for here, there in names:
            name = name.replace(here, there)
        if name in resnet.state:
            parameter.set_data(Tensor(resnet.state[name]))
    return resnet.logits()


def _padded(outputs_of, least=0):
    def attempt(size, kernel, stride):
        total = max((outputs_of(size, stride) - 1) * stride + kernel - size, least)
        return np.array([total // 2, (total + 1) // 2])

    return attempt


WRONG = [
    ("same_padding", _padded(lambda size, stride: size // stride), "in no window"),
    ("same_padding", _padded(lambda size, stride: 1 + -(-size // stride)), "one stride too far"),
    ("same_padding", _padded(lambda size, stride: -(-size // stride), -99), "below 0"),
    ("scheduled_rate", lambda i, n, w, rate: rate / 2 * (
        1 + math.cos(math.pi * min(i, w) / w)), "the document's"),
    ("scheduled_rate", lambda i, n, w, rate: right.scheduled_rate(i, n, w, rate) if i < w else (
        rate / 2 * (1 + math.cos(math.pi * i / n))), "where does the cosine begin"),
    ("scheduled_rate", lambda i, n, w, rate: right.scheduled_rate(i, n, w, rate) if i < w else (
        rate * (1 + math.cos(math.pi * (i - w) / (n - w)))), "twice the rate"),
    ("load_weights", lambda resnet: _load(
        resnet, parameters=lambda network: network.trainable_params()), "running statistics"),
    ("load_weights", lambda resnet: _load(resnet, []), "other names"),
    ("load_weights", lambda resnet: _load(
        resnet, [("gamma", "bias"), ("beta", "weight"), *NAMES[2:]]), "changed places"),
    ("load_weights", lambda resnet: _load(resnet, NAMES[2:]), "not its scale"),
    ("first_fault", lambda resnet: 6, "the last one that differs"),
    ("first_fault", lambda resnet: 7 - _first_fault(resnet), "how many stages differ"),
]  # fmt: skip
