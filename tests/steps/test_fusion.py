"""Gradient fusion by index: which gradients are in which message, and what comes back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore import Tensor, nn

from labkit import LossNet, PlainStep
from labkit.errors import InputError
from labkit.steps.gradients import GradientStage, message_ends
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


def loss_net():
    network = nn.SequentialCell(nn.Dense(4, 3), nn.Dense(3, 2), nn.Dense(2, 1))
    return LossNet(network, nn.MSELoss())


@pytest.fixture(scope="module")
def stage(runtime):
    net = loss_net()
    return GradientStage(net, net.trainable_params())


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
