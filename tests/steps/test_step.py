"""What every step cell must do, whichever its update stage."""

import warnings

import mindspore as ms
import numpy as np
import pytest
from mindspore import ParameterTuple, nn, ops
from mindspore.train import LossMonitor, Model, ModelCheckpoint, TimeMonitor

from labkit import reference
from labkit.algorithms.adasum.update import AdasumUpdate
from labkit.errors import InputError
from labkit.labs.compare import parameter_values
from labkit.nets.lenet import LeNet5
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.forward_state import may_assign
from labkit.steps.losses import LossNet
from labkit.steps.modes import modes
from labkit.steps.plain import PlainStep
from labkit.steps.state import set_state, state
from labkit.steps.step import running_statistics, trainable_batch_norms
from labkit.steps.update import PlainUpdate, UpdateStage
from tests.support.step_cells import (
    INPUTS,
    OUTPUTS,
    STEPS,
    Counted,
    Normalised,
    Product,
    assert_bit_equal,
    assert_close,
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
)
from tests.support.tolerances import TOLERANCE

pytestmark = pytest.mark.usefixtures("runtime")

ROWS = 16  # of every batch of the battery: another number would be another graph
EVERY_STEP = pytest.mark.parametrize("make_step", STEPS.values(), ids=STEPS.keys())


def _with_momentum(make_step):
    network, loss_net = regression()
    return network, make_step(loss_net, momentum(network))


def _own_state(step, network):
    """What a step holds beside the weights of its network."""
    weights = snapshot(network)
    return {name: value for name, value in snapshot(step).items() if name not in weights}


def train(step, calls):
    """Train on micro-batches of ``ROWS``; return the losses."""
    return [float(step(*tensors(*rows(ROWS, seed=call)))) for call in range(calls)]


class Lookup(nn.Cell):
    """Numbers (B, 2) -> (B, 2): a table looked up, and a Dense."""

    def __init__(self, table):
        super().__init__()
        self.table = table
        self.head = linear()

    def construct(self, numbers):
        return self.head(self.table(numbers).mean(1))


class OwnTable(nn.Cell):
    """A sparse lookup that is no layer of MindSpore's."""

    def __init__(self):
        super().__init__()
        self.rows = ms.Parameter(np.ones((6, INPUTS), np.float32), name="rows")
        self.lookup = ops.EmbeddingLookup()

    def construct(self, numbers):
        return self.lookup(self.rows, numbers, 0)


@pytest.mark.usefixtures("released")
@EVERY_STEP
class TestEveryStep:
    """The battery, on one compiled step of each kind."""

    @pytest.fixture
    def reused(self, make_step, once):
        """(network, step) with Momentum, as new, compiled once."""
        return once(_with_momentum, make_step)

    def test_returns_the_scalar_loss_before_the_update(self, reused):
        network, step = reused
        last = step.last_update
        assert (last.number, last.loss, last.gradient_norm, last.images) == (0, 0, 0, 0)
        for call in range(4):
            weights = [p.asnumpy().copy() for p in (network.weight, network.bias)]
            inputs, targets = rows(ROWS, seed=call)
            loss = step(*tensors(inputs, targets))
            expected, _ = reference.linear_regression(*weights, inputs, targets)
            assert loss.shape == () and loss.dtype == ms.float32
            assert float(loss) == pytest.approx(expected, rel=1e-5)

    def test_reaches_the_least_squares_solution(self, reused):
        network, step = reused
        set_state(step.optimizer.learning_rate, 0.1)
        set_state(step.optimizer.momentum, 0.8)
        inputs, targets = rows(ROWS)
        for _ in range(300):
            step(*tensors(inputs, targets))
        padded = np.hstack([inputs, np.ones((ROWS, 1))])
        solution = np.linalg.lstsq(padded, targets, rcond=None)[0].T
        trained = np.hstack([network.weight.asnumpy(), network.bias.asnumpy()[:, None]])
        np.testing.assert_allclose(trained, solution, **TOLERANCE["trained to the optimum"])

    def test_graph_and_pynative_mode_agree(self, make_step, reused):
        ms.set_context(mode=ms.PYNATIVE_MODE)
        try:
            _, eager = _with_momentum(make_step)
            eager_losses = train(eager, calls=5)
        finally:
            ms.set_context(mode=ms.GRAPH_MODE)
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
        """Where a step's update stage puts taps into the network, a second one is refused."""
        network, step = reused
        other_network, other = _with_momentum(make_step)  # compiled for itself
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
            # One step with the state of each in turn: nothing else is kept of the network.
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
        for wrong in (nn.ReLU(), None, "Momentum"):
            _, loss_net = regression()
            with pytest.raises(InputError, match=f"a {type(wrong).__name__}; expected an nn.Opt"):
                make_step(loss_net, wrong)
        network, loss_net = regression()
        optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9, loss_scale=1024.0)
        with pytest.raises(InputError, match="loss_scale=1024.*unscale a second time"):
            make_step(loss_net, optimizer)
        for wrong in ({"los_scale": 2.0}, {"weighted": False}):
            network, loss_net = regression()
            with pytest.raises(TypeError, match=next(iter(wrong))):
                make_step(loss_net, momentum(network), **wrong)

    def test_float16_parameters_are_warned_of(self, make_step):
        network, loss_net = regression()
        network.weight.set_dtype(ms.float16)
        with pytest.warns(UserWarning, match="'weight' is float16: .* below 6e-8") as caught:
            make_step(loss_net, momentum(network))
        assert "precision='O2'" in str(caught[0].message)

    @pytest.mark.parametrize(
        ("table", "name"),
        [
            (lambda: nn.EmbeddingLookup(6, INPUTS), "table.embedding_table"),
            (lambda: nn.EmbeddingLookup(6, INPUTS, target="DEVICE"), "table.embedding_table"),
            (OwnTable, "table.rows"),
        ],
    )
    def test_sparse_gradients_are_refused_by_name(self, make_step, table, name):
        network = Lookup(table())
        optimizer = nn.LazyAdam(network.trainable_params(), 0.1)
        with pytest.raises(InputError, match=f"'network.table', .*{name!r} a sparse") as error:
            make_step(LossNet(network, nn.MSELoss()), optimizer)
        assert "sparse=False" in str(error.value) and "\n" not in str(error.value)


