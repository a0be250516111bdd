"""A GPT of one layer, its batches, and every step on it in float64, for tests/networks."""

from typing import NamedTuple

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import Parameter, Tensor, nn, ops

from labkit import reference
from labkit.steps.losses import IGNORE_INDEX
from labkit.steps.state import set_state
from tests.support.subspace_cells import basis_of

WIDTH, VOCABULARY, LENGTH, ROWS = 8, 11, 6, 3
PARTS = [WIDTH, WIDTH, WIDTH, 2 * WIDTH]  # queries, keys, values, the feed-forward part's
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
    """Causal self-attention of one head, and beside it a feed-forward part, as in PaLM: one dense
    layer into both and one out of both, since THOR takes 2 s to compile for each.
    """

    def __init__(self, dense=nn.Dense):
        super().__init__()
        self.norm = nn.LayerNorm((WIDTH,), epsilon=1e-5)
        self.into, self.out = dense(WIDTH, sum(PARTS)), dense(3 * WIDTH, WIDTH)

    def construct(self, x, allowed):
        q, k, v, inner = ops.split(self.into(self.norm(x)), PARTS, -1)
        scores = ops.matmul(q, k.transpose(0, 2, 1)) * WIDTH**-0.5
        allowed = ops.cast(allowed, scores.dtype)
        # Not scores - 1e4: float32 then keeps 1e-3 of them, and all of padding's keys are hidden.
        weights = ops.softmax(scores * allowed + 1e4 * (allowed - 1.0), -1)
        inner = ops.gelu(inner, approximate="none")
        return x + self.out(ops.concat((ops.matmul(weights, v), inner), -1))


class GPT(nn.Cell):
    """tokens (B, T), keep (B, T) of 1 and 0 -> logits (B, T, V); the head is the embedding's.

    It also takes one argument, {"tokens": tokens, "more": (keep,)}.
    """

    def __init__(self, dense=nn.Dense):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.places = Parameter(Tensor(np.zeros((LENGTH, WIDTH), np.float32)), name="places")
        self.block, self.norm = Block(dense), nn.LayerNorm((WIDTH,), epsilon=1e-5)
        self.head = nn.Dense(WIDTH, VOCABULARY, has_bias=False)
        self.head.weight = self.embed.embedding_table

    def construct(self, tokens, keep=None):
        if isinstance(tokens, dict):
            tokens, keep = tokens["tokens"], tokens["more"][0]
        length = tokens.shape[1]
        allowed = ops.tril(ops.ones((length, length), ms.float32)) * ops.expand_dims(keep, 1)
        x = self.embed(tokens) + self.places[:length]
        return self.head(self.norm(self.block(x, allowed)))


def gpt(dense=nn.Dense):
    """Return a GPT with weights of order 0.3, fixed; all but an ``Adapted`` layer's are frozen."""
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
    groups = []
    for few in (False, True):
        own = [p for p in network.trainable_params() if (p.ndim < 2) == few]
        if own:  # adapters are matrices alone
            groups.append({"params": own, "lr": RATES[few], "weight_decay": DECAYS[few]})
    return nn.Momentum(groups, RATES[0], MOMENTUM)


def batch(number, columns=LENGTH):
    """Return tokens, keep, labels, each (3, columns): 17 labels if ``number`` is even, else 4."""
    # From 70 on, half an ulp of the first weights moves float64's BFGS by four tolerances.
    random = np.random.default_rng(110 + number)
    drawn = random.integers(1, VOCABULARY, (ROWS, columns + 1)).astype(np.int32)
    lengths = np.array(((6, 5, 6), (2, 1, 1))[number % 2])
    # Padding comes first: behind what counts a causal mask would hide it anyway.
    keep = np.arange(columns)[None] >= columns - lengths[:, None]
    labels = np.where(keep, drawn[:, 1:], np.int32(IGNORE_INDEX))
    return np.where(keep, drawn[:, :-1], np.int32(0)), keep.astype(np.float32), labels


# --- in float64 ------------------------------------------------------------------------------


class Result(NamedTuple):
    """Of one micro-batch: mean loss, labels, gradients by name, [p, d] of each dense layer."""

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

    length = tokens.shape[1]
    allowed = torch.tril(torch.ones(length, length)) * torch.tensor(keep).double()[:, None]
    table = w["embed.embedding_table"]
    x = table[torch.tensor(tokens).long()] + w["places"][:length]
    q, k, v, inner = dense("block.into", norm("block.norm", x)).split(PARTS, -1)
    scores = q @ k.transpose(1, 2) * WIDTH**-0.5
    weights = torch.softmax(scores * allowed + 1e4 * (allowed - 1), -1)
    x = x + dense("block.out", torch.cat((weights @ v, F.gelu(inner)), -1))
    logits, targets = norm("norm", x) @ table.T, torch.tensor(labels).long()
    loss = F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=IGNORE_INDEX)
    loss.backward()
    layers = {name: [x.detach().numpy(), y.grad.numpy()] for name, (x, y) in seen.items()}
    gradients = {name: value.grad.numpy() for name, value in w.items()}
    return Result(loss.item(), int((labels != IGNORE_INDEX).sum()), gradients, layers)


