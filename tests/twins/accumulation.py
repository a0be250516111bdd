"""Weighted means of micro-batches, clipping, loss scale, and when a group is full."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from labkit.base.arguments import choice
from labkit.reference.thor import Arrays


def weight(rows: int, reduction: str = "mean") -> float:
    """Return w_i, the weight of a micro-batch of ``rows`` rows: means by rows, sums by 1."""
    return {"mean": float(rows), "sum": 1.0}[reduction]


def weighted_mean(gradients: Sequence[Arrays], weights: Sequence[float]) -> Arrays:
    """Return sum_i w_i g_i / sum_i w_i for micro-batches i, each a list of arrays."""
    leaves = zip(*gradients, strict=True)
    return [np.average(np.asarray(leaf, np.float64), axis=0, weights=weights) for leaf in leaves]


def global_norm(gradients: Arrays) -> float:
    """Return the Euclidean norm of all entries of all arrays together."""
    return float(np.sqrt(sum(np.sum(np.square(g, dtype=np.float64)) for g in gradients)))


def clip_by_global_norm(gradients: Arrays, clip_norm: float) -> Arrays:
    """Return g * min(1, clip_norm / |g|)."""
    norm = global_norm(gradients)
    factor = 1.0 if norm <= clip_norm else clip_norm / norm
    return [g * factor for g in gradients]


def dynamic_loss_scale(
    finite: Sequence[bool], initial: float = 2.0**16, factor: float = 2.0, interval: int = 2000
) -> list[float]:
    """Return the loss scale after each micro-batch.

    A non-finite micro-batch divides it by ``factor`` (not below 1) and restarts the count;
    ``interval`` finite ones in a row multiply it (not above 2**120).
    """
    scale, run, scales = float(initial), 0, []
    for is_finite in finite:
        run = run + 1 if is_finite else 0
        if not is_finite:
            scale = max(scale / factor, 1.0)
        elif run == interval:
            scale, run = min(scale * factor, 2.0**120), 0
        scales.append(scale)
    return scales


class MicroBatch(NamedTuple):
    """What the gradient stage knows about one micro-batch."""

    loss: float  # L_i, a mean
    weight: float  # w_i
    gradients: Arrays  # of L_i, unweighted
    rows: int
    finite: bool = True  # loss and gradients are


class Update(NamedTuple):
    """One update: averaged gradients after clipping, norm before clipping, mean loss, samples."""

    gradients: Arrays
    norm: float
    loss: float
    images: int


@dataclass
class Accumulation:
    """``AccumulatedStep`` by a list of the group's micro-batches, which are averaged at its end."""

    micro_steps: int | Callable[[int], int]  # of the number of updates so far
    tail: str = "flush"
    nonfinite: str = "drop_micro"
    reduction: str = "mean"
    clip_norm: float | None = None
    members: list[MicroBatch] = field(default_factory=list)  # those that are waiting
    micro_step: int = 0  # micro-batches that the group has counted
    dropped: int = 0  # those not finite so far, except with ``propagate``
    updates: list[Update] = field(default_factory=list)  # all, in order

    def __post_init__(self) -> None:
        choice("tail", self.tail, ("flush", "drop", "carry"))
        choice("nonfinite", self.nonfinite, ("drop_micro", "drop_group", "propagate"))
        choice("reduction", self.reduction, ("mean", "sum"))
        self.group_size = self._next_size()

    def micro_batch(self, batch: MicroBatch) -> Update | None:
        """Take one micro-batch; return the update that it completes, or None."""
        self.members.append(batch)
        self.micro_step += 1
        if self.nonfinite != "propagate" and not batch.finite:
            self.dropped += 1
        return self._close() if self.micro_step >= self.group_size else None

    def end_epoch(self) -> Update | None:
        """Flush, drop or carry a partly filled group; return the update that a flush makes."""
        counted = self.micro_step
        if self.tail == "carry":
            # The members stay, the count restarts: the next group has them in addition to its own.
            counted = self.micro_step = 0
        if counted == 0:
            return None
        if self.tail == "drop":
            self.members = []
        return self._close()

    def _close(self) -> Update | None:
        members = self.members
        if self.nonfinite == "drop_group" and not all(member.finite for member in members):
            members = []
        if self.nonfinite == "drop_micro":
            members = [member for member in members if member.finite]
        update = self._update(members) if sum(member.weight for member in members) > 0 else None
        self.updates += [update] if update else []
        self.members, self.micro_step = [], 0
        self.group_size = self._next_size()
        return update

    def _update(self, members: list[MicroBatch]) -> Update:
        weights = [member.weight for member in members]
        gradients = weighted_mean([member.gradients for member in members], weights)
        if self.reduction == "sum":
            gradients = [g * sum(weights) for g in gradients]
        norm = global_norm(gradients)
        if self.clip_norm is not None:
            gradients = clip_by_global_norm(gradients, self.clip_norm)
        loss = sum(member.weight * member.loss for member in members) / sum(weights)
        return Update(gradients, norm, loss, sum(member.rows for member in members))

    def _next_size(self) -> int:
        given = self.micro_steps
        return given(len(self.updates)) if callable(given) else given