def test_a_sparse_table_that_is_not_trained_is_no_better():
    """MindSpore knows the type of no gradient of such a graph."""
    network = Lookup(nn.EmbeddingLookup(6, INPUTS))
    network.table.embedding_table.requires_grad = False
    with pytest.raises(InputError, match="'table.embedding_table' a sparse"):
        PlainStep(LossNet(network, nn.MSELoss()), momentum(network))


def test_float32_parameters_are_no_news():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for options in ({}, {"precision": "O2", "loss_scale": 1024.0}):
            network, loss_net = regression()
            PlainStep(loss_net, momentum(network), **options)


@pytest.mark.usefixtures("released")
class TestNonfinite:
    """A dropped micro-batch leaves no trace, in BatchNorm's running statistics neither."""

    STATISTICS = {"norm.moving_mean", "norm.moving_variance"}

    def build(self, make_step, **options):
        network = Normalised(nn.BatchNorm1d(4))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return network, make_step(LossNet(network, nn.MSELoss()), momentum(network), **options)

    # A group of one micro-batch is dropped by either word; the default is "drop_micro".
    GROUPS = ("accumulated", "accumulated thor", "adasum", "accumulated subspace")
    CASES = [(name, {}) for name in STEPS] + [(n, {"nonfinite": "drop_group"}) for n in GROUPS]

    @pytest.mark.parametrize(("name", "options"), CASES, ids=str)
    def test_nan_leaves_no_trace(self, name, options):
        network, step = self.build(STEPS[name], **options)
        inputs, targets = rows(8)
        assert self.STATISTICS <= moved(step, inputs, targets)[1]
        step(*tensors(*rows(8, seed=1)))
        broken = inputs.copy()
        broken[3] = np.nan
        kept = {f"kept.{name}" for name in self.STATISTICS}
        before, whole = snapshot(network), snapshot(step)
        for batch in ((inputs, np.full_like(targets, np.inf)), (broken, targets)):
            restore(step, whole)
            loss, changed = moved(step, *batch)
            assert not np.isfinite(loss)
            assert_bit_equal(snapshot(network), before)
            assert traces(step, changed - kept) == set()
            assert "step.dropped" in changed and int(step.dropped.asnumpy()) == 1
        if name == "accumulated" and not options:
            self.in_the_middle_of_a_group(step, inputs, targets)
        for call in range(2):
            assert np.isfinite(float(step(*tensors(*rows(8, seed=2 + call)))))
        assert all(np.isfinite(value).all() for value in snapshot(step).values())

    def in_the_middle_of_a_group(self, step, inputs, targets):
        """The buffer stays as it was."""
        set_state(step.micro_step, 0)
        step(*tensors(inputs, targets))
        sums = {n: v for n, v in snapshot(step).items() if n.startswith("grad_sum.")}
        assert all(np.any(v != 0) for v in sums.values())
        set_state(step.group_size, 4)
        assert not np.isfinite(float(step(*tensors(inputs * np.nan, targets))))
        assert_bit_equal({n: v for n, v in snapshot(step).items() if n in sums}, sums)
        set_state(step.group_size, 2)

    def test_in_pynative_mode(self, pynative):
        network, step = self.build(STEPS["accumulated"])
        inputs, targets = rows(8)
        step(*tensors(inputs, targets))
        before = snapshot(network)
        set_state(step.group_size, 4)
        step(*tensors(inputs * np.nan, targets))
        assert_bit_equal(snapshot(network), before)

    @pytest.mark.parametrize("name", ["plain", "accumulated", "thor", "adasum", "subspace"])
    def test_propagate_lets_nan_through(self, name):
        network, step = self.build(STEPS[name], nonfinite="propagate")
        inputs, targets = rows(8)
        if name == "thor":
            # But into no factor: where these are gathered, the step stops before it updates.
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


