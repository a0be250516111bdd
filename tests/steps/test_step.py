"""What every step cell must do, whatever its update stage."""

import warnings

import mindspore as ms
import numpy as np
import pytest
from mindspore import ParameterTuple, nn, ops
from mindspore.train import LossMonitor, Model, ModelCheckpoint, TimeMonitor

from labkit.algorithms.adasum.update import AdasumUpdate
from labkit.algorithms.thor import ThorStep
from labkit.errors import InputError
from labkit.labs.compare import parameter_values
from labkit.runtime import pynative
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.losses import LossNet
from labkit.steps.state import set_state, state
from labkit.steps.step import PlainStep
from labkit.steps.update import UpdateStage
from tests import twins
from tests.support.step_cells import (
    INPUTS,
    STEPS,
    Counted,
    Normalised,
    OnMaps,
    Product,
    Unadapted,
    assert_bit_equal,
    assert_close,
    exact,
    linear,
    momentum,
    moved,
    regression,
    restore,
    rows,
    snapshot,
    split,
    tensors,
    traces,
    unchanged,
)
from tests.support.tolerances import TOLERANCE

pytestmark = pytest.mark.usefixtures("runtime")

ROWS = 16  # of every batch of the battery: another number would need another graph
EVERY_STEP = pytest.mark.parametrize("make_step", STEPS.values(), ids=STEPS.keys())


def _with_momentum(make_step):
    network, loss_net = regression()
    return network, make_step(loss_net, momentum(network))


def _own_state(step, network):
    """Return the state of a step without the weights of its network."""
    weights = snapshot(network)
    return {name: value for name, value in snapshot(step).items() if name not in weights}


def train(step, calls):
    """Train on micro-batches of ``ROWS``; return the losses."""
    return [float(step(*tensors(*rows(ROWS, seed=call)))) for call in range(calls)]


class Lookup(nn.Cell):
    """Numbers (B, 2) -> (B, 2): a lookup in a table, and a Dense."""

    def __init__(self, table):
        super().__init__()
        self.table = table
        self.head = linear()

    def construct(self, numbers):
        return self.head(self.table(numbers).mean(1))


