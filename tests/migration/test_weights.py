"""Weights survive a round trip bit by bit; files are whole, verified, and never executed."""

import os
import pickle
import random
import sys

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

from labkit.errors import InputError
from labkit.migration import (
    convert_back,
    convert_file,
    load,
    match,
    read_torch,
    state_dict,
    write_torch,
)
from labkit.nets.resnet import resnet18
from labkit.training import checkpoint

pytestmark = pytest.mark.usefixtures("runtime")


def network():
    """A dense layer and a BatchNorm: 6 parameters, under names that differ, and a counter."""
    return nn.SequentialCell(nn.Dense(3, 4), nn.BatchNorm1d(4))


def numbers(seed=0):
    """Tensors for ``network`` by PyTorch name, with a zero of each sign and a tiny number."""
    draw = np.random.default_rng(seed)
    state = {
        "0.weight": draw.normal(size=(4, 3)).astype(np.float32),
        "0.bias": np.array([0.0, -0.0, 1e-40, 3e38], np.float32),
        "1.num_batches_tracked": np.array(2**40 + 1, np.int64),
    }
    for name in ("weight", "bias", "running_mean", "running_var"):
        state[f"1.{name}"] = draw.normal(size=4).astype(np.float32)
    return state


def assert_bits(actual, expected):
    """Assert that names, shapes, types and bits are the same."""
    assert expected and actual.keys() == expected.keys()
    for name, value in expected.items():
        other = np.asarray(actual[name])
        assert (other.dtype, other.shape) == (value.dtype, value.shape), name
        assert other.tobytes() == value.tobytes(), name


def contents(cell):
    return {p.name: p.asnumpy().copy() for p in cell.get_parameters()}


# ---- round trips


def test_there_and_back_in_memory():
    cell, state = network(), numbers()
    before = contents(cell)
    load(cell, state)
    assert all((contents(cell)[name] != value).any() for name, value in before.items())
    assert_bits(state_dict(cell, counters={"1.num_batches_tracked": 2**40 + 1}), state)
    assert int(state_dict(cell)["1.num_batches_tracked"]) == 0


