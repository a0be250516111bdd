"""Accumulated steps: k micro-batches make the update of one batch, and change nothing before."""

import warnings

import mindspore as ms
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore import nn

from labkit import reference
from labkit.labs.compare import largest_differences, parameter_values
from labkit.nets.lenet import LeNet5
from labkit.nets.small import NormNet
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.losses import LossNet
from labkit.steps.state import set_state
from labkit.steps.step import PlainStep
from tests import twins
from tests.support.step_cells import (
    Product,
    Scalar,
    assert_bit_equal,
    assert_close,
    digits,
    exact,
    linear,
    momentum,
    regression,
    rows,
    snapshot,
    split,
    tensors,
)
from tests.support.tolerances import TOLERANCE
from tests.support.torch_lenet import torch_lenet

pytestmark = pytest.mark.usefixtures("runtime")

UPDATES, MICRO_STEPS = 50, 4


def _lenet(micro_steps, reduction):
    """LeNet with its own weights, Normal(0.02): with larger ones rounding changes max-pooling."""
    ms.set_seed(1)
    network = LeNet5()
    loss_net, optimizer = LossNet(network, nn.CrossEntropyLoss()), momentum(network, 0.01)
    if micro_steps == 1:
        return network, PlainStep(loss_net, optimizer)
    return network, AccumulatedStep(loss_net, optimizer, micro_steps, reduction=reduction)


@pytest.fixture(scope="module")
def stream():
    return digits(UPDATES * 64)


@pytest.fixture(scope="module")
def initial(once):
    return snapshot(once(_lenet, 1, "mean")[0])


