"""Does a language model end worse if its micro-batches' means are averaged, whatever their tokens?

    python benchmarks/token_means.py [--all]    as race.py says

The GPT of lab 06 on single lines of eight plays: an update has 16 lines, sorted by length, as four
micro-batches of four padded lines. "token mean" is their mean loss over all characters, "mean of
means" the mean of the four micro-batches' means. Both are computed in one pass over the 16 lines,
in which each character has the weight that AccumulatedStep would give it: three times as fast. 300
updates of AdamW (beta2 0.99, decay 0.1 of the matrices, clipped to 1), warm-up over 50, then a
cosine to a tenth of the rate. Trainings of one seed have the same weights and lines. They are
judged by all lines of Macbeth and The Tempest, also by the number of characters of a line.
"""

import mindspore as ms
import numpy as np
import race
from mindspore import Tensor, nn, ops

import labkit
from labkit.data import shakespeare
from labkit.data.prepare import prepare
from labkit.nets.gpt import GPT
from labkit.optimizers import AdamW
from labkit.steps.parameter_groups import decay_groups
from labkit.steps.schedules import cosine

MICRO_BATCHES, ROWS, LENGTH = 4, 4, 64
PLAN = {
    "means": ["token mean", "mean of means"],
    "rates": [0.005],
    "seeds": [1, 2, 3],
    "updates": 300,
    "lengths": [2, 16, 36, 46, 65],  # the first of each group of lines, and one more than the last
    "images": {},
}


def planned(plan, rows):
    """Return every training, in order."""
    limits = {name: plan[name] for name in ("updates", "lengths")}
    return [
        race.training("race", "lines", {"mean": mean, "rate": rate}, seed, limits)
        for seed in plan["seeds"]
        for rate in plan["rates"]
        for mean in plan["means"]
    ]


def lines(plan, data):
    """Start MindSpore; return a function: part of the race -> lines of each part, and symbols."""
    labkit.start(device="CPU")
    plays = shakespeare.load(data or prepare("shakespeare"))
    line_feed = plays.alphabet.index("\n")
    parts = {n: shakespeare.lines_of(getattr(plays, n), line_feed) for n in plays._fields[:3]}
    return lambda part: parts | {"symbols": len(plays.alphabet)}


class Weighted(nn.Cell):
    """Sum of the characters' losses, each times its weight: (loss, 1)."""

    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.nats = Nats(network)

    def construct(self, tokens, labels, weights):
        return ops.reduce_sum(self.nats(tokens, labels) * weights), Tensor(1.0, ms.float32)


class Nats(nn.Cell):
    """Loss of each character (rows, T); whatever number where the label is padding."""

    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, tokens, labels):
        chances = ops.log_softmax(self.network(tokens), -1)
        index = ops.expand_dims(ops.maximum(labels, 0), -1)
        return -ops.squeeze(ops.gather_elements(chances, -1, index), -1)


def update_of(data, mean, random):
    """Return tokens, labels and weights (16, 64) of an update."""
    drawn = shakespeare.micro_batches(data["train"], MICRO_BATCHES, ROWS, LENGTH, random)
    counts = [np.sum(labels >= 0) for _, labels in drawn]
    whole = [sum(counts) if mean == "token mean" else MICRO_BATCHES * count for count in counts]
    weights = [(labels >= 0) / each for (_, labels), each in zip(drawn, whole, strict=True)]
    tokens, labels = (np.concatenate(part) for part in zip(*drawn, strict=True))
    return tokens, labels, np.concatenate(weights).astype(np.float32)


def train(setting, data, seed, *, updates, lengths):
    """Train once; return the outcome, ready for JSON."""
    network, random = GPT(data["symbols"], seed=seed), np.random.default_rng(seed)
    rates = Tensor(cosine(setting["rate"], 0.1 * setting["rate"], updates, 1, updates // 6))
    optimizer = AdamW(decay_groups(network, 0.1), rates, beta2=0.99)
    step, losses = labkit.PlainStep(Weighted(network), optimizer, clip_norm=1.0), []
    for _ in range(updates):
        losses.append(float(step(*map(Tensor, update_of(data, setting["mean"], random)))))
    outcome = {"curve": [{"update": updates, "training_loss": float(np.mean(losses[-50:]))}]}
    for part in ("validation", "test"):
        outcome[part] = judged(network, data[part], lengths)
    return outcome


def judged(network, held_out, lengths):
    """Return the nats per character of all lines, and of those from each length to the next."""
    of_each = Nats(network).set_train(False)
    held_out = held_out[: len(held_out) // 64 * 64]
    tokens, labels = shakespeare.padded(held_out, LENGTH)
    batches = [slice(i, i + 64) for i in range(0, len(tokens), 64)]
    nats = np.concatenate(
        [of_each(Tensor(tokens[b]), Tensor(labels[b])).asnumpy() for b in batches]
    )
    kept, size = labels >= 0, (labels >= 0).sum(1)
    groups = [(size >= a) & (size < b) for a, b in zip(lengths, lengths[1:], strict=False)]
    return [float(nats[kept & rows[:, None]].mean()) for rows in (size > 0, *groups)]


def end(plan, row, outcome):
    """Return a row's other fields: losses on both plays, and of The Tempest's lines by length."""
    names = ["tempest", *(f"tempest_{length}" for length in plan["lengths"][:-1])]
    losses = dict(zip(names, outcome["test"], strict=True))
    return {"updates": plan["updates"], "macbeth": outcome["validation"][0]} | losses


RACE = race.Race("token_means", PLAN, planned, train, end, images=lines)

if __name__ == "__main__":
    RACE.main(__doc__)
