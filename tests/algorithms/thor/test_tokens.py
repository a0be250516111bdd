"""THOR of losses over terms, such as tokens: factors and updates against float64."""

import numpy as np
import pytest
from mindspore import nn, ops

from labkit import reference
from labkit.algorithms.thor import ThorStep, ThorUpdate
from labkit.errors import InputError
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.losses import LossNet, TokenLossNet
from tests.support.rank_programs import in_mode
from tests.support.step_cells import momentum, snapshot, tensors
from tests.support.thor_cells import fill, normal, off, values

pytestmark = pytest.mark.usefixtures("runtime")

V, D, T, IGNORE = 7, 5, 6, -100
RATE, DAMPING = 0.2, 0.1
# Largest difference over the largest entry, measured: factors at most 7e-7, weights 1e-6.
FACTOR, WEIGHT = 3e-6, 1e-5


class Model(nn.Cell):
    """Tokens (B, T) -> logits (B, T, V): embedding, dense, tanh, dense."""

    def __init__(self):
        super().__init__()
        self.embed, self.up, self.head = nn.Embedding(V, D), nn.Dense(D, 4), nn.Dense(4, V)

    def construct(self, tokens):
        return self.head(ops.tanh(self.up(self.embed(tokens))))


class Own(nn.Cell):
    """The loss net of a user: (loss, weight) by a mask, labels somewhere among the inputs."""

    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, labels, tokens):
        keep = ops.cast(labels != IGNORE, tokens.dtype)
        logits = self.network(tokens).reshape(-1, V)
        each = ops.cross_entropy(logits, (labels * keep).reshape(-1), reduction="none")
        keep = ops.cast(keep.reshape(-1), logits.dtype)
        count = keep.sum()
        return (each * keep).sum() / ops.maximum(count, 1.0), count


class Classes(nn.Cell):
    """Logits with the classes in axis 1, as nn.CrossEntropyLoss takes them."""

    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.body = network

    def construct(self, tokens):
        return ops.transpose(self.body(tokens), (0, 2, 1))


def padded(lengths, seed=0):
    """Return tokens and labels (B, T), int32; of a row the first labels count."""
    random = np.random.default_rng(seed)
    tokens, labels = random.integers(0, V, (2, len(lengths), T)).astype(np.int32)
    return tokens, np.where(np.arange(T) < np.array(lengths)[:, None], labels, IGNORE)


def exact(weights, tokens, labels):
    """Return (loss, gradients by name, layers of ``reference``), float64; labels that count."""
    x = weights["embed.embedding_table"][tokens]
    hidden = np.tanh(x @ weights["up.weight"].T + weights["up.bias"])
    logits = hidden @ weights["head.weight"].T + weights["head.bias"]
    odds = np.exp(logits - logits.max(-1, keepdims=True))
    odds /= odds.sum(-1, keepdims=True)
    keep = labels != IGNORE
    count, hot = keep.sum(), np.eye(V)[labels * keep]
    loss = -np.log((odds * hot).sum(-1))[keep].mean()
    slope = (odds - hot) * keep[..., None] / count
    below = (slope @ weights["head.weight"]) * (1 - hidden**2)
    made, seen = {}, {"up": (x, below), "head": (hidden, slope)}
    for name, (p, d) in seen.items():
        made[f"{name}.weight"] = np.einsum("bto,bti->oi", d, p)
        made[f"{name}.bias"] = d.sum((0, 1))
    table = np.zeros((V, D))
    np.add.at(table, tokens, below @ weights["up.weight"])
    made["embed.embedding_table"] = table
    layers = [reference.Layer(name, *pair, terms=count) for name, pair in seen.items()]
    return loss, made, layers


LOSSES = {
    "tokens": (TokenLossNet, lambda tokens, labels: (tokens, labels)),
    "own": (Own, lambda tokens, labels: (labels, tokens)),
    "labels": (
        lambda network: LossNet(Classes(network), nn.CrossEntropyLoss()),
        lambda tokens, labels: (tokens, labels),
    ),
}
SCALES = [{}, {"loss_scale": 64.0}]


def make(loss="tokens", micro_steps=0, **options):
    """Return (network, step) that refreshes at every second update."""
    network = fill(Model())
    loss_net, sgd = LOSSES[loss][0](network), nn.SGD(network.trainable_params(), RATE)
    if not micro_steps:
        return network, ThorStep(loss_net, sgd, DAMPING, frequency=2, **options)
    update = ThorUpdate(loss_net, sgd, DAMPING, frequency=2)
    return network, AccumulatedStep(loss_net, sgd, micro_steps, update=update, **options)


def assert_updates(loss, network, step, groups):
    """Assert that groups of micro-batches make the float64 updates of their union."""
    twin = reference.Thor(RATE, DAMPING, momentum=0.0, frequency=2)
    weights = values(network)
    for batches in groups:
        for batch in batches:
            step(*tensors(*LOSSES[loss][1](*batch)))
        tokens, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
        expected, slopes, layers = exact(weights, tokens, labels)
        weights = twin.update(weights, slopes, layers)
        assert step.last_update.loss == pytest.approx(expected, rel=1e-5)
        for name, value in values(network).items():
            assert off(value, weights[name]) <= WEIGHT, name
        for layer in step.update.layers:
            a_factor, g_factor, unit = twin.factors[layer.layer_name.removeprefix("body.")]
            assert unit == 1 and layer.positions.asnumpy().tolist() == [1, 1]
            assert off(layer.a_factor.asnumpy(), a_factor) <= FACTOR
            assert off(layer.g_factor.asnumpy(), g_factor) <= FACTOR


