"""Readers of weights: .safetensors, .pth, .ckpt, folders of snapshots, and files of a basis."""

# ruff: noqa: E501 (tables of odd values)

import functools
import hashlib
import io
import json
import pickle
import random
import struct
import tempfile
import zipfile
from pathlib import Path

import numpy as np

from tests.campaigns.archives import odd_npy
from tests.campaigns.mutate import EDGES, Raw, Tree, damaged, dumps, json_like
from tests.campaigns.reader import Reader, with_special
from tests.support import snapshots as made
from tests.support.ckpt_bytes import crc, entry, part, text

_DIMENSIONS = (0, 1, 2, -1, 3, 2**31 - 1, 2**32, 2**62, -(2**63), 10**30, Raw("9" * 4400))


def _safetensors(header, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else dumps(header)
    return struct.pack("<Q", len(text)) + text + data


def _tensors() -> tuple[dict, bytes]:
    header, place = {}, 0
    for name, shape in made.SHAPES.items():
        count = int(np.prod(shape, dtype=int))
        offsets = [place, place + 4 * count]
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": offsets}
        place = offsets[1]
    data = np.arange(place // 4, dtype=np.float32).tobytes()
    return header, data


def _odd_tensors(rule) -> bytes:
    header, data = _tensors()
    act = rule.random()
    if act < 0.5:
        header = json_like(rule, header)
    elif act < 0.8:
        entry = header[rule.choice(sorted(header))]
        what = rule.choice(("dtype", "shape", "data_offsets"))
        entry[what] = {
            "dtype": rule.choice(("BF16", "F8_E4M3", "F64", "BOOL", "I4", "", None, "U64")),
            "shape": [rule.choice(_DIMENSIONS) for _ in range(rule.choice((0, 1, 2, 4, 70)))],
            "data_offsets": [rule.choice((0, 4, len(data), 2**63, -1)) for _ in range(2)],
        }[what]
    content = _safetensors(header, data)
    if act > 0.8:
        content = damaged(rule, content)
    if act > 0.95:
        content = struct.pack("<Q", rule.choice((0, 1, 2**20, 2**40, 2**64 - 1))) + content[8:]
    return content


def _make_safetensors(rule: random.Random) -> Tree:
    return with_special(rule, {"weights.safetensors": _odd_tensors(rule)})


@functools.cache
def _pth() -> bytes:
    import torch

    state = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}
    packed = io.BytesIO()
    torch.save({"state_dict": state}, packed)
    return packed.getvalue()


def _pickles(rule) -> bytes:
    """Return a pickle of something else, or of a tensor whose numbers are inconsistent."""
    act = rule.random()
    if act < 0.3:
        value = rule.choice(([1, 2], {"a": 1}, 10**4000, {"a": {"b": {}}}, None, b"x",
                             {1: 2}, {"state_dict": [1]}, {"state_dict": {"a": 1}}, {(): 1}))  # fmt: skip
        return pickle.dumps(value, rule.choice((0, 2, 4)))
    if act < 0.5:
        return (
            b"\x80\x02" + rule.choice((b"(", b"]", b"}", b"(t", b"]q\0", b"\x85")) * 50_000 + b"."
        )
    storage = b"((U\x07storagectorch\nFloatStorage\nU\x010U\x03cpuK\x06tQ"
    numbers = [rule.choice((0, 1, 2, 3, 6, -1, 10**9, 2**40, 2**62)) for _ in range(5)]
    parts = "".join(f"I{n}\n" for n in numbers)
    offset, size0, size1, stride0, stride1 = parts.splitlines(keepends=True)
    return (
        b"\x80\x02}U\x01actorch._utils\n_rebuild_tensor_v2\n"
        + storage
        + f"{offset}({size0}{size1}t({stride0}{stride1}tI00\nccollections\nOrderedDict\n)RtRs.".encode()
    )


def _make_pth(rule: random.Random) -> Tree:
    act = rule.random()
    content = _pth()
    if act < 0.4:
        packed = io.BytesIO()
        text = _pickles(rule)
        with (
            zipfile.ZipFile(io.BytesIO(content)) as old,
            zipfile.ZipFile(packed, "w") as new,
        ):
            for info in old.infolist():
                held = text if info.filename.endswith("data.pkl") else old.read(info)
                new.writestr(zipfile.ZipInfo(info.filename), held)
        content = packed.getvalue() if rule.random() < 0.8 else text
    elif act < 0.95:
        content = damaged(rule, content)
    return with_special(rule, {"weights.pth": content})


_KINDS = (b"Float32", b"Float16", b"Float64", b"Int32", b"Int8", b"UInt64", b"Bool", b"BFloat16", b"str",
          b"Int4", b"QInt4x2", b"Float8", b"", b"x", b"\xff", b"String", b"Complex64")  # fmt: skip


def _odd_checkpoint(rule) -> bytes:
    """Return a checkpoint whose shapes, types and lengths disagree, or with odd records."""
    position = text(json.dumps(_position()))
    parts = [
        entry(b"weight", b"Float32", (2, 3), bytes(24)),
        entry(b"bias", b"Float32", (2,), bytes(8)),
        entry(b"labkit_position", b"str", (0,), position),
    ]
    at = rule.randrange(3)
    act = rule.random()
    name = rule.choice((b"weight", b"bias", b"labkit_position", b"", b"\xff", b"n" * 300))
    if act < 0.5:
        dims = [
            rule.choice((0, 1, 2, 3, 300, 400, -1, 2**31, 2**62))
            for _ in range(rule.choice((0, 1, 1, 2, 9)))
        ]
        content = rule.randbytes(rule.choice((0, 1, 4, 8, 24, 64, 4096)))
        parts[at] = entry(name, rule.choice(_KINDS), dims, content)
    elif act < 0.6:
        changed = dumps(json_like(rule, _position())).decode("utf-8", "surrogatepass")
        parts[2] = entry(b"labkit_position", b"str", (0,), text(changed))
    elif act < 0.8:
        # Field 4 is a map of its own; others are unknown, or of another wire type.
        parts[at] = rule.choice((
            part(1, part(1, name) + part(rule.randrange(1, 8), rule.randbytes(9))),
            part(1, part(1, name) + part(3, part(1, part(1, name) + part(2, b"")))),
            part(rule.randrange(1, 9), rule.choice(EDGES)), part(1, b""), part(1, part(1, name)),
            b"\x0b" * 300, part(1, part(1, name) + part(2, 5)),
        ))  # fmt: skip
    else:
        parts[at] = damaged(rule, parts[at])
    return b"".join(parts)


def _position() -> dict:
    settings = {"class": "Step"}
    return dict(micro_batches=4, epoch_size=4, batch_size=2, seed=1, workers=[1], seconds=1.0,
                records=4, settings=settings)  # fmt: skip


def _make_ckpt(rule: random.Random) -> Tree:
    content = _odd_checkpoint(rule)
    act = rule.random()
    if act < 0.7:
        content = crc(content)
    elif act < 0.9:
        content = damaged(rule, crc(content))
    return with_special(rule, {"step-000000004.ckpt": content})


def _make_snapshots(rule: random.Random) -> Tree:
    header, data = _tensors()
    note = {"sha256": "0" * 64, "epoch": 1, "micro_batch": 4}
    if rule.random() < 0.4:
        values = {n: data[slice(*entry["data_offsets"])] for n, entry in header.items()}
        digest = hashlib.sha256(b"".join(n.encode() + values[n] for n in sorted(values)))
        note["sha256"] = digest.hexdigest()
    act = rule.random()
    about = dumps(json_like(rule, note)) if act < 0.4 else json.dumps(note).encode()
    whole = {"__metadata__": {"labkit": about.decode()}} | header
    content = _safetensors(whole, data)
    if 0.4 <= act < 0.7:
        content = _odd_tensors(rule)
    elif act >= 0.7:
        content = damaged(rule, content)
    tree: Tree = {f"step-{n:09d}.safetensors": _safetensors(whole, data) for n in (1, 2)}
    tree[rule.choice(sorted(tree))] = content
    return with_special(rule, tree)


@functools.cache
def _basis() -> tuple[bytes, dict]:
    from labkit.algorithms.subspace.basis import Basis

    described = [("a", (2, 3)), ("b", (4,))]
    basis = Basis(np.eye(3, 10, dtype=np.float32), described, [3, 2, 1], 7.0, [{"name": "x"}])
    with tempfile.TemporaryDirectory() as folder:
        basis.save(Path(folder) / "basis.npy")
        about = json.loads((Path(folder) / "basis.json").read_text())
        return (Path(folder) / "basis.npy").read_bytes(), about


def _make_basis(rule: random.Random) -> Tree:
    matrix, about = _basis()
    described = json.dumps(about).encode()
    act = rule.random()
    if act < 0.5:
        described = dumps(json_like(rule, about))
    elif act < 0.7:
        matrix = odd_npy(rule)
    elif act < 0.85:
        matrix = damaged(rule, matrix)
    else:
        described = damaged(rule, described)
    return with_special(rule, {"basis.npy": matrix, "basis.json": described})


def _touched(values) -> int:
    return sum(np.array(value, order="C").nbytes for value in values.values())


def _read_torch(name: str):
    def read(folder: Path, _out: Path):
        from labkit.migration.files import read_torch

        return _touched(read_torch(folder / name))

    return read


@functools.cache
def _cell():
    from mindspore import nn

    return nn.Dense(3, 2)


def _checkpoint(folder: Path, _out: Path):
    from labkit.training import checkpoint

    return checkpoint.load_latest(_cell(), folder)


def _values(folder: Path, _out: Path):
    from labkit.training import checkpoint

    return checkpoint.read(folder / "step-000000004.ckpt")


def _convert(folder: Path, out: Path):
    from labkit.migration.weights import convert_back

    return convert_back(folder / "step-000000004.ckpt", out / "x.safetensors", _cell(), {})


def _snapshot_folder(folder: Path, _out: Path):
    from labkit.algorithms.subspace.snapshot_folder import SnapshotFolder

    with SnapshotFolder(folder, list(made.SHAPES.items())) as snapshots:
        snapshots.refuse_nonfinite()
        return snapshots.identities()


def _any_snapshots(folder: Path, out: Path):
    from labkit.algorithms.subspace.basis import Basis, basis_of

    Basis.of(folder, components=1)
    return basis_of(out / "basis.npy", folder, None, 1)


@functools.cache
def _network():
    from mindspore import Parameter, Tensor, nn

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.all = [
                Parameter(Tensor(np.zeros(shape, np.float32)), name=name)
                for name, shape in made.SHAPES.items()
            ]

        def trainable_params(self, recurse=True):
            return self.all

    return Net()


def _load_snapshot(folder: Path, _out: Path):
    from labkit.algorithms.subspace.snapshots import load_snapshot

    return load_snapshot(_network(), folder), load_snapshot(_network(), folder, "first")


def _load_basis(folder: Path, _out: Path):
    from labkit.algorithms.subspace.basis import Basis

    basis = Basis.load(folder / "basis.npy")
    basis.check([("a", (2, 3)), ("b", (4,))])
    return basis.explained, basis.snapshots


def _basis_again(folder: Path, out: Path):
    from labkit.algorithms.subspace.basis import basis_of

    rows = np.random.default_rng(1).normal(size=(4, 10)).astype(np.float32)
    made.write(out / "snapshots", rows, {"a": (2, 3), "b": (4,)})
    return basis_of(folder / "basis.npy", out / "snapshots", None, 3)


READERS = {
    "safetensors": Reader(_make_safetensors, (_read_torch("weights.safetensors"),), heavy=True),
    "pth": Reader(_make_pth, (_read_torch("weights.pth"),), heavy=True),
    "ckpt": Reader(_make_ckpt, (_checkpoint, _values, _convert, _snapshot_folder), heavy=True),
    "snapshots": Reader(
        _make_snapshots, (_snapshot_folder, _any_snapshots, _load_snapshot), heavy=True
    ),
    "basis": Reader(_make_basis, (_load_basis, _basis_again), heavy=True),
}
