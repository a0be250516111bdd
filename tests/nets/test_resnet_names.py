"""The tutorials' parameter names become labkit's."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops

from labkit.nets import resnet
from labkit.nets.resnet import own_name, pools
from labkit.recipes.training import load


class Block(nn.Cell):
    """The migration document's ResidualBlock, with its names."""

    def __init__(self, in_channel, out_channel, stride):
        super().__init__()
        channel = out_channel // 4
        self.stride = stride
        self.conv1 = nn.Conv2d(in_channel, channel, 1, pad_mode="same")
        self.bn1 = nn.BatchNorm2d(channel)
        if stride != 1:
            conv = nn.Conv2d(channel, channel, 3, pad_mode="same")
            pool = nn.MaxPool2d(kernel_size=2, stride=2, pad_mode="same")
            self.e2 = nn.SequentialCell([conv, nn.BatchNorm2d(channel), nn.ReLU(), pool])
        else:
            self.conv2 = nn.Conv2d(channel, channel, 3, pad_mode="same")
            self.bn2 = nn.BatchNorm2d(channel)
        self.conv3 = nn.Conv2d(channel, out_channel, 1, pad_mode="same")
        self.bn3 = nn.BatchNorm2d(out_channel)
        self.relu = nn.ReLU()
        self.down_sample_layer = None
        if stride != 1 or in_channel != out_channel:
            conv = nn.Conv2d(in_channel, out_channel, 1, stride, pad_mode="same")
            self.down_sample_layer = nn.SequentialCell([conv, nn.BatchNorm2d(out_channel)])

    def construct(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out))) if self.stride == 1 else self.e2(out)
        shortcut = x if self.down_sample_layer is None else self.down_sample_layer(x)
        return self.relu(self.bn3(self.conv3(out)) + shortcut)


class Document(nn.Cell):
    """ResNet-50 as the document writes it."""

    def __init__(self, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, pad_mode="same")
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, pad_mode="same")
        ends = [64, 256, 512, 1024, 2048]
        layers = []
        for stage, blocks in enumerate((3, 4, 6, 3)):
            first = Block(ends[stage], ends[stage + 1], 1 if stage == 0 else 2)
            rest = [Block(ends[stage + 1], ends[stage + 1], 1) for _ in range(blocks - 1)]
            layers.append(nn.SequentialCell([first, *rest]))
        self.layer1, self.layer2, self.layer3, self.layer4 = layers
        self.end_point = nn.Dense(2048, classes)

    def construct(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.end_point(ops.mean(x, (2, 3)))


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("end_point.weight", "fc.weight"),
        ("moments.end_point.bias", "moments.fc.bias"),
        ("layer1.0.down_sample_layer.1.gamma", "layer1.0.downsample.1.gamma"),
        ("layer2.0.e2.0.weight", "layer2.0.conv2.weight"),
        ("layer2.0.e2.1.moving_mean", "layer2.0.bn2.moving_mean"),
        ("layer1.1.bn1d.beta", "layer1.1.bn1.beta"),
        ("layer1.0.conv1.weight", "layer1.0.conv1.weight"),
        ("the_end_point.weight", "the_end_point.weight"),
    ],
)
def test_names_of_the_tutorials_become_labkits(theirs, ours):
    assert own_name(theirs) == ours
    assert pools(theirs) == (".e2." in theirs)


def test_a_checkpoint_of_the_documents_network_is_the_blogs_function(tmp_path):
    network, random = Document(10), np.random.default_rng(3)
    for parameter in network.get_parameters():
        if parameter.name.endswith(("gamma", "moving_variance")):
            value = random.uniform(0.5, 1.5, parameter.shape)
            parameter.set_data(ms.Tensor(value, ms.float32))
    # An optimizer's moments beside the weights, as in a training's checkpoint.
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    saved = {p.name: p for p in (*network.get_parameters(), *optimizer.get_parameters())}
    path = tmp_path / "resnet-70_625.ckpt"
    ms.save_checkpoint([{"name": n, "data": p} for n, p in saved.items()], str(path))
    images = ms.Tensor(random.normal(size=(2, 3, 64, 64)), ms.float32)
    expected = network.set_train(False)(images).asnumpy()
    for differences in (resnet.BLOG, ()):
        other = resnet.resnet(50, 10, differences=differences)
        message = r"blocks pool where this one strides \(layer2.0.e2.0.*the function is another"
        with pytest.warns(UserWarning, match=message):
            load(other, path, ())
        off = np.abs(other.set_train(False)(images).asnumpy() - expected).max()
        if differences:
            assert off <= 1e-4 * np.abs(expected).min() + 1e-4
        else:
            assert off > 0.01 * np.abs(expected).max()
