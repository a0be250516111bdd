"""Mistakes that learners make in lab 02, migration, each with what to say to them."""

import math

import numpy as np

from labkit.labs.exercises.specs import migration as specs


def _torch_padding(size, kernel, stride):
    return [(kernel - 1) // 2] * 2


def _excess_first(size, kernel, stride):
    return specs.same_padding(size, kernel, stride)[::-1]


def _both_on_each_side(size, kernel, stride):
    return [sum(specs.same_padding(size, kernel, stride))] * 2


def _rest_dropped(size, kernel, stride):
    total = max((size // stride - 1) * stride + kernel - size, 0)
    return [total // 2, total - total // 2]


def _one_stride_more(size, kernel, stride):
    total = max(math.ceil(size / stride) * stride + kernel - size, 0)
    return [total // 2, total - total // 2]


def _below_zero(size, kernel, stride):
    total = (math.ceil(size / stride) - 1) * stride + kernel - size
    return [total // 2, total - total // 2]


def _mindspores_momentum(old, values, torch_momentum):
    return specs.running_variance(old, values, 1 - torch_momentum)


def _biased(old, values, torch_momentum):
    return (1 - torch_momentum) * old + torch_momentum * np.var(values)


def _biased_and_mindspores(old, values, torch_momentum):
    return _biased(old, values, 1 - torch_momentum)


def _deviation(old, values, torch_momentum):
    return (1 - torch_momentum) * old + torch_momentum * np.std(values, ddof=1)


def _batch_only(old, values, torch_momentum):
    return np.var(values, ddof=1)


def _not_updated(old, values, torch_momentum):
    return old


def _mean_instead(old, values, torch_momentum):
    return (1 - torch_momentum) * old + torch_momentum * np.mean(values)


def _documents_targets(label, classes, smoothing):
    targets = np.full(classes, smoothing / (classes - 1))
    targets[label] = 1 - smoothing
    return targets


def _label_without_its_share(label, classes, smoothing):
    targets = np.full(classes, smoothing / classes)
    targets[label] = 1 - smoothing
    return targets


def _one_hot(label, classes, smoothing):
    return np.eye(classes)[label]


def _nothing_taken(label, classes, smoothing):
    return np.eye(classes)[label] + smoothing / classes


def _whole_smoothing(label, classes, smoothing):
    return (1 - smoothing) * np.eye(classes)[label] + smoothing


def _other_way_round(label, classes, smoothing):
    return smoothing * np.eye(classes)[label] + (1 - smoothing) / classes


def _constants_of_0_to_1(pixels, mean, std):
    return (pixels - mean) / std


def _multiplied(pixels, mean, std):
    return (pixels / 255 - mean) * std


def _mean_rescaled_only(pixels, mean, std):
    return (pixels - 255 * mean) / std


def _deviation_rescaled_only(pixels, mean, std):
    return (pixels - mean) / (255 * std)


def _whole_division(pixels, mean, std):
    return (pixels // 255 - mean) / std


def _divided_only(pixels, mean, std):
    return pixels / 255


def _own_statistics(pixels, mean, std):
    return (pixels - np.mean(pixels)) / np.std(pixels)


def _documents_rate(update, updates, warmup, rate):
    return rate * (1 + math.cos(math.pi * min(update, warmup) / warmup)) / 2


def _starts_at_zero(update, updates, warmup, rate):
    if update < warmup:
        return rate * update / warmup
    return specs.learning_rate(update, updates, warmup, rate)


def _cosine_from_the_start(update, updates, warmup, rate):
    if update < warmup:
        return specs.learning_rate(update, updates, warmup, rate)
    return rate * (1 + math.cos(math.pi * update / updates)) / 2


def _cosine_of_all_updates(update, updates, warmup, rate):
    if update < warmup:
        return specs.learning_rate(update, updates, warmup, rate)
    return rate * (1 + math.cos(math.pi * (update - warmup) / updates)) / 2


def _no_decay(update, updates, warmup, rate):
    return specs.learning_rate(min(update, warmup), updates, warmup, rate)


def _twice_the_top(update, updates, warmup, rate):
    once = specs.learning_rate(update, updates, warmup, rate)
    return once if update < warmup else 2 * once


def _straight_down(update, updates, warmup, rate):
    if update < warmup:
        return specs.learning_rate(update, updates, warmup, rate)
    return rate * (updates - update) / (updates - warmup)


HINTS = {
    "same_padding": (
        (_torch_padding, "that is PyTorch's, which is the same for every size"),
        (_excess_first, "an odd number of rows: on which side does MindSpore put the extra?"),
        (_both_on_each_side, "what both sides need together was put on each side"),
        (_rest_dropped, "the last rows are in no window: how many outputs are there to be?"),
        (_one_stride_more, "one stride too far: how many strides lie between n windows?"),
        (_below_zero, "padding below 0: what if the kernel is shorter than the stride?"),
    ),
    "running_variance": (
        (_mindspores_momentum, "that is MindSpore's momentum: whose weight is PyTorch's?"),
        (_biased, "the running statistics take the unbiased variance: divided by what?"),
        (
            _biased_and_mindspores,
            "both the momentum and the variance are the other framework's or the biased one",
        ),
        (_deviation, "a deviation was mixed with a variance: is a square missing?"),
        (_batch_only, "that is this batch's variance: what has become of the old one?"),
        (_not_updated, "nothing of the batch is in it"),
        (_mean_instead, "the mean of the values was taken for their variance"),
    ),
    "smooth_targets": (
        (_documents_targets, "that is CrossEntropySmooth of the document, not PyTorch's"),
        (_label_without_its_share, "they sum to less than 1: who else has a share of e?"),
        (_one_hot, "there is no smoothing in them"),
        (_nothing_taken, "they sum to more than 1: was anything taken from the label?"),
        (_whole_smoothing, "every class got the whole of e: among how many is it shared?"),
        (_other_way_round, "the label is hardly ahead: which part is e, and which is the rest?"),
    ),
    "preprocess": (
        (_constants_of_0_to_1, "the constants are for pixels from 0 to 1, and these go to 255"),
        (_multiplied, "the spread has become smaller: which way does a deviation rescale?"),
        (_mean_rescaled_only, "the mean fits pixels to 255 now: does the deviation?"),
        (_deviation_rescaled_only, "the deviation fits pixels to 255 now: does the mean?"),
        (_whole_division, "only two grey values are left: which division was that?"),
        (_divided_only, "from 0 to 1 now: what are `mean` and `std` for?"),
        (_own_statistics, "this image's own mean and deviation: are they the data set's?"),
    ),
    "learning_rate": (
        (_documents_rate, "that is the document's: no warm-up, and the floor after `warmup`"),
        (_starts_at_zero, "the first update has the rate 0 and does nothing"),
        (_cosine_from_the_start, "after the warm-up it jumps: where does the cosine begin?"),
        (_cosine_of_all_updates, "it does not reach 0: how many updates has the cosine?"),
        (_no_decay, "after the warm-up it stays where it is"),
        (_twice_the_top, "after the warm-up it jumps to twice the rate"),
        (_straight_down, "it comes down in a straight line"),
    ),
}