@pytest.mark.usefixtures("released")
@EVERY_STEP
class TestEveryStep:
    """The battery, on one compiled step of each kind."""

    @pytest.fixture
    def reused(self, make_step, once):
        """(network, step) with Momentum, in their initial state, compiled once."""
        return once(_with_momentum, make_step)

    def test_returns_the_scalar_loss_before_the_update(self, reused):
        """The loss of an update is the mean of its micro-batches'."""
        network, step = reused
        last = step.last_update
        assert (last.number, last.loss, last.gradient_norm, last.images) == (0, 0, 0, 0)
        losses = []
        for call in range(4):
            inputs, targets = rows(ROWS, seed=call)
            expected, _ = twins.linear_regression(*exact(network), inputs, targets)
            loss = step(*tensors(inputs, targets))
            losses.append(float(loss))
            assert loss.shape == () and loss.dtype == ms.float32
            assert losses[-1] == pytest.approx(expected, rel=1e-5)
            mean = np.mean(losses[-step.micro_batches :])
            if len(losses) % step.micro_batches == 0:
                assert step.last_update.loss == pytest.approx(mean, rel=1e-6)
        assert step.last_update.number == 4 // step.micro_batches

    def test_names_and_what_is_trainable(self, reused):
        """The loss is differentiated by extras; MindSpore marks an optimizer's state trainable.

        A Cell that holds an optimizer may put its own name before its Parameters' names.
        """
        network, step = reused
        extras = [extra for group in step.update.extras or () for extra in group]
        others = [*network.trainable_params(), *step.optimizer.trainable_params(), *extras]
        assert {p.name for p in step.trainable_params()} == {p.name for p in others}
        train(step, calls=2)
        alone = momentum(regression()[0])
        names = [parameter.name for parameter in alone.get_parameters()]
        assert [parameter.name for parameter in step.optimizer.get_parameters()] == names

    def test_reaches_the_least_squares_solution(self, reused):
        network, step = reused
        set_state(step.optimizer.learning_rate, 0.1)
        set_state(step.optimizer.momentum, 0.8)
        inputs, targets = rows(ROWS)
        padded = np.hstack([inputs, np.ones((ROWS, 1))])
        solution = np.linalg.lstsq(padded, targets, rcond=None)[0].T
        tolerance = TOLERANCE["trained to the optimum"]
        for _ in range(30):
            for _ in range(10):
                step(*tensors(inputs, targets))
            trained = np.hstack([network.weight.asnumpy(), network.bias.asnumpy()[:, None]])
            if np.allclose(trained, solution, **tolerance):
                break
        np.testing.assert_allclose(trained, solution, **tolerance)

    def test_graph_and_pynative_mode_agree(self, make_step, reused):
        with pynative():
            _, eager = _with_momentum(make_step)
            eager_losses = train(eager, calls=5)
        _, graph = reused
        losses = train(graph, calls=5)
        tolerance = TOLERANCE["float32, a few updates"]
        assert_close(snapshot(eager), snapshot(graph), **tolerance)
        np.testing.assert_allclose(eager_losses, losses, **tolerance)

    def test_runs_in_mindspore_model_with_its_callbacks(self, reused, tmp_path, capfd):
        network, step = reused
        arrays = rows(4 * ROWS)
        data = ms.dataset.NumpySlicesDataset(arrays, ["x", "y"], shuffle=False).batch(ROWS)
        keeper = ModelCheckpoint("step", str(tmp_path))
        Model(step).train(
            2, data, [LossMonitor(4), TimeMonitor(4), keeper], dataset_sink_mode=False
        )
        printed = capfd.readouterr().out
        assert printed.count("loss is") == 2 and printed.count("per step time") == 2
        assert step.last_update.number in (4, 8)
        kept = ms.load_checkpoint(keeper.latest_ckpt_file_name)
        assert_bit_equal({n: p.asnumpy() for n, p in kept.items()}, snapshot(step))
        bare = linear(seed=9)
        assert not ms.load_param_into_net(bare, kept)[0]
        assert_bit_equal(parameter_values(bare), parameter_values(network))

    def test_two_runs_are_bit_equal_and_two_steps_over_one_network_take_turns(
        self, make_step, reused
    ):
        """If a step's update stage puts taps into the network, a second step is refused."""
        network, step = reused
        other_network, other = _with_momentum(make_step)  # compiled separately
        assert train(other, calls=6) == train(step, calls=6)
        assert_bit_equal(snapshot(other), snapshot(step))
        loss_net = step.gradient.loss_net
        if make_step in (STEPS["thor"], STEPS["accumulated thor"]):
            with pytest.raises(InputError, match=r"'network' has a tap.*release\(\) first"):
                make_step(loss_net, momentum(network))
            other.update.release()
            make_step(other.gradient.loss_net, momentum(other_network))
            return
        pair = step, make_step(loss_net, momentum(network))
        states = [_own_state(own, network) for own in pair]
        for turn in (0, 1, 0):
            train(pair[turn], calls=2)
            # One step given the state of each in turn: a step keeps nothing else of a network.
            restore(other, snapshot(other) | states[turn])
            train(other, calls=2)
            states[turn] = _own_state(other, other_network)
            assert_bit_equal(parameter_values(network), parameter_values(other_network))
        assert pair[0].last_update.number > pair[1].last_update.number in (1, 2)

    def test_what_is_refused_and_how_its_state_is_named(self, make_step):
        for options in ({}, {"precision": "O2", "loss_scale": 1024.0}):
            network, loss_net = regression()
            names = [p.name for p in network.get_parameters()]
            step = make_step(loss_net, momentum(network), **options)
            assert [p.name for p in network.get_parameters()] == names
            state = [p.name for p in step.get_parameters()]
            assert len(set(state)) == len(state) and set(names) < set(state)
            own = set(state) - {p.name for p in step.optimizer.get_parameters()} - set(names)
            kinds = ("step.", "grad_sum.", "kept.", "thor.", "held.", "adasum.")
            assert own and all(n.startswith(kinds) for n in own)
        with pytest.raises(InputError, match="expected an nn.Optimizer, got 'str'"):
            make_step(regression()[1], "Momentum")
        network, loss_net = regression()
        optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9, loss_scale=1024.0)
        with pytest.raises(InputError, match="loss_scale 1: give it to the step, got 1024"):
            make_step(loss_net, optimizer)
        network, loss_net = regression()
        with pytest.raises(InputError, match="'los_scale'.*Did you mean 'loss_scale'"):
            make_step(loss_net, momentum(network), los_scale=2.0)

    def test_labels_that_would_broadcast_are_refused(self, make_step):
        network, (inputs, targets) = nn.Dense(INPUTS, 1), rows(4)
        step = make_step(LossNet(network, Product(), per="rows"), momentum(network))
        with unchanged(step), pytest.raises(InputError, match=r"\(4, 1\), got \(4,\): .* to more"):
            step(*tensors(inputs, targets[:, 0]))

    def test_a_frozen_weight_and_one_of_another_network_are_refused(self, make_step, reused):
        """Frozen before the step was made, or between two calls."""
        network, step = reused
        train(step, calls=2)
        network.bias.requires_grad = False
        try:
            with unchanged(step), pytest.raises(InputError, match="got the frozen bias; make"):
                train(step, calls=1)
        finally:
            network.bias.requires_grad = True
        network, loss_net = regression()
        optimizer = momentum(network)
        network.weight.requires_grad = False
        with pytest.raises(InputError, match="got the frozen weight; make"):
            make_step(loss_net, optimizer)
        with pytest.raises(InputError, match="weights of loss_net, got weight, b"):
            make_step(loss_net, momentum(linear()))
        network.weight.requires_grad = True
        make_step(loss_net, momentum(network))  # nothing was left in the network

    @pytest.mark.parametrize("trained", [True, False])
    def test_sparse_gradients_are_refused_by_name(self, make_step, trained):
        """In the graph of a sparse lookup MindSpore does not know the type of any gradient."""
        network = Lookup(nn.EmbeddingLookup(6, INPUTS, target="DEVICE"))
        network.table.embedding_table.requires_grad = trained
        with pytest.raises(InputError, match="layer 'network.table': expected a dense gradient"):
            make_step(LossNet(network, nn.MSELoss()), momentum(network))