@pytest.mark.parametrize(("source", "target"), [(".pth", ".safetensors"), (".safetensors", ".pth")])
def test_there_and_back_through_files(tmp_path, source, target):
    pytest.importorskip("torch")
    state = numbers()
    write_torch(tmp_path / f"a{source}", state)
    assert_bits(read_torch(tmp_path / f"a{source}"), state)
    result = convert_file(tmp_path / f"a{source}", tmp_path / "b.ckpt", network())
    assert result.complete and result.carried == ("1.num_batches_tracked",)
    actual = convert_back(tmp_path / "b.ckpt", tmp_path / f"c{target}", network())
    assert_bits(read_torch(actual), state)
    names = {f"a{source}", "b.ckpt", f"c{target}"}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_a_file_of_pytorchs_safetensors_and_one_for_it(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file, save_file

    state = {name: torch.from_numpy(value) for name, value in numbers().items()}
    save_file(state, tmp_path / "a.safetensors")
    assert_bits(read_torch(tmp_path / "a.safetensors"), numbers())
    write_torch(tmp_path / "b.safetensors", numbers())
    back = load_file(tmp_path / "b.safetensors")
    assert all(torch.equal(back[name], value) for name, value in state.items())


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_types(tmp_path, suffix):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    kinds = [torch.float16, torch.float32, torch.float64, torch.bool, torch.uint8]
    kinds += [torch.int8, torch.int16, torch.int32, torch.int64]
    exact = torch.tensor([[1.0, 0.0, 2.0], [1.0, 3.0, 0.0]])
    state = {str(kind): exact.to(kind) for kind in kinds}
    state["scalar"] = torch.tensor(2.5)
    state["empty"] = torch.zeros(0, 3)
    half = {"w": torch.randn(7, 5).bfloat16(), "s": torch.tensor(-1e-30).bfloat16()}
    path = tmp_path / f"a{suffix}"
    (torch.save if suffix == ".pth" else save_file)(state | half, path)
    expected = {name: value.numpy() for name, value in state.items()}
    # bfloat16 becomes float32, which holds it exactly.
    expected |= {name: value.float().numpy() for name, value in half.items()}
    assert_bits(read_torch(path), expected)


@pytest.mark.parametrize("kind", [np.float16, np.float64])
def test_other_precisions_are_loaded_where_they_are_exact(kind):
    cell = network()
    state = numbers() | {"0.bias": np.array([1.5, -2.25, 0.0, 64.0])}
    state = {n: np.rint(v * 4).astype(kind) / kind(4) if v.ndim else v for n, v in state.items()}
    load(cell, state)
    assert (state_dict(cell)["0.bias"] == state["0.bias"]).all()


def test_parameters_of_half_precision():
    cell = nn.Cell()
    cell.w = Parameter(Tensor([0.0, 0.0], ms.float16))
    load(cell, {"w": np.array([1.5, -2.25], np.float32)})
    assert state_dict(cell)["w"].tolist() == [1.5, -2.25]
    for value in (0.1, 1e30):
        with pytest.raises(InputError, match="does not fit into float16 without rounding"):
            load(cell, {"w": np.array([0, value], np.float32)})


def test_bfloat16_parameters_are_written_as_float32(tmp_path):
    # MindSpore 2.10 has no CPU kernel to assign them, so they cannot be loaded here.
    cell = nn.Cell()
    cell.w = Parameter(Tensor([1.5, -2.25], ms.bfloat16))
    assert state_dict(cell)["w"].dtype == np.float32
    path = write_torch(tmp_path / "a.safetensors", state_dict(cell))
    assert_bits(read_torch(path), {"w": np.array([1.5, -2.25], np.float32)})


def test_views_and_fortran_order_are_written_as_they_look(tmp_path):
    state = {"t": np.arange(12.0).reshape(3, 4).T, "s": np.arange(10)[::-2]}
    for suffix in (".safetensors", ".pth"):
        if suffix == ".pth":
            pytest.importorskip("torch")
        actual = read_torch(write_torch(tmp_path / f"a{suffix}", state))
        assert all(np.array_equal(actual[name], value) for name, value in state.items())


# ---- what load refuses changes nothing


FAULTS = {
    "a name too few": (lambda s: s.pop("1.running_var"), "no PyTorch tensor for: 1.running_var"),
    "a name too many": (lambda s: s.update(x=np.zeros(2)), "no parameter of the network for: x"),
    "transposed": (lambda s: s.update({"0.weight": s["0.weight"].T}), "transposed\\?"),
    "a NaN": (lambda s: s["1.running_var"].put(3, np.nan), "1.running_var holds NaN or infinite"),
    "an infinity": (lambda s: s["0.weight"].put(0, np.inf), "0.weight holds NaN or infinite"),
    "rounded": (lambda s: s.update({"1.bias": np.full(4, 0.1)}), "without rounding"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_changes_when_load_refuses(fault):
    spoil, message = FAULTS[fault]
    cell, state = network(), numbers()
    before = contents(cell)
    spoil(state)
    with pytest.raises(InputError, match=message):
        load(cell, state)
    assert_bits(contents(cell), before)


def test_the_weights_of_another_network_are_refused():
    """The message names the first of many; ``match`` has them all."""
    with pytest.raises(InputError) as refused:
        load(resnet18(10), numbers())
    text = str(refused.value)
    assert "no PyTorch tensor for" in text and "and 99 more; no parameter of the network" in text
    assert "and 4 more (labkit.migration.match returns all)" in text
    whole = match(resnet18(10), numbers())
    assert (len(whole.missing), len(whole.unknown)) == (102, 7)


def test_the_prefix_of_data_parallel_is_pointed_out(tmp_path):
    state = {f"module.{name}": value for name, value in numbers().items()}
    path = write_torch(tmp_path / "a.safetensors", state)
    with pytest.raises(InputError, match="begins with 'module.': give prefix= to read_torch"):
        load(network(), read_torch(path))
    load(network(), read_torch(path, prefix="module."))
    convert_file(path, tmp_path / "a.ckpt", network(), prefix="module.")
    with pytest.raises(InputError, match=r"prefix: expected .* got 'net.'. module\.\S+ does not"):
        read_torch(path, prefix="net.")


def test_unknown_counters_are_refused():
    with pytest.raises(InputError, match="unknown counter '0.num_batches_tracked'"):
        state_dict(network(), counters={"0.num_batches_tracked": 1})
    for count in (1.7, True, -1):
        with pytest.raises(InputError, match="1.num_batches_tracked: expected an integer >= 0"):
            state_dict(network(), counters={"1.num_batches_tracked": count})


@pytest.mark.parametrize("count", [np.array(1.5), np.array(np.nan), np.array([1, 2, 3])])
def test_a_counter_that_is_no_whole_number_is_refused(tmp_path, count):
    write_torch(tmp_path / "a.safetensors", numbers() | {"1.num_batches_tracked": count})
    with pytest.raises(InputError, match="1.num_batches_tracked: expected a whole number, got"):
        convert_file(tmp_path / "a.safetensors", tmp_path / "a.ckpt", network())
    assert not (tmp_path / "a.ckpt").exists()


# ---- checkpoints


def test_convert_back_takes_a_training_checkpoint_and_leaves_the_rest_behind(tmp_path):
    cell = network()
    load(cell, numbers())
    checkpoint.write(cell, tmp_path / "a.ckpt", {"step.updates": 3})
    convert_back(tmp_path / "a.ckpt", tmp_path / "a.safetensors", network())
    expected = numbers() | {"1.num_batches_tracked": np.array(0, np.int64)}
    assert_bits(read_torch(tmp_path / "a.safetensors"), expected)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: nn.SequentialCell(nn.Dense(3, 4)), "has no 1.moving_mean.*another network"),
        (lambda: nn.SequentialCell(nn.Dense(2, 4), nn.BatchNorm1d(4)), "expected Float32 .4, 3."),
    ],
)
def test_convert_back_refuses_the_checkpoint_of_another_network(tmp_path, other, message):
    checkpoint.write(other(), tmp_path / "a.ckpt")
    cell = network()
    before = contents(cell)
    with pytest.raises(InputError, match=message):
        convert_back(tmp_path / "a.ckpt", tmp_path / "a.safetensors", cell)
    assert_bits(contents(cell), before)
    assert not (tmp_path / "a.safetensors").exists()


