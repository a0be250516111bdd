"""Gradient freezing: the schedule is MindSpore's, and what is frozen does not move at all."""

import json

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, nn, ops
from mindspore.boost import GradientFreeze
from mindspore.boost.boost_cell_wrapper import BoostTrainOneStepCell
from mindspore.boost.grad_freeze import FreezeOpt

from labkit import reference
from labkit.algorithms.adasum import AdasumStep
from labkit.algorithms.grad_freeze import (
    FreezeSchedule,
    GradFreezeUpdate,
    first_groups,
    freeze_schedule,
    owner,
    pieces,
)
from labkit.errors import InputError
from labkit.nets.lenet import LeNet5
from labkit.nets.resnet import resnet
from labkit.nets.small import NormNet
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.losses import LossNet
from labkit.steps.plain import PlainStep
from tests.support.step_cells import (
    INPUTS,
    OUTPUTS,
    assert_bit_equal,
    assert_close,
    linear,
    momentum,
    restore,
    rows,
    snapshot,
    split,
    tensors,
)
from tests.support.tolerances import TOLERANCE

pytestmark = pytest.mark.usefixtures("runtime")

UPSTREAM = GradientFreeze(10, 1, 0.7, 100)
CYCLE = np.array([0, 1, 0, 2], np.int32)


def small_resnet():
    return resnet(18, 10, width=0.25)


def deep():
    """Return three dense layers (B, 3) -> (B, 2), whose weights are of order 1."""
    random = np.random.default_rng(3)
    network = nn.SequentialCell(nn.Dense(3, 4), nn.Tanh(), nn.Dense(4, 4), nn.Dense(4, OUTPUTS))
    for parameter in network.trainable_params():
        parameter.set_data(ms.Tensor(random.normal(size=parameter.shape).astype(np.float32)))
    return network


def by_layer(network, first=CYCLE):
    """Return a schedule in which each layer is a group."""
    names = [parameter.name for parameter in network.trainable_params()]
    groups = {name: place // 2 for place, name in enumerate(names)}
    return FreezeSchedule(groups, np.array(first, np.int32), {"freeze": "by layer"})


def freezing(network, optimizer, kind=PlainStep, first=CYCLE, **options):
    stage = GradFreezeUpdate(optimizer, by_layer(network, first))
    return kind(LossNet(network, nn.MSELoss()), optimizer, update=stage, **options)


class TestTheSchedule:
    @pytest.mark.parametrize(
        ("make", "count"),
        [(small_resnet, 2), (small_resnet, 3), (small_resnet, 10), (LeNet5, 2), (NormNet, 2)],
    )
    def test_the_groups_are_mindspores(self, make, count):
        network = make()
        groups = freeze_schedule(network, param_groups=count, total_steps=1).groups
        assert set(groups.values()) == set(range(count))
        theirs = UPSTREAM.split_parameters_groups(network, count)
        for number, trained in enumerate(theirs):
            names = [parameter.name for parameter in trained]
            assert names == [name for name, group in groups.items() if group >= number]

    def test_a_default_of_ten_groups_or_as_many_as_there_are_pieces(self):
        groups = freeze_schedule(small_resnet()).settings["param_groups"]
        assert groups == 10
        parts = pieces([parameter.name for parameter in LeNet5().trainable_params()])
        assert freeze_schedule(LeNet5()).settings["param_groups"] == len(parts) < 10

    @pytest.mark.parametrize("groups", [2, 5, 10])
    @pytest.mark.parametrize("freeze_p", [0, 0.35, 0.5, 0.7, 0.99])
    def test_it_is_mindspores_but_for_the_draws(self, groups, freeze_p):
        for freeze_type in (0, 1):
            ours = first_groups(groups, freeze_type, freeze_p, 808, seed=1)
            given = (groups, freeze_type, freeze_p, 800)
            theirs = np.array(UPSTREAM.generate_freeze_index_sequence(*given))[:808]
            assert ours.dtype == np.int32 and ours.max() < groups
            if freeze_type == 0:
                np.testing.assert_array_equal(ours, theirs)
            np.testing.assert_array_equal(ours > 0, theirs > 0)

    @pytest.mark.parametrize("freeze_type", [0, 1])
    @pytest.mark.parametrize(("groups", "freeze_p"), [(2, 0.5), (10, 0.7), (4, 0.2)])
    def test_every_group_has_its_share(self, freeze_type, groups, freeze_p):
        first = first_groups(groups, freeze_type, freeze_p, 100_000, seed=2)
        shares = np.bincount(first, minlength=groups) / len(first)
        expected = reference.first_group_shares(groups, freeze_type, freeze_p)
        # Five standard deviations of 100 000 draws, and a last period of type 0.
        np.testing.assert_allclose(shares, expected, atol=5 * 0.5 / np.sqrt(len(first)))

    def test_the_seed_alone_decides_what_is_drawn(self):
        same = [first_groups(10, 1, 0.7, 500, seed) for seed in (4, 4, 5)]
        np.testing.assert_array_equal(same[0], same[1])
        assert (same[0] != same[2]).any()
        # The stream itself is fixed: a checkpoint of today is resumed with a later NumPy.
        assert first_groups(10, 1, 0.7, 20, 4).tolist() == STREAM

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"param_groups": 99}, "param_groups: expected at most 2, since .* pieces .*, got 99"),
            ({"param_groups": 1}, "param_groups: expected an integer >= 2, got 1"),
            ({"freeze_type": 2}, "freeze_type: expected an integer >= 0 and <= 1, got 2"),
            ({"freeze_p": 1}, "freeze_p: expected a finite number >= 0 and < 1, got 1"),
            ({"total_steps": 0}, "total_steps: expected an integer >= 1, got 0"),
            ({"seed": -1}, "seed: expected an integer >= 0"),
        ],
    )
    def test_what_is_refused(self, options, message):
        with pytest.raises(InputError, match=message):
            freeze_schedule(LeNet5(), **options)

    def test_numbers_of_numpy_are_saved_with_a_checkpoint(self):
        schedule = freeze_schedule(
            LeNet5(),
            param_groups=np.int64(2),
            freeze_type=np.int32(1),
            freeze_p=np.float32(0.5),
            total_steps=np.int64(9),
            seed=np.int64(2),
        )
        assert json.loads(json.dumps(schedule.settings)) == {
            "param_groups": 2, "freeze_type": 1, "freeze_p": 0.5, "total_steps": 9, "freeze_seed": 2
        }  # fmt: skip

    def test_a_share_near_one_takes_no_more_memory_than_its_updates(self):
        assert not first_groups(10, 0, 1 - 1e-12, 50, 0).any()

    def test_a_network_of_one_piece_has_nothing_to_freeze(self):
        with pytest.raises(InputError, match="expected parameters for 2 pieces of 3 and more"):
            freeze_schedule(linear())

    def test_a_schedule_of_another_network_is_refused(self):
        network = deep()
        with pytest.raises(InputError, match="parameter '0.weight' is not in the freeze schedule"):
            GradFreezeUpdate(momentum(network), by_layer(linear()))