RATES = [0.5, 0.25, 0.125, 0.0625]


def static(weight, bias):
    return [weight, bias], 0.5, [0.5] * 4


def listed(weight, bias):
    return [weight, bias], RATES, RATES


def schedule(weight, bias):
    return [weight, bias], nn.ExponentialDecayLR(0.5, 0.5, 1), RATES


def groups(weight, bias):
    """The weight at a fifth of the bias's rate; handed over bias first."""
    grouped = [
        {"params": [weight], "lr": 0.1},
        {"params": [bias]},
        {"order_params": [bias, weight]},
    ]
    return grouped, 0.5, [(0.5, 0.1)] * 4


def scheduled_groups(weight, bias):
    grouped = [{"params": [weight], "lr": RATES[1:] + [0.0]}, {"params": [bias]}]
    rates = list(zip(RATES[1:] + [0.0], RATES, strict=True))
    return grouped, nn.ExponentialDecayLR(0.5, 0.5, 1), rates


def decayed_groups(weight, bias):
    """Groups that differ in weight decay alone share one rate."""
    return [{"params": [weight], "weight_decay": 0.0}, {"params": [bias]}], RATES, RATES


@pytest.mark.usefixtures("released")
class TestLearningRates:
    """Schedules count updates: the rate of update n is the same for every k."""

    @pytest.mark.parametrize(
        ("case", "plain"),
        [
            *((case, False) for case in (static, listed, schedule, groups, decayed_groups)),
            *((scheduled_groups, plain) for plain in (True, False)),
        ],
    )
    def test_rate_of_update_n(self, case, plain):
        network = linear()
        parameters, rate, expected = case(*network.trainable_params())
        optimizer = nn.SGD(parameters, rate)
        loss_net = LossNet(network, Product())
        if plain:
            step = PlainStep(loss_net, optimizer)
        else:
            step = AccumulatedStep(loss_net, optimizer, 1, normalise="samples")
        fresh = snapshot(step)
        for micro_steps in (1,) if plain else (1, 3):
            restore(step, fresh)
            if micro_steps > 1:
                step.micro_steps = micro_steps
                set_state(step.group_size, micro_steps)
            for number, rates in enumerate(expected, 1):
                rates = rates if isinstance(rates, tuple) else (rates,)
                self.update_once(network, step, micro_steps, rates)
                assert step.last_update.number == number
                assert step.last_update.learning_rate == pytest.approx(rates)

    def update_once(self, network, step, micro_steps, rates):
        """The loss has the same gradient at all weights: the update shows its learning rate."""
        before, (inputs, targets) = parameter_values(network), rows(4)
        for _ in range(micro_steps):
            step(*tensors(inputs, targets))
        slope = {
            "weight": targets.T @ inputs / targets.size,
            "bias": targets.sum(axis=0) / targets.size,
        }
        by_name = dict.fromkeys(slope, rates[0])
        if len(rates) == 2:
            by_name = dict(zip((p.name for p in step.optimizer.parameters), rates, strict=True))
        moves = {n: before[n] - value for n, value in parameter_values(network).items()}
        expected = {n: by_name[n] * slope[n] for n in slope}
        assert_close(moves, expected, **TOLERANCE["float32, one update"])


class Unadapted(nn.LARS):
    """LARS without its operator, which MindSpore's CPU does not have."""

    def construct(self, gradients):
        return self.opt(gradients)


