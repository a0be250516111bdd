"""Less BatchNorm: the layer against float64 and MindSpore's, the blocks against its pass."""

import re

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from mindspore.boost import LessBN
from mindspore.boost.less_batch_normalization import CommonHeadLastFN

from labkit import reference
from labkit.algorithms.less_bn import NormalisedDense, fit_to, less_bn
from labkit.errors import InputError
from labkit.nets.lenet import LeNet5
from labkit.nets.resnet import ResidualBlock, ResidualBlockBase, resnet
from labkit.runtime import pynative
from labkit.steps.losses import LossNet
from labkit.steps.plain import PlainStep
from labkit.steps.state import set_state
from tests.support.compiled import compiled_operators
from tests.support.step_cells import digits, linear, momentum, rows, tensors
from tests.support.tolerances import TOLERANCE

pytestmark = pytest.mark.usefixtures("runtime")


def normalised(weights, multiplier=1.7):
    dense = nn.Dense(weights.shape[1], weights.shape[0])
    set_state(dense.weight, weights)
    layer = NormalisedDense(dense)
    set_state(layer.multiplier, [multiplier])
    return layer


class Weighted(nn.Cell):
    """Sum of a layer's outputs times ``slope``, which is its derivative by the outputs."""

    def __init__(self, layer, slope):
        super().__init__()
        self.layer, self.slope = layer, Tensor(slope)

    def construct(self, inputs):
        return ops.reduce_sum(self.layer(inputs) * self.slope)


class TestTheLayer:
    @pytest.mark.parametrize("scale", [1.0, 1e-3, 30.0])
    def test_outputs_and_slopes_are_the_twins(self, scale):
        """At scale 1e-3 a row's squares sum to less than epsilon, so its length matters."""
        random = np.random.default_rng(5)
        inputs = (scale * random.normal(size=(4, 6))).astype(np.float32)
        weights = (scale * random.normal(size=(3, 6))).astype(np.float32)
        slope = random.normal(size=(4, 3)).astype(np.float32)
        layer = normalised(weights)
        tolerance = TOLERANCE["one float32 gradient"]
        outputs = layer(Tensor(inputs)).asnumpy()
        expected = reference.normalised_dense(inputs, weights, 1.7)
        np.testing.assert_allclose(outputs, expected, **tolerance)
        gradient = ops.grad(Weighted(layer, slope), 0, (layer.weight, layer.multiplier))
        by_inputs, (by_weights, by_multiplier) = gradient(Tensor(inputs))
        slopes = reference.normalised_dense_slopes(inputs, weights, 1.7, slope)
        largest = max(np.abs(slopes[0]).max(), 1)
        for actual, exact in zip((by_inputs, by_weights, by_multiplier), slopes, strict=True):
            actual, exact = actual.asnumpy() / largest, np.reshape(exact, actual.shape) / largest
            np.testing.assert_allclose(actual, exact, **tolerance)

    def test_the_length_of_a_row_does_not_count_but_below_epsilon(self):
        inputs, weights = rows(4)[0], np.random.default_rng(1).normal(size=(2, 3))
        layer = normalised(weights.astype(np.float32))
        once, twice, tiny = (layer(Tensor(f * inputs)).asnumpy() for f in (1, 2, 1e-4))
        np.testing.assert_allclose(once, twice, **TOLERANCE["one float32 gradient"])
        assert np.abs(tiny).max() < 0.2 * np.abs(once).max()

    def test_the_slopes_of_a_short_row_are_exact_and_mindspores_are_not(self):
        """MindSpore's are 5 times too large at a length of 2e-3; labkit's are finite even at 0."""
        weights = np.random.default_rng(2).normal(size=(2, 3)).astype(np.float32)
        theirs = CommonHeadLastFN(3, 2, Tensor(weights), has_bias=False)
        ones = np.ones((1, 2), np.float32)

        def slopes(layer, row):
            return ops.grad(Weighted(layer, ones))(Tensor([row], ms.float32)).asnumpy()

        row = [2e-3, 0.0, 0.0]
        exact, *_ = reference.normalised_dense_slopes(np.array([row]), weights, 1.0, ones)
        ours = slopes(normalised(weights, 1.0), row)
        np.testing.assert_allclose(ours, exact, **TOLERANCE["one float32 gradient"])
        np.testing.assert_allclose(slopes(theirs, row)[:, 1:], 5 * exact[:, 1:], rtol=1e-3)
        assert np.isfinite(slopes(normalised(weights, 1.0), [0.0, 0.0, 0.0])).all()

    def test_it_is_mindspores_layer(self):
        weights = np.random.default_rng(2).normal(size=(2, 3)).astype(np.float32)
        theirs = CommonHeadLastFN(3, 2, Tensor(weights), has_bias=False)
        set_state(theirs.multiplier, [1.7])
        batch = Tensor(rows(4)[0])
        ours = normalised(weights)(batch).asnumpy()
        np.testing.assert_allclose(
            ours, theirs(batch).asnumpy(), **TOLERANCE["float32, one update"]
        )

    def test_inputs_of_three_axes_and_an_activation(self):
        dense = nn.Dense(3, 2, activation="relu")
        inputs = np.random.default_rng(3).normal(size=(2, 5, 3)).astype(np.float32)
        layer = NormalisedDense(dense)
        flat = reference.normalised_dense(inputs.reshape(-1, 3), dense.weight.asnumpy(), 1.0)
        expected = np.maximum(flat, 0).reshape(2, 5, 2)
        actual = layer(Tensor(inputs)).asnumpy()
        np.testing.assert_allclose(actual, expected, **TOLERANCE["one float32 gradient"])


