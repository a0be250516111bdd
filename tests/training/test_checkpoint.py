"""Checkpoint files: complete or absent, refused if damaged or of another network."""

from dataclasses import replace

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

from labkit.errors import InputError
from labkit.training import checkpoint
from labkit.training.checkpoint import Position
from tests.support.step_cells import assert_bit_equal, snapshot

pytestmark = pytest.mark.usefixtures("runtime")

POSITION = Position(7, 2, 0.1 + 0.2, 1, {"step": "Net", "rates": [0.1, None], "micro_steps": 4})


class Net(nn.Cell):
    """Parameters of several types and shapes."""

    def __init__(self, seed=0, width=5):
        super().__init__()
        draw = np.random.default_rng(seed)
        self.weight = Parameter(Tensor(draw.normal(size=(3, width)).astype(np.float32)))
        self.half = Parameter(Tensor(draw.normal(size=4).astype(np.float16)))
        self.count = Parameter(Tensor(seed + 3, ms.int32))
        self.ready = Parameter(Tensor(seed % 2 == 0))

    def construct(self):
        return self.weight.sum() + self.count


@pytest.fixture
def saved(tmp_path):
    """A checkpoint of ``Net()`` in a folder of its own."""
    return checkpoint.save(Net(), POSITION, tmp_path / "run" / "checkpoint")


def test_what_was_saved_is_loaded_to_the_last_bit(saved):
    net = Net(seed=1)
    before = float(net().asnumpy())
    position, values = checkpoint.load(saved)
    checkpoint.load_into(net, values)
    assert position == POSITION
    assert_bit_equal(snapshot(net), snapshot(Net()))
    # It has run before the load: its graph takes the loaded values.
    expected = Net().weight.asnumpy().sum() + 3
    assert float(net().asnumpy()) == pytest.approx(expected, rel=1e-6) != before


def test_mindspore_and_read_take_both_forms(saved, tmp_path):
    """The file of a training through ``ms.load_checkpoint``, and MindSpore's own ``.ckpt``."""
    checkpoint.write(Net(), tmp_path / "net.ckpt", {"epoch": 3})
    for path, form in ((saved, "safetensors"), (tmp_path / "net.ckpt", "ckpt")):
        for values in (checkpoint.read(path), ms.load_checkpoint(str(path), format=form)):
            net = Net(seed=1)
            missing, _ = ms.load_param_into_net(net, values)
            assert missing == []
            assert_bit_equal(snapshot(net), snapshot(Net()))


def test_the_newest_are_kept_by_their_number(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for done in (3, 20, 5000, 100, 1000):
        path = checkpoint.save(Net(), replace(POSITION, micro_batches=done), tmp_path)
        checkpoint.keep_newest(tmp_path, 3, path)
    kept = [f"step-{done:09d}.safetensors" for done in (20, 100, 1000)]
    assert [path.name for path in checkpoint.checkpoints(tmp_path)] == kept
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", *kept]


def test_files_that_cannot_be_read(saved, tmp_path):
    for path, harm in ((saved, 9), (tmp_path / "net.ckpt", 20)):
        with pytest.raises(InputError, match="no checkpoint at"):
            checkpoint.read(path.with_name("none"))
        if path != saved:
            checkpoint.write(Net(), path)
        path.write_bytes(path.read_bytes()[harm:])
        with pytest.raises(InputError, match="is damaged"):
            checkpoint.read(path)


def test_another_network_is_refused_and_left_alone(saved):
    other = Net(1)
    other.half.set_dtype(ms.float32)
    for net, words in (
        (Net(1, width=6), r"or step: weight: expected Float32 \(3, 6\), got Float32 \(3, 5\)"),
        (other, r"or step: half: expected Float32 \(4,\), got Float16 \(4,\)"),
        (nn.Dense(2, 2), r"bias: expected Float32 .*, got nothing; count: .*\(5 in all\)"),
    ):
        before = snapshot(net)
        with pytest.raises(InputError, match=words):
            checkpoint.load_into(net, checkpoint.read(saved))
        assert_bit_equal(snapshot(net), before)
