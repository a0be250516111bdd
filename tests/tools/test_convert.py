"""`labkit convert`: which network, which way, and what is refused before anything is written."""

import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from labkit.errors import InputError
from labkit.migration import rule
from labkit.migration.names import pairs
from labkit.migration.weights import read_torch, write_torch
from labkit.nets.resnet import resnet
from labkit.tools import cli
from labkit.tools.commands.convert import convert_weights


@pytest.fixture
def weights(tmp_path, runtime):
    shapes = {pair.torch: pair.torch_shape for pair in pairs(resnet(18, 10))}
    return write_torch(tmp_path / "in.safetensors", rule.state(shapes))


def test_there_and_back_is_equal_to_the_bit(weights, tmp_path):
    there, back = tmp_path / "there.ckpt", tmp_path / "back.safetensors"
    said = convert_weights(weights, there, "resnet18", 10)
    assert said.startswith(f"{there}: written; 102 parameters match")
    assert convert_weights(there, back, "resnet18", 10) == f"{back}: written"
    copied, expected = read_torch(back), read_torch(weights)
    assert expected.keys() <= copied.keys()
    assert all(np.array_equal(copied[name], value) for name, value in expected.items())


def test_the_command_says_what_it_did_and_exits_with_0(weights, tmp_path):
    asked = ["convert", str(weights), str(tmp_path / "x.ckpt"), "--network", "resnet18"]
    done = CliRunner().invoke(cli.app, [*asked, "--classes", "10"])
    assert done.exit_code == 0 and "102 parameters match" in done.stdout
    refused = CliRunner().invoke(cli.app, asked)
    assert refused.exit_code == 2 and "shape (10, 512), expected (1000, 512)" in refused.stderr


def test_a_network_of_ones_own_with_other_names(tmp_path, monkeypatch, runtime):
    text = (
        "from mindspore import nn\n"
        "class Net(nn.Cell):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.end_point = nn.Dense(3, 2)\n"
        "    def construct(self, x):\n"
        "        return self.end_point(x)\n"
    )
    (tmp_path / "a_network_of_mine.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    state = {"fc.weight": np.ones((2, 3), np.float32), "fc.bias": np.zeros(2, np.float32)}
    source = write_torch(tmp_path / "mine.safetensors", state)
    target = tmp_path / "mine.ckpt"
    said = convert_weights(source, target, "a_network_of_mine:Net", 10, rename=["end_point=fc"])
    assert "2 parameters match" in said and target.exists()


@pytest.mark.parametrize(
    ("source", "target", "options", "words"),
    [
        ("in.safetensors", "out.pth", {}, "expected one .ckpt"),
        ("a.ckpt", "b.pth", {"prefix": "module."}, "expected none with a checkpoint"),
        ("in.safetensors", "nowhere/out.ckpt", {}, "nowhere is no folder"),
        ("in.safetensors", "out.ckpt", {"network": "resnet20"}, "no ResNet-20"),
        ("in.safetensors", "out.ckpt", {"network": "vgg"}, "or module:function"),
        ("in.safetensors", "out.ckpt", {"network": "no_such:net"}, "No module named 'no_such'"),
        ("in.safetensors", "out.ckpt", {"network": "labkit:nott"}, "nott"),
        ("in.safetensors", "out.ckpt", {"rename": ["fc"]}, "expected MINDSPORE=PYTORCH"),
        ("in.safetensors", "out.ckpt", {"rename": ["end_point=fc"]}, "change no name"),
        ("absent.safetensors", "out.ckpt", {}, "is not there"),
        ("absent.ckpt", "out.pth", {}, "no checkpoint at"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_written(
    weights, tmp_path, source, target, options, words
):
    before = sorted(tmp_path.iterdir())
    options = {"network": "resnet18", "classes": 10} | options
    with pytest.raises(InputError, match=words):
        convert_weights(tmp_path / source, tmp_path / target, **options)
    assert sorted(tmp_path.iterdir()) == before


PLANTED = ("torch", "mindspore", "safetensors", "numpy", "signal", "labkit", "typer", "google")
# -P, as the console script: `python -m` alone would put the working folder first itself.
CONVERT = [sys.executable, "-P", "-m", "labkit.tools.cli", "convert"]
WITHOUT_TORCH = """
import sys
from importlib.machinery import PathFinder
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            spec = PathFinder.find_spec(name, [p for p in sys.path if "site-packages" not in p])
            if spec is None:
                raise ModuleNotFoundError("No module named 'torch'", name="torch")
            return spec
sys.meta_path.insert(0, NoTorch())
from labkit.tools.cli import app
app(prog_name="labkit")
"""


class TestTheWorkingFolder:
    """Nothing in it is executed but the module that was named: it may be a downloaded folder."""

    @pytest.fixture
    def folder(self, tmp_path, weights):
        (tmp_path / "ran").mkdir()
        code = "import pathlib; pathlib.Path('ran', __name__).touch()\n"
        for name in PLANTED:
            (tmp_path / f"{name}.py").write_text(code)
        own = "def net():\n    from labkit.nets.resnet import resnet\n    return resnet(18, 10)\n"
        (tmp_path / "mine.py").write_text(code + own)
        return tmp_path

    def convert(self, folder, *arguments, command=CONVERT):
        return subprocess.run(
            [*command, *arguments], cwd=folder, capture_output=True, text=True, check=False
        )

    @pytest.mark.parametrize(
        ("network", "ran"), [(("resnet18", "--classes", "10"), []), (("mine:net",), ["mine"])]
    )
    def test_planted_modules_do_not_run(self, folder, network, ran):
        for source, target in (("in.safetensors", "x.ckpt"), ("x.ckpt", "x.pth"))[: 1 + len(ran)]:
            done = self.convert(folder, source, target, "--network", *network)
            assert done.returncode == 0, done.stderr
        assert sorted(path.name for path in (folder / "ran").iterdir()) == ran

    def test_not_even_where_pytorch_is_not_installed(self, folder):
        (folder / "x.pth").write_bytes(b"PK")
        command = [sys.executable, "-P", "-c", WITHOUT_TORCH, "convert"]
        done = self.convert(folder, "x.pth", "y.ckpt", "--network", "mine:net", command=command)
        assert done.returncode == 2 and "needs PyTorch, which is not installed" in done.stderr
        assert [path.name for path in (folder / "ran").iterdir()] == ["mine"]
