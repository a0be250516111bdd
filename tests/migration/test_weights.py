"""Weights survive a round trip bit by bit; files are whole, verified, and never executed."""

import os
import sys

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

from labkit.errors import InputError
from labkit.migration import convert_back, convert_file, load, read_torch, state_dict, write_torch
from labkit.training import checkpoint
from tests.support.step_cells import snapshot

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("runtime")


def network(inputs=3):
    """A dense layer and a BatchNorm: 6 parameters, under names that differ, and a counter."""
    return nn.SequentialCell(nn.Dense(inputs, 4), nn.BatchNorm1d(4))


def numbers():
    """Tensors for ``network`` by PyTorch name, with a zero of each sign and a tiny number."""
    draw = np.random.default_rng(0)
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


@pytest.mark.parametrize("renames", [{}, {"0": "fc", "1": "norm"}], ids=["same", "renamed"])
@pytest.mark.parametrize(("source", "target"), [(".pth", ".safetensors"), (".safetensors", ".pth")])
def test_there_and_back_through_files(tmp_path, source, target, renames):
    state = {renames.get(n[0], n[0]) + n[1:]: value for n, value in numbers().items()}
    write_torch(tmp_path / f"a{source}", state)
    assert_bits(read_torch(tmp_path / f"a{source}"), state)
    result = convert_file(tmp_path / f"a{source}", tmp_path / "b.ckpt", network(), renames)
    assert not result.problems and len(result.carried) == 1
    actual = convert_back(tmp_path / "b.ckpt", tmp_path / f"c{target}", network(), renames)
    assert_bits(read_torch(actual), state)
    names = {f"a{source}", "b.ckpt", f"c{target}"}
    assert {path.name for path in tmp_path.iterdir()} == names


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_every_type_is_read_and_pytorch_reads_what_is_written(tmp_path, suffix):
    from safetensors.torch import load_file, save_file

    kinds = [torch.float16, torch.float32, torch.float64, torch.bool, torch.uint8]
    kinds += [torch.int8, torch.int16, torch.int32, torch.int64]
    exact = torch.tensor([[1.0, 0.0, 2.0], [1.0, 3.0, 0.0]])
    state = {str(kind): exact.to(kind) for kind in kinds}
    state |= {"scalar": torch.tensor(2.5), "empty": torch.zeros(0, 3)}
    half = {"w": torch.randn(7, 5).bfloat16(), "s": torch.tensor(-1e-30).bfloat16()}
    (torch.save if suffix == ".pth" else save_file)(state | half, tmp_path / f"a{suffix}")
    # bfloat16 becomes float32, which holds it exactly.
    expected = {n: v.numpy() for n, v in state.items()}
    expected |= {n: v.float().numpy() for n, v in half.items()}
    assert_bits(read_torch(tmp_path / f"a{suffix}"), expected)
    # Views are written as they look.
    expected |= {"t": np.arange(12.0).reshape(3, 4).T, "r": np.arange(10)[::-2]}
    path = write_torch(tmp_path / f"b{suffix}", expected)
    back = torch.load(path) if suffix == ".pth" else load_file(path)
    assert_bits({name: value.numpy() for name, value in back.items()}, expected)


def test_other_precisions_are_loaded_where_they_are_exact():
    cell = nn.Cell()
    cell.w = Parameter(Tensor([0.0, 0.0], ms.float16))
    for kind in (np.float16, np.float32, np.float64):
        load(cell, {"w": np.array([1.5, -2.25], kind)})
        assert state_dict(cell)["w"].tolist() == [1.5, -2.25]
    for value in (0.1, 1e30):
        with pytest.raises(InputError, match="float32 that float16 cannot hold without rounding"):
            load(cell, {"w": np.array([0, value], np.float32)})
    # MindSpore 2.10 has no CPU kernel to assign bfloat16: it is only written.
    cell.w = Parameter(Tensor([1.5, -2.25], ms.bfloat16))
    assert_bits(state_dict(cell), {"w": np.array([1.5, -2.25], np.float32)})


# ---- what is refused changes nothing

