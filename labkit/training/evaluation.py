"""``evaluate``: accuracies and mean loss over every row, of one rank or of all ranks."""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import replace

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.dataset import Dataset
from mindspore.train import Metric, Model

from labkit.base.arguments import integer, names_checked, wrong
from labkit.errors import InputError
from labkit.ranks import cluster
from labkit.runtime import pynative
from labkit.steps.labels import IGNORE_INDEX, as_int32, check_ignore_index, check_labels
from labkit.steps.modes import modes, set_modes
from labkit.steps.weights import Mean, mean_of_loss


@names_checked
def evaluate(
    network: nn.Cell,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    dataset: Dataset,
    *,
    top: Iterable[int] = (),
    over_ranks: bool = False,
    ignore_index: int | None = None,
) -> dict[str, float]:
    """Return ``accuracy`` and mean ``loss`` of ``network`` over every label of ``dataset``.

    All Cells are in evaluation mode during the call; afterwards each has its previous mode. Of
    equal logits, that of the smaller class counts as the larger. A row with a NaN logit counts as
    wrong.

    Args:
        network: Inputs -> logits (B, classes), or (B, T, classes). The layout (B, classes, T) of
            nn.CrossEntropyLoss is refused, unless T is the number of classes and the two layouts
            cannot be distinguished: transpose it first.
        loss_fn: (logits, labels) -> mean loss over the labels that count. The losses that
            ``steps.weights`` knows get all axes of the labels as one: (B T, classes), (B T,).
        dataset: Batches of inputs and, last, labels (B,) or (B, T), integers.
        top: Further values of k: ``top_<k>_accuracy`` is the share of labels that are among the k
            largest logits.
        over_ranks: Whether the ranks hold different rows: their counts are then summed, so that
            every row counts equally whatever the sizes of the parts. Call it on every rank.
        ignore_index: Label that does not count. None: that of the loss if it is a known one
            (nn.SoftmaxCrossEntropyWithLogits has none), else -100.

    Raises:
        InputError: If ``network`` is not a Cell or ``dataset`` not a dataset, no label counts, a k
            is not an integer >= 1, the shape of the labels does not fit the logits, or a label is
            neither a class nor ignored.
    """
    if not isinstance(network, nn.Cell):
        raise wrong("network", network, "an nn.Cell")
    if not isinstance(dataset, Dataset):
        raise wrong("dataset", dataset, "a MindSpore dataset")
    if not isinstance(top, Iterable):
        raise InputError(f"top: expected integers >= 1 in a list, got {top!r}")
    mean = _counted(loss_fn, ignore_index)
    metrics = {"accuracy": TopK(1, mean)} | {f"top_{k}_accuracy": TopK(k, mean) for k in top}
    metrics["loss"] = MeanLoss(mean)
    cell = _Evaluation(network, loss_fn, mean)
    kept, phase = modes(cell), network.phase
    model = Model(network, eval_network=cell, metrics=metrics)
    try:
        # If one rank refused a label, the others would wait for its counts.
        with cluster.together() if over_ranks else contextlib.nullcontext():
            model.eval(dataset, dataset_sink_mode=False)
    finally:
        set_modes(kept)
        network.phase = phase
    if over_ranks:
        _add_over_ranks(list(metrics.values()))
    return {name: float(metric.eval()) for name, metric in metrics.items()}


def _counted(loss_fn: Callable, ignore_index: int | None) -> Mean:
    """Return what a loss is a mean over, with the ``ignore_index`` that is to be used."""
    mean = mean_of_loss(loss_fn)
    if mean.over == "unknown":
        own = IGNORE_INDEX if ignore_index is None else check_ignore_index(ignore_index)
        return replace(mean, ignore_index=own)
    if mean.why_not:
        raise InputError(f"{mean.why_not}; expected a mean over the labels that count")
    if ignore_index not in (None, mean.ignore_index):
        raise InputError(
            f"ignore_index is {ignore_index!r}, and that of the {type(loss_fn).__name__} is "
            f"{mean.ignore_index}; expected the same"
        )
    return mean


