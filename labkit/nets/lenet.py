"""LeNet-5 as the MindSpore tutorials write it (LeCun et al. 1998, with ReLU and max-pooling)."""

from mindspore import Tensor, nn
from mindspore.common.initializer import Normal

from labkit.nets.layers import TiledMaxPool2d


class LeNet5(nn.Cell):
    """Images (B, num_channel, 32, 32) -> logits (B, num_class).

    ``conv_bias`` is whether the convolutions have a bias. Without it (as MindSpore's Conv2d) there
    are 61 684 trainable parameters for 10 classes and 1 channel, with it 61 706.
    """

    def __init__(self, num_class: int = 10, num_channel: int = 1, *, conv_bias: bool = False):
        super().__init__()
        self.conv1 = nn.Conv2d(num_channel, 6, 5, pad_mode="valid", has_bias=conv_bias)
        self.conv2 = nn.Conv2d(6, 16, 5, pad_mode="valid", has_bias=conv_bias)
        self.fc1 = nn.Dense(16 * 5 * 5, 120, weight_init=Normal(0.02))
        self.fc2 = nn.Dense(120, 84, weight_init=Normal(0.02))
        self.fc3 = nn.Dense(84, num_class, weight_init=Normal(0.02))
        self.relu = nn.ReLU()
        self.max_pool2d = TiledMaxPool2d(2)
        self.flatten = nn.Flatten()

    def construct(self, x: Tensor) -> Tensor:
        # ReLU after pooling acts on a quarter of the numbers. The order of the two does not change
        # a bit of any gradient.
        x = self.relu(self.max_pool2d(self.conv1(x)))
        x = self.relu(self.max_pool2d(self.conv2(x)))
        x = self.flatten(x)
        x = self.relu(self.fc1(x))
        x = self.relu(self.fc2(x))
        return self.fc3(x)