FAULTS = {
    "a name too few": (lambda s: s.pop("1.running_var"), "no PyTorch tensor for: 1.running_var"),
    "a name too many": (lambda s: s.update(x=np.zeros(2)), "no parameter of the network for: x"),
    "transposed": (lambda s: s.update({"0.weight": s["0.weight"].T}), "transposed\\?"),
    "a NaN": (lambda s: s["1.running_var"].put(3, np.nan), "1.running_var holds NaN or infinite"),
    "rounded": (lambda s: s.update({"1.bias": np.full(4, 0.1)}), "without rounding"),
    "too large": (lambda s: s.update({"1.bias": np.full(4, 1e300)}), "without rounding"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_changes_when_load_refuses(fault):
    spoil, message = FAULTS[fault]
    cell, state = network(), numbers()
    before = snapshot(cell)
    spoil(state)
    with pytest.raises(InputError, match=message):
        load(cell, state)
    assert_bits(snapshot(cell), before)


def test_the_prefix_of_data_parallel_is_pointed_out(tmp_path):
    state = {f"module.{name}": value for name, value in numbers().items()}
    path = write_torch(tmp_path / "a.safetensors", state)
    with pytest.raises(InputError, match="begins with 'module.': give prefix= to read_torch"):
        load(network(), read_torch(path))
    convert_file(path, tmp_path / "a.ckpt", network(), prefix="module.")
    with pytest.raises(InputError, match=r"prefix: module\.\S+ of .* does not begin with 'net.'"):
        read_torch(path, prefix="net.")


def test_convert_back_takes_a_training_checkpoint_of_the_network_alone(tmp_path):
    """It leaves the rest of the checkpoint behind."""
    cell, path = network(), tmp_path / "a.safetensors"
    load(cell, numbers())
    for other, message in (
        (nn.SequentialCell(nn.Dense(3, 4)), "1.beta: expected .*, got nothing.*4 in all"),
        (network(2), "expected Float32 .4, 3."),
    ):
        checkpoint.write(other, tmp_path / "other.ckpt")
        with pytest.raises(InputError, match=message):
            convert_back(tmp_path / "other.ckpt", path, cell)
        assert not path.exists()
    checkpoint.write(cell, tmp_path / "a.ckpt", {"step.updates": 3})
    convert_back(tmp_path / "a.ckpt", path, network())
    expected = numbers() | {"1.num_batches_tracked": np.array(0, np.int64)}
    assert_bits(read_torch(path), expected)


# ---- files that are not what they should be


class Payload:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def test_code_in_a_pickle_is_refused_and_not_executed(tmp_path):
    ran, path = tmp_path / "executed", tmp_path / "a.pth"
    torch.save({"w": torch.ones(2), "x": Payload(ran)}, path)
    with pytest.raises(InputError, match="more than tensors, and unpickling that could execute"):
        read_torch(path)
    assert not ran.exists()
    # The payload is real: read carelessly, it does write the file.
    torch.load(path, weights_only=False)
    assert ran.exists()


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_files_that_are_cut_short_or_missing_are_refused(tmp_path, suffix):
    path = write_torch(tmp_path / f"a{suffix}", numbers())
    whole = path.read_bytes()
    for size in range(0, len(whole), len(whole) // 20):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match="damaged"):
            read_torch(path)
    for other, message in ((f"b{suffix}", "is not there"), ("a.npz", "expected a name ending in")):
        with pytest.raises(InputError, match=message):
            read_torch(tmp_path / other)
    with pytest.raises(InputError, match="expected a name ending in .pth, .saf"):
        write_torch(tmp_path / "a.ckpt", numbers())


CONTENTS = [  # content, options of read_torch, message or None
    ({"epoch": 3, "state_dict": {"w": torch.ones(2)}, "note": "x"}, {}, None),
    ({"epoch": 3, "model": {"w": torch.ones(2)}}, {}, None),
    ({"epoch": 3, "ema": {"w": torch.ones(2)}}, {"entry": "ema"}, None),
    ([1, 2], {}, "expected tensors by name, got a list"),
    ({"state_dict": {"w": 3}}, {}, "expected tensors by name, got a dict"),
    ({"epoch": 3, "ema": {}, 7: 1}, {}, "holds epoch, ema, 7; name the entry"),
    ({"ema": {}}, {"entry": "emma"}, "unknown entry= of .* 'emma'.*Did you mean 'ema'"),
]


@pytest.mark.parametrize(("content", "options", "message"), CONTENTS)
def test_tensors_in_an_entry_of_a_file(tmp_path, content, options, message):
    torch.save(content, tmp_path / "a.pth")
    if message is None:
        assert read_torch(tmp_path / "a.pth", **options)["w"].tolist() == [1, 1]
    else:
        with pytest.raises(InputError, match=message):
            read_torch(tmp_path / "a.pth", **options)


# ---- without PyTorch


def test_without_pytorch_pth_files_are_refused_and_safetensors_are_not(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "a.pth").write_bytes(b"x")
    for refused in (
        lambda: read_torch(tmp_path / "a.pth"),
        lambda: write_torch("b.pth", numbers()),
    ):
        with pytest.raises(InputError, match="needs PyTorch, which is not inst.* or save as .safe"):
            refused()
    assert [path.name for path in tmp_path.iterdir()] == ["a.pth"]
    assert_bits(read_torch(write_torch(tmp_path / "a.safetensors", numbers())), numbers())


def test_a_pytorch_that_could_execute_code_is_refused(tmp_path, monkeypatch):
    """CVE-2025-32434: before 2.6 weights_only=True does not keep a file's code from running."""
    path = write_torch(tmp_path / "a.pth", numbers())
    for version, good in (("2.5.1+cu124", False), ("unknown", False), ("2.10.1+cpu", True)):
        monkeypatch.setattr(torch, "__version__", version)
        if good:
            assert_bits(read_torch(path), numbers())
        else:
            with pytest.raises(InputError, match=r"expected 2.6 or later to read .*CVE-2025-32434"):
                read_torch(path)
