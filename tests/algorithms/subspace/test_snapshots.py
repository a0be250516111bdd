"""Snapshots: what is saved, when, and by which rank; resumed; read by parts; what is refused."""

import hashlib

import mindspore as ms
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore import nn
from mindspore.train import Callback, Model, RunContext
from mindspore.train.callback import _InternalCallbackParam
from safetensors.numpy import load_file, save_file

from labkit.algorithms.subspace import snapshots as module
from labkit.algorithms.subspace.snapshots import SnapshotFolder, Snapshots
from labkit.errors import InputError
from labkit.labs.compare import parameter_values
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.losses import LossNet
from labkit.training.checkpoint import checkpoints
from labkit.training.fit import EndOfEpoch, fit
from tests.support.snapshots import SHAPES, SIZE, split, write
from tests.support.step_cells import assert_bit_equal
from tests.support.trainings import dataset, loss_fn, network

pytestmark = [
    pytest.mark.usefixtures("runtime"),
    pytest.mark.filterwarnings("ignore:the network holds a trainable BatchNorm"),
]

NAME = "step-000000009.safetensors"
COUNT = 5


def make():
    """Return a network with BatchNorm, whose statistics are not weights, and a step with Adam."""
    net = network(norm=True)
    optimizer = nn.Adam(net.trainable_params(), 0.02)
    return net, AccumulatedStep(LossNet(net, loss_fn()), optimizer, 4)


@pytest.fixture(scope="module")
def built(once):
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
            assert_bit_equal(load_file(path), look.seen[number])

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
        own = Snapshots(fitted, tmp_path / "fit", saves_per_epoch=2)
        fit(step, dataset(), 2, progress=None, callbacks=[own])
        assert digests(tmp_path / "step") == digests(tmp_path / "fit")
        bare = network()
        optimizer = nn.SGD(bare.trainable_params(), 0.02)
        Model(bare, loss_fn(), optimizer).train(
            3, dataset(), callbacks=[Snapshots(bare, tmp_path / "bare")], initial_epoch=1
        )
        assert numbers(tmp_path / "bare") == [22, 33]
        assert_bit_equal(SnapshotFolder(tmp_path / "bare").load(-1), parameter_values(bare))

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
        options = {"folder": folder / "run", "resume": resume, "checkpoint_every": 5}
        callbacks = callbacks[::-1] if first else callbacks
        fit(step, dataset(augment=True), 3, progress=None, callbacks=callbacks, **options)

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
        left = folder / ".part-0123abcd.safetensors"  # of a process killed while it writes
        left.write_bytes(b"half")
        self.train(built, tmp_path, resume=True)
        assert not left.exists()
        assert digests(folder) == whole
        assert len(whole) == 4

    def test_an_earlier_training_is_not_mixed_in(self, tmp_path):
        pretend(Snapshots(nn.Dense(2, 2), tmp_path))
        before = digests(tmp_path)
        with pytest.raises(InputError, match="snapshots of an earlier training; give resume=True"):
            pretend(Snapshots(nn.Dense(2, 2), tmp_path))
        assert digests(tmp_path) == before
        pretend(Snapshots(nn.Dense(2, 2), tmp_path, resume=True), epochs=1)
        assert numbers(tmp_path) == [4]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"network": nn.Dense(2, 2, dtype=ms.float16)}, "weight is Float16; snapshots are of floa"),
        ({"keep": 0}, "keep: expected an integer >= 1, got 0"),
        ({"saves_per_epoch": 5}, "saves_per_epoch: expected at most 4"),
        ({"saves_per_epoch": 2, "sink": True}, "saves_per_epoch: expected at most 1"),
    ],
)
def test_what_is_refused(tmp_path, options, words):
    """When it is made, or when the training begins; nothing is written."""
    options = {"network": nn.Dense(2, 2)} | options
    sink = options.pop("sink", False)
    with pytest.raises(InputError, match=words):
        pretend(Snapshots(folder=tmp_path, **options), sink=sink)
    assert names(tmp_path) == []


@pytest.fixture
def rows():
    return np.random.default_rng(0).normal(size=(COUNT, SIZE)).astype(np.float32)


@pytest.fixture
def folder(tmp_path, rows):
    write(tmp_path / "snapshots", rows)
    return tmp_path / "snapshots"


