"""The gradient stage: one micro-batch's contribution, and the mean of several."""

import mindspore as ms
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mindspore import ParameterTuple, Tensor, amp, nn, ops

from labkit.algorithms.adasum import AdasumStep
from labkit.algorithms.subspace import SubspaceStep
from labkit.errors import InputError
from labkit.labs.compare import largest_differences, relative_error
from labkit.nets.small import NextToken
from labkit.runtime import pynative
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.gradients import GradientOptions, GradientStage, message_ends
from labkit.steps.losses import LossNet, TokenLossNet
from labkit.steps.options import DynamicLossScale
from labkit.steps.state import set_state
from labkit.steps.step import PlainStep
from tests import twins
from tests.support.step_cells import (
    OUTPUTS,
    Counted,
    Normalised,
    Own,
    Product,
    Scalar,
    TwoMeans,
    exact,
    linear,
    momentum,
    of_means,
    projected_sgd,
    regression,
    rows,
    split,
    tensors,
    thor,
    two_means,
)
from tests.support.subspace_cells import basis_of
from tests.support.tolerances import TOLERANCE

pytestmark = pytest.mark.usefixtures("runtime")


def squared_error(outputs, targets):
    return ops.mean(ops.square(outputs - targets))


def by_rows(outputs, targets):
    return squared_error(outputs, targets), len(outputs)


def both(outputs, targets):
    return (squared_error(outputs, targets), 1), (ops.mean(ops.abs(outputs - targets)), 2)


def with_offset(outputs, targets, more):
    """The mean squared error plus an offset given with the batch."""
    return squared_error(outputs, targets) + ops.mean(more), 1


def distance(outputs, targets):
    """The Euclidean distance to the targets, which has no gradient at distance 0."""
    return ops.sqrt(ops.reduce_sum(ops.square(outputs - targets))), 1


def mse(network):
    return LossNet(network, nn.MSELoss())


def product(network):
    """A loss whose gradient by the outputs does not depend on them."""
    return LossNet(network, Product(), per="rows")


class Contribution(nn.Cell):
    """``GradientStage.contribution`` as a compiled graph."""

    def __init__(self, loss_net, parameters, *, weighted=True, extras=None, **options):
        super().__init__(auto_prefix=False)
        self.parameters, self.with_extras = ParameterTuple(parameters), extras is not None
        given = GradientOptions(**options)
        self.stage = GradientStage(
            loss_net, self.parameters, given, weighted=weighted, extras=extras
        )

    def construct(self, *batch):
        return self.stage.contribution(self.with_extras, *batch)


def contribution(make=mse, network=None, **options):
    """Return the contribution cell of a linear network, or of another."""
    network = network or linear()
    return Contribution(make(network), network.trainable_params(), **options)


