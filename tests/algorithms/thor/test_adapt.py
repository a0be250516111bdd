"""Adaptive rules: the trace rule by layer, and Levenberg-Marquardt damping."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

import labkit.steps.graph
from labkit import reference
from labkit.algorithms.thor import LevenbergMarquardt, ThorStep, ThorUpdate, TraceRule
from labkit.algorithms.thor.rules import Damping
from labkit.errors import InputError
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.forward_state import running_statistics
from labkit.steps.losses import LossNet
from labkit.steps.state import set_state
from tests.support.step_cells import assert_close, rows, tensors
from tests.support.thor_cells import (
    DAMPING,
    FIRST,
    SECOND,
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


class Counted(nn.Cell):
    """A network that counts its forward passes."""

    def __init__(self, network):
        super().__init__()
        self.network = network
        self.calls = Parameter(Tensor(0, ms.int32), name="calls", requires_grad=False)

    def construct(self, inputs):
        counted = ops.assign_add(self.calls, 1)
        return ops.depend(self.network(inputs), counted)


class TestTraceRule:
    pytestmark = pytest.mark.usefixtures("eager")

    # Scales of the inputs of the updates, with weights that do not move. The first layer's A grows
    # with the square of the scale, the second layer's is bounded by tanh.
    SCALES = (1.0, 0.52, 1.64, 1.78, 1.78, 1.79, 2.0)

    def run(self, once, rule, updates=SCALES, **options):
        """Yield (step, twin) after every update; the weights stay as they are."""
        network, step = thor_step(once, frequency=1, trace_rule=TraceRule(*rule), **options)
        set_state(step.optimizer.learning_rate, 1e-30)
        twin = Twin(
            values(network),
            learning_rate=1e-30,
            frequency=1,
            trace_rule=reference.TraceRule(*rule),
            **options,
        )
        inputs, targets = rows(8)
        for scale in updates:
            before = inverses(step.update)
            step(*tensors(inputs * np.float32(scale), targets))
            twin(inputs * np.float64(np.float32(scale)), targets.astype(np.float64))
            yield step.update, twin.thor, before

    def test_planted_changes(self, once):
        """Each layer's decision is the twin's; only refreshed layers get new inverses."""
        kinds, apart = set(), 0
        for update, twin, before in self.run(once, (0.3, 0.05), factor_decay=0.5):
            assert update.decisions == twin.decisions
            after = inverses(update)
            for layer, decision in update.decisions.items():
                kinds.add(decision)
                for name in (f"{layer}.a_inverse", f"{layer}.g_inverse"):
                    moved = not np.array_equal(before[name], after[name])
                    assert moved == (decision == "refresh"), (layer, decision)
            apart += len(set(update.decisions.values())) > 1
            frozen = dict(zip(update.decisions, update.frozen.asnumpy(), strict=True))
            assert {name for name, flag in frozen.items() if flag} == twin.frozen
        assert kinds == {"refresh", "skip", "freeze"} and apart

    def test_frozen_layers_stay_frozen_and_gather_no_more_factors(self, monkeypatch, once):
        """They stay frozen, however much the factors would change later."""
        calls = []
        gather = labkit.steps.graph.WithExtras.__call__
        noted = lambda graph, *batch: calls.append(True) or gather(graph, *batch)  # noqa: E731
        monkeypatch.setattr(labkit.steps.graph.WithExtras, "__call__", noted)
        for update, _, _ in self.run(once, (0.5, 0.02), (1.0, 1.0, 9.0, 1.0)):
            decisions = update.decisions
        assert decisions == {FIRST: "freeze", SECOND: "freeze"}
        assert update.refreshes.asnumpy().tolist() == [1, 1] and len(calls) == 2


RULE = LevenbergMarquardt(0.5)


def _line(**options):
    network = nn.Dense(3, 1)
    sgd = nn.SGD(network.trainable_params(), 0.1)
    loss_net = LossNet(network, nn.MSELoss())
    return network, ThorStep(loss_net, sgd, 1.0, frequency=1, adapt_damping=RULE, **options)


class Line:
    """Linear regression with one output whose errors are all +-c.

    G is then (2 c)^2 for every row, and F = G (x) A is not an approximation; the Hessian is
    2 E[p p^T]. With c^2 = 1/2 they are equal: the quadratic model is the loss itself.

    size  scale of the inputs, relative to numbers of order 1
    """

    def __init__(self, once, c, damping, *, rate=0.1, rule=RULE, size=1.0, **options):
        self.network, self.step = once(_line, **options)
        self.thor = self.step.update
        set_state(self.step.optimizer.learning_rate, rate)
        # Both are read between graphs.
        self.thor.schedule, self.thor.adaptation.rule = Damping(damping), rule
        random = np.random.default_rng(5)
        set_state(self.network.weight, random.normal(size=(1, 3)).astype(np.float32))
        self.inputs = (size * random.normal(size=(16, 3))).astype(np.float32)
        signs = np.where(np.arange(16) % 3 == 0, 1.0, -1.0)[:, None]
        outputs = self.inputs @ self.network.weight.asnumpy().T + self.network.bias.asnumpy()
        self.targets = (outputs + c * signs).astype(np.float32)

    def weights(self):
        return [p.asnumpy().astype(np.float64) for p in (self.network.weight, self.network.bias)]

    def update(self):
        """Update once; return (change of the loss, the move (1, 4), the gradient (1, 4))."""
        arrays = self.inputs.astype(np.float64), self.targets.astype(np.float64)
        before = self.weights()
        loss, slopes = reference.linear_regression(*before, *arrays)
        self.step(*tensors(self.inputs, self.targets))
        after = self.weights()
        change = reference.linear_regression(*after, *arrays)[0] - loss
        pairs = zip(after, before, strict=True)
        move = np.concatenate([(a - b).ravel() for a, b in pairs])[None]
        return change, move, np.concatenate([slope.ravel() for slope in slopes])[None]


class TestLevenbergMarquardt:
    @pytest.mark.parametrize("damping", [1e-4, 100.0])
    def test_rho_where_the_model_is_exact(self, damping, once):
        """rho = dL / (dL + damping |s|^2 / 2): only the damping's term is in excess."""
        line = Line(once, np.sqrt(0.5), damping)
        change, move, _ = line.update()
        predicted = change + 0.5 * damping * np.sum(move**2)
        # The difference of float32 losses of 0.5 has a relative error of 1e-7 / change.
        assert line.thor.adaptation.rho == pytest.approx(
            change / predicted, rel=1e-4, abs=3e-7 / abs(change)
        )

    def test_rho_against_the_twin(self, once):
        """F is not the Hessian, and the twin's factors are in float64."""
        c = 2.0
        line = Line(once, c, 0.05)
        arrays = line.inputs.astype(np.float64), np.full((16, 1), 2 * c / 16)
        a_factor, g_factor, positions = reference.kronecker_factors(*arrays, homogeneous=True)
        change, move, slope = line.update()
        quadratic = reference.fisher_quadratic(a_factor, g_factor, positions, move[None], 0.05)
        rho, damping = reference.levenberg_marquardt(
            0.05, 0.0, change, np.sum(slope * move), quadratic, omega=0.5, interval=1
        )
        assert line.thor.adaptation.rho == pytest.approx(rho, rel=1e-3)
        assert float(line.thor.damping.asnumpy()) == pytest.approx(damping)

    def test_a_good_prediction_lowers_the_damping(self, once):
        line = Line(once, np.sqrt(0.5), 1e-2)
        line.update()
        assert line.thor.adaptation.rho > 0.75
        assert float(line.thor.damping.asnumpy()) == pytest.approx(0.5e-2)

    def test_a_bad_one_raises_it(self, once):
        """F is 1/25 of the Hessian: a whole step goes far beyond the minimum."""
        line = Line(once, np.sqrt(0.02), 1e-2, rate=1.0)
        change, _, _ = line.update()
        assert change > 0 and line.thor.adaptation.rho < 0.25
        assert float(line.thor.damping.asnumpy()) == pytest.approx(2e-2)

    @pytest.mark.parametrize("clip_norm, size, times", [(8, 80, 10), (8, 1, 0.1)])
    def test_rho_of_a_clipped_gradient(self, clip_norm, size, times, once, eager):
        """Clipping shortens the move, not the slope; with a clipped slope rho was |g| / clip_norm.

        Measured: 1.0010 and 1.0000 if it is clipped to a tenth, 1.0000 if it is not clipped.
        """
        line = Line(once, np.sqrt(0.5), 1e-4, size=size, clip_norm=float(clip_norm))
        change, move, slope = line.update()
        norm = np.sqrt(np.sum(slope**2))
        assert 0.5 < norm / clip_norm / times < 2
        assert line.step.last_update.gradient_norm == pytest.approx(norm, rel=1e-3)
        predicted = change + 0.5e-4 * np.sum(move**2)
        assert line.thor.adaptation.rho == pytest.approx(change / predicted, rel=1e-2)
        assert float(line.thor.damping.asnumpy()) == pytest.approx(0.5e-4)

    def test_the_next_refresh_uses_it_and_cached_updates_leave_it(self, eager):
        network, loss_net = mlp()
        rule = LevenbergMarquardt(0.5)
        options = {"frequency": 2}
        step = ThorStep(loss_net, optimizer(network), DAMPING, adapt_damping=rule, **options)
        start, dampings = values(network), [DAMPING]
        for update in range(6):
            call(step, update)
            dampings.append(float(step.update.damping.asnumpy()))
            assert update % 2 == 0 or dampings[-1] == dampings[-2]
        assert len(set(dampings)) > 2
        # An array of the dampings that it has used gives the same training.
        twin = Twin(start, damping=dampings[:-1], **options)
        for update in range(6):
            twin(*(part.astype(np.float64) for part in rows(8, update)))
        assert_close(values(network), twin.parameters, **TOLERANCE["float32, many updates"])

    def test_what_else_a_forward_pass_assigns_is_assigned_once(self, eager):
        network = Counted(nn.SequentialCell(nn.Dense(3, 4), nn.Tanh(), nn.Dense(4, 2)))
        loss_net = LossNet(network, nn.MSELoss())
        rule = LevenbergMarquardt()
        step = ThorStep(loss_net, optimizer(network), 0.1, frequency=1, adapt_damping=rule)
        for update in range(2):
            call(step, update)
            assert np.isfinite(step.update.adaptation.rho)
        assert int(network.calls.asnumpy()) == 2

    def test_running_statistics_see_each_batch_once(self, eager):
        """The loss after the update takes another forward pass, which leaves no trace."""
        statistics = []
        for rule in (None, LevenbergMarquardt()):
            random = np.random.default_rng(1)
            layers = nn.Dense(3, 4), nn.BatchNorm1d(4), nn.Dense(4, 2)
            for layer in layers[::2]:
                for parameter in layer.get_parameters():
                    set_state(parameter, random.normal(size=parameter.shape).astype(np.float32))
            network = nn.SequentialCell(*layers)
            loss_net = LossNet(network, nn.MSELoss())
            step = ThorStep(loss_net, optimizer(network), 0.1, frequency=1, adapt_damping=rule)
            call(step, 0)
            call(step, 1)
            statistics.append([p.asnumpy().copy() for p in running_statistics(network)])
            if rule is not None:
                # A separate request for the loss leaves no trace either.
                inputs, targets = tensors(*rows(8, 7))
                step.update.adaptation._loss(step, (inputs, targets))
                for kept, now in zip(statistics[1], running_statistics(network), strict=True):
                    np.testing.assert_array_equal(now.asnumpy(), kept)
        # The first update has the same damping in both, so the second batch's statistics agree.
        for first, second in zip(*statistics, strict=True):
            np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-7)
            assert np.abs(first).max() > 0

    def test_on_ranks_the_loss_is_averaged_by_the_labels_that_count(self, eager):
        """The loss is averaged as ``step.last_loss`` is.

        Averaged by rows, 4 and 4, it was 1.0 above this rank's loss instead of 1.6.
        """
        network = nn.Dense(3, 4)
        sgd = nn.SGD(network.trainable_params(), 0.1)
        loss_net = LossNet(network, nn.CrossEntropyLoss())
        step = ThorStep(loss_net, sgd, 1.0, adapt_damping=LevenbergMarquardt())
        batch = tensors(rows(4)[0], np.array([0, -100, -100, -100], np.int32))
        here = float(loss_net(*batch).asnumpy())
        assert step.update.adaptation._loss(step, batch) == pytest.approx(here)
        other = Tensor([4 * (here + 2.0), 4.0], ms.float32)  # another rank's four labels
        step.gradient.ranks, step.gradient.all_reduce = 2, lambda sums: sums + other
        assert step.update.adaptation._loss(step, batch) == pytest.approx(here + 1.6)

    def test_not_with_accumulation(self):
        network, loss_net = mlp()
        rule = LevenbergMarquardt()
        update = ThorUpdate(loss_net, optimizer(network), DAMPING, adapt_damping=rule)
        with pytest.raises(InputError, match="expected a step that updates at every batch"):
            AccumulatedStep(loss_net, update.optimizer, 2, update=update)
