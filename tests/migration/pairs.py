"""Sixteen pairs of one network, in MindSpore and in PyTorch: no difference may be found in them.

PyTorch's are those of torchvision and transformers, made from configurations, and four of its own
layers. Dropout and stochastic depth are off: they draw numbers. Embeddings have no ``padding_idx``,
whose row PyTorch does not train and MindSpore does.
"""

from collections import OrderedDict
from functools import partial
from typing import NamedTuple

import mindspore as ms
import numpy as np
import torch
from mindspore import Parameter, Tensor, nn, ops
from torch.nn import functional as F

from labkit.migration.names import Rule
from labkit.migration.rules import BERT, GPT2, LLAMA, VIT
from labkit.nets import gpt
from labkit.nets.resnet import DEPTHS, resnet
from tests.support.torchvision_on_cpu import models  # before transformers, which imports it

import transformers  # isort: skip

CLASSES, WORDS, WIDTH, HEADS, TIME = 5, 31, 16, 4, 7
BATCH_NORM = {"eps": 1e-5, "momentum": 0.9}


class Pair(NamedTuple):
    """One function twice, and a batch for it; the losses are the two below."""

    network: nn.Cell
    module: torch.nn.Module
    inputs: tuple[np.ndarray, ...]
    labels: np.ndarray
    rules: tuple[Rule, ...] = ()


def loss(logits, labels):
    """Return the mean cross entropy; logits (B, classes, ...), or (B, T, classes) of texts."""
    logits = logits.reshape(-1, logits.shape[-1]) if logits.ndim == 3 else logits
    return ops.cross_entropy(logits, labels.reshape(-1) if labels.ndim == 2 else labels)


def torch_loss(output, labels):
    logits = getattr(output, "logits", output)
    logits = logits.flatten(0, 1) if logits.ndim == 3 else logits
    return F.cross_entropy(logits, (labels.flatten() if labels.ndim == 2 else labels).long())


def pair(name, seed):
    """Return the ``Pair`` of that name; what PyTorch leaves at 0 or 1 is drawn as well."""
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    made = PAIRS[name](random)
    for tensor, value in made.module.state_dict().items():
        noise = torch.from_numpy(random.normal(size=tuple(value.shape)))
        if tensor.endswith("running_var"):
            value.copy_(torch.exp(0.3 * noise))
        elif value.is_floating_point() and (value.ndim < 2 or "layer_scale" in tensor):
            value.add_(0.1 * noise)
    return made


def of_images(random, network, module, side=64, pixels=(), rules=()):
    images = random.normal(size=(4, 3, side, side)).astype(np.float32)
    labels = random.integers(0, CLASSES, (4, *pixels)).astype(np.int32)
    return Pair(network, module, (images,), labels, rules)


def of_words(random, network, module, rules=(), more=(), labels=(4,)):
    words = random.integers(0, WORDS, (4, TIME)).astype(np.int32)
    labels = random.integers(0, CLASSES, labels).astype(np.int32)
    return Pair(network, module, (words, *more), labels, rules)


# --- images ----------------------------------------------------------------------------------


