"""SubspaceStep on ``small_network`` of subspace_cells, in float64, micro-batch by micro-batch."""

from dataclasses import dataclass, field

import numpy as np

from labkit import reference
from tests import twins
from tests.support.subspace_cells import small_loss, small_weights


@dataclass
class Twin:
    """``reference.ProjectedBFGS`` after ``twins.Accumulation``, with any momentum optimizer.

    basis      (K, M);  method  ``bfgs`` or ``sgd``;  constants  of the search
    rate, momentum, decay  of the optimizer; the decay may differ by weight (M,)
    """

    basis: np.ndarray
    method: str = "bfgs"
    constants: dict = field(default_factory=dict)
    micro_steps: int = 1
    tail: str = "flush"
    nonfinite: str = "drop_micro"
    reduction: str = "mean"
    clip_norm: float | None = None
    rate: float = 1.0
    momentum: float = 0.0
    decay: float | np.ndarray = 0.0

    def __post_init__(self):
        self.weights = small_weights()
        self.velocity = np.zeros_like(self.weights)
        self.search = reference.ProjectedBFGS(
            self.basis, optimizer=self._optimizer, **self.constants
        )
        self.group = twins.Accumulation(
            self.micro_steps,
            tail=self.tail,
            nonfinite=self.nonfinite,
            reduction=self.reduction,
            clip_norm=self.clip_norm,
        )
        self.rows, self.updates = [], 0

    def _optimizer(self, weights, slope):
        slope = slope + self.decay * weights
        (weights,), (self.velocity,) = reference.momentum_update(
            [weights], [self.velocity], [slope], self.rate, self.momentum
        )
        return weights

    def micro_batch(self, inputs, labels):
        """Process a micro-batch; it is not finite if an input is not."""
        finite = bool(np.isfinite(inputs).all())
        loss, gradient = small_loss(self.weights, inputs, labels)
        weight = twins.weight(len(labels), reduction=self.reduction)
        if finite:
            self.rows.append((weight, inputs, labels))
        gathered = twins.MicroBatch(loss, weight, [gradient], len(labels), finite)
        self._close(self.group.micro_batch(gathered))
        return loss

    def end_epoch(self):
        self._close(self.group.end_epoch())

    def _close(self, update):
        if update is not None:
            self.updates += 1
            (gradient,) = update.gradients
            if self.method == "sgd":
                inside = reference.projected_gradient(self.basis, gradient)
                self.weights = self._optimizer(self.weights, inside)
            else:
                self.weights = self.search.update(self.weights, gradient, self._loss)
        if self.group.micro_step == 0:
            self.rows = []

    def _loss(self, weights):
        """Return the objective whose gradient the update has, on the update's own rows."""
        losses = [weight * small_loss(weights, *rows)[0] for weight, *rows in self.rows]
        divisor = sum(weight for weight, *_ in self.rows) if self.reduction == "mean" else 1
        return sum(losses) / divisor
