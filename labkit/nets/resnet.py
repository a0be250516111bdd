"""ResNet-18/34/50/101/152, v1.5: He et al. 2016 (arXiv:1512.03385) as torchvision builds it.

Residual block: y = relu(F(x) + S(x)), F two 3x3 (basic) or 1x1, 3x3, 1x1 convolutions (bottleneck),
each with BatchNorm; S the identity, or a strided 1x1 convolution with BatchNorm.

Departures from the paper are torchvision's: a bottleneck's stride is on its 3x3 convolution.
Cells carry torchvision's names, so that ``labkit.migration`` maps weights by name.

The blog post that the lab starts from (MindSpore r1.6) builds another network under the same name.
Its three differences can be switched on one by one: ``differences``, all of them in ``BLOG``.
"""

from collections.abc import Collection

from mindspore import nn, ops

from labkit.errors import InputError, refuse_unknown
from labkit.nets.convolution import PaddedConv2d

# "same" pads the even inputs of a strided convolution on the right and below only.
BLOG = ("convolutions padded same", "max-pool padded same", "stride by max-pool")


def _conv(in_channels, out_channels, kernel, stride, differences):
    if BLOG[0] in differences:
        return nn.Conv2d(in_channels, out_channels, kernel, stride, pad_mode="same")
    return PaddedConv2d(in_channels, out_channels, kernel, stride)


def _conv1x1(in_channels, out_channels, stride=1, differences=()):
    return _conv(in_channels, out_channels, 1, stride, differences)


def _conv3x3(in_channels, out_channels, stride=1, differences=()):
    return _conv(in_channels, out_channels, 3, stride, differences)


def _conv7x7(in_channels, out_channels, stride=1, differences=()):
    return _conv(in_channels, out_channels, 7, stride, differences)


def _bn(channels):
    # PyTorch's momentum 0.1 is the weight of the new value, MindSpore's 0.9 that of the old one.
    return nn.BatchNorm2d(channels, eps=1e-5, momentum=0.9)


# The last BatchNorm of a block. torchvision's default starts it at one like the others.
_bn_last = _bn


def _fc(in_channels, out_channels):
    return nn.Dense(in_channels, out_channels)


def _maxpool(differences):
    if BLOG[1] in differences:
        return nn.MaxPool2d(kernel_size=3, stride=2, pad_mode="same")
    return nn.MaxPool2d(kernel_size=3, stride=2, pad_mode="pad", padding=1)


def _downsample(in_channels, out_channels, stride, differences):
    if stride == 1 and in_channels == out_channels:
        return None
    conv = _conv1x1(in_channels, out_channels, stride, differences)
    return nn.SequentialCell(conv, _bn(out_channels))


class GlobalAveragePool(nn.Cell):
    """The mean over all positions, (B, C, H, W) -> (B, C, 1, 1): AdaptiveAvgPool2d(1).

    By ReduceMean, as the source document does; MindSpore had no AdaptiveAvgPool2d then.
    """

    def construct(self, x):
        return ops.mean(x, (2, 3), keep_dims=True)


class ResidualBlockBase(nn.Cell):
    """Two 3x3 convolutions (ResNet-18 and -34): (B, in, H, W) -> (B, out, H/stride, W/stride)."""

    expansion = 1

    def __init__(self, in_channel, out_channel, stride=1, *, differences=()):
        super().__init__()
        self.conv1 = _conv3x3(in_channel, out_channel, stride, differences)
        self.bn1 = _bn(out_channel)
        self.conv2 = _conv3x3(out_channel, out_channel, 1, differences)
        self.bn2 = _bn_last(out_channel)
        self.relu = nn.ReLU()
        self.downsample = _downsample(in_channel, out_channel, stride, differences)

    def construct(self, x):
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu(out + shortcut)


class ResidualBlock(nn.Cell):
    """Bottleneck 1x1, 3x3, 1x1 (ResNet-50 and deeper): (B, in, H, W) -> (B, out, H/s, W/s)."""

    expansion = 4

    def __init__(self, in_channel, out_channel, stride=1, *, differences=()):
        super().__init__()
        channel = out_channel // self.expansion
        by_pool = stride != 1 and BLOG[2] in differences
        self.conv1 = _conv1x1(in_channel, channel, 1, differences)
        self.bn1 = _bn(channel)
        self.conv2 = _conv3x3(channel, channel, 1 if by_pool else stride, differences)
        self.bn2 = _bn(channel)
        self.conv3 = _conv1x1(channel, out_channel, 1, differences)
        self.bn3 = _bn_last(out_channel)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(kernel_size=2, stride=2, pad_mode="same") if by_pool else None
        self.downsample = _downsample(in_channel, out_channel, stride, differences)

    def construct(self, x):
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        if self.pool is not None:
            out = self.pool(out)
        out = self.bn3(self.conv3(out))
        return self.relu(out + shortcut)


