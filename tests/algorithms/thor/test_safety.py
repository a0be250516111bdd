"""What THOR does when something is wrong: it says what, and leaves what was right as it was."""

import numpy as np
import pytest

from labkit.algorithms.thor import ThorUpdate
from labkit.algorithms.thor.inverses import Inverses
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.gradients import set_state
from tests.support.step_cells import assert_bit_equal, assert_close, rows, snapshot, tensors
from tests.support.thor_cells import (
    DAMPING,
    FIRST,
    Twin,
    call,
    inverses,
    mlp,
    optimizer,
    thor_step,
    values,
)
from tests.support.tolerances import TOLERANCE

pytestmark = pytest.mark.usefixtures("runtime")

NAN = np.float32(np.nan)


@pytest.fixture
def build(once):
    """``build(damping, **options)``: (network, step), as new."""

    def make(damping=DAMPING, **options):
        return thor_step(once, damping, **options)

    return make


class TestNanLoss:
    def poison(self, kind, network, inputs, targets):
        """Make the loss NaN or infinite; return (inputs, targets, what is to be said)."""
        if kind == "weight":
            broken = network[2].weight.asnumpy()
            broken[0, 1] = NAN
            set_state(network[2].weight, broken)
            return inputs, targets, "weight '2.weight' of layer '2' is not finite"
        if kind == "input":
            return inputs * NAN, targets, "the batch's tensor 0 is not finite"
        if kind == "target":
            return inputs, targets * NAN, "the batch's tensor 1 is not finite"
        if kind == "layer":
            # tanh is 1 everywhere, and four times 3e38 is more than float32 holds.
            set_state(network[0].bias, np.full(4, 50.0, np.float32))
            set_state(network[2].weight, np.full((2, 4), 3e38, np.float32))
            return inputs, targets, "layer '2' is the first whose output is not finite"
        set_state(network[2].weight, network[2].weight.asnumpy() * np.float32(1e25))
        return inputs, targets, "all layers' outputs are finite, the loss function's is not"

    # The first call refreshes, the second one is cached.
    @pytest.mark.parametrize("kind", ["weight", "input", "target", "layer", "loss"])
    def test_stops_with_the_name(self, kind, build):
        network, step = build(frequency=2)
        call(step, 0)
        inputs, targets, said = self.poison(kind, network, *rows(8, 1))
        before = snapshot(step)
        for calls in (1, 2):
            with pytest.raises(FloatingPointError, match=said) as raised:
                step(*tensors(inputs, targets))
            assert "at update 2" in str(raised.value) and "damping (now 0.1)" in str(raised.value)
            after = snapshot(step)
            assert after.pop("step.dropped") == calls
            assert_bit_equal(after, {n: v for n, v in before.items() if n != "step.dropped"})

    def test_the_first_batch_of_all(self, build):
        _, step = build()
        with pytest.raises(FloatingPointError, match="at update 1: the batch's tensor 0"):
            call(step, 0, scale=NAN)
        assert step.last_update.number == 0

    def test_training_goes_on_with_drop(self, build):
        """As if the batch had never been there."""
        network, step = build(frequency=2, nan="drop")
        twin = Twin(values(network), frequency=2)
        for number in range(5):
            assert np.isnan(call(step, number, scale=NAN))
            call(step, number)
            twin(*(part.astype(np.float64) for part in rows(8, number)))
        assert_close(values(network), twin.parameters, **TOLERANCE["float32, many updates"])
        assert int(step.dropped.asnumpy()) == 5


class TestNanFactor:
    def test_stops_and_leaves_averages_and_weights(self, build):
        """Where nobody checks the gradients, the factors are checked before the update."""
        network, step = build(frequency=1, factor_decay=0.5, nonfinite="propagate")
        twin = Twin(values(network), frequency=1, factor_decay=0.5)
        call(step, 0)
        before = snapshot(network) | inverses(step.update)
        kept = snapshot(step.update.layers)
        with pytest.raises(FloatingPointError, match="factors of layer '0' are not finite at upd"):
            call(step, 1, scale=NAN)
        assert_bit_equal(snapshot(network) | inverses(step.update), before)
        positions = {name for name in kept if "positions" in name}
        assert_bit_equal(
            {n: v for n, v in snapshot(step.update.layers).items() if n not in positions},
            {n: v for n, v in kept.items() if n not in positions},
        )
        assert step.last_update.number == 1
        # And goes on from there.
        call(step, 1)
        for number in range(2):
            twin(*(part.astype(np.float64) for part in rows(8, number)))
        assert_close(values(network), twin.parameters, **TOLERANCE["float32, many updates"])

    def test_a_cached_update_lets_it_through(self, build):
        """nonfinite="propagate" is what its name says; the NaN loss then stops the training."""
        network, step = build(frequency=2, nonfinite="propagate")
        call(step, 0)
        with pytest.raises(FloatingPointError, match="the loss is nan"):
            call(step, 1, scale=NAN)
        assert np.isnan(network[0].weight.asnumpy()).all()


