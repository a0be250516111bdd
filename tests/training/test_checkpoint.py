"""Checkpoint files: complete or absent, verified when read, refused if they do not fit."""

import json
import random
from dataclasses import asdict, replace

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

from labkit.errors import InputError
from labkit.training import checkpoint
from labkit.training.checkpoint import DamagedCheckpoint, Position
from labkit.training.position import parse_position
from tests.support.leftovers import DEAD, left_over
from tests.support.step_cells import assert_bit_equal, snapshot

pytestmark = pytest.mark.usefixtures("runtime")

POSITION = Position(
    micro_batches=7,
    epoch_size=11,
    batch_size=4,
    seed=1,
    workers=[1, 2],
    seconds=0.1 + 0.2,
    records=1,
    settings={"step": "Net", "tail": "flush", "micro_steps": 4},
)


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


@pytest.fixture
def net():
    """A different network, which every refusal leaves unchanged."""
    net = Net(seed=1)
    before = snapshot(net)
    net.assert_untouched = lambda: assert_bit_equal(snapshot(net), before)
    return net


def at(micro_batches):
    return replace(POSITION, micro_batches=micro_batches)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_was_saved_is_loaded_to_the_last_bit(saved, net):
    before = float(net().asnumpy())
    assert checkpoint.load(net, saved) == POSITION
    assert_bit_equal(snapshot(net), snapshot(Net()))
    # It has run before the load: its graph takes the loaded values.
    expected = Net().weight.asnumpy().sum() + 3
    assert float(net().asnumpy()) == pytest.approx(expected, rel=1e-6) != before


def test_mindspore_reads_it_too(saved, net):
    missing, _ = ms.load_param_into_net(net, ms.load_checkpoint(str(saved)))
    assert missing == []
    assert_bit_equal(snapshot(net), snapshot(Net()))


def test_the_newest_are_kept_by_their_number(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "step-1.ckpt").write_text("not ours")
    left_over(tmp_path, DEAD)  # of a process that was killed while it wrote
    for done in (3, 20, 100, 1000):
        checkpoint.save(Net(), at(done), tmp_path, keep=3)
    kept = [path.name for path in checkpoint.checkpoints(tmp_path)]
    assert kept == ["step-000000020.ckpt", "step-000000100.ckpt", "step-000001000.ckpt"]
    assert names(tmp_path) == ["notes.txt", *kept, "step-1.ckpt"]


def test_there_are_none_where_there_is_no_folder(tmp_path, net):
    assert checkpoint.checkpoints(tmp_path / "none") == []
    assert checkpoint.load_latest(net, tmp_path / "none") is None


