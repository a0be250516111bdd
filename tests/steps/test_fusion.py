"""Gradient fusion by index: which gradients are in which message, and what comes back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore import Tensor, nn

from labkit import LossNet, PlainStep
from labkit.errors import InputError
from labkit.steps.fusion import joined, message_ends, separated
from labkit.steps.gradients import GradientStage
from labkit.steps.options import GradientOptions

pytestmark = pytest.mark.usefixtures("runtime")


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


def arrays(count):
    random = np.random.default_rng(count)
    shapes = [(3, 2), (2,), (1, 2, 3), (1,), (4, 1)]
    return [random.normal(size=shapes[n % 5]).astype(np.float32) for n in range(count)]


@settings(max_examples=20)
@given(st.integers(1, 9), st.data())
def test_messages_hold_the_gradients_in_their_order(count, data):
    """Messages equal NumPy's; their sums return to each gradient's place and shape."""
    indices = data.draw(st.sets(st.integers(0, count - 1), min_size=1).map(sorted).map(tuple))
    ends = message_ends(indices, count)
    expected = arrays(count)
    values = tuple(map(Tensor, expected))
    messages = joined(values, ends)
    starts = (0, *ends[:-1])
    assert len(messages) == len(starts)
    for message, start, end in zip(messages, starts, ends, strict=True):
        flat = np.concatenate([array.ravel() for array in expected[start:end]])
        np.testing.assert_array_equal(message.asnumpy(), flat)
    back = separated(tuple(message * 2 for message in messages), values, ends)
    for part, array in zip(back, expected, strict=True):
        assert part.shape == array.shape
        np.testing.assert_array_equal(part.asnumpy(), 2 * array)


def loss_net():
    network = nn.SequentialCell(nn.Dense(4, 3), nn.Dense(3, 2), nn.Dense(2, 1))
    return LossNet(network, nn.MSELoss())


@pytest.mark.parametrize(
    ("indices", "sent"),
    [
        (None, [(), (), (3, 4), (3,), (2, 3), (2,), (1, 2), (1,), (5,)]),
        ((2,), [(), (), (21,), (5,), (5,)]),
        ((0, 5), [(), (), (12,), (14,), (5,)]),
    ],
)
def test_what_is_sent(indices, sent):
    """Loss, number of rows and an update stage's extras are messages of their own."""
    net = loss_net()
    parameters = net.trainable_params()
    stage = GradientStage(net, parameters, GradientOptions(all_reduce_fusion_config=indices))
    shapes = []

    def all_reduce(value):
        shapes.append(value.shape)
        return value * 2

    values = (Tensor(1.0), Tensor(8.0))
    gradients = tuple(Tensor(p.asnumpy()) for p in parameters)
    extras = (Tensor(np.ones(5, np.float32)),)
    assert stage.all_over_ranks(values, gradients, extras) == values + gradients + extras
    stage.all_reduce = all_reduce
    sums = stage.all_over_ranks(values, gradients, extras)
    assert shapes == sent
    for total, value in zip(sums, values + gradients + extras, strict=True):
        assert total.shape == value.shape
        np.testing.assert_array_equal(total.asnumpy(), 2 * value.asnumpy())


def test_an_index_of_no_gradient_is_refused_by_one_rank_too():
    net, step = loss_net(), PlainStep
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    with pytest.raises(InputError, match=r"expected indices below 6, .* got \[0, 6\]"):
        step(net, optimizer, all_reduce_fusion_config=[0, 6])
    assert step(net, optimizer, all_reduce_fusion_config=[0, 5]).gradient.message_ends == (1, 6)
    for wrong in ([], [2, 2], [1.5]):
        with pytest.raises(InputError, match="all_reduce_fusion_config: expected integers >= 0, "):
            step(net, optimizer, all_reduce_fusion_config=wrong)
    fused = GradientOptions(all_reduce_fusion_config=[1])
    assert fused.settings() == GradientOptions().settings()  # no matter for a resume