class TestInversion:
    def degenerate(self, build, damping, scale):
        """Inputs of rank 1 and that size, on weights that make up for it."""
        network, step = build(damping, frequency=1, split=None)
        set_state(network[0].weight, network[0].weight.asnumpy() / np.float32(scale))
        inputs, targets = rows(8)
        inputs = np.ones_like(inputs) * inputs[:, :1] * np.float32(scale)
        return network, step, tensors(inputs, targets)

    def test_is_retried_with_ten_times_the_damping(self, build):
        """float32 has no inverse of a rank-1 matrix of trace 1e4 plus 1e-3 on its diagonal."""
        network, step, batch = self.degenerate(build, 1e-6, 100.0)
        before = values(network)
        step(*batch)
        retries = dict(zip(("0", "2"), step.update.retries.asnumpy().tolist(), strict=True))
        assert 0 < retries[FIRST] < 7
        layer = step.update.layers[0]
        assert layer.layer_name == FIRST
        # What it is the inverse of: the damping is 10^retries times what was asked for.
        damping = np.sqrt(1e-6 * 10 ** retries[FIRST])
        damped = layer.a_factor.asnumpy()[0].astype(np.float64) + damping * np.eye(4)
        residual = layer.a_inverse.asnumpy()[0] @ damped - np.eye(4)
        assert np.abs(residual).max() < 0.05
        assert all(np.isfinite(value).all() for value in values(network).values())
        assert any((before[name] != value).any() for name, value in values(network).items())
        step(*batch)
        again = dict(zip(("0", "2"), step.update.retries.asnumpy().tolist(), strict=True))
        assert again[FIRST] > retries[FIRST]  # counted over the whole training
        assert float(step.update.damping.asnumpy()) == np.float32(1e-6)  # as asked for

    def test_a_sound_layer_is_not_retried(self, build):
        _, step = build(frequency=1)
        call(step, 0)
        assert step.update.retries.asnumpy().tolist() == [0, 0]

    def test_no_damping_helps(self, build):
        network, step, batch = self.degenerate(build, 1e-20, 1e6)
        before = snapshot(step)
        with pytest.raises(FloatingPointError, match="layer '0' have no inverse.*1e-14"):
            step(*batch)
        after = snapshot(step)
        changed = {name for name in before if not np.array_equal(before[name], after[name])}
        assert step.last_update.number == 0
        assert not changed & {p.name for p in network.get_parameters()}
        assert not any("retries" in name or "refreshes" in name for name in changed)


def _accumulated():
    network, loss_net = mlp()
    momentum = optimizer(network)
    update = ThorUpdate(loss_net, momentum, DAMPING, frequency=2)
    return network, AccumulatedStep(loss_net, momentum, 2, update=update)


def _interrupted(*arguments):
    raise KeyboardInterrupt


class TestInterrupted:
    """Stopped between the graph that gathers and the one that updates: the update was not made."""

    def interrupt(self, step, number, monkeypatch):
        """Call the step and interrupt it; no weight, moment or counter has changed."""
        before = snapshot(step)
        with monkeypatch.context() as patch:
            patch.setattr(Inverses, "make", _interrupted)
            with pytest.raises(KeyboardInterrupt):
                call(step, number)
        after = snapshot(step)
        held = ("held.", "thor.", "grad_sum.", "step.last_", "step.thor.held", "step.thor.seen")
        # A group's sums are cleared in the graph that holds its gradients.
        held += ("step.images", "step.loss_sum", "step.weight_sum", "step.micro_step")
        names = {name for name in before if not name.startswith(held)}
        assert {"0.weight", "moments.0.weight", "step.updates", "step.thor.refreshes"} <= names
        assert_bit_equal({n: after[n] for n in names}, {n: before[n] for n in names})

    @pytest.mark.parametrize("at", [0, 2])
    def test_the_batch_can_be_given_again(self, monkeypatch, at, build):
        states = []
        for interrupted in (False, True):
            _, step = build(frequency=2)
            for number in range(4):
                if interrupted and number == at:
                    self.interrupt(step, number, monkeypatch)
                call(step, number)
            states.append(snapshot(step))
        assert_bit_equal(*states)

    def test_or_left_out(self, monkeypatch, build):
        """What was held of it is not applied with a later one."""
        states = []
        for interrupted in (False, True):
            _, step = build(frequency=2)
            if interrupted:
                self.interrupt(step, 99, monkeypatch)
            for number in range(3):
                call(step, number)
            states.append(snapshot(step))
        assert_bit_equal(*states)

    def test_a_group_of_micro_batches_is_left_out(self, monkeypatch, once):
        """The next group starts anew, and is the only one that is applied."""
        states = []
        for interrupted in (False, True):
            _, step = once(_accumulated)
            if interrupted:
                call(step, 98)
                self.interrupt(step, 99, monkeypatch)
            for number in range(4):
                call(step, number)
            assert step.last_update.number == 2
            states.append(snapshot(step))
        assert_bit_equal(*states)