class Chain(nn.Cell):
    """Residual blocks in sequence."""

    def __init__(self, *blocks):
        super().__init__()
        self.blocks, self.end = nn.SequentialCell(*blocks), nn.Flatten()

    def construct(self, inputs):
        return self.end(self.blocks(inputs))


class Swapped(ResidualBlock):
    """A block that adds shortcut + main, an order that MindSpore's pass does not recognise."""

    def construct(self, x):
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        return self.relu(shortcut + self.bn3(self.conv3(out)))


def bottlenecks(block=ResidualBlock):
    return Chain(block(3, 8), block(8, 8), block(8, 16, 2), block(16, 16))


def basics():
    return Chain(nn.ReLU(), *(ResidualBlockBase(*sizes) for sizes in ((3, 8), (8, 8), (8, 16, 2))))


def left_by_mindspore(network):
    """Return the BatchNorms in the graph that ``LessBN`` compiles."""
    cell = LessBN(network)
    cell.set_train()
    images = Tensor(np.ones((2, 3, 16, 16), np.float32))
    scopes = [o.scope for o in compiled_operators(cell, images) if o.name == "BatchNorm"]
    return {re.sub(r"-\w+", "", s).split("network/")[1].replace("/", ".") for s in scopes}


def batch_norms(network):
    return {n for n, cell in network.cells_and_names() if isinstance(cell, nn.BatchNorm2d)}


class TestTheBlocks:
    @pytest.mark.parametrize("build", [bottlenecks, basics])
    def test_what_is_left_is_what_mindspores_pass_leaves(self, build):
        network = build()
        before = batch_norms(network)
        conversion = less_bn(network, fn_flag=False)
        left = batch_norms(network)
        assert left == left_by_mindspore(build()) and left < before
        assert set(conversion.batch_norms) == before - left

    def test_a_swapped_sum_is_converted_here_alone(self):
        conversion = less_bn(bottlenecks(Swapped), fn_flag=False)
        assert len(conversion.batch_norms) == 10
        theirs = bottlenecks(Swapped)
        assert left_by_mindspore(theirs) == batch_norms(theirs)

    @pytest.mark.parametrize(("depth", "taken"), [(18, 8 + 3), (50, 2 * 16 + 4)])
    def test_a_resnet_keeps_the_stems_and_one_a_block(self, depth, taken):
        network = resnet(depth, 10, width=0.25)
        before = batch_norms(network)
        assert len(less_bn(network).batch_norms) == taken
        blocks = {18: 8, 50: 16}[depth]
        assert len(batch_norms(network)) == len(before) - taken == 1 + blocks

    def test_other_cells_keep_theirs(self):
        """A chain of pairs is not a residual block: nothing is added after it."""
        pair = lambda: (nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3), nn.ReLU())  # noqa: E731
        network = nn.SequentialCell(*pair(), *pair(), nn.Flatten(), nn.Dense(3 * 8 * 8, 2))
        assert less_bn(network).batch_norms == () and len(batch_norms(network)) == 2

    def test_the_function_is_the_same_in_graph_and_pynative_mode(self):
        network = basics()
        less_bn(network, fn_flag=False)
        network.set_train()
        images = Tensor(np.random.default_rng(0).normal(size=(2, 3, 16, 16)).astype(np.float32))
        with pynative():
            eager = network(images).asnumpy()
        np.testing.assert_allclose(network(images).asnumpy(), eager, rtol=1e-4, atol=1e-4)