@pytest.fixture(scope="module")
def train(once, stream):
    """A function that returns parameters and losses of 50 updates from 64 images each."""

    def train(micro_steps, learning_rate=0.01, reduction="mean"):
        network, step = once(_lenet, micro_steps, reduction)
        set_state(step.optimizer.learning_rate, learning_rate)
        losses = []
        for number, batch in enumerate(split(stream, [64 // micro_steps] * micro_steps * UPDATES)):
            loss = float(step(*batch))
            if number % micro_steps == micro_steps - 1:
                losses.append(step.last_update.loss if micro_steps > 1 else loss)
        assert step.last_update.number == UPDATES
        return parameter_values(network), losses

    return train


@pytest.fixture(scope="module")
def by_batch(train):
    return train(1)


def of_the_move(values, expected, initial):
    """Return |values - expected| / |expected - initial| of each parameter, by name."""
    norm = np.linalg.norm
    return {
        name: norm(values[name] - expected[name]) / norm(expected[name] - value)
        for name, value in zip(expected, initial.values(), strict=True)
    }


class TestTrainingOfLeNet:
    """Four micro-batches of 16 against batches of 64: 50 updates, Momentum 0.01/0.9."""

    def test_it_is_that_of_the_full_batch(self, train, by_batch, initial):
        """A learning rate wrong by a thousandth is seen in every parameter."""
        parameters, losses = train(MICRO_STEPS)
        off = of_the_move(parameters, by_batch[0], initial)
        assert len(off) == 8 and max(off.values()) <= 1e-4, off
        np.testing.assert_allclose(losses, by_batch[1], rtol=1e-4)
        assert by_batch[1][-1] < by_batch[1][0] - 5e-3
        off = of_the_move(train(MICRO_STEPS, 0.01 * 1.001)[0], by_batch[0], initial)
        assert len(off) == 8 and min(off.values()) > 2e-4, off

    def test_the_sum_is_four_times_the_learning_rate(self, initial, train, by_batch):
        """The tutorial's sum at a quarter of the rate is the mean; at the same rate it is not."""
        quarter, _ = train(MICRO_STEPS, 0.01 / 4, "sum")
        assert max(of_the_move(quarter, by_batch[0], initial).values()) <= 1e-4
        same, _ = train(MICRO_STEPS, 0.01, "sum")
        assert min(of_the_move(same, by_batch[0], initial).values()) > 0.1

    def test_losses_are_those_of_pytorch(self, initial, train, stream):
        """Same weights, data and order; PyTorch accumulates by ``(loss / 4).backward()``."""
        torch = pytest.importorskip("torch")
        network = torch_lenet(torch, initial)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
        images, labels = (torch.from_numpy(part) for part in stream)
        losses = []
        for batch in torch.arange(len(images)).split(64):
            optimizer.zero_grad()
            parts = []
            for micro in batch.split(64 // MICRO_STEPS):
                outputs = network(images[micro])
                loss = torch.nn.functional.cross_entropy(outputs, labels[micro].long())
                (loss / MICRO_STEPS).backward()
                parts.append(loss.item())
            optimizer.step()
            losses.append(np.mean(parts))
        assert len(losses) == UPDATES
        parameters, ours = train(MICRO_STEPS)
        np.testing.assert_allclose(ours, losses, rtol=1e-4)
        expected = {name: p.detach().numpy() for name, p in network.named_parameters()}
        assert_close(parameters, expected, **TOLERANCE["against PyTorch, 50 updates"])


class Twin:
    """The NumPy twin of a step over a linear network with Momentum 0.9."""

    def __init__(self, network, learning_rate, loss_at=twins.linear_regression, **options):
        self.weights = exact(network)
        self.velocities = [np.zeros_like(w) for w in self.weights]
        self.rate, self.loss_at = learning_rate, loss_at
        self.reduction = options.get("reduction", "mean")
        self.group = twins.Accumulation(**options)

    def __call__(self, inputs, targets):
        with np.errstate(invalid="ignore"):
            loss, gradients = self.loss_at(*self.weights, inputs, targets)
        weight = twins.weight(len(inputs), reduction=self.reduction)
        finite = bool(np.isfinite(loss))
        micro_batch = twins.MicroBatch(loss, weight, gradients, len(inputs), finite)
        self.apply(self.group.micro_batch(micro_batch))
        return loss

    def end_epoch(self):
        self.apply(self.group.end_epoch())

    def apply(self, update):
        if update:
            self.weights, self.velocities = reference.momentum_update(
                self.weights, self.velocities, update.gradients, self.rate
            )

    def assert_same(self, step, network):
        last, updates = step.last_update, self.group.updates
        tolerance = TOLERANCE["float32, many updates"]
        for weight, expected in zip((network.weight, network.bias), self.weights, strict=True):
            np.testing.assert_allclose(weight.asnumpy(), expected, **tolerance)
        assert last.number == int(step.updates.asnumpy()) == len(updates)
        assert int(step.dropped.asnumpy()) == self.group.dropped
        assert int(step.optimizer.global_step.asnumpy()[0]) == len(updates)
        if isinstance(step, AccumulatedStep):
            assert int(step.micro_step.asnumpy()) == self.group.micro_step
            assert int(step.group_size.asnumpy()) == self.group.group_size
        if updates:
            np.testing.assert_allclose(last.loss, updates[-1].loss, **tolerance)
            np.testing.assert_allclose(last.gradient_norm, updates[-1].norm, **tolerance)
            assert last.images == updates[-1].images


def test_fifty_updates_of_a_smooth_model_are_those_of_float64():
    """Softmax regression on uneven micro-batches learns, and equals NumPy float64 leaf by leaf."""
    network = linear()
    step = AccumulatedStep(LossNet(network, nn.CrossEntropyLoss()), momentum(network, 0.1), 3)
    initial, twin = exact(network), Twin(network, 0.1, twins.softmax_regression, micro_steps=3)
    inputs, targets = rows(50 * 12)
    labels = (targets @ [1, -1] + inputs @ [3, 1, 0] > 0).astype(np.int32)
    for batch in split((inputs, labels), [4, 6, 2] * 50):
        step(*batch)
        twin(*(part.asnumpy() for part in batch))
        if int(step.micro_step.asnumpy()) == 0:
            assert step.last_update.loss == pytest.approx(twin.group.updates[-1].loss, rel=1e-4)
    updates = twin.group.updates
    assert step.last_update.number == 50 and updates[-1].loss < 0.7 * updates[0].loss
    ends, start, expected = (dict(enumerate(v)) for v in (exact(network), initial, twin.weights))
    assert max(largest_differences(ends, expected).values()) <= 1e-5
    assert min(largest_differences(start, expected).values()) > 0.1


def _step(is_plain, **options):
    network, loss_net = regression()
    kind = PlainStep if is_plain else AccumulatedStep
    return network, kind(loss_net, momentum(network, 0.02), **options)


END = "end of epoch"
FAULTS = {"finite": 0.0, "nan": np.nan, "inf": np.inf}


def follow(once, events, micro_steps, tail="flush", nonfinite="drop_micro", reduction="mean"):
    """Give step and twin the same events; compare them after every call, and return the updates.

    Parameters change only at the end of a group; in between they keep their bits.
    """
    options = {"nonfinite": nonfinite, "reduction": reduction}
    if reduction == "sum" and nonfinite != "propagate":
        options["clip_norm"] = 1.5
    scale = {} if reduction == "mean" else {"loss_scale": 128.0}
    network, step = once(_step, micro_steps is None, **options, **scale)
    twin = Twin(network, 0.02, micro_steps=micro_steps or 1, tail=tail, **options)
    if micro_steps is not None:  # as the constructor sets these
        step.tail, step.micro_steps = tail, micro_steps
        set_state(step.group_size, micro_steps(0) if callable(micro_steps) else micro_steps)
    for call, event in enumerate(events):
        before, updates = parameter_values(network), len(twin.group.updates)
        if event == END:
            step.end_epoch()
            twin.end_epoch()
        else:
            size, fault = event
            inputs, targets = rows(size, seed=call)
            if fault != "finite":
                # Infinity turns other entries into NaN in float32 than in float64.
                value = np.nan if nonfinite == "propagate" else FAULTS[fault]
                targets = np.full_like(targets, value)
            loss = float(step(*tensors(inputs, targets)))
            expected = twin(inputs, targets)
            np.testing.assert_allclose(loss, expected, **TOLERANCE["float32, many updates"])
        twin.assert_same(step, network)
        if len(twin.group.updates) == updates:
            assert_bit_equal(parameter_values(network), before)
        else:
            assert all((before[n] != now).any() for n, now in parameter_values(network).items())
    return twin.group.updates


MICRO_BATCHES = st.tuples(
    st.sampled_from((1, 4)), st.sampled_from(["finite", "finite", "nan", "inf"])
)


@settings(max_examples=80)
@given(
    events=st.lists(st.one_of(st.just(END), MICRO_BATCHES), min_size=1, max_size=14),
    sizes=st.lists(st.integers(1, 4), max_size=3),
    tail=st.sampled_from(["flush", "drop", "carry"]),
    nonfinite=st.sampled_from(["drop_micro", "drop_group", "propagate"]),
    reduction=st.sampled_from(["mean", "sum"]),
)
def test_every_sequence_is_that_of_the_reference(once, events, sizes, tail, nonfinite, reduction):
    """The step equals its twin for any faults, tails and schedules of sizes; none: a plain step."""
    micro_steps = sizes[0] if len(sizes) == 1 else lambda updates: sizes[updates % len(sizes)]
    follow(once, events, micro_steps if sizes else None, tail, nonfinite, reduction)


class TestTails:
    """An epoch of 7 micro-batches of 4 rows, k = 4."""

    @pytest.mark.parametrize(
        ("tail", "expected"),
        [("flush", [16, 12, 16, 12]), ("drop", [16, 16]), ("carry", [16, 28])],
    )
    def test_images_that_went_into_each_update(self, once, tail, expected):
        epoch = [(4, "finite")] * 7 + [END]
        updates = follow(once, epoch * 2, 4, tail)
        assert [update.images for update in updates] == expected


def test_a_hundred_small_contributions_are_not_lost():
    """1 + 1e-4 is 1 in float16: a float16 buffer would end where it began."""
    network = Scalar()
    network.slope.set_dtype(ms.float16)
    loss_net = LossNet(network, Product(), per="rows")
    optimizer = nn.SGD(network.trainable_params(), 1.0)
    step = AccumulatedStep(loss_net, optimizer, 200, reduction="sum")
    ones = np.ones((1, 1), np.float16)
    for slope in [1.0] + [1e-4] * 100:
        step(*tensors(ones, np.float32(slope * ones)))
    step.end_epoch()
    assert network.slope.dtype == ms.float16
    np.testing.assert_allclose(network.slope.asnumpy(), 2.0 - 1.01, rtol=2e-3)


class TestBatchNorm:
    """BatchNorm's statistics are those of each micro-batch; if that matters, a step warns once."""

    def train(self, norm, micro_steps, warned, updates=2):
        """Return the parameters after updates from 32 images each."""
        ms.set_seed(11)
        network = NormNet(norm)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step = AccumulatedStep(
                LossNet(network, nn.CrossEntropyLoss()), momentum(network, 0.1), micro_steps
            )
            for _ in range(updates):
                for batch in split(digits(32), [32 // micro_steps] * micro_steps):
                    step(*batch)
        assert step.last_update.number == updates
        ours = [w for w in caught if "trainable BatchNorm" in str(w.message)]
        assert len(ours) == warned and all(w.filename == __file__ for w in ours)
        return parameter_values(network)

    def test_group_norm_keeps_the_equality_and_batch_norm_breaks_it(self):
        for norm, warned in (("group", 0), ("batch", 1)):
            parts, whole = self.train(norm, 4, warned), self.train(norm, 1, 0)
            off = max(largest_differences(parts, whole).values())
            assert off <= 1e-5 if norm == "group" else off > 1e-3
