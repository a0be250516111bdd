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
from labkit.nets.layers import GlobalAveragePool
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
    if logits.ndim == 3:
        logits, labels = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    return ops.cross_entropy(logits, labels)


def torch_loss(output, labels):
    logits = getattr(output, "logits", output)
    if logits.ndim == 3:
        logits, labels = logits.flatten(0, 1), labels.flatten()
    return F.cross_entropy(logits, labels.long())


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


def twins(function, ours, theirs):
    """Return a network and a module of one function of their layers, which go by these names."""
    network = type("Network", (nn.Cell,), {"construct": function})()
    module = type("Module", (torch.nn.Module,), {"forward": function})()
    for made, layers in ((network, ours), (module, theirs)):
        for name, layer in layers.items():
            setattr(made, name, layer)
    return network, module


# --- images ----------------------------------------------------------------------------------


def conv(ins, outs, kernel, stride=1, groups=1, bias=False):
    padding = {"pad_mode": "pad", "padding": kernel // 2}
    return nn.Conv2d(ins, outs, kernel, stride, **padding, group=groups, has_bias=bias)


def patches(ins, outs, size):
    return nn.Conv2d(ins, outs, size, size, pad_mode="valid", has_bias=True)


def conv_norm(ins, outs, kernel, stride=1, groups=1, act=None):
    cells = [conv(ins, outs, kernel, stride, groups), nn.BatchNorm2d(outs, **BATCH_NORM)]
    return nn.SequentialCell(cells + ([act()] if act else []))


class Residual(nn.SequentialCell):
    def construct(self, x):
        return x + super().construct(x)


class SqueezeExcitation(nn.SequentialCell):
    def __init__(self, channels, hidden):
        down, up = patches(channels, hidden, 1), patches(hidden, channels, 1)
        cells = {"avgpool": GlobalAveragePool(), "fc1": down, "activation": nn.SiLU(), "fc2": up}
        super().__init__(OrderedDict(cells, scale_activation=nn.Sigmoid()))

    def construct(self, x):
        return x * super().construct(x)


def classifier(features, *head):
    parts = {"features": nn.SequentialCell(features), "avgpool": GlobalAveragePool()}
    return nn.SequentialCell(OrderedDict(parts, classifier=nn.SequentialCell(*head)))


def resnet_of(depth, random):
    module = getattr(models, f"resnet{depth}")(num_classes=CLASSES)
    return of_images(random, resnet(depth, CLASSES), module)


def inverted_residuals(random, module, setting, act, stages, last, rules):
    """Return the pair of a network of such blocks; ``last`` makes the last cells of each."""
    features, ins = [conv_norm(3, 32, 3, 2, act=act)], 32
    for factor, kernel, first, outs, count in setting:
        blocks = []
        for stride in (first, *[1] * (count - 1)):
            hidden = factor * ins
            cells = [conv_norm(ins, hidden, 1, act=act)] if factor > 1 else []
            cells += [conv_norm(hidden, hidden, kernel, stride, hidden, act)]
            kind = Residual if stride == 1 and ins == outs else nn.SequentialCell
            blocks.append(kind(cells + last(ins, hidden, outs)))
            ins = outs
        features += [nn.SequentialCell(blocks)] if stages else blocks
    features.append(conv_norm(ins, 1280, 1, act=act))
    network = classifier(features, nn.Flatten(), nn.Dense(1280, CLASSES))
    return of_images(random, network, module, 32, (), rules)


def mobilenet_v2(random):
    """With fewer blocks and channels."""
    setting = [[1, 3, 1, 8, 1], [6, 3, 2, 8, 2], [6, 3, 2, 16, 1]]
    theirs = [[factor, outs, blocks, stride] for factor, _, stride, outs, blocks in setting]
    module = models.MobileNetV2(CLASSES, 1.0, theirs, dropout=0.0)
    rules = (Rule(r"^(features\.\d+)\.conv\.", r"\1."),)

    def last(ins, hidden, outs):
        return [conv(hidden, outs, 1), nn.BatchNorm2d(outs, **BATCH_NORM)]

    return inverted_residuals(random, module, setting, nn.ReLU6, False, last, rules)


def efficientnet_b0(random):
    off = {"stochastic_depth_prob": 0.0, "dropout": 0.0}
    module = models.efficientnet_b0(num_classes=CLASSES, **off)
    # factor of the hidden channels, kernel, stride, channels, blocks
    setting = [(1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3),
               (6, 5, 1, 112, 3), (6, 5, 2, 192, 4), (6, 3, 1, 320, 1)]  # fmt: skip
    rules = (Rule(r"\.block\.", "."),)

    def last(ins, hidden, outs):
        return [SqueezeExcitation(hidden, ins // 4), conv_norm(hidden, outs, 1)]

    return inverted_residuals(random, module, setting, nn.SiLU, True, last, rules)


class LayerNorm2d(nn.LayerNorm):
    """LayerNorm over the channels of (B, C, H, W)."""

    def construct(self, x):
        return ops.permute(super().construct(ops.permute(x, (0, 2, 3, 1))), (0, 3, 1, 2))


class ScaledResidual(nn.Cell):
    def __init__(self, width):
        super().__init__()
        cells = [conv(width, width, 7, groups=width, bias=True), nn.Identity()]
        cells += [nn.LayerNorm((width,), epsilon=1e-6), nn.Dense(width, 4 * width)]
        cells += [nn.GELU(approximate=False), nn.Dense(4 * width, width)]
        self.block = nn.CellList(cells)
        self.layer_scale = Parameter(Tensor(np.ones((width, 1, 1), np.float32)))

    def construct(self, x):
        first, _, *others = self.block
        y = ops.permute(first(x), (0, 2, 3, 1))
        for cell in others:
            y = cell(y)
        return x + self.layer_scale * ops.permute(y, (0, 3, 1, 2))


def convnext(random):
    """ConvNeXt with fewer blocks and channels than its smallest."""
    from torchvision.models.convnext import CNBlockConfig

    setting = [(16, 32, 1), (32, None, 2)]
    module = models.ConvNeXt([CNBlockConfig(*each) for each in setting], num_classes=CLASSES)
    norm = partial(LayerNorm2d, epsilon=1e-6)
    features = [nn.SequentialCell(patches(3, 16, 4), norm((16,)))]
    for width, outs, blocks in setting:
        features.append(nn.SequentialCell([ScaledResidual(width) for _ in range(blocks)]))
        if outs:
            features.append(nn.SequentialCell(norm((width,)), patches(width, outs, 2)))
    network = classifier(features, norm((32,)), nn.Flatten(), nn.Dense(32, CLASSES))
    return of_images(random, network, module)


def unet(random):
    """Down once and up again, with a connection across; a label for each pixel."""

    def function(self, x):
        left = self.left(x)
        up = self.up(self.bottom(self.pool(left)))
        return self.head(self.right(self.concat((left, up), 1)))

    def theirs(ins, outs):
        conv = t.Conv2d(ins, outs, 3, padding=1, bias=False)
        return t.Sequential(conv, t.BatchNorm2d(outs), t.ReLU(inplace=True))

    t, up = torch.nn, nn.Conv2dTranspose(16, 8, 2, 2, pad_mode="valid", has_bias=True)
    convs = {"left": (3, 8), "bottom": (8, 16), "right": (16, 8)}
    a = {name: conv_norm(*size, 3, act=nn.ReLU) for name, size in convs.items()}
    b = {name: theirs(*size) for name, size in convs.items()}
    a |= {"pool": nn.MaxPool2d(2, 2), "up": up, "head": patches(8, CLASSES, 1)}
    b |= {"pool": t.MaxPool2d(2), "up": t.ConvTranspose2d(16, 8, 2, 2)}
    a, b = a | {"concat": ops.concat}, b | {"concat": torch.cat, "head": t.Conv2d(8, CLASSES, 1)}
    return of_images(random, *twins(function, a, b), 16, (16, 16))


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


def lstm(random):
    """Two layers in both directions, and the mean over the time."""

    def function(self, words):
        return self.fc(self.lstm(self.embedding(words))[0].mean(1))

    t, sizes, both = torch.nn, (WIDTH, 8, 2), {"batch_first": True, "bidirectional": True}
    ours = {"embedding": nn.Embedding(WORDS, WIDTH), "fc": nn.Dense(16, CLASSES)}
    theirs = {"embedding": t.Embedding(WORDS, WIDTH), "fc": t.Linear(16, CLASSES)}
    ours["lstm"], theirs["lstm"] = nn.LSTM(*sizes, **both), t.LSTM(*sizes, **both)
    return of_words(random, *twins(function, ours, theirs))


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
        self.first, self.act = first, nn.GELU(approximate=False)
        for name in ("query", "key", "value", "out"):
            setattr(self, name, nn.Dense(WIDTH, WIDTH))
        self.norm1, self.norm2 = (nn.LayerNorm((WIDTH,), epsilon=eps) for _ in range(2))
        self.up, self.down = nn.Dense(WIDTH, 2 * WIDTH), nn.Dense(2 * WIDTH, WIDTH)

    def attention(self, x, mask):
        q, k, v = (heads(part(x), HEADS) for part in (self.query, self.key, self.value))
        return self.out(attend(q, k, v, mask))

    def construct(self, x, mask=None):
        if self.first:
            x = x + self.attention(self.norm1(x), mask)
            return x + self.down(self.act(self.up(self.norm2(x))))
        x = self.norm1(x + self.attention(x, mask))
        return self.norm2(x + self.down(self.act(self.up(x))))


def attention(random):
    """softmax ignores the bias of the keys, and its gradient is rounding alone."""
    options = {"activation": "gelu", "batch_first": True, "norm_first": True, "dropout": 0.0}
    module = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, **options)
    split = r"query.\1", r"key.\1", r"value.\1"
    names = renamed(self_attn__out_proj="out", linear1="up", linear2="down")
    rules = (Rule(r"^self_attn\.in_proj_(.*)", split), *names)
    x = random.normal(size=(4, TIME, WIDTH)).astype(np.float32)
    return Pair(Block(1e-5), module, (x,), random.integers(0, WIDTH, (4, TIME)), rules)


def renamed(**names):
    """Return rules for parts of names, without their ends; "__" is a dot."""
    dotted = ((old.replace("__", r"\."), new) for old, new in names.items())
    return tuple(Rule(rf"(^|\.){old}(\.|$)", rf"\1{new}\2") for old, new in dotted)


# The names of both encoders' layers become those of ``Block``.
LAYERS = (
    Rule(r"^encoder\.layer", "blocks"),
    Rule(r"\.attention\.(?:self|attention)\.", "."),
    *renamed(attention__output__dense="out", intermediate__dense="up", output__dense="down"),
)
# All four take these names, and store those that are another's.
SETTING = dict(
    vocab_size=WORDS, hidden_size=WIDTH, num_hidden_layers=1, num_attention_heads=HEADS,
    intermediate_size=2 * WIDTH, max_position_embeddings=12, hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    initializer_range=0.2, num_labels=CLASSES, pad_token_id=None, use_cache=False,
)  # fmt: skip


class Bert(nn.Cell):
    """Words, which of them count, sentences, (B, T) each -> logits (B, classes)."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(12, WIDTH)
        self.sentences, self.norm = nn.Embedding(2, WIDTH), nn.LayerNorm((WIDTH,), epsilon=1e-12)
        self.blocks = nn.CellList([Block(1e-12, first=False)])
        self.pool, self.tanh = nn.Dense(WIDTH, WIDTH), nn.Tanh()
        self.classifier = nn.Dense(WIDTH, CLASSES)

    def construct(self, words, counts, sentences):
        places = ops.arange(words.shape[1])
        x = self.norm(self.words(words) + self.sentences(sentences) + self.places(places))
        for block in self.blocks:
            x = block(x, (1.0 - counts[:, None, None].astype(x.dtype)) * -1e9)
        return self.classifier(self.tanh(self.pool(x[:, 0])))


def bert(random):
    module = transformers.BertForSequenceClassification(transformers.BertConfig(**SETTING))
    counts = (np.arange(TIME) < [[7], [5], [6], [3]]).astype(np.int32)
    sentences = (np.arange(TIME) >= [[3], [2], [4], [1]]).astype(np.int32)
    names = renamed(
        embeddings__word_embeddings="words", embeddings__position_embeddings="places",
        embeddings__token_type_embeddings="sentences", embeddings__LayerNorm="norm",
        attention__output__LayerNorm="norm1", output__LayerNorm="norm2", pooler__dense="pool",
    )  # fmt: skip
    rules = (*BERT, *names, *LAYERS)
    return of_words(random, Bert(), module, rules, (counts, sentences))


def gpt2(random):
    """labkit's own GPT, whose GELU is the exact one."""
    config = transformers.GPT2Config(**SETTING, activation_function="gelu")
    names = renamed(
        wte="embedding", wpe__weight="positions", h="blocks", ln_1="norm1", ln_2="norm2",
        ln_f="norm", attn__c_attn="attention.qkv", attn__c_proj="attention.out",
        mlp__c_fc="up", mlp__c_proj="down",
    )  # fmt: skip
    rules = (*GPT2, *names)
    network = gpt.GPT(WORDS, layers=1, width=WIDTH, heads=HEADS, length=12)
    return of_words(random, network, transformers.GPT2LMHeadModel(config), rules, (), (4, TIME))


class ViT(nn.Cell):
    """Images (B, 3, 16, 16) -> logits, from 16 patches of 4 x 4 and a token of the class."""

    def __init__(self):
        super().__init__()
        self.patches, self.classifier = patches(3, WIDTH, 4), nn.Dense(WIDTH, CLASSES)
        self.token = Parameter(Tensor(np.zeros((1, 1, WIDTH), np.float32)))
        self.places = Parameter(Tensor(np.zeros((1, 17, WIDTH), np.float32)))
        self.blocks = nn.SequentialCell(Block(1e-12))
        self.norm = nn.LayerNorm((WIDTH,), epsilon=1e-12)

    def construct(self, images):
        x = self.patches(images).reshape(len(images), WIDTH, -1).swapaxes(1, 2)
        token = ops.broadcast_to(self.token, (len(images), 1, WIDTH))
        x = self.blocks(ops.concat((token, x), 1) + self.places)
        return self.classifier(self.norm(x)[:, 0])


def vit(random):
    config = transformers.ViTConfig(**SETTING, image_size=16, patch_size=4)
    names = renamed(
        embeddings__cls_token="token", embeddings__position_embeddings="places",
        embeddings__patch_embeddings__projection="patches", layernorm="norm",
        layernorm_before="norm1", layernorm_after="norm2",
    )  # fmt: skip
    rules = (*VIT, *names, *LAYERS)
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
        inner = 2 * WIDTH
        sizes = [("q", WIDTH), ("k", 8), ("v", 8), ("o", WIDTH), ("gate", inner), ("up", inner)]
        for name, size in sizes:
            setattr(self, f"{name}_proj", nn.Dense(WIDTH, size, has_bias=False))
        self.down_proj, self.act_fn = nn.Dense(inner, WIDTH, has_bias=False), nn.SiLU()
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
    config = transformers.LlamaConfig(**SETTING, num_key_value_heads=2)
    network = nn.SequentialCell(OrderedDict(
        embed_tokens=nn.Embedding(WORDS, WIDTH),
        layers=nn.SequentialCell(LlamaLayer()), norm=RMSNorm(),
        lm_head=nn.Dense(WIDTH, WORDS, has_bias=False),
    ))  # fmt: skip
    rules = (*LLAMA, Rule(r"\.(?:self_attn|mlp)\.", "."))
    module = transformers.LlamaForCausalLM(config)
    return of_words(random, network, module, rules, (), (4, TIME))


CONVOLUTIONS = mobilenet_v2, efficientnet_b0, convnext, unet, biased_cnn
PAIRS = {f"resnet{depth}": partial(resnet_of, depth) for depth in DEPTHS} | {
    build.__name__: build for build in (*CONVOLUTIONS, lstm, attention, bert, gpt2, vit, llama)
}
