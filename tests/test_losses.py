"""Networks with their loss."""

import mindspore as ms
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore import Tensor, nn, ops

from labkit import reference
from labkit.losses import LossNet, TokenLossNet
from labkit.nets.small import NextToken
from labkit.tolerances import TOLERANCE
from tests.step_cells import linear, rows, tensors

pytestmark = pytest.mark.usefixtures("runtime")


class Sum(nn.Cell):
    """A network of two inputs."""

    def construct(self, first, second):
        return first + 2 * second


class Same(nn.Cell):
    """Hands its inputs on: logits chosen by the test."""

    def construct(self, logits):
        return logits


class Half(nn.Cell):
    """A network that answers in float16."""

    def construct(self, inputs):
        return ops.cast(inputs, ms.float16)


def test_loss_net_is_the_loss_of_the_network():
    network, (inputs, targets) = linear(), rows(5)
    expected, _ = reference.linear_regression(
        network.weight.asnumpy(), network.bias.asnumpy(), inputs, targets
    )
    loss = LossNet(network, nn.MSELoss())(*tensors(inputs, targets))
    assert loss.shape == () and float(loss) == pytest.approx(expected, rel=1e-6)


def absolute_error(outputs, targets):
    """A loss that is a plain function."""
    return ops.mean(ops.abs(outputs - targets))


def test_a_function_is_a_loss_too():
    network, (inputs, targets) = linear(), rows(5)
    loss = LossNet(network, absolute_error)(*tensors(inputs, targets))
    outputs = network(Tensor(inputs)).asnumpy()
    assert float(loss) == pytest.approx(np.abs(outputs - targets).mean(), rel=1e-6)


def test_the_last_of_the_batch_is_the_labels():
    first, second = rows(3)
    loss = LossNet(Sum(), nn.MSELoss())(*tensors(first[:, :2], second, second))
    assert float(loss) == pytest.approx(np.mean((first[:, :2] + second) ** 2), rel=1e-6)


def test_the_loss_is_in_float32_whatever_the_network_computes_in():
    """The square of 300 does not fit into float16."""
    inputs = np.full((4, 2), 300.0, np.float32)
    loss = LossNet(Half(), nn.MSELoss())(*tensors(inputs, 0 * inputs))
    assert loss.dtype == ms.float32 and float(loss) == 90_000


@pytest.fixture(scope="module")
def token_loss(runtime):
    return TokenLossNet(Same())


@settings(max_examples=25, deadline=None)
@given(
    labels=st.lists(st.integers(-1, 4), min_size=6, max_size=6),
    scale=st.sampled_from([0.1, 1.0, 100.0, 1e4]),
    seed=st.integers(0, 100),
)
def test_token_loss_is_the_reference(token_loss, labels, scale, seed):
    logits = scale * np.random.default_rng(seed).normal(size=(2, 3, 5)).astype(np.float32)
    labels = np.int32(labels).reshape(2, 3)
    total, count = token_loss(*tensors(logits.astype(np.float32), labels))
    expected, tokens = reference.token_cross_entropy(logits, labels)
    assert total.shape == count.shape == () and float(count) == tokens
    np.testing.assert_allclose(float(total), expected, **TOLERANCE["one float32 gradient"])


def test_another_ignore_index():
    network = NextToken()
    tokens = np.arange(6, dtype=np.int32).reshape(2, 3)
    labels = np.int32([[1, 0, 0], [2, 3, 0]])
    total, count = TokenLossNet(network, ignore_index=0)(*tensors(tokens, labels))
    logits = network(Tensor(tokens)).asnumpy()
    expected, tokens = reference.token_cross_entropy(logits, labels, ignore_index=0)
    assert float(count) == tokens == 3
    assert float(total) == pytest.approx(expected, rel=1e-5)


def test_padding_has_no_gradient():
    loss_net = TokenLossNet(Same())
    labels = Tensor(np.int32([[1, -1, 2], [-1, -1, -1]]))
    logits = Tensor(np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32))

    def loss_sum(logits):
        return loss_net(logits, labels)[0]

    gradient = ms.grad(loss_sum)(logits).asnumpy()
    counts = labels.asnumpy() != -1
    assert (gradient[~counts] == 0).all() and (gradient[counts] != 0).all()