GROUPS = ("accumulated", "accumulated thor", "adasum", "accumulated subspace")
PROPAGATE = ("plain", "accumulated", "thor", "adasum", "subspace")


@pytest.mark.usefixtures("released")
class TestNonfinite:
    """A dropped micro-batch leaves no trace, not even in BatchNorm's running statistics."""

    STATISTICS = {"norm.moving_mean", "norm.moving_variance"}

    def build(self, make_step, **options):
        network = Normalised(nn.BatchNorm1d(4))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return network, make_step(LossNet(network, nn.MSELoss()), momentum(network), **options)

    @pytest.mark.parametrize(
        ("name", "options"),
        [(name, {}) for name in STEPS] + [(name, {"nonfinite": "drop_group"}) for name in GROUPS],
    )
    def test_nan_leaves_no_trace(self, name, options):
        network, step = self.build(STEPS[name], **options)
        inputs, targets = rows(8)
        assert self.STATISTICS <= moved(step, inputs, targets)[1]
        step(*tensors(*rows(8, seed=1)))
        broken = inputs.copy()
        broken[3] = np.nan
        kept = {f"kept.{name}" for name in self.STATISTICS}
        before, whole = snapshot(network), snapshot(step)
        number = step.last_update.number
        huge = inputs.copy()
        huge[3] = 1e25  # its square overflows: the loss is finite, the running variance is not
        for batch in ((inputs, np.full_like(targets, np.inf)), (broken, targets), (huge, targets)):
            restore(step, whole)
            loss, changed = moved(step, *batch)
            assert np.isfinite(loss) == (batch[0] is huge)
            assert_bit_equal(snapshot(network), before)
            assert traces(step, changed - kept) == set()
            assert "step.dropped" in changed and int(step.dropped.asnumpy()) == 1
        for call in range(2):
            assert np.isfinite(float(step(*tensors(*rows(8, seed=2 + call)))))
        assert options or step.last_update.number > number  # a dropped group makes none
        assert all(np.isfinite(value).all() for value in snapshot(step).values())

    @pytest.mark.parametrize(
        ("norm", "axes"),
        [
            (nn.BatchNorm1d(4, affine=False, momentum=0.5), 0),
            (nn.BatchNorm2d(4), 2),
            (nn.BatchNorm3d(4), 3),
            (nn.SyncBatchNorm(4), 2),
            (nn.GroupNorm(2, 4), 2),
        ],
    )
    def test_a_batch_of_one_row_is_as_if_it_were_not_there(self, norm, axes):
        """Its variance is 0 / 0. GroupNorm has no such trouble: its row is used."""
        network = Normalised(OnMaps(norm, axes))
        step = PlainStep(LossNet(network, nn.MSELoss()), momentum(network))
        start, ends, used = snapshot(step), [], isinstance(norm, nn.GroupNorm)
        for sizes in ((8, 1, 8), (8, 8)):
            restore(step, start)
            for size in sizes:
                assert np.isfinite(float(step(*tensors(*rows(size, seed=size)))))
            state = snapshot(step)
            assert int(state.pop("step.dropped")) == (len(sizes) == 3 and not used)
            ends.append({name: value for name, value in state.items() if "kept." not in name})
        assert int(ends[0]["step.updates"]) == 2 + used
        assert used or any("moving_variance" in name for name in ends[0])
        if not used:
            assert_bit_equal(*ends)

    def test_where_thor_stops_it_names_the_batch_norm(self):
        network, (inputs, targets) = Normalised(nn.BatchNorm1d(4)), rows(8)
        step = ThorStep(LossNet(network, nn.MSELoss()), momentum(network), 0.1)
        inputs[3] = 1e25
        before = snapshot(network)
        with pytest.raises(FloatingPointError, match=r"loss is \d.* 'norm.moving_variance' would"):
            step(*tensors(inputs, targets))
        assert_bit_equal(snapshot(network), before)

    @pytest.mark.parametrize("name", PROPAGATE)
    def test_propagate_lets_nan_through(self, name):
        network, step = self.build(STEPS[name], nonfinite="propagate")
        inputs, targets = rows(8)
        if "thor" in name:
            # But not into factors: a step that gathers these stops before it updates.
            before = parameter_values(network.second)
            with pytest.raises(FloatingPointError, match="factors of layer 'first' are not finite"):
                for _ in range(2):
                    step(*tensors(inputs * np.nan, targets))
            assert np.isnan(network.norm.moving_mean.asnumpy()).all()
            assert_bit_equal(parameter_values(network.second), before)
            return
        _, changed = moved(step, inputs * np.nan, targets)
        assert self.STATISTICS <= changed and "step.dropped" not in changed
        assert np.isnan(network.norm.moving_mean.asnumpy()).all()
        step(*tensors(inputs, targets))
        assert np.isnan(network.second.weight.asnumpy()).all()

    @pytest.mark.parametrize("name", ["plain", "accumulated"])
    def test_the_check_changes_no_bit(self, name):
        ends = []
        for nonfinite in ("drop_micro", "drop_group", "propagate"):
            network, loss_net = regression()
            step = STEPS[name](loss_net, momentum(network), nonfinite=nonfinite)
            train(step, calls=4)
            ends.append(snapshot(step))
        assert_bit_equal(ends[0], ends[1])
        assert_bit_equal(ends[0], ends[2])


