"""The weight of a micro-batch, derived from its loss; and losses from which it cannot be."""

import functools
import re

import mindspore as ms
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mindspore import Tensor, mint, nn, ops

from labkit import reference, runtime
from labkit.errors import InputError
from labkit.labs.compare import relative_error
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.batch_check import BatchCheck
from labkit.steps.losses import CrossEntropySmooth, LossNet, TokenLossNet
from labkit.steps.plain import PlainStep
from labkit.steps.precision import DynamicLossScale
from labkit.steps.weights import mean_of_loss
from tests.support.step_cells import (
    INPUTS,
    assert_close,
    linear,
    plain,
    regression,
    restore,
    rows,
    snapshot,
    tensors,
    unchanged,
)
from tests.support.trainings import loss_fn as softmax_cross_entropy

pytestmark = pytest.mark.usefixtures("runtime")
CLASSES = 4
CLASS_WEIGHTS = np.float32([0.5, 3.0, 1.0, 0.25])
THREE_WORDS = "normalise='samples', 'tokens' or 'steps'"


LOSSES = {
    "ignore_index": (nn.CrossEntropyLoss, {}),
    "another": (nn.CrossEntropyLoss, {"ignore_index": 2}),
    "weights, smoothing": (
        lambda weight, **options: nn.CrossEntropyLoss(Tensor(weight), **options),
        {"weight": CLASS_WEIGHTS, "label_smoothing": 0.1},
    ),
    "smooth": (
        lambda label_smoothing: CrossEntropySmooth(
            smooth_factor=label_smoothing, num_classes=CLASSES, convention="pytorch"
        ),
        {"label_smoothing": 0.1},
    ),
}


def of_torch(values, inputs, labels, options):
    """Return PyTorch's loss over the whole batch and its gradients, in float64."""
    options = dict(options)
    if "weight" in options:
        options["weight"] = torch.tensor(options["weight"], dtype=torch.float64)
    weight, bias = (
        torch.tensor(values[name].astype(np.float64), requires_grad=True)
        for name in ("weight", "bias")
    )
    logits = torch.tensor(inputs.astype(np.float64)) @ weight.T + bias
    loss = torch.nn.CrossEntropyLoss(**options)(logits, torch.tensor(labels.astype(np.int64)))
    loss.backward()
    return float(loss), {"weight": weight.grad.numpy(), "bias": bias.grad.numpy()}


class Accumulating:
    """A linear classifier whose step sums two micro-batches and moves by their mean gradient."""

    def __init__(self, loss_fn, sizes=(3, 5), **options):
        ms.set_seed(5)
        self.sizes = sizes
        self.network = nn.Dense(INPUTS, CLASSES)
        optimizer = nn.SGD(self.network.trainable_params(), 1.0)
        self.step = AccumulatedStep(LossNet(self.network, loss_fn), optimizer, 2, **options)
        self.initial = snapshot(self.step)

    def train(self, *batches):
        """Train the step from its initial state; return the micro-batches' losses and weights."""
        restore(self.step, self.initial)
        losses = [float(self.step(*tensors(*batch))) for batch in batches]
        self.step.end_epoch()
        return losses, snapshot(self.network)

    def __call__(self, inputs, labels):
        before = {name: self.initial[name] for name in snapshot(self.network)}
        ends = np.cumsum(self.sizes)
        parts = [slice(end - size, end) for end, size in zip(ends, self.sizes, strict=True)]
        _, after = self.train(*((inputs[part], labels[part]) for part in parts))
        moves = {name: before[name] - after[name] for name in before}
        return before, self.step.last_update, moves


@pytest.fixture(scope="module", params=LOSSES)
def accumulating(request, runtime):
    build, options = LOSSES[request.param]
    return Accumulating(build(**options)), options