def test_renames_reach_files_both_ways(tmp_path):
    renames = {"0": "fc", "1": "norm"}
    state = {n.replace("0.", "fc.").replace("1.", "norm."): v for n, v in numbers().items()}
    write_torch(tmp_path / "a.safetensors", state)
    convert_file(tmp_path / "a.safetensors", tmp_path / "a.ckpt", network(), renames)
    convert_back(tmp_path / "a.ckpt", tmp_path / "b.safetensors", network(), renames)
    assert_bits(read_torch(tmp_path / "b.safetensors"), state)


# ---- files that are not what they should be


class Payload:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize(
    ("suffix", "form"), [(".pth", "zip"), (".pt", "legacy"), (".bin", "bare pickle")]
)
def test_a_hostile_pickle_is_refused_and_not_executed(tmp_path, suffix, form):
    torch = pytest.importorskip("torch")
    trace, path = tmp_path / "executed", tmp_path / f"a{suffix}"
    content = {"w": torch.ones(2), "x": Payload(trace)}
    if form == "bare pickle":
        path.write_bytes(pickle.dumps({"x": Payload(trace)}, 2))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=form == "zip")
    with pytest.raises(InputError, match="system besides tensors.*not read.*could execute code"):
        read_torch(path)
    assert not trace.exists()
    # The payload is real: read carelessly, it does write the file.
    if form != "bare pickle":
        torch.load(path, weights_only=False)
        assert trace.exists()


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("form", ["zip", "legacy", "safetensors"])
def test_damaged_files_are_read_or_refused_in_words(tmp_path, form):
    torch = pytest.importorskip("torch")
    path = tmp_path / ("a.safetensors" if form == "safetensors" else "a.pth")
    if form == "safetensors":
        write_torch(path, numbers())
    else:
        state = {name: torch.from_numpy(value) for name, value in numbers().items()}
        torch.save(state, path, _use_new_zipfile_serialization=form == "zip")
    whole, draw, refused = path.read_bytes(), random.Random(0), 0
    for trial in range(120):
        data = bytearray(whole)
        if trial % 3 == 0:
            data = data[: draw.randrange(len(data) - 1)]
        else:
            for _ in range(draw.choice([1, 2, 8])):
                # The structure is in the head.
                data[draw.randrange(len(data) if trial % 2 else 400)] = draw.randrange(256)
        path.write_bytes(data)
        try:
            read_torch(path)
        except InputError:
            refused += 1
        else:
            assert trial % 3  # a file that was cut short is never read
    assert refused >= 60


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_empty_and_missing_files(tmp_path, suffix):
    if suffix == ".pth":
        pytest.importorskip("torch")
    path = tmp_path / f"a{suffix}"
    with pytest.raises(
        InputError, match="expected a file of PyTorch weights, got .* which is not there"
    ):
        read_torch(path)
    path.write_bytes(b"")
    with pytest.raises(InputError, match="cannot be read: cut short or damaged"):
        read_torch(path)
    path.unlink()
    path.mkdir()
    os.mkfifo(tmp_path / f"pipe{suffix}")
    for other in (path, tmp_path / f"pipe{suffix}"):
        with pytest.raises(InputError, match=f"got {other}, which is not a regular file"):
            read_torch(other)


