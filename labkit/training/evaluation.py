"""``evaluate``: accuracies and mean loss over every row, of one rank or of all ranks."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from mindspore import Tensor, nn
from mindspore.dataset import Dataset

from labkit.base.arguments import integer, wrong
from labkit.errors import InputError
from labkit.ranks import cluster
from labkit.runtime import pynative
from labkit.steps import losses


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
    equal logits, that of the smaller class counts as the larger. A row with a NaN logit is wrong.

    Args:
        network: Inputs -> logits (B, classes), or (B, T, classes). The layout (B, classes, T) of
            nn.CrossEntropyLoss is refused, unless T is the number of classes and the two layouts
            cannot be distinguished: transpose it first.
        loss_fn: (logits, labels) -> mean loss over the labels that count: all but its attribute
            ``ignore_index`` or, for a function of your own without one, -100. The losses that
            ``LossNet`` knows get all axes of the labels as one: (B T, classes), (B T,).
        dataset: Batches of inputs and, last, labels (B,) or (B, T), integers.
        top: Further k: ``top_<k>_accuracy`` is the share of labels among the k largest logits.
        over_ranks: Whether the ranks hold different rows: their counts are then summed, so that
            every row counts equally whatever the sizes of the parts. Call it on every rank.

    Raises:
        InputError: If no label counts, a k is not an integer >= 1, the loss is a sum, the shape of
            the labels does not fit the logits, or a label is neither a class nor ignored.
    """
    if not isinstance(dataset, Dataset):
        raise wrong("dataset", type(dataset).__name__, "a MindSpore dataset")
    if len(columns := dataset.get_col_names()) < 2:
        raise wrong("columns of the dataset", columns, "inputs and, last, labels")
    if not isinstance(top, Iterable):
        raise wrong("top", top, "several integers, such as (5,)")
    ks = {"accuracy": 1} | {f"top_{k}_accuracy": integer("k", k) for k in top}
    loss_net = losses.LossNet(network, loss_fn)
    if loss_net.is_sum:
        raise InputError(f"the {loss_net.loss_name} is a sum: expected a mean over labels")
    ignored = loss_net.ignore_index
    if loss_net.over is None:
        ignored = getattr(loss_fn, "ignore_index", losses.IGNORE_INDEX)
    sums = np.zeros((len(ks) + 1, 2))  # (sum, weight) of each accuracy and of the loss
    # If one rank refused a label, the others would wait for its counts.
    with _in_evaluation(network), cluster.together() if over_ranks else contextlib.nullcontext():
        for *inputs, labels in dataset.create_tuple_iterator(num_epochs=1):
            with losses.first_batch(loss_net, (*inputs, labels)):
                outputs = network(*inputs)
            if not isinstance(outputs, Tensor):
                losses.refuse_outputs()
            if outputs.ndim < 2 or outputs.shape[:-1] != labels.shape:
                raise InputError(
                    f"the labels have shape {labels.shape}, the logits {outputs.shape}; expected "
                    "logits (B, classes) and labels (B,), or (B, T, classes) and (B, T)"
                )
            classes = outputs.shape[-1]
            losses.check_labels(labels.asnumpy(), classes, ignored)
            labels = losses.as_int32(labels)
            rows = outputs.reshape(-1, classes), labels.reshape(-1)
            logits, wanted = (part.asnumpy() for part in rows)
            counts = np.ones(wanted.shape, bool) if ignored is None else wanted != ignored
            loss: Any
            weight: Any
            with pynative():  # a graph took 0.4 s to compile in every evaluation
                if loss_net.over is None:
                    loss, weight = loss_net.of_outputs(outputs, labels), counts.sum()
                else:
                    loss, weight = loss_net.of_outputs(*rows)
            right = [
                _right(logits[counts], wanted[counts].astype(np.int64), k) for k in ks.values()
            ]
            sums[:-1] += [(number, counts.sum()) for number in right]
            weight = float(weight)
            sums[-1] += (float(loss) * weight, weight) if weight else (0, 0)
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


def _right(logits: np.ndarray, labels: np.ndarray, k: int) -> int:
    """Return how many labels are among the k largest logits, the smaller class first."""
    own = np.take_along_axis(logits, labels[:, None], axis=1)
    before = (logits > own) | ((logits == own) & (np.arange(logits.shape[1]) < labels[:, None]))
    right = (before.sum(axis=1) < k) & ~np.isnan(logits).any(axis=1)
    return int(right.sum())
