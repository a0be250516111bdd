"""A character GPT on Shakespeare with one of the techniques, on one process or on ranks.

    python examples/language_model.py [--step plain | accumulated | adasum | thor | subspace]
                                      [--ranks N] [--updates N] [--seed N]

Every update is of 16 windows of 64 characters, in as many parts as there are ranks, times four
micro-batches (or workers) where the technique has such: ranks change no update, but for rounding.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from mindspore import Tensor, nn
from mindspore.dataset import NumpySlicesDataset

import labkit
from labkit import (
    AccumulatedStep,
    AdasumStep,
    PlainStep,
    SubspaceStep,
    ThorStep,
    TokenLossNet,
    evaluate,
)
from labkit.algorithms.subspace import Basis
from labkit.algorithms.subspace.snapshots import write_snapshot
from labkit.data import shakespeare
from labkit.data.prepare import prepare
from labkit.nets.gpt import GPT
from labkit.optimizers import AdamW
from labkit.steps.parameter_groups import decay_groups
from labkit.steps.schedules import cosine

LENGTH, ROWS, PARTS = 64, 16, 4
STEPS = ("plain", "accumulated", "adasum", "thor", "subspace")
COMPONENTS = 4  # of the subspace: principal components of eight snapshots


def make_step(name, network, updates, parts):
    """Return the step of a technique; ``parts`` micro-batches of each update are this process's."""
    loss_net = TokenLossNet(network)
    rates = Tensor(cosine(0.02, 0.002, updates, 1, warmup_epochs=updates // 6))
    optimizer = AdamW(decay_groups(network, 0.1), rates, beta2=0.99)
    if name == "plain":
        return PlainStep(loss_net, optimizer, clip_norm=1.0)
    if name == "thor":
        return ThorStep(loss_net, optimizer, damping=0.3, frequency=10, factor_decay=0.9)
    if name == "adasum":
        return AdasumStep(loss_net, optimizer, workers=parts, on="gradients")
    return AccumulatedStep(loss_net, optimizer, parts, clip_norm=1.0)


def subspace_step(network, folder, parts):
    """Return a step that searches among the directions in which the snapshots differ."""
    basis = Basis.of(folder, network, COMPONENTS)
    optimizer = nn.SGD(network.trainable_params(), learning_rate=1.0)
    return SubspaceStep(TokenLossNet(network), optimizer, basis, micro_steps=parts, alpha=0.1)


def parts_of(text, seed, update, parts, runtime):
    """Return this process's part of an update's windows, cut into ``parts``."""
    windows = shakespeare.random_windows(text, ROWS, LENGTH, seed, update)
    tokens, labels = (np.split(w, parts * runtime.ranks) for w in windows)
    own = slice(parts * runtime.rank, parts * (runtime.rank + 1))
    return list(zip(tokens[own], labels[own], strict=True))


def train(name, network, text, updates, seed, runtime, folder):
    """Make the updates and return the loss of each; "subspace" searches in the second half."""
    parts = 1 if name in ("plain", "thor") else PARTS // runtime.ranks
    step, losses, half = make_step(name, network, updates, parts), [], updates // 2
    for update in range(updates):
        if name == "subspace" and update == half:
            step = subspace_step(network, folder, parts)
        for tokens, labels in parts_of(text, seed, update, parts, runtime):
            step(Tensor(tokens), Tensor(labels))
        losses.append(step.last_update.loss)
        if name == "subspace" and half - 8 <= update < half:
            write_snapshot(Path(folder) / f"{update}.safetensors", network.trainable_params())
        if update % 50 == 0:
            print(f"update {update}: {losses[-1]:.3f} nats a character", flush=True)
    return losses


def judge(network, text, windows=256):
    """Return the mean loss over windows at even distances, nats a character."""
    batches = NumpySlicesDataset(shakespeare.even_windows(text, windows, LENGTH), shuffle=False)
    return evaluate(TokenLossNet(network), batches.batch(64))["loss"]


def main(words=None):
    """Train, judge by Macbeth, and return the losses of all updates; None where ranks train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--step", choices=STEPS, default="plain")
    parser.add_argument("--ranks", type=int, choices=(1, 2, 4), default=1)
    parser.add_argument("--updates", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--joins", action="store_true", help=argparse.SUPPRESS)  # a rank itself
    options = parser.parse_args(words)
    if options.ranks > 1 and not options.joins:
        words = [f"--{name}={value}" for name, value in vars(options).items() if name != "joins"]
        labkit.launch(__file__, *words, "--joins", workers=options.ranks, timeout=None, show=True)
        return None
    runtime = labkit.start(seed=options.seed, distribute=options.joins)
    plays = shakespeare.load(prepare("shakespeare"))
    network = GPT(len(plays.alphabet), length=LENGTH, seed=options.seed)
    with tempfile.TemporaryDirectory() as folder:
        losses = train(
            options.step, network, plays.train, options.updates, options.seed, runtime, folder
        )
    nats = judge(network, plays.validation)
    print(f"{options.step}: {nats:.4f} nats a character of Macbeth; bigrams: 2.570")
    return losses


if __name__ == "__main__":
    main()