RATES = [0.5, 0.25, 0.125, 0.0625]


def groups(weight, bias):
    """The weight has a fifth of the bias's rate; the bias comes first in order."""
    grouped = [{"params": [weight], "lr": 0.1}, {"params": [bias]}]
    return [*grouped, {"order_params": [bias, weight]}], 0.5, [(0.5, 0.1)] * 4


def scheduled_groups(weight, bias):
    grouped = [{"params": [weight], "lr": RATES[1:] + [0.0]}, {"params": [bias]}]
    rates = list(zip(RATES[1:] + [0.0], RATES, strict=True))
    return grouped, nn.ExponentialDecayLR(0.5, 0.5, 1), rates


def decayed_groups(weight, bias):
    """Groups that differ in weight decay alone share one rate."""
    grouped = [{"params": [weight], "weight_decay": 0.0}, {"params": [bias]}]
    return grouped, RATES, [(rate,) for rate in RATES]


@pytest.mark.usefixtures("released")
@pytest.mark.parametrize("case", [groups, scheduled_groups, decayed_groups])
@pytest.mark.parametrize("micro_steps", [None, 3])
def test_the_rate_of_update_n_is_the_same_for_every_k(case, micro_steps):
    """Schedules count updates. The gradient is constant, so that the moves show the rates."""
    network, (inputs, targets) = linear(), rows(4)
    parameters, rate, expected = case(*network.trainable_params())
    loss_net, sgd = LossNet(network, Product(), per="rows"), nn.SGD(parameters, rate)
    kind, more = (AccumulatedStep, {"micro_steps": micro_steps}) if micro_steps else (PlainStep, {})
    step = kind(loss_net, sgd, **more)
    slopes = {"weight": targets.T @ inputs, "bias": targets.sum(axis=0)}
    names = [parameter.name for parameter in sgd.parameters]
    for number, rates in enumerate(expected, 1):
        before = parameter_values(network)
        for _ in range(micro_steps or 1):
            step(*tensors(inputs, targets))
        assert step.last_update.number == number
        assert step.last_update.learning_rate == pytest.approx(rates)
        by_name = dict(zip(names, rates if len(rates) == 2 else rates * 2, strict=True))
        moves = {n: before[n] - value for n, value in parameter_values(network).items()}
        moved = {n: by_name[n] * slope / targets.size for n, slope in slopes.items()}
        assert_close(moves, moved, **TOLERANCE["float32, one update"])


