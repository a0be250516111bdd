"""Accumulation's twins against sequences by hand, the whole batch and PyTorch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import reference
from labkit.errors import InputError
from tests import twins
from tests.twins import Accumulation, MicroBatch


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5))
def test_weighted_mean_of_the_parts_is_the_whole(sizes):
    random = np.random.default_rng(sum(sizes))
    inputs, labels = random.normal(size=(sum(sizes), 3)), random.integers(0, 4, sum(sizes))
    values = [random.normal(size=(4, 3)), random.normal(size=4)]
    ends = np.cumsum(sizes)
    parts = [
        twins.softmax_regression(*values, inputs[e - s : e], labels[e - s : e])[1]
        for s, e in zip(sizes, ends, strict=True)
    ]
    _, whole = twins.softmax_regression(*values, inputs, labels)
    for actual, expected in zip(twins.weighted_mean(parts, sizes), whole, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-12)


def test_momentum_is_that_of_pytorch():
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(0)
    start = random.normal(size=(3, 2))
    parameter = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    weights, velocities = [start], [np.zeros_like(start)]
    for gradient in random.normal(size=(5, 3, 2)):
        parameter.grad = torch.from_numpy(gradient)
        optimizer.step()
        weights, velocities = reference.momentum_update(weights, velocities, [gradient], 0.1)
    np.testing.assert_allclose(weights[0], parameter.detach().numpy(), rtol=1e-12)


def test_dynamic_loss_scale_by_hand():
    finite = [True, True, False, True, True, True, True, False, False, False, False, False, True]
    expected = [8, 16, 8, 8, 16, 16, 32, 16, 8, 4, 2, 1, 1]
    assert twins.dynamic_loss_scale(finite, initial=8, factor=2, interval=2) == expected
    assert twins.dynamic_loss_scale([True] * 3, 2.0**119, 2.0, 1) == [2.0**120] * 3


def micro(value, rows=2, finite=True):
    return MicroBatch(float(value), rows, [np.array([value])], rows, finite)


def test_tails_of_the_tutorial():
    """1875 micro-batches in fours leave three, which the tutorial carries into the next update."""
    one = [4] * 468
    rows = {"flush": [*one, 3, *one, 3], "drop": one + one, "carry": [*one, 7, *one[1:]]}
    for tail, expected in rows.items():
        group = Accumulation(4, tail=tail)
        for _ in range(2):
            for _ in range(1875):
                group.micro_batch(micro(1.0, rows=1))
            group.end_epoch()
        assert [update.images for update in group.updates] == expected


def test_an_update_is_the_weighted_mean_or_the_sum_of_the_means():
    for reduction, expected in (("mean", (2.0, 2.0)), ("sum", (3.0, 6.0))):
        group = Accumulation(2, reduction=reduction)
        for value, rows in ((1.0, 3), (5.0, 1)):
            weight = rows if reduction == "mean" else 1.0
            update = group.micro_batch(MicroBatch(value, weight, [np.array([value])], rows))
        assert (update.loss, update.gradients[0][0], update.images) == (*expected, 4)


LAYER = reference.Layer("fc", np.ones((2, 3)), np.ones((2, 4)))
UNKNOWN = [  # calls with a word that means nothing
    lambda: Accumulation(2, tail="fulsh"),
    lambda: Accumulation(2, nonfinite="drop"),
    lambda: Accumulation(2, reduction="meen"),
    lambda: twins.weight(3, "meen"),
    lambda: reference.ProjectedBFGS(np.eye(2), failure="rolback"),
    lambda: reference.damping_pair(np.eye(2)[None], np.eye(2)[None], 1, 1.0, "pie"),
    lambda: LAYER.factors(homogeneous=False, formulas="upstream"),
    lambda: reference.Thor(0.1, 0.3, bias="plane").update({"fc.weight": 1.0}, {}, [LAYER]),
]


def test_unknown_words_are_refused():
    for call in UNKNOWN:
        with pytest.raises((InputError, KeyError), match="expected one of|'(meen|plane)'"):
            call()


@pytest.mark.parametrize(
    ("nonfinite", "expected"),
    [("drop_micro", [2.0]), ("drop_group", []), ("propagate", [np.nan])],
)
def test_nonfinite_micro_batches(nonfinite, expected):
    group = Accumulation(2, nonfinite=nonfinite)
    group.micro_batch(micro(np.nan, finite=False))
    group.micro_batch(micro(2.0))
    np.testing.assert_array_equal([u.gradients[0][0] for u in group.updates], expected)
    assert group.dropped == (nonfinite != "propagate") and group.micro_step == 0


def test_clipping_comes_after_averaging_and_a_schedule_counts_updates():
    group = Accumulation(2, clip_norm=1.0)
    values = [10.0, -9.0, 10.0, -20.0]
    updates = [group.micro_batch(micro(value)) for value in values][1::2]
    assert [(u.gradients[0][0], u.norm) for u in updates] == [(0.5, 0.5), (-1, 5)]
    group = Accumulation(lambda updates: updates + 1)
    made = [group.micro_batch(micro(1.0)) is not None for _ in range(6)]
    assert made == [True, False, True, False, False, True]