class TestReading:
    @given(
        order=st.permutations(list(SHAPES.items())),
        start=st.integers(0, SIZE),
        count=st.integers(0, SIZE),
    )
    @settings(max_examples=60, deadline=None)
    def test_any_part_is_that_part_of_every_row(self, tmp_path_factory, order, start, count):
        """The columns are in the order that was asked for."""
        folder = tmp_path_factory.getbasetemp() / "parts"
        rows = np.arange(COUNT * SIZE, dtype=np.float32).reshape(COUNT, -1)
        if not folder.exists():
            write(folder, rows)
        part = np.full((COUNT, min(count, SIZE - start)), np.nan, np.float32)
        SnapshotFolder(folder, order).read(start, part)
        arrays = [split(row) for row in rows]
        whole = [np.concatenate([each[name].ravel() for name, _ in order]) for each in arrays]
        np.testing.assert_array_equal(part, np.stack(whole)[:, start : start + part.shape[1]])

    def test_files_come_by_the_numbers_in_their_names(self, tmp_path, rows):
        for number in (10, 2, 9, 1):
            write(tmp_path, rows[:1], f"net-{number}_625.safetensors")
        names = [path.name for path in SnapshotFolder(tmp_path).paths]
        assert names == [f"net-{number}_625.safetensors" for number in (1, 2, 9, 10)]


class TestRefusals:
    def test_a_folder_that_is_not_there_or_empty(self, tmp_path):
        for folder in (tmp_path / "none", tmp_path):
            with pytest.raises(InputError, match="holds no snapshot"):
                SnapshotFolder(folder)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"bias": None}, r"bias is nothing; expected \(4,\)"),
            ({"bias": np.zeros(3, np.float32)}, r"bias is \(3,\); expected \(4,\)"),
            ({"bias": np.zeros(4)}, "bias is F64; expected F32"),
            ({"more": np.zeros(4, np.float32)}, r"more is \(4,\); expected nothing"),
        ],
    )
    def test_a_snapshot_of_another_network(self, folder, rows, change, words):
        arrays = {**{name: np.array(a) for name, a in split(rows[0]).items()}, **change}
        save_file({k: v for k, v in arrays.items() if v is not None}, folder / NAME)
        with pytest.raises(InputError, match=f"{NAME}.*: {words}"):
            SnapshotFolder(folder, SHAPES.items())

    def test_a_truncated_file(self, folder):
        path = folder / "step-000000002.safetensors"
        path.write_bytes(path.read_bytes()[:-3])
        with pytest.raises(InputError, match="step-000000002.* is damaged and cannot be read"):
            SnapshotFolder(folder, SHAPES.items())


class TestCheckpointsOfATutorial:
    """A folder of .ckpt files is read as it is: checkpoint_pca of the first stage."""

    @pytest.fixture
    def saved(self, tmp_path, rows):
        for number, row in enumerate(rows, 1):
            arrays = {"moving_mean": np.zeros(3, np.float32), **split(row)}
            values = [{"name": name, "data": ms.Tensor(a)} for name, a in arrays.items()]
            ms.save_checkpoint(values, str(tmp_path / f"resnet-{number}_625.ckpt"))
        return tmp_path

    def test_its_rows_are_those_of_snapshots(self, saved, folder, rows):
        part = np.empty(rows.shape, np.float32)
        snapshots = SnapshotFolder(saved, SHAPES.items())
        snapshots.read(0, part)
        names = [path.name for path in snapshots.paths]
        np.testing.assert_array_equal(part, rows)
        assert names == [f"resnet-{number}_625.ckpt" for number in range(1, len(rows) + 1)]

    def test_a_tutorials_names_are_taken_for_labkits(self, tmp_path):
        value = np.arange(6, dtype=np.float32).reshape(2, 3)
        tensors = [{"name": "end_point.weight", "data": ms.Tensor(value)}]
        ms.save_checkpoint(tensors, str(tmp_path / "resnet-1_2.ckpt"))
        folder = SnapshotFolder(tmp_path, [("fc.weight", (2, 3))])
        np.testing.assert_array_equal(folder.load(0)["fc.weight"], value)

    def test_damaged_or_of_another_network(self, saved):
        with pytest.raises(InputError, match="other is nothing; expected"):
            SnapshotFolder(saved, [("other", (2,))])
        path = saved / "resnet-1_625.ckpt"
        path.write_bytes(path.read_bytes()[:-5])
        with pytest.raises(InputError, match="resnet-1_625.ckpt is damaged"):
            SnapshotFolder(saved, SHAPES.items())
