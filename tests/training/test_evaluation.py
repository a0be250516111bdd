"""``evaluate``: all rows count equally, top-k is a sort, ranks are summed, nothing changes."""

import mindspore as ms
import numpy as np
import pytest
import torch
from mindspore import nn, ops
from mindspore.dataset import NumpySlicesDataset
from mindspore.train import LambdaCallback, Model

from labkit.errors import InputError
from labkit.ranks import cluster
from labkit.reference.lenet import cross_entropy
from labkit.steps.losses import CrossEntropySmooth, LossNet
from labkit.steps.step import PlainStep
from labkit.training.evaluation import evaluate
from tests import twins
from tests.support.step_cells import assert_bit_equal, snapshot
from tests.support.trainings import dataset, images_and_labels, loss_fn, network, quiet_fit

pytestmark = pytest.mark.usefixtures("runtime")


def own(logits, labels, ignored=-100):
    """A mean over the tokens whose label is not ignored."""
    counts = ops.cast(labels != ignored, ms.float32)
    known = ops.expand_dims(ops.maximum(labels, 0), -1)
    picked = ops.gather_elements(ops.log_softmax(logits, -1), -1, known)
    return -ops.reduce_sum(ops.squeeze(picked, -1) * counts) / ops.reduce_sum(counts)


def own_ignoring_two(logits, labels):
    return own(logits, labels, 2)


own_ignoring_two.ignore_index = 2


def share(logits, labels, k):
    """The slow twin of top-k: sort each row, the smaller class first among equal logits."""
    right = 0
    for row, label in zip(logits, labels, strict=True):
        order = sorted(range(len(row)), key=lambda c: (-row[c], c))
        right += label in order[:k]
    return right / len(labels)


@pytest.mark.parametrize("k", [1, 2, 5, 12])
def test_top_k_is_a_sort_even_with_equal_logits_and_a_row_with_nan_is_wrong(k):
    random = np.random.default_rng(0)
    logits = random.integers(0, 4, (50, 12)).astype(np.float32)
    labels = random.integers(0, 12, 50).astype(np.int32)
    data = NumpySlicesDataset((logits, labels), shuffle=False).batch(7)
    found = evaluate(nn.Identity(), loss_fn(), data, top=(k,))[f"top_{k}_accuracy"]
    assert found == share(logits, labels, k)
    logits = np.array([[2, 1, 0], [np.nan, 1, 0], [np.nan] * 3], np.float32)
    data = NumpySlicesDataset((logits, np.array([0, 1, 0], np.int32)), shuffle=False).batch(3)
    found = evaluate(nn.Identity(), loss_fn(), data, top=(k,))[f"top_{k}_accuracy"]
    assert found == pytest.approx(1 / 3)


def test_all_rows_count_alike():
    net, data = network(), dataset(batch=8, drop=False)
    images, labels = images_and_labels(46)
    values = evaluate(net, loss_fn(), data)
    scaled = (images.transpose(0, 3, 1, 2) - 128) / 60
    logits = net(ms.Tensor(scaled.astype(np.float32))).asnumpy().astype(np.float64)
    assert set(values) == {"accuracy", "loss"}
    assert values["accuracy"] == (logits.argmax(1) == labels).mean()
    assert values["loss"] == pytest.approx(cross_entropy(logits, labels)[0], rel=1e-5)
    # MindSpore's own metric differs, as the last batch holds 6 rows instead of 8.
    stock = Model(net, loss_fn(), metrics={"loss": nn.Loss()}).eval(data, dataset_sink_mode=False)
    assert abs(stock["loss"] - values["loss"]) > 1e-4 * values["loss"]
    assert evaluate(net, loss_fn(), dataset(rows=1, drop=False))["accuracy"] in (0, 1)