STREAM = [0, 8, 0, 0, 3, 0, 0, 8, 0, 0, 1, 0, 0, 0, 4, 0, 0, 2, 0, 0]

OPTIMIZERS = {
    "Momentum": lambda p: nn.Momentum(p, 0.1, 0.9, weight_decay=0.1, use_nesterov=True),
    "SGD": lambda p: nn.SGD(p, 0.1, momentum=0.9, weight_decay=0.1),
    "Adam": lambda p: nn.Adam(p, 0.1, weight_decay=0.1),
    "AdamWeightDecay": lambda p: nn.AdamWeightDecay(p, 0.1, weight_decay=0.1),
    "RMSProp": lambda p: nn.RMSProp(p, 0.1, centered=True),
    "groups": lambda p: nn.Momentum([{"params": p[2:], "lr": 0.2}, {"params": p[:2]}], 0.1, 0.9),
}


class TestAnUpdate:
    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_what_is_frozen_does_not_move_and_everything_else_does(self, name):
        """Neither weights nor moments; weight decay and running momentum would move them."""
        network = deep()
        step = freezing(network, OPTIMIZERS[name](network.trainable_params()))
        assert not [each for each in snapshot(step) if "grad_freeze" in each]  # no second copy
        names = list(by_layer(network).groups)
        for call in range(8):
            before = snapshot(step)
            step(*tensors(*rows(4, seed=call)))
            for each, value in snapshot(step).items():
                belongs = owner(each, names)
                if not belongs or each.startswith("stat."):  # SGD's flag for the first step
                    continue
                frozen = names.index(belongs) // 2 < CYCLE[call % len(CYCLE)]
                assert np.array_equal(value, before[each]) == frozen, (call, each)

    def test_it_is_the_twins_momentum(self):
        """A linear network in two groups, weight and bias, against float64."""
        network = linear()
        optimizer = momentum(network)
        schedule = FreezeSchedule({"weight": 0, "bias": 1}, np.array([0, 1, 1], np.int32), {})
        stage = GradFreezeUpdate(optimizer, schedule)
        step = PlainStep(LossNet(network, nn.MSELoss()), optimizer, update=stage)
        weights = [p.asnumpy().astype(np.float64) for p in optimizer.parameters]
        velocities = [np.zeros_like(weight) for weight in weights]
        for update in range(7):
            arrays = rows(4, seed=update)
            step(*tensors(*arrays))
            _, gradients = reference.linear_regression(*weights, *arrays)
            weights, velocities = reference.frozen_momentum_update(
                weights, velocities, gradients, (0, 1), int(schedule.first[update % 3]), 0.05
            )
        actual = {p.name: p.asnumpy() for p in (*optimizer.parameters, *optimizer.moments)}
        expected = dict(zip(actual, weights + velocities, strict=True))
        assert_close(actual, expected, **TOLERANCE["float32, many updates"])

    def test_a_schedule_of_zeros_is_the_optimizer_alone(self):
        networks = deep(), deep()
        steps = [
            freezing(networks[0], momentum(networks[0]), first=[0]),
            PlainStep(LossNet(networks[1], nn.MSELoss()), momentum(networks[1])),
        ]
        for call in range(3):
            for step in steps:
                step(*tensors(*rows(4, seed=call)))
        assert_bit_equal(*map(snapshot, networks))

    def test_micro_batches_and_clipping_count_as_one_update(self):
        """Groups of two, at a norm that clips, train as the whole batches do."""
        results = []
        for kind, sizes, more in (
            (AccumulatedStep, [4] * 8, {"micro_steps": 2}),
            (PlainStep, [8] * 4, {}),
        ):
            network = deep()
            step = freezing(network, momentum(network), kind, clip_norm=0.1, loss_scale=8.0, **more)
            for batch in split(rows(32), sizes):
                step(*batch)
            assert step.last_update.number == 4
            results.append(snapshot(network))
        assert_close(*results, **TOLERANCE["float32, a few updates"])

    def test_a_dropped_batch_is_no_update(self):
        """The schedule counts updates, not calls."""
        network = deep()
        step = freezing(network, momentum(network), first=[0, 2])
        inputs, targets = rows(4)
        step(*tensors(inputs, targets))
        step(*tensors(np.full_like(inputs, np.nan), targets))
        before = snapshot(network)
        step(*tensors(inputs, targets))
        still = {name for name, value in snapshot(network).items() if (value == before[name]).all()}
        assert still == {"0.weight", "0.bias", "2.weight", "2.bias"}


