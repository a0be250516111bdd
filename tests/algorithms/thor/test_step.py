"""THOR's step as a whole: against the float64 twin, update by update, and in training loops."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from mindspore.train import LossMonitor, Model

from labkit.algorithms.thor import ThorStep, ThorUpdate
from labkit.errors import InputError
from labkit.steps.plain import PlainStep
from labkit.training.evaluation import evaluate
from tests.support.step_cells import (
    Once,
    assert_bit_equal,
    assert_close,
    regression,
    rows,
    snapshot,
)
from tests.support.thor_cells import (
    DAMPING,
    FIRST,
    SECOND,
    Twin,
    call,
    factors,
    gradients,
    inverses,
    mlp,
    optimizer,
    same,
    thor_step,
    values,
)
from tests.support.tolerances import TOLERANCE

pytestmark = pytest.mark.usefixtures("runtime")

SCHEDULE = [0.1, 0.2, 0.4, 0.8, 0.4, 0.2, 0.1]


class TestAgainstTheTwin:
    """Every parameter after every update, seven updates with momentum and weight decay."""

    CASES = {
        "every update": {"frequency": 1},
        "every third": {"frequency": 3},
        "factors more often": {"frequency": 4, "factor_frequency": 2, "factor_decay": 0.5},
        "split, pi": {"frequency": 2, "split": 2, "damping_split": "pi"},
        "plain bias": {"frequency": 2, "bias": "plain"},
        "clipped": {"frequency": 2, "kl_clip": 1e-5},
        "damping by array": {"frequency": 2, "damping": SCHEDULE},
        "damping by function": {"frequency": 2, "damping": lambda update: SCHEDULE[update]},
    }

    @pytest.mark.parametrize("case", CASES)
    def test_parameters_and_losses(self, case, once):
        options = {"damping": DAMPING} | self.CASES[case]
        network, step = thor_step(once, **options)
        twin = Twin(values(network), **options)
        for update in range(7):
            came, expected = call(step, update), twin(*_rows64(update))
            assert came == pytest.approx(expected, rel=1e-5)
            assert_close(values(network), twin.parameters, **TOLERANCE["float32, many updates"])
        assert step.last_update.number == 7 and step.last_update.images == 8
        assert not step.update.retries.asnumpy().any()

    def test_the_cases_are_not_one_and_the_same(self):
        """Guards against an option that neither the step nor the twin looks at."""
        ends = []
        for options in self.CASES.values():
            network, _ = mlp()
            twin = Twin(values(network), **options)
            for update in range(7):
                twin(*_rows64(update))
            ends.append(np.concatenate([value.ravel() for value in twin.parameters.values()]))
        gaps = [np.abs(a - b).max() for i, a in enumerate(ends) for b in ends[:i]]
        assert sorted(gaps)[0] == 0 and sorted(gaps)[1] > 1e-3  # the array and the function

    def test_clipping_by_the_rates_of_groups(self):
        """sum over the layers of each one's own rate^2 <U, grad>."""
        network, loss_net = mlp()
        first, second = network[0].trainable_params(), network[2].trainable_params()
        groups = [{"params": second, "lr": 0.5}, {"params": first}]
        sgd = nn.SGD(groups, learning_rate=nn.ExponentialDecayLR(0.2, 0.5, 1))
        step = ThorStep(loss_net, sgd, DAMPING, frequency=1, kl_clip=1e-3)
        rates = [{FIRST: 0.2, SECOND: 0.5}, {FIRST: 0.1, SECOND: 0.5}]
        for update, rate in enumerate(rates):
            before = values(network)
            call(step, update)
            _, slopes, layers = gradients(before, *_rows64(update))
            free = Twin(before, frequency=1).thor
            free._observe(before, layers)
            free._refresh(DAMPING)
            made = free.directions(slopes, layers)
            total = sum(
                rate[name.split(".")[0]] ** 2 * np.sum(made[name] * slopes[name]) for name in made
            )
            assert total > 2e-3  # it is clipped
            factor = np.sqrt(1e-3 / total)
            expected = {
                name: before[name] - rate[name.split(".")[0]] * factor * made[name] for name in made
            }
            assert_close(values(network), expected, **TOLERANCE["float32, a few updates"])


