"""The race's program: its plan, stage one's results, and what starts from them."""

from dataclasses import replace

import numpy as np
import pytest
import subspace_race as training
from mindspore import Tensor, nn
from race import Images
from subspace_race import PLANS, moments_of, planned, with_noise
from subspace_race import subspace_setting as setting_of

from labkit.algorithms.subspace.snapshots import SnapshotFolder, Snapshots, load_snapshot
from labkit.nets.lenet import LeNet5
from labkit.steps.gradients import set_state
from labkit.steps.losses import LossNet
from labkit.training.fit import fit

pytestmark = pytest.mark.usefixtures("runtime")

SMALL = {"batch": 8, "learning_rate": 0.05, "epochs": 2, "start_epoch": 2, "saves_per_epoch": 3}
PER_EPOCH = 5


@pytest.fixture(scope="module")
def data():
    random = np.random.default_rng(5)
    images = random.standard_normal((60, 1, 32, 32), dtype=np.float32)
    labels = random.integers(0, 10, 60).astype(np.int32)
    # The last 15 are neither trained on nor given random labels.
    return Images(images, labels, np.arange(45), images[:20], labels[:20])


@pytest.fixture(scope="module")
def started(data, tmp_path_factory):
    """(folder that stage one left, weights and moments at its end, its outcome)."""
    folder = tmp_path_factory.mktemp("race") / "one"
    outcome = training.train_stage_one(SMALL, data, 3, folder)
    with np.load(folder / "end.npz") as values:
        return folder, dict(values), outcome


@pytest.fixture
def go_on(data, started, monkeypatch):
    """A function: fields of a setting -> outcome of one epoch after stage one, its step."""
    made = {}

    def noting(name):
        make = getattr(training, name)

        def note(*arguments):
            made["step"] = (result := make(*arguments))[1]
            return result

        monkeypatch.setattr(training, name, note)

    monkeypatch.setattr(training, "folder_of", lambda *_: started[0])
    noting("continued")
    noting("projected")

    def go_on(method, **fields):
        setting = setting_of({"settings": {"batch 8": SMALL}}, method) | fields
        outcome = training.train(setting, data, 3, stage_one=SMALL, epochs=1, points=1)
        return outcome, made.get("step")

    return go_on


@pytest.mark.parametrize("name", PLANS)
def test_no_training_is_planned_twice_and_all_have_40_snapshots(name):
    plan = PLANS[name]
    trainings = planned(plan, [])
    assert trainings and len({repr(training) for training in trainings}) == len(trainings)
    for stage_one in plan["settings"].values():
        moments = moments_of(stage_one, plan["images"]["train"] // stage_one["batch"])
        assert len(set(moments)) == 40
        assert moments[-1] == stage_one["epochs"] * (plan["images"]["train"] // stage_one["batch"])
    # The end of the first epoch is one of the points.
    assert plan["points"] % plan["epochs"] == 0


def test_snapshots_are_taken_when_the_callback_takes_them(once, tmp_path):
    from labkit.steps.plain import PlainStep
    from tests.support.trainings import dataset, loss_fn, network

    net = network()
    step = PlainStep(LossNet(net, loss_fn()), nn.SGD(net.trainable_params(), 0.01))
    words = {"start_epoch": 2, "saves_per_epoch": 4}
    fit(step, dataset(), 3, progress=None, callbacks=[Snapshots(net, tmp_path / "s", **words)])
    saved = [int(path.name[5:14]) for path in sorted((tmp_path / "s").iterdir())]
    assert saved == moments_of(words | {"epochs": 3}, 11)


def test_stage_one_leaves_its_end_and_its_snapshots(started):
    folder, end, outcome = started
    assert not outcome["failure"]
    assert [point["update"] for point in outcome["curve"]] == [PER_EPOCH, 2 * PER_EPOCH]
    network = LeNet5()
    snapshots = SnapshotFolder(folder / "snapshots", network)
    assert len(snapshots) == len(moments_of(SMALL, PER_EPOCH)) == 3
    load_snapshot(network, folder / "snapshots")
    for parameter in network.trainable_params():
        np.testing.assert_array_equal(parameter.asnumpy(), end[parameter.name])
    # The other folder extends from the initial weights to the end.
    names = [path.name for path in SnapshotFolder(folder / "whole", network).paths]
    assert names[0] == "step-000000000.safetensors" and len(names) == 3
    assert names[-1] == f"step-{2 * PER_EPOCH:09d}.safetensors"
    load_snapshot(network, folder / "whole", "first")
    moved = [np.abs(p.asnumpy() - end[p.name]).max() for p in network.trainable_params()]
    assert min(moved) > 0


def test_controls_go_on_with_weights_and_moments(data, started, go_on):
    """One more epoch at the same rate gives the weights of a plain loop with those moments."""
    _, end, _ = started
    outcome, step = go_on("same_rate")
    assert [point["update"] for point in outcome["curve"]] == [PER_EPOCH]
    other = LeNet5()
    optimizer = nn.Momentum(other.trainable_params(), 0.05, training.MOMENTUM)
    for parameter in (*other.trainable_params(), *optimizer.moments):
        set_state(parameter, end[parameter.name])
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    plain = nn.TrainOneStepCell(nn.WithLossCell(other, loss), optimizer).set_train()
    for rows in training.batches(data.rows, PER_EPOCH, (3, 2), 8):
        plain(Tensor(data.images[rows]), Tensor(data.labels[rows]))
    values = {parameter.name: parameter.asnumpy() for parameter in step.optimizer.parameters}
    for parameter in other.trainable_params():
        name, value = parameter.name, parameter.asnumpy()
        np.testing.assert_allclose(values[name], value, rtol=1e-5, atol=1e-6)
        assert np.abs(values[name] - end[name]).max() > 1e-3


def test_the_decay_ends_at_zero_and_others_are_constant(go_on):
    for method, expected in (("to_zero", [0.05, 0.04, 0.03, 0.02, 0.01]), ("tenth", [0.005] * 5)):
        step = go_on(method)[1]
        rates = step.optimizer.learning_rate.learning_rate.asnumpy()
        np.testing.assert_allclose(rates, expected, rtol=1e-6)


def test_the_average_is_that_of_the_snapshots(data, started, go_on):
    (point,) = go_on("average")[0]["curve"]
    network = LeNet5()
    with SnapshotFolder(started[0] / "snapshots", network) as folder:
        snapshots = [folder.load(number) for number in range(3)]
    for parameter in network.trainable_params():
        set_state(parameter, sum(each[parameter.name] for each in snapshots) / np.float32(3))
    accuracy, loss = training.judge(network, data)
    assert point["accuracy"] == accuracy and abs(point["loss"] - loss) < 1e-6


def test_a_search_starts_where_it_is_asked_to(go_on):
    outcomes = [
        go_on("projected_bfgs", batch=15, components=2, start=name)[0]
        for name in ("last", "first", "initial")
    ]
    assert len({str(outcome["curve"]) for outcome in outcomes}) == 3
    first = outcomes[0]
    assert first["searches"] == 3 and first["trials_made"] >= 3 - first["failed_searches"]


def test_labels_are_drawn_anew_for_the_share_and_only_for_training(data):
    big = replace(data, labels=np.zeros(60, np.int32), rows=np.arange(50))
    labels = with_noise(big, 0.6)
    assert not labels[50:].any() and not big.labels.any()
    # 30 labels are drawn from ten classes; on average 27 of them are not 0.
    assert 20 <= (labels != 0).sum() <= 30
    np.testing.assert_array_equal(with_noise(big, 0.6), labels)
    np.testing.assert_array_equal(with_noise(data, 0.0), data.labels)
