"""`labkit convert`: which network, which direction, and what is refused before any writing."""

import sys

import numpy as np
import pytest

from labkit.migration import rule
from labkit.migration.names import pairs
from labkit.migration.weights import read_torch, write_torch
from labkit.nets.resnet import resnet

RESNET = ("--network", "resnet18", "--classes", "10")


@pytest.fixture(scope="module")
def weights(runtime, tmp_path_factory):
    shapes = {pair.torch: pair.torch_shape for pair in pairs(resnet(18, 10))}
    return write_torch(tmp_path_factory.mktemp("weights") / "in.safetensors", rule.state(shapes))


def test_there_and_back_is_equal_to_the_bit(call, weights, tmp_path):
    there, back = tmp_path / "there.ckpt", tmp_path / "back.safetensors"
    said = call("convert", weights, there, *RESNET)[1]
    assert f"\n{there}: written; 102 parameters match" in said
    assert call("convert", there, back, *RESNET)[1].endswith(f"\n{back}: written\n")
    copied, expected = read_torch(back), read_torch(weights)
    assert expected.keys() <= copied.keys()
    assert all(np.array_equal(copied[name], value) for name, value in expected.items())


def test_a_network_of_ones_own_with_other_names(call, tmp_path, monkeypatch, runtime):
    (tmp_path / "a_network_of_mine.py").write_text(
        "from collections import OrderedDict\nfrom mindspore import nn\n"
        "def net(): return nn.SequentialCell(OrderedDict(end_point=nn.Dense(3, 2)))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    state = {"fc.weight": np.ones((2, 3), np.float32), "fc.bias": np.zeros(2, np.float32)}
    source, target = write_torch(tmp_path / "mine.safetensors", state), tmp_path / "mine.ckpt"
    own = ("--network", "a_network_of_mine:net", "--rename", "end_point=fc")
    assert "2 parameters match" in call("convert", source, target, *own)[1] and target.exists()


@pytest.mark.parametrize(
    ("source", "target", "options", "words"),
    [
        ("in.safetensors", "out.pth", "", "expected one .ckpt"),
        ("a.ckpt", "b.pth", "--prefix module.", "expected none with a checkpoint"),
        ("in.safetensors", "out.ckpt", "--network resnet20", "152), got 20"),
        ("in.safetensors", "out.ckpt", "--network vgg", "or module:function"),
        ("in.safetensors", "out.ckpt", "--network no_such:net", "No module named 'no_such'"),
        ("in.safetensors", "out.ckpt", "--network os:getcwd", "a function that returns an nn.Cell"),
        ("in.safetensors", "out.ckpt", "--rename fc", "each as MINDSPORE=PYTORCH"),
        ("in.safetensors", "out.ckpt", "--rename end_point=fc", "change no name"),
        ("in.safetensors", "out.ckpt", "--classes 1000", "shape (10, 512), expected (1000, 512)"),
        ("absent.safetensors", "out.ckpt", "", "is not there"),
        ("absent.ckpt", "out.pth", "", "no checkpoint at"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_written(
    call, weights, tmp_path, source, target, options, words
):
    place = weights.with_name(source)
    code, _, said = call("convert", place, tmp_path / target, *RESNET, *options.split())
    assert code == 2 and words in said and list(tmp_path.iterdir()) == []


def test_where_pytorch_is_not_installed(call, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # an import of it raises
    (tmp_path / "x.pth").write_bytes(b"PK")
    code, _, said = call("convert", tmp_path / "x.pth", tmp_path / "y.ckpt")
    assert code == 2 and "needs PyTorch, which is not installed" in said
