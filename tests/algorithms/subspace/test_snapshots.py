"""``Snapshots``: what is saved, when, and by which rank; interrupted, killed, resumed; loading."""

import hashlib
import json

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from mindspore.train import Callback, Model, RunContext
from mindspore.train.callback import _InternalCallbackParam
from safetensors import safe_open

from labkit.algorithms.subspace import snapshots as module
from labkit.algorithms.subspace.snapshots import SnapshotFolder, Snapshots, load_snapshot
from labkit.errors import InputError
from labkit.labs.compare import parameter_values
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.gradients import set_state
from labkit.steps.losses import LossNet
from labkit.training.checkpoint import checkpoints
from labkit.training.fit import EndOfEpoch, fit
from tests.support.leftovers import left_over
from tests.support.step_cells import assert_bit_equal, snapshot
from tests.support.trainings import dataset, loss_fn, network

pytestmark = [
    pytest.mark.usefixtures("runtime"),
    pytest.mark.filterwarnings("ignore:the network holds a trainable BatchNorm"),
]

SIZE = 11  # micro-batches in an epoch of ``dataset()``


def make():
    """Return a network with BatchNorm, whose statistics are not weights, and a step with Adam."""
    net = network(norm=True)
    optimizer = nn.Adam(net.trainable_params(), 0.02)
    return net, AccumulatedStep(LossNet(net, loss_fn()), optimizer, 4)


@pytest.fixture(scope="module")
def built(once, runtime):
    """A function that returns ``make()`` in its initial state, compiled once."""
    return lambda: once(make)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def numbers(folder):
    return [int(name[5:14]) for name in names(folder)]


def digests(folder):
    """Return the SHA-256 of every file by name; an empty folder fails."""
    digests = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}
    assert digests
    return digests


class Look(Callback):
    """Record the weights after each micro-batch; stop the training at one of them."""

    def __init__(self, net, stop=None):
        super().__init__()
        self.net, self.stop, self.seen, self.done = net, stop, {}, 0

    def on_train_step_end(self, run_context):
        self.done += 1
        self.seen[self.done] = parameter_values(self.net)
        if self.done == self.stop:
            raise KeyboardInterrupt


