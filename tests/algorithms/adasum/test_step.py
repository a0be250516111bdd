"""AdasumStep against float64, call by call; what it keeps, and what it refuses."""

from unittest import mock

import mindspore as ms
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore import nn

from labkit import reference
from labkit.algorithms.adasum import AdasumStep
from labkit.algorithms.adasum.workers import states_of
from labkit.errors import InputError
from labkit.nets.small import NormNet
from labkit.optimizers import AdamW, Both, Muon
from labkit.steps.losses import LossNet
from labkit.steps.options import DynamicLossScale
from labkit.steps.state import set_state
from labkit.steps.step import PlainStep
from tests import twins
from tests.support.adasum_twin import Twin
from tests.support.step_cells import (
    assert_bit_equal,
    assert_close,
    before_each_run,
    digits,
    interrupted,
    momentum,
    regression,
    restore,
    rows,
    snapshot,
    tensors,
    to_float16,
)
from tests.support.tolerances import TOLERANCE
from tests.support.trainings import loss_fn

pytestmark = pytest.mark.usefixtures("runtime")

RATES = [0.05 * 0.8**update for update in range(40)]
DECAYED = {"weight_decay": 0.1, "rate": RATES.__getitem__}


def by_update(updates):
    return 1 + updates % 3


# name -> (options of the step, options of the twin alone, number of calls, those that are NaN,
# those after which the epoch ends). Most first epochs end in the middle of a team.
CASES = {
    "schedule of micro_steps": ({"workers": 2, "micro_steps": by_update}, {}, 20, (1,), (10, 14)),
    "not finite": ({"workers": 3}, DECAYED, 15, (0, 4, 6, 7, 8, 11), (12,)),
    "one vector, clipped": (
        {"workers": 5, "scope": "network", "clip_norm": 0.3, "loss_scale": 1024.0},
        {},
        15,
        (),
        (7,),
    ),
    "gradients": ({"workers": 3, "on": "gradients"}, DECAYED, 8, (3,), (7,)),
    # Tails of one worker: the two that had no turn count as zeros, its vector is the update.
    "one of three": ({"workers": 3}, {}, 5, (), (0, 4)),
    "mean": ({"workers": 3, "reduction": "mean"}, {}, 10, (4,), (6,)),
    "sum of gradients": ({"workers": 2, "reduction": "sum", "on": "gradients"}, DECAYED, 6, (), ()),
    # The twin has no nodes; its workers average micro-batches instead.
    "nodes": ({"workers": 2, "node_size": 2, "micro_steps": 2}, {"micro_steps": 4}, 17, (), (13,)),
    # Call 8 is not finite and dropped with its epoch: it must not spoil the next group.
    "drop": (
        {"workers": 3, "micro_steps": 2, "tail": "drop", "nonfinite": "drop_group"},
        {},
        25,
        (8, 11, 14),
        (8, 9, 22),
    ),
}
# These graphs cover those of the other cases; the battery of tests/steps compares the two modes.
COMPILED = ("not finite", "gradients", "drop")


def build(options, rates=0.05, weight_decay=0.0):
    """Return (network, step) with Momentum."""
    net, loss_net = regression()
    return net, AdasumStep(loss_net, momentum(net, rates, weight_decay), **options)


def weights_of(net):
    return [net.weight.asnumpy().copy(), net.bias.asnumpy().copy()]


def assert_weights(net, twin, tolerance="float32, many updates"):
    for actual, expected in zip(weights_of(net), twin.weights, strict=True):
        np.testing.assert_allclose(actual, expected, **TOLERANCE[tolerance])


def assert_last(step, twin):
    last = vars(step.last_update)
    if twin.updates:
        for name, expected in twin.last.items():
            assert last[name] == pytest.approx(expected, rel=1e-4), name
    assert last["number"] == twin.updates == int(step.optimizer.global_step.asnumpy()[0])


def feed(step, seeds):
    for seed in seeds:
        step(*tensors(*rows(4, seed=seed)))


@pytest.mark.usefixtures("eager")
def test_a_sum_is_the_mean_at_as_many_times_the_rate_as_workers():
    """Lab 04: with Momentum the sum is no method of its own; Adasum is."""
    ends = {}
    for reduction, rate in (("mean", 0.08), ("sum", 0.02), ("adasum", 0.02)):
        net, step = build({"workers": 4, "reduction": reduction}, rate)
        feed(step, range(12))
        ends[reduction] = np.append(*map(np.ravel, weights_of(net)))
    np.testing.assert_allclose(ends["sum"], ends["mean"], **TOLERANCE["float32, many updates"])
    assert not np.allclose(ends["adasum"], ends["mean"], rtol=0.01)