def test_padded_sequences_need_the_weights_of_their_tokens():
    """Weighted by tokens, the mean is the full batch's; the mean of micro-batch means is not."""
    random = np.random.default_rng(3)
    tokens, labels = random.integers(0, 12, (2, 6, 9)).astype(np.int32)
    for row, length in enumerate([9, 9, 8, 7, 2, 1]):
        labels[row, length:] = -100
    network = NextToken()
    cell = contribution(TokenLossNet, network)
    batches = [tensors(tokens, labels), *split((tokens, labels), [2] * 3)]
    losses, weights, gradients, finite, _ = zip(*(cell(*batch) for batch in batches), strict=True)
    weights, (loss, *losses) = [float(w) for w in weights], [float(value) for value in losses]
    assert weights == [36, 18, 15, 3] and all(map(bool, finite))
    full, *parts = (
        {p.name: g.asnumpy() / weight for p, g in zip(cell.parameters, leaves, strict=True)}
        for leaves, weight in zip(gradients, weights, strict=True)
    )
    mean, plain = (
        {name: np.average([part[name] for part in parts], axis=0, weights=w) for name in full}
        for w in (weights[1:], None)
    )
    assert max(largest_differences(mean, full).values()) <= 1e-6
    assert relative_error(plain, full) > 0.1
    assert loss == pytest.approx(np.average(losses, weights=weights[1:]), rel=1e-6)
    total, count = twins.token_cross_entropy(network(Tensor(tokens)).asnumpy(), labels)
    assert count == 36 and loss == pytest.approx(total / count, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "weight", "factor"),
    [
        ({}, 12, 12),
        ({"reduction": "sum"}, 1, 1),
        ({"weighted": False}, 12, 1),
        ({"nonfinite": "propagate"}, 12, 12),
        ({"loss_scale": 1024}, 12, 12),
        # Scales whose square overflows float32.
        ({"loss_scale": 2.0**65}, 12, 12),
        ({"loss_scale": 2.0**120}, 12, 12),
        ({"loss_scale": 3.0, "weighted": False}, 12, 1),
        ({"loss_scale": DynamicLossScale(2.0**12)}, 12, 12),
    ],
)
@pytest.mark.parametrize("extras", [False, True])
def test_contribution_is_the_weight_times_the_closed_form(extras, options, weight, factor):
    """The weight multiplies gradients and extras, the scale neither, though taps see it."""
    network = Counted() if extras else linear()
    layer, (inputs, targets) = network.layer if extras else network, rows(6)
    more = {"extras": network.extras} if extras else {}
    cell = Contribution(mse(network), layer.trainable_params(), **more, **options)
    if extras and cell.stage.scaled:
        network.unscale(cell.stage.loss_scale)
    loss, actual, gradients, finite, squares = cell(*tensors(inputs, targets))
    expected, slopes = twins.linear_regression(*exact(layer), inputs, targets)
    assert float(loss) == pytest.approx(expected, rel=1e-6)
    assert float(actual) == weight and bool(finite)
    for gradient, slope in zip(gradients[:2], slopes, strict=True):
        assert gradient.dtype == ms.float32
        tolerance = TOLERANCE["one float32 gradient"]
        np.testing.assert_allclose(gradient.asnumpy(), factor * slope, **tolerance)
    if squares is not None:
        size = twins.global_norm([factor * slope for slope in slopes]) ** 2
        assert float(squares) == pytest.approx(size, rel=1e-5)
    assert len(gradients) == (4 if extras else 2)
    if extras:
        counted, size = (float(extra.asnumpy()[0]) for extra in gradients[2:])
        assert counted == factor
        assert size == pytest.approx(factor * row_size(layer, inputs, targets), rel=1e-5)


def row_size(network, inputs, targets):
    """Return N sum over rows of |dL/dy|^2: the mean square of the rows' own slopes, by hand."""
    weights, bias = exact(network)
    error = inputs @ weights.T + bias - targets
    return len(inputs) * np.sum((2 * error / error.size) ** 2)


def test_the_mean_of_extras_is_by_rows(eager):
    """The mean over uneven micro-batches is that of the whole batch."""
    network, sizes = Counted(), [6, 2, 1]
    cell = Contribution(mse(network), network.layer.trainable_params(), extras=network.extras)
    batches = split(rows(9), sizes)
    parts = [cell(*batch) for batch in batches]
    sums = np.sum([[extra.asnumpy()[0] for extra in part[2][-2:]] for part in parts], axis=0)
    counted, size = sums / sum(float(part[1]) for part in parts)
    by_batch = [row_size(network.layer, *(part.asnumpy() for part in b)) for b in batches]
    assert counted == 1
    assert size == pytest.approx(np.average(by_batch, weights=sizes), rel=1e-5)


def test_a_power_of_two_loss_scale_is_unscaled_exactly_once():
    """Scaling float32 by 2**n is exact, so the gradients are those without a scale, bit for bit."""
    batch = tensors(*rows(4))
    without, scaled = (contribution(loss_scale=scale)(*batch) for scale in (1.0, 2.0**12))
    assert float(without[0]) == float(scaled[0])
    for actual, expected in zip(scaled[2], without[2], strict=True):
        np.testing.assert_array_equal(actual.asnumpy(), expected.asnumpy())


