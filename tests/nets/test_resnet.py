"""The ResNets are torchvision's, and each of the blog's differences shows first where it is."""

import numpy as np
import pytest
from mindspore import Tensor, nn

from labkit.errors import InputError
from labkit.labs import recorded
from labkit.labs.one_step import _forward
from labkit.migration import load
from labkit.migration.names import pairs
from labkit.nets import resnet as nets
from labkit.nets.resnet import BLOG, DEPTHS, ResidualBlock, ResNet, resnet
from tests.support.migrating import by_rule, torch_by_rule

pytestmark = pytest.mark.usefixtures("runtime")

PARAMETERS = {18: 11_689_512, 34: 21_797_672, 50: 25_557_032, 101: 44_549_160, 152: 60_192_808}
# Measured for the logits of 152 layers: 5e-6 of the largest logit.
LOGITS = 1e-4
LISTS = {"layer_nums": [1, 1, 1, 1], "in_channels": [4, 4, 8, 8], "out_channels": [4, 8, 8, 8],
         "strides": [1, 2, 2, 2]}  # fmt: skip


def images(count=2, side=64):
    return recorded.batch(count, side, 10)[0]


def tiny(differences=(), **lists):
    """Return a ResNet with every kind of part, small enough to run in PyNative mode."""
    return ResNet(ResidualBlock, *(LISTS | lists).values(), 5, differences=differences)


@pytest.mark.parametrize(
    "depth", [pytest.param(d, marks=pytest.mark.long) if d > 50 else d for d in DEPTHS]
)
def test_logits_parameters_and_names_are_those_of_pytorch(depth, eager):
    torch = pytest.importorskip("torch")
    from tests.support import torch_resnet

    module = torch_by_rule(torch, torch_resnet.resnet(depth)).eval()
    state = {name: value.numpy() for name, value in module.state_dict().items()}
    network = resnet(depth)
    load(network, state)  # which refuses a name without a counterpart
    assert sum(p.size for p in network.trainable_params()) == PARAMETERS[depth]
    assert sum(p.numel() for p in module.parameters()) == PARAMETERS[depth]
    with torch.no_grad():
        expected = module(torch.from_numpy(images())).numpy()
    actual = network(Tensor(images())).asnumpy()
    assert actual.shape == (2, 1000) and expected.std() > 0.1 * np.abs(expected).max()
    assert np.abs(actual - expected).max() <= LOGITS * np.abs(expected).max()


@pytest.mark.parametrize("depth", DEPTHS)
def test_the_pytorch_original_is_the_installed_torchvision(depth):
    torch = pytest.importorskip("torch")
    installed = pytest.importorskip("tests.support.torchvision_on_cpu", reason="`make test ALL=1`")
    from tests.support import torch_resnet

    theirs = getattr(installed.models, f"resnet{depth}")().eval()
    ours = torch_resnet.resnet(depth).eval()
    ours.load_state_dict(theirs.state_dict())
    x = torch.from_numpy(images())
    with torch.no_grad():
        assert torch.equal(ours(x), theirs(x))


@pytest.mark.parametrize("name", LISTS)
def test_lists_without_four_entries_are_refused(name):
    for length in (0, 3, 5):
        with pytest.raises(ValueError, match=f"{name}.*: expected 4 entries each"):
            tiny(**{name: (LISTS[name] * 2)[:length]})


def test_another_network_than_asked_for_is_refused():
    for differences in (["maxpool padded same"], BLOG[0]):
        with pytest.raises(InputError, match="differences: expected one of"):
            tiny(differences=differences)
    with pytest.raises(InputError, match="depth: expected one of .18, 34, 50.*, got 42"):
        resnet(42)
    for width in (0.3, 0.01, -1.0):
        with pytest.raises(InputError, match="width: expected .* multiples of 4, .* It makes "):
            resnet(18, 10, width=width)


def outputs(network, x):
    by_rule(network)
    return _forward(network.set_train(False), Tensor(x))


@pytest.fixture(scope="module")
def plain():
    """Outputs of the bottleneck network without differences, by cell."""
    return outputs(tiny(), images(2, 32))


@pytest.mark.parametrize(
    ("difference", "first"),
    [(BLOG[0], "conv1"), (BLOG[1], "maxpool"), (BLOG[2], "layer2.0.conv2")],
)
def test_each_difference_shows_first_where_it_is(plain, difference, first):
    actual = outputs(tiny(differences=[difference]), images(2, 32))
    names = [name for name in actual if name in plain]
    assert names[0] == "conv1" and names[-1] == "fc"
    # The stride moves to the pool behind conv2; otherwise every shape is the same for even sides.
    moved = {name for name in names if actual[name].shape != plain[name].shape}
    different = (n for n in names if n in moved or np.abs(actual[n] - plain[n]).max() > 1e-3)
    assert next(different) == first
    expected = {f"layer{n}.0.{part}" for n in (2, 3, 4) for part in ("conv2", "bn2", "relu#2")}
    assert moved == (expected if difference == BLOG[2] else set())


@pytest.mark.parametrize("stride", [1, 2])
def test_same_padding_of_a_stride_1_convolution_is_no_difference(stride):
    """With a stride it is one: the samples lie one pixel further down and to the right."""
    x = Tensor(images(2, 16))
    same, pad = nets._conv(3, 4, 3, stride, BLOG[:1]), nets._conv(3, 4, 3, stride, ())
    pad.weight.set_data(same.weight)
    off = np.abs(same(x).asnumpy() - pad(x).asnumpy()).max()
    assert off == 0 if stride == 1 else off > 0.1


def test_the_blogs_resnet50_has_as_many_parameters_under_the_same_names():
    blog, ours = resnet(50, 10, differences=BLOG), nets.resnet50(10)
    assert pairs(blog) == pairs(ours)
    assert sum(p.size for p in blog.trainable_params()) == 23_528_522
    kinds = [type(cell) for _, cell in blog.cells_and_names()]
    assert kinds.count(nn.MaxPool2d) == 4 and blog.maxpool.pad_mode.lower() == "same"
    assert blog.conv1.pad_mode == "same" and ours.conv1.pad_mode == "pad"


@pytest.mark.parametrize("depth", [18, 50])
def test_half_the_width_is_half_of_all_channels_and_as_many_layers(depth, eager):
    whole, half = (resnet(depth, 10, width=width) for width in (1.0, 0.5))
    for full, small in zip(whole.trainable_params(), half.trainable_params(), strict=True):
        # Not halved: three colours in, ten classes out, and a kernel's sides.
        kept = {"conv1.weight": (1,), "fc.weight": (0,), "fc.bias": (0,)}.get(full.name, ())
        expected = [n if i in kept or i > 1 else n // 2 for i, n in enumerate(full.shape)]
        assert (small.name, list(small.shape)) == (full.name, expected)
    assert half(Tensor(np.zeros((2, 3, 32, 32), np.float32))).shape == (2, 10)


def test_batch_norms_have_pytorchs_momentum_and_epsilon():
    norms = [cell for _, cell in resnet(18).cells_and_names() if isinstance(cell, nn.BatchNorm2d)]
    assert len(norms) == 20
    # MindSpore keeps 1 - momentum, which is PyTorch's; tests/migration/test_trace.py tests it.
    assert {(round(float(norm.momentum), 9), norm.eps) for norm in norms} == {(0.1, 1e-5)}