def test_an_interrupted_write_leaves_the_file_as_it_was(saved, monkeypatch):
    def killed(cell, path, **options):
        with open(path, "wb") as file:
            file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(ms, "save_checkpoint", killed)
    before = saved.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(Net(seed=1), POSITION, saved.parent)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_a_flipped_bit_and_a_cut_are_noticed(saved, net):
    data = saved.read_bytes()
    draw = random.Random(1)
    # Anywhere, and in each of the last bytes, which hold the check itself.
    places = draw.sample(range(len(data)), 80) + list(range(len(data) - 20, len(data)))
    damaged = []
    for place in places:
        flipped = bytearray(data)
        flipped[place] ^= 1 << draw.randrange(8)
        damaged.append(flipped)
    damaged += [data[:length] for length in (0, 1, 10, len(data) // 2, len(data) - 12)]
    for content in damaged + [data[:-1]]:
        saved.write_bytes(content)
        with pytest.raises(DamagedCheckpoint, match="is damaged and cannot be read"):
            checkpoint.load(net, saved)
    net.assert_untouched()


class TestLatest:
    def test_a_damaged_one_is_passed_over_and_said(self, saved, net, capsys):
        checkpoint.save(Net(seed=1), at(8), saved.parent).write_bytes(b"")
        assert checkpoint.load_latest(net, saved.parent) == POSITION
        assert_bit_equal(snapshot(net), snapshot(Net()))
        (line,) = capsys.readouterr().out.splitlines()
        assert line.startswith("labkit: the checkpoint ") and "step-000000008.ckpt is dam" in line

    def test_a_damaged_one_that_is_later_does_not_push_out_a_good_one(self, saved, net):
        checkpoint.save(Net(), at(20), saved.parent).write_bytes(b"")
        for done in (8, 9):
            checkpoint.save(Net(), at(done), saved.parent, keep=1)
            assert checkpoint.load_latest(net, saved.parent) == at(done)
        assert names(saved.parent) == ["step-000000009.ckpt", "step-000000020.ckpt"]

    def test_if_all_are_damaged_it_is_an_error(self, saved, net):
        saved.write_bytes(b"")
        checkpoint.save(Net(), at(8), saved.parent).write_bytes(b"x")
        with pytest.raises(DamagedCheckpoint, match="step-000000007.ckpt is damaged"):
            checkpoint.load_latest(net, saved.parent)

    def test_a_refused_one_is_not_passed_over(self, saved, net):
        """The checkpoint before it may fit, and would silently lose the training since then."""
        checkpoint.save(Net(width=6), at(8), saved.parent)
        with pytest.raises(InputError, match="another network"):
            checkpoint.load_latest(net, saved.parent)


class Renamed(Net):
    def __init__(self):
        super().__init__(seed=1)
        self.weight.name = "kernel"


class Retyped(Net):
    def __init__(self):
        super().__init__(seed=1)
        self.half = Parameter(Tensor(np.zeros(4, np.float32)))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Net(1, width=6), r"another network: weight is Float32 \(3, 5\), .* \(3, 6\)"),
        (Renamed, "another network or step: it lacks kernel and holds weight beside"),
        (Retyped, r"another network: half is Float16 \(4,\), expected Float32 \(4,\)"),
        (lambda: nn.Dense(2, 2), "lacks bias and holds count, half, ready beside"),
        (lambda: nn.ReLU(), "lacks nothing and holds count, half, ready and 1 more beside"),
    ],
)
def test_another_network_is_refused_and_left_alone(saved, make, words):
    net = make()
    before = {name: value.tobytes() for name, value in snapshot(net).items()}
    with pytest.raises(InputError, match=words):
        checkpoint.load(net, saved)
    assert {name: value.tobytes() for name, value in snapshot(net).items()} == before


class WithBfloat16(nn.Cell):
    """One Parameter in float32, one in bfloat16."""

    def __init__(self, value):
        super().__init__()
        self.bias = Parameter(Tensor([value]), name="bias")
        self.half = Parameter(Tensor([value, 2.0]), name="half")
        self.half.set_dtype(ms.bfloat16)


def test_bfloat16_is_saved_and_on_cpu_not_loaded(tmp_path, runtime):
    """MindSpore's CPU has no Assign for bfloat16; the error comes before anything is set."""
    if runtime.device != "CPU":
        pytest.skip("other devices assign bfloat16")
    path = checkpoint.save(WithBfloat16(1.0), POSITION, tmp_path / "checkpoint")
    net = WithBfloat16(3.0)
    with pytest.raises(InputError, match="half is BFloat16, and MindSpore's CPU"):
        checkpoint.load(net, path)
    assert float(net.bias.asnumpy()[0]) == 3


def test_accept_may_refuse(saved, net):
    def refuse(position, values):
        assert position == POSITION and values.keys() == snapshot(net).keys()
        raise InputError("another seed")

    for load, path in ((checkpoint.load, saved), (checkpoint.load_latest, saved.parent)):
        with pytest.raises(InputError, match="another seed"):
            load(net, path, refuse)
    net.assert_untouched()


