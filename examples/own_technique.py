"""A technique of your own: Lookahead as an update stage, with nothing changed in labkit.

    fast weights   w <- optimizer(w, g)                        at every update
    slow weights   s <- s + step_size (w - s),   w <- s        at every ``period``-th

Source: M. R. Zhang, J. Lucas, G. Hinton, J. Ba, "Lookahead Optimizer: k steps forward, 1 step
back", 2019 (arXiv:1907.08610), algorithm 1.

    python examples/own_technique.py

It works like the built-in techniques: its state is Parameters, so that a checkpoint contains it;
its options are in ``settings``, so that a resumed training must share them; it receives gradients
that are already averaged over micro-batches and ranks, unscaled and clipped.
"""

import sys
import tempfile

import mindspore.dataset as ds
import numpy as np
from mindspore import ParameterTuple, nn, ops

import labkit
from labkit import AccumulatedStep, LossNet, UpdateStage, evaluate, fit
from labkit.base.arguments import integer, number
from labkit.steps.state import copied


class Lookahead(UpdateStage):
    """Update stage that pulls the optimizer's weights back to a slow average of them."""

    def __init__(self, optimizer, period=5, step_size=0.5):
        super().__init__(optimizer)
        self.period = integer("period", period)
        self.step_size = number("step_size", step_size, above=0, at_most=1)
        self.settings = {"period": self.period, "step_size": self.step_size}
        self.slow = ParameterTuple(copied(weight, "lookahead.slow") for weight in self.parameters)

    def construct(self, gradients):
        # The slow weights start from those at the first update, not from those at construction.
        first = self.record.updates == 0
        slow = self.map(ops.partial(chosen, first), self.parameters, self.slow)
        fast = ops.depend(self.parameters, (self.optimizer(ops.depend(gradients, slow))))
        due = (self.record.updates + 1) % self.period == 0
        slow = self.map(ops.partial(drawn, due, self.step_size), slow, fast)
        fast = self.map(ops.partial(chosen, due), slow, fast)
        stored = self.map(ops.assign, self.slow, slow), self.map(ops.assign, self.parameters, fast)
        return ops.depend(True, stored)


def chosen(condition, a, b):
    return ops.select(condition, 1.0 * a, 1.0 * b)


def drawn(due, step_size, slow, fast):
    return ops.select(due, slow + step_size * (fast - slow), slow)


def main(folder):
    """Train, evaluate on other points, and return the accuracy."""
    labkit.start()
    points = np.random.default_rng(1).uniform(-1, 1, (3000, 2)).astype(np.float32)
    labels = (np.square(points).sum(1) < 0.6).astype(np.int32)
    parts = [(points[:2000], labels[:2000]), (points[2000:], labels[2000:])]
    rows = [ds.NumpySlicesDataset(part, ["points", "label"]).batch(16) for part in parts]
    network = nn.SequentialCell(nn.Dense(2, 32), nn.ReLU(), nn.Dense(32, 2))
    loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    optimizer = nn.Momentum(network.trainable_params(), learning_rate=0.2, momentum=0.9)
    step = AccumulatedStep(
        LossNet(network, loss_fn), optimizer, 2, update=Lookahead(optimizer), clip_norm=1.0
    )
    fit(step, rows[0], epochs=5, folder=folder, resume=True)
    accuracy = evaluate(network, loss_fn, rows[1])["accuracy"]
    print(f"Lookahead: accuracy on other points {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(*sys.argv[1:] or [scratch])
