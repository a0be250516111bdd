"""The subspace race's program: stage one's results, and what starts from them."""

import numpy as np
import pytest
import race
import subspace_race
from mindspore import Tensor, nn

from labkit.algorithms.subspace.snapshots import Snapshots
from labkit.nets.lenet import LeNet5
from labkit.steps.losses import LossNet
from labkit.steps.state import set_state
from labkit.training.fit import fit

pytestmark = pytest.mark.usefixtures("runtime")

SMALL = {"batch": 8, "learning_rate": 0.05, "epochs": 2, "start_epoch": 2, "saves_per_epoch": 3}


@pytest.fixture(scope="module")
def data():
    random = np.random.default_rng(5)
    images = random.standard_normal((60, 1, 32, 32), dtype=np.float32)
    labels = random.integers(0, 10, 60).astype(np.int32)
    # The last 15 are neither trained on nor given random labels.
    return race.Images(images, labels, np.arange(45), images[:20], labels[:20])


@pytest.fixture(scope="module")
def started(data, tmp_path_factory):
    """(folder that stage one left, weights and moments at its end)."""
    folder = tmp_path_factory.mktemp("race") / "one"
    outcome = subspace_race.train_stage_one(SMALL, data, 3, folder)
    assert [point["update"] for point in outcome["curve"]] == [5, 10] and not outcome["failure"]
    with np.load(folder / "end.npz") as values:
        return folder, dict(values)


def setting_of(method, **changes):
    return subspace_race.setting_of({"batch 8": SMALL}, method, **changes)


def test_snapshots_are_taken_when_the_callback_takes_them(once, tmp_path):
    from labkit.steps.step import PlainStep
    from tests.support.trainings import dataset, loss_fn, network

    net = network()
    step = PlainStep(LossNet(net, loss_fn()), nn.SGD(net.trainable_params(), 0.01))
    words = {"start_epoch": 2, "saves_per_epoch": 4}
    fit(step, dataset(), 3, progress=None, callbacks=[Snapshots(net, tmp_path / "s", **words)])
    saved = [int(path.name[5:14]) for path in sorted((tmp_path / "s").iterdir())]
    assert saved == subspace_race.moments_of(words | {"epochs": 3}, 11)


def test_stage_one_leaves_its_end_and_its_snapshots(started):
    folder, end = started
    last, whole = (
        subspace_race.weights_in(folder / name, LeNet5()) for name in ("snapshots", "whole")
    )
    assert len(last) == len(whole) == 3
    for name in last[0]:
        np.testing.assert_array_equal(last[-1][name], end[name])
        np.testing.assert_array_equal(whole[-1][name], end[name])
        assert np.abs(whole[0][name] - end[name]).max() > 0


def test_controls_go_on_with_weights_and_moments(data, started):
    """One more epoch at the same rate gives the weights of a plain loop with those moments."""
    folder, end = started
    _, step = subspace_race.continued(setting_of("same_rate"), folder, 5)
    other = LeNet5()
    optimizer = nn.Momentum(other.trainable_params(), 0.05, race.MOMENTUM)
    for parameter in (*other.trainable_params(), *optimizer.moments):
        set_state(parameter, end[parameter.name])
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    plain = nn.TrainOneStepCell(nn.WithLossCell(other, loss), optimizer).set_train()
    for rows in race.batches(data.rows, 5, (3, 2), 8):
        for each in (step, plain):
            each(Tensor(data.images[rows]), Tensor(data.labels[rows]))
    values = {parameter.name: parameter.asnumpy() for parameter in step.optimizer.parameters}
    for parameter in other.trainable_params():
        name, value = parameter.name, parameter.asnumpy()
        np.testing.assert_allclose(values[name], value, rtol=1e-5, atol=1e-6)
        assert np.abs(values[name] - end[name]).max() > 1e-3


def test_the_average_is_that_of_the_snapshots(data, started):
    (point,) = subspace_race.average(started[0], data)["curve"]
    network = LeNet5()
    snapshots = subspace_race.weights_in(started[0] / "snapshots", network)
    for parameter in network.trainable_params():
        set_state(parameter, sum(each[parameter.name] for each in snapshots) / np.float32(3))
    accuracy, loss = race.judge(network, data)
    assert point["accuracy"] == accuracy and abs(point["loss"] - loss) < 1e-6


def test_a_search_starts_where_it_is_asked_to(data, started, eager):
    outcomes = [
        subspace_race.train_stage_two(
            setting_of("projected_bfgs", batch=15, components=2, start=name),
            started[0], data, 3, 1, 1,
        )
        for name in ("last", "first", "initial")
    ]  # fmt: skip
    assert len({str(outcome["curve"]) for outcome in outcomes}) == 3
    first = outcomes[0]
    assert first["searches"] == 3 and first["trials_made"] >= 3 - first["failed_searches"]