class TestFloat16:
    """``precision="O2"``."""

    def test_the_network_computes_in_float16_and_its_loss_does_not(self):
        network, loss_net = regression()
        inputs, targets = rows(4)
        weights, bias = (part.astype(np.float16) for part in exact(network))
        expected, _ = twins.linear_regression(*exact(network), inputs, targets)
        cell = Contribution(loss_net, network.trainable_params(), precision="O2")
        loss, _, gradients, _, _ = cell(*tensors(inputs, targets))
        outputs = loss_net.network(Tensor(inputs)).asnumpy()
        assert (outputs == outputs.astype(np.float16)).all()
        half = inputs.astype(np.float16) @ weights.T + bias
        np.testing.assert_allclose(outputs, half, **TOLERANCE["float16 network"])
        assert 1e-6 < abs(float(loss) - expected) < 1e-2
        assert all(gradient.dtype == ms.float32 for gradient in gradients)

    def test_the_gradient_does_not_depend_on_the_loss_scale(self):
        first, *others = (
            contribution(precision="O2", loss_scale=scale)(*tensors(*rows(8)))[2]
            for scale in (1.0, 1024.0, DynamicLossScale(64.0))
        )
        for gradients in others:
            for gradient, expected in zip(gradients, first, strict=True):
                tolerance = TOLERANCE["float16 network"]
                np.testing.assert_allclose(gradient.asnumpy(), expected.asnumpy(), **tolerance)

    def test_a_small_gradient_survives_with_a_loss_scale_only(self):
        """1e-9 underflows float16, whose smallest number is 6e-8; times 2**16 it does not."""
        inputs, targets = rows(8)
        off = (targets * 1e-9).astype(np.float32)
        norms = {}
        for scale in (1.0, 2.0**16):
            cell = contribution(product, precision="O2", loss_scale=scale)
            gradients = cell(*tensors(inputs, off))[2]
            norms[scale] = twins.global_norm([g.asnumpy() / 8 for g in gradients])
        expected = twins.global_norm([off.T @ inputs / off.size, off.sum(axis=0) / off.size])
        assert norms[1.0] < 0.5 * expected
        assert norms[2.0**16] == pytest.approx(expected, rel=0.02)

    def test_the_weight_does_not_overflow_float16(self):
        """The gradient of one sample's loss is 1e4; times 64 samples it is beyond float16."""
        cell = contribution(lambda n: LossNet(n, nn.L1Loss()), Scalar(), precision="O2")
        inputs = np.full((64, 1), 1e4, np.float32)
        _, weight, gradients, finite, _ = cell(*tensors(inputs, -inputs))
        assert bool(finite)
        np.testing.assert_allclose(gradients[0].asnumpy() / float(weight), 1e4, rtol=1e-3)


class TestFiniteCheck:
    @pytest.mark.parametrize(
        ("size", "options", "expected"),
        [
            (3.0, {}, True),
            (1e18, {"weighted": False}, True),
            (1e18, {"weighted": False, "loss_scale": 2.0**30}, True),
            (1e20, {"weighted": False}, False),  # finite itself, but its square is not
            (np.inf, {}, False),
            (np.nan, {}, False),
        ],
    )
    def test_it_sees_the_squares_of_what_is_handed_on(self, size, options, expected):
        """They are those of the unscaled gradients, so that a large loss scale is not a fault."""
        network = nn.Dense(2, 1, weight_init="zeros", has_bias=False)
        inputs = np.float32([[size, 2.0]])  # the gradient
        cell = contribution(product, network, **options)
        *_, finite, squares = cell(*tensors(inputs, np.ones((1, 1), np.float32)))
        assert bool(finite) is expected
        if expected:
            total = float((inputs.astype(np.float64) ** 2).sum())
            np.testing.assert_allclose(float(squares), total, rtol=1e-6)

    def test_a_gradient_alone_can_be_it(self):
        network, inputs = linear(), Tensor(rows(2)[0])
        cell = contribution(lambda n: Own(n, distance), network)
        loss, _, gradients, finite, _ = cell(inputs, network(inputs))
        assert float(loss) == 0 and not bool(finite)
        assert not all(np.isfinite(g.asnumpy()).all() for g in gradients)


def scaled_step(make, rate=0.0, precision="O0", **scale):
    """Return a plain step with a dynamic loss scale."""
    network = linear()
    sgd = nn.SGD(network.trainable_params(), rate)
    return PlainStep(make(network), sgd, precision=precision, loss_scale=DynamicLossScale(**scale))


@pytest.fixture(scope="module")
def dynamic_scale():
    return scaled_step(lambda n: Own(n, with_offset), initial=4, factor=2, interval=3)