class ResNet(nn.Cell):
    """Images (B, 3, H, W) -> logits (B, num_classes); H and W at least 32 for a useful depth.

    block         ``ResidualBlock`` or ``ResidualBlockBase``
    layer_nums    blocks of each of the four stages
    in_channels   channels into each stage; the first is what the stem makes
    out_channels  channels out of each stage
    strides       of each stage's first block
    num_classes   width of the logits
    differences   those of the blog to build in, names out of ``BLOG``

    Raises ``ValueError`` for lists that do not have four entries, ``InputError`` (a ValueError) for
    channels that do not join up and unknown differences.
    """

    def __init__(
        self, block, layer_nums, in_channels, out_channels, strides, num_classes, *, differences=()
    ):
        super().__init__()
        _check(layer_nums, in_channels, out_channels, strides, differences)
        stem = in_channels[0]
        self.conv1 = _conv7x7(3, stem, 2, differences)
        self.bn1 = _bn(stem)
        self.relu = nn.ReLU()
        self.maxpool = _maxpool(differences)
        stages = [
            _stage(block, *numbers, differences)
            for numbers in zip(layer_nums, in_channels, out_channels, strides, strict=True)
        ]
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.avgpool = GlobalAveragePool()
        self.flatten = nn.Flatten()
        self.fc = _fc(out_channels[3], num_classes)

    def construct(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.flatten(self.avgpool(x)))


def _stage(block, layer_num, in_channel, out_channel, stride, differences):
    first = block(in_channel, out_channel, stride, differences=differences)
    others = (
        block(out_channel, out_channel, differences=differences) for _ in range(layer_num - 1)
    )
    return nn.SequentialCell(first, *others)


def _check(layer_nums, in_channels, out_channels, strides, differences):
    lists = {
        "layer_nums": layer_nums,
        "in_channels": in_channels,
        "out_channels": out_channels,
        "strides": strides,
    }
    for name, numbers in lists.items():
        if len(numbers) != 4:
            raise InputError(f"{name} has {len(numbers)} entries ({numbers}); expected 4")
    if list(in_channels[1:]) != list(out_channels[:3]):
        raise InputError(
            f"in_channels {in_channels} do not take up out_channels {out_channels}: each stage's "
            "input is the output of the one before"
        )
    if isinstance(differences, str):
        raise InputError(f"differences is {differences!r}; expected a collection of names")
    for name in differences:
        refuse_unknown("difference", name, BLOG)


_BASIC = (ResidualBlockBase, [64, 64, 128, 256], [64, 128, 256, 512])
_BOTTLENECK = (ResidualBlock, [64, 256, 512, 1024], [256, 512, 1024, 2048])
_DEPTHS = {
    18: ([2, 2, 2, 2], _BASIC),
    34: ([3, 4, 6, 3], _BASIC),
    50: ([3, 4, 6, 3], _BOTTLENECK),
    101: ([3, 4, 23, 3], _BOTTLENECK),
    152: ([3, 8, 36, 3], _BOTTLENECK),
}
DEPTHS = tuple(_DEPTHS)


def resnet(
    depth: int, class_num: int = 1000, *, width: float = 1.0, differences: Collection[str] = ()
) -> ResNet:
    """Return the ResNet of ``depth`` 18, 34, 50, 101 or 152.

    width  factor of all channels; with 1/2 a quarter of the arithmetic, for small images
    """
    if depth not in _DEPTHS:
        raise InputError(f"there is no ResNet-{depth} here; expected one of {DEPTHS}")
    layer_nums, (block, *channels) = _DEPTHS[depth]
    scaled = [[width * number for number in numbers] for numbers in channels]
    if any(number < 4 or number % 4 for numbers in scaled for number in numbers):
        raise InputError(
            f"width {width} makes channels {scaled[0]}; expected multiples of 4, as by 0.25, 0.5, 2"
        )
    in_channels, out_channels = [[int(number) for number in numbers] for numbers in scaled]
    return ResNet(
        block,
        layer_nums,
        in_channels,
        out_channels,
        [1, 2, 2, 2],
        class_num,
        differences=differences,
    )


def resnet18(class_num=1000):
    """ResNet-18; 11 689 512 parameters with 1000 classes."""
    return resnet(18, class_num)


def resnet34(class_num=1000):
    """ResNet-34; 21 797 672 parameters with 1000 classes."""
    return resnet(34, class_num)


def resnet50(class_num=1000):
    """ResNet-50; 25 557 032 parameters with 1000 classes."""
    return resnet(50, class_num)


def resnet101(class_num=1000):
    """ResNet-101; 44 549 160 parameters with 1000 classes."""
    return resnet(101, class_num)


def resnet152(class_num=1000):
    """ResNet-152; 60 192 808 parameters with 1000 classes."""
    return resnet(152, class_num)


def blog_resnet50(class_num=10):
    """ResNet-50 as the blog post builds it: as many parameters, and another function."""
    return resnet(50, class_num, differences=BLOG)
