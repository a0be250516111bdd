"""``evaluate``: accuracies and mean loss over every row, on one rank or added up over all."""

import numpy as np
from mindspore import nn
from mindspore.train import Metric, Model

from labkit import cluster
from labkit.errors import InputError
from labkit.modes import modes, set_modes


def evaluate(network, loss_fn, dataset, *, top=(), over_ranks=False) -> dict[str, float]:
    """Return ``accuracy`` and mean ``loss`` of ``network`` over every row of ``dataset``.

    network     inputs -> logits (B, classes); loss_fn  (logits, labels) -> mean loss
    top         further k: ``top_<k>_accuracy`` is the share of rows whose label is among the k
                largest logits
    over_ranks  the ranks hold different rows: their counts are added up, so that every row counts
                alike whatever the sizes of the parts. Call it on every rank then

    All Cells are in evaluation mode meanwhile; each one's own mode is as before afterwards.

    Of equal logits that of the smaller class counts as the larger. A row with a logit that is NaN
    is wrong. Raises ``InputError`` where there is no row, and for a k that is not a number >= 1.
    """
    metrics = {"accuracy": TopK(1)} | {f"top_{k}_accuracy": TopK(k) for k in top}
    metrics["loss"] = MeanLoss()
    cell = nn.WithEvalCell(network, loss_fn)
    kept, phase = modes(cell), network.phase
    model = Model(network, eval_network=cell, metrics=metrics)
    try:
        model.eval(dataset, dataset_sink_mode=False)
    finally:
        set_modes(kept)
        network.phase = phase
    if over_ranks:
        _add_over_ranks(metrics.values())
    return {name: float(metric.eval()) for name, metric in metrics.items()}


class _Mean(Metric):
    """A sum over rows, divided by the number of rows; both are kept apart to be added up."""

    def __init__(self):
        super().__init__()
        self.clear()

    def clear(self):
        self.total, self.rows = 0.0, 0

    def eval(self):
        if not self.rows:
            raise InputError("there was nothing to evaluate: the dataset is empty")
        return self.total / self.rows


class MeanLoss(_Mean):
    """Mean loss over rows; MindSpore's ``Loss`` takes the mean of batch means, which is another
    number where the last batch is smaller."""

    def update(self, *inputs):
        loss, labels = float(inputs[0].asnumpy()), inputs[2]
        self.total += loss * labels.shape[0]
        self.rows += labels.shape[0]


class TopK(_Mean):
    """Share of rows whose label is among the k largest logits; of (loss, logits, labels)."""

    def __init__(self, k):
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise InputError(f"k is {k!r}; expected a whole number of at least 1")
        super().__init__()
        self.k = k

    def update(self, *inputs):
        logits, labels = inputs[1].asnumpy(), inputs[2].asnumpy()
        own = np.take_along_axis(logits, labels[:, None], axis=1)
        before = (logits > own) | ((logits == own) & (np.arange(logits.shape[1]) < labels[:, None]))
        right = (before.sum(axis=1) < self.k) & ~np.isnan(logits).any(axis=1)
        self.total += int(right.sum())
        self.rows += len(labels)


def _add_over_ranks(metrics):
    metrics = list(metrics)
    own = [number for metric in metrics for number in (metric.total, metric.rows)]
    sums = cluster.gather(own).sum(axis=0).reshape(-1, 2)
    for metric, (total, rows) in zip(metrics, sums, strict=True):
        metric.total, metric.rows = total, int(rows)