@settings(max_examples=25)
@given(st.lists(st.sampled_from([0.0, 0.0, 0.0, np.nan, np.inf, -np.inf]), min_size=1, max_size=15))
@example([np.nan, np.inf, -np.inf, np.nan] + [0.0] * 7)
def test_dynamic_loss_scale_follows_the_rule(dynamic_scale, offsets):
    """An offset of the loss is in no gradient: the loss alone says that it is not finite."""
    stage, finite = dynamic_scale.gradient, [bool(np.isfinite(offset)) for offset in offsets]
    set_state(stage.loss_scale, 4.0)
    for count in (stage.finite_run, dynamic_scale.dropped, dynamic_scale.updates):
        set_state(count, 0)
    scales = []
    for offset in offsets:
        dynamic_scale(*tensors(*rows(2), np.float32([offset])))
        scales.append(float(stage.loss_scale.asnumpy()))
    assert scales == twins.dynamic_loss_scale(finite, initial=4, factor=2, interval=3)
    assert int(dynamic_scale.dropped.asnumpy()) == finite.count(False)
    assert int(dynamic_scale.updates.asnumpy()) == finite.count(True)


def test_an_overflow_in_float16_halves_the_scale_until_the_gradient_fits():
    """From 2**24 the step finds it by itself: it drops the first micro-batches, then none."""
    step = scaled_step(mse, 0.01, "O2", initial=2.0**24)
    for _ in range(20):
        step(*tensors(*rows(8)))
    dropped = int(step.dropped.asnumpy())
    assert 5 <= dropped <= 15 and step.last_update.number == 20 - dropped
    assert float(step.gradient.loss_scale.asnumpy()) == 2.0 ** (24 - dropped)


def test_a_dynamic_scale_never_grows_to_infinity():
    """Gradients of zero never overflow, and an infinite scale times zero would never be finite."""
    step = scaled_step(product, 0.1, initial=2.0**118, interval=1)
    for _ in range(12):
        step(*tensors(rows(2)[0], np.zeros((2, OUTPUTS), np.float32)))
    assert float(step.gradient.loss_scale.asnumpy()) == 2.0**120
    assert int(step.dropped.asnumpy()) == 0 and step.last_update.number == 12


@pytest.mark.parametrize("gradient", ["zero", "large"])
def test_norm_of_five_million_entries(gradient):
    """A sequential float32 sum would be off by more than 0.1 %; 0 is not divided by its norm."""
    large = np.random.default_rng(0).normal(1.0, 0.1, 5_000_000).astype(np.float32)
    total = large if gradient == "large" else 0 * large[:3]
    stage = contribution(clip_norm=1.0).stage
    with pynative():
        (clipped,), norm = stage.finish(tensors(total), Tensor(2.0, ms.float32))
    expected = twins.global_norm([total]) / 2
    assert float(norm) == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(clipped.asnumpy(), total / 2 / max(expected, 1), rtol=1e-5)


def of_both(weights, bias, inputs, targets):
    """Return the sum of the mean squared and the mean absolute error, and its gradients."""
    loss, gradients = twins.linear_regression(weights, bias, inputs, targets)
    error = inputs @ weights.T + bias - targets
    slope = np.sign(error) / error.size
    more = slope.T @ inputs, slope.sum(axis=0)
    return loss + np.mean(np.abs(error)), [a + b for a, b in zip(gradients, more, strict=True)]


CLIPPED = {"clip_norm": 0.5}
SCALED = {"loss_scale": 64.0, "clip_norm": 0.5}


