"""The gradient stage: one micro-batch's contribution, and the mean of several."""

import mindspore as ms
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mindspore import ParameterTuple, Tensor, nn, ops

from labkit.algorithms.adasum import AdasumStep
from labkit.algorithms.subspace import SubspaceStep
from labkit.errors import InputError
from labkit.labs.compare import largest_differences, relative_error
from labkit.nets.lenet import LeNet5
from labkit.nets.small import NextToken
from labkit.runtime import pynative
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.gradients import GradientOptions, GradientStage
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
    digits,
    linear,
    projected_sgd,
    regression,
    rows,
    split,
    tensors,
    two_means,
)
from tests.support.subspace_cells import basis_of
from tests.support.tolerances import TOLERANCE

pytestmark = pytest.mark.usefixtures("runtime")


def with_offset(outputs, targets, more):
    """The mean squared error plus an offset given with the batch."""
    return ops.mean(ops.square(outputs - targets)) + ops.mean(more), 1


def distance(outputs, targets):
    """The Euclidean distance to the targets, which has no gradient at distance 0."""
    return ops.sqrt(ops.reduce_sum(ops.square(outputs - targets))), 1


def stage_options(options):
    """Return the keywords of a ``GradientStage``: its ``GradientOptions``, and its own."""
    own = {name: options.pop(name) for name in ("weighted",) if name in options}
    return {"options": GradientOptions(**options), **own}


class Contribution(nn.Cell):
    """``GradientStage.contribution`` as a compiled graph."""

    def __init__(self, loss_net, network, **options):
        super().__init__(auto_prefix=False)
        self.parameters = ParameterTuple(network.trainable_params())
        self.stage = GradientStage(loss_net, self.parameters, **stage_options(options))

    def construct(self, *batch):
        return self.stage.contribution(*batch)

    def by_name(self, gradients):
        return {p.name: g.asnumpy() for p, g in zip(self.parameters, gradients, strict=True)}

    def means(self, batches):
        """Return (loss, weight, gradient / weight by name) of each batch."""
        results = []
        for batch in batches:
            loss, weight, gradients, finite, _ = self(*batch)
            assert bool(finite)
            weight = float(weight)
            gradients = {n: g / weight for n, g in self.by_name(gradients).items()}
            results.append((float(loss), weight, gradients))
        return results


def mean_of(results, weights=None):
    """Return the mean of gradients by name, with the stage's weights or with ``weights``."""
    weights = weights or [weight for _, weight, _ in results]
    names = list(results[0][2])
    leaves = twins.weighted_mean([[g[n] for n in names] for _, _, g in results], weights)
    return dict(zip(names, leaves, strict=True))


def test_mean_of_micro_batches_is_the_full_batch_gradient(eager):
    """Weighted by samples it is, whatever the sizes; the plain mean of uneven means is not."""
    network, arrays = LeNet5(), digits(128)
    cell = Contribution(LossNet(network, nn.CrossEntropyLoss()), network)
    full_batch = cell.means([tensors(*arrays)])[0][2]
    for sizes in ([32] * 4, [64, 32, 16, 16]):
        parts = cell.means(split(arrays, sizes))
        assert [weight for _, weight, _ in parts] == sizes
        off = largest_differences(mean_of(parts), full_batch)
        assert len(off) == 8 and max(off.values()) <= 1e-6, off
        assert relative_error(mean_of(parts), full_batch) <= 1e-6
    assert 0.05 < relative_error(mean_of(parts, [1, 1, 1, 1]), full_batch) < 0.5


def test_padded_sequences_need_the_weights_of_their_tokens():
    """Weighted by tokens, the mean is the full batch's; the mean of micro-batch means is not."""
    random = np.random.default_rng(3)
    tokens = random.integers(0, 12, (6, 9)).astype(np.int32)
    labels = random.integers(0, 12, (6, 9)).astype(np.int32)
    for row, length in enumerate([9, 9, 8, 7, 2, 1]):
        labels[row, length:] = -100
    network = NextToken()
    cell = Contribution(TokenLossNet(network), network)
    parts = cell.means(split((tokens, labels), [2] * 3))
    loss, weight, full = cell.means([tensors(tokens, labels)])[0]
    assert [w for _, w, _ in parts] == [18, 15, 3] and weight == 36
    assert max(largest_differences(mean_of(parts), full).values()) <= 1e-6
    assert relative_error(mean_of(parts, [1, 1, 1]), full) > 0.1
    assert loss == pytest.approx(sum(w * value for value, w, _ in parts) / 36, rel=1e-6)
    total, count = twins.token_cross_entropy(network(Tensor(tokens)).asnumpy(), labels)
    assert count == 36 and loss == pytest.approx(total / count, rel=1e-5)


