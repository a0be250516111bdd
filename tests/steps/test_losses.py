"""Networks with their loss."""

import contextlib

import mindspore as ms
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore import Tensor, nn, ops

from labkit.errors import InputError
from labkit.runtime import pynative
from labkit.steps.losses import CrossEntropySmooth, LossNet, TokenLossNet, first_nonfinite
from labkit.steps.state import set_state
from tests import twins
from tests.support.step_cells import Product, assert_bit_equal, rows, snapshot, tensors
from tests.support.tolerances import TOLERANCE

pytestmark = pytest.mark.usefixtures("runtime")


class Same(nn.Cell):
    """Returns its inputs: logits chosen by the test."""

    def construct(self, logits):
        return logits


class Half(nn.Cell):
    """A network whose outputs are float16."""

    def construct(self, inputs):
        return ops.cast(inputs, ms.float16)


def absolute_error(outputs, targets):
    """A loss that is a plain function."""
    return ops.mean(ops.abs(outputs - targets))


def softmax_cross_entropy(sparse=True):
    return nn.SoftmaxCrossEntropyWithLogits(sparse=sparse, reduction="mean")


class Own(nn.CrossEntropyLoss):
    """A user's own loss, whose logits may have any shape."""

    def construct(self, logits, labels):
        return ops.mean(logits) + ops.mean(labels)


class Named(nn.MSELoss):
    """MindSpore's own loss under another name."""


@pytest.mark.parametrize(
    ("loss_fn", "over", "axis"),
    [
        (ops.cross_entropy, "labels", 1),
        (ops.nll_loss, "labels", 1),
        (ms.mint.nn.NLLLoss(), "labels", 1),
        (softmax_cross_entropy(), "rows", -1),
        (CrossEntropySmooth(num_classes=3), "labels", -1),
        (softmax_cross_entropy(sparse=False), "rows", None),
        (Own(), None, None),
        (nn.MSELoss(), "elements", None),
        (Named(), "elements", None),
        (absolute_error, None, None),
        (ops.mse_loss, "elements", None),
        (ms.mint.nn.functional.smooth_l1_loss, "elements", None),
        (nn.KLDivLoss(), "elements", None),
        (nn.KLDivLoss("batchmean"), "rows", None),
        (nn.RMSELoss(), None, None),
    ],
)
def test_what_a_loss_is_a_mean_over_and_which_axis_of_the_logits_holds_the_classes(
    loss_fn, over, axis
):
    loss_net = LossNet(Same(), loss_fn)
    assert (loss_net.over, loss_net.class_axis) == (over, axis)


ALIKE = (nn.MSELoss(), nn.RMSELoss(), nn.HuberLoss("sum"), Named(), ops.l1_loss)
OWN = (absolute_error, Product())


@pytest.mark.parametrize(
    ("losses", "outputs", "labels", "dtype", "fit"),
    [
        (ALIKE + OWN, (4, 1), (4,), np.float32, False),
        (ALIKE + OWN, (4,), (4, 1), np.float32, False),
        (ALIKE + OWN, (4, 1), (4, 1), np.float32, True),
        (ALIKE, (4, 4), (4,), np.float32, False),
        (ALIKE, (1, 1), (1,), np.float32, False),
        (OWN, (1, 1), (1,), np.float32, True),  # of one row nothing is broadcast
        (OWN, (4, 3), (4, 1), np.float32, True),  # a margin
        (OWN, (2, 1, 4), (2, 1), np.float32, False),
        (OWN, (2, 1, 4), (2, 1), np.int32, True),  # classes of sequences of one step
        (OWN, (4, 1), (4,), np.int32, False),
        ((nn.CrossEntropyLoss(),), (4, 3), (4, 1), np.int32, False),
        ((nn.CrossEntropyLoss(), ops.cross_entropy), (4, 3, 2), (4, 2), np.int32, True),
        ((nn.CrossEntropyLoss(),), (4, 3), (4, 3), np.float32, True),
        ((nn.CrossEntropyLoss(), softmax_cross_entropy()), (4, 3), (4,), np.float32, False),
    ],
)
def test_labels_that_would_broadcast_to_more_are_refused(losses, outputs, labels, dtype, fit):
    arrays = tensors(np.ones(outputs, np.float32), np.ones(labels, dtype))
    for loss_fn in losses:
        refused = pytest.raises(InputError, match="labels of the loss: expected .*, got [(]")
        with pynative(), contextlib.nullcontext() if fit else refused:
            LossNet(Same(), loss_fn)(*arrays)


