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


def numbers(folder):
    return sorted(int(path.name[5:14]) for path in folder.iterdir())


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


def pretend(folder, net=None, epochs=2, size=4, done=0, sink=False, **options):
    """Save snapshots in ``folder`` as in ``Model.train``, without training."""
    callback = Snapshots(net or nn.Dense(2, 2), folder, **options)
    given, data = _InternalCallbackParam(), dataset()
    data.set_init_step(done)
    given.update(train_dataset=data, batch_num=size, dataset_sink_mode=sink)
    context = RunContext(given)
    callback.on_train_begin(context)
    for epoch in range(done // size, epochs):
        given.cur_epoch_num = epoch + 1
        callback.on_train_epoch_begin(context)
        for _ in range(done % size if epoch == done // size else 0, 1 if sink else size):
            callback.on_train_step_end(context)


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
        pretend(tmp_path, epochs=50, start_epoch=21, saves_per_epoch=2, keep=None)
        assert len(numbers(tmp_path)) == 60 and numbers(tmp_path)[:2] == [82, 84]

    def test_under_model_train_with_a_step_and_without(self, built, tmp_path):
        net, step = built()
        own = Snapshots(net, tmp_path / "step", saves_per_epoch=2)
        Model(step).train(2, dataset(), callbacks=[EndOfEpoch(step), own])
        fitted, step = built()
        own = Snapshots(fitted, tmp_path / "fit", saves_per_epoch=2)
        fit(step, dataset(), 2, progress=None, callbacks=[own])
        assert digests(tmp_path / "step") == digests(tmp_path / "fit")
        bare = network()
        own = Snapshots(bare, tmp_path / "bare")
        model = Model(bare, loss_fn(), nn.SGD(bare.trainable_params(), 0.02))
        model.train(3, dataset(), callbacks=[own], initial_epoch=1)
        assert numbers(tmp_path / "bare") == [22, 33]
        assert_bit_equal(SnapshotFolder(tmp_path / "bare", bare).load(-1), parameter_values(bare))

    def test_a_frozen_parameter_is_left_out(self, tmp_path):
        net = network()
        net[1].weight.requires_grad = False
        pretend(tmp_path, net)
        held = SnapshotFolder(tmp_path, net).load(0)
        assert list(held) == ["1.bias", "3.weight", "3.bias"]

    def test_only_the_first_rank_writes(self, tmp_path, monkeypatch):
        for rank in (1, 0):
            monkeypatch.setattr(module, "rank_and_size", lambda rank=rank: (rank, 2))
            pretend(tmp_path / "snapshots")
            assert (tmp_path / "snapshots").exists() == (rank == 0)
        assert numbers(tmp_path / "snapshots") == [4, 8]

    def test_in_sink_mode_once_an_epoch(self, tmp_path):
        """Model then calls back only at the end of an epoch; TestFirstStage trains this way."""
        pretend(tmp_path, epochs=3, sink=True, start_epoch=2)
        assert numbers(tmp_path) == [8, 12]
        pretend(tmp_path, epochs=4, done=8, sink=True, resume=True)
        assert numbers(tmp_path) == [8, 12, 16]


def train(built, folder, stop=None, resume=False, first=False):
    """Train with snapshots, which come after or ``first`` before what stops the training."""
    net, step = built()
    options = {"saves_per_epoch": 3, "start_epoch": 2, "keep": 4, "resume": resume}
    callbacks = [Snapshots(net, folder / "snapshots", **options), Look(net, stop)]
    options = {"folder": folder / "run", "resume": resume, "checkpoint_every": 5}
    callbacks = callbacks[::-1] if first else callbacks
    fit(step, dataset(augment=True), 3, progress=None, callbacks=callbacks, **options)


@pytest.fixture(scope="module")
def whole(built, tmp_path_factory):
    """Return the digests of the snapshots of an uninterrupted training."""
    folder = tmp_path_factory.mktemp("whole")
    train(built, folder)
    return digests(folder / "snapshots")


@pytest.mark.parametrize(
    ("stop", "first"),
    [
        (3, False),  # before any checkpoint
        (30, True),  # after a checkpoint and before its snapshot
        (19, False),  # after a snapshot that is behind the newest checkpoint
        (30, False),  # where the first snapshots have already been removed
    ],
)
def test_a_resumed_training_leaves_the_same_bits(built, whole, tmp_path, stop, first):
    with pytest.raises(KeyboardInterrupt):
        train(built, tmp_path, stop, first=first)
    folder, held = tmp_path / "snapshots", checkpoints(tmp_path / "run" / "checkpoint")
    for number in numbers(folder):
        if number > int(held[-1].stem[5:]):
            (folder / f"step-{number:09d}.safetensors").write_bytes(b"of another future")
    left = folder / ".part-0123abcd.safetensors"  # of a process killed while it writes
    left.write_bytes(b"half")
    train(built, tmp_path, resume=True)
    assert not left.exists()
    assert digests(folder) == whole
    assert len(whole) == 4


def test_an_earlier_training_is_not_mixed_in(tmp_path):
    pretend(tmp_path)
    before = digests(tmp_path)
    with pytest.raises(InputError, match="snapshots of an earlier training; give resume=True"):
        pretend(tmp_path)
    assert digests(tmp_path) == before
    pretend(tmp_path, epochs=1, resume=True)
    assert numbers(tmp_path) == [4]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"net": nn.Dense(2, 2, dtype=ms.float16)}, "weight is Float16; expected Float32, as prec"),
        ({"keep": 0}, "keep: expected an integer >= 1, got 0"),
        ({"saves_per_epoch": 5}, "saves_per_epoch: expected at most 4"),
        ({"saves_per_epoch": 2, "sink": True}, "saves_per_epoch: expected at most 1"),
    ],
)
def test_what_is_refused(tmp_path, options, words):
    """When it is made, or when the training begins; nothing is written."""
    with pytest.raises(InputError, match=words):
        pretend(tmp_path, **options)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def rows():
    return np.random.default_rng(0).normal(size=(COUNT, SIZE)).astype(np.float32)