@pytest.mark.parametrize("rate", [0.1, [0.3, 0.2, 0.1]])
def test_the_rates_of_lars_are_those_of_the_optimizer_inside(rate):
    """nn.LARS holds a rate of its own, 0, that nothing is trained with."""
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
    "SGD": lambda p: nn.SGD(p, 0.1),
    "SGD, decay and Nesterov": lambda p: nn.SGD(
        p, 0.1, momentum=0.9, weight_decay=0.01, nesterov=True
    ),
    "Momentum": lambda p: nn.Momentum(p, 0.1, 0.9),
    "Adam": lambda p: nn.Adam(p, 0.1),
    "AdamWeightDecay": lambda p: nn.AdamWeightDecay(p, 0.1, weight_decay=0.1),
    "RMSProp": lambda p: nn.RMSProp(p, 0.1),
    "Adagrad": lambda p: nn.Adagrad(p, learning_rate=0.1),
    "Lamb": lambda p: nn.Lamb(p, 0.1),
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
    def test_plain_step_is_the_optimizer_and_two_halves_are_the_batch(self, name, runtime):
        """Bit for bit what MindSpore's own TrainOneStepCell does; the step adds nothing."""
        if name == "Lamb" and runtime.device == "CPU":
            pytest.skip("MindSpore has no Lamb kernel for CPU")
        make_optimizer = OPTIMIZERS[name]
        ours, loss_net = regression()
        plain = PlainStep(loss_net, make_optimizer(ours.trainable_params()))
        theirs, loss_net = regression()
        builtin = nn.TrainOneStepCell(loss_net, make_optimizer(theirs.trainable_params()))
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

    @pytest.mark.parametrize(
        "table",
        [
            lambda: nn.EmbeddingLookup(6, INPUTS, target="DEVICE", sparse=False),
            lambda: nn.Embedding(6, INPUTS),
        ],
    )
    def test_a_dense_table_is_trained_as_by_train_one_step_cell(self, table):
        numbers = ms.Tensor(np.array([[0, 1], [2, 3]], np.int32)), tensors(rows(2)[1])[0]
        built, values = [], snapshot(Lookup(table())).values()
        for make in (PlainStep, nn.TrainOneStepCell):
            network = Lookup(table())
            restore(network, dict(zip(snapshot(network), values, strict=True)))
            optimizer = nn.LazyAdam(network.trainable_params(), 0.1)
            step = make(LossNet(network, nn.MSELoss()), optimizer).set_train()
            for _ in range(3):
                step(*numbers)
            built.append(snapshot(network))
        assert_bit_equal(*built)

    def test_over_some_parameters_it_leaves_the_others(self):
        network, loss_net = regression()
        step = AccumulatedStep(loss_net, nn.SGD(ParameterTuple([network.bias]), 0.1), 2)
        before = parameter_values(network)
        for call in range(2):
            step(*tensors(*rows(4, seed=call)))
        after = parameter_values(network)
        np.testing.assert_array_equal(after["weight"], before["weight"])
        assert (after["bias"] != before["bias"]).all()


@pytest.mark.parametrize(
    ("norm", "trainable"),
    [
        (lambda: nn.BatchNorm1d(4), True),
        (lambda: nn.SyncBatchNorm(4), True),
        (lambda: nn.BatchNorm1d(4, use_batch_statistics=True), True),
        (lambda: nn.BatchNorm1d(4, use_batch_statistics=False), False),
        (lambda: ms.mint.nn.BatchNorm1d(4), True),
        (lambda: nn.GroupNorm(2, 4), False),
        (lambda: nn.LayerNorm((4,)), False),
    ],
)
def test_which_layers_mix_samples(norm, trainable):
    network = Normalised(norm())
    assert len(trainable_batch_norms(network)) == trainable
    statistics = running_statistics(network)
    assert {p.name for p in statistics} <= {p.name for p in network.get_parameters()}
    assert bool(statistics) == trainable
    assert not any(p.requires_grad for p in statistics)


class Averaging(nn.Cell):
    """Dense layers between which running averages are kept, in all the ways of MindSpore.

    frozen  a layer that is read only
    """

    def __init__(self):
        super().__init__()
        self.frozen, self.head = linear(), nn.Dense(OUTPUTS, OUTPUTS)
        for parameter in self.frozen.get_parameters():
            parameter.requires_grad = False
        zeros = np.zeros(OUTPUTS, np.float32)
        self.mean = ms.Parameter(zeros, name="mean", requires_grad=False)
        self.trained = ms.Parameter(zeros, name="trained")
        pair = (ms.Parameter(zeros, name=name, requires_grad=False) for name in ("low", "high"))
        self.bounds = ParameterTuple(pair)
        self.count = ms.Parameter(ms.Tensor(0, ms.int32), name="count", requires_grad=False)
        self.map = ops.HyperMap()

    def construct(self, inputs):
        hidden = self.frozen(inputs)
        mean = ops.stop_gradient(ops.mean(hidden, 0))
        self.mean = 0.9 * self.mean + 0.1 * mean
        note(self.trained, mean)
        if self.mean.sum() > -1e30:
            ops.assign_add(self.count, 1)
        hidden = hidden - self.mean - self.trained
        self.map(ops.assign, self.bounds, (mean - 1.0, mean + 1.0))
        return self.head(hidden)


class Aliased(nn.Cell):
    """Keeps sums under another name, and by index."""

    def __init__(self):
        super().__init__()
        self.head = linear()
        self.total, self.slots = (
            ms.Parameter(np.zeros(shape, np.float32), name=name, requires_grad=False)
            for name, shape in (("total", INPUTS), ("slots", (2, INPUTS)))
        )

    def construct(self, inputs):
        total = self.total
        total += ops.mean(inputs, 0)
        self.slots[1] = ops.mean(inputs, 0)
        return self.head(inputs - total)


def note(parameter, value):
    """A function that assigns, outside of any Cell."""
    ops.assign(parameter, 0.5 * parameter + 0.5 * value)


