"""``evaluate``: accuracies and mean loss over every row, of one rank or all; and ``swapped``."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from mindspore import Tensor, nn
from mindspore.dataset import Dataset

from labkit.base.arguments import integer, wrong
from labkit.errors import InputError
from labkit.ranks import cluster
from labkit.runtime import pynative
from labkit.steps import losses
from labkit.steps.batches import arranged, first_batch, has_network, variable
from labkit.steps.gradients import LEAST
from labkit.steps.state import set_state


def evaluate(
    network: nn.Cell,
    loss_fn: Callable[[Any, Any], Tensor] | Dataset | None = None,
    dataset: Dataset | None = None,
    *,
    top: Iterable[int] = (),
    over_ranks: bool = False,
    by_name: bool = False,
) -> dict[str, float]:
    """Return ``accuracy`` and mean ``loss`` of ``network`` over every label of ``dataset``.

    ``evaluate(loss_net, dataset)`` returns the ``loss`` of a loss net alone: the mean of its
    (loss, weight) over all of the data, as it is trained; for a ``TokenLossNet`` also ``accuracy``
    by token, and ``perplexity``, e to the loss in nats, which a loss net of your own whose ``over``
    is "tokens" has, too.

    All Cells are in evaluation mode during the call; afterwards each has its previous mode. Of
    equal logits, that of the smaller class counts as the larger. A row with a NaN logit is wrong.

    Args:
        network: Inputs -> logits (B, classes), or (B, T, classes): its first output, or ``logits``
            of a dictionary. The layout (B, classes, T) of nn.CrossEntropyLoss is refused, unless T
            is the number of classes and the two layouts cannot be distinguished: transpose it
            first. Or a loss net, without a ``loss_fn``.
        loss_fn: (logits, labels) -> mean loss over the labels that count: all but its attribute
            ``ignore_index`` or, for a function of your own without one, -100. The losses that
            ``LossNet`` knows get all axes of the labels as one: (B T, classes), (B T,).
        dataset: Batches of inputs and, last, labels (B,) or (B, T), integers; for a loss net, what
            a step of it takes.
        top: Further k: ``top_<k>_accuracy`` is the share of labels among the k largest logits.
        over_ranks: Whether the ranks hold different rows: their counts are then summed, so that
            every row counts equally whatever the sizes of the parts. Call it on every rank.
        by_name: As in ``fit``.

    Raises:
        InputError: If no label counts, a k is not an integer >= 1, the loss is a sum, the shape of
            the labels does not fit the logits, a label is neither a class nor ignored, or a loss
            net returns no (loss, weight).
    """
    if dataset is None and isinstance(loss_fn, Dataset):
        loss_fn, dataset = None, loss_fn
    if not isinstance(dataset, Dataset):
        raise wrong("dataset", type(dataset).__name__, "a MindSpore dataset")
    if not isinstance(top, Iterable):
        raise wrong("top", top, "several integers, such as (5,)")
    ks = {f"top_{k}_accuracy": integer("k", k) for k in top}
    loss_net = _as_loss_net(network, loss_fn)
    if loss_fn is not None or isinstance(loss_net, losses.TokenLossNet):
        ks = {"accuracy": 1} | ks
    elif ks:
        raise wrong("top", list(ks.values()), f"none with a {type(loss_net).__name__}: no classes")
    # (sum, weight) of each accuracy and of each loss
    sums = np.zeros((len(ks) + getattr(loss_net, "pairs", 1), 2))
    # If one rank refused a label, the others would wait for its counts.
    with _in_evaluation(loss_net), cluster.together() if over_ranks else contextlib.nullcontext():
        names = dataset.get_col_names() if by_name else ()
        for batch in dataset.create_tuple_iterator(num_epochs=1):
            batch = variable(arranged(loss_net, tuple(batch), columns=names))
            with first_batch(loss_net, batch):
                made = loss_net.network(*batch[:-1]) if has_network(loss_net) else loss_net(*batch)
            sums += _summed(loss_net, made, batch[-1], ks)
    if over_ranks:
        sums = cluster.gather(sums.ravel().tolist()).sum(axis=0).reshape(-1, 2)
    if not sums[:, 1].any() or not sums[: len(ks), 1].all():
        raise InputError("there was nothing to evaluate: the dataset holds no label to count")
    means = sums[:, 0] / np.maximum(sums[:, 1], LEAST)
    found = dict(zip(ks, means.tolist(), strict=False))
    found["loss"] = float(means[len(ks) :].sum())
    if loss_fn is None and getattr(loss_net, "over", None) == "tokens":
        found["perplexity"] = float(np.exp(found["loss"]))
    return found


def _as_loss_net(network: nn.Cell, loss_fn: Callable | None) -> nn.Cell:
    """Return the loss net that is meant, or refuse what may be two things."""
    if loss_fn is None:
        return losses.as_loss_net(network)
    if isinstance(network, nn.Cell) and has_network(network):
        name = f"a {type(network).__name__} and a loss_fn"
        raise wrong("network", name, "evaluate(loss_net, dataset), or the network that it holds")
    loss_net = losses.LossNet(network, loss_fn)
    if loss_net.is_sum:
        raise InputError(f"the {loss_net.loss_name} is a sum: expected a mean over labels")
    return loss_net


def _summed(loss_net: Any, made: Any, labels: Any, ks: dict[str, int]) -> list:
    """Return the (sum, weight) of each accuracy and of each pair of a loss net over one batch.

    ``made`` is what its network returned or, of one of the user's own, the loss net itself.
    """
    accuracies, given, counts = [], (made, labels), np.ones(0)
    if ks:
        ignored, logits = loss_net.ignore_index, losses.first_output(made)
        if loss_net.over is None:
            ignored = getattr(loss_net.loss_fn, "ignore_index", losses.IGNORE_INDEX)
        if not isinstance(labels, Tensor) or logits.ndim < 2 or logits.shape[:-1] != labels.shape:
            raise InputError(
                f"the labels have shape {getattr(labels, 'shape', '?')}, the logits {logits.shape};"
                " expected logits (B, classes) and labels (B,), or (B, T, classes) and (B, T)"
            )
        losses.check_labels(labels.asnumpy(), logits.shape[-1], ignored)
        labels = losses.as_int32(labels)
        rows = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
        values, wanted = (part.asnumpy() for part in rows)
        counts = np.ones(wanted.shape, bool) if ignored is None else wanted != ignored
        values, wanted = values[counts], wanted[counts].astype(np.int64)
        accuracies = [(_right(values, wanted, k), counts.sum()) for k in ks.values()]
        given = rows if loss_net.over else (made, labels)
    if has_network(loss_net):
        with pynative():  # a graph took 0.4 s to compile in every evaluation
            made = loss_net.of_outputs(*given)
        if not ks:
            losses.check_known(loss_net, labels)
        elif not loss_net.over:
            made = made, counts.sum()
    pairs = made if isinstance(made, tuple) and isinstance(made[0], tuple) else (made,)
    if not all(isinstance(p, tuple) and len(p) == 2 and not np.ndim(p[1]) for p in pairs):
        raise InputError(
            f"{type(loss_net).__name__} returns no (loss, weight), and a mean over batches needs "
            "the number that each is a mean over; expected a loss net that does, or "
            "evaluate(network, loss_fn, dataset)"
        )
    numbers = [(float(loss), float(weight)) for loss, weight in pairs]
    return [*accuracies, *((loss * weight if weight else 0.0, weight) for loss, weight in numbers)]


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
    return int(((before.sum(axis=1) < k) & ~np.isnan(logits).any(axis=1)).sum())


@contextlib.contextmanager
def swapped(network: nn.Cell, values: Mapping[str, Any]) -> Iterator[None]:
    """Give Parameters of a network other values inside a ``with``, and their own back after it.

    ``values``: name -> array, Tensor or Parameter of the shape of the network's Parameter. Names
    that it lacks keep their values. Raises ``InputError`` for an unknown name or another shape.

    >>> with swapped(network, averages):
    ...     results = evaluate(network, loss_fn, validation)
    """
    own, others = {parameter.name: parameter for parameter in network.get_parameters()}, {}
    for name, value in values.items():
        if name not in own or np.shape(value) != own[name].shape:
            expected = f"the shape {own[name].shape}" if name in own else "names in the network"
            raise wrong(f"values[{name!r}]", np.shape(value), expected)
        others[name] = Tensor(value, own[name].dtype)
    kept = {name: own[name].clone() for name in others}
    try:
        for name, value in others.items():
            set_state(own[name], value)
        yield
    finally:
        for name, value in kept.items():
            set_state(own[name], value)
