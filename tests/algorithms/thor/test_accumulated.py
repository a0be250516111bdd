"""THOR on accumulated gradients: k micro-batches are one THOR update of the whole batch."""

import numpy as np
import pytest

from labkit.algorithms.thor import ThorStep, ThorUpdate
from labkit.labs.compare import parameter_values
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.gradients import set_state
from tests.support.step_cells import assert_bit_equal, assert_close, rows, snapshot, split
from tests.support.thor_cells import DAMPING, factors, inverses, mlp, optimizer, same
from tests.support.tolerances import TOLERANCE

pytestmark = pytest.mark.usefixtures("runtime")


# Updates between refreshes; a function, so that steps that differ in it are compiled once.
EVERY = {"value": 2}


def due(update):
    return EVERY["value"]


def build(kind, **options):
    """(network, step) with the frequency ``EVERY``: "whole" batches, or "accumulated" ones."""
    network, loss_net = mlp()
    momentum = optimizer(network)
    if kind == "whole":
        return network, ThorStep(loss_net, momentum, DAMPING, frequency=due)
    thor = ThorUpdate(loss_net, momentum, DAMPING, frequency=due, nan="drop")
    return network, AccumulatedStep(loss_net, momentum, 2, update=thor, **options)


@pytest.fixture
def accumulated(once):
    """``accumulated(micro_steps, frequency, ...)``: (network, step) as new."""

    def make(micro_steps, frequency=2, tail="flush", **options):
        EVERY["value"] = frequency
        network, step = once(build, "accumulated", **options)
        step.tail = tail  # read between the compiled graphs
        set_state(step.group_size, micro_steps)
        return network, step

    return make


@pytest.fixture
def whole(once):
    """``whole(batches, frequency)``: THOR on whole batches of arrays; (network, step)."""

    def train(batches, frequency=2):
        EVERY["value"] = frequency
        network, step = once(build, "whole")
        for arrays in batches:
            step(*split(arrays, [len(arrays[0])])[0])
        return network, step

    return train


def joined(*batches):
    """Several batches' rows as one."""
    return tuple(np.concatenate(parts) for parts in zip(*batches, strict=True))


def assert_same_training(came, expected):
    """(network, step) twice: parameters and factors, and the update that is noted."""
    tolerance = TOLERANCE["float32, a few updates"]
    assert_close(parameter_values(came[0]), parameter_values(expected[0]), **tolerance)
    assert_close(factors(came[1].update), factors(expected[1].update), **tolerance)
    one, other = came[1].last_update, expected[1].last_update
    assert (one.number, one.images) == (other.number, other.images)
    assert one.loss == pytest.approx(other.loss, rel=1e-5)
    assert one.gradient_norm == pytest.approx(other.gradient_norm, rel=1e-5)


@pytest.mark.parametrize("sizes", [(4, 4), (4, 3, 1)], ids=["even", "uneven"])
def test_micro_batches_are_the_batch(sizes, accumulated, whole):
    """Refreshed, cached, refreshed; micro-batches weigh as many as they have rows."""
    batches = [rows(8, seed) for seed in range(3)]
    network, step = accumulated(len(sizes))
    for arrays in batches:
        for part in split(arrays, sizes):
            before = parameter_values(network)
            step(*part)
        assert any((before[n] != now).any() for n, now in parameter_values(network).items())
    assert_same_training((network, step), whole(batches))


def test_by_steps_each_micro_batch_weighs_the_same(accumulated, whole):
    """normalise="steps": factors are the mean of the micro-batches' factors."""
    batch = rows(5)
    network, step = accumulated(2, normalise="steps")
    for part in split(batch, (4, 1)):
        step(*part)
    parts = [[part[:4] for part in batch], [part[4:] for part in batch]]
    means = [factors(whole([part])[1].update) for part in parts]
    expected = {name: (means[0][name] + means[1][name]) / 2 for name in means[0]}
    assert_close(factors(step.update), expected, **TOLERANCE["float32, a few updates"])


