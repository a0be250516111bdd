"""ResNet-18/34/50/101/152, v1.5: He et al. 2016 (arXiv:1512.03385) as torchvision builds it.

Residual block: y = relu(F(x) + S(x)), F two 3x3 (basic) or 1x1, 3x3, 1x1 convolutions (bottleneck),
each with BatchNorm; S the identity, or a strided 1x1 convolution with BatchNorm.

Departures from the paper are torchvision's: a bottleneck's stride is on its 3x3 convolution.
Cells carry torchvision's names, so that ``labkit.migration`` maps weights by name.

The blog post that the lab starts from (MindSpore r1.6) builds another network under the same name.
The argument ``differences`` switches its three differences on one by one; ``BLOG`` is all of them.
"""

from collections.abc import Collection, Sequence

from mindspore import Tensor, nn

from labkit.base.arguments import choice, wrong
from labkit.nets.layers import GlobalAveragePool, PaddedConv2d

# "same" pads the even inputs of a strided convolution on the right and below only.
BLOG = ("convolutions padded same", "max-pool padded same", "stride by max-pool")

Differences = Collection[str]


def _conv(ins: int, outs: int, kernel: int, stride: int, differences: Differences) -> nn.Cell:
    if BLOG[0] in differences:
        return nn.Conv2d(ins, outs, kernel, stride, pad_mode="same")
    return PaddedConv2d(ins, outs, kernel, stride)


def _bn(channels: int) -> nn.Cell:
    # PyTorch's momentum 0.1 is the weight of the new value, MindSpore's 0.9 that of the old one.
    return nn.BatchNorm2d(channels, eps=1e-5, momentum=0.9)


def _downsample(ins: int, outs: int, stride: int, differences: Differences) -> nn.Cell | None:
    if stride == 1 and ins == outs:
        return None
    return nn.SequentialCell(_conv(ins, outs, 1, stride, differences), _bn(outs))


