r"""The same computations in NumPy float64: slow on purpose, so that they can be read and trusted.

Each function follows the equation, keeps every intermediate and takes no shortcut. Tests and
exercise checks compare the fast cells with these. No MindSpore import.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from labkit.errors import InputError, refuse_unknown

Arrays = list[np.ndarray]


def weight(rows: int, *, tokens: int = 0, normalise: str = "samples", reduction: str = "mean"):
    """Return w_i, what a micro-batch of ``rows`` samples (and ``tokens`` tokens) counts for."""
    refuse_unknown("normalise", normalise, ("samples", "tokens", "steps"))
    if normalise == "tokens":
        return float(tokens)
    return float(rows) if normalise == "samples" and reduction == "mean" else 1.0


def weighted_mean(gradients: Sequence[Arrays], weights: Sequence[float]) -> Arrays:
    """Return sum_i w_i g_i / sum_i w_i for micro-batches i, each a list of arrays."""
    if not len(gradients) or len(gradients) != len(weights) or not sum(weights) > 0:
        raise InputError(
            f"{len(gradients)} gradients and weights {list(weights)} came; expected as many "
            "weights as gradients, at least one, with a sum > 0"
        )
    return [
        sum(
            w * np.asarray(g[leaf], dtype=np.float64)
            for w, g in zip(weights, gradients, strict=True)
        )
        / sum(weights)
        for leaf in range(len(gradients[0]))
    ]


def global_norm(gradients: Arrays) -> float:
    """Return the Euclidean norm of all entries of all arrays together."""
    return float(
        np.linalg.norm(np.concatenate([np.ravel(g).astype(np.float64) for g in gradients]))
    )


def clip_by_global_norm(gradients: Arrays, clip_norm: float) -> Arrays:
    """Return g * min(1, clip_norm / |g|)."""
    norm = global_norm(gradients)
    factor = 1.0 if norm <= clip_norm else clip_norm / norm
    return [g * factor for g in gradients]


def momentum_update(parameters, velocities, gradients, learning_rate=0.01, momentum=0.9):
    """Return (parameters, velocities) after v <- momentum v + g, w <- w - learning_rate v."""
    velocities = [momentum * v + g for v, g in zip(velocities, gradients, strict=True)]
    parameters = [w - learning_rate * v for w, v in zip(parameters, velocities, strict=True)]
    return parameters, velocities


def dynamic_loss_scale(finite: Sequence[bool], initial=2.0**16, factor=2.0, interval=2000):
    """Return the loss scale after each micro-batch.

    A non-finite micro-batch divides it by ``factor`` (not below 1) and starts the count anew;
    ``interval`` finite ones in a row multiply it (not above 2**120).
    """
    scale, run, scales = float(initial), 0, []
    for one in finite:
        run = run + 1 if one else 0
        if not one:
            scale = max(scale / factor, 1.0)
        elif run == interval:
            scale, run = min(scale * factor, 2.0**120), 0
        scales.append(scale)
    return scales


@dataclass(frozen=True)
class MicroBatch:
    """What the gradient stage knows of one micro-batch.

    loss  mean loss L_i; weight  w_i; gradients  of L_i, unweighted; rows  samples in it
    """

    loss: float
    weight: float
    gradients: Arrays
    rows: int
    finite: bool = True


@dataclass(frozen=True)
class Update:
    """One update: the averaged gradients after clipping, their norm before, mean loss, samples."""

    gradients: Arrays
    norm: float
    loss: float
    images: int


@dataclass
class Accumulation:
    """Which micro-batches make an update: a list of the group's members, averaged at its end.

    micro_steps  group size, or a function of the number of updates so far
    tail, nonfinite, reduction, clip_norm  as of ``labkit.accumulation.AccumulatedStep``

    ``members`` are the micro-batches that wait, ``micro_step`` how many the group has counted,
    ``dropped`` the non-finite ones of all time, ``updates`` all updates in order.
    """

    micro_steps: int | Callable[[int], int]
    tail: str = "flush"
    nonfinite: str = "drop_micro"
    reduction: str = "mean"
    clip_norm: float | None = None
    members: list[MicroBatch] = field(default_factory=list)
    micro_step: int = 0
    dropped: int = 0
    updates: list[Update] = field(default_factory=list)

    def __post_init__(self):
        refuse_unknown("tail", self.tail, ("flush", "drop", "carry"))
        refuse_unknown("nonfinite", self.nonfinite, ("drop_micro", "drop_group", "propagate"))
        refuse_unknown("reduction", self.reduction, ("mean", "sum"))
        self.group_size = self._next_size()

    def micro_batch(self, one: MicroBatch) -> Update | None:
        """Take one micro-batch; return the update that it completes, or None."""
        self.members.append(one)
        self.micro_step += 1
        if self.nonfinite != "propagate" and not one.finite:
            self.dropped += 1
        return self._close() if self.micro_step >= self.group_size else None

    def end_epoch(self) -> Update | None:
        """Flush, drop or carry a partly filled group; return the update that a flush makes."""
        if self.micro_step == 0:
            return None
        if self.tail == "carry":
            # The members stay, the count does not: the next group has them on top of its own.
            self.micro_step = 0
            return None
        if self.tail == "drop":
            self.members = []
        return self._close()

    def _close(self):
        members = self.members
        if self.nonfinite == "drop_group" and not all(one.finite for one in members):
            members = []
        if self.nonfinite == "drop_micro":
            members = [one for one in members if one.finite]
        update = self._update(members) if sum(one.weight for one in members) > 0 else None
        self.updates += [update] if update else []
        self.members, self.micro_step = [], 0
        self.group_size = self._next_size()
        return update

    def _update(self, members):
        weights = [one.weight for one in members]
        gradients = weighted_mean([one.gradients for one in members], weights)
        if self.reduction == "sum":
            gradients = [g * sum(weights) for g in gradients]
        norm = global_norm(gradients)
        if self.clip_norm is not None:
            gradients = clip_by_global_norm(gradients, self.clip_norm)
        loss = sum(one.weight * one.loss for one in members) / sum(weights)
        return Update(gradients, norm, loss, sum(one.rows for one in members))

    def _next_size(self):
        return (
            self.micro_steps(len(self.updates)) if callable(self.micro_steps) else self.micro_steps
        )


def linear_regression(weights, bias, inputs, targets):
    """Return (mean squared error over all entries, [d weights, d bias]) of inputs W^T + b.

    weights (out, in), bias (out,), inputs (B, in), targets (B, out)
    """
    error = inputs @ weights.T + bias - targets
    slope = 2.0 * error / error.size
    return float(np.mean(error**2)), [slope.T @ inputs, slope.sum(axis=0)]


def softmax_regression(weights, bias, inputs, labels):
    """Return (mean cross entropy, [d weights, d bias]) of logits inputs W^T + b.

    weights (classes, in), bias (classes,), inputs (B, in), labels (B,) integers
    """
    logits = inputs @ weights.T + bias
    logits = logits - logits.max(axis=1, keepdims=True)
    probability = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -np.mean(np.log(probability[rows, labels]))
    slope = probability.copy()
    slope[rows, labels] -= 1.0
    slope /= len(labels)
    return float(loss), [slope.T @ inputs, slope.sum(axis=0)]


def token_cross_entropy(logits, labels, ignore_index=-1):
    """Return (sum of cross entropies, number of tokens) over labels that are not ``ignore_index``.

    logits (B, T, V), labels (B, T) integers; loops over every token.
    """
    total, count = 0.0, 0
    for row, row_labels in zip(logits.astype(np.float64), labels, strict=True):
        for scores, label in zip(row, row_labels, strict=True):
            if label != ignore_index:
                largest = scores.max()
                total += largest + np.log(np.exp(scores - largest).sum()) - scores[label]
                count += 1
    return total, count


def cosine_schedule(lr, lr_end, epochs, steps_per_epoch, warmup_epochs=0):
    """Return a list: ``labkit.schedules.cosine``, update by update."""
    total, warmup, rates = epochs * steps_per_epoch, warmup_epochs * steps_per_epoch, []
    for update in range(total):
        if update < warmup:
            rates.append(lr * (update + 1) / warmup)
        else:
            angle = math.pi * (update - warmup) / (total - warmup)
            rates.append(lr_end + 0.5 * (lr - lr_end) * (1 + math.cos(angle)))
    return rates


def stairs_schedule(lr, lr_end, epochs, steps_per_epoch, decay_epochs):
    """Return a list: a cosine down to ``lr_end`` in ``decay_epochs``, one rate per epoch."""
    rates = []
    for epoch in range(epochs):
        rate = lr_end
        if epoch < decay_epochs:
            rate += 0.5 * (lr - lr_end) * (1 + math.cos(math.pi * epoch / decay_epochs))
        rates += [rate] * steps_per_epoch
    return rates


def resnet_schedule(lr_init, lr_end, lr_max, warmup_epochs, total_epochs, steps_per_epoch, mode):
    """Return a list: ``labkit.schedules.get_lr``, update by update."""
    total, warmup, rates = total_epochs * steps_per_epoch, warmup_epochs * steps_per_epoch, []
    for update in range(total):
        if update < warmup:
            done = (update + 1 if mode == "cosine" else update) / warmup
            rates.append(lr_init * (1 - done) + lr_max * done)
            continue
        left = (total - update) / (total - warmup)
        if mode == "linear":
            rates.append(lr_end + (lr_max - lr_end) * left)
        elif mode == "poly":
            rates.append(lr_max * left * left)
        elif mode == "steps":
            share = 0 if update < 0.3 * total else 1 if update < 0.6 * total else 2
            rates.append(lr_max * (1.0, 0.1, 0.01, 0.001)[share + (update >= 0.8 * total)])
        elif mode == "cosine":
            wave = math.cos(0.47 * 2 * math.pi * update / (total - warmup))
            rates.append(lr_max * (left * (0.5 + 0.5 * wave) + 0.00001))
    return rates


def thor_schedule(lr_init, decay, total_epochs, steps_per_epoch, decay_epochs):
    """Return a list: ``labkit.schedules.get_thor_lr``, update by update."""
    rates = []
    for made in range(1, total_epochs * steps_per_epoch + 1):
        rate = lr_init * math.pow(1 - made / steps_per_epoch / total_epochs, decay)
        # In whole updates: no rounding decides which of them is the first of an epoch.
        if made >= decay_epochs * steps_per_epoch:
            rate /= 2
        if made >= (decay_epochs + 1) * steps_per_epoch:
            rate /= 2
        rates.append(rate)
    return rates


def thor_damping(damping_init, decay_rate, total_epochs, steps_per_epoch):
    """Return a list: ``labkit.schedules.get_thor_damping``, update by update."""
    return [
        damping_init * math.exp(math.log(decay_rate) * made / steps_per_epoch / 10)
        for made in range(1, total_epochs * steps_per_epoch + 1)
    ]


def smoothed_cross_entropy(logits, labels, on, off):
    """Return (mean loss, its slope by the logits) for targets ``on`` at the label, else ``off``.

    logits (B, C), labels (B,) integers. Loops over every logit; for targets that sum to 1.
    """
    total, slope = 0.0, np.zeros(logits.shape)
    for row, (scores, label) in enumerate(zip(logits.astype(np.float64), labels, strict=True)):
        log_sum = scores.max() + math.log(sum(math.exp(s - scores.max()) for s in scores))
        for column, score in enumerate(scores):
            target = on if column == label else off
            total -= target * (score - log_sum) / len(labels)
            slope[row, column] = (math.exp(score - log_sum) - target) / len(labels)
    return total, slope