@pytest.mark.usefixtures("released")
class TestRunningAveragesOfOnesOwn:
    """No micro-batch that is dropped leaves a trace in what a forward pass assigns."""

    ASSIGNED = {"mean", "trained", "low", "high", "count"}

    def build(self, make_step, **options):
        network = Averaging()
        return network, make_step(LossNet(network, nn.MSELoss()), momentum(network), **options)

    @pytest.mark.parametrize("name", ["plain", "accumulated", "accumulated subspace"])
    def test_nan_leaves_no_trace(self, name):
        network, step = self.build(STEPS[name])
        state = {parameter.name for parameter in step.get_parameters()}
        before = snapshot(network)
        inputs, targets = rows(8)
        step(*tensors(inputs * np.nan, targets))
        assert_bit_equal(snapshot(network), before)
        for call in range(5):  # with the one before, whole groups: what follows completes none
            step(*tensors(*rows(8, call)))
        moved = {n for n, now in snapshot(network).items() if not np.array_equal(now, before[n])}
        assert moved >= self.ASSIGNED and not moved & {"frozen.weight", "frozen.bias"}
        before = snapshot(network)
        for broken in ((inputs * np.nan, targets), (inputs, targets * np.inf)):
            step(*tensors(*broken))
            assert_bit_equal(snapshot(network), before)
        assert int(step.dropped.asnumpy()) == 3
        # Copies of these alone, and none in a checkpoint: one from before the first batch fits.
        assert {one.name for one in step.kept} == {f"kept.{one}" for one in self.ASSIGNED}
        assert {parameter.name for parameter in step.get_parameters()} == state

    def test_a_trial_leaves_no_trace(self):
        """Of a search that tries 20 times, the average has seen the update's own rows once."""
        moved = []
        for name in ("plain", "subspace"):
            network, step = self.build(STEPS[name])
            step(*tensors(*rows(8)))
            moved.append({one: snapshot(network)[one] for one in ("mean", "low", "high", "count")})
            if name == "subspace":
                assert step.last_search.trials >= 1
        assert_bit_equal(*moved)

    def test_in_pynative_mode(self, pynative):
        network, step = self.build(STEPS["plain"])
        step(*tensors(*rows(8)))
        before = snapshot(network)
        step(*tensors(rows(8)[0] * np.nan, rows(8)[1]))
        assert_bit_equal(snapshot(network), before)

    def test_propagate_keeps_nothing(self):
        network, step = self.build(STEPS["plain"], nonfinite="propagate")
        step(*tensors(rows(8)[0] * np.nan, rows(8)[1]))
        assert np.isnan(network.mean.asnumpy()).all() and not step.statistics

    def test_a_part_of_an_alias_is_assigned_too(self):
        """``p = self.mean; p += x`` writes into the Parameter in graph mode."""
        network = Aliased()
        step = PlainStep(LossNet(network, nn.MSELoss()), momentum(network))
        step(*tensors(*rows(8)))
        before = snapshot(network)
        assert before["total"].any() and before["slots"].any()
        step(*tensors(rows(8)[0] * np.nan, rows(8)[1]))
        assert_bit_equal(snapshot(network), before)

    def test_whose_code_might_assign(self):
        for network in (LeNet5(), linear(), Normalised(nn.BatchNorm1d(4)), nn.LayerNorm((4,))):
            assert not may_assign(LossNet(network, nn.MSELoss()))
        for network in (Averaging(), nn.SequentialCell(nn.ReLU(), Averaging())):
            assert may_assign(LossNet(network, nn.MSELoss()))


class BodyAndHead(nn.Cell):
    """A body with BatchNorm, and a head with one."""

    def __init__(self):
        super().__init__()
        self.body = nn.SequentialCell(nn.Dense(INPUTS, 4), nn.BatchNorm1d(4))
        self.head = nn.SequentialCell(nn.BatchNorm1d(4), nn.Dense(4, OUTPUTS))

    def construct(self, inputs):
        return self.head(self.body(inputs))


def body_alone(network):
    network.body.set_train(False)


def followed(step):
    """What a call of ``step`` does about modes, around what it computes."""
    return step._modes.followed(step._graphs)


def in_a_network_in_training(network):
    network.set_train()
    network.body.set_train(False)


def nothing(network):
    pass


def evaluated(network):
    """As MindSpore's ``Model.eval`` and an evaluation by hand leave a network."""
    network.set_train(False)