class _Evaluation(nn.Cell):
    """Checks the labels of a batch and returns (loss, logits (N, V), labels (N,))."""

    def __init__(self, network: nn.Cell, loss_fn: Callable, mean: Mean) -> None:
        super().__init__(auto_prefix=False)
        self.network, self.loss_fn = network, loss_fn
        object.__setattr__(self, "mean", mean)

    def __call__(self, *batch: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits, labels = self.network(*batch[:-1]), batch[-1]
        if logits.ndim < 2 or logits.shape[:-1] != labels.shape:
            raise InputError(
                f"the labels have shape {labels.shape}, the logits {logits.shape}; expected logits "
                "(B, classes) and labels (B,), or (B, T, classes) and (B, T)"
            )
        check_labels(labels.asnumpy(), logits.shape[-1], self.mean.ignore_index)
        labels = as_int32(labels)
        rows = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
        outputs, wanted = (logits, labels) if self.mean.over == "unknown" else rows
        # Operator by operator: a graph took 0.4 s to compile in every evaluation.
        with pynative():
            # As LossNet does: a network in float16 is evaluated with the loss it is trained with.
            loss = self.loss_fn(ops.cast(outputs, ms.float32), wanted)
        return loss, *rows


class _Mean(Metric):
    """A weighted mean over labels; its sum and weight are kept apart, to be summed over ranks.

    Args:
        mean: What the loss is a mean over: which labels count, and for how much.
    """

    @names_checked
    def __init__(self, mean: Mean | None = None) -> None:
        super().__init__()
        self.mean = mean or Mean("rows")
        self.clear()

    def clear(self) -> None:
        self.total, self.rows = 0.0, 0.0

    def eval(self) -> float:
        if not self.rows:
            raise InputError("there was nothing to evaluate: the dataset holds no label to count")
        return self.total / self.rows

    def counts(self, labels: np.ndarray) -> np.ndarray:
        """Return which of the labels are not ignored."""
        if self.mean.ignore_index is None:
            return np.ones(labels.shape, bool)
        return labels != self.mean.ignore_index


class MeanLoss(_Mean):
    """Mean loss over what each batch's loss is a mean over; MindSpore's ``Loss`` takes the mean of
    batch means, which differs if the last batch is smaller."""

    def update(self, *inputs: Tensor) -> None:
        loss, labels = float(inputs[0].asnumpy()), inputs[2].asnumpy()
        known = labels[self.counts(labels)]
        weight: float = len(known)
        if self.mean.class_weights is not None:
            weight = float(self.mean.class_weights.astype(np.float64)[known].sum())
        if weight:
            self.total += loss * weight
            self.rows += weight


class TopK(_Mean):
    """Share of labels that are among the k largest logits; updated with (loss, logits, labels)."""

    @names_checked
    def __init__(self, k: int, mean: Mean | None = None) -> None:
        super().__init__(mean)
        self.k = integer("k", k)

    def update(self, *inputs: Tensor) -> None:
        logits, labels = inputs[1].asnumpy(), inputs[2].asnumpy()
        counts = self.counts(labels)
        logits, labels = logits[counts], labels[counts].astype(np.int64)
        own = np.take_along_axis(logits, labels[:, None], axis=1)
        before = (logits > own) | ((logits == own) & (np.arange(logits.shape[1]) < labels[:, None]))
        right = (before.sum(axis=1) < self.k) & ~np.isnan(logits).any(axis=1)
        self.total += int(right.sum())
        self.rows += len(labels)


def _add_over_ranks(metrics: list[_Mean]) -> None:
    own = [number for metric in metrics for number in (metric.total, metric.rows)]
    sums = cluster.gather(own).sum(axis=0).reshape(-1, 2)
    for metric, (total, rows) in zip(metrics, sums, strict=True):
        metric.total, metric.rows = total, rows
