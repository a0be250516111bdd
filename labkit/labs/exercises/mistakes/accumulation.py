"""Mistakes that learners make in lab 01, gradient accumulation, each with what to say to them."""

import math

import numpy as np

from labkit.labs.exercises.specs import accumulation as specs


def _summed(gradients, sizes):
    return sum(gradients)


def _mean_of_means(gradients, sizes):
    return sum(gradients) / len(gradients)


def _sum_over_samples(gradients, sizes):
    return sum(gradients) / sum(sizes)


def _never_divided(gradients, sizes):
    return specs.mean_gradient(gradients, sizes) * sum(sizes)


def _divided_by_count(gradients, sizes):
    return specs.mean_gradient(gradients, sizes) * sum(sizes) / len(sizes)


def _last_only(gradients, sizes):
    return gradients[-1]


def _rescales_swapped(pixels):
    return (np.asarray(pixels) / 0.3081 - 0.1307 / 0.3081) / 255


def _difference_last(pixels):
    return np.asarray(pixels) / 255 - 0.1307 / 0.3081


def _multiplied(pixels):
    return (np.asarray(pixels) / 255 - 0.1307) * 0.3081


def _constants_swapped(pixels):
    return (np.asarray(pixels) / 255 - 0.3081) / 0.1307


def _centred_only(pixels):
    return np.asarray(pixels) / 255 - 0.1307


def _whole_division(pixels):
    return (np.asarray(pixels) // 255 - 0.1307) / 0.3081


def _own_statistics(pixels):
    return (pixels - np.mean(pixels)) / np.std(pixels)


def _carried_counted(n, k, tail):
    return n // k + (tail != "drop" and n % k > 0)


def _clip(gradient, clip_norm):
    return gradient * min(1.0, clip_norm / np.linalg.norm(gradient))


def _each_clipped(gradients, sizes, clip_norm):
    return specs.mean_gradient([_clip(one, clip_norm) for one in gradients], sizes)


def _sum_clipped(gradients, sizes, clip_norm):
    return _clip(sum(gradients), clip_norm)


def _always_scaled(gradients, sizes, clip_norm):
    mean = specs.mean_gradient(gradients, sizes)
    return mean * (clip_norm / np.linalg.norm(mean))


def _not_clipped(gradients, sizes, clip_norm):
    return specs.mean_gradient(gradients, sizes)


def _numbers_clipped(gradients, sizes, clip_norm):
    return np.clip(specs.mean_gradient(gradients, sizes), -clip_norm, clip_norm)


def _without_root(gradients, sizes, clip_norm):
    mean = specs.mean_gradient(gradients, sizes)
    return mean * min(1.0, clip_norm / (mean @ mean))


def _unweighted_clipped(gradients, sizes, clip_norm):
    return _clip(_mean_of_means(gradients, sizes), clip_norm)


def _masked_sum(losses, is_token):
    return sum((loss * mask).sum() for loss, mask in zip(losses, is_token, strict=True))


def _mean_of_token_means(losses, is_token):
    pairs = zip(losses, is_token, strict=True)
    return sum((loss * mask).sum() / mask.sum() for loss, mask in pairs) / len(losses)


def _padding_counted(losses, is_token):
    return _masked_sum(losses, is_token) / sum(mask.size for mask in is_token)


def _by_sequences(losses, is_token):
    return _masked_sum(losses, is_token) / len(losses)


def _mask_unused(losses, is_token):
    return np.mean([loss.mean() for loss in losses])


HINTS = {
    "mean_gradient": (
        (_summed, "it is the plain sum: what should it be divided by?"),
        (_mean_of_means, "right only while all micro-batches have the same size"),
        (
            _sum_over_samples,
            "each gradient is already a mean over its own samples: weigh it before dividing",
        ),
        (_never_divided, "weighed, but not yet a mean: it grows with the number of samples"),
        (_divided_by_count, "weighed by samples: is it then divided by how many they are?"),
        (_last_only, "only the last micro-batch is in it: were the others overwritten?"),
    ),
    "normalise": (
        (_rescales_swapped, "the constants are for pixels from 0 to 1: which step is first?"),
        (_difference_last, "the mean itself was divided: in which order are `-` and `/` done?"),
        (_multiplied, "the spread has become smaller, not 1: which way does a deviation rescale?"),
        (_constants_swapped, "the mean and the deviation have changed places"),
        (_centred_only, "the mean is 0 now: what is the deviation?"),
        (_whole_division, "only two grey values are left: which division was that?"),
        (_own_statistics, "these pixels' own mean and deviation: another image gets others"),
    ),
    "updates_per_epoch": (
        (lambda n, k, tail: n // k, "a flushed tail is an update too"),
        (lambda n, k, tail: math.ceil(n / k), "not every `tail` makes an update of the rest"),
        (lambda n, k, tail: n // k + (tail == "flush"), "is there a tail when k divides n?"),
        (_carried_counted, "a tail that is carried is completed when? In this epoch?"),
        (lambda n, k, tail: n / k, "an update is made or not: what is a fraction of one?"),
        (lambda n, k, tail: n, "that is the number of micro-batches: how many make an update?"),
    ),
    "clipped_update": (
        (
            _each_clipped,
            "each micro-batch was clipped on its own: which gradient does the optimizer see?",
        ),
        (
            _sum_clipped,
            "the sum was clipped, so the limit depends on the number of micro-batches",
        ),
        (_always_scaled, "a gradient shorter than the limit was made longer"),
        (_not_clipped, "averaged, and never clipped"),
        (_numbers_clipped, "each number was clipped by itself: what is the limit a limit of?"),
        (_without_root, "compared with the square of the length: is there a root missing?"),
        (_unweighted_clipped, "clipped well; is the mean right if the sizes differ?"),
    ),
    "token_loss": (
        (_mean_of_token_means, "short sequences count as much as long ones"),
        (_padding_counted, "the padding was counted"),
        (_masked_sum, "that is a sum: it grows with the number of tokens"),
        (_by_sequences, "that is the loss of a sequence: how many tokens has one?"),
        (_mask_unused, "the padding's losses are in it: what is the mask for?"),
    ),
}
