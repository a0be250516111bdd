"""A GPT of one layer for the tests of tests/networks, its batches, and all steps on it in float64.

The float64 side is PyTorch's autograd below ``references``: one function for each step cell of
``step_cells``, micro-batch by micro-batch.
"""

from typing import NamedTuple

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import Parameter, Tensor, nn, ops

from labkit import reference
from labkit.steps.losses import IGNORE_INDEX
from labkit.steps.state import set_state

WIDTH, HEADS, VOCABULARY, LENGTH, ROWS = 8, 2, 11, 6, 3
RATES, DECAYS, MOMENTUM, DAMPING = (0.1, 0.05), (0.1, 0.0), 0.9, 0.1  # matrices, the rest


class Adapted(nn.Cell):
    """A dense layer, to be frozen, and a trainable product of two thin ones beside it (LoRA)."""

    def __init__(self, inputs, outputs, rank=2):
        super().__init__()
        self.body = nn.Dense(inputs, outputs)
        self.first = nn.Dense(inputs, rank, has_bias=False)
        self.second = nn.Dense(rank, outputs, has_bias=False)

    def construct(self, x):
        return self.body(x) + self.second(self.first(x))


class Block(nn.Cell):
    """Causal self-attention and a feed-forward part, normalised before, as in GPT-2."""

    def __init__(self, dense=nn.Dense):
        super().__init__()
        self.norm1 = nn.LayerNorm((WIDTH,), epsilon=1e-5)
        self.norm2 = nn.LayerNorm((WIDTH,), epsilon=1e-5)
        self.qkv, self.proj = dense(WIDTH, 3 * WIDTH), nn.Dense(WIDTH, WIDTH)
        self.up, self.down = nn.Dense(WIDTH, 2 * WIDTH), dense(2 * WIDTH, WIDTH)

    def construct(self, x, allowed):
        rows, length, width = x.shape
        parts = self.qkv(self.norm1(x)).reshape(rows, length, 3, HEADS, width // HEADS)
        parts = parts.transpose(2, 0, 3, 1, 4)
        scores = ops.matmul(parts[0], parts[1].transpose(0, 1, 3, 2)) * (width // HEADS) ** -0.5
        allowed = ops.cast(allowed, scores.dtype)
        weights = ops.softmax(scores * allowed + 1e4 * (allowed - 1.0), -1)
        mixed = ops.matmul(weights, parts[2]).transpose(0, 2, 1, 3).reshape(rows, length, width)
        x = x + self.proj(mixed)
        return x + self.down(ops.gelu(self.up(self.norm2(x)), approximate="none"))


class GPT(nn.Cell):
    """tokens (B, T), keep (B, T) of 1 and 0 -> logits (B, T, V); the head is the embedding's."""

    def __init__(self, dense=nn.Dense):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.places = Parameter(Tensor(np.zeros((LENGTH, WIDTH), np.float32)), name="places")
        self.block, self.norm = Block(dense), nn.LayerNorm((WIDTH,), epsilon=1e-5)
        self.head = nn.Dense(WIDTH, VOCABULARY, has_bias=False)
        self.head.weight = self.embed.embedding_table

    def construct(self, tokens, keep):
        rows, length = tokens.shape
        allowed = ops.tril(ops.ones((length, length), ms.float32))
        allowed = allowed * keep.reshape(rows, 1, 1, length)
        x = self.embed(tokens) + self.places[:length]
        return self.head(self.norm(self.block(x, allowed)))


class OfTuple(nn.Cell):
    """The same from one argument, (tokens, {"keep": keep})."""

    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, parts):
        return self.network(parts[0], parts[1]["keep"])


class OfDict(OfTuple):
    """The same from a dictionary."""

    def construct(self, parts):
        return self.network(parts["tokens"], parts["keep"])


def gpt(dense=nn.Dense):
    """Return a GPT with weights of order 0.3, fixed; those of an ``Adapted`` layer's are frozen."""
    network = GPT(dense)
    random = np.random.default_rng(5)
    for parameter in network.get_parameters():
        values = 0.3 * random.normal(size=parameter.shape) + parameter.name.endswith("gamma")
        set_state(parameter, values.astype(np.float32))
        if dense is Adapted:
            parameter.requires_grad = any(word in parameter.name for word in (".first", ".second"))
    return network


def optimizer(network):
    """Return Momentum with two groups: matrices, and all else at half the rate without decay."""
    groups = [
        {"params": [p for p in network.trainable_params() if (p.ndim < 2) == few], "lr": rate}
        | {"weight_decay": decay}
        for few, rate, decay in zip((False, True), RATES, DECAYS, strict=True)
    ]
    return nn.Momentum([group for group in groups if group["params"]], RATES[0], MOMENTUM)


def batch(number, columns=LENGTH):
    """Return tokens, keep and labels, each (3, columns); the last ones of each row count.

    Padding comes first: behind what counts a causal mask would hide it anyway.
    """
    random = np.random.default_rng(60 + number)
    drawn = random.integers(1, VOCABULARY, (ROWS, columns + 1)).astype(np.int32)
    lengths = np.array(((6, 5, 6), (2, 1, 1))[number % 2])  # 17 labels, then 4
    keep = np.arange(columns)[None] >= columns - lengths[:, None]
    labels = np.where(keep, drawn[:, 1:], np.int32(IGNORE_INDEX))
    return np.where(keep, drawn[:, :-1], np.int32(0)), keep.astype(np.float32), labels


# --- in float64 ------------------------------------------------------------------------------


class Result(NamedTuple):
    """Of one micro-batch: mean loss, labels, gradients by name, (p, d) of each dense layer."""

    loss: float
    count: int
    gradients: dict
    layers: dict


def evaluated(values, tokens, keep, labels):
    """Return the ``Result`` at the weights ``values``, name -> float64 array."""
    w = {name: torch.tensor(value, requires_grad=True) for name, value in values.items()}
    seen = {}

    def dense(name, x):
        if f"{name}.body.weight" in w:
            return dense(f"{name}.body", x) + dense(f"{name}.second", dense(f"{name}.first", x))
        y = F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))
        y.retain_grad()
        seen[name] = x, y
        return y

    def norm(name, x):
        return F.layer_norm(x, (WIDTH,), w[f"{name}.gamma"], w[f"{name}.beta"], 1e-5)

    rows, length = tokens.shape
    allowed = torch.tril(torch.ones(length, length, dtype=torch.float64))
    allowed = allowed * torch.tensor(keep, dtype=torch.float64).reshape(rows, 1, 1, length)
    table = w["embed.embedding_table"]
    x = table[torch.tensor(tokens, dtype=torch.long)] + w["places"][:length]
    parts = dense("block.qkv", norm("block.norm1", x))
    q, k, v = parts.reshape(rows, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
    scores = q @ k.transpose(-1, -2) * (WIDTH // HEADS) ** -0.5
    mixed = (
        (torch.softmax(scores * allowed + 1e4 * (allowed - 1), -1) @ v)
        .permute(0, 2, 1, 3)
        .reshape(rows, length, WIDTH)
    )
    x = x + dense("block.proj", mixed)
    x = x + dense("block.down", F.gelu(dense("block.up", norm("block.norm2", x))))
    logits = norm("norm", x) @ table.T
    targets = torch.tensor(labels, dtype=torch.long).reshape(-1)
    loss = F.cross_entropy(logits.reshape(-1, VOCABULARY), targets, ignore_index=IGNORE_INDEX)
    loss.backward()
    both = {
        name: [part.detach().numpy().reshape(rows * length, -1) for part in (x, y.grad)]
        for name, (x, y) in seen.items()
    }
    gradients = {name: value.grad.numpy() for name, value in w.items()}
    return Result(loss.item(), int((labels != IGNORE_INDEX).sum()), gradients, both)


def mean_of(results, names):
    """Return (loss, gradients) of the mean over the labels of all micro-batches."""
    results = list(results)
    count = sum(each.count for each in results)
    loss = sum(each.count * each.loss for each in results) / count
    return loss, {
        name: sum(each.count * each.gradients[name] for each in results) / count for name in names
    }


class Reference:
    """Weights and moments in float64; ``update`` makes an update from micro-batches."""

    def __init__(self, network, rates=RATES, decays=DECAYS):
        named = {p.name: p for p in network.get_parameters()}
        self.values = {name: p.asnumpy().astype(np.float64) for name, p in named.items()}
        few = {name: int(p.ndim < 2) for name, p in named.items()}
        self.rates = {name: rates[kind] for name, kind in few.items()}
        self.decays = {name: decays[kind] for name, kind in few.items()}
        self.names = [parameter.name for parameter in optimizer(network).parameters]
        self.velocities = {name: np.zeros_like(self.values[name]) for name in self.names}
        self.losses = []

    def moved(self, gradients, velocities):
        """Return (the new values of what is trained, its velocities): Momentum's."""
        kept = {
            name: MOMENTUM * velocities[name]
            + gradients[name]
            + self.decays[name] * self.values[name]
            for name in self.names
        }
        return {n: self.values[n] - self.rates[n] * kept[n] for n in self.names}, kept

    def update(self, batches):
        """Make an update from (tokens, keep, labels) arrays; those that are NaN are left out."""
        finite = [np.isfinite(keep).all() for _, keep, _ in batches]
        pairs = zip(batches, finite, strict=True)
        results = [evaluated(self.values, *each) if right else None for each, right in pairs]
        if any(finite):
            self.rows = [each for each, right in zip(batches, finite, strict=True) if right]
            self.losses.append(mean_of(filter(None, results), ())[0])
            self.apply(results)

    def apply(self, results):
        results = list(filter(None, results))
        directions = self.directions(mean_of(results, self.names)[1], results)
        moved, self.velocities = self.moved(directions, self.velocities)
        self.values |= moved

    def directions(self, gradients, results):
        return gradients


class ThorReference(Reference):
    """THOR with tokens: A = sum p p^T / positions, G = labels sum d d^T; every second update."""

    def __init__(self, network, **options):
        super().__init__(network, **options)
        self.updates = 0

    def directions(self, gradients, results):
        if self.updates % 2 == 0:
            names = [name for name in results[0].layers if f"{name}.weight" in gradients]
            self.factors = {name: self._factors(name, results) for name in names}
        self.updates += 1
        made = dict(gradients)
        for name, (a, g) in self.factors.items():
            weight, bias = f"{name}.weight", f"{name}.bias"
            homogeneous = bias in gradients
            matrix = reference.gradient_matrix(gradients[weight], gradients.get(bias))
            u = reference.thor_direction(a[None], g[None], 1, matrix, DAMPING)
            shape = gradients[weight].shape
            made[weight], made[bias] = reference.weight_and_bias(u, shape, homogeneous)
        return made

    def _factors(self, name, results):
        count = sum(each.count for each in results)
        p = np.concatenate([each.layers[name][0] for each in results])
        d = np.concatenate([each.count / count * each.layers[name][1] for each in results])
        if f"{name}.bias" in results[0].gradients:
            p = np.concatenate([p, np.ones_like(p[:, :1])], axis=1)
        return p.T @ p / len(p), count * d.T @ d


class AdasumReference(Reference):
    """A worker for each micro-batch, with moments of its own; tensor by tensor."""

    def apply(self, results):
        self.workers = getattr(self, "workers", [self.velocities] * len(results))
        vectors = [{name: 0 * self.values[name] for name in self.names} for _ in results]
        for place, result in enumerate(results):
            if result is not None:
                moved, kept = self.moved(result.gradients, self.workers[place])
                self.workers = [*self.workers[:place], kept, *self.workers[place + 1 :]]
                vectors[place] = {name: moved[name] - self.values[name] for name in self.names}
        for name in self.names:
            total = reference.adasum_tree([vector[name] for vector in vectors])
            self.values[name] = self.values[name] + total.reshape(self.values[name].shape)


class SubspaceReference(Reference):
    """Projected BFGS in a basis (K, M) of the trained weights, in the optimizer's order."""

    def __init__(self, network, basis, **options):
        super().__init__(network, **options)
        self.search = reference.ProjectedBFGS(basis, alpha=1.0, gamma=0.0, optimizer=self._slope)

    def apply(self, results):
        gradient = self._flat(mean_of(filter(None, results), self.names)[1])

        def loss_of(flat):
            values = self.values | self._parts(flat)
            return mean_of([evaluated(values, *each) for each in self.rows], ())[0]

        self.values |= self._parts(self.search.update(self._flat(self.values), gradient, loss_of))

    def _slope(self, weights, slope):
        self.values |= self._parts(weights)
        moved, self.velocities = self.moved(self._parts(slope), self.velocities)
        return self._flat(moved)

    def _flat(self, values):
        return np.concatenate([values[name].ravel() for name in self.names])

    def _parts(self, flat):
        ends = np.cumsum([self.values[name].size for name in self.names])[:-1]
        parts = zip(self.names, np.split(flat, ends), strict=True)
        return {name: part.reshape(self.values[name].shape) for name, part in parts}
