"""Weights survive a round trip bit by bit; every kind of file is read, and none is executed."""

import argparse
import json
import os
import sys

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

from labkit.errors import InputError
from labkit.migration import Rule, convert, load, read_torch, state_dict, write_torch
from labkit.training import checkpoint
from tests.support.step_cells import snapshot

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("runtime")


def network(inputs=3):
    """A dense layer and a BatchNorm: 6 parameters, under names that differ, and a counter."""
    return nn.SequentialCell(nn.Dense(inputs, 4), nn.BatchNorm1d(4))


def numbers(prefix=""):
    """Tensors for ``network`` by PyTorch name, with a zero of each sign and a tiny number."""
    draw = np.random.default_rng(0)
    state = {
        "0.weight": draw.normal(size=(4, 3)).astype(np.float32),
        "0.bias": np.array([0.0, -0.0, 1e-40, 3e38], np.float32),
        "1.num_batches_tracked": np.array(0, np.int64),
    }
    for name in ("weight", "bias", "running_mean", "running_var"):
        state[f"1.{name}"] = draw.normal(size=4).astype(np.float32)
    return {prefix + name: value for name, value in state.items()}


def assert_bits(actual, expected):
    """Assert that names, shapes, types and bits are the same."""
    assert expected and actual.keys() == expected.keys()
    for name, value in expected.items():
        other = np.asarray(actual[name])
        assert (other.dtype, other.shape) == (value.dtype, value.shape), name
        assert other.tobytes() == value.tobytes(), name


# ---- the kinds of files met often

HALVES = {n: (4 * v.clip(-9, 9)).round().astype(v.dtype) / 4 for n, v in numbers().items()}
HALVES["1.num_batches_tracked"] = np.array(0, np.int64)
QKV = {"qkv.weight": np.arange(18, dtype=np.float32).reshape(6, 3)}
SQUARE = {"c_proj.weight": np.arange(9, dtype=np.float32).reshape(3, 3)}
MODULE, ORIGINAL = Rule(r"^module\.", ""), Rule(r"^_orig_mod\.", "")


def tensors(state, kind=None):
    made = {name: torch.from_numpy(np.array(value)) for name, value in state.items()}
    return {n: t.to(kind) if kind and t.is_floating_point() else t for n, t in made.items()}


def pickled(content, name="a.pth", **options):
    return lambda folder: torch.save(content, folder / name, **options) or folder / name


def in_safetensors(content, name="model.safetensors"):
    from safetensors.torch import save_file

    return lambda folder: save_file(content, folder / name) or folder / name


def sharded(folder):
    halves = [dict(list(tensors(numbers()).items())[part]) for part in (np.s_[:3], np.s_[3:])]
    files = {name: f"{k}.safetensors" for k, half in enumerate(halves) for name in half}
    for k, half in enumerate(halves):
        in_safetensors(half, f"{k}.safetensors")(folder)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    return folder


def by_mindspore(ending):
    def write(folder):
        cell = network()
        load(cell, numbers())
        if ending == "ckpt":
            checkpoint.write(cell, folder / "a.ckpt")
        else:
            ms.save_checkpoint(cell, str(folder / "a"), format="safetensors")
        return folder / f"a.{ending}"

    return write


def dense(**shapes):
    """Return a Cell of dense layers without bias."""
    cell = nn.Cell()
    for name, (outputs, inputs) in shapes.items():
        setattr(cell, name, nn.Dense(inputs, outputs, has_bias=False))
    return cell


def tied():
    cell = nn.Cell()
    cell.wte, cell.lm_head = nn.Embedding(5, 3), nn.Dense(3, 5, has_bias=False)
    cell.lm_head.weight = cell.wte.embedding_table
    return cell