@pytest.mark.usefixtures("released")
class TestModes:
    """What was put into evaluation mode by itself stays in it; a network as a whole is trained."""

    @pytest.fixture
    def network(self):
        return BodyAndHead()

    def step(self, network, make=PlainStep):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return make(LossNet(network, nn.MSELoss()), momentum(network))

    def moved(self, step, network, seed=0):
        """Return the parts of the network whose running mean a micro-batch moves."""
        parts = {"body": network.body[1], "head": network.head[0]}
        before = {name: cell.moving_mean.asnumpy().copy() for name, cell in parts.items()}
        step(*tensors(*rows(8, seed)))
        return {name for name in parts if (parts[name].moving_mean.asnumpy() != before[name]).any()}

    @pytest.mark.parametrize("make", [STEPS["accumulated"], STEPS["subspace"]])
    def test_a_frozen_body_stays_frozen(self, make, network, capsys):
        in_a_network_in_training(network)
        step = self.step(network, make)
        assert (
            "labkit: in evaluation mode, as it was set: network.body\n" in capsys.readouterr().out
        )
        assert self.moved(step, network) == {"head"}

    @pytest.mark.parametrize(
        ("prepare", "expected"),
        [
            (nothing, {"body", "head"}),
            (evaluated, {"body", "head"}),
            (body_alone, {"head"}),
        ],
    )
    def test_by_what_was_done_before(self, prepare, expected, network, capsys):
        prepare(network)
        step = self.step(network)
        said = "in evaluation mode" in capsys.readouterr().out
        assert said == (expected == {"head"})
        assert self.moved(step, network) == expected
        # As Model.train does, and who evaluates in between.
        for mode in (True, False, True):
            step.set_train(mode)
        assert self.moved(step, network, 1) == expected

    def test_by_what_is_done_after(self, network):
        """Graphs are compiled by then, for other modes."""
        step = self.step(network)
        assert self.moved(step, network) == {"body", "head"}
        network.body.set_train(False)
        assert self.moved(step, network, 1) == {"head"}
        step.set_train()
        assert self.moved(step, network, 2) == {"head"}
        network.set_train(False)
        assert self.moved(step, network, 3) == {"head"}
        assert not any(cell.training for _, cell in network.cells_and_names())
        network.set_train()
        assert self.moved(step, network, 4) == {"body", "head"}

    def test_in_a_training_by_model(self, network):
        in_a_network_in_training(network)
        step, mean = self.step(network), network.body[1].moving_mean.asnumpy().copy()
        data = ms.dataset.NumpySlicesDataset(rows(16), ["x", "y"], shuffle=False).batch(4)
        Model(step).train(2, data, dataset_sink_mode=False)
        np.testing.assert_array_equal(network.body[1].moving_mean.asnumpy(), mean)
        assert (network.head[0].moving_mean.asnumpy() != 0).all()

    def test_a_teacher_in_a_loss_net_of_ones_own(self, capsys):
        student, teacher = BodyAndHead(), BodyAndHead()
        teacher.update_parameters_name("teacher.")
        for part in (student, teacher):
            part.set_train(False)
        step = PlainStep(Distilled(student, teacher), momentum(student))
        assert self.moved(step, teacher) == set()
        assert self.moved(step, student, 1) == {"body", "head"}
        assert "as it was set: teacher\n" in capsys.readouterr().out

    @pytest.mark.parametrize("form", ["loss with a Parameter", "two parts", "wrapped", "loss_net"])
    def test_evaluated_as_a_whole_it_is_trained_in_training_mode(self, form, network, capsys):
        """By hand between two steps, and before another step is built."""
        loss_net, cells = {
            "loss with a Parameter": lambda: (LossNet(network, Scaled()), [network]),
            "two parts": lambda: (Towers(network), [network.body, network.head]),
            "wrapped": lambda: (LossNet(Wrapper(network), nn.MSELoss()), [network]),
            "loss_net": lambda: (Towers(network, Scaled()), None),
        }[form]()
        step = PlainStep(loss_net, momentum(loss_net))
        for evaluation in range(2):
            for cell in cells or [loss_net]:
                cell.set_train(False)
            assert self.moved(step, network, evaluation) == {"body", "head"}
            assert not network.body[1].training and not network.head[0].training
        again = PlainStep(loss_net, momentum(loss_net))
        assert self.moved(again, network, 2) == {"body", "head"}
        assert "evaluation mode" not in capsys.readouterr().out

    def test_evaluated_and_wrapped_afterwards(self, network, capsys):
        network.set_train(False)
        step = self.step(Wrapper(network))
        assert self.moved(step, network) == {"body", "head"}
        assert "evaluation mode" not in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("make", "trained", "expected"),
        [
            # One of two parts alone, whatever else is trained; and one that has nothing trained.
            (lambda net: Towers(net, Scaled()), None, {"head"}),
            (lambda net: Towers(net), "head", {"head"}),
            (lambda net: LossNet(net, Scaled()), None, {"head"}),
            (lambda net: LossNet(Wrapper(net), nn.MSELoss()), "body", {"head"}),
        ],
    )
    def test_a_part_of_a_network_is_no_evaluation(self, make, trained, expected, network):
        loss_net = make(network)
        body_alone(network)
        step = PlainStep(loss_net, momentum(getattr(network, trained) if trained else loss_net))
        assert self.moved(step, network) == expected

    def test_only_the_loss_is_trained(self, network):
        """A network that is evaluated has nothing to do with it: it is held."""
        loss_net = LossNet(network, Scaled())
        network.set_train(False)
        assert self.moved(PlainStep(loss_net, momentum(loss_net.loss_fn)), network) == set()

    def test_the_batch_norm_of_all_of_a_network_can_be_held(self, network):
        step = self.step(network)
        for cell in (network.body[1], network.head[0]):
            cell.set_train(False)
        assert self.moved(step, network) == set()

    def test_what_was_held_before_an_evaluation_still_is(self, network):
        step = PlainStep(Towers(network), momentum(network))
        network.body[1].set_train(False)
        assert self.moved(step, network) == {"head"}
        for cell in (network.body, network.head):
            cell.set_train(False)
        assert self.moved(step, network, 1) == {"head"}

    def test_each_change_of_what_is_held_is_said(self, network, capsys):
        step = self.step(network)
        for change, expected in (
            (lambda: None, ""),
            (lambda: network.body.set_train(False), "as it was set: network.body\n"),
            (lambda: network.set_train(False), ""),
            (lambda: network.set_train(), "all of the network is in training mode again\n"),
            (lambda: network.set_train(False), ""),
            (lambda: network.head.set_train(), "as it was set: network.body\n"),
            (lambda: network.body.set_train(), "all of the network is in training mode again\n"),
        ):
            change()
            with followed(step):
                said = capsys.readouterr().out
            assert said.endswith(expected) and bool(said) == bool(expected)

    def test_after_an_evaluation_a_call_sets_modes_and_searches_no_more(self, network, monkeypatch):
        step = self.step(network)
        network.set_train(False)
        for call in range(3):
            with followed(step):
                assert all(cell.training for _, cell in network.cells_and_names())
            assert not any(mode for _, mode in modes(network))
            if call == 0:
                monkeypatch.setattr("labkit.steps.modes.held", None)
        monkeypatch.undo()
        network.body.set_train()
        with followed(step):
            assert network.body[1].training and not network.head[0].training


