"""A small GPT: a decoder-only transformer, as "Language Models are Unsupervised Multitask Learners"
(Radford et al. 2019) describes it: learned positions, LayerNorm before each half of a block, exact
GELU, one matrix for the embedding and the output. No dropout.
"""

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from labkit.base.arguments import integer, wrong


class GPT(nn.Cell):
    """Tokens (B, T) int32 -> logits (B, T, vocabulary) of the next tokens, T <= ``length``.

    Args:
        vocabulary: number of different tokens.
        layers, width, heads: blocks, numbers of a position (D), heads of an attention, each of
            D / heads numbers; the defaults with 67 characters have 208 448 parameters.
        length: positions that it can see, at most.
        seed: of the weights, integer >= 0, whatever was drawn before: matrices are normal with
            standard deviation 0.02, or 0.02 / sqrt(2 layers) where a block adds to its input.

    A position sees itself and those before it. Labels that are padding (-100) need no mask in the
    network: ``TokenLossNet`` leaves them out, and no position sees the padding behind it. It runs
    in float16 as well (``precision="O2"``), and ``network.blocks[i].recompute()`` saves memory.

    Raises:
        InputError: if a number is out of its bounds, or ``heads`` does not divide ``width``.
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        layers: int = 4,
        width: int = 64,
        heads: int = 4,
        length: int = 64,
        seed: int = 1,
    ):
        super().__init__()
        for name, value in (("vocabulary", vocabulary), ("layers", layers), ("length", length)):
            integer(name, value)
        if integer("width", width) % integer("heads", heads):
            raise wrong("heads", heads, f"a divisor of width, {width}")
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = Parameter(Tensor(np.zeros((length, width), np.float32)), name="positions")
        self.blocks = nn.CellList([Block(width, heads, length) for _ in range(layers)])
        self.norm = nn.LayerNorm((width,), epsilon=1e-5)
        random = np.random.default_rng(integer("seed", seed, 0))
        for parameter in self.get_parameters():
            if parameter.ndim == 2:
                adds = parameter.name.endswith(("out.weight", "down.weight"))
                deviation = 0.02 / (2 * layers) ** 0.5 if adds else 0.02
                values = random.normal(0, deviation, parameter.shape)
                parameter.set_data(Tensor(values.astype(np.float32)))

    def construct(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        # The table's type is not that of x where the layers compute in float16.
        return ops.matmul(x, ops.cast(self.embedding.embedding_table, x.dtype).T)


class Block(nn.Cell):
    """x (B, T, D) -> x + attention(norm(x)), and to that + mlp(norm(that))."""

    def __init__(self, width: int, heads: int, length: int):
        super().__init__()
        self.norm1 = nn.LayerNorm((width,), epsilon=1e-5)
        self.attention = Attention(width, heads, length)
        self.norm2 = nn.LayerNorm((width,), epsilon=1e-5)
        self.up = nn.Dense(width, 4 * width, bias_init="zeros")
        self.down = nn.Dense(4 * width, width, bias_init="zeros")

    def construct(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(ops.gelu(self.up(self.norm2(x)), approximate="none"))


class Attention(nn.Cell):
    """Causal self-attention: x (B, T, D) -> softmax(Q K^T / sqrt(D / heads) + mask) V, projected.

    ``qkv`` is one Dense layer of 3 D outputs: queries, keys and values, one below the other.
    """

    def __init__(self, width: int, heads: int, length: int):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.qkv = nn.Dense(width, 3 * width, bias_init="zeros")
        self.out = nn.Dense(width, width, bias_init="zeros")
        # 0 where a row (the position that looks) sees a column. float16 holds -1e4, and not -1e9.
        self.mask = Tensor(-1e4 * np.triu(np.ones((length, length), np.float32), 1))

    def construct(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        qkv = self.qkv(x).reshape(batch, time, 3, self.heads, self.size)
        q, k, v = ops.transpose(qkv, (2, 0, 3, 1, 4))  # (B, heads, T, size) each
        scores = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) * self.size**-0.5
        weights = ops.softmax(scores + self.mask[:time, :time], -1)
        seen = ops.matmul(ops.cast(weights, v.dtype), v)
        return self.out(ops.transpose(seen, (0, 2, 1, 3)).reshape(batch, time, width))