class TestTwin:
    """Parameters and ``last_update`` after every call, for each option."""

    @pytest.mark.parametrize("case", CASES)
    def test_equals_float64(self, case, request):
        if case not in COMPILED:
            request.getfixturevalue("eager")
        options, others, calls, nan, ends = CASES[case]
        names = options.keys() - {"node_size", "loss_scale"}
        twin = Twin(**{name: options[name] for name in names} | others)
        decayed = (RATES, 0.1) if others is DECAYED else ()
        net, step = build(options, *decayed)
        for call in range(calls):
            inputs, targets = rows(3 + call % 2, seed=call)
            targets *= np.float32(np.nan if call in nan else 1)
            before, done = weights_of(net), twin.updates
            loss = step(*tensors(inputs, targets))
            assert float(loss) == pytest.approx(twin.micro_batch(inputs, targets), nan_ok=True)
            if twin.updates == done:
                for actual, expected in zip(weights_of(net), before, strict=True):
                    np.testing.assert_array_equal(actual, expected)
            if call in ends:
                step.end_epoch()
                twin.end_epoch()
            assert_weights(net, twin)
            assert_last(step, twin)
        assert int(step.dropped.asnumpy()) == len(nan)
        assert twin.updates > 1
        vectors = [np.stack([v[i].ravel() for v in twin.vectors]) for i in range(2)]
        if not twin.entered and not twin.group.micro_step:
            for actual, expected in zip(step.vectors().values(), vectors, strict=True):
                np.testing.assert_allclose(actual, expected, **TOLERANCE["float32, many updates"])


def opposite_rows(inputs, targets, weights, rest=0.0, more=0.0):
    """Return targets whose residuals have the opposite sign, except for ``rest``."""
    residuals = targets - inputs @ weights[0].T - weights[1]
    return (targets + rest * more - (2 - rest) * residuals).astype(np.float32)


def assert_moved_by_adasum(net, before, vectors):
    """Compare a network's move with the combination of the workers' vectors, in float64."""
    for after, start, part in zip(weights_of(net), before, vectors.values(), strict=True):
        combined = reference.adasum_tree(part)
        far = np.linalg.norm((after - start).ravel() - combined)
        assert far <= 1e-5 * np.linalg.norm(combined) + 1e-7


def test_workers_that_nearly_cancel(once):
    """They are combined by the tree, in a separate graph, and counted once like others."""
    for rest, expected in ((1.0, 0), (0.02, 4)):
        net, step = once(build, {"workers": 4})
        seen = mock.Mock()
        for call in range(16):
            inputs, targets = rows(4, seed=call - (call % 4 == 1))
            before = weights_of(net)
            if call % 4 == 1:
                more = rows(4, seed=call)[1]
                targets = opposite_rows(inputs, targets, before, rest, more)
            with before_each_run(step.update.fallback, seen):
                step(*tensors(inputs, targets))
            if call % 4 == 3:
                assert_moved_by_adasum(net, before, step.vectors())
        assert seen.call_count == expected and step.last_update.number == 4


def test_an_update_interrupted_before_it_is_made_by_the_next_call(eager):
    """The next call makes it from the vectors in the bank, before a worker overwrites one."""
    net, step = build({"workers": 2})
    inputs, targets = rows(4)
    before = weights_of(net)
    step(*tensors(inputs, targets))
    with interrupted(step.update.fallback):
        step(*tensors(inputs, opposite_rows(inputs, targets, before)))
    vectors = step.vectors()
    assert step.last_update.number == 0
    feed(step, [1])
    assert step.last_update.number == 1
    assert_moved_by_adasum(net, before, vectors)


def grouped(parameters):
    """Return Momentum with two rates, one of them a schedule, a decay, and another order."""
    weight, bias = parameters
    groups = [
        {"params": [bias], "lr": RATES},
        {"params": [weight], "weight_decay": 0.1},
        {"order_params": [bias, weight]},
    ]
    return nn.Momentum(groups, 0.02, 0.9)


# name -> (function from Parameters to an optimizer, names of the optimizer's own state)
OPTIMIZERS = {
    "Adam": (lambda p: nn.Adam(p, RATES), {"moment1", "moment2", "beta1_power", "beta2_power"}),
    "AdamWeightDecay": (lambda p: nn.AdamWeightDecay(p, 0.01, weight_decay=0.1), set()),
    "SGD, Nesterov": (
        lambda p: nn.SGD(p, 0.05, momentum=0.9, weight_decay=0.01, nesterov=True),
        {"accum", "stat"},
    ),
    "RMSProp": (lambda p: nn.RMSProp(p, 0.01), {"moment", "mean_square"}),
    "groups": (grouped, {"moments"}),
    "AdamW": (lambda p: AdamW(p, RATES), {"adamw.m", "adamw.v", "adamw"}),
    "Muon and AdamW": (
        lambda p: Both(p, Muon(p[:1], RATES), AdamW(p[1:], 0.01)),
        {"first.muon.m", "second.adamw.m", "second.adamw.v", "second.adamw"},
    ),
}