@pytest.mark.parametrize(
    ("make", "sizes", "options", "closed_form"),
    [
        (mse, (16,), {}, twins.linear_regression),
        (mse, (4, 4, 4, 4), CLIPPED, twins.linear_regression),
        (mse, (8, 4, 4), {}, twins.linear_regression),
        (lambda n: nn.WithLossCell(n, nn.MSELoss()), (6, 10), {}, twins.linear_regression),
        (lambda n: LossNet(n, squared_error, per="rows"), (6, 10), SCALED, twins.linear_regression),
        (lambda n: Own(n, by_rows), (6, 10), {}, twins.linear_regression),
        (lambda n: Own(n, of_means), (6, 10), {}, None),
        (lambda n: Own(n, squared_error), (16,), CLIPPED, twins.linear_regression),
        (lambda n: Own(n, both), (16,), {}, of_both),
        (TwoMeans, (16,), CLIPPED, two_means),
        (TwoMeans, (1, 14, 1), SCALED, two_means),
        (TwoMeans, (6, 10), {"nonfinite": "drop_group"}, two_means),
        (TwoMeans, (6, 10), {"kind": projected_sgd}, two_means),  # all components, as plain descent
    ],
)
def test_an_update_is_that_of_all_rows(make, sizes, options, closed_form):
    """Loss, norm and move are the closed form in float64; None: the mean of means, which differs.

    A plain step takes the sum of several losses, and one without a weight.
    """
    options, network, (inputs, targets) = dict(options), linear(), rows(16)
    inputs = inputs * np.random.default_rng(5).permutation(np.linspace(0.1, 3, 16))[:, None]
    arrays, before = (inputs.astype(np.float32), targets), exact(network)
    kind = options.pop("kind", PlainStep if sizes == (16,) else AccumulatedStep)
    more = {} if kind is PlainStep else {"micro_steps": len(sizes)}
    sgd = nn.SGD(network.trainable_params(), 1.0)
    step = kind(make(network), sgd, **more, **options)
    results = []
    for batch in split(arrays, sizes):
        closed = closed_form or twins.linear_regression
        results.append(closed(*before, *(part.asnumpy() for part in batch)))
        assert float(step(*batch)) == pytest.approx(results[-1][0], rel=1e-5)
    loss, gradients = (closed_form or twins.linear_regression)(*before, *arrays)
    if closed_form is None:
        whole, loss = gradients, np.mean([loss for loss, _ in results])
        gradients = twins.weighted_mean([g for _, g in results], [1] * len(sizes))
        assert relative_error(dict(enumerate(gradients)), dict(enumerate(whole))) > 0.02
    last, norm = step.last_update, twins.global_norm(gradients)
    assert (last.number, last.images) == (1, 16)
    assert (last.loss, last.gradient_norm) == pytest.approx((loss, norm), rel=1e-5)
    gradients = twins.clip_by_global_norm(gradients, options.get("clip_norm", 1e9))
    moves = [old - new for old, new in zip(before, exact(network), strict=True)]
    assert relative_error(dict(enumerate(moves)), dict(enumerate(gradients))) <= 1e-6
    for move, gradient in zip(moves, gradients, strict=True):
        np.testing.assert_allclose(move, gradient, rtol=1e-5, atol=1e-6)


def test_a_search_sees_the_sum_of_both_means(eager, monkeypatch):
    """In a basis of all components the accepted trial's loss is that of the weights it leaves."""
    network, trials = linear(), []
    sgd = nn.SGD(network.trainable_params(), 0.1)
    basis = basis_of(sgd.parameters, 8)
    step = SubspaceStep(TwoMeans(network), sgd, basis, micro_steps=2, alpha=1.0, gamma=0.0)
    loss_at = step.update._loss
    monkeypatch.setattr(step.update, "_loss", lambda *at: trials.append(loss_at(*at)) or trials[-1])
    for batch in split(rows(8), (3, 5)):
        step(*batch)
    assert step.last_update.number == 1
    assert two_means(*exact(network), *rows(8))[0] == pytest.approx(min(trials), rel=1e-5)


class OneWeight(TwoMeans):
    """The sum of both means, with the weight of the first."""

    pairs = 1

    def construct(self, inputs, targets):
        (loss, weight), (more, _) = super().construct(inputs, targets)
        return loss + more, weight


def test_two_means_with_one_weight_are_off(eager):
    """The second is averaged by the rows of the first, not by those that it is a mean over."""
    network, arrays, sizes = linear(), rows(16), (6, 10)
    before, sgd = exact(network), nn.SGD(network.trainable_params(), 1.0)
    step = AccumulatedStep(OneWeight(network), sgd, 2)
    parts = split(arrays, sizes)
    for batch in parts:
        step(*batch)
    moves = [old - new for old, new in zip(before, exact(network), strict=True)]
    each = [two_means(*before, *(part.asnumpy() for part in batch))[1] for batch in parts]
    by_rows = dict(enumerate(twins.weighted_mean(each, sizes)))
    assert relative_error(dict(enumerate(moves)), by_rows) <= 1e-6
    assert relative_error(dict(enumerate(two_means(*before, *arrays)[1])), by_rows) > 0.01