def test_in_the_middle_of_a_training_it_changes_nothing():
    losses = []

    def trained(evaluated):
        net = network(norm=True)
        optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
        step = PlainStep(LossNet(net, loss_fn()), optimizer)

        def evaluation(run_context):
            if evaluated and run_context.original_args().cur_step_num % 4 == 0:
                before = snapshot(net)
                losses.append(evaluate(net, loss_fn(), dataset(drop=False))["loss"])
                assert_bit_equal(snapshot(net), before)
                assert net.training

        quiet_fit(step, dataset(), 2, callbacks=LambdaCallback(on_train_step_end=evaluation))
        return snapshot(step)

    without, with_it = trained(False), trained(True)
    assert len(losses) == len(set(losses)) == 5
    assert_bit_equal(with_it, without)
    assert any(value.any() for name, value in without.items() if "moving_mean" in name)


def test_counts_are_added_up_over_ranks_not_averaged(monkeypatch):
    """This rank has 46 rows; another rank has 2, both wrong, with a loss of 4 each."""
    monkeypatch.setattr(cluster, "gather", lambda own: np.array([own, [0, 2, 8.0, 2]]))
    alone = evaluate(network(), loss_fn(), dataset(drop=False))
    values = evaluate(network(), loss_fn(), dataset(drop=False), over_ranks=True)
    assert values["accuracy"] == pytest.approx(alone["accuracy"] * 46 / 48, rel=1e-12)
    assert values["loss"] == pytest.approx((alone["loss"] * 46 + 8) / 48, rel=1e-12)


@pytest.mark.parametrize("set_by_hand", [False, True])
def test_every_cells_own_mode_is_as_it_was(set_by_hand):
    """So is that of a Cell whose mode was never set, which a step trains in training mode."""
    net = network(norm=True)
    if set_by_hand:
        net.set_train()
        net[0].set_train(False)
    before = [(dict(cell.get_flags()), cell.training) for _, cell in net.cells_and_names()]
    evaluate(net, loss_fn(), dataset())
    statistics = [p for p in net.get_parameters() if "moving" in p.name]
    assert statistics and all(np.ptp(p.asnumpy()) == 0 for p in statistics)  # only used
    assert [(dict(cell.get_flags()), cell.training) for _, cell in net.cells_and_names()] == before
    assert {flags.get("training") for flags, _ in before} == (
        {True, False} if set_by_hand else {None}
    )


class Table(nn.Cell):
    """Numbers (B, T) -> logits (B, T, 4): row n of a fixed table."""

    def __init__(self):
        super().__init__()
        self.table = ms.Tensor(np.random.default_rng(6).normal(size=(9, 4)).astype(np.float32))

    def construct(self, numbers, *more):
        return ops.gather(self.table, numbers, 0)


def sequences(steps, ignored=None):
    random = np.random.default_rng(steps)
    numbers = random.integers(0, 9, (5, steps)).astype(np.int32)
    labels = random.integers(0, 4, (5, steps)).astype(np.int32)
    if ignored is not None:
        labels[:, 1] = labels[3] = ignored
    return numbers, labels


def batches(*columns):
    names = [f"column {i}" for i in range(len(columns))]
    return NumpySlicesDataset(columns, names, shuffle=False).batch(2)


# 4 steps are as many as classes.
@pytest.mark.parametrize(
    ("steps", "loss", "ignored"),
    [
        (3, nn.CrossEntropyLoss(), None),
        (4, nn.CrossEntropyLoss(), -100),
        (3, nn.CrossEntropyLoss(ignore_index=2), 2),
        (4, CrossEntropySmooth(num_classes=4), -100),
        (3, CrossEntropySmooth(num_classes=4), -100),
        (4, nn.SoftmaxCrossEntropyWithLogits(True, "mean"), None),
        (4, own, -100),
        (3, own_ignoring_two, 2),
    ],
)
def test_sequences(steps, loss, ignored):
    """Accuracy and loss are over the labels that count, of which batches hold unequal numbers."""
    network, (numbers, labels) = Table(), sequences(steps, ignored)
    values = evaluate(network, loss, batches(numbers, labels), top=(2,))
    logits = network(ms.Tensor(numbers)).asnumpy()
    total, count = twins.token_cross_entropy(logits, labels, ignored)
    counts = labels != ignored
    assert values["accuracy"] == share(logits[counts], labels[counts], 1) < 1
    assert values["top_2_accuracy"] == share(logits[counts], labels[counts], 2)
    assert values["loss"] == pytest.approx(total / count, rel=1e-5)