class TestBesideMindSporesOwn:
    """``FreezeOpt`` with the same schedule, on CPU."""

    def trained(self, rate, momentum_, updates):
        network, other = deep(), deep()
        ours = freezing(network, nn.Momentum(network.trainable_params(), rate, momentum_))
        loss_net = nn.WithLossCell(other, nn.MSELoss())
        parameters = other.trainable_params()
        groups = [parameters, parameters[2:], parameters[4:]]
        optimizer = FreezeOpt(
            nn.Momentum(parameters, rate, momentum_),
            [list(group) for group in groups],
            CYCLE.tolist(),
        )
        theirs = BoostTrainOneStepCell(loss_net, optimizer)
        theirs.set_train()
        for call in range(updates):
            batch = tensors(*rows(4, seed=call))
            ours(*batch)
            theirs(*batch)
        names = list(snapshot(network))
        values = dict(zip(names, (p.asnumpy().copy() for p in parameters), strict=True))
        return snapshot(network), values

    def test_without_momentum_both_train_alike(self):
        assert_close(*self.trained(0.05, 0.0, 6), **TOLERANCE["float32, many updates"])

    def test_its_moments_of_a_layer_do_not_know_of_each_other(self):
        """In MindSpore, update 1 trains the last layers with moments that lack update 0."""
        ours, theirs = self.trained(0.05, 0.9, 2)
        alike = [n for n in ours if np.allclose(ours[n], theirs[n], rtol=1e-5, atol=1e-6)]
        assert alike == ["0.weight", "0.bias"]


class Sum(nn.Cell):
    """The mean of a . x + b . x^2, weight 1; gradients: the means of inputs and of squares."""

    def __init__(self):
        super().__init__()
        self.a = Parameter(ms.Tensor(np.ones(INPUTS, np.float32)), name="a")
        self.b = Parameter(ms.Tensor(np.ones(INPUTS, np.float32)), name="b")

    def construct(self, inputs, targets):
        return ops.mean(ops.matmul(inputs, self.a) + ops.matmul(ops.square(inputs), self.b)), 1