@settings(max_examples=25)
@given(
    labels=st.lists(st.sampled_from([-100, 0, 1, 2, 3]), min_size=8, max_size=8),
    seed=st.integers(0, 1000),
)
def test_padded_micro_batches_are_the_whole_batch(accumulating, labels, seed):
    step, options = accumulating
    ignored = options.get("ignore_index", -100)
    labels = np.int32(labels)
    labels[labels == -100] = ignored
    assume((labels != ignored).any())
    inputs = np.random.default_rng(seed).normal(size=(8, INPUTS)).astype(np.float32)
    before, last, moves = step(inputs, labels)
    loss, gradients = of_torch(before, inputs, labels, options)
    assert last.loss == pytest.approx(loss, rel=1e-5)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(moves[name], gradient, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("build", "dtypes"),
    [
        (nn.CrossEntropyLoss, (np.int64, np.uint8)),
        (softmax_cross_entropy, (np.uint8,)),
        (nn.NLLLoss, (np.int16,)),
    ],
)
def test_labels_of_any_type_of_integers(build, dtypes):
    """NumPy's and PyTorch's are int64, which MindSpore's cross entropy refuses; images' uint8."""
    inputs = np.random.default_rng(2).normal(size=(8, INPUTS)).astype(np.float32)
    labels = np.arange(8) % CLASSES
    step = Accumulating(build(), (4, 4))
    expected = step(inputs, labels.astype(np.int32))[2]
    for dtype in dtypes:
        for name, move in step(inputs, labels.astype(dtype))[2].items():
            np.testing.assert_array_equal(move, expected[name])


