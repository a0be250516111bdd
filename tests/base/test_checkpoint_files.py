"""MindSpore's checkpoint files: read as MindSpore reads them, and refused before they do harm."""

import ast
import os
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from labkit.recipes.resnet50_parts import load_network
from mindspore import Tensor, nn
from mindspore.train import serialization

import labkit
from labkit.base import checkpoint_files, checkpoint_format
from labkit.base.checkpoint_files import DamagedCheckpoint, read
from labkit.errors import InputError
from labkit.migration import convert_back
from labkit.training import checkpoint
from tests.support.ckpt_bytes import crc, entry, number, part, tensor

pytestmark = pytest.mark.usefixtures("runtime")

KINDS = ("bool_", "float16", "float32", "float64", "bfloat16") + tuple(
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
)


def assert_equal(ours, theirs):
    assert list(ours) == list(theirs)
    for name, expected in theirs.items():
        assert type(ours[name]) is type(expected)
        if isinstance(expected, str):
            assert ours[name] == expected
            continue
        assert ours[name].name == expected.name == name
        assert (ours[name].dtype, ours[name].shape) == (expected.dtype, expected.shape)
        assert ours[name].requires_grad == expected.requires_grad
        assert ours[name].asnumpy().tobytes() == expected.asnumpy().tobytes()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "it.ckpt"