class TestSaving:
    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({}, [11, 22, 33]),
            ({"saves_per_epoch": 2}, [6, 11, 17, 22, 28, 33]),
            ({"start_epoch": 3, "saves_per_epoch": 3}, [26, 30, 33]),
            ({"start_epoch": 2, "saves_per_epoch": 11, "keep": 4}, [30, 31, 32, 33]),
            ({"start_epoch": 4}, []),
        ],
    )
    def test_the_weights_of_those_moments(self, built, tmp_path, options, expected):
        net, step = built()
        look, folder = Look(net), tmp_path / "snapshots"
        fit(step, dataset(), 3, progress=None, callbacks=[look, Snapshots(net, folder, **options)])
        assert numbers(folder) == expected
        for number, path in zip(expected, sorted(folder.iterdir()), strict=True):
            with safe_open(path, "numpy") as file:
                saved = {name: file.get_tensor(name) for name in file.keys()}
                note = json.loads(file.metadata()["labkit"])
            assert_bit_equal(saved, look.seen[number])
            assert (note["micro_batch"], note["epoch"]) == (number, (number - 1) // SIZE + 1)
        assert not expected or not np.array_equal(saved["1.weight"], network(norm=True)[1].weight)

    def test_the_sources_advice_makes_60(self, tmp_path):
        """Two snapshots an epoch from epoch 21 to epoch 50, without the training."""
        net = nn.Dense(2, 2)
        callback = Snapshots(net, tmp_path, start_epoch=21, saves_per_epoch=2, keep=None)
        pretend(callback, epochs=50, size=4)
        assert len(names(tmp_path)) == 60 and numbers(tmp_path)[:2] == [82, 84]

    def test_under_model_train_with_a_step_and_without(self, built, tmp_path):
        net, step = built()
        own = Snapshots(net, tmp_path / "step", saves_per_epoch=2)
        Model(step).train(2, dataset(), callbacks=[EndOfEpoch(step), own])
        fitted, step = built()
        fit(
            step,
            dataset(),
            2,
            progress=None,
            callbacks=[Snapshots(fitted, tmp_path / "fit", saves_per_epoch=2)],
        )
        assert digests(tmp_path / "step") == digests(tmp_path / "fit")
        bare = network()
        optimizer = nn.SGD(bare.trainable_params(), 0.02)
        Model(bare, loss_fn(), optimizer).train(
            3, dataset(), callbacks=[Snapshots(bare, tmp_path / "bare")], initial_epoch=1
        )
        assert numbers(tmp_path / "bare") == [22, 33]
        load_snapshot(other := network(), tmp_path / "bare")
        assert_bit_equal(parameter_values(other), parameter_values(bare))

    def test_a_frozen_parameter_is_left_out(self, tmp_path):
        net = network()
        net[1].weight.requires_grad = False
        pretend(Snapshots(net, tmp_path))
        described = SnapshotFolder(tmp_path, net).described
        assert [name for name, _ in described] == ["1.bias", "3.weight", "3.bias"]

    def test_only_the_first_rank_writes(self, tmp_path, monkeypatch):
        monkeypatch.setattr(module, "rank_and_size", lambda: (1, 2))
        pretend(Snapshots(nn.Dense(2, 2), tmp_path / "none"))
        assert not (tmp_path / "none").exists()
        monkeypatch.setattr(module, "rank_and_size", lambda: (0, 2))
        pretend(Snapshots(nn.Dense(2, 2), tmp_path / "some"))
        assert numbers(tmp_path / "some") == [4, 8]

    def test_in_sink_mode_once_an_epoch(self, tmp_path):
        """Model then calls back only at the end of an epoch; TestFirstStage trains this way."""
        pretend(Snapshots(nn.Dense(2, 2), tmp_path, start_epoch=2), epochs=3, sink=True)
        assert numbers(tmp_path) == [8, 12]
        pretend(Snapshots(nn.Dense(2, 2), tmp_path, resume=True), epochs=4, done=8, sink=True)
        assert numbers(tmp_path) == [8, 12, 16]


def pretend(callback, epochs=2, size=4, done=0, sink=False):
    """Call a callback as ``Model.train`` does, without training."""
    given = _InternalCallbackParam()
    data = dataset()
    data.set_init_step(done)
    given.update(train_dataset=data, batch_num=size, dataset_sink_mode=sink)
    context = RunContext(given)
    callback.on_train_begin(context)
    for epoch in range(done // size, epochs):
        given.cur_epoch_num = epoch + 1
        callback.on_train_epoch_begin(context)
        for _ in range(done % size if epoch == done // size else 0, 1 if sink else size):
            callback.on_train_step_end(context)


@pytest.fixture(scope="module")
def whole(built, tmp_path_factory):
    """Return the digests of the snapshots of an uninterrupted training."""
    folder = tmp_path_factory.mktemp("whole")
    TestInterrupted().train(built, folder)
    return digests(folder / "snapshots")


class TestInterrupted:
    def train(self, built, folder, stop=None, resume=False, first=False):
        net, step = built()
        options = {"saves_per_epoch": 3, "start_epoch": 2, "keep": 4, "resume": resume}
        callbacks = [Snapshots(net, folder / "snapshots", **options), Look(net, stop)]
        fit(
            step,
            dataset(augment=True),
            3,
            folder=folder / "run",
            resume=resume,
            checkpoint_every=5,
            progress=None,
            callbacks=callbacks[::-1] if first else callbacks,
        )

    @pytest.mark.parametrize(
        ("stop", "first"),
        [
            (3, False),  # before any checkpoint
            (30, True),  # after a checkpoint and before its snapshot
            (19, False),  # after a snapshot that is behind the newest checkpoint
            (30, False),  # where the first snapshots have already been removed
        ],
    )
    def test_a_resumed_training_leaves_the_same_bits(self, built, whole, tmp_path, stop, first):
        with pytest.raises(KeyboardInterrupt):
            self.train(built, tmp_path, stop, first=first)
        folder, held = tmp_path / "snapshots", checkpoints(tmp_path / "run" / "checkpoint")
        for number in numbers(folder):
            if number > int(held[-1].stem[5:]):
                (folder / f"step-{number:09d}.safetensors").write_bytes(b"of another future")
        left = left_over(folder)
        self.train(built, tmp_path, resume=True)
        assert not left.exists()
        assert digests(folder) == whole
        assert len(whole) == 4

    def test_what_was_saved_after_the_checkpoint_is_removed(self, tmp_path):
        pretend(Snapshots(nn.Dense(2, 2), tmp_path), epochs=5)
        assert numbers(tmp_path) == [4, 8, 12, 16, 20]
        pretend(Snapshots(nn.Dense(2, 2), tmp_path), epochs=3, done=10)
        assert numbers(tmp_path) == [4, 8, 12]

    def test_other_counts_hold_from_there_on(self, tmp_path):
        pretend(Snapshots(nn.Dense(2, 2), tmp_path, saves_per_epoch=2))
        assert numbers(tmp_path) == [2, 4, 6, 8]
        options = {"start_epoch": 4, "keep": 4, "resume": True}
        pretend(Snapshots(nn.Dense(2, 2), tmp_path, **options), epochs=3, done=8)
        assert numbers(tmp_path) == [2, 4, 6, 8]
        pretend(Snapshots(nn.Dense(2, 2), tmp_path, **options), epochs=5, done=12)
        assert numbers(tmp_path) == [6, 8, 16, 20]

    def test_an_earlier_training_is_not_mixed_in(self, tmp_path):
        pretend(Snapshots(nn.Dense(2, 2), tmp_path))
        before = digests(tmp_path)
        with pytest.raises(InputError, match="snapshots of an earlier training; give resume=True"):
            pretend(Snapshots(nn.Dense(2, 2), tmp_path))
        assert digests(tmp_path) == before
        pretend(Snapshots(nn.Dense(2, 2), tmp_path, resume=True), epochs=1)
        assert numbers(tmp_path) == [4]


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (nn.ReLU, {}, "ReLU has no trainable parameter"),
        (lambda: nn.Dense(2, 2, dtype=ms.float16), {}, "weight is Float16; snapshots are of floa"),
        (lambda: nn.Dense(2, 2), {"keep": 0}, "keep: expected an integer >= 1, got 0"),
        (lambda: nn.Dense(2, 2), {"saves_per_epoch": 5}, "saves_per_epoch: expected at most 4"),
        (lambda: nn.Dense(2, 2), {"saves_per_epoch": 2}, "saves_per_epoch: expected 1 in dataset"),
    ],
)
def test_what_is_refused(tmp_path, make, options, words):
    """When it is made, or when the training begins; nothing is written."""
    with pytest.raises(InputError, match=words):
        pretend(Snapshots(make(), tmp_path, **options), sink="in dataset" in words)
    assert names(tmp_path) == []


class TestLoading:
    @pytest.fixture
    def saved(self, tmp_path):
        """Three snapshots of a network, whose weights are all 1, all 2 and all 3."""
        net = network()
        parameters = net.trainable_params()
        for value in (1, 2, 3):
            for parameter in parameters:
                set_state(parameter, np.full(parameter.shape, value, np.float32))
            module.write_snapshot(tmp_path / f"step-{value:09d}.safetensors", parameters)
        left_over(tmp_path)  # half a snapshot, left by a process that was killed
        return tmp_path

    @pytest.mark.parametrize(("which", "value"), [("last", 3), ("first", 1), (1, 2), (-1, 3)])
    def test_the_one_that_was_asked_for(self, saved, which, value):
        net = network(norm=False)
        path = load_snapshot(net, saved, which)
        assert path.name == f"step-{value:09d}.safetensors"
        assert all((parameter.asnumpy() == value).all() for parameter in net.trainable_params())

    def test_running_statistics_stay(self, built, tmp_path):
        net, step = built()
        fit(step, dataset(), 1, progress=None, callbacks=[Snapshots(net, tmp_path)])
        trained = snapshot(net)
        other = network(norm=True)
        load_snapshot(other, tmp_path)
        assert_bit_equal(parameter_values(other), {n: trained[n] for n in parameter_values(net)})
        assert (other[2].moving_mean.asnumpy() == 0).all() and trained["2.moving_mean"].any()

    @pytest.mark.parametrize("which", ["middle", 3, -2])
    def test_others_are_refused(self, saved, which):
        expected = "at most 2, the last in" if which == 3 else ""
        with pytest.raises(InputError, match=f"which: expected {expected}"):
            load_snapshot(network(), saved, which)

    def test_another_network_is_refused_by_the_parameter(self, saved):
        with pytest.raises(InputError, match=r"1.weight is F32 \(7, 16\); expected F32 \(8, 16\)"):
            load_snapshot(network(8), saved)