class TestUnderAdasum:
    def step(self, on, scope, first=(0, 1)):
        loss_net = Sum()
        optimizer = nn.Momentum(loss_net.trainable_params(), 0.1, 0.9)
        schedule = FreezeSchedule({"a": 0, "b": 1}, np.array(first, np.int32), {"freeze": "a"})
        stage = GradFreezeUpdate(optimizer, schedule)
        return loss_net, AdasumStep(
            loss_net, optimizer, workers=2, on=on, scope=scope, freeze=stage
        )

    @pytest.mark.parametrize("scope", ["layer", "network"])
    @pytest.mark.parametrize("on", ["updates", "gradients"])
    def test_it_is_adasum_of_vectors_whose_frozen_part_is_zero(self, on, scope):
        """By network, the coefficient comes from the trained parameters alone."""
        network, step = self.step(on, scope)
        weights = np.ones((2, INPUTS))
        shape = (2, 2, INPUTS) if on == "updates" else (1, 2, INPUTS)
        velocities = np.zeros(shape)  # (worker or one, parameter, number)
        for update in range(4):
            batches = [rows(4, seed=2 * update + worker) for worker in range(2)]
            wide = [inputs.astype(np.float64) for inputs, _ in batches]
            gradients = np.array([[x.mean(0), (x**2).mean(0)] for x in wide])
            trained = np.array([[update % 2 == 0], [True]])
            gradients = gradients * trained
            for arrays in batches:
                step(*tensors(*arrays))
            if on == "updates":
                velocities = np.where(trained, 0.9 * velocities + gradients, velocities)
                moves = combined(-0.1 * velocities * trained, scope)
            else:
                total = combined(gradients, scope)
                velocities = np.where(trained, 0.9 * velocities + total, velocities)
                moves = -0.1 * velocities[0] * trained
            weights = weights + moves
            actual = np.array([network.a.asnumpy(), network.b.asnumpy()])
            np.testing.assert_allclose(actual, weights, **TOLERANCE["float32, many updates"])

    def test_it_goes_on_to_the_same_bits(self):
        _, step = self.step("updates", "layer")
        calls = [tensors(*rows(4, seed=call)) for call in range(8)]
        for batch in calls[:3]:
            step(*batch)
        state = snapshot(step)
        for batch in calls[3:]:
            step(*batch)
        _, resumed = self.step("updates", "layer")
        restore(resumed, state)
        for batch in calls[3:]:
            resumed(*batch)
        assert_bit_equal(snapshot(resumed), snapshot(step))
        assert step.settings["freeze"] == "a"

    @pytest.mark.parametrize("freeze", [{"a": 1}, 3])
    def test_what_is_no_stage_is_refused(self, freeze):
        network = deep()
        loss_net = LossNet(network, nn.MSELoss())
        with pytest.raises(InputError, match="freeze: expected a GradFreezeUpdate or None, got"):
            AdasumStep(loss_net, momentum(network), workers=2, freeze=freeze)
        with pytest.raises(InputError, match="schedule: expected a FreezeSchedule"):
            GradFreezeUpdate(momentum(network), freeze)

    def test_a_stage_of_another_optimizer_is_refused(self):
        network = deep()
        stage = GradFreezeUpdate(momentum(network), by_layer(network))
        loss_net = LossNet(network, nn.MSELoss())
        with pytest.raises(InputError, match="expected a stage of the same optimizer"):
            AdasumStep(loss_net, momentum(network), workers=2, freeze=stage)

    def test_a_stage_is_of_one_step(self):
        network = deep()
        optimizer = momentum(network)
        stage = GradFreezeUpdate(optimizer, by_layer(network))
        loss_net = LossNet(network, nn.MSELoss())
        AdasumStep(loss_net, optimizer, workers=2, freeze=stage)
        with pytest.raises(InputError, match="GradFreezeUpdate belongs to another step"):
            AdasumStep(loss_net, optimizer, workers=2, freeze=stage)


def combined(vectors, scope):
    """Return the Adasum of the workers' vectors (2, 2, INPUTS), by parameter or over all."""
    if scope == "network":
        return reference.adasum_tree(vectors.reshape(2, -1)).reshape(2, INPUTS)
    return np.array([reference.adasum_tree(vectors[:, layer]) for layer in range(2)])