class TestPaddingAlone:
    """A micro-batch without a label that counts is neither an overflow nor part of a mean."""

    inputs = np.random.default_rng(8).normal(size=(4, INPUTS)).astype(np.float32)
    known, none = np.int32([0, 1, 2, 3]), np.full(4, -100, np.int32)

    @pytest.mark.parametrize("options", [{"nonfinite": "drop_group"}, {"normalise": "samples"}])
    def test_the_rest_of_the_group_is_applied(self, options):
        good, padding = (self.inputs, self.known), (self.inputs, self.none)
        loss_scale = DynamicLossScale(initial=4096)
        made = Accumulating(nn.CrossEntropyLoss(), loss_scale=loss_scale, **options)
        losses, after = made.train(padding, good)
        assert losses[0] == 0 and int(made.step.dropped.asnumpy()) == 0
        assert float(made.step.gradient.loss_scale.asnumpy()) == 4096
        loss = made.step.last_update.loss
        _, alone = made.train(good)
        assert loss == pytest.approx(made.step.last_update.loss, rel=1e-6)
        assert_close(after, alone, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("weights", [None, np.float32([1, 0, 2, 1])])
    def test_another_ignored_class(self, weights):
        weight = weights if weights is None else Tensor(weights)
        made = Accumulating(nn.CrossEntropyLoss(weight, 0))
        good = self.inputs, self.known
        losses, after = made.train(good, (self.inputs, 0 * self.known))
        assert losses[1] == 0 and int(made.step.dropped.asnumpy()) == 0
        assert_close(after, made.train(good)[1], rtol=1e-5, atol=1e-6)

    def test_a_plain_step_makes_no_update_and_still_sees_faults(self):
        network = nn.Dense(INPUTS, CLASSES)
        step = plain(
            LossNet(network, nn.CrossEntropyLoss()), nn.SGD(network.trainable_params(), 1.0)
        )
        step(*tensors(self.inputs, self.none))
        assert int(step.updates.asnumpy()) == int(step.dropped.asnumpy()) == 0
        step(*tensors(self.inputs * np.float32(np.nan), self.none))
        assert int(step.updates.asnumpy()) == 0 and int(step.dropped.asnumpy()) == 1


def test_rows_are_the_wrong_weights_where_labels_are_ignored():
    inputs = np.random.default_rng(0).normal(size=(8, INPUTS)).astype(np.float32)
    labels = np.int32([0, -100, -100, 1, 2, 3, -100, 1])
    errors = []
    for options in ({}, {"normalise": "samples"}):
        step = Accumulating(nn.CrossEntropyLoss(), **options)
        before, _, moves = step(inputs, labels)
        errors.append(relative_error(moves, of_torch(before, inputs, labels, {})[1]))
    assert errors[0] < 1e-5 and errors[1] > 0.05


class MaskedTokens(nn.Cell):
    """Tokens and mask (B, T) -> logits (B, T, 6)."""

    def __init__(self):
        super().__init__()
        self.embedding, self.dense = nn.Embedding(6, 3), nn.Dense(3, 6)

    def construct(self, tokens, mask):
        return self.dense(self.embedding(tokens) * ops.expand_dims(mask, -1))


def test_tokens_with_a_mask_are_counted_without_a_word():
    """Micro-batches of 2 and 1 sequences with 6 and 1 tokens; its loss is the twin's."""
    network = MaskedTokens()
    step = AccumulatedStep(
        TokenLossNet(network), nn.SGD(network.trainable_params(), 0.1), 2, nonfinite="propagate"
    )
    tokens = np.int32([[1, 2, 3, 4], [5, 0, 1, 2], [3, 3, 3, 3]])
    labels = np.int32([[2, 3, 4, 5], [0, 1, -100, -100], [-100, 3, -100, -100]])
    mask = (labels != -100).astype(np.float32)
    logits = network(*tensors(tokens, mask)).asnumpy()
    for part in (slice(0, 2), slice(2, 3)):
        step(*tensors(tokens[part], mask[part], labels[part]))
    total, count = reference.token_cross_entropy(logits, labels)
    assert step.last_update.loss == pytest.approx(total / count, rel=1e-5)
    assert step.settings["normalise"] == "'tokens'" and step.last_update.images == 3
    assert len(step.compile_cache) == 2  # two shapes, each compiled once

    with pytest.raises(InputError, match=r"label 6 at \(0, 1\) .*label < V = 6, or -100"):
        step(*tensors(tokens[:2], mask[:2], np.where(labels[:2] == 3, 6, labels[:2])))
    with pytest.raises(InputError, match=r"label -1 at \(1, 2\)"):
        step(*tensors(tokens[:2], mask[:2], np.maximum(labels[:2], -1)))


class LastOfTime(nn.Cell):
    """Inputs (T, B, 3) -> logits (B, 2) of their mean over time."""

    def __init__(self):
        super().__init__()
        self.dense = linear()

    def construct(self, inputs):
        return self.dense(ops.reduce_mean(inputs, 0))


class TestTimeMajor:
    inputs = np.random.default_rng(1).normal(size=(5, 12, 3)).astype(np.float32)
    labels = np.random.default_rng(2).integers(0, 2, 12).astype(np.int32)

    def train(self, sizes, **options):
        network = LastOfTime()
        loss_net = LossNet(network, nn.SoftmaxCrossEntropyWithLogits(True, "mean"))
        optimizer = nn.SGD(network.trainable_params(), 1.0)
        step = AccumulatedStep(loss_net, optimizer, len(sizes), **options)
        for part in np.split(np.arange(12), np.cumsum(sizes)[:-1]):
            step(*tensors(self.inputs[:, part], self.labels[part]))
        assert step.last_update.images == 12
        return snapshot(network)

    def test_rows_are_those_of_the_batch(self):
        whole = self.train([12], batch_axis=1)
        halves = self.train([8, 4], batch_axis=1)
        assert relative_error(halves, whole) < 1e-6
        assert relative_error(self.train([8, 4], normalise="samples"), whole) < 1e-6
        assert relative_error(self.train([8, 4], normalise="steps"), whole) > 1e-3

    def test_axes_that_disagree_are_refused(self):
        with pytest.raises(InputError, match=rf"\(5, 12, 3\), \(12,\).*batch_axis.*{THREE_WORDS}"):
            self.train([12])

    def test_a_plain_step_takes_the_labels_for_rows(self):
        network = LastOfTime()
        loss_net = LossNet(network, nn.SoftmaxCrossEntropyWithLogits(True, "mean"))
        step = plain(loss_net, nn.SGD(network.trainable_params(), 1.0))
        step(*tensors(self.inputs, self.labels))
        assert step.last_update.images == 12


class OwnLoss(nn.Cell):
    def __init__(self, **attributes):
        super().__init__()
        for name, value in attributes.items():
            setattr(self, name, value)

    def construct(self, logits, labels):
        return ops.mean(logits) + ops.mean(ops.cast(labels, ms.float32))


def own(logits, labels):
    return ops.mean(ops.square(logits[:, 0] - labels))


def padded(logits, labels):
    return ops.cross_entropy(logits, labels, ignore_index=0)


LOGITS = np.zeros((6, 4), np.float32)


def check(loss_fn, *arrays, loss_net=None):
    """Check a batch as a step does before it compiles; return the error's message."""
    loss_net = loss_net or LossNet(nn.Identity(), loss_fn)
    batch, looked = tensors(*arrays), BatchCheck(loss_net, True, None)
    for _ in range(2):  # a shape that was refused is refused again
        with pytest.raises(InputError) as caught:
            looked.shapes(batch)
            looked.labels(batch, lambda: None)
    return str(caught.value)


def accept(loss_fn, *arrays, derived=True, batch_axis=None):
    looked = BatchCheck(LossNet(nn.Identity(), loss_fn), derived, batch_axis)
    looked.shapes(tensors(*arrays))
    looked.labels(tensors(*arrays), lambda: None)
    return looked


@pytest.mark.parametrize(
    ("loss_fn", "labels", "words"),
    [
        (own, np.zeros((6, 4), np.float32), r"labels have shape \(6, 4\).*not a known one"),
        (own, np.int32([0, 1, -100, 1, 1, 1]), "label -100 is negative"),
        (own, np.zeros(5, np.float32), "disagree"),
        (OwnLoss(ignore_index=3), np.zeros(6, np.int32), "has an ignore_index"),
        (OwnLoss(inner=nn.CrossEntropyLoss(ignore_index=3)), np.uint8([0, 3] * 3), "label 3 is"),
        (OwnLoss(inner=nn.CrossEntropyLoss()), np.int32([0, -100] * 3), "label -100 is negative"),
        (
            OwnLoss(inner=nn.CrossEntropyLoss(Tensor(CLASS_WEIGHTS))),
            np.zeros(6, np.int32),
            "holds a loss that has one",
        ),
        (
            OwnLoss(inner=nn.CrossEntropyLoss(reduction="none")),
            np.zeros(6, np.int32),
            "holds a loss that has one",
        ),
        (padded, np.zeros(6, np.int32), "mentions an ignore_index"),
        (
            functools.partial(ops.nll_loss, ignore_index=3),
            np.zeros(6, np.int32),
            "given an ignore_index",
        ),
        (nn.CrossEntropyLoss(reduction="sum"), np.zeros(6, np.int32), "is a sum, not a mean"),
        (nn.MSELoss("sum"), np.zeros((6, 4), np.float32), "is a sum, not a mean"),
        (nn.BCEWithLogitsLoss("sum"), np.zeros((6, 4), np.float32), "is a sum, not a mean"),
        (nn.RMSELoss(), np.zeros(6, np.float32), "is not a mean"),
        (nn.MSELoss(), np.zeros((5, 4), np.float32), "disagree"),
    ],
)
def test_what_cannot_be_derived_is_refused_with_the_words(loss_fn, labels, words):
    message = check(loss_fn, LOGITS, labels)
    assert THREE_WORDS in message
    assert re.search(words, message)


@pytest.mark.parametrize(
    ("loss_fn", "labels"),
    [
        (own, np.zeros(6, np.float32)),
        (own, np.zeros(6, np.int32)),
        (OwnLoss(), np.zeros(6, np.int32)),
        (OwnLoss(inner=nn.CrossEntropyLoss()), np.zeros(6, np.int32)),
        (OwnLoss(inner=nn.CrossEntropyLoss(ignore_index=3)), np.int32([0, 1] * 3)),
        (mint.nn.CrossEntropyLoss(), np.int32([0, 1, 2, 3, -100, 0])),
        (mint.nn.CrossEntropyLoss(), np.full((6, 4), 0.25, np.float32)),
        (mint.nn.MSELoss(), np.zeros((6, 4), np.float32)),
        (nn.CrossEntropyLoss(), np.int32([0, 1, 2, 3, -100, 0])),
        (nn.CrossEntropyLoss(), np.full((6, 4), 0.25, np.float32)),
        (ops.cross_entropy, np.int32([0, 1, 2, 3, -100, 0])),
        (nn.MSELoss(), np.zeros((6, 4), np.float32)),
        (nn.SoftmaxCrossEntropyWithLogits(reduction="mean"), np.zeros((6, 4), np.float32)),
        (nn.SoftmaxCrossEntropyWithLogits(True, "mean"), np.zeros(6, np.int32)),
    ],
)
def test_what_needs_no_word(loss_fn, labels):
    check = accept(loss_fn, LOGITS, labels)
    assert not check.mean.why_not
    # The weights differ from the rows only if a label is ignored.
    assert check.differs == bool((labels == -100).any())


other_name = ops.cross_entropy
WEIGHTS = Tensor(CLASS_WEIGHTS)


class Calls(nn.Cell):
    def construct(self, logits, labels):
        return ops.nll_loss(ops.log_softmax(logits, -1), labels, WEIGHTS)


@pytest.mark.parametrize(
    "loss_fn",
    [
        lambda x, y: ops.cross_entropy(x, y, None, 0),
        lambda x, y: ops.cross_entropy(x, y, WEIGHTS) * 2,
        lambda x, y: ops.cross_entropy(x, y, weight=WEIGHTS),
        lambda x, y: (ops.cross_entropy(x, y, reduction="none") * (y != 0)).sum() / (y != 0).sum(),
        lambda x, y: ops.cross_entropy(ops.reshape(x, (-1, 4)), ops.abs(y), None, ops.abs(0)),
        lambda x, y: other_name(x, y, WEIGHTS),
        lambda x, y: ops.cross_entropy(*(x, y, WEIGHTS)),
        functools.partial(ops.cross_entropy, weight=WEIGHTS),
        functools.partial(ops.cross_entropy, reduction="none"),
        Calls(),
    ],
)
def test_calls_that_are_another_mean_are_refused(loss_fn):
    message = check(loss_fn, LOGITS, np.int32([0, 1, 2, 3, 1, 0]))
    assert THREE_WORDS in message
    assert "more than the outputs and the labels" in message or "the loss is given" in message


@pytest.mark.parametrize(
    "loss_fn",
    [
        lambda x, y: ops.cross_entropy(x, y),
        lambda x, y: ops.cross_entropy(ops.mul(x, ops.add(1, 2)), ops.abs(y)) + ops.add(x, y, 1),
        lambda x, y: ops.cross_entropy(x, y, label_smoothing=0.1),
        lambda x, y: other_name(ops.mul(x, y), y),
    ],
)
def test_plain_calls_are_means_over_rows(loss_fn):
    accept(loss_fn, LOGITS, np.int32([0, 1, 2, 3, 1, 0]))
    assert "negative" in check(loss_fn, LOGITS, np.int32([0, 1, 2, 3, -100, 0]))


def test_targets_of_half_the_width_are_no_labels():
    targets = Tensor(np.full((6, 4), 0.25), ms.bfloat16)
    looked = BatchCheck(LossNet(nn.Identity(), nn.CrossEntropyLoss()), True)
    batch = (*tensors(LOGITS), targets)
    looked.shapes(batch)
    looked.labels(batch, lambda: None)
    with pytest.raises(InputError, match="expected integers"):
        looked.labels((*tensors(LOGITS), targets[:, 0]), lambda: None)


def test_what_lies_between_inputs_and_labels_has_axes_of_its_own():
    mask, tokens = np.zeros((3, 3), np.float32), np.zeros((2, 3), np.int32)
    accept(nn.CrossEntropyLoss(), tokens, mask, tokens)
    accept(nn.CrossEntropyLoss(), np.zeros((5, 3), np.float32), mask[:2], np.zeros(5, np.int32))
    for loss_fn in (own, nn.MSELoss()):
        assert "disagree" in check(loss_fn, tokens, mask, np.zeros(2, np.float32))
    assert "disagree" in check(nn.CrossEntropyLoss(), tokens, mask, np.zeros((3, 2), np.int32))


class OfTokens(nn.Cell):
    """Tokens (B, T) -> logits (B, T, 6), or (B T, 6)."""

    def __init__(self, flat=False):
        super().__init__()
        self.embedding, self.dense, self.flat = nn.Embedding(6, 3), nn.Dense(3, 6), flat

    def construct(self, tokens):
        logits = self.dense(self.embedding(tokens))
        return logits.reshape(-1, 6) if self.flat else logits


class TestTheFirstBatch:
    """A label of no class is named even if no graph has been compiled that gives V."""

    tokens = np.int32([[1, 2, 3], [3, 4, 5]])

    def refused(self, build, network, labels):
        step = plain(build(network), nn.SGD(network.trainable_params(), 1.0))
        words = r"label 6 at .*label < V = 6"
        with unchanged(network), pytest.raises(InputError, match=words):
            step(*tensors(self.tokens, labels))
        assert int(step.updates.asnumpy()) == 0
        return step

    @pytest.mark.parametrize(
        "loss_fn", [nn.CrossEntropyLoss(), nn.SoftmaxCrossEntropyWithLogits(True, "mean")]
    )
    def test_without_graphs(self, eager, loss_fn):
        labels = np.int32([0, 1, 6, 1, 2, 3])
        step = self.refused(lambda network: LossNet(network, loss_fn), OfTokens(True), labels)
        step(*tensors(self.tokens, np.minimum(labels, 5)))
        assert int(step.updates.asnumpy()) == 1

    def test_a_step_of_graph_mode_compiles_nothing_in_pynative_mode(self, monkeypatch):
        network = OfTokens(True)
        step = plain(LossNet(network, nn.CrossEntropyLoss()), nn.SGD(network.trainable_params()))
        compiled = []
        monkeypatch.setattr(step, "compile", lambda *batch: compiled.append(batch))
        with runtime.pynative():
            with pytest.raises(InputError, match="label 6 at .*label < V = 6"):
                step(*tensors(self.tokens, np.int32([0, 1, 6, 1, 2, 3])))
            step(*tensors(self.tokens, np.int32([0, 1, 5, 1, 2, 3])))
        assert not compiled and int(step.updates.asnumpy()) == 1

    def test_tokens_without_graphs(self, eager):
        self.refused(TokenLossNet, OfTokens(), np.int32([[0, 1, 6], [1, 2, 3]]))

    def test_a_loss_cell_of_mindspores(self):
        step = self.refused(
            lambda network: nn.WithLossCell(network, nn.CrossEntropyLoss()),
            OfTokens(True),
            np.int32([0, 1, 6, 1, 2, 3]),
        )
        assert step.gradient.loss_net.backbone_network.training


def test_nothing_is_refused_where_no_weight_is_needed():
    """This is so for one rank and one micro-batch per update, or if ``normalise`` is given."""
    accept(own, LOGITS, np.zeros((6, 4), np.float32), derived=False)
    accept(own, LOGITS, np.int32([0, 1, -100, 1, 1, 1]), derived=False)
    accept(nn.MSELoss("sum"), LOGITS, np.zeros((6, 4), np.float32), derived=False)


def test_a_loss_net_of_ones_own():
    labels = np.zeros(6, np.int32)
    loss_net = OwnLoss()
    message = check(None, LOGITS, np.zeros((6, 2), np.float32), loss_net=loss_net)
    assert "not a known one" in message
    holds = OwnLoss(pair=TokenLossNet(nn.Identity()))
    assert "holds a loss" in check(None, LOGITS, labels, loss_net=holds)


def test_a_subclass_with_a_construct_of_its_own_is_not_known():
    class Focal(nn.CrossEntropyLoss):
        def construct(self, logits, labels):
            return super().construct(logits, labels) ** 2

    assert mean_of_loss(Focal()).over == "unknown" and mean_of_loss(Focal()).why_not


def test_which_means_are_undefined_where_no_label_counts():
    """CrossEntropySmooth's is then 0, rows and elements always count, a sum is not a mean."""
    undefined = [nn.CrossEntropyLoss(), nn.NLLLoss(), ops.cross_entropy]
    defined = [nn.CrossEntropyLoss(reduction="sum"), CrossEntropySmooth(sparse=True, num_classes=3)]
    defined += [nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"), nn.MSELoss()]
    assert all(mean_of_loss(loss_fn).undefined for loss_fn in undefined)
    assert not any(mean_of_loss(loss_fn).undefined for loss_fn in [*defined, OwnLoss()])


def test_arrays_are_refused_after_tensors_of_their_shape():
    looked = accept(nn.MSELoss(), LOGITS, LOGITS)
    with pytest.raises(InputError, match="a NumPy array"):
        looked.shapes((LOGITS, LOGITS))


def test_labels_in_one_axis_of_a_known_loss():
    """For tokens (B, T) with labels (B T,) it is known what counts, whatever the axes."""
    accept(nn.MSELoss(), np.zeros((3, 4), np.int32), np.zeros(12, np.float32))
    accept(nn.CrossEntropyLoss(), np.zeros((3, 4), np.int32), np.zeros(12, np.int32))
    assert "disagree" in check(own, np.zeros((3, 4), np.int32), np.zeros(12, np.float32))


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ((lambda x: (x, x), 1), "part 0 of the batch: expected a tensor, got a tuple of 2"),
        ((lambda x: {"tokens": x}, 1), r"a dict of 1; .*step\(tokens, mask, labels\)"),
        ((lambda x: x.asnumpy(), 1), "a NumPy array"),
    ],
)
def test_batches_that_are_not_flat(batch, words):
    network = linear()
    step = plain(LossNet(network, nn.MSELoss()), nn.SGD(network.trainable_params(), 0.1))
    (inputs,) = tensors(np.zeros((2, 3), np.float32))
    with pytest.raises(InputError, match=words):
        step(batch[0](inputs), inputs)
    with pytest.raises(InputError, match="the batch is empty"):
        step()