def closed_form(network, inputs, targets):
    """Return a linear network's mean squared error and its gradients by name, in float64."""
    weights, bias = (p.asnumpy().astype(np.float64) for p in (network.weight, network.bias))
    loss, gradients = twins.linear_regression(
        weights, bias, inputs.astype(np.float64), targets.astype(np.float64)
    )
    return loss, dict(zip(["weight", "bias"], gradients, strict=True))


@pytest.mark.parametrize(
    ("options", "weight", "factor"),
    [
        ({}, 10, 10),
        ({"reduction": "sum"}, 1, 1),
        ({"weighted": False}, 10, 1),
        ({"loss_scale": 1024}, 10, 10),
        ({"loss_scale": 3.0, "weighted": False}, 10, 1),
        ({"loss_scale": DynamicLossScale(2**10)}, 10, 10),
    ],
    ids=str,
)
def test_contribution_is_the_weight_times_the_closed_form_gradient(options, weight, factor):
    network, loss_net = regression()
    inputs, targets = rows(5)
    cell = Contribution(loss_net, network, **options)
    loss, actual, gradients, finite, _ = cell(*tensors(inputs, targets))
    expected, slopes = closed_form(network, inputs, targets)
    assert float(loss) == pytest.approx(expected, rel=1e-6)
    assert float(actual) == weight and bool(finite)
    for name, gradient in cell.by_name(gradients).items():
        assert gradient.dtype == np.float32
        expected = factor * slopes[name]
        np.testing.assert_allclose(gradient, expected, **TOLERANCE["one float32 gradient"])


def test_a_power_of_two_loss_scale_is_unscaled_exactly_once():
    """Scaling float32 by 2**n is exact, so the gradients are those without a scale, bit for bit."""
    network, loss_net = regression()
    without, scaled = (
        Contribution(loss_net, network, loss_scale=scale)(*tensors(*rows(4)))
        for scale in (1.0, 2.0**12)
    )
    assert float(without[0]) == float(scaled[0])
    for actual, expected in zip(scaled[2], without[2], strict=True):
        np.testing.assert_array_equal(actual.asnumpy(), expected.asnumpy())