@pytest.mark.parametrize("name", ["a.ckpt", "a", "a.PTH", "a.npz"])
def test_other_suffixes_are_refused_for_reading_and_writing(tmp_path, name):
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(InputError, match="expected a file ending in .pth, .pt, .bin, .safetensors"):
        read_torch(tmp_path / name)
    with pytest.raises(InputError, match="expected .pth or .safetensors"):
        write_torch(tmp_path / name, numbers())
    assert (tmp_path / name).read_bytes() == b"x"


@pytest.mark.parametrize("entry", ["state_dict", "model_state_dict", "model", "ema"])
def test_tensors_in_an_entry(tmp_path, entry):
    """The entries that trainers use are found without being named."""
    torch = pytest.importorskip("torch")
    content = {"epoch": 3, entry: {"w": torch.ones(2)}, "note": "x"}
    torch.save(content, tmp_path / "a.pth")
    if entry != "ema":
        assert read_torch(tmp_path / "a.pth")["w"].tolist() == [1, 1]
    assert read_torch(tmp_path / "a.pth", entry=entry)["w"].tolist() == [1, 1]


UNREADABLE = [  # content, options of read_torch, message
    (lambda torch: [1, 2], {}, "expected tensors by name, got a list"),
    (lambda torch: {}, {}, "holds nothing; name the entry"),
    (lambda torch: {"model": [1]}, {}, "model: expected tensors by name, got a list"),
    (lambda torch: {"state_dict": {"w": 3}}, {}, "w of state_dict is not a tensor"),
    (lambda torch: {"epoch": 3, "ema": {}, 7: 1}, {}, "holds epoch, ema, 7; name the entry"),
    (lambda torch: {"ema": {}}, {"entry": "emma"}, "unknown entry 'emma'.*Did you mean 'ema'"),
    (lambda torch: {0: {"w": 3}}, {"entry": "0"}, "w of 0 is not a tensor"),
    (lambda torch: {"epoch": 3}, {"entry": "epoch"}, "epoch: expected tensors by name, got a int"),
    (
        lambda torch: {"w": torch.eye(3).to_sparse()},
        {},
        "w is a torch.float32 tensor, not plain numbers",
    ),
    (
        lambda torch: torch.nn.Linear(2, 2),
        {},
        "holds torch.nn.modules.linear.Linear besides.*state_dict",
    ),
]


@pytest.mark.parametrize(("content", "options", "message"), UNREADABLE)
def test_files_without_tensors_by_name(tmp_path, content, options, message):
    torch = pytest.importorskip("torch")
    torch.save(content(torch), tmp_path / "a.pth")
    with pytest.raises(InputError, match=message):
        read_torch(tmp_path / "a.pth", **options)


def test_safetensors_of_other_types_and_with_entries_are_refused(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    save_file({"w": torch.ones(2).to(torch.float8_e4m3fn)}, tmp_path / "a.safetensors")
    with pytest.raises(InputError, match="w: expected one of BF16, BOOL.* got F8_E4M3"):
        read_torch(tmp_path / "a.safetensors")
    with pytest.raises(InputError, match="entry: expected None for .*, got 'model'"):
        read_torch(tmp_path / "a.safetensors", entry="model")


# ---- without PyTorch


def test_without_pytorch_pth_files_are_refused_and_safetensors_are_not(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "a.pth").write_bytes(b"x")
    message = "needs PyTorch, which is not installed here: install it, or save .* .safetensors"
    with pytest.raises(InputError, match=message):
        read_torch(tmp_path / "a.pth")
    with pytest.raises(InputError, match=message):
        write_torch(tmp_path / "new" / "b.pth", numbers())
    assert [path.name for path in tmp_path.iterdir()] == ["a.pth"]
    assert_bits(read_torch(write_torch(tmp_path / "a.safetensors", numbers())), numbers())


@pytest.mark.parametrize("version", ["2.5.1+cu124", "1.13.1", "unknown"])
def test_a_pytorch_that_could_execute_code_is_refused(tmp_path, monkeypatch, version):
    """CVE-2025-32434: before 2.6 weights_only=True does not keep a file's code from running."""
    import torch

    path = write_torch(tmp_path / "a.pth", numbers())
    monkeypatch.setattr(torch, "__version__", version)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "load", lambda *_, **__: pytest.fail("it was loaded"))
        with pytest.raises(InputError, match=r"expected 2.6 or later to read .*CVE-2025-32434"):
            read_torch(path)
    write_torch(tmp_path / "b.safetensors", numbers())
    assert_bits(read_torch(tmp_path / "b.safetensors"), numbers())
    for good in ("2.6.0", "2.10.1+cpu", "3.0"):
        monkeypatch.setattr(torch, "__version__", good)
        assert_bits(read_torch(path), numbers())