def test_files_that_fit_is_not_the_writer_of(tmp_path, net):
    later = {**asdict(POSITION), "planet": "Mars"}
    crafted = {**asdict(POSITION), "records": 10**30}
    for extra, words in (
        (None, "got one without position"),
        ({"labkit_position": json.dumps(later)}, "of another version of labkit"),
        ({"labkit_position": json.dumps(crafted)}, "a.ckpt is damaged or .*: records: expected"),
    ):
        checkpoint.write(Net(), tmp_path / "a.ckpt", extra)
        with pytest.raises(InputError, match=words):
            checkpoint.load(net, tmp_path / "a.ckpt")
    checkpoint.write(Net(), tmp_path / "step-000000001.ckpt")
    with pytest.raises(InputError, match="got one without position"):
        checkpoint.load_latest(net, tmp_path)
    with pytest.raises(InputError, match="no checkpoint at"):
        checkpoint.load(net, tmp_path / "none.ckpt")
    net.assert_untouched()


HUGE = 10**30
NOTE = {"constants": {"class": "Adam", "beta1": 0.9}, "parameters": {"beta1_power": 0.5}}
NO_POSITIONS = [
    {field: value}
    for field in asdict(POSITION)
    for value in ([None], "x", -2, 1.5, HUGE, float("nan"), {"a": [1]}, [["x"]], None)
    # Any number is valid for seconds; an older labkit wrote neither optimizer nor ranks.
    if (field, value) not in [("seconds", 1.5), ("seconds", HUGE)]
    and (value is not None or field not in ("optimizer", "ranks"))
] + [
    {"records": 8},
    {"records": True},
    {"seconds": float("inf")},
    {"settings": {"clip_norm": ["1.0"]}},
    {"settings": {"elements_per_row": "'x'"}},
    {"settings": {"elements_per_row": "[1]"}},
    {"settings": {"elements_per_row": 0}},
    {"settings": {"elements_per_row": 10**400}},
    {"ranks": 0},
    {"optimizer": []},
    {"optimizer": {}},
    {"optimizer": {"constants": NOTE["constants"]}},
    {"optimizer": NOTE | {"constants": {}}},
    {"optimizer": NOTE | {"constants": {"class": 1}}},
    {"optimizer": NOTE | {"constants": {"class": "Adam", "eps": None}}},
    {"optimizer": NOTE | {"constants": {"class": "Adam", "eps": 10**400}}},
    {"optimizer": NOTE | {"parameters": ["beta1_power"]}},
    {"optimizer": NOTE | {"parameters": {"beta1_power": "x"}}},
    {"optimizer": NOTE | {"parameters": {"beta1_power": {}}}},
    {"optimizer": NOTE | {"rates": ["x"]}},
    {"optimizer": NOTE | {"damping": {"length": "x"}}},
]


class TestPosition:
    @pytest.mark.parametrize("fields", NO_POSITIONS, ids=lambda fields: repr(fields)[:60])
    def test_what_fit_does_not_write_is_refused_by_name(self, fields):
        ((name, _),) = fields.items()
        with pytest.raises(InputError, match=f"^{name}: .*expected ") as error:
            parse_position(json.dumps(asdict(POSITION) | fields))
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize(
        "text", ["[" * 100_000, "[]", "1", "", '{"seed": ' + "9" * 5000 + "}", "{}", " " * 2**25]
    )
    def test_what_is_no_position_at_all(self, text):
        with pytest.raises(InputError):
            parse_position(text)

    def test_what_fit_writes(self):
        older = {k: v for k, v in asdict(POSITION).items() if k not in ("optimizer", "ranks")}
        damping = {"length": 2, "sha256": "0", "first": 0.1, "last": float("inf")}
        constants = {"class": "Adam", "eps": float("nan"), "flags": [[1, 2.5], True]}
        note = {"constants": constants, "parameters": {"rate": None, "power": 0.5}}
        for more in ({}, {"optimizer": None}, {"optimizer": NOTE, "ranks": 2}):
            assert parse_position(json.dumps(older | more)) == Position(**older, **more)
        parse_position(json.dumps(older | {"optimizer": note | {"damping": damping}}))
        parse_position(json.dumps(older | {"settings": {"elements_per_row": "2.5", "rank": 0}}))