def test_the_loss_is_in_float32_whatever_the_network_computes_in():
    """The square of 300 does not fit into float16."""
    inputs = np.full((4, 2), 300.0, np.float32)
    loss, _ = LossNet(Half(), nn.MSELoss())(*tensors(inputs, 0 * inputs))
    assert loss.dtype == ms.float32 and float(loss) == 90_000


@pytest.fixture(scope="module")
def token_loss(runtime):
    return TokenLossNet(Same())


@settings(max_examples=30)
@given(
    labels=st.lists(st.sampled_from([-100, 0, 1, 2, 3, 4]), min_size=6, max_size=6),
    scale=st.sampled_from([0.1, 1.0, 100.0, 1e4]),
    seed=st.integers(0, 100),
    ignored=st.sampled_from([-100, 0]),
)
def test_token_loss_is_the_reference(token_loss, labels, scale, seed, ignored):
    logits = scale * np.random.default_rng(seed).normal(size=(2, 3, 5)).astype(np.float32)
    labels = np.int32([label if label >= 0 else ignored for label in labels]).reshape(2, 3)
    loss_net = token_loss if ignored == -100 else TokenLossNet(Same(), ignore_index=0)
    loss, count = loss_net(*tensors(logits.astype(np.float32), labels))
    total, tokens = twins.token_cross_entropy(logits, labels, ignored)
    assert loss.shape == count.shape == () and float(count) == tokens
    expected = total / max(tokens, 1)
    np.testing.assert_allclose(float(loss), expected, **TOLERANCE["one float32 gradient"])


@pytest.mark.parametrize(
    ("label", "dtype"),
    [(5, np.int32), (-1, np.int32), (1000, np.int64), (2**32 + 3, np.int64), (255, np.uint8)],
)
def test_a_label_of_no_class_makes_a_token_loss_nan(token_loss, label, dtype):
    """Called by itself, the Cell uses no class 0, raises no error of GatherD, wraps no int64."""
    labels = np.array([[0, 1, 2], [3, 4, label]], dtype)
    loss, _ = token_loss(*tensors(np.zeros((2, 3, 5), np.float32), labels))
    assert np.isnan(loss.asnumpy())


def test_a_masked_logit_at_an_ignored_label_costs_nothing(token_loss):
    """The logit is -inf at class 0, which stands in for an ignored label."""
    logits = np.zeros((1, 2, 5), np.float32)
    logits[0, :, 0] = -np.inf
    loss, count = token_loss(*tensors(logits, np.int32([[1, -100]])))
    assert float(loss) == pytest.approx(np.log(4), rel=1e-5) and float(count) == 1


def smooth(**options):
    return CrossEntropySmooth(num_classes=4, **options)


def test_padding_has_no_gradient(token_loss):
    labels = Tensor(np.int32([[1, -100, 2], [-100, -100, -100]]))
    logits = Tensor(np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32))

    def loss_of(logits):
        return token_loss(logits, labels)[0]

    gradient, counts = ms.grad(loss_of)(logits).asnumpy(), labels.asnumpy() != -100
    assert (gradient[~counts] == 0).all() and (gradient[counts] != 0).all()


def smoothed(classes, rows=6, seed=0, scale=3.0):
    """Logits (rows, classes) float32 and labels (rows,) int32."""
    random = np.random.default_rng(seed)
    logits = scale * random.normal(size=(rows, classes))
    return logits.astype(np.float32), random.integers(0, classes, rows).astype(np.int32)


class LossAlone(nn.Cell):
    """The loss of a loss net without its weight."""

    def __init__(self, loss_net):
        super().__init__()
        self.loss_net = loss_net

    def construct(self, *batch):
        return self.loss_net(*batch)[0]


def loss_and_slope(loss, logits, labels):
    """Return the loss and its gradient by the logits, as arrays."""
    graph = ms.value_and_grad(LossAlone(LossNet(Same(), loss)))
    return tuple(result.asnumpy() for result in graph(*tensors(logits, labels)))


def on_and_off(convention, factor, classes):
    """Return the values for label and other classes, as each convention defines them."""
    if convention == "mindspore":
        return 1 - factor, factor / (classes - 1)
    return 1 - factor + factor / classes, factor / classes


