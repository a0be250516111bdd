"""Your own network and data with one of the techniques: the whole program.

    python examples/own_network.py [accumulation | thor | both | adasum]

Replace `Network` and `my_dataset`; the rest stays.
"""

import sys
import tempfile

import mindspore.dataset as ds
import numpy as np
from mindspore import nn

import labkit
from labkit import (
    AccumulatedStep,
    AdasumStep,
    InputError,
    LossNet,
    ThorStep,
    ThorUpdate,
    evaluate,
    fit,
)


class Network(nn.Cell):
    """Points (B, 2) -> logits (B, 2)."""

    def __init__(self):
        super().__init__()
        self.layers = nn.SequentialCell(nn.Dense(2, 32), nn.ReLU(), nn.Dense(32, 2))

    def construct(self, x):
        return self.layers(x)


def my_dataset(rows, seed):
    """Return points inside (label 1) and outside (label 0) of a circle, in batches of 16."""
    points = np.random.default_rng(seed).uniform(-1, 1, (rows, 2)).astype(np.float32)
    labels = (np.square(points).sum(1) < 0.6).astype(np.int32)
    return ds.NumpySlicesDataset((points, labels), ["points", "label"]).batch(16)


def make_step(technique, loss_net, optimizer):
    """Return the step of a technique; all of them take the same loss_net and optimizer."""
    if technique == "accumulation":
        return AccumulatedStep(loss_net, optimizer, micro_steps=4)
    if technique == "thor":
        return ThorStep(loss_net, optimizer, damping=1.0, frequency=10)
    if technique == "both":
        update = ThorUpdate(loss_net, optimizer, damping=1.0, frequency=10)
        return AccumulatedStep(loss_net, optimizer, micro_steps=4, update=update)
    if technique == "adasum":
        return AdasumStep(loss_net, optimizer, workers=4)
    raise InputError(f"technique: expected accumulation, thor, both or adasum, got {technique!r}")


def main(folder, technique="accumulation"):
    """Train, evaluate on other points, and return the accuracy."""
    labkit.start()
    network = Network()
    loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    optimizer = nn.Momentum(network.trainable_params(), learning_rate=0.1, momentum=0.9)
    step = make_step(technique, LossNet(network, loss_fn), optimizer)
    # If stopped at any moment, the same call continues from the last checkpoint.
    fit(step, my_dataset(2000, seed=1), epochs=5, folder=folder, resume=True)
    metrics = evaluate(network, loss_fn, my_dataset(1000, seed=2))
    print(f"{technique}: accuracy on other points {metrics['accuracy']:.3f}")
    return metrics["accuracy"]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(scratch, *sys.argv[1:])