class TestTheNetwork:
    def test_the_weight_is_the_same_parameter_and_names_stay(self):
        network = LeNet5()
        weight, names = network.fc3.weight, [p.name for p in network.trainable_params()]
        conversion = less_bn(LossNet(network, nn.MSELoss()))
        assert conversion.dense == "network.fc3" and network.fc3.weight is weight
        after = [p.name for p in network.trainable_params()]
        assert after == [n for n in names if n != "fc3.bias"] + ["fc3.multiplier"]
        again = less_bn(network)
        assert again.text() == "less_bn: no Dense changed; 0 BatchNorms taken out"

    def test_a_dense_in_a_sequential_cell_is_at_work(self):
        """MindSpore's replacement is in the Cell's list of children, but is never called."""
        batch = Tensor(rows(4)[0])
        ours, theirs = (nn.SequentialCell(nn.Dense(3, 4), nn.Dense(4, 2)) for _ in range(2))
        for network in (ours, theirs):
            set_state(network[1].weight, 5 * np.ones((2, 4), np.float32))
        less_bn(ours)
        assert np.abs(ours(batch).asnumpy()).max() <= 1 + 1e-6
        before = theirs(batch).asnumpy()
        assert isinstance(LessBN(theirs, fn_flag=True).network._cells["1"], CommonHeadLastFN)
        np.testing.assert_array_equal(theirs(batch).asnumpy(), before)

    def test_a_cell_that_is_called_twice_is_called_twice_afterwards(self):
        relu = nn.ReLU()
        network = nn.SequentialCell(nn.Dense(3, 4), relu, nn.Dense(4, 4), relu, nn.Dense(4, 2))
        batch = Tensor(rows(4)[0])
        hidden = network[:4](batch)
        less_bn(network)
        np.testing.assert_array_equal(network(batch).asnumpy(), network[4](hidden).asnumpy())
        assert len(network) == 5 and network[3] is relu

    def test_no_dense_is_refused_where_one_is_asked_for(self):
        with pytest.raises(InputError, match=r"expected one in the network, got 0"):
            less_bn(basics())
        with pytest.raises(InputError, match="fn_flag: expected True or False, got 1"):
            less_bn(LeNet5(), fn_flag=1)


class TestTheOptimizer:
    def test_it_trains_the_multiplier_and_holds_what_the_network_has(self):
        network = resnet(18, 10, width=0.25)
        loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
        loss_net, before = LossNet(network, loss_fn), momentum(network, 0.1)
        less_bn(loss_net)
        optimizer = fit_to(before, loss_net)
        names = {p.name for p in network.trainable_params()}
        assert {p.name for p in optimizer.parameters} == names and "fc.multiplier" in names
        step = PlainStep(loss_net, optimizer)
        images, labels = digits(8)
        batch = tensors(np.repeat(images, 3, axis=1), labels)
        losses = [float(step(*batch)) for _ in range(8)]
        assert losses[-1] < 0.8 * losses[0] and network.fc.multiplier.asnumpy() != 1

    def test_the_multiplier_joins_the_weights_group(self):
        network = LeNet5()
        biases = [p for p in network.trainable_params() if p.name.endswith("bias")]
        weights = [p for p in network.trainable_params() if p.name.endswith("weight")]
        groups = [{"params": biases, "weight_decay": 0.0}, {"params": weights}]
        optimizer = nn.Momentum(groups, 0.05, 0.8, weight_decay=1e-3)
        less_bn(network)
        made = fit_to(optimizer, network)
        named = dict(zip((p.name for p in made.parameters), made.weight_decay, strict=True))
        decays = {name: float(np.asarray(value)) for name, value in named.items()}
        assert "fc3.bias" not in decays and decays["fc3.multiplier"] == pytest.approx(1e-3)
        assert decays["fc2.bias"] == 0 and float(made.momentum.asnumpy()) == pytest.approx(0.8)

    def test_one_that_is_made_afterwards_stays(self):
        network = LeNet5()
        less_bn(network)
        optimizer = momentum(network)
        assert fit_to(optimizer, network) is optimizer

    def test_a_schedule_goes_on(self):
        network = LeNet5()
        rate = nn.ExponentialDecayLR(0.1, 0.9, 1)
        adam = nn.Adam(network.trainable_params(), rate)
        less_bn(network)
        made = fit_to(adam, network)
        assert made.dynamic_lr and type(made) is nn.Adam

    def test_one_that_cannot_be_made_anew_is_refused(self):
        network = LeNet5()
        inner = momentum(network)
        used = momentum(network)
        set_state(used.global_step, np.array([3], np.int32))
        groups = [{"params": network.trainable_params(), "lr": 0.1}]
        rated = nn.Momentum(groups, 0.05, 0.9)
        less_bn(network)
        for optimizer in (nn.LARS(inner), used, rated):
            with pytest.raises(InputError, match="expected less_bn.network. before the optimizer"):
                fit_to(optimizer, network)

    def test_a_frozen_head_has_no_multiplier_in_the_optimizer(self):
        network = LeNet5()
        optimizer = nn.SGD([p for p in network.trainable_params() if "fc3" not in p.name], 0.1)
        less_bn(network)
        assert fit_to(optimizer, network) is optimizer


def test_the_regressions_single_layer_is_its_last():
    loss_net = LossNet(linear(), nn.MSELoss())
    assert less_bn(loss_net).text().startswith("less_bn: the last Dense `network` is normalised; 0")
