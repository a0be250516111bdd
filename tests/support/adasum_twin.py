"""AdasumStep on the linear network of step_cells, in float64, worker by worker."""

from dataclasses import dataclass, field

import numpy as np

from labkit import reference
from tests import twins
from tests.support.step_cells import linear


@dataclass
class Twin:
    """Momentum with one velocity per worker (on="updates") or a single one (on="gradients").

    rate         function of the number of updates so far
    micro_steps  micro-batches that a worker averages, including those of its node's members
    others       as in ``AdasumStep`` and ``AccumulatedStep``

    ``entered`` holds (vectors, twins.Update) of each worker that has had its turn; for a worker
    without a finite micro-batch, (zeros, None). ``last`` describes the last update.
    """

    workers: int
    micro_steps: object = 1
    on: str = "updates"
    reduction: str = "adasum"
    scope: str = "layer"
    tail: str = "flush"
    nonfinite: str = "drop_micro"
    clip_norm: float | None = None
    rate: object = lambda update: 0.05
    momentum: float = 0.9
    weight_decay: float = 0.0
    updates: int = 0
    last: dict = field(default_factory=dict)

    def __post_init__(self):
        network = linear()
        self.weights = [p.asnumpy().astype(np.float64) for p in (network.weight, network.bias)]
        zeros = [np.zeros_like(weight) for weight in self.weights]
        self.velocities = [zeros] * (self.workers if self.on == "updates" else 1)
        self._begin()

    def _begin(self):
        """Begin an update; the size of its groups is that of its number."""
        size = self.micro_steps(self.updates) if callable(self.micro_steps) else self.micro_steps
        self.entered, self.pending, self.size = [], list(self.velocities), size
        self.group = self._group()

    def _group(self):
        own = {"nonfinite": self.nonfinite, "clip_norm": self.clip_norm}
        return twins.Accumulation(self.size, **own)

    def micro_batch(self, inputs, targets):
        """Process one micro-batch of the worker whose turn it is."""
        inputs, targets = inputs.astype(np.float64), targets.astype(np.float64)
        loss, gradients = twins.linear_regression(*self.weights, inputs, targets)
        gathered = twins.MicroBatch(loss, len(inputs), gradients, len(inputs), np.isfinite(loss))
        closed = self.group.micro_batch(gathered)
        if self.group.micro_step == 0:
            self._enter(closed)
        return loss

    def end_epoch(self):
        if self.tail == "drop":
            self._begin()
        elif self.group.micro_step:
            self._enter(self.group.end_epoch())
        while self.entered:
            self._enter(None)

    def _enter(self, group):
        vectors = [np.zeros_like(weight) for weight in self.weights]
        if group is not None:
            vectors = group.gradients
            if self.on == "updates":
                worker = len(self.entered)
                moved, self.pending[worker] = self._moved(vectors, self.velocities[worker])
                vectors = [new - old for new, old in zip(moved, self.weights, strict=True)]
        self.entered.append((vectors, group))
        self.group = self._group()
        if len(self.entered) == self.workers:
            self._combine()

    def _moved(self, gradients, velocity):
        decayed = [g + self.weight_decay * w for g, w in zip(gradients, self.weights, strict=True)]
        rate = self.rate(self.updates)
        return reference.momentum_update(self.weights, velocity, decayed, rate, self.momentum)

    def _combine(self):
        self.vectors = [vectors for vectors, _ in self.entered]
        self.velocities = list(self.pending)
        groups = [group for _, group in self.entered if group is not None]
        if groups:
            parts = self._combined(len(groups))
            if self.on == "updates":
                self.weights = [w + part for w, part in zip(self.weights, parts, strict=True)]
            else:
                self.weights, self.velocities[0] = self._moved(parts, self.velocities[0])
            images = [group.images for group in groups]
            self.last = {
                "number": self.updates + 1,
                "loss": float(np.average([group.loss for group in groups], weights=images)),
                "gradient_norm": float(np.mean([group.norm for group in groups])),
                "learning_rate": (self.rate(self.updates),),
                "images": sum(images),
            }
            self.updates += 1
        self._begin()

    def _combined(self, present):
        rows = np.stack([np.concatenate([v.ravel() for v in vectors]) for vectors in self.vectors])
        ends = np.cumsum([weight.size for weight in self.weights])[:-1]
        layers = np.split(rows, ends, axis=1) if self.scope == "layer" else [rows]
        if self.reduction == "adasum":
            layers = [reference.adasum_tree(layer) for layer in layers]
        else:
            count = present if self.reduction == "mean" else 1
            layers = [layer.sum(axis=0) / count for layer in layers]
        parts = np.split(np.concatenate(layers), ends)
        return [part.reshape(w.shape) for part, w in zip(parts, self.weights, strict=True)]