@pytest.mark.parametrize("rate", [0.1, [0.3, 0.2, 0.1]])
def test_the_rates_of_lars_are_those_of_the_optimizer_inside(rate):
    """nn.LARS has a rate of its own, 0, which no update uses."""
    network, loss_net = regression()
    inner = nn.Momentum(network.trainable_params(), rate, 0.9)
    step = PlainStep(loss_net, Unadapted(inner))
    used = []
    for call in range(3):
        step(*tensors(*rows(4, call)))
        used += step.last_update.learning_rate
    assert used == pytest.approx([0.1] * 3 if rate == 0.1 else rate)
    if rate != 0.1:
        with pytest.raises(InputError, match="has 3 values for 4 updates"):
            step.check_length(1)


OPTIMIZERS = {
    "SGD, decay and Nesterov": lambda p: nn.SGD(
        p, 0.1, momentum=0.9, weight_decay=0.01, nesterov=True
    ),
    "Momentum": lambda p: nn.Momentum(p, 0.1, 0.9),
    "Adam": lambda p: nn.Adam(p, 0.1),
    "AdamWeightDecay": lambda p: nn.AdamWeightDecay(p, 0.1, weight_decay=0.1),
    "RMSProp": lambda p: nn.RMSProp(p, 0.1),
    "Adagrad": lambda p: nn.Adagrad(p, learning_rate=0.1),
    "Momentum, groups": lambda p: nn.Momentum(
        [
            {"params": p[:1], "weight_decay": 0.1, "lr": 0.05},
            {"params": p[1:]},
            {"order_params": p[::-1]},
        ],
        0.1,
        0.9,
    ),
}


@pytest.mark.usefixtures("released")
class TestAnyOptimizer:
    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_plain_step_is_the_optimizer_and_two_halves_are_the_batch(self, name):
        """The plain step equals MindSpore's TrainOneStepCell bit for bit."""
        make_optimizer = OPTIMIZERS[name]
        ours, loss_net = regression()
        plain = PlainStep(loss_net, make_optimizer(ours.trainable_params()))
        theirs = linear()
        loss_alone = nn.WithLossCell(theirs, nn.MSELoss())
        builtin = nn.TrainOneStepCell(loss_alone, make_optimizer(theirs.trainable_params()))
        builtin.set_train()
        halves, loss_net = regression()
        step = AccumulatedStep(loss_net, make_optimizer(halves.trainable_params()), 2)
        for call in range(3):
            arrays = rows(8, seed=call)
            assert float(plain(*tensors(*arrays))) == float(builtin(*tensors(*arrays)))
            for part in split(arrays, [4, 4]):
                step(*part)
        assert_bit_equal(parameter_values(ours), parameter_values(theirs))
        assert step.last_update.number == plain.last_update.number == 3
        assert step.last_update.images == plain.last_update.images == 8
        tolerance = TOLERANCE["float32, a few updates"]
        assert_close(parameter_values(halves), parameter_values(ours), **tolerance)

    def test_over_some_parameters_it_leaves_the_others(self):
        network, loss_net = regression()
        step = AccumulatedStep(loss_net, nn.SGD(ParameterTuple([network.bias]), 0.1), 2)
        before = parameter_values(network)
        for call in range(2):
            step(*tensors(*rows(4, seed=call)))
        after = parameter_values(network)
        np.testing.assert_array_equal(after["weight"], before["weight"])
        assert (after["bias"] != before["bias"]).all()