def test_elements_count_where_rows_hold_other_numbers_of_them():
    """The mean over sequences (B, T, 2), T = 4 and 2, is that over all elements."""
    network = linear()
    step = AccumulatedStep(
        LossNet(network, nn.MSELoss()), nn.SGD(network.trainable_params(), 0.5), 2
    )
    random = np.random.default_rng(3)
    batches = [
        (random.normal(size=(*shape, 3)), random.normal(size=(*shape, 2)))
        for shape in ((2, 4), (3, 2))
    ]
    before = snapshot(network)
    for inputs, targets in batches:
        step(*tensors(inputs.astype(np.float32), targets.astype(np.float32)))
    inputs, targets = (
        np.concatenate([batch[i].reshape(-1, batch[i].shape[-1]) for batch in batches])
        for i in range(2)
    )
    loss, gradients = reference.linear_regression(
        before["weight"].astype(np.float64), before["bias"].astype(np.float64), inputs, targets
    )
    assert step.last_update.loss == pytest.approx(loss, rel=1e-5)
    moved = before["weight"] - snapshot(network)["weight"]
    np.testing.assert_allclose(moved, 0.5 * gradients[0], rtol=1e-4, atol=1e-6)
    assert step.settings["normalise"] == "'elements'"


def test_a_batch_without_rows_or_labels_is_refused():
    _, loss_net = regression()
    step = AccumulatedStep(loss_net, nn.Momentum(loss_net.trainable_params(), 0.1, 0.9))
    inputs, targets = tensors(*rows(4))
    with pytest.raises(InputError, match="at least one row, got none"):
        step(inputs[:0], targets[:0])
    # A plain step on one rank derives no weight, but still counts the rows.
    for each in (step, PlainStep(loss_net, nn.SGD(loss_net.trainable_params(), 0.1))):
        with pytest.raises(InputError, match="batch's last part: expected a tensor of labels, got"):
            each(inputs, 3)