class Reference:
    """Momentum in float64, in one vector of all trained weights; ``update`` makes an update."""

    def __init__(self, network, rates=RATES, decays=DECAYS):
        self.first = {p.name: p.asnumpy().astype(np.float64) for p in network.get_parameters()}
        self.parameters = list(optimizer(network).parameters)
        self.shapes = {p.name: p.shape for p in self.parameters}
        sizes = [p.size for p in self.parameters]
        few = np.repeat([int(p.ndim < 2) for p in self.parameters], sizes)
        self.ends = np.cumsum(sizes)[:-1]
        self.rates, self.decays = np.array(rates)[few], np.array(decays)[few]
        self.flat = self.joined(self.first)
        self.velocities, self.losses = {}, []

    def joined(self, named):
        return np.concatenate([named[name].ravel() for name in self.shapes])

    def named(self, flat):
        pairs = zip(self.shapes.items(), np.split(flat, self.ends), strict=True)
        return self.first | {name: part.reshape(shape) for (name, shape), part in pairs}

    @property
    def values(self):
        return self.named(self.flat)

    def moved(self, flat, slope, worker=0):
        """Return the weights after Momentum's step, with that worker's velocity."""
        velocity = MOMENTUM * self.velocities.get(worker, 0) + slope + self.decays * flat
        self.velocities[worker] = velocity
        return flat - self.rates * velocity

    def mean(self, flat, batches):
        """Return (loss, slope, results) of the mean over the labels of all micro-batches."""
        results = [evaluated(self.named(flat), *each) for each in batches]
        shares = [each.count / sum(r.count for r in results) for each in results]
        pairs = list(zip(shares, results, strict=True))
        slope = sum(share * self.joined(each.gradients) for share, each in pairs)
        return sum(share * each.loss for share, each in pairs), slope, results

    def update(self, batches):
        """Make an update from (tokens, keep, labels) arrays; those that are NaN are left out."""
        self.turns = [turn for turn, each in enumerate(batches) if np.isfinite(each[1]).all()]
        self.batches, self.count = [batches[turn] for turn in self.turns], len(batches)
        if self.batches:
            loss, slope, results = self.mean(self.flat, self.batches)
            self.losses.append(loss)
            self.flat = self.after(slope, results)

    def after(self, slope, results):
        return self.moved(self.flat, slope)


class ThorReference(Reference):
    """THOR over tokens; the factors are those of every second update."""

    def after(self, slope, results):
        if len(self.losses) % 2:  # the first, the third
            names = [name for name in results[0].layers if f"{name}.weight" in self.shapes]
            self.factors = {name: self._factors(name, results) for name in names}
        gradients = self.named(slope)
        for name, (a, g, _) in self.factors.items():
            weight, bias = f"{name}.weight", f"{name}.bias"
            matrix = reference.gradient_matrix(gradients[weight], gradients.get(bias))
            u = reference.thor_direction(a, g, 1, matrix, DAMPING)
            shape = gradients[weight].shape
            made = reference.weight_and_bias(u, shape, bias in gradients)
            gradients |= zip((weight, bias), made, strict=True)
        return self.moved(self.flat, self.joined(gradients))

    def _factors(self, name, results):
        count = sum(each.count for each in results)
        inputs = np.concatenate([each.layers[name][0] for each in results])
        slopes = np.concatenate([each.count / count * each.layers[name][1] for each in results])
        homogeneous = f"{name}.bias" in self.shapes
        return reference.kronecker_factors(inputs, slopes, homogeneous=homogeneous, terms=count)


class AdasumReference(Reference):
    """A worker for each micro-batch, tensor by tensor; one without it adds a vector of zeros."""

    def after(self, slope, results):
        vectors = np.zeros((self.count, self.flat.size))
        for turn, result in zip(self.turns, results, strict=True):
            own = self.joined(result.gradients)
            vectors[turn] = self.moved(self.flat, own, turn) - self.flat
        parts = np.split(vectors, self.ends, axis=1)
        return self.flat + np.concatenate([reference.adasum_tree(part) for part in parts])


class SubspaceReference(Reference):
    """Projected BFGS in the three components of ``step_cells``."""

    def __init__(self, network, **options):
        super().__init__(network, **options)
        basis = basis_of(self.parameters, 3).matrix
        self.search = reference.ProjectedBFGS(basis, alpha=1.0, gamma=0.0, optimizer=self.moved)

    def after(self, slope, results):
        return self.search.update(self.flat, slope, lambda x: self.mean(x, self.batches)[0])


# step of ``STEPS`` -> (micro-batches of an update, on each rank; the reference)
KINDS = {
    "plain": (1, Reference),
    "accumulated": (2, Reference),
    "adasum": (2, AdasumReference),
    "thor": (1, ThorReference),
    "accumulated subspace": (2, SubspaceReference),
}
