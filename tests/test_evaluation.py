"""Top-k accuracies against a sort, and what is added up over ranks."""

import mindspore as ms
import numpy as np
import pytest

from labkit import cluster
from labkit.errors import InputError
from labkit.evaluation import MeanLoss, TopK, evaluate
from tests.trainings import CLASSES, dataset, loss_fn, network

pytestmark = pytest.mark.usefixtures("runtime")


def share(logits, labels, k):
    """The slow twin: sort each row, the smaller class first among equals."""
    right = 0
    for row, label in zip(logits, labels, strict=True):
        order = sorted(range(len(row)), key=lambda c: (-row[c], c))
        right += label in order[:k]
    return right / len(labels)


def metric(k, logits, labels, batch=7):
    found = TopK(k)
    for start in range(0, len(labels), batch):
        part = slice(start, start + batch)
        found.update(None, ms.Tensor(logits[part]), ms.Tensor(labels[part]))
    return found


@pytest.mark.parametrize("k", [1, 2, 5, 12])
def test_top_k_is_a_sort_even_with_equal_logits(k):
    random = np.random.default_rng(0)
    logits = random.integers(0, 4, (50, 12)).astype(np.float32)
    labels = random.integers(0, 12, 50).astype(np.int32)
    assert metric(k, logits, labels).eval() == share(logits, labels, k)


def test_a_row_that_is_nan_is_wrong():
    logits = np.array([[2, 1, 0], [np.nan, 1, 0], [np.nan] * 3], np.float32)
    for k in (1, 3):
        assert metric(k, logits, np.array([0, 1, 0], np.int32)).eval() == pytest.approx(1 / 3)


@pytest.mark.parametrize("k", [0, -1, 1.0, True, "1"])
def test_a_k_that_is_none(k):
    with pytest.raises(InputError, match="expected a whole number"):
        TopK(k)


def test_evaluate_returns_what_was_asked_for():
    found = evaluate(network(), loss_fn(), dataset(drop=False), top=(1, 2, CLASSES))
    names = ["accuracy", "top_1_accuracy", "top_2_accuracy", f"top_{CLASSES}_accuracy", "loss"]
    assert list(found) == names
    assert found["top_1_accuracy"] == found["accuracy"] < found["top_2_accuracy"] < 1
    assert found[f"top_{CLASSES}_accuracy"] == 1


def test_counts_are_added_up_over_ranks_not_averaged(monkeypatch):
    """46 rows here, and 2 on another rank of which none is right, with a loss of 4 each."""
    monkeypatch.setattr(cluster, "gather", lambda own: np.array([own, [0, 2, 8.0, 2]]))
    alone = evaluate(network(), loss_fn(), dataset(drop=False))
    found = evaluate(network(), loss_fn(), dataset(drop=False), over_ranks=True)
    assert found["accuracy"] == pytest.approx(alone["accuracy"] * 46 / 48, rel=1e-12)
    assert found["loss"] == pytest.approx((alone["loss"] * 46 + 8) / 48, rel=1e-12)


def test_nothing_is_gathered_unless_asked_for(monkeypatch):
    monkeypatch.setattr(cluster, "gather", None)
    evaluate(network(), loss_fn(), dataset())


def test_a_metric_can_be_cleared():
    found = MeanLoss()
    found.update(ms.Tensor(2.0), None, ms.Tensor([1, 2]))
    assert found.eval() == 2.0
    found.clear()
    with pytest.raises(InputError, match="nothing to evaluate"):
        found.eval()


@pytest.mark.parametrize("set_by_hand", [False, True])
def test_every_cells_own_mode_is_as_it_was(set_by_hand):
    """Also that of a Cell that nobody has set, which a step trains in training mode."""
    net = network(norm=True)
    if set_by_hand:
        net.set_train()
        net[0].set_train(False)
    before = [(dict(cell.get_flags()), cell.training) for _, cell in net.cells_and_names()]
    evaluate(net, loss_fn(), dataset())
    assert [(dict(cell.get_flags()), cell.training) for _, cell in net.cells_and_names()] == before
    assert {flags.get("training") for flags, _ in before} == (
        {True, False} if set_by_hand else {None}
    )