@pytest.mark.parametrize("convention", ["mindspore", "pytorch"])
@pytest.mark.parametrize(("factor", "classes"), [(0.1, 10), (0.0, 10), (0.3, 2), (1.0, 5)])
def test_smoothed_cross_entropy_is_the_reference(convention, factor, classes):
    logits, labels = smoothed(classes)
    on, off = on_and_off(convention, factor, classes)
    loss = CrossEntropySmooth(True, "mean", factor, classes, convention=convention)
    assert float(loss.on_value) == np.float32(on)
    assert float(loss.off_value) == pytest.approx(np.float32(off), rel=1e-7)
    value, slope = loss_and_slope(loss, logits, labels)
    expected, slopes = twins.smoothed_cross_entropy(logits, labels, on, off)
    np.testing.assert_allclose(value, expected, **TOLERANCE["one float32 gradient"])
    np.testing.assert_allclose(slope, slopes, **TOLERANCE["one float32 gradient"])


@pytest.mark.parametrize("factor", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_pytorch_convention_is_pytorch_s(eager, factor, reduction):
    """Ignored rows too. The other convention is the same, with the factor in the docstring."""
    logits, labels = smoothed(11, seed=1)
    labels[[1, 4]] = -7
    options = {"reduction": reduction, "ignore_index": -7}
    theirs = torch.tensor(logits, requires_grad=True)
    loss_fn = torch.nn.CrossEntropyLoss(label_smoothing=factor, **options)
    expected = loss_fn(theirs, torch.tensor(labels).long())
    expected.sum().backward()
    options |= {"num_classes": 11}
    for loss in (
        CrossEntropySmooth(smooth_factor=factor, convention="pytorch", **options),
        CrossEntropySmooth(smooth_factor=factor * 10 / 11, **options),
    ):
        value = loss(*tensors(logits, labels)).asnumpy()
        tolerance = TOLERANCE["one float32 gradient"]
        np.testing.assert_allclose(value, expected.detach().numpy(), **tolerance)
        if reduction == "mean":
            _, slope = loss_and_slope(loss, logits, labels)
            np.testing.assert_allclose(slope, theirs.grad, **tolerance)


@pytest.mark.parametrize(
    ("scale", "logits_as", "labels_as"), [(1e4, np.float32, np.int64), (20, np.float16, np.int32)]
)
def test_huge_or_float16_logits_are_taken_in_float32(scale, logits_as, labels_as):
    """exp(20) does not fit into float16; the loss casts its logits even without LossNet."""
    logits, labels = smoothed(4, scale=scale)
    logits, labels = logits.astype(logits_as), labels.astype(labels_as)
    value = smooth(smooth_factor=0.1)(*tensors(logits, labels))
    expected, slopes = twins.smoothed_cross_entropy(logits.astype(float), labels, 0.9, 0.1 / 3)
    assert value.dtype == ms.float32
    np.testing.assert_allclose(float(value), expected, **TOLERANCE["one float32 gradient"])
    if logits_as == np.float32:
        _, slope = loss_and_slope(smooth(smooth_factor=0.1), logits, labels)
        np.testing.assert_allclose(slope, slopes, **TOLERANCE["one float32 gradient"])


@pytest.mark.parametrize("factor", [0.0, 0.1])
def test_a_label_out_of_range_is_nan_and_not_free(eager, factor):
    for label in (4, -1):
        logits, labels = smoothed(4)
        labels[2] = label
        value, slope = loss_and_slope(smooth(smooth_factor=factor), logits, labels)
        assert np.isnan(value) and np.isnan(slope[2]).all()
        assert np.isfinite(np.delete(slope, 2, axis=0)).all()
        # In MindSpore alone such a row costs nothing.
        on, off = Tensor(1.0, ms.float32), Tensor(0.0, ms.float32)
        one_hot = ops.one_hot(*tensors(labels), 4, on, off)
        assert float(nn.SoftmaxCrossEntropyWithLogits()(Tensor(logits), one_hot)[2]) == 0


def called(loss_net, logits, labels):
    """Call a loss net with logits and labels of these shapes."""
    return loss_net(*tensors(np.zeros(logits, np.float32), np.zeros(labels, np.int32)))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: LossNet(nn.MSELoss(), Same()), "network: expected a Cell that is not a loss"),
        (lambda: LossNet(Same(), "mse"), "loss_fn: expected a function or Cell .*, got 'mse'"),
        (lambda: LossNet(Same(), absolute_error, per="batch"), "per: expected .*got 'batch'"),
        (lambda: TokenLossNet("lstm"), "network: expected a Cell that is not a loss, got 'lstm'"),
        (lambda: smooth(ignore_index=True), "ignore_index: expected an integer"),
        (
            lambda: TokenLossNet(Same())(*tensors(np.zeros((2, 3, 5)), np.zeros((2, 3)))),
            "labels: expected integers, such as int32, got Float",
        ),
        (
            lambda: called(TokenLossNet(Same()), (2, 3, 5), (2, 2)),
            r"labels of the loss: expected the shape \(2, 3\), got \(2, 2\)",
        ),
        (
            lambda: called(LossNet(Same(), smooth()), (6, 5), (6,)),
            r"logits of the loss: expected the shape \(6, 4\), got \(6, 5\)",
        ),
        (
            lambda: called(LossNet(Same(), smooth()), (6, 4), (6, 1)),
            r"labels of the loss: expected the shape \(6,\), got \(6, 1\)",
        ),
        (
            lambda: called(LossNet(Same(), nn.CrossEntropyLoss()), (2, 3, 5), (2, 3)),
            r"expected the shape \(2, 5\), got \(2, 3\), with the classes in axis 1; TokenLossNet",
        ),
        (lambda: smooth(smooth_factor=-0.1), "smooth_factor: expected a finite number >= 0 and"),
        (lambda: smooth(convention="torch"), "convention: .*got 'torch'. Did you mean 'pytorch'"),
        (lambda: smooth(sparse=False), "sparse: expected True"),
    ],
)
def test_what_is_refused(call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        call()


def test_the_documents_call():
    """Arguments go by position or by name, as the documents write them; defaults are theirs."""
    loss = CrossEntropySmooth(sparse=True, reduction="mean", smooth_factor=0.1, num_classes=1001)
    assert float(loss.on_value) == np.float32(0.9)
    assert float(loss.off_value) == np.float32(1e-4)
    each = CrossEntropySmooth(True, "none", 0.1, 1000)(*tensors(*smoothed(1000)))
    assert each.shape == (6,)


def spoil(parameter, value=np.nan):
    array = parameter.asnumpy().copy()
    array.flat[0] = value
    set_state(parameter, array)


def overflow(network):
    """All weights stay finite; the outputs of the last layer and its input's square do not."""
    for layer in (network[0], network[3]):
        set_state(layer.weight, np.full(layer.weight.shape, 3e38, np.float32))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda net, batch: batch[0].fill(np.inf), "the batch's tensor 0 is not finite"),
        (lambda net, _: spoil(net[1].gamma), "weight '1.gamma' of layer '1' is not finite"),
        (lambda net, _: spoil(net[3].bias, np.inf), "weight '3.bias' of layer '3' is not finite"),
        (lambda net, _: overflow(net), "layer '0' is the first whose output is not finite"),
        (
            lambda net, _: set_state(net[3].bias, np.full(2, 1e30, np.float32)),
            "all layers' outputs are finite, the loss function's is not",  # their square overflows
        ),
        (
            lambda net, batch: batch[0][3].fill(1e25),  # its square overflows, which ReLU hides
            "BatchNorm's running statistics '1.moving_variance' would not be finite, as after a "
            "batch of one row",
        ),
        (lambda net, _: None, "loss and layers' outputs are finite when computed once more"),
    ],
)
def test_the_first_that_is_not_finite_is_named(change, said):
    """Running statistics, modes and weights stay, and no hook is left behind."""
    ms.set_seed(1)
    network = nn.SequentialCell(nn.Dense(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dense(4, 2))
    loss_net, batch = LossNet(network, nn.MSELoss()).set_train(), [a.copy() for a in rows(8)]
    change(network, batch)
    before = snapshot(loss_net)
    assert first_nonfinite(loss_net, tensors(*batch)) == said
    assert_bit_equal(snapshot(loss_net), before)
    assert ms.get_context("mode") == ms.GRAPH_MODE and loss_net.training
    assert not any(cell._forward_hook for _, cell in loss_net.cells_and_names())
    loss_net(*tensors(*batch))
    # The forward pass of this network does leave a trace.
    assert (snapshot(loss_net)["1.moving_mean"] != before["1.moving_mean"]).any()