def _rows64(seed, count=8):
    return tuple(part.astype(np.float64) for part in rows(count, seed))


class TestWhenItRefreshes:
    def history(self, once, updates, **options):
        """Train; return (updates whose factors were gathered, updates whose inverses were made)."""
        _, step = thor_step(once, **options)
        gathered, made = [], []
        for update in range(updates):
            before = factors(step.update), inverses(step.update)
            call(step, update)
            after = factors(step.update), inverses(step.update)
            gathered += [update] if not same(before[0], after[0]) else []
            made += [update] if not same(before[1], after[1]) else []
        return gathered, made

    CASES = {
        "1": ({"frequency": 1}, [*range(7)], [*range(7)]),
        "3": ({"frequency": 3}, [0, 3, 6], [0, 3, 6]),
        "4, factors every 2": ({"frequency": 4, "factor_frequency": 2}, [0, 2, 4, 6], [0, 4]),
        # A refresh takes that update's factors, and the next are counted from it.
        "4, factors every 3": ({"frequency": 4, "factor_frequency": 3}, [0, 3, 4], [0, 4]),
        "2, factors every 5": ({"frequency": 2, "factor_frequency": 5}, [0, 2, 4, 6], [0, 2, 4, 6]),
        "1, and 3 from update 3 on": (
            {"frequency": lambda update: 1 if update < 3 else 3},
            [0, 1, 2, 5],
            [0, 1, 2, 5],
        ),
        "factors by a function": (
            {"frequency": 5, "factor_frequency": lambda update: 4 - min(update, 3)},
            [0, 2, 3, 4, 5, 6],
            [0, 5],
        ),
    }

    @pytest.mark.parametrize("case", ["3", "4, factors every 3", "1, and 3 from update 3 on"])
    def test_in_the_state(self, case, once):
        """Between refreshes factors and inverses stay, to the bit."""
        options, gathered, made = self.CASES[case]
        assert self.history(once, 7, **options) == (gathered, made)

    @pytest.mark.parametrize("case", CASES)
    def test_by_the_rule(self, case):
        """The same, without training: every update asks, as the step does."""
        options, gathered, made = self.CASES[case]
        network, loss_net = mlp()
        update = ThorUpdate(loss_net, optimizer(network), DAMPING, **options)
        came = [], []
        last = [-1, -1]
        for number in range(7):
            ms.ops.assign(update.last_factors, ms.Tensor(last[0], ms.int32))
            ms.ops.assign(update.last_refresh, ms.Tensor(last[1], ms.int32))
            if update.wants_extras(number):
                came[0].append(number)
                last[0] = number
                if update.frequency.is_due(number, last[1]):
                    came[1].append(number)
                    last[1] = number
        assert came == (gathered, made)

    def test_a_dropped_batch_does_not_count(self, once):
        _, step = thor_step(once, frequency=2, nan="drop")
        made = []
        for number, scale in enumerate([np.nan, 1, 1, np.nan, np.nan, 1, 1]):
            before = inverses(step.update)
            call(step, number, scale=scale)
            made += [number] if not same(before, inverses(step.update)) else []
        assert made == [1, 5]
        assert step.last_update.number == 4 and int(step.dropped.asnumpy()) == 3

    def test_frequency_of_no_use(self):
        for wrong in (0, 2.0, True, None, "3"):
            network, loss_net = mlp()
            with pytest.raises(InputError, match=f"frequency is {wrong!r}; expected an integer"):
                ThorStep(loss_net, optimizer(network), DAMPING, frequency=wrong)
            assert type(network[0]) is nn.Dense

    def test_a_function_that_returns_none(self):
        network, loss_net = mlp()
        step = ThorStep(loss_net, optimizer(network), DAMPING, frequency=lambda update: 0)
        before = snapshot(step)
        with pytest.raises(InputError, match="frequency is 0; expected an integer >= 1"):
            call(step, 0)
        assert_bit_equal(snapshot(step), before)