class TestFloat16:
    """``precision="O2"``."""

    def test_the_network_computes_in_float16_and_its_loss_does_not(self):
        network, loss_net = regression()
        inputs, targets = rows(4)
        half = inputs.astype(np.float16) @ network.weight.asnumpy().astype(np.float16).T
        half = half + network.bias.asnumpy().astype(np.float16)
        expected, _ = closed_form(network, inputs, targets)
        loss, _, gradients, _, _ = Contribution(loss_net, network, precision="O2")(
            *tensors(inputs, targets)
        )
        outputs = loss_net.network(Tensor(inputs)).asnumpy()
        assert (outputs == outputs.astype(np.float16)).all()
        np.testing.assert_allclose(outputs, half, **TOLERANCE["float16 network"])
        assert 1e-6 < abs(float(loss) - expected) < 1e-2
        assert all(gradient.dtype == ms.float32 for gradient in gradients)

    def test_the_gradient_does_not_depend_on_the_loss_scale(self):
        network, inputs = linear(), tensors(*rows(8))
        actual = [
            Contribution(LossNet(network, nn.MSELoss()), network, precision="O2", loss_scale=scale)(
                *inputs
            )[2]
            for scale in (1.0, 1024.0, DynamicLossScale(64.0))
        ]
        for other in actual[1:]:
            for gradient, expected in zip(other, actual[0], strict=True):
                np.testing.assert_allclose(
                    gradient.asnumpy(), expected.asnumpy(), **TOLERANCE["float16 network"]
                )

    def test_a_small_gradient_survives_with_a_loss_scale_only(self):
        """1e-9 underflows float16, whose smallest number is 6e-8; times 2**16 it does not."""
        network, (inputs, targets) = linear(), rows(8)
        off = (targets * 1e-9).astype(np.float32)
        norms = {}
        for scale in (1.0, 2.0**16):
            cell = Contribution(
                LossNet(network, Product(), per="rows"), network, precision="O2", loss_scale=scale
            )
            gradients = cell(*tensors(inputs, off))[2]
            norms[scale] = twins.global_norm([g.asnumpy() / 8 for g in gradients])
        exact = twins.global_norm([off.T @ inputs / off.size, off.sum(axis=0) / off.size])
        assert norms[1.0] < 0.5 * exact
        assert norms[2.0**16] == pytest.approx(exact, rel=0.02)

    def test_the_weight_does_not_overflow_float16(self):
        """The gradient of one sample's loss is 1e4; times 64 samples it is beyond float16."""
        network = Scalar()
        cell = Contribution(LossNet(network, nn.L1Loss()), network, precision="O2")
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
        options = {"weighted": True} | options
        # The gradient is the input.
        cell = Contribution(LossNet(network, Product(), per="rows"), network, **options)
        inputs = np.float32([[size, 2.0]])
        *_, finite, squares = cell(*tensors(inputs, np.ones((1, 1), np.float32)))
        assert bool(finite) is expected
        if expected:
            exact = float((inputs.astype(np.float64) ** 2).sum())
            np.testing.assert_allclose(float(squares), exact, rtol=1e-6)

    @pytest.mark.parametrize("offset", [np.nan, np.inf, -np.inf])
    def test_a_loss_alone_can_be_it(self, offset):
        network = linear()
        cell = Contribution(Own(network, with_offset), network)
        clean = cell(*tensors(*rows(2), np.float32([0.0])))
        loss, _, gradients, finite, _ = cell(*tensors(*rows(2), np.float32([offset])))
        assert bool(clean[3]) and not bool(finite)
        assert not np.isfinite(float(loss))
        assert all(np.isfinite(g.asnumpy()).all() for g in gradients)

    def test_a_gradient_alone_can_be_it(self):
        network = linear()
        cell = Contribution(Own(network, distance), network)
        inputs, _ = rows(2)
        targets = network(Tensor(inputs)).asnumpy()
        loss, _, gradients, finite, _ = cell(*tensors(inputs, targets))
        assert float(loss) == 0 and not bool(finite)
        assert not all(np.isfinite(g.asnumpy()).all() for g in gradients)


@pytest.fixture(scope="module")
def dynamic_scale():
    network = linear()
    scale = DynamicLossScale(initial=4, factor=2, interval=3)
    return PlainStep(
        Own(network, with_offset), nn.SGD(network.trainable_params(), 0.0), loss_scale=scale
    )


@settings(max_examples=25)
@given(st.lists(st.booleans(), min_size=1, max_size=15))
@example([False] * 4 + [True] * 7)
def test_dynamic_loss_scale_follows_the_rule(dynamic_scale, finite):
    stage = dynamic_scale.gradient
    set_state(stage.loss_scale, 4.0)
    set_state(stage.finite_run, 0)
    set_state(dynamic_scale.dropped, 0)
    set_state(dynamic_scale.updates, 0)
    scales = []
    for is_finite in finite:
        dynamic_scale(*tensors(*rows(2), np.float32([0.0 if is_finite else np.nan])))
        scales.append(float(stage.loss_scale.asnumpy()))
    assert scales == twins.dynamic_loss_scale(finite, initial=4, factor=2, interval=3)
    assert int(dynamic_scale.dropped.asnumpy()) == finite.count(False)
    assert int(dynamic_scale.updates.asnumpy()) == finite.count(True)


def test_an_overflow_in_float16_halves_the_scale_until_the_gradient_fits():
    """From 2**24 the step finds it by itself: it drops the first micro-batches, then none."""
    network, loss_net = regression()
    step = PlainStep(
        loss_net,
        nn.SGD(network.trainable_params(), 0.01),
        precision="O2",
        loss_scale=DynamicLossScale(2.0**24),
    )
    batch = tensors(*rows(8))
    for _ in range(20):
        step(*batch)
    dropped = int(step.dropped.asnumpy())
    assert 5 <= dropped <= 15 and step.last_update.number == 20 - dropped
    assert float(step.gradient.loss_scale.asnumpy()) == 2.0 ** (24 - dropped)