def test_each_of_adasums_workers_has_both_means_over_its_own_rows():
    """Two workers, two micro-batches each: Adasum of their moves, each by the closed form."""
    network, parts = linear(), [rows(8), rows(6, seed=1)]
    before = exact(network)
    sgd = nn.SGD(network.trainable_params(), 0.1)
    step = AdasumStep(TwoMeans(network), sgd, workers=2, micro_steps=2)
    for arrays, sizes in zip(parts, ((3, 5), (5, 1)), strict=True):
        for batch in split(arrays, sizes):
            step(*batch)
    losses, slopes = zip(*(two_means(*before, *arrays) for arrays in parts), strict=True)
    assert step.last_update.number == 1
    assert step.last_update.loss == pytest.approx(np.mean(losses), rel=1e-5)
    for after, old, *own in zip(exact(network), before, *slopes, strict=True):
        moved = twins.adasum_tree([-0.1 * slope for slope in own]).reshape(old.shape)
        np.testing.assert_allclose(after - old, moved, rtol=1e-4, atol=1e-6)


def convolution():
    """A convolution with BatchNorm, and a batch for it."""
    random = np.random.default_rng(1)
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dense(144, 5)
    network = nn.SequentialCell(*layers)
    for parameter in network.trainable_params():
        set_state(parameter, random.normal(0.5, 0.3, parameter.shape).astype(np.float32))
    images = random.normal(3, 1, (8, 3, 6, 6)).astype(np.float32)
    return network, tensors(images, random.integers(0, 5, 8).astype(np.int32))


def by_mindspore(level):
    """Return loss and weights after the same update by MindSpore's own amp."""
    network, (images, labels) = convolution()
    half, loss_fn = amp.auto_mixed_precision(network, level).set_train(), nn.CrossEntropyLoss()
    weights = network.trainable_params()

    def loss_at(images):
        return loss_fn(half(images), labels)

    loss, gradients = ms.value_and_grad(loss_at, None, weights)(images)
    moved = [w.asnumpy() - g.asnumpy() for w, g in zip(weights, gradients, strict=True)]
    return float(loss), moved


def test_batch_norm_in_float16_is_mindspores():
    """In O3 it rounds its outputs to float16, in O2 not: the losses differ, but not by more."""
    losses = {}
    for level in ("O0", "O2", "O3"):
        network, batch = convolution()
        norm, sgd = network[1], nn.SGD(network.trainable_params(), 1.0)  # O2 wraps the layer
        step = PlainStep(LossNet(network, nn.CrossEntropyLoss()), sgd, precision=level)
        losses[level] = float(step(*batch))
        assert norm.moving_mean.dtype == ms.float32 and norm.moving_mean.asnumpy().any()
        if level != "O0":
            loss, moved = by_mindspore(level)
            assert losses[level] == loss
            for weight, expected in zip(sgd.parameters, moved, strict=True):
                np.testing.assert_allclose(weight.asnumpy(), expected, rtol=1e-6, atol=1e-7)
    assert losses["O2"] != losses["O3"] == pytest.approx(losses["O0"], rel=2e-2)


@pytest.mark.parametrize(
    ("indices", "count", "sizes"),
    [
        ((85, 160), 161, [86, 75]),  # ResNet-50: the tutorials' indices, two messages
        ((75, 155), 161, [76, 80, 5]),
        ((0,), 1, [1]),
        ((0,), 3, [1, 2]),
        ((0, 1, 2), 3, [1, 1, 1]),
    ],
)
def test_an_index_is_that_of_a_messages_last_gradient(indices, count, sizes):
    ends = message_ends(indices, count)
    assert np.diff((0, *ends)).tolist() == sizes
    fused = GradientOptions(all_reduce_fusion_config=indices)
    assert fused.settings() == GradientOptions().settings()  # no matter for a resume


@pytest.fixture(scope="module")
def stage(runtime):
    network = nn.SequentialCell(nn.Dense(4, 3), nn.Dense(3, 2), nn.Dense(2, 1))
    return contribution(network=network).stage