@pytest.mark.parametrize("loss, options", [*((name, {}) for name in LOSSES), ("tokens", SCALES[1])])
def test_updates_of_padded_batches_are_the_references(loss, options):
    """A loss net of one's own as graphs; tests/networks compiles the others."""
    groups = [[padded((6, 3, 1, 0), seed)] for seed in range(3)]
    with in_mode(loss == "own"):
        assert_updates(loss, *make(loss, **options), groups)


@pytest.mark.parametrize("options", SCALES)
def test_micro_batches_of_other_token_counts_are_one_batch(options, eager):
    """Also one in which no label counts; the mean of the micro-batches' factors is another."""
    groups = [
        [padded(lengths, 10 * number + part) for part, lengths in enumerate(sizes)]
        for number, sizes in enumerate([((6, 6), (1, 0), (0, 0, 0)), ((2,), (5, 6), (0, 3))])
    ]
    network, step = make("tokens", 3, **options)
    weights = values(network)
    assert_updates("tokens", network, step, groups)
    whole = exact(weights, *(np.concatenate(parts) for parts in zip(*groups[0], strict=True)))[2]
    parts = [exact(weights, *batch)[2] for batch in groups[0][:2]]
    for place in range(2):
        g_factor = whole[place].factors(homogeneous=True)[1]
        of_parts = [part[place].factors(homogeneous=True)[1] for part in parts]
        assert off(np.mean(of_parts, axis=0), g_factor) > 0.1
        by_count = (12 * of_parts[0] + of_parts[1]) / 13
        assert off(by_count, g_factor) < 1e-12


def test_over_rows_the_fisher_matrix_is_the_same_and_the_damping_is_split_otherwise():
    """T A (x) G is that of c = N terms; where c is not N, the factors of rows are of another."""
    columns = normal((4, 3, 5)), normal((4, 3, 2), 1)
    made = {c: reference.kronecker_factors(*columns, homogeneous=True, terms=c) for c in (4, 12)}
    rows = reference.kronecker_factors(*columns, homogeneous=True)
    assert rows[2] == 3 and made[4][2] == 1
    of_rows = reference.kronecker_fisher(*rows)
    assert off(reference.kronecker_fisher(*made[4]), of_rows) < 1e-12
    assert off(reference.kronecker_fisher(*made[12]), 3 * of_rows) < 1e-12
    slope = normal((1, 2, 6), 2)
    both = [reference.thor_direction(*each, slope, 0.1) for each in (rows, made[4])]
    assert off(*both) > 1e-3


class Alone(Own):
    def construct(self, labels, tokens):
        return super().construct(labels, tokens)[0]


def test_what_terms_need_is_refused_when_compiled():
    network = fill(Model())
    step = ThorStep(Alone(network), momentum(network), DAMPING)
    batch = tensors(*reversed(padded((6, 3))))
    with pytest.raises(InputError, match=r"number of terms .*\(loss, weight\).*per='rows'"):
        step(*batch)
    network, step = make(reduction="sum")
    with pytest.raises(InputError, match="reduction: expected 'mean' beside factors of a loss ov"):
        step(*tensors(*padded((6, 3))))


class Block(nn.Cell):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm((D,)), nn.Dense(D, 8), nn.Dense(8, D)

    def construct(self, x):
        return x + self.down(ops.gelu(self.up(self.norm(x))))


class TiedModel(nn.Cell):
    """Two blocks, and a head that is the embedding; ``tied``: by a Dense of the same weight."""

    def __init__(self, tied):
        super().__init__()
        self.embed, self.blocks = nn.Embedding(V, D), nn.CellList([Block(), Block()])
        self.tied = tied
        if tied:
            self.head = nn.Dense(D, V, has_bias=False)
            self.head.weight = self.embed.embedding_table

    def construct(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x) if self.tied else ops.matmul(x, self.embed.embedding_table.T)


def trained(tied):
    """Return the step's state after three updates."""
    network = fill(TiedModel(tied))
    step = ThorStep(
        TokenLossNet(network), nn.SGD(network.trainable_params(), RATE), DAMPING, frequency=2
    )
    for seed in range(3):
        step(*tensors(*padded((6, 3, 1), seed)))
    return snapshot(step)


def test_a_tied_head_takes_the_plain_update(eager, capsys):
    """As a product with the table does; T stays."""
    plain = trained(False)
    assert "labkit: THOR" not in capsys.readouterr().out
    tied = trained(True)
    assert tied.keys() == plain.keys()
    assert max(off(tied[n], v) for n, v in plain.items() if v.any()) <= WEIGHT
    said = "labkit: THOR leaves to the plain update: layer 'head' shares its weight"
    assert f"{said} 'embed.embedding_table' with 'embed'\n" in capsys.readouterr().out


class Penalised(nn.Cell):
    """A mean over rows with the gradient's square by the input."""

    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.network, self.gradient = network, ops.GradOperation()

    def total(self, x):
        return self.network(x).sum()

    def construct(self, x, y):
        slope = self.gradient(self.total)(x)
        return ops.square(self.network(x) - y).mean() + ops.square(slope).mean(), 1.0 * x.shape[0]


def test_a_gradient_penalty_is_refused_in_one_sentence():
    network = nn.SequentialCell(nn.Dense(3, 4), nn.Tanh(), nn.Dense(4, 2))
    step = ThorStep(Penalised(network), momentum(network), DAMPING)
    with pytest.raises(InputError, match="THOR's factors have no derivative: .*gradient penalty"):
        step(*tensors(normal((5, 3)), normal((5, 2))))