def test_a_dynamic_scale_never_grows_to_infinity():
    """Gradients of zero never overflow, and an infinite scale times zero would never be finite."""
    network = linear()
    inputs, _ = rows(2)
    step = PlainStep(
        LossNet(network, Product(), per="rows"),
        nn.SGD(network.trainable_params(), 0.1),
        loss_scale=DynamicLossScale(2.0**118, interval=1),
    )
    for _ in range(12):
        step(*tensors(inputs, np.zeros((2, OUTPUTS), np.float32)))
    assert float(step.gradient.loss_scale.asnumpy()) == 2.0**120
    assert int(step.dropped.asnumpy()) == 0 and step.last_update.number == 12


@pytest.mark.parametrize("gradient", ["zero", "large"])
def test_norm_of_five_million_entries(gradient):
    """A sequential float32 sum would be off by more than 0.1 %; 0 is not divided by its norm."""
    large = np.random.default_rng(0).normal(1.0, 0.1, 5_000_000).astype(np.float32)
    total = large if gradient == "large" else 0 * large[:3]
    network, loss_net = regression()
    stage = GradientStage(loss_net, network.trainable_params(), GradientOptions(clip_norm=1.0))
    with pynative():
        (clipped,), norm = stage.finish(tensors(total), Tensor(2.0, ms.float32))
    exact = twins.global_norm([total]) / 2
    assert float(norm) == pytest.approx(exact, rel=1e-5)
    np.testing.assert_allclose(clipped.asnumpy(), total / 2 / max(exact, 1), rtol=1e-5)


class WithExtras(nn.Cell):
    """Both of the stage's contributions, compiled."""

    def __init__(self, **options):
        super().__init__(auto_prefix=False)
        self.network = Counted()
        self.parameters = ParameterTuple(self.network.layer.trainable_params())
        loss_net = LossNet(self.network, nn.MSELoss())
        extras = self.network.extras
        options = stage_options(options)
        self.stage = GradientStage(loss_net, self.parameters, extras=extras, **options)
        if self.stage.scaled:
            self.network.unscale(self.stage.loss_scale)

    def construct(self, *batch):
        return self.stage.contribution(*batch), self.stage.contribution_with_extras(*batch)


def row_size(network, inputs, targets):
    """Return N sum over rows of |dL/dy|^2: the mean square of the rows' own slopes, by hand."""
    weights = [p.asnumpy().astype(np.float64) for p in (network.weight, network.bias)]
    error = inputs @ weights[0].T + weights[1] - targets
    return len(inputs) * np.sum((2 * error / error.size) ** 2)


class TestExtras:
    @pytest.mark.parametrize(
        ("options", "weight"),
        [
            ({}, 12),
            ({"weighted": False}, 1),
            ({"reduction": "sum"}, 1),
            ({"nonfinite": "propagate"}, 12),
            ({"loss_scale": 1024.0}, 12),
            # Scales whose square overflows float32.
            ({"loss_scale": 2.0**65}, 12),
            ({"loss_scale": 2.0**120}, 12),
            ({"loss_scale": 1024.0, "weighted": False}, 1),
            ({"loss_scale": DynamicLossScale(2.0**12)}, 12),
        ],
        ids=repr,
    )
    def test_weighted_and_unscaled(self, options, weight):
        """The weight multiplies both, the scale neither: the tap has unscaled the derivative."""
        cell, (inputs, targets) = WithExtras(**options), rows(6)
        plain, extended = cell(*tensors(inputs, targets))
        for actual, expected in zip(extended[:2], plain[:2], strict=True):
            assert float(actual) == float(expected)
        for actual, expected in zip(extended[2], plain[2], strict=False):
            np.testing.assert_allclose(actual.asnumpy(), expected.asnumpy(), rtol=1e-6)
        assert len(extended[2]) == len(plain[2]) + 2 and bool(extended[3])
        counted, size = (float(extra.asnumpy()[0]) for extra in extended[2][-2:])
        assert counted == weight
        expected = weight * row_size(cell.network.layer, inputs, targets)
        assert size == pytest.approx(expected, rel=1e-5)

    def test_mean_by_rows(self, eager):
        """The mean over uneven micro-batches is that of the whole batch."""
        cell, arrays = WithExtras(), rows(9)
        parts = [cell(*batch)[1] for batch in split(arrays, [6, 2, 1])]
        total = [sum(ones) for ones in zip(*(part[2][-2:] for part in parts), strict=True)]
        weight = sum(float(part[1]) for part in parts)
        mean = cell.stage.finish_extras(tuple(total), Tensor(weight, ms.float32))
        cuts = (slice(0, 6), slice(6, 8), slice(8, 9))
        sizes = [row_size(cell.network.layer, *(a[cut] for a in arrays)) for cut in cuts]
        expected = np.dot(sizes, [6, 2, 1]) / 9
        assert float(mean[0][0]) == 1
        assert float(mean[1][0]) == pytest.approx(expected, rel=1e-5)


