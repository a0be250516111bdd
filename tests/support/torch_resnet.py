"""The PyTorch originals of ``labkit.nets.resnet``: torchvision's ResNets v1.5, for comparison only.

Written for this project, with torchvision's names: the state dicts of each load in the other.
Benchmarks and data_scripts/record_steps.py use it too.
"""

from collections.abc import Sequence

import torch
from torch import nn

_STAGES = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3),
           152: (3, 8, 36, 3)}  # fmt: skip


def _conv(in_channels: int, out_channels: int, kernel: int, stride: int = 1) -> nn.Module:
    padding = (kernel - 1) // 2
    return nn.Conv2d(in_channels, out_channels, kernel, stride, padding, bias=False)


def _downsample(in_channels: int, out_channels: int, stride: int) -> nn.Module | None:
    if stride == 1 and in_channels == out_channels:
        return None
    conv = _conv(in_channels, out_channels, 1, stride)
    return nn.Sequential(conv, nn.BatchNorm2d(out_channels))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions: (B, in, H, W) -> (B, width, H/stride, W/stride)."""

    expansion = 1

    def __init__(self, in_channels: int, width: int, stride: int = 1):
        super().__init__()
        self.conv1 = _conv(in_channels, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _downsample(in_channels, width, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu(out + shortcut)


class Bottleneck(nn.Module):
    """1x1, 3x3 with the stride, 1x1: (B, in, H, W) -> (B, 4 width, H/stride, W/stride)."""

    expansion = 4

    def __init__(self, in_channels: int, width: int, stride: int = 1):
        super().__init__()
        self.conv1 = _conv(in_channels, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _conv(width, width * self.expansion, 1)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _downsample(in_channels, width * self.expansion, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return self.relu(out + shortcut)


class ResNet(nn.Module):
    """Images (B, 3, H, W) -> logits (B, num_classes); ``stem`` channels go into the first stage."""

    def __init__(
        self,
        block: type[nn.Module],
        stages: Sequence[int],
        num_classes: int = 1000,
        stem: int = 64,
    ):
        super().__init__()
        self.conv1 = _conv(3, stem, 7, 2)
        self.bn1 = nn.BatchNorm2d(stem)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        channels = stem
        for number, blocks in enumerate(stages, start=1):
            width = stem * 2 ** (number - 1)
            stride = 1 if number == 1 else 2
            layers = [block(channels, width, stride)]
            channels = width * block.expansion
            layers += [block(channels, width) for _ in range(blocks - 1)]
            setattr(self, f"layer{number}", nn.Sequential(*layers))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(channels, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def resnet(depth: int, class_num: int = 1000, *, width: float = 1.0) -> ResNet:
    """Return the PyTorch ResNet of ``depth``: 18, 34, 50, 101 or 152."""
    block = BasicBlock if depth < 50 else Bottleneck
    return ResNet(block, _STAGES[depth], class_num, int(64 * width))
