"""``evaluate``: accuracies and mean loss over every row, of one rank or of all ranks."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from mindspore import Tensor, nn
from mindspore.dataset import Dataset

from labkit.base.arguments import integer
from labkit.errors import InputError
from labkit.ranks import cluster
from labkit.runtime import pynative
from labkit.steps.losses import IGNORE_INDEX, LossNet, as_int32, check_labels


def evaluate(
    network: nn.Cell,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    dataset: Dataset,
    *,
    top: Iterable[int] = (),
    over_ranks: bool = False,
) -> dict[str, float]:
    """Return ``accuracy`` and mean ``loss`` of ``network`` over every label of ``dataset``.

    All Cells are in evaluation mode during the call; afterwards each has its previous mode. Of
    equal logits, that of the smaller class counts as the larger. A row with a NaN logit counts as
    wrong.

    Args:
        network: Inputs -> logits (B, classes), or (B, T, classes). The layout (B, classes, T) of
            nn.CrossEntropyLoss is refused, unless T is the number of classes and the two layouts
            cannot be distinguished: transpose it first.
        loss_fn: (logits, labels) -> mean loss over the labels that count: all but its attribute
            ``ignore_index`` or, for a function of your own without one, -100. The losses that
            ``LossNet`` knows get all axes of the labels as one: (B T, classes), (B T,).
        dataset: Batches of inputs and, last, labels (B,) or (B, T), integers.
        top: Further values of k: ``top_<k>_accuracy`` is the share of labels that are among the k
            largest logits.
        over_ranks: Whether the ranks hold different rows: their counts are then summed, so that
            every row counts equally whatever the sizes of the parts. Call it on every rank.

    Raises:
        InputError: If no label counts, a k is not an integer >= 1, the loss is a sum, the shape of
            the labels does not fit the logits, or a label is neither a class nor ignored.
    """
    ks = {"accuracy": 1} | {f"top_{k}_accuracy": integer("k", k) for k in top}
    loss_net = LossNet(network, loss_fn)
    if loss_net.is_sum:
        raise InputError(f"the {loss_net.loss_name} is a sum: expected a mean over labels")
    ignored = loss_net.ignore_index
    if loss_net.over is None:
        ignored = getattr(loss_fn, "ignore_index", IGNORE_INDEX)
    sums = np.zeros((len(ks) + 1, 2))  # (sum, weight) of each accuracy and of the loss
    # If one rank refused a label, the others would wait for its counts.
    with _in_evaluation(network), cluster.together() if over_ranks else contextlib.nullcontext():
        for batch in dataset.create_tuple_iterator(num_epochs=1):
            outputs = network(*batch[:-1])
            loss, weight, logits, wanted = _measured(loss_net, outputs, batch[-1], ignored)
            sums[:-1] += [(_right(logits, wanted, k), len(wanted)) for k in ks.values()]
            sums[-1] += (loss * weight, weight) if weight else (0, 0)
    if over_ranks:
        sums = cluster.gather(sums.ravel().tolist()).sum(axis=0).reshape(-1, 2)
    if not sums[:, 1].all():
        raise InputError("there was nothing to evaluate: the dataset holds no label to count")
    means = (sums[:, 0] / sums[:, 1]).tolist()
    return dict(zip([*ks, "loss"], means, strict=True))


@contextlib.contextmanager
def _in_evaluation(network: nn.Cell) -> Iterator[None]:
    """Evaluate; then give every Cell its mode of before, None if it was never given one."""
    cells = [cell for _, cell in network.cells_and_names()]
    kept, phase = [cell.get_flags().get("training") for cell in cells], network.phase
    network.set_train(False)
    try:
        yield
    finally:
        for cell, mode in zip(cells, kept, strict=True):
            cell.add_flags(training=bool(mode))
            if mode is None:
                cell.get_flags().pop("training")
        network.phase = phase


def _measured(
    loss_net: LossNet, logits: Tensor, labels: Tensor, ignored: int | None
) -> tuple[float, float, np.ndarray, np.ndarray]:
    """Return a batch's (loss, weight) and the logits (N, V) and labels (N,) that count."""
    if logits.ndim < 2 or logits.shape[:-1] != labels.shape:
        raise InputError(
            f"the labels have shape {labels.shape}, the logits {logits.shape}; expected logits "
            "(B, classes) and labels (B,), or (B, T, classes) and (B, T)"
        )
    check_labels(labels.asnumpy(), logits.shape[-1], ignored)
    labels = as_int32(labels)
    rows = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    wanted = rows[1].asnumpy()
    counts = np.ones(wanted.shape, bool) if ignored is None else wanted != ignored
    # Operator by operator: a graph took 0.4 s to compile in every evaluation.
    loss: Any
    weight: Any
    with pynative():
        if loss_net.over is None:
            loss, weight = loss_net.of_outputs(logits, labels), counts.sum()
        else:
            loss, weight = loss_net.of_outputs(*rows)
    return float(loss), float(weight), rows[0].asnumpy()[counts], wanted[counts].astype(np.int64)


def _right(logits: np.ndarray, labels: np.ndarray, k: int) -> int:
    """Return how many labels are among the k largest logits, the smaller class first."""
    own = np.take_along_axis(logits, labels[:, None], axis=1)
    before = (logits > own) | ((logits == own) & (np.arange(logits.shape[1]) < labels[:, None]))
    right = (before.sum(axis=1) < k) & ~np.isnan(logits).any(axis=1)
    return int(right.sum())