def build(loss_net=None, **options):
    network = linear()
    loss_net = loss_net(network) if loss_net else LossNet(network, nn.MSELoss())
    return Contribution(loss_net, network, **options)


def rows_of_losses(outputs, targets):
    return ops.mean(ops.square(outputs - targets), 1), 1


def bare(outputs, targets):
    return ops.mean(ops.square(outputs - targets))


def several(outputs, targets):
    errors = ops.square(outputs - targets)
    return (ops.mean(errors), 1), (ops.mean(ops.sqrt(errors)), 2)


def in_half(network, precision):
    """Build a stage in float16 over a network, and another one over the same network."""
    for level in ("O2", precision):
        Contribution(LossNet(network, nn.MSELoss()), network, precision=level)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: build(reduction="means"), "reduction: .*got 'means'. Did you mean 'mean'"),
        (lambda: build(loss_scale=0), "loss_scale: expected a finite number >= 1e-37 and <= 1e"),
        (lambda: build(clip_norm=1e300), "clip_norm: expected a finite number >= 1e-37 and <= 1e"),
        (lambda: DynamicLossScale(initial=2.0**121), "initial: expected"),
        (lambda: in_half(linear(), "O0"), "precision: expected 'O2', which an .*, got 'O0'"),
        (lambda: in_half(linear(), "O3"), "precision: expected 'O2', which an .*, got 'O3'"),
        (
            lambda: Contribution(Product(), linear(), precision="O2"),
            "loss_net of precision='O2': expected LossNet.network, loss_fn., or a Cell with self",
        ),
        (
            lambda: build(nonfinite="propagate", loss_scale=DynamicLossScale()),
            "nonfinite: expected 'drop_micro' or 'drop_group' beside a DynamicLossScale, got",
        ),
        (
            lambda: build(lambda n: Own(n, bare))(*tensors(*rows(2))),
            r"a loss alone, .*: return \(loss, weight\), or \(loss, 1\) .* per='rows'",
        ),
        (
            lambda: build(lambda n: LossNet(n, Product()))(*tensors(*rows(2))),
            "a loss alone, .* per='rows'",
        ),
        (
            lambda: build(lambda n: Own(n, several))(*tensors(*rows(2))),
            r"loss_net returns 2 .loss, weight. pairs; expected 1, its attribute",
        ),
        (
            lambda: build(lambda n: TwoMeans(Normalised(nn.BatchNorm1d(4)))),
            "pairs of loss_net: expected a network without BatchNorm",
        ),
        (
            lambda: build(lambda n: Own(n, rows_of_losses))(*tensors(*rows(2))),
            "expected a scalar loss and a scalar weight",
        ),
        (
            lambda: build(lambda n: LossNet(n, nn.MSELoss(reduction="none"))),
            "reduction of MSELoss: expected 'mean' or 'sum', got 'none'",
        ),
    ],
)
def test_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()


@pytest.mark.parametrize("function", [bare, several])
def test_a_plain_step_adds_several_losses_and_takes_a_bare_one(function):
    """Its first gradient is that of the sum of the losses, by central differences in float64."""
    network, arrays = linear(), rows(4)
    before = network.weight.asnumpy().astype(np.float64)
    step = PlainStep(Own(network, function), nn.SGD(network.trainable_params(), 1.0))
    loss = float(step(*tensors(*arrays)))
    bias = linear().bias.asnumpy().astype(np.float64)

    def by_hand(weights):
        errors = np.abs(arrays[0] @ weights.T + bias - arrays[1])
        return np.mean(errors**2) + (np.mean(errors) if function is several else 0)

    shift = np.zeros_like(before)
    shift[1, 2] = 1e-5
    slope = (by_hand(before + shift) - by_hand(before - shift)) / 2e-5
    assert loss == pytest.approx(by_hand(before), rel=1e-6)
    moved = before - network.weight.asnumpy()
    assert moved[1, 2] == pytest.approx(slope, rel=1e-4)