T, EMBEDDING = tensors(numbers()), np.ones((5, 3), np.float32)
HARMLESS = {"args": argparse.Namespace(lr=0.1), "best": np.float64(0.3), "epoch": np.int64(3)}
BUFFERS = T | {"attn.bias": torch.ones(4), "position_ids": torch.ones(1)}
AVERAGED = tensors(numbers("module.") | {"n_averaged": np.int64(3)})
LIGHTNING = tensors(numbers("model.") | {"loss.weight": np.ones(4)})
DATA_PARALLEL, BOTH = tensors(numbers("module.")), tensors(numbers("module._orig_mod."))
TIED = {"wte.weight": EMBEDDING, "lm_head.weight": EMBEDDING}
KINDS = {  # file, entry, rules; network and what it holds afterwards, if not those above
    "plain .pth": (pickled(T), None, []),
    "state_dict, epoch": (pickled({"state_dict": T, "epoch": 3}), None, []),
    "model, args": (pickled({"model": T, "args": [1]}), None, []),
    "Hugging Face's .bin": (pickled(T, "pytorch_model.bin"), None, []),
    "before zip": (pickled(T, _use_new_zipfile_serialization=False), None, []),
    "float16": (pickled(tensors(HALVES, torch.float16)), None, [], network, HALVES),
    "bfloat16": (pickled(tensors(HALVES, torch.bfloat16)), None, [], network, HALVES),
    "bfloat16, safetensors": (
        in_safetensors(tensors(HALVES, torch.bfloat16)), None, [], network, HALVES),
    "average": (pickled({"model": T, "model_ema": DATA_PARALLEL}), "model_ema", [MODULE]),
    "DataParallel": (pickled(DATA_PARALLEL), None, [MODULE]),
    "compile": (pickled(tensors(numbers("_orig_mod."))), None, [ORIGINAL]),
    "compile, DataParallel": (pickled(BOTH), None, [MODULE, ORIGINAL]),
    "another entry": (pickled({"net": T}), "net", []),
    "nested entry": (pickled({"state": {"model": T}}), "state.model", []),
    "AveragedModel": (pickled(AVERAGED), None, [Rule("n_averaged", None), MODULE]),
    "Lightning's .ckpt": (pickled({"state_dict": LIGHTNING}, "a.ckpt"), None,
                          [Rule(r"^loss\.", None), Rule(r"^model\.", "")]),
    "Namespace, NumPy scalars": (pickled({"model": T} | HARMLESS), None, []),
    ".pth.tar": (pickled({"state_dict": T}, "a.pth.tar"), None, []),
    "shards": (sharded, None, []),
    "tied": (pickled({"wte.weight": torch.ones(5, 3)}), None, [], tied, TIED),
    "buffers": (pickled(BUFFERS), None, [Rule(r"position_ids$|attn\.bias$", None)]),
    "qkv": (pickled(tensors(QKV)), None, [Rule("qkv", ("q", "k", "v"))],
            lambda: dense(q=(2, 3), k=(2, 3), v=(2, 3)), QKV),
    "Conv1D": (pickled(tensors(SQUARE)), None, [Rule("c_proj", "proj", transpose=True)],
               lambda: dense(proj=(3, 3)), SQUARE),
    "MindSpore's .ckpt": (by_mindspore("ckpt"), None, []),
    "MindSpore's .safetensors": (by_mindspore("safetensors"), None, []),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_is_loaded_bit_by_bit(tmp_path, kind):
    write, entry, rules, build, expected = (*KINDS[kind], network, numbers())[:5]
    state, cell = read_torch(write(tmp_path), entry), build()
    result = load(cell, state, rules)
    assert not result.problems and not result.left
    like = state if kind in ("qkv", "Conv1D") else None  # the file's own names
    assert_bits(state_dict(cell, rules if like else (), like), expected)
    # With the file's names at hand it comes back as it was.
    back = result.to_torch({parameter.name: parameter for parameter in cell.get_parameters()})
    for name, value in back.items() if not state.mindspore else ():
        assert np.array_equal(value, state[name]) and value.shape == state[name].shape


NEW = pickled(tensors(numbers() | {"0.weight": np.ones((7, 3)), "adam_m.0.weight": np.ones(3)}))


def test_a_new_head_keeps_its_values_and_the_match_says_why(tmp_path):
    cell, state = network(), read_torch(NEW(tmp_path))
    before = snapshot(cell)
    result = load(cell, state, leave=r"^0\.|^adam_")
    assert result.left == (
        "0.weight: shape (7, 3), expected (4, 3)",
        "0.bias: it fits",
        "adam_m.0.weight: no parameter of the network",
    )
    changed = {n for n, value in snapshot(cell).items() if not np.array_equal(value, before[n])}
    assert changed == {"1.gamma", "1.beta", "1.moving_mean", "1.moving_variance"}


def test_averages_beside_the_default_are_pointed_out(tmp_path):
    path = pickled({"model": T, "model_ema": T})(tmp_path)
    with pytest.warns(UserWarning, match="'model' is read; averaged weights .* entry='model_ema'"):
        read_torch(path)


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
    every = (np.arange(2**16, dtype=np.uint32) << 16).view(np.float32)  # each bfloat16
    every = every[np.isfinite(every)]
    cell.w = Parameter(Tensor(np.zeros(every.shape), ms.bfloat16))
    load(cell, {"w": every})
    assert_bits(state_dict(cell), {"w": every})
    with pytest.raises(InputError, match="float32 that bfloat16 cannot hold"):
        load(cell, {"w": every + np.float32(1.001)})


def test_convert_goes_there_and_back_and_leaves_the_rest_of_a_checkpoint(tmp_path):
    state, rules = numbers("net."), [Rule(r"^net\.", "")]
    path = write_torch(tmp_path / "a.safetensors", state)
    assert len(convert(path, tmp_path / "b.ckpt", network(), rules).links) == 6
    values = checkpoint.read(tmp_path / "b.ckpt") | {"adam_m.0.weight": Tensor([1.0])}
    checkpoint.write([{"name": n, "data": v} for n, v in values.items()], tmp_path / "b.ckpt")
    for target in (tmp_path / "c.pth", tmp_path / "c.safetensors"):
        convert(tmp_path / "b.ckpt", target, network(), rules, like=path)
        assert_bits(read_torch(target), state)
    convert(path, None, network(), rules)
    assert {p.suffix for p in tmp_path.iterdir()} == {".ckpt", ".pth", ".safetensors"}
    for other, message in (
        (nn.BatchNorm1d(4), "weight: no PyTorch"),
        (network(2), "expected .4, 2."),
    ):
        with pytest.raises(InputError, match=message):
            convert(tmp_path / "b.ckpt", tmp_path / "d.pth", other)
    assert not (tmp_path / "d.pth").exists()


# ---- what is refused changes nothing

FAULTS = {
    "a name too few": (lambda s: s.pop("1.running_var"), "1.running_var: no PyTorch tensor"),
    "a name too many": (lambda s: s.update(x=np.zeros(2)), "x: no parameter of the network"),
    "transposed": (lambda s: s.update({"0.weight": s["0.weight"].T}), "transposed\\?"),
    "a NaN": (lambda s: s["1.running_var"].put(3, np.nan), "1.running_var holds NaN or infinite"),
    "rounded": (lambda s: s.update({"1.bias": np.full(4, 0.1)}), "without rounding"),
    "too large": (lambda s: s.update({"1.bias": np.full(4, 1e300)}), "without rounding"),
    "complex": (lambda s: s.update({"1.bias": np.full(4, 1j)}), "without rounding"),
    "prefixes": (
        lambda s: [s.update({f"module._orig_mod.{n}": s.pop(n)}) for n in list(s)],
        r'Rule\(r"\^module\\._orig_mod\\.", ""\)$',
    ),
    "parametrizations": (
        lambda s: s.update({"0.parametrizations.weight.original0": s.pop("0.weight")}),
        "expected plain weights, got parametrizations: torch.nn.utils.parametrize.remove_param",
    ),
    "other names": (
        lambda s: [s.update({f"fc.{n}": s.pop(f"0.{n}")}) for n in ("weight", "bias")],
        r'to be confirmed:\n?.*Rule\(r"\^fc\\b", "0"\)',
    ),
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


def test_tied_names_with_different_values_are_refused():
    state = {"wte.weight": EMBEDDING, "lm_head.weight": EMBEDDING + 1}
    with pytest.raises(InputError, match="lm_head.weight shares its parameter with another name"):
        load(tied(), state)


def test_what_comes_back_has_the_file_s_names_and_the_network_s_shapes():
    rules, cell = [Rule("n_averaged", None), MODULE], dense(fc=(4, 3), head=(2, 4))
    like = {"module.fc.weight": (4, 3), "module.head.weight": (1000, 4), "n_averaged": ()}
    like = {name: np.zeros(shape, np.float32) for name, shape in like.items()}
    back = state_dict(cell, rules, like)
    assert {n: v.shape for n, v in back.items()} == {
        "module.fc.weight": (4, 3), "module.head.weight": (2, 4)
    }  # fmt: skip
    with pytest.raises(InputError, match="rules: expected like=, the tensors of PyTorch's file"):
        state_dict(cell, rules)
    del like["module.fc.weight"]
    with pytest.raises(InputError, match="fc.weight: no PyTorch tensor"):
        state_dict(cell, rules, like)


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


@pytest.mark.parametrize("name", ["a.pth", "a.safetensors", "a.ckpt"])
def test_files_that_are_cut_short_or_missing_are_refused(tmp_path, name):
    path = tmp_path / name
    if name == "a.ckpt":
        by_mindspore("ckpt")(tmp_path)
    else:
        write_torch(path, numbers())
    whole = path.read_bytes()
    for size in range(0, len(whole), len(whole) // 20):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match="damaged"):
            read_torch(path)
    with pytest.raises(InputError, match="is not there"):
        read_torch(tmp_path / "b.pth")
    with pytest.raises(InputError, match="expected a name ending in .pth, .saf"):
        write_torch(tmp_path / "a.npz", numbers())


QUANTISED = {"w": torch.ones(2).to(torch.float8_e4m3fn)}
UNREADABLE = [  # file, entry, message
    (pickled([1, 2]), None, "expected tensors by name, got a list"),
    (pickled({"state_dict": {"w": 3}}), None, "expected tensors by name, got a dict"),
    (pickled({"epoch": 3, "ema": {}, 7: 1}), None, "holds epoch, ema, 7; name the entry"),
    (pickled({"ema": {}}), "emma", "unknown entry= of .* 'emma'.*Did you mean 'ema'"),
    (pickled({"ema": T}), "ema.0.weight.x", "unknown entry= of .* '0'; expected one of: 0"),
    (in_safetensors(T), "model", "has no entries; only a file of PyTorch's has"),
    (in_safetensors(QUANTISED), None, "of an unknown type"),
    (pickled(QUANTISED), None, "got w, float8_e4m3fn torch.strided"),
    (pickled({"w": torch.eye(2).to_sparse()}), None, "got w, float32 torch.sparse_coo"),
    (pickled({"w": torch.ones(2, device="meta")}), None, "expected dense tensors"),
    (pickled({"w": torch.ones(2) * 1j}), None, "got w, complex64"),
    (pickled(torch.nn.Linear(2, 2)), None, "Save its state_dict"),
    (lambda folder: by_mindspore("ckpt")(folder).rename(folder / "a.x"), None, "end in .ckpt"),
    (lambda folder: folder, None, "one index.json or one weights file, got none"),
    (lambda folder: [pickled(T, n)(folder) for n in ("a.pth", "b.bin")] and folder, None,
     "got a.pth, b.bin"),
    (lambda folder: (sharded(folder) / "1.safetensors").unlink() or folder, None,
     "lists files that are not there, or no weights: 1.safetensors"),
    (lambda folder: (folder / "a.json").write_text('{"weight_map": {"w": "a.json"}}') and folder
     / "a.json", None, "or no weights: a.json"),
    (lambda folder: in_safetensors({"0.bias": T["0.bias"]}, "1.safetensors")(sharded(folder))
     and folder, None, r"1.safetensors lacks 1.weight \(4 in all\)"),
    (lambda folder: (folder / "a.json").write_text("{}") and folder / "a.json", None,
     "no index: expected a weight_map"),
]  # fmt: skip


@pytest.mark.parametrize(("write", "entry", "message"), UNREADABLE)
def test_what_holds_no_tensors_is_refused(tmp_path, write, entry, message):
    with pytest.raises(InputError, match=message):
        read_torch(write(tmp_path), entry)


def test_safetensors_whose_offsets_are_not_sorted_are_read(tmp_path):
    """A GPT-2 file of the hub was refused elsewhere for that (mindnlp, issue 2054)."""
    header = {
        "a": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
        "b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
    }
    head = json.dumps(header).encode()
    values = np.array([3, 1, 2], "<f4").tobytes()
    (tmp_path / "a").write_bytes(len(head).to_bytes(8, "little") + head + values)
    state = read_torch(tmp_path / "a")
    assert state.shapes == {"a": (2,), "b": (1,)}
    assert {name: value.tolist() for name, value in state.items()} == {"a": [1, 2], "b": [3]}


# ---- without PyTorch


def test_without_pytorch_pth_files_are_refused_and_safetensors_are_not(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "a.pth").write_bytes(b"PK")
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