def trained_alone(make, updates):
    """Yield the weights, by name, and the rates after each update of micro-batches by worker.

    Each worker has an optimizer of its own: one plain step takes each worker's state in turn.
    """
    network, loss_net = regression()
    step = PlainStep(loss_net, make(network.trainable_params()))
    states, names = [snapshot(step)] * len(updates[0]), list(snapshot(network))
    for batches in updates:
        start = {name: states[0][name] for name in names}
        moves = []
        for worker, batch in enumerate(batches):
            restore(step, states[worker] | start)
            step(*batch)
            states[worker] = snapshot(step)
            moves.append([states[worker][n].astype(np.float64) - start[n] for n in names])
        for name, parts in zip(names, zip(*moves, strict=True), strict=True):
            combined = reference.adasum_tree(parts).reshape(parts[0].shape)
            for state in states:
                state[name] = (start[name] + combined).astype(np.float32)
        yield {name: states[0][name] for name in names}, step.last_update.learning_rate


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_worker_has_an_optimizer_of_its_own(name, eager):
    make, own_state = OPTIMIZERS[name]
    net, loss_net = regression()
    step = AdasumStep(loss_net, make(net.trainable_params()), workers=3)
    updates = [[tensors(*rows(4, seed=3 * n + worker)) for worker in range(3)] for n in range(4)]
    for batches, (weights, rates) in zip(updates, trained_alone(make, updates), strict=True):
        for batch in batches:
            step(*batch)
        assert_close(snapshot(net), weights, **TOLERANCE["float32, a few updates"])
        assert step.last_update.learning_rate == pytest.approx(rates)
    assert int(step.optimizer.global_step.asnumpy()[0]) == 4
    assert_own(step.optimizer, own_state)


def assert_own(optimizer, own_state):
    """Assert that these Parameters, and no settings, are the optimizer's own state."""
    names = {p.name.rsplit(".", 1)[0] for p in states_of(optimizer)}
    assert own_state <= names
    assert not {"learning_rate", "global_step", "momentum", "weight", "bias"} & names


def test_the_state_in_lars_is_that_of_the_optimizer_inside():
    """Whose rate is not that of LARS."""
    assert_own(nn.LARS(momentum(regression()[0])), {"moments"})


@pytest.fixture
def three(once):
    """``three(tail)`` returns (network, step) in the initial state: three workers, Momentum."""

    def anew(tail="flush"):
        return once(build, {"workers": 3, "tail": tail})

    return anew


@pytest.mark.parametrize(("size", "dropped"), [(1, [50]), (1, [50, 51]), (2, [50, 51, 52])])
def test_a_dropped_tail_leaves_no_trace(three, size, dropped):
    """A dropped tail changes no bit: neither moments nor a worker's part of a group of two."""
    ends = []
    for seeds in ([], dropped):
        _, step = three("drop")
        set_state(step.group_size, size)
        feed(step, range(6))
        feed(step, seeds)
        step.end_epoch()
        feed(step, range(6, 18))
        ends.append(snapshot(step))
    assert_bit_equal(*ends)


def test_what_a_callback_sets_between_workers_stays(three):
    """Rate and momentum change between updates and workers; weights too, as in averaging."""
    net, step = three()
    now = {"rate": 0.05}
    twin = Twin(3, rate=lambda update: now["rate"])
    for call in range(12):
        if call in (3, 7):
            now["rate"] *= 0.5
            set_state(step.optimizer.learning_rate, now["rate"])
        if call == 5:
            twin.momentum = 0.5
            set_state(step.optimizer.momentum, 0.5)
        inputs, targets = rows(4, seed=call)
        step(*tensors(inputs, targets))
        twin.micro_batch(inputs, targets)
    assert_weights(net, twin)
    assert step.last_update.learning_rate == pytest.approx((0.0125,))
    assert float(step.optimizer.momentum.asnumpy()) == 0.5
    set_state(net.bias, np.array([5.0, -5.0], np.float32))
    feed(step, [12])
    np.testing.assert_array_equal(net.bias.asnumpy(), [5.0, -5.0])


@given(
    workers=st.sampled_from([2, 3]),
    tail=st.sampled_from(["flush", "drop"]),
    size=st.sampled_from([1, 2, 3, by_update]),
    before=st.integers(0, 7),
    epochs=st.lists(st.integers(0, 9), max_size=3),
)
@settings(max_examples=40)
def test_updates_ahead_are_those_that_happen(once, workers, tail, size, before, epochs):
    """The number is right from any point of a team, over epochs of any length."""
    _, step = once(build, {"workers": workers, "tail": tail})
    step.micro_steps = size
    set_state(step.group_size, 1 if size is by_update else size)
    feed(step, range(before))
    start = step.last_update.number
    ahead = step.updates_ahead(epochs)
    for epoch in epochs:
        feed(step, range(epoch))
        if epoch:
            step.end_epoch()
    assert step.last_update.number - start == ahead
    step.micro_steps = 1