@pytest.mark.parametrize(
    ("kind", "sizes", "options"),
    [
        (PlainStep, (8,), {"clip_norm": 0.5}),
        (AccumulatedStep, (1, 6, 1), {"loss_scale": 64.0, "clip_norm": 0.5}),
        (AccumulatedStep, (3, 5), {"nonfinite": "drop_group"}),
        (projected_sgd, (3, 5), {}),  # all components, as plain descent
    ],
)
def test_each_of_two_means_is_over_its_own_rows(kind, sizes, options):
    """Whatever the micro-batches: the closed form over all rows at once, in float64."""
    network, arrays = linear(), rows(8)
    weights = [p.asnumpy().astype(np.float64) for p in (network.weight, network.bias)]
    micro_steps = {} if kind is PlainStep else {"micro_steps": len(sizes)}
    sgd = nn.SGD(network.trainable_params(), 1.0)
    step = kind(TwoMeans(network), sgd, **micro_steps, **options)
    for batch in split(arrays, sizes):
        expected = two_means(*weights, *(part.asnumpy() for part in batch))[0]
        assert float(step(*batch)) == pytest.approx(expected, rel=1e-5)
    loss, gradients = two_means(*weights, *arrays)
    norm = twins.global_norm(gradients)
    gradients = twins.clip_by_global_norm(gradients, options.get("clip_norm", 1e9))
    last = step.last_update
    assert (last.number, last.images) == (1, 8)
    assert (last.loss, last.gradient_norm) == pytest.approx((loss, norm), rel=1e-5)
    moved = [w - p.asnumpy() for w, p in zip(weights, (network.weight, network.bias), strict=True)]
    for move, gradient in zip(moved, gradients, strict=True):
        np.testing.assert_allclose(move, gradient, rtol=1e-4, atol=1e-5)


def test_a_search_sees_the_sum_of_both_means(monkeypatch):
    """In a basis of all components the accepted trial's loss is that of the weights it leaves."""
    network, trials = linear(), []
    sgd = nn.SGD(network.trainable_params(), 0.1)
    basis = basis_of(sgd.parameters, 8)
    step = SubspaceStep(TwoMeans(network), sgd, basis, micro_steps=2, alpha=1.0, gamma=0.0)
    loss_at = step.update._loss
    monkeypatch.setattr(step.update, "_loss", lambda *at: trials.append(loss_at(*at)) or trials[-1])
    for batch in split(rows(8), (3, 5)):
        step(*batch)
    exact = (p.asnumpy().astype(np.float64) for p in (network.weight, network.bias))
    assert step.last_update.number == 1
    assert two_means(*exact, *rows(8))[0] == pytest.approx(min(trials), rel=1e-5)


def test_each_of_adasums_workers_has_both_means_over_its_own_rows():
    """Two workers, two micro-batches each: Adasum of their moves, each by the closed form."""
    network, parts = linear(), [rows(8), rows(6, seed=1)]
    weights = [p.asnumpy().astype(np.float64) for p in (network.weight, network.bias)]
    sgd = nn.SGD(network.trainable_params(), 0.1)
    step = AdasumStep(TwoMeans(network), sgd, workers=2, micro_steps=2)
    for arrays, sizes in zip(parts, ((3, 5), (5, 1)), strict=True):
        for batch in split(arrays, sizes):
            step(*batch)
    results = [two_means(*weights, *arrays) for arrays in parts]
    losses = [loss for loss, _ in results]
    assert step.last_update.number == 1
    assert step.last_update.loss == pytest.approx(np.mean(losses), rel=1e-5)
    for parameter, weight, *slopes in zip(
        (network.weight, network.bias), weights, *(g for _, g in results), strict=True
    ):
        moved = twins.adasum_tree([-0.1 * slope for slope in slopes]).reshape(weight.shape)
        np.testing.assert_allclose(parameter.asnumpy() - weight, moved, rtol=1e-4, atol=1e-6)