class Counting(UpdateStage):
    """Gathers extras at every second update, and records the step's calls in order."""

    def __init__(self, network, optimizer):
        super().__init__(optimizer)
        self.settings, self.extras = {"counting": "yes"}, network.extras
        self.rows, self.calls = state("counting.rows", 0.0), []

    def attach(self, step):
        super().attach(step)
        self.calls.append(id(step))

    def wants_extras(self, updates):
        return updates % 2 == 0

    def take(self, gradients, extras, summary):
        counted = extras[0][0] if len(extras) > 0 else 0.0
        noted = ops.assign(self.rows, counted)
        return ops.depend(self.updated(self.recorded(gradients, summary)), noted)

    def before(self, step, batch):
        self.calls.append(("before", int(step.updates.asnumpy()), len(batch)))

    def between(self, step, batch, loss):
        assert (loss is None) == (not batch)
        rows_of_update = float(self.rows.asnumpy())
        self.calls.append(("between", int(step.updates.asnumpy()), len(batch), rows_of_update))


def _step(loss_net, optimizer, micro_steps, update=None):
    if micro_steps is None:
        return PlainStep(loss_net, optimizer, update=update)
    return AccumulatedStep(loss_net, optimizer, micro_steps, update=update)


def _counting(micro_steps):
    network = Counted()
    sgd = nn.SGD(network.layer.trainable_params(), 0.1)
    stage = Counting(network, sgd)
    return network, stage, _step(LossNet(network, nn.MSELoss()), sgd, micro_steps, stage)


def test_order_of_calls():
    _, stage, step = _counting(None)
    for call in range(3):
        step(*tensors(*rows(4, seed=call)))
    assert stage.calls == [
        id(step),
        *(("before", 0, 2), ("between", 1, 2, 1)),
        *(("before", 1, 2), ("between", 2, 2, 0)),
        *(("before", 2, 2), ("between", 3, 2, 1)),
    ]
    assert step.settings["counting"] == "yes"


@pytest.mark.parametrize("micro_steps", [None, 2])
def test_with_extras_the_weights_are_those_without(once, micro_steps):
    network, _, step = once(_counting, micro_steps)
    plain, loss_net = regression()
    other = _step(loss_net, nn.SGD(plain.trainable_params(), 0.1), micro_steps)
    for call in range(7):
        batch = tensors(*rows(4, seed=call))
        assert float(step(*batch)) == pytest.approx(float(other(*batch)), rel=1e-5)
    step.end_epoch()
    other.end_epoch()
    assert step.last_update.number == other.last_update.number > 3
    for weight, expected in zip(exact(network.layer), exact(plain), strict=True):
        np.testing.assert_allclose(weight, expected, **TOLERANCE["float32, a few updates"])


def adasum_update(loss_net, optimizer):
    return AdasumUpdate(optimizer, workers=2)


WRONG_SIZE = "micro_steps: expected an integer >= 1"


@pytest.mark.parametrize(
    ("update", "kind", "options", "words"),
    [
        (lambda net, sgd: "adasum", PlainStep, {}, "update: expected an UpdateStage of the step"),
        # Gradients of one optimizer's parameters would move those of another.
        (lambda net, sgd: UpdateStage(momentum(linear(1))), PlainStep, {}, "an UpdateStage of the"),
        (lambda net, sgd: PlainStep(net, sgd).update, PlainStep, {}, "belongs to another step"),
        (adasum_update, PlainStep, {}, "step of AdasumUpdate: .*, got 'Plain"),
        (adasum_update, AccumulatedStep, {"tail": "carry"}, "tail: .*'carry'"),
        (lambda net, sgd: None, AccumulatedStep, {"micro_steps": 0}, WRONG_SIZE),
        (lambda net, sgd: None, AccumulatedStep, {"micro_steps": 2.5}, WRONG_SIZE),
        (lambda net, sgd: None, AccumulatedStep, {"micro_steps": "4"}, WRONG_SIZE),
        (lambda net, sgd: None, AccumulatedStep, {"micro_steps": lambda updates: 0}, WRONG_SIZE),
    ],
)
def test_what_is_refused(update, kind, options, words):
    network, loss_net = regression()
    sgd = momentum(network)
    with pytest.raises(InputError, match=words):
        kind(loss_net, sgd, update=update(loss_net, sgd), **options)
