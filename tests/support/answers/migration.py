"""Lab 02: right answers, and wrong ones."""

import math

import numpy as np
from mindspore import Tensor

from labkit.runtime import pynative


def same_padding(size, kernel, stride):
    outputs, padding = -(-size // stride), 0
    while (size + padding - kernel) // stride + 1 < outputs:
        padding += 1
    return padding // 2, padding - padding // 2


def running_variance(old, values, torch_momentum):
    new = np.square(values - values.mean()).sum() / (len(values) - 1)
    return old + torch_momentum * (new - old)


def smooth_targets(label, classes, smoothing):
    return (1 - smoothing) * np.eye(classes)[label] + smoothing / classes


def preprocess(pixels, mean, std):
    return (pixels / 255 - mean) / std


def scheduled_rate(update, updates, warmup, rate):
    if update < warmup:
        return (update + 1) / warmup * rate
    return 0.5 * rate + 0.5 * rate * math.cos(math.pi * (update - warmup) / (updates - warmup))


NAMES = [
    ("gamma", "weight"), ("beta", "bias"),
    ("moving_mean", "running_mean"), ("moving_variance", "running_var"),
]  # fmt: skip


def load_weights(resnet, names=NAMES, parameters=lambda network: network.get_parameters()):
    for parameter in parameters(resnet.network):
        name = parameter.name
        for here, there in names:
            name = name.replace(here, there)
        if name in resnet.state:
            parameter.set_data(Tensor(resnet.state[name]))
    return resnet.logits()


def first_fault(resnet):
    seen = []
    for network in (resnet.right, resnet.wrong):
        for name in resnet.stages:
            part = network.__getattr__(name)
            part.register_forward_hook(lambda cell, inputs, output: seen.append(output.asnumpy()))
        with pynative():
            network(resnet.images)
    half = len(seen) // 2
    for place in range(half):
        if np.abs(seen[place] - seen[place + half]).max() > 1e-6:
            return place


def _trainable(resnet):
    return load_weights(resnet, parameters=lambda network: network.trainable_params())


def _padded(outputs_of, least=0):
    def attempt(size, kernel, stride):
        total = max((outputs_of(size, stride) - 1) * stride + kernel - size, least)
        return np.array([total // 2, (total + 1) // 2])

    return attempt


def _after_warmup(rate_at):
    def attempt(i, n, w, rate):
        return scheduled_rate(i, n, w, rate) if i < w else rate_at(i, n, w, rate)

    return attempt


WRONG = [
    ("same_padding", _padded(lambda size, stride: size // stride), "in no window"),
    ("same_padding", _padded(lambda size, stride: 1 + -(-size // stride)), "one stride too far"),
    ("same_padding", _padded(lambda size, stride: -(-size // stride), -99), "below 0"),
    ("running_variance", lambda old, v, m: (1 - m) * old + m * v.var(), "divided by what"),
    ("running_variance", lambda old, v, m: m * old + (1 - m) * v.var(), "both"),
    ("running_variance", lambda old, v, m: old + m * (np.std(v, ddof=1) - old), "a square"),
    ("running_variance", lambda old, v, m: v.var(ddof=1), "become of the old one"),
    ("running_variance", lambda old, v, m: old + m * (v.mean() - old), "for their variance"),
    ("smooth_targets", lambda label, n, e: np.where(
        np.arange(n) == label, 1 - e, e / (n - 1)), "not PyTorch's"),
    ("smooth_targets", lambda label, n, e: np.where(
        np.arange(n) == label, 1 - e, e / n), "sum to less than 1"),
    ("smooth_targets", lambda label, n, e: np.arange(n) == label, "no smoothing"),
    ("smooth_targets", lambda label, n, e: np.eye(n)[label] + e / n, "sum to more than 1"),
    ("smooth_targets", lambda label, n, e: np.eye(n)[label] * (1 - e) + e, "the whole of e"),
    ("smooth_targets", lambda label, n, e: np.where(
        np.arange(n) == label, e, 0) + (1 - e) / n, "hardly ahead"),
    ("preprocess", lambda pixels, mean, std: (pixels - mean * 255) / std, "does the deviation"),
    ("preprocess", lambda pixels, mean, std: (pixels - mean) / std / 255, "does the mean"),
    ("preprocess", lambda pixels, mean, std: (pixels - pixels.mean()) / pixels.std(), "own mean"),
    ("scheduled_rate", lambda i, n, w, rate: rate / 2 * (
        1 + math.cos(math.pi * min(i, w) / w)), "the document's"),
    ("scheduled_rate", lambda i, n, w, rate: scheduled_rate(i, n, w, rate) if i < w else (
        rate / 2 * (1 + math.cos(math.pi * i / n))), "where does the cosine begin"),
    ("scheduled_rate", _after_warmup(lambda i, n, w, rate: rate / 2 * (
        1 + math.cos(math.pi * (i - w) / n))), "does not reach 0"),
    ("scheduled_rate", _after_warmup(lambda i, n, w, rate: rate), "stays where it is"),
    ("scheduled_rate", _after_warmup(lambda i, n, w, rate: rate * (
        1 + math.cos(math.pi * (i - w) / (n - w)))), "twice the rate"),
    ("scheduled_rate", _after_warmup(
        lambda i, n, w, rate: rate - rate * (i - w) / (n - w)), "a straight line"),
    ("load_weights", _trainable, "running statistics"),
    ("load_weights", lambda resnet: load_weights(resnet, []), "other names"),
    ("load_weights", lambda resnet: load_weights(
        resnet, [("gamma", "bias"), ("beta", "weight"), *NAMES[2:]]), "changed places"),
    ("load_weights", lambda resnet: load_weights(resnet, NAMES[2:]), "not its scale"),
    ("first_fault", lambda resnet: 6, "the last one that differs"),
    ("first_fault", lambda resnet: first_fault(resnet) - 1, "still agrees"),
    ("first_fault", lambda resnet: 7 - first_fault(resnet), "how many stages differ"),
    ("first_fault", lambda resnet: first_fault(resnet) + 1, "counted from 1"),
]  # fmt: skip