def conv(ins, outs, kernel, stride=1, groups=1, bias=False):
    padding = {"pad_mode": "pad", "padding": kernel // 2}
    return nn.Conv2d(ins, outs, kernel, stride, **padding, group=groups, has_bias=bias)


def patches(ins, outs, size):
    return nn.Conv2d(ins, outs, size, size, pad_mode="valid", has_bias=True)


def conv_norm(ins, outs, kernel, stride=1, groups=1, act=None):
    cells = [conv(ins, outs, kernel, stride, groups), nn.BatchNorm2d(outs, **BATCH_NORM)]
    return nn.SequentialCell(cells + ([act()] if act else []))


class Residual(nn.Cell):
    """x + body(x), or body(x) where the shape changes; the cells of the body go by ``name``."""

    def __init__(self, name, cells, same):
        super().__init__()
        self.name, self.same = name, same
        self.insert_child_to_cell(name, nn.SequentialCell(cells))

    def construct(self, x):
        y = getattr(self, self.name)(x)
        return x + y if self.same else y


class Classifier(nn.Cell):
    """Images -> logits: ``features``, the mean over all places, ``classifier``."""

    def __init__(self, features, *classifier):
        super().__init__()
        self.features = nn.SequentialCell(features)
        self.classifier = nn.SequentialCell(*classifier)

    def construct(self, x):
        return self.classifier(ops.mean(self.features(x), (2, 3), keep_dims=True))


def resnet_of(depth, random):
    module = getattr(models, f"resnet{depth}")(num_classes=CLASSES)
    return of_images(random, resnet(depth, CLASSES), module)


def inverted_residuals(setting, act, name, last):
    """Return the stages of blocks of both networks below; ``last`` makes a block's last cells."""
    stages, ins = [], 32
    for factor, kernel, first, outs, blocks in setting:
        stages.append([])
        for stride in (first, *[1] * (blocks - 1)):
            hidden = factor * ins
            cells = [conv_norm(ins, hidden, 1, act=act)] if factor > 1 else []
            cells += [conv_norm(hidden, hidden, kernel, stride, hidden, act)]
            cells += last(ins, hidden, outs)
            stages[-1].append(Residual(name, cells, stride == 1 and ins == outs))
            ins = outs
    ends = conv_norm(3, 32, 3, 2, act=act), conv_norm(ins, 1280, 1, act=act)
    return stages, ends


def mobilenet_v2(random):
    """With fewer blocks and channels."""
    setting = [[1, 3, 1, 8, 1], [6, 3, 2, 8, 2], [6, 3, 2, 16, 2], [6, 3, 1, 24, 1]]
    theirs = [[factor, outs, blocks, stride] for factor, _, stride, outs, blocks in setting]
    module = models.MobileNetV2(CLASSES, 1.0, theirs, dropout=0.0)

    def last(ins, hidden, outs):
        return [conv(hidden, outs, 1), nn.BatchNorm2d(outs, **BATCH_NORM)]

    stages, (first, end) = inverted_residuals(setting, nn.ReLU6, "conv", last)
    network = Classifier([first, *sum(stages, []), end], nn.Flatten(), nn.Dense(1280, CLASSES))
    return of_images(random, network, module, 32)


class SqueezeExcitation(nn.Cell):
    def __init__(self, channels, hidden):
        super().__init__()
        self.fc1, self.fc2 = patches(channels, hidden, 1), patches(hidden, channels, 1)
        self.activation, self.scale_activation = nn.SiLU(), nn.Sigmoid()

    def construct(self, x):
        scale = self.activation(self.fc1(ops.mean(x, (2, 3), keep_dims=True)))
        return self.scale_activation(self.fc2(scale)) * x


def efficientnet_b0(random):
    off = {"stochastic_depth_prob": 0.0, "dropout": 0.0}
    module = models.efficientnet_b0(num_classes=CLASSES, **off)
    # factor of the hidden channels, kernel, stride, channels, blocks
    setting = [(1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3),
               (6, 5, 1, 112, 3), (6, 5, 2, 192, 4), (6, 3, 1, 320, 1)]  # fmt: skip

    def last(ins, hidden, outs):
        return [SqueezeExcitation(hidden, ins // 4), conv_norm(hidden, outs, 1)]

    stages, (first, end) = inverted_residuals(setting, nn.SiLU, "block", last)
    features = [first, *map(nn.SequentialCell, stages), end]
    return of_images(random, Classifier(features, nn.Flatten(), nn.Dense(1280, CLASSES)), module)


class LayerNorm2d(nn.LayerNorm):
    """LayerNorm over the channels of (B, C, H, W)."""

    def construct(self, x):
        return ops.permute(super().construct(ops.permute(x, (0, 2, 3, 1))), (0, 3, 1, 2))


class ScaledResidual(nn.Cell):
    def __init__(self, width):
        super().__init__()
        self.block = nn.SequentialCell(
            conv(width, width, 7, groups=width, bias=True),
            Permute((0, 2, 3, 1)),
            nn.LayerNorm((width,), epsilon=1e-6),
            nn.Dense(width, 4 * width),
            nn.GELU(approximate=False),
            nn.Dense(4 * width, width),
            Permute((0, 3, 1, 2)),
        )
        self.layer_scale = Parameter(Tensor(np.ones((width, 1, 1), np.float32)))

    def construct(self, x):
        return x + self.layer_scale * self.block(x)


class Permute(nn.Cell):
    def __init__(self, axes):
        super().__init__()
        self.axes = axes

    def construct(self, x):
        return ops.permute(x, self.axes)


def convnext(random):
    """ConvNeXt with fewer blocks and channels than its smallest."""
    from torchvision.models.convnext import CNBlockConfig

    setting = [(16, 32, 1), (32, 48, 2), (48, None, 1)]
    module = models.ConvNeXt([CNBlockConfig(*each) for each in setting], num_classes=CLASSES)
    norm = partial(LayerNorm2d, epsilon=1e-6)
    features = [nn.SequentialCell(patches(3, 16, 4), norm((16,)))]
    for width, outs, blocks in setting:
        features.append(nn.SequentialCell([ScaledResidual(width) for _ in range(blocks)]))
        if outs:
            features.append(nn.SequentialCell(norm((width,)), patches(width, outs, 2)))
    network = Classifier(features, norm((48,)), nn.Flatten(), nn.Dense(48, CLASSES))
    return of_images(random, network, module)


class UNet(nn.Cell):
    """Down once and up again, with a connection across; a label for each pixel."""

    concat = staticmethod(ops.concat)

    def __init__(self):
        super().__init__()
        self.left = conv_norm(3, 8, 3, act=nn.ReLU)
        self.pool, self.bottom = nn.MaxPool2d(2, 2), conv_norm(8, 16, 3, act=nn.ReLU)
        self.up = nn.Conv2dTranspose(16, 8, 2, 2, pad_mode="valid", has_bias=True)
        self.right, self.head = conv_norm(16, 8, 3, act=nn.ReLU), patches(8, CLASSES, 1)

    def construct(self, x):
        left = self.left(x)
        up = self.up(self.bottom(self.pool(left)))
        return self.head(self.right(self.concat((left, up), 1)))


class TorchUNet(torch.nn.Module):
    concat, forward = staticmethod(torch.cat), UNet.construct

    def __init__(self):
        super().__init__()
        t = torch.nn
        for name, ins, outs in (("left", 3, 8), ("bottom", 8, 16), ("right", 16, 8)):
            conv = t.Conv2d(ins, outs, 3, padding=1, bias=False)
            setattr(self, name, t.Sequential(conv, t.BatchNorm2d(outs), t.ReLU(inplace=True)))
        self.pool, self.up = t.MaxPool2d(2), t.ConvTranspose2d(16, 8, 2, 2)
        self.head = t.Conv2d(8, CLASSES, 1)


def unet(random):
    return of_images(random, UNet(), TorchUNet(), 16, (16, 16))


def biased_cnn(random):
    """A bias before BatchNorm changes nothing, and its gradient is rounding alone."""
    t, cells, modules = torch.nn, [], []
    for ins, outs in ((3, 8), (8, 16)):
        cells += [conv(ins, outs, 3, bias=True), nn.BatchNorm2d(outs, **BATCH_NORM), nn.ReLU()]
        modules += [t.Conv2d(ins, outs, 3, padding=1), t.BatchNorm2d(outs), t.ReLU(inplace=True)]
    cells += [nn.MaxPool2d(2, 2), nn.Flatten(), nn.Dense(1024, CLASSES)]
    modules += [t.MaxPool2d(2), t.Flatten(), t.Linear(1024, CLASSES)]
    return of_images(random, nn.SequentialCell(cells), t.Sequential(*modules), 16)


# --- texts, attention ------------------------------------------------------------------------


class LSTM(nn.Cell):
    """Words (B, T) -> logits: two layers in both directions, and the mean over the time."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.lstm = nn.LSTM(WIDTH, 8, 2, batch_first=True, bidirectional=True)
        self.fc = nn.Dense(16, CLASSES)

    def construct(self, words):
        return self.fc(self.lstm(self.embedding(words))[0].mean(1))


class TorchLSTM(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, WIDTH)
        self.lstm = torch.nn.LSTM(WIDTH, 8, 2, batch_first=True, bidirectional=True)
        self.fc = torch.nn.Linear(16, CLASSES)

    forward = LSTM.construct


def lstm(random):
    return of_words(random, LSTM(), TorchLSTM())


def heads(x, count):
    return x.reshape(*x.shape[:2], count, -1).swapaxes(1, 2)  # (B, count, T, size)


def attend(q, k, v, mask=None):
    """Return softmax(q k^T / sqrt(size) + mask) v, its heads side by side: (B, T, width)."""
    scores = ops.matmul(q, k.swapaxes(2, 3)) * q.shape[-1] ** -0.5
    seen = ops.matmul(ops.softmax(scores if mask is None else scores + mask, -1), v)
    return seen.swapaxes(1, 2).reshape(len(q), q.shape[2], -1)


class Block(nn.Cell):
    """Attention, then a feed-forward part; LayerNorm before each, or behind each sum (BERT)."""

    def __init__(self, eps, first=True):
        super().__init__()
        self.first = first
        for name in ("query", "key", "value", "out"):
            setattr(self, name, nn.Dense(WIDTH, WIDTH))
        self.norm1, self.norm2 = (nn.LayerNorm((WIDTH,), epsilon=eps) for _ in range(2))
        self.up, self.down = nn.Dense(WIDTH, 2 * WIDTH), nn.Dense(2 * WIDTH, WIDTH)
        self.act = nn.GELU(approximate=False)

    def attention(self, x, mask):
        q, k, v = (heads(part(x), HEADS) for part in (self.query, self.key, self.value))
        return self.out(attend(q, k, v, mask))

    def construct(self, x, mask=None):
        if self.first:
            x = x + self.attention(self.norm1(x), mask)
            return x + self.down(self.act(self.up(self.norm2(x))))
        x = self.norm1(x + self.attention(x, mask))
        return self.norm2(x + self.down(self.act(self.up(x))))


class TorchBlock(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for name in ("query", "key", "value", "out"):
            setattr(self, name, torch.nn.Linear(WIDTH, WIDTH))
        self.norm1, self.norm2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)
        self.act = torch.nn.GELU()

    def forward(self, x):
        y = self.norm1(x)
        q, k, v = (heads(part(y), HEADS) for part in (self.query, self.key, self.value))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).swapaxes(1, 2).flatten(2))
        return x + self.down(self.act(self.up(self.norm2(x))))


def attention(random):
    """softmax ignores the bias of the keys, and its gradient is rounding alone."""
    x = random.normal(size=(4, TIME, WIDTH)).astype(np.float32)
    labels = random.integers(0, WIDTH, (4, TIME)).astype(np.int32)
    return Pair(Block(1e-5), TorchBlock(), (x,), labels)


def renamed(names, within=""):
    """Return rules from names of transformers to our own, within layers or at the head."""
    if within:
        return [Rule(rf"^{within}\.(\d+)\.{old}", rf"blocks.\1.{new}") for old, new in names]
    return [Rule(f"^{old}", new) for old, new in names]


LAYER = "encoder.layer"
SETTING = dict(
    hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=HEADS, intermediate_size=2 * WIDTH,
    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.2,
    num_labels=CLASSES,
)  # fmt: skip


class Bert(nn.Cell):
    """Words, which of them count, sentences, (B, T) each -> logits (B, classes)."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(12, WIDTH)
        self.sentences, self.norm = nn.Embedding(2, WIDTH), nn.LayerNorm((WIDTH,), epsilon=1e-12)
        self.blocks = nn.CellList([Block(1e-12, first=False) for _ in range(2)])
        self.pooler, self.tanh = nn.Dense(WIDTH, WIDTH), nn.Tanh()
        self.classifier = nn.Dense(WIDTH, CLASSES)

    def construct(self, words, counts, sentences):
        places = ops.arange(words.shape[1])
        x = self.norm(self.words(words) + self.sentences(sentences) + self.places(places))
        for block in self.blocks:
            x = block(x, (1.0 - counts[:, None, None].astype(x.dtype)) * -1e9)
        return self.classifier(self.tanh(self.pooler(x[:, 0])))


def bert(random):
    sizes = {"vocab_size": WORDS, "max_position_embeddings": 12, "pad_token_id": None}
    module = transformers.BertForSequenceClassification(transformers.BertConfig(**SETTING, **sizes))
    counts = (np.arange(TIME) < [[7], [5], [6], [3]]).astype(np.int32)
    sentences = (np.arange(TIME) >= [[3], [2], [4], [1]]).astype(np.int32)
    outer = [
        ("embeddings.word_embeddings", "words"),
        ("embeddings.LayerNorm", "norm"),
        ("embeddings.position_embeddings", "places"),
        ("pooler.dense", "pooler"),
        ("embeddings.token_type_embeddings", "sentences"),
    ]
    inner = [("attention.self.", ""), ("attention.output.dense", "out"), ("output.dense", "down"),
             ("attention.output.LayerNorm", "norm1"), ("intermediate.dense", "up"),
             ("output.LayerNorm", "norm2")]  # fmt: skip
    rules = (*BERT, *renamed(outer), *renamed(inner, LAYER))
    return of_words(random, Bert(), module, rules, (counts, sentences))


def gpt2(random):
    """labkit's own GPT, whose GELU is the exact one."""
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=12, n_embd=WIDTH, n_layer=2, n_head=HEADS, use_cache=False,
        activation_function="gelu", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        initializer_range=0.2,
    )  # fmt: skip
    inner = [
        ("ln_1", "norm1"),
        ("attn.c_attn", "attention.qkv"),
        ("mlp.c_fc", "up"),
        ("ln_2", "norm2"),
        ("attn.c_proj", "attention.out"),
        ("mlp.c_proj", "down"),
    ]
    outer = [("wte", "embedding"), ("wpe.weight", "positions"), ("ln_f", "norm")]
    rules = (*GPT2, *renamed(inner, "h"), *renamed(outer))
    network = gpt.GPT(WORDS, layers=2, width=WIDTH, heads=HEADS, length=12)
    return of_words(random, network, transformers.GPT2LMHeadModel(config), rules, (), (4, TIME))


class ViT(nn.Cell):
    """Images (B, 3, 16, 16) -> logits, from 16 patches of 4 x 4 and a token of the class."""

    def __init__(self):
        super().__init__()
        self.patches, self.classifier = patches(3, WIDTH, 4), nn.Dense(WIDTH, CLASSES)
        self.token = Parameter(Tensor(np.zeros((1, 1, WIDTH), np.float32)))
        self.places = Parameter(Tensor(np.zeros((1, 17, WIDTH), np.float32)))
        self.blocks = nn.CellList([Block(1e-12) for _ in range(2)])
        self.norm = nn.LayerNorm((WIDTH,), epsilon=1e-12)

    def construct(self, images):
        x = self.patches(images).reshape(len(images), WIDTH, -1).swapaxes(1, 2)
        token = ops.broadcast_to(self.token, (len(images), 1, WIDTH))
        x = ops.concat((token, x), 1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.classifier(self.norm(x)[:, 0])


def vit(random):
    config = transformers.ViTConfig(**SETTING, image_size=16, patch_size=4)
    outer = [
        ("embeddings.cls_token", "token"),
        ("embeddings.position_embeddings", "places"),
        ("embeddings.patch_embeddings.projection", "patches"),
        ("layernorm", "norm"),
    ]
    inner = [("attention.attention.", ""), ("attention.output.dense", "out"),
             ("intermediate.dense", "up"), ("output.dense", "down"),
             ("layernorm_before", "norm1"), ("layernorm_after", "norm2")]  # fmt: skip
    rules = (*VIT, *renamed(outer), *renamed(inner, LAYER))
    return of_images(random, ViT(), transformers.ViTForImageClassification(config), 16, (), rules)


class RMSNorm(nn.Cell):
    def __init__(self):
        super().__init__()
        self.weight = Parameter(Tensor(np.ones(WIDTH, np.float32)))

    def construct(self, x):
        return x * ops.rsqrt((x * x).mean(-1, True) + 1e-6) * self.weight


def rotated(x):
    """Rotate the pairs (i, i + half) of x (B, heads, T, size), each by T angles of its own."""
    time, half = x.shape[2], x.shape[3] // 2
    angles = np.outer(np.arange(time), 10000.0 ** -(np.arange(half) / half))
    cos, sin = Tensor(np.cos(angles), ms.float32), Tensor(np.sin(angles), ms.float32)
    a, b = x[..., :half], x[..., half:]
    return ops.concat((a * cos - b * sin, b * cos + a * sin), -1)


class LlamaLayer(nn.Cell):
    """Four heads of queries, two of keys and values; SwiGLU."""

    def __init__(self):
        super().__init__()
        sizes = [("q", WIDTH), ("k", 8), ("v", 8), ("o", WIDTH), ("gate", 24), ("up", 24)]
        for name, size in sizes:
            setattr(self, f"{name}_proj", nn.Dense(WIDTH, size, has_bias=False))
        self.down_proj, self.act_fn = nn.Dense(24, WIDTH, has_bias=False), nn.SiLU()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(), RMSNorm()

    def construct(self, x):
        y = self.input_layernorm(x)
        q, k = rotated(heads(self.q_proj(y), 4)), rotated(heads(self.k_proj(y), 2))
        k, v = (ops.repeat_interleave(each, 2, 1) for each in (k, heads(self.v_proj(y), 2)))
        mask = Tensor(np.triu(np.full((TIME, TIME), -1e9, np.float32), 1))
        x = x + self.o_proj(attend(q, k, v, mask))
        y = self.post_attention_layernorm(x)
        return x + self.down_proj(self.act_fn(self.gate_proj(y)) * self.up_proj(y))


def llama(random):
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, use_cache=False, initializer_range=0.2,
    )  # fmt: skip
    network = nn.SequentialCell(OrderedDict(
        embed_tokens=nn.Embedding(WORDS, WIDTH), layers=nn.SequentialCell(LlamaLayer(), LlamaLayer()),
        norm=RMSNorm(), lm_head=nn.Dense(WIDTH, WORDS, has_bias=False),
    ))  # fmt: skip
    rules = (*LLAMA, Rule(r"\.(?:self_attn|mlp)\.", "."))
    module = transformers.LlamaForCausalLM(config)
    return of_words(random, network, module, rules, (), (4, TIME))


CONVOLUTIONS = mobilenet_v2, efficientnet_b0, convnext, unet, biased_cnn
PAIRS = {f"resnet{depth}": partial(resnet_of, depth) for depth in DEPTHS} | {
    build.__name__: build for build in (*CONVOLUTIONS, lstm, attention, bert, gpt2, vit, llama)
}