class TestWithTheLoops:
    """What a training loop does beside the step leaves no trace in its state."""

    def test_evaluation_between_the_updates(self, once):
        """A training with evaluations ends as the one without, to the bit."""
        ends = []
        for evaluated in (False, True):
            # A new one: its graph between refreshes is compiled after the first evaluation.
            network, step = thor_step(Once() if evaluated else once, frequency=3)
            for update in range(5):
                call(step, update)
                if evaluated:
                    before = snapshot(step)
                    found = evaluate(network, _SquaredError(), _classes())
                    assert np.isfinite(found["loss"])
                    assert_bit_equal(snapshot(step), before)
                    assert network.training
            ends.append(snapshot(step))
        assert_bit_equal(*ends)

    def test_in_model_with_stock_callbacks(self, once, capfd):
        network, step = thor_step(once, frequency=3)
        twin = Twin(values(network), frequency=3)
        inputs, targets = rows(32)
        data = ms.dataset.NumpySlicesDataset((inputs, targets), ["x", "y"], shuffle=False).batch(8)
        Model(step).train(2, data, [LossMonitor(1)], dataset_sink_mode=False)
        assert capfd.readouterr().out.count("loss is") == 8
        for _ in range(2):
            for part in range(4):
                cut = slice(8 * part, 8 * part + 8)
                twin(inputs[cut].astype(np.float64), targets[cut].astype(np.float64))
        assert_close(values(network), twin.parameters, **TOLERANCE["float32, many updates"])

    def test_a_step_is_what_plain_step_with_the_update_stage_is(self):
        states = []
        for spelt in (False, True):
            network, loss_net = mlp()
            momentum = optimizer(network)
            if spelt:
                update = ThorUpdate(loss_net, momentum, DAMPING, frequency=2)
                step = PlainStep(loss_net, momentum, update=update, clip_norm=0.5)
            else:
                step = ThorStep(loss_net, momentum, DAMPING, frequency=2, clip_norm=0.5)
            for update in range(3):
                call(step, update)
            states.append(snapshot(step))
        assert_bit_equal(*states)

    def test_release_gives_the_layers_back(self):
        """Also of a network that is one layer, and that O2 has wrapped."""
        for options in ({}, {"precision": "O2"}):
            for network, loss_net in (mlp(), regression()):
                layers = [c for _, c in loss_net.cells_and_names() if isinstance(c, nn.Dense)]
                names = [p.name for p in loss_net.get_parameters()]
                step = ThorStep(loss_net, optimizer(network), DAMPING, **options)
                step.update.release()
                step.update.release()
                cells = [cell for _, cell in loss_net.cells_and_names()]
                assert not any(hasattr(cell, "taps_thor") for cell in cells)
                assert [cell for cell in cells if isinstance(cell, nn.Dense)] == layers
                assert [p.name for p in loss_net.get_parameters()] == names

    def test_a_refused_step_leaves_the_network_as_it_was(self):
        network, loss_net = mlp()
        names = [type(cell) for _, cell in loss_net.cells_and_names()]
        for wrong in (
            {"freqency": 1},
            {"los_scale": 1.0},
            {"precision": "O9"},
            {"damping": 0.0},
            {"normalise": "tokens"},
        ):
            with pytest.raises((InputError, TypeError)):
                ThorStep(loss_net, optimizer(network), wrong.pop("damping", DAMPING), **wrong)
            assert [type(cell) for _, cell in loss_net.cells_and_names()] == names


class _SquaredError(nn.Cell):
    """Loss for ``evaluate``, which hands over labels (B,)."""

    def construct(self, logits, labels):
        return ms.ops.mean(ms.ops.square(logits[:, 0] - labels))


def _classes():
    """Rows with labels."""
    inputs, targets = rows(8, 99)
    labels = (targets[:, 0] > 0).astype(np.int32)
    return ms.dataset.NumpySlicesDataset((inputs, labels), ["x", "y"], shuffle=False).batch(4)