def test_a_schedule_that_is_too_short_is_refused():
    net, loss_net = regression()
    step = AdasumStep(loss_net, momentum(net, RATES[:3]), workers=2, micro_steps=2)
    step.check_length(step.updates_ahead([5, 4]))
    with pytest.raises(InputError, match="3 values"):
        step.check_length(step.updates_ahead([5, 5]))


@pytest.mark.parametrize(
    ("precision", "kept", "tolerance"),
    [
        ("O0", ms.float32, "float32, many updates"),
        ("O2", ms.float32, "float16 network"),
        ("O0", ms.float16, "float16 network"),
    ],
)
@pytest.mark.filterwarnings("ignore:Parameter 'weight' and 1 more is float16")
def test_float16_and_a_dynamic_loss_scale(precision, kept, tolerance, eager):
    """Every worker's micro-batch counts for the scale; vectors are float32, weights stay as is."""
    twin, scale = Twin(2), DynamicLossScale(2.0**4, 2.0, 2)
    net, loss_net = regression()
    if kept == ms.float16:
        to_float16(net)
    step = AdasumStep(loss_net, momentum(net), workers=2, precision=precision, loss_scale=scale)
    scales, finite = [], [call != 4 for call in range(9)]
    for call in range(9):
        inputs, targets = rows(4, seed=call)
        targets *= np.float32(1 if finite[call] else np.nan)
        step(*tensors(inputs, targets))
        twin.micro_batch(inputs, targets)
        scales.append(float(step.gradient.loss_scale.asnumpy()))
    assert scales == twins.dynamic_loss_scale(finite, 2.0**4, 2.0, 2) and len(set(scales)) > 2
    assert_weights(net, twin, tolerance)
    assert step.last_update.gradient_norm == pytest.approx(twin.last["gradient_norm"], rel=1e-2)
    assert {parameter.dtype for parameter in net.trainable_params()} == {kept}
    assert {value.dtype for value in step.vectors().values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"nothing to combine: 1 worker \(1 virtual\); expected at least two workers"),
        ({"node_size": 2}, r"nothing to combine: 1 worker \(1 virtual, each the mean of 2\)"),
        ({"workers": 2, "node_size": 0}, "node_size: expected an integer >= 1, got 0"),
        ({"workers": 2, "tail": "carry"}, "tail: expected one of 'flush', 'drop', got 'carry'"),
        ({"worker": 2}, "unknown option 'worker'.*Did you mean 'workers'"),
        ({"workers": 2, "scope": "layers"}, "scope: .*got 'layers'. Did you mean 'layer'"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        build(options)


def test_workers_statistics_follow_one_another(eager):
    """Running statistics take each worker's micro-batch at once; the weights wait."""
    ms.set_seed(2)
    net = NormNet("batch")
    step = AdasumStep(LossNet(net, loss_fn()), momentum(net), workers=2)
    before = snapshot(net)
    step(*tensors(*digits(4)))
    after = snapshot(net)
    moved = {name for name in before if not np.array_equal(after[name], before[name])}
    assert moved and all("moving" in name for name in moved)
    step(*tensors(*digits(4, seed=1)))
    again = snapshot(net)
    assert all((again[name] != after[name]).any() for name in moved)


@pytest.mark.parametrize("options", [{}, {"on": "gradients"}, {"tail": "drop"}])
@pytest.mark.parametrize(
    ("make", "states", "by_vector"),
    [
        (lambda p: nn.Momentum(p, 0.1, 0.9), 1, True),
        (lambda p: nn.SGD(p, 0.1), 2, True),
        (lambda p: nn.Adam(p, 0.1), 2, True),
        (lambda p: AdamW(p, 0.1), 2, True),
        (lambda p: nn.RMSProp(p, 0.1), 2, False),
    ],
)
def test_memory_is_what_the_docstring_says(make, states, by_vector, options):
    """The step is built, not compiled; the weights are so large that the scalars do not count."""
    net = nn.Dense(64, 64)
    own = make(net.trainable_params())
    step = AdasumStep(LossNet(net, nn.CrossEntropyLoss()), own, workers=3, **options)
    held = {id(parameter): parameter.size for parameter in step.get_parameters()}
    copies = sum(held.values()) / sum(p.size for p in net.trainable_params())
    expected = 3 + states + 2
    if "on" not in options:
        expected = (1 + states) * 3 + (1 + by_vector) * states + 3 + 3 * states * len(options)
    assert copies == pytest.approx(expected, abs=0.1)