@settings(max_examples=25)
@given(indices=st.none() | st.sets(st.integers(0, 5), min_size=1).map(sorted))
def test_messages_hold_the_gradients_in_their_order(stage, indices):
    """Loss, rows and extras are messages of their own; sums return to each place and shape."""
    values = (Tensor(1.0), Tensor(8.0))
    gradients = tuple(Tensor(p.asnumpy()) for p in stage.loss_net.trainable_params())
    extras = (Tensor(np.ones(5, np.float32)),)
    stage.all_reduce = None
    assert stage.all_over_ranks(values, gradients, extras) == values + gradients + extras
    sent = []

    def all_reduce(value):
        sent.append(value.asnumpy())
        return value * 2

    stage.all_reduce, stage.message_ends = all_reduce, message_ends(indices, 6)
    sums = stage.all_over_ranks(values, gradients, extras)
    messages = [gradient.asnumpy() for gradient in gradients]
    if indices is not None:
        starts, ends = (0, *stage.message_ends), stage.message_ends
        parts = [messages[a:b] for a, b in zip(starts, ends, strict=False)]
        messages = [np.concatenate([array.ravel() for array in part]) for part in parts]
    expected = [1.0, 8.0, *messages, np.ones(5)]
    assert [np.shape(array) for array in sent] == [np.shape(array) for array in expected]
    for message, array in zip(sent, expected, strict=True):
        np.testing.assert_array_equal(message, array)
    for total, value in zip(sums, values + gradients + extras, strict=True):
        assert total.shape == value.shape
        np.testing.assert_array_equal(total.asnumpy(), 2 * value.asnumpy())


def rows_of_losses(outputs, targets):
    return ops.mean(ops.square(outputs - targets), 1), 1


def called(function):
    """Compile the contribution of a loss net of one's own."""
    return contribution(lambda n: Own(n, function))(*tensors(*rows(2)))


def fused(indices):
    return contribution(all_reduce_fusion_config=indices)


def in_half(network, precision):
    """Build a stage in float16 over a network, and another one over the same network."""
    for level in ("O2", precision):
        contribution(network=network, precision=level)


ALONE = r"a loss alone, .*: return \(loss, weight\), or \(loss, 1\) .* per='rows'"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: contribution(reduction="means"), "reduction: .*got 'means'. Did you mean 'mean'"),
        (lambda: contribution(loss_scale=0), "loss_scale: expected a finite number >= 1e-37 and <"),
        (lambda: contribution(clip_norm=1e300), "clip_norm: expected a finite number >= 1e-37 and"),
        # On one rank too.
        (lambda: fused([0, 2]), r"all_reduce_.*: expected indices below 2, .* got \[0, 2\]"),
        (lambda: fused([]), "all_reduce_fusion_config: expected integers >= 0, "),
        (lambda: fused([2, 2]), "all_reduce_fusion_config: expected integers >= 0, "),
        (lambda: fused([1.5]), "all_reduce_fusion_config: expected integers >= 0, "),
        (lambda: DynamicLossScale(initial=2.0**121), "initial: expected"),
        (lambda: in_half(linear(), "O0"), "precision: expected 'O2', which an .*, got 'O0'"),
        (lambda: in_half(linear(), "O3"), "precision: expected 'O2', which an .*, got 'O3'"),
        (
            lambda: contribution(lambda n: Product(), precision="O2"),
            "loss_net of precision='O2': expected LossNet.network, loss_fn., or a Cell with self",
        ),
        (
            lambda: contribution(nonfinite="propagate", loss_scale=DynamicLossScale()),
            "nonfinite: expected 'drop_micro' or 'drop_group' beside a DynamicLossScale, got",
        ),
        (lambda: called(squared_error), ALONE),
        (lambda: contribution(lambda n: LossNet(n, Product()))(*tensors(*rows(2))), ALONE),
        (lambda: called(both), "loss_net returns 2 .loss, weight. pairs; expected 1, its attrib"),
        (
            lambda: contribution(TwoMeans, Normalised(nn.BatchNorm1d(4))),
            "pairs of loss_net: expected a network without BatchNorm",
        ),
        (
            lambda: thor(TwoMeans(network := linear()), momentum(network)),
            "pairs of loss_net: expected one .loss, weight. beside factors, got 2",
        ),
        (lambda: called(rows_of_losses), "expected a scalar loss and a scalar weight"),
        (
            lambda: contribution(lambda n: LossNet(n, nn.MSELoss(reduction="none"))),
            "reduction of MSELoss: expected 'mean' or 'sum', got 'none'",
        ),
    ],
)
def test_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()