class ResidualBlockBase(nn.Cell):
    """Two 3x3 convolutions (ResNet-18 and -34): (B, in, H, W) -> (B, out, H/stride, W/stride)."""

    expansion = 1

    def __init__(
        self, in_channel: int, out_channel: int, stride: int = 1, *, differences: Differences = ()
    ):
        super().__init__()
        self.conv1 = _conv(in_channel, out_channel, 3, stride, differences)
        self.bn1 = _bn(out_channel)
        self.conv2 = _conv(out_channel, out_channel, 3, 1, differences)
        self.bn2 = _bn(out_channel)
        self.relu = nn.ReLU()
        self.downsample = _downsample(in_channel, out_channel, stride, differences)

    def construct(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu(out + shortcut)


class ResidualBlock(nn.Cell):
    """Bottleneck 1x1, 3x3, 1x1 (ResNet-50 and deeper): (B, in, H, W) -> (B, out, H/s, W/s)."""

    expansion = 4

    def __init__(
        self, in_channel: int, out_channel: int, stride: int = 1, *, differences: Differences = ()
    ):
        super().__init__()
        channel = out_channel // self.expansion
        by_pool = stride != 1 and BLOG[2] in differences
        self.conv1 = _conv(in_channel, channel, 1, 1, differences)
        self.bn1 = _bn(channel)
        self.conv2 = _conv(channel, channel, 3, 1 if by_pool else stride, differences)
        self.bn2 = _bn(channel)
        self.conv3 = _conv(channel, out_channel, 1, 1, differences)
        self.bn3 = _bn(out_channel)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(kernel_size=2, stride=2, pad_mode="same") if by_pool else None
        self.downsample = _downsample(in_channel, out_channel, stride, differences)

    def construct(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        if self.pool is not None:
            out = self.pool(out)
        out = self.bn3(self.conv3(out))
        return self.relu(out + shortcut)


class ResNet(nn.Cell):
    """Images (B, 3, H, W) -> logits (B, num_classes); H and W at least 32 for a useful depth.

    Args:
        block: ``ResidualBlock`` or ``ResidualBlockBase``.
        layer_nums: number of blocks in each of the four stages.
        in_channels, out_channels: of each stage; the stem returns the first of ``in_channels``.
        strides: stride of each stage's first block.
        num_classes: width of the logits.
        differences: names from ``BLOG``.

    Raises:
        InputError: if a list does not have four entries, or a difference is unknown.
    """

    def __init__(
        self,
        block: type[nn.Cell],
        layer_nums: Sequence[int],
        in_channels: Sequence[int],
        out_channels: Sequence[int],
        strides: Sequence[int],
        num_classes: int,
        *,
        differences: Differences = (),
    ):
        super().__init__()
        lists = layer_nums, in_channels, out_channels, strides
        if any(len(numbers) != 4 for numbers in lists):
            raise wrong("layer_nums, in_channels, out_channels, strides", lists, "4 entries each")
        for name in differences:
            choice("differences", name, BLOG)
        stem = in_channels[0]
        self.conv1 = _conv(3, stem, 7, 2, differences)
        self.bn1 = _bn(stem)
        self.relu = nn.ReLU()
        same = BLOG[1] in differences
        padding = {"pad_mode": "same"} if same else {"pad_mode": "pad", "padding": 1}
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, **padding)
        for number, (blocks, ins, outs, stride) in enumerate(zip(*lists, strict=True), start=1):
            cells = [block(ins, outs, stride, differences=differences)]
            cells += [block(outs, outs, differences=differences) for _ in range(blocks - 1)]
            setattr(self, f"layer{number}", nn.SequentialCell(*cells))
        self.avgpool = GlobalAveragePool()
        self.flatten = nn.Flatten()
        self.fc = nn.Dense(out_channels[3], num_classes)

    def construct(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.flatten(self.avgpool(x)))


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
    depth: int, class_num: int = 1000, *, width: float = 1.0, differences: Differences = ()
) -> ResNet:
    """Return the ResNet of ``depth`` 18, 34, 50, 101 or 152.

    Args:
        depth: number of layers with weights.
        class_num: width of the logits.
        width: factor of all channels; 1/2 takes a quarter of the arithmetic, for small images.
        differences: names from ``BLOG``.

    Raises:
        InputError: if the depth is unknown, or a number of channels is not a multiple of 4.
    """
    if depth not in _DEPTHS:
        raise wrong("depth", depth, f"one of {DEPTHS}")
    layer_nums, (block, *channels) = _DEPTHS[depth]
    stem = width * 64  # all other numbers of channels are multiples of it
    if stem < 4 or stem % 4:
        expected = "a factor that makes channels multiples of 4, as 0.25, 0.5, 2"
        raise wrong("width", width, expected, f" It makes {stem}")
    ins, outs = [[int(width * number) for number in numbers] for numbers in channels]
    return ResNet(block, layer_nums, ins, outs, [1, 2, 2, 2], class_num, differences=differences)


def resnet18(class_num: int = 1000) -> ResNet:
    """ResNet-18, as ``resnet`` returns it; 11 689 512 parameters with 1000 classes."""
    return resnet(18, class_num)


def resnet34(class_num: int = 1000) -> ResNet:
    """ResNet-34, as ``resnet`` returns it; 21 797 672 parameters with 1000 classes."""
    return resnet(34, class_num)


def resnet50(class_num: int = 1000) -> ResNet:
    """ResNet-50, as ``resnet`` returns it; 25 557 032 parameters with 1000 classes."""
    return resnet(50, class_num)


def resnet101(class_num: int = 1000) -> ResNet:
    """ResNet-101, as ``resnet`` returns it; 44 549 160 parameters with 1000 classes."""
    return resnet(101, class_num)


def resnet152(class_num: int = 1000) -> ResNet:
    """ResNet-152, as ``resnet`` returns it; 60 192 808 parameters with 1000 classes."""
    return resnet(152, class_num)


_WORDS = {"end_point": "fc", "down_sample_layer": "downsample", "bn1d": "bn1", "bn2d": "bn2"}


def own_name(name: str) -> str:
    """Return this network's name for a tutorial's Parameter or its moment; others are unchanged.

    ``e2.0`` and ``e2.1`` of a block are ``conv2`` and ``bn2`` here. A block with ``e2`` pools where
    this network has a stride: only ``resnet(..., differences=BLOG)`` computes the same function.
    """
    name = name.replace(".e2.0.", ".conv2.").replace(".e2.1.", ".bn2.")
    return ".".join(_WORDS.get(word, word) for word in name.split("."))


def pools(name: str) -> bool:
    """Return whether a tutorial's name belongs to a block that pools instead of striding."""
    return "e2" in name.split(".")