class Scaled(nn.Cell):
    """A squared error with a trained Parameter."""

    def __init__(self):
        super().__init__()
        self.scale = ms.Parameter(ms.Tensor(1.0), name="loss.scale")

    def construct(self, outputs, targets):
        return ops.mean(ops.square(self.scale * outputs - targets))


class Wrapper(nn.Cell):
    """A Cell around a network that adds nothing."""

    def __init__(self, inner):
        super().__init__(auto_prefix=False)
        self.inner = inner

    def construct(self, inputs):
        return self.inner(inputs)


class Towers(nn.Cell):
    """Loss net of one's own whose network is two parts."""

    def __init__(self, network, criterion=None):
        super().__init__(auto_prefix=False)
        self.body, self.head = network.body, network.head
        self.criterion = criterion or nn.MSELoss()

    def construct(self, inputs, targets):
        return self.criterion(self.head(self.body(inputs)), targets)


class Distilled(nn.Cell):
    """Loss net of a student that is to do what a teacher does."""

    def __init__(self, student, teacher):
        super().__init__(auto_prefix=False)
        self.student, self.teacher = student, teacher

    def construct(self, inputs, targets):
        difference = self.student(inputs) - ops.stop_gradient(self.teacher(inputs))
        return ops.mean(ops.square(difference)) + 0.0 * ops.mean(targets)


class Counting(UpdateStage):
    """Gathers at every second update, and notes what the step calls in which order."""

    def __init__(self, network, optimizer):
        super().__init__(optimizer)
        self.settings, self.extras = {"counting": "yes"}, network.extras
        self.pending = state("counting.held", 0)
        self.rows, self.noted = state("counting.rows", 0.0), state("counting.noted", 0.0)
        self.gradients = ParameterTuple(
            ms.Parameter(p.asnumpy(), name=f"held.{p.name}") for p in optimizer.parameters
        )
        self.make = Applied(self)
        self.calls, self.attached = [], []

    def attach(self, step):
        super().attach(step)
        self.attached.append(id(step))  # itself it would be a child of its own child

    def wants_extras(self, updates):
        return updates % 2 == 0

    def take(self, gradients, extras, summary):
        gradients = self.recorded(gradients, summary)
        if len(extras) == 0:
            return self.updated(gradients)
        done = (
            self.map(ops.assign, self.gradients, gradients),
            ops.assign(self.rows, extras[0][0]),
            ops.assign(self.pending, 1),
        )
        return ops.depend(True, done)

    def before(self, step, batch):
        self.calls.append(("before", int(step.updates.asnumpy()), len(batch)))
        set_state(self.pending, 0)

    def between(self, step, batch, loss):
        pending = int(self.pending.asnumpy())
        self.calls.append(("between", int(step.updates.asnumpy()), len(batch), pending))
        assert (loss is None) == (not batch)
        if pending:
            self.make(ms.Tensor(7.0))


