"""Small networks for proofs and lessons."""

from mindspore import Tensor, nn, ops
from mindspore.common.initializer import Normal

from labkit.base.arguments import choice

NORMS = ("batch", "group", "none")


class NormNet(nn.Cell):
    """Convolution, one normalisation layer, dense: images (B, 1, 32, 32) -> logits (B, 10).

    ``norm`` is "batch" (nn.BatchNorm2d), "group" (nn.GroupNorm, 4 groups of 2 channels) or "none".
    """

    def __init__(self, norm: str = "batch"):
        super().__init__()
        choice("norm", norm, NORMS)
        self.conv = nn.Conv2d(1, 8, 5, stride=2, pad_mode="valid")
        layers = {"batch": lambda: nn.BatchNorm2d(8), "group": lambda: nn.GroupNorm(4, 8)}
        self.norm = layers.get(norm, nn.Identity)()
        self.pool = nn.AvgPool2d(2, 2)
        self.flatten = nn.Flatten()
        self.dense = nn.Dense(8 * 7 * 7, 10, weight_init=Normal(0.05))

    def construct(self, x: Tensor) -> Tensor:
        x = self.pool(ops.relu(self.norm(self.conv(x))))
        return self.dense(self.flatten(x))


class NextToken(nn.Cell):
    """Bigram language model: tokens (B, T) int32 -> logits (B, T, vocabulary) of the next token."""

    def __init__(self, vocabulary: int = 12, width: int = 8):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.dense = nn.Dense(width, vocabulary)

    def construct(self, tokens: Tensor) -> Tensor:
        return self.dense(self.embedding(tokens))