def test_class_weights_and_further_inputs():
    numbers, labels = sequences(3, -100)
    weights = np.float32([0.5, 3.0, 1.0, 0.25])
    loss = nn.CrossEntropyLoss(ms.Tensor(weights))
    values = evaluate(Table(), loss, batches(numbers, np.ones_like(numbers), labels))
    logits = torch.tensor(Table()(ms.Tensor(numbers)).asnumpy()).reshape(-1, 4)
    expected = torch.nn.CrossEntropyLoss(torch.tensor(weights))
    expected = expected(logits, torch.tensor(labels.astype(np.int64)).reshape(-1))
    assert values["loss"] == pytest.approx(float(expected), rel=1e-5)


def test_refused():
    tokens, labels = sequences(3)
    one_each, negative = batches(tokens, labels[:, 0]), batches(tokens, labels * 0 - 1)
    features, dense = np.ones((5, 3), np.float32), nn.Dense(3, 4)
    one_row = NumpySlicesDataset((features, labels[:, 0]))
    entropy, total = nn.CrossEntropyLoss(), nn.CrossEntropyLoss(reduction="sum")
    outside = r"label -1 at index \(0, 0\) is out of range: expected 0 .. 3, or ignore_index=-100"
    for net, loss, data, top, words in (
        (network(), entropy, dataset(rows=3), (), "nothing to evaluate"),
        (network(), entropy, dataset(), (0,), "k: .* integer >= 1, got 0"),
        (network(), entropy, dataset(), 5, r"top: expected several integers, .* got 5"),
        (network(), entropy, list(dataset()), (), "dataset: expected a MindSpore dataset, got 'l"),
        (
            network(),
            entropy,
            dataset().project("labels"),
            (),
            "inputs first .* labels last, got Int32",
        ),
        (network(), total, dataset(), (), "is a sum: expected a mean"),
        (Table(), entropy, one_each, (), r"have shape .* \(2, 3, 4\); expected logits \(B, cla"),
        (Table(), entropy, negative, (), outside),
        (Table(), own, negative, (), outside),
        (dense, nn.MSELoss(), batches(features, labels[:, 0]), (), r"shape .2, 4., got .2,."),
        (nn.Dense(3, 1), own, batches(features, labels[:, 0] * 0), (), "to more than either"),
        (dense, entropy, batches(features.astype(float), labels[:, 0]), (), "not NumPy's float64"),
        (dense, entropy, batches(features.astype(np.uint8), labels[:, 0]), (), "got UInt8"),
        (dense, entropy, batches(labels[:, 0], features), (), "labels last, got Int32"),
        (dense, entropy, one_row, (), "as dataset.batch makes"),
    ):
        with pytest.raises(InputError, match=words):
            evaluate(net, loss, data, top=top)


def test_a_network_in_float16_is_evaluated_with_its_loss_in_float32():
    """10 000 rows of loss 8: their sum leaves the range of float16, which ends at 65504."""
    random = np.random.default_rng(0)
    logits = random.normal(size=(10_000, 4)).astype(np.float16) * 8
    labels = random.integers(0, 4, len(logits)).astype(np.int32)
    data = NumpySlicesDataset((logits, labels), shuffle=False).batch(len(logits))
    expected = torch.nn.functional.cross_entropy(
        torch.tensor(logits.astype(np.float64)), torch.tensor(labels.astype(np.int64))
    )
    for loss in (nn.CrossEntropyLoss(), loss_fn()):
        values = evaluate(nn.Identity(), loss, data)
        assert values["loss"] == pytest.approx(float(expected), rel=1e-5)