class TestEqualToMindSpore:
    @pytest.mark.parametrize("check", [True, False])
    def test_every_type_and_appended_value(self, path, check):
        draw = np.random.default_rng(1)
        values = [
            {"name": f"{kind}.{len(shape)}", "data": Tensor(draw.normal(0, 50, shape)).astype(kind)}
            for kind in map(lambda name: getattr(ms, name), KINDS)
            for shape in ((), (1,), (3, 4), (2, 1, 3, 1))
        ]
        assert len({str(value["data"].dtype) for value in values}) == len(KINDS)
        more = {"int": -7, "float": 0.1, "bool": True, "text": "Größe 梯度 🙂", "empty": ""}
        more |= {"state": ms.Generator(), "tensor": Tensor([1, 2])}
        ms.save_checkpoint(values, str(path), append_dict=more, crc_check=check)
        assert_equal(read(path), ms.load_checkpoint(str(path), crc_check=check))

    def test_a_network_with_its_optimizer(self, path):
        net = nn.SequentialCell(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        cell = nn.TrainOneStepCell(net, nn.Adam(net.trainable_params()))
        ms.save_checkpoint(cell, str(path))
        assert_equal(read(path), ms.load_checkpoint(str(path)))
        assert len(read(path)) > 10

    @pytest.mark.parametrize("arrays", ["tensors", "numpy"])
    def test_large_tensors_in_slices(self, path, monkeypatch, arrays):
        monkeypatch.setattr(serialization, "SLICE_SIZE", 1)  # kB, instead of 512 MB
        big = np.random.default_rng(1).normal(size=(700, 3)).astype(np.float32)
        values = [{"name": "before", "data": Tensor(1)}, {"name": "big", "data": Tensor(big)}]
        values.append({"name": "after", "data": Tensor(2)})
        # With async_save the writer takes a different branch, which slices asnumpy() along rows.
        ms.save_checkpoint(values, str(path), crc_check=True, async_save=arrays == "numpy")
        serialization._async_save_close()
        assert path.read_bytes().count(b"\n\x03big") > 5
        assert_equal(read(path), ms.load_checkpoint(str(path)))
        assert read(path)["big"].asnumpy().tobytes() == big.tobytes()

    def test_a_scalar_of_old_versions(self, path):
        path.write_bytes(entry(b"w", b"Int32", (0,), b"\3\0\0\0"))
        assert_equal(read(path), ms.load_checkpoint(str(path)))
        assert (read(path)["w"].shape, int(read(path)["w"])) == ((), 3)


GOOD = entry(b"good")
LONG = entry(b"w", b"Float32", (300, 400), bytes(8))
DAMAGED = {
    "64 bytes for a scalar": (
        entry(b"w", b"Int32", (), bytes(64)),
        "'w' has 64 bytes; Int32",
    ),
    "8 bytes for a matrix": (LONG, r"8 bytes; Float32 \(300, 400\) needs 480000$"),
    "old scalar": (entry(b"w", b"Int32", (0,), bytes(64)), r"64 bytes; Int32 \(\) needs 4$"),
    "no bytes": (entry(b"w", content=b""), "0 bytes"),
    "an axis of 0": (entry(b"w", dims=(2, 0), content=b""), r"shape \(2, 0\)"),
    "a negative axis": (entry(b"w", dims=(2**64 - 1, 2**64 - 1)), "shape"),
    "an overflow": (entry(b"w", dims=(2**32, 2**32), content=b""), "needs 73786976294838206464"),
    "many axes": (entry(b"w", dims=(1,) * 17), "field 1 in the tensor 'w'"),
    "an unknown type": (entry(b"w", b"Int4", (1,), b"a"), "type 'Int4'; expected one of Bool, "),
    "a truth of 2": (entry(b"w", b"Bool", (2,), b"\0\2"), "neither True nor False"),
    "a text in a shape": (entry(b"w", b"str", (4,), bytes(4)), "a text of 4 bytes"),
    "a text of 3 bytes": (entry(b"w", b"str", (0,), b"abc"), "a text of 3 bytes"),
    "an empty text": (entry(b"w", b"str", (0,), b""), "a text of 0 bytes"),
    "beyond Unicode": (entry(b"w", b"str", (0,), b"\xff\xff\xff\xff"), "is not text"),
    "twice": (entry(b"w") + GOOD + entry(b"w"), "'w' is in it twice"),
    "twice in a row": (entry(b"w") + entry(b"w"), "'w' has 8 bytes"),
    "two shapes": (entry(b"w", dims=(2,)) + entry(b"w", dims=(2, 1)), "slices of 'w' differ"),
    "texts in slices": (entry(b"w", b"str", (0,)) * 2, "a text of 8 bytes"),
    "a map": (part(1, part(1, b"w") + part(3, part(1, tensor()))), "map tensor"),
    "two tensors": (part(1, part(1, b"w") + part(2, tensor()) * 2), "field 2 in a value"),
    "two contents": (part(1, part(1, b"w") + part(2, tensor() + part(3, b"aaaa"))), "field 3 in"),
    "a name that is not text": (entry(b"\xff"), "a name that is not text"),
    "an escape in a name": (entry(b"a\x1b]0;x\x07"), r"the name 'a\\x1b\]0;x\\x07'"),
    "a long name": (entry(b"a" * 1025), "a name of 1025 bytes"),
    "no name": (part(1, part(2, tensor())), "without a name"),
    "an empty name": (entry(b""), "without a name"),
    "no tensor": (part(1, part(1, b"w")), "without a tensor"),
    "no content": (part(1, part(1, b"w") + part(2, part(2, b"Int8"))), "no type or no content"),
    "a foreign field": (GOOD + part(2, b"x"), "field 2 in the list of values"),
    "a number for a value": (b"\x08\x01", "expected text or a message"),
    "a number for a name": (part(1, b"\x08\1" + part(2, tensor())), "expected a name"),
    "a packed shape": (
        part(1, part(1, b"w") + part(2, part(1, b"\1") + part(2, b"Int8") + part(3, b"a"))),
        "field 1 in the tensor 'w'",
    ),
    "a group": (b"\x0b\x01", "neither a number nor text nor a message"),
    "beyond the end": (GOOD + b"\x0a\xff\x01", "255 bytes are announced where 0 are left"),
    "beyond its message": (part(1, part(1, b"w") + b"\x12\x7f") + GOOD, "127 bytes are announced"),
    "a number without end": (b"\x0a" + b"\xff" * 30, "no number ends"),
    "cut in a number": (GOOD + b"\x0a", "no number ends"),
    "nothing": (b"", "it holds no value"),
    "a CRC alone": (crc(b""), "it holds no value"),
    "another CRC": (crc(GOOD)[:-1] + b"\0", "its CRC does not fit"),
    "half a CRC": (crc(GOOD)[:-5], "is damaged"),
    "a text file": (b"no checkpoint", "is damaged"),
    "zeros": (bytes(100), "field 0 in the list"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_files_are_refused_in_one_line(path, case):
    content, words = DAMAGED[case]
    path.write_bytes(content)
    with pytest.raises(DamagedCheckpoint, match=words) as caught:
        read(path)
    assert str(caught.value).startswith(f"the checkpoint {path} is damaged and cannot be read: ")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1500


def test_an_encrypted_file_and_one_larger_than_the_memory_are_refused(path):
    ms.save_checkpoint([{"name": "w", "data": Tensor(1)}], str(path), enc_key=b"0" * 16)
    with pytest.raises(DamagedCheckpoint, match="it is encrypted; labkit has no key"):
        read(path)
    path.write_bytes(entry(b"w", dims=(2**40,), content=b""))
    os.truncate(path, 2**43)  # a hole that takes no space on the disk
    with pytest.raises(DamagedCheckpoint, match="more than this machine's memory"):
        read(path)


def test_the_number_of_values_and_the_length_of_texts_are_limited(path, monkeypatch):
    monkeypatch.setattr(checkpoint_format, "_MOST_VALUES", 3)
    monkeypatch.setattr(checkpoint_format, "_LONGEST_TEXT", 8)
    texts = [entry(name, b"str", (0,), b"h\0\0\0") for name in (b"a", b"b", b"c")]
    whole = texts[0] + texts[1] + entry(b"c")
    path.write_bytes(whole)
    assert list(read(path)) == ["a", "b", "c"] and read(path)["b"] == "h"
    for content, words in (
        (whole + entry(b"d"), "it holds more than 3 values"),
        (whole + entry(b"c", content=b""), "it holds more than 3 values"),
        (b"".join(texts), "its texts have 12 bytes; expected at most 8"),
    ):
        path.write_bytes(content)
        with pytest.raises(DamagedCheckpoint, match=words):
            read(path)


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.ckpt")
    (tmp_path / "zero.ckpt").symlink_to("/dev/zero")
    for name in ("pipe.ckpt", "zero.ckpt", "none.ckpt", "."):
        with pytest.raises(InputError, match="no checkpoint at"):
            read(tmp_path / name)


def test_what_labkit_wrote_and_has_no_crc_any_more_was_cut(tmp_path):
    """Otherwise a file cut between two values would pass as a smaller checkpoint."""
    newest = tmp_path / "step-000000002.ckpt"
    newest.write_bytes(crc(GOOD))
    assert list(checkpoint.read(newest)) == ["good"]
    newest.write_bytes(GOOD)
    with pytest.raises(DamagedCheckpoint, match="it does not end with its CRC"):
        checkpoint.read(newest)
    (tmp_path / "of-mindspore.ckpt").write_bytes(GOOD)
    assert list(checkpoint.read(tmp_path / "of-mindspore.ckpt")) == ["good"]


def test_texts_where_numbers_are_expected_are_refused(tmp_path):
    net = nn.Dense(1, 1)
    text = b"h\0\0\0"
    (tmp_path / "a.ckpt").write_bytes(
        entry(b"weight", b"str", (0,), text) + entry(b"bias", dims=(1,))
    )
    with pytest.raises(InputError, match="weight is a text"):
        load_network(net, tmp_path / "a.ckpt")
    values = {name: Tensor(np.ones(3, np.float32)) for name in ("mean", "variance")}
    values |= {name: values["mean"] for name in ("gamma", "beta")}
    for count in ("text", Tensor([1, 2]), 0.5):
        counted = {"num_batches_tracked": count}
        saved = [{"name": name, "data": value} for name, value in values.items()]
        ms.save_checkpoint(saved, str(tmp_path / "bn.ckpt"), append_dict=counted)
        with pytest.raises(InputError, match="num_batches_tracked: expected a whole number"):
            convert_back(tmp_path / "bn.ckpt", tmp_path / "x.safetensors", nn.BatchNorm1d(3))


def test_no_entry_hands_a_file_to_mindspore():
    """MindSpore's reader would corrupt its heap and may end the process."""
    calls = {
        f"{path}: {node.attr}"
        for path in Path(labkit.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr.startswith("load_checkpoint")
    }
    assert not calls


def hole(name, count):
    """Return a Float32 of ``count`` zeros up to its content, which is to be a hole in the file."""
    axes = b"\x08" + number(count)
    content = axes + part(2, b"Float32") + b"\x1a" + number(4 * count)
    inner = part(1, name) + b"\x12" + number(len(content) + 4 * count) + content
    return b"\x0a" + number(len(inner) + 4 * count) + inner


@pytest.fixture
def sparse(tmp_path):
    """Checkpoints of a few kB on the disk with a tensor of 4 GB, or half of the memory if less."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    count = min(memory // 2, 4 << 30) // 4
    places = {}
    for name in (b"weight", b"other"):
        path = places[name.decode()] = tmp_path / name.decode() / "a.ckpt"
        path.parent.mkdir()
        start = entry(b"bias", dims=(1,)) + entry(b"weight", dims=(1, 1)) * (name == b"other")
        path.write_bytes(start + hole(name, count))
        os.truncate(path, path.stat().st_size + 4 * count)
        assert path.stat().st_blocks < 100
    return places


def test_what_was_not_expected_takes_no_memory(sparse, monkeypatch):
    net = nn.Dense(1, 1)
    large = []
    empty = np.empty
    monkeypatch.setattr(
        np, "empty", lambda size, *more: large.append(size) if size > 9 else empty(size, *more)
    )
    words = r"is of another network: weight is Float32 \(\d+,\), expected Float32 \(1, 1\)"
    with pytest.raises(InputError, match=words):
        load_network(net, sparse["weight"])
    with pytest.raises(InputError, match=words):
        convert_back(sparse["weight"], sparse["weight"].with_name("x.safetensors"), net)
    load_network(net, sparse["other"])
    assert net.weight.asnumpy().tolist() == [[0]]
    for path in sparse.values():
        with pytest.raises(InputError, match="got one without position"):
            checkpoint.load(net, path)
    assert large == []
    with pytest.raises(InputError, match=r"another network: other is Float32 \(\d+,\)"):
        checkpoint.read(sparse["other"], net)["other"].asnumpy()


def test_of_what_was_not_expected_the_smallest_is_read(path, monkeypatch):
    monkeypatch.setattr(checkpoint_files, "_SPARE", 12)
    content = {"c": 3, "a": 1, "b": 2, "x": 9}
    path.write_bytes(
        b"".join(entry(n.encode(), dims=(s,), content=bytes(4 * s)) for n, s in content.items())
    )
    values = read(path, expected={"x": (ms.float32, (9,)), "b": (ms.float16, (2,))})
    unread = [name for name in values if isinstance(values[name], checkpoint_files.Unread)]
    assert list(values) == list(content) and unread == ["c"]
    assert (values["c"].dtype, values["c"].shape) == ("Float32", (3,))
    assert not any(isinstance(value, checkpoint_files.Unread) for value in read(path).values())


def test_every_type_that_is_expected_is_read(path, monkeypatch):
    monkeypatch.setattr(checkpoint_files, "_SPARE", 0)
    for kind in KINDS:
        value = Tensor(np.ones((2, 3))).astype(getattr(ms, kind))
        ms.save_checkpoint([{"name": "w", "data": value}], str(path))
        assert read(path, expected={"w": (value.dtype, value.shape)})["w"].shape == (2, 3)