@pytest.fixture(params=["safetensors", "ckpt"])
def folder(request, tmp_path, rows):
    """A folder of snapshots, or of the checkpoints of a tutorial's first stage."""
    if request.param == "safetensors":
        write(tmp_path, rows, "net-{}_625.safetensors")
        return tmp_path
    for number, row in enumerate(rows, 1):
        arrays = {"moving_mean": np.zeros(3, np.float32), **split(row)}
        values = [{"name": name, "data": ms.Tensor(a)} for name, a in arrays.items()]
        ms.save_checkpoint(values, str(tmp_path / f"net-{number}_625.ckpt"))
    return tmp_path


@given(
    order=st.permutations(list(SHAPES.items())),
    start=st.integers(0, SIZE),
    count=st.integers(0, SIZE),
)
@settings(max_examples=60)
def test_any_part_is_that_part_of_every_row(tmp_path_factory, order, start, count):
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


def test_rows_come_by_the_numbers_in_the_files_names(folder, rows):
    for old, new in ((5, 10), (1, 11)):
        (path,) = folder.glob(f"net-{old}_*")
        path.rename(path.with_name(path.name.replace(str(old), str(new), 1)))
    part = np.empty(rows.shape, np.float32)
    snapshots = SnapshotFolder(folder, SHAPES.items())
    snapshots.read(0, part)
    np.testing.assert_array_equal(part, rows[[1, 2, 3, 4, 0]])
    assert [path.name.split("_")[0][4:] for path in snapshots.paths] == ["2", "3", "4", "10", "11"]


def test_a_tutorials_names_are_taken_for_labkits(tmp_path):
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensors = [{"name": "end_point.weight", "data": ms.Tensor(value)}]
    ms.save_checkpoint(tensors, str(tmp_path / "resnet-1_2.ckpt"))
    folder = SnapshotFolder(tmp_path, [("fc.weight", (2, 3))])
    np.testing.assert_array_equal(folder.load(0)["fc.weight"], value)


def test_a_folder_that_is_damaged_or_of_another_network(folder, tmp_path_factory):
    with pytest.raises(InputError, match=r"net-1.*: other is nothing; expected \(2,\)"):
        SnapshotFolder(folder, [("other", (2,))])
    (path,) = folder.glob("net-2_*")
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(InputError, match=f"{path.name} cannot be read: "):
        SnapshotFolder(folder, SHAPES.items())
    for empty in (tmp_path_factory.mktemp("empty"), folder / "none"):
        with pytest.raises(InputError, match="holds no snapshot"):
            SnapshotFolder(empty, SHAPES.items())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bias": None}, r"bias is nothing; expected \(4,\)"),
        ({"bias": np.zeros(3, np.float32)}, r"bias is \(3,\); expected \(4,\)"),
        ({"bias": np.zeros(4)}, "bias is F64; expected F32"),
        ({"more": np.zeros(4, np.float32)}, r"more is \(4,\); expected nothing"),
    ],
)
def test_a_snapshot_of_another_network(tmp_path, rows, change, words):
    arrays = {**{name: np.array(a) for name, a in split(rows[0]).items()}, **change}
    path = tmp_path / "step-000000009.safetensors"
    save_file({k: v for k, v in arrays.items() if v is not None}, path)
    with pytest.raises(InputError, match=f"{path.name}.*: {words}"):
        SnapshotFolder(tmp_path, SHAPES.items())