def test_a_mean_over_elements_that_are_broadcast_is_refused():
    network = linear()
    step = AccumulatedStep(
        LossNet(network, nn.MSELoss()), nn.SGD(network.trainable_params(), 0.5), 2
    )
    with pytest.raises(ValueError, match="expected the same shape, or normalise"):
        step(*tensors(np.zeros((4, 3), np.float32), np.zeros((4, 1), np.float32)))


def test_steps_that_share_a_loss_net_ask_for_shapes_of_their_own():
    network = nn.Dense(3, 1)
    loss_net = LossNet(network, nn.MSELoss())
    strict, free = (
        AccumulatedStep(loss_net, nn.SGD(network.trainable_params(), 0.0), 1, normalise=word)
        for word in (None, "samples")
    )
    for count in (4, 6):
        broadcast = tensors(np.ones((count, 3), np.float32), np.ones(count, np.float32))
        free(*broadcast)
        with pytest.raises(ValueError, match="expected the same shape, or normalise"):
            strict(*broadcast)
    assert int(free.updates.asnumpy()) == 2


def test_labels_in_one_axis_are_known_of_each_batch():
    """The result for a shape that was checked before is unchanged."""
    looked = BatchCheck(LossNet(nn.Identity(), nn.CrossEntropyLoss()), True)
    flattened = []
    for shape in ((2, 3), (5, 1), (2, 3)):
        inputs = np.zeros(shape, np.int32)
        looked.shapes(tensors(inputs, inputs.reshape(-1)))
        flattened.append(looked.flattened)
    assert flattened == [True, False, True]