def test_a_group_refreshes_once_and_at_its_end(accumulated):
    network, step = accumulated(3)
    states = [inverses(step.update)]
    for seed in range(9):
        step(*split(rows(4, seed), [4])[0])
        states.append(inverses(step.update))
    changed = [i for i in range(9) if not same(states[i], states[i + 1])]
    assert changed == [2, 8]
    assert step.update.refreshes.asnumpy().tolist() == [2, 2]


@pytest.mark.parametrize("tail", ["flush", "drop", "carry"])
def test_the_tail_of_an_epoch(tail, accumulated, whole):
    """Two of three micro-batches of a refreshing group, and the epoch is over."""
    parts = [rows(4, seed) for seed in range(8)]
    network, step = accumulated(3, frequency=1, tail=tail)
    for arrays in parts[:2]:
        step(*split(arrays, [4])[0])
    step.end_epoch()
    assert step.last_update.number == (tail == "flush")
    for arrays in parts[2:5]:
        step(*split(arrays, [4])[0])
    expected = {
        "flush": [joined(*parts[:2]), joined(*parts[2:5])],
        "drop": [joined(*parts[2:5])],
        "carry": [joined(*parts[:5])],
    }
    assert_same_training((network, step), whole(expected[tail], frequency=1))
    step.end_epoch()  # nothing is held
    assert step.last_update.number == len(expected[tail])


def test_a_cached_group_is_flushed_without_a_refresh(accumulated, whole):
    parts = [rows(4, seed) for seed in range(3)]
    network, step = accumulated(2, frequency=5)
    for arrays in parts:
        step(*split(arrays, [4])[0])
    before = inverses(step.update)
    step.end_epoch()
    assert same(before, inverses(step.update))
    assert_same_training((network, step), whole([joined(*parts[:2]), parts[2]], frequency=5))


def test_dropped_micro_batches(accumulated, whole):
    """One that is not finite leaves no trace in the factors: neither of its own nor as a weight."""
    parts = [rows(4, seed) for seed in range(4)]
    broken = (parts[0][0] * np.float32(np.nan), parts[0][1])
    network, step = accumulated(3, frequency=1)
    # First, in the middle, last; and a group of nothing else, which is no update.
    order = [broken, parts[0], parts[1], parts[2], broken, parts[3]] + [broken] * 3
    for arrays in order:
        step(*split(arrays, [4])[0])
    assert int(step.dropped.asnumpy()) == 5
    expected = [joined(*parts[:2]), joined(*parts[2:])]
    assert_same_training((network, step), whole(expected, frequency=1))


def test_dropped_groups(accumulated, whole):
    """drop_group forgets the sums of the factors as well; the next group starts anew."""
    parts = [rows(4, seed) for seed in range(4)]
    broken = (parts[0][0] * np.float32(np.nan), parts[0][1])
    network, step = accumulated(2, frequency=1, nonfinite="drop_group")
    before = snapshot(step.update)
    for arrays in (parts[0], broken):
        step(*split(arrays, [4])[0])
    assert_bit_equal(snapshot(step.update), before)
    for arrays in parts[2:]:
        step(*split(arrays, [4])[0])
    assert_same_training((network, step), whole([joined(*parts[2:])], frequency=1))


def test_a_schedule_of_micro_steps(whole):
    """And a frequency that is a number."""
    parts = [rows(4, seed) for seed in range(6)]
    network, loss_net = mlp()
    momentum = optimizer(network)
    thor = ThorUpdate(loss_net, momentum, DAMPING, frequency=2)
    step = AccumulatedStep(loss_net, momentum, lambda updates: updates + 1, update=thor)
    for arrays in parts:
        step(*split(arrays, [4])[0])
    expected = [parts[0], joined(*parts[1:3]), joined(*parts[3:])]
    assert_same_training((network, step), whole(expected))