class Applied(nn.Cell):
    """The graph of a ``Counting`` that makes the update which is pending."""

    def __init__(self, stage):
        super().__init__(auto_prefix=False)
        self.updated, self.gradients = stage.updated, stage.gradients
        self.noted, self.pending = stage.noted, stage.pending

    def construct(self, note):
        done = (ops.assign(self.noted, note), self.updated(self.gradients))
        released = ops.assign(self.pending, ops.depend(ops.cast(0, ms.int32), done))
        return ops.depend(True, released)


class TestUpdateStageWithExtras:
    def build(self, micro_steps=None):
        network = Counted()
        sgd = nn.SGD(network.layer.trainable_params(), 0.1)
        stage, loss_net = Counting(network, sgd), LossNet(network, nn.MSELoss())
        if micro_steps is None:
            return network, stage, PlainStep(loss_net, sgd, update=stage)
        return network, stage, AccumulatedStep(loss_net, sgd, micro_steps, update=stage)

    def test_order_of_calls(self):
        _, stage, step = self.build()
        assert stage.attached == [id(step)] and step.settings["counting"] == "yes"
        for call in range(3):
            step(*tensors(*rows(4, seed=call)))
        assert stage.calls == [
            ("before", 0, 2),
            ("between", 0, 2, 1),
            ("before", 1, 2),
            ("between", 2, 2, 0),
            ("before", 2, 2),
            ("between", 2, 2, 1),
        ]
        assert step.last_update.number == 3
        assert float(stage.noted.asnumpy()) == 7 and float(stage.rows.asnumpy()) == 1

    @pytest.mark.parametrize("micro_steps", [None, 2])
    def test_the_weights_are_those_without(self, micro_steps):
        network, _, step = self.build(micro_steps)
        plain, loss_net = regression()
        sgd = nn.SGD(plain.trainable_params(), 0.1)
        other = PlainStep(loss_net, sgd)
        if micro_steps:
            other = AccumulatedStep(loss_net, sgd, micro_steps)
        for call in range(7):
            batch = tensors(*rows(4, seed=call))
            assert float(step(*batch)) == pytest.approx(float(other(*batch)), rel=1e-5)
        step.end_epoch()
        other.end_epoch()
        assert step.last_update.number == other.last_update.number > 3
        expected = {f"layer.{name}": value for name, value in parameter_values(plain).items()}
        came = {name: parameter_values(network)[name] for name in expected}
        assert_close(came, expected, **TOLERANCE["float32, a few updates"])

    def test_a_flushed_group_is_refreshed_without_a_batch(self):
        _, stage, step = self.build(3)
        step(*tensors(*rows(4)))
        step.end_epoch()
        assert stage.calls == [
            ("before", 0, 2),
            ("between", 0, 2, 0),
            ("before", 0, 0),
            ("between", 0, 0, 1),
        ]
        assert step.last_update.number == 1

    def test_what_an_interruption_left_is_forgotten(self):
        """The next batch is not finite, so that nothing is held anew."""
        network, stage, step = self.build()
        set_state(stage.pending, 1)
        before = parameter_values(network.layer)
        inputs, targets = rows(4)
        step(*tensors(inputs * np.float32(np.nan), targets))
        assert_bit_equal(parameter_values(network.layer), before)
        assert stage.calls == [("before", 0, 2), ("between", 0, 2, 0)]
        assert step.last_update.number == 0

    @pytest.mark.parametrize("update", ["adasum", nn.ReLU()])
    def test_what_is_no_stage_is_refused(self, update):
        network, loss_net = regression()
        for step in (PlainStep, AccumulatedStep):
            with pytest.raises(InputError, match="expected an UpdateStage"):
                step(loss_net, momentum(network), update=update)

    def test_a_stage_is_of_one_optimizer_and_of_one_step(self):
        """Gradients of one optimizer's parameters would move those of another."""
        network, loss_net = regression()
        sgd, other = momentum(network), momentum(linear(seed=1))
        for step in (PlainStep, AccumulatedStep):
            with pytest.raises(InputError, match="expected the optimizer of the .*, got another"):
                step(loss_net, sgd, update=PlainUpdate(other))
        stage = PlainUpdate(sgd)
        PlainStep(loss_net, sgd, update=stage)
        with pytest.raises(InputError, match="PlainUpdate belongs to another step"):
            PlainStep(loss_net, sgd, update=stage)

    def test_a_plain_step_has_no_buffer_for_workers(self):
        network, loss_net = regression()
        sgd = momentum(network)
        with pytest.raises(InputError, match="expected an AccumulatedStep"):
            PlainStep(loss_net, sgd, update=AdasumUpdate(sgd, workers=2))
        with pytest.raises(InputError, match="rank_group: expected none beside AdasumUpdate"):
            AccumulatedStep(loss_net, sgd, update=AdasumUpdate(sgd, workers=2), rank_group="")
        with pytest.raises(InputError, match="unknown tail 'carry'"):
            AccumulatedStep(loss_net, sgd, update=AdasumUpdate(sgd, workers=2), tail="carry")
