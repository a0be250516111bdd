"""An exponential moving average of the weights, as an update stage, and its evaluation.

    w <- optimizer(w, g),   a <- a + (1 - decay) (w - a)        from the first update on: a = w

At a constant rate the weights wander about a minimum; their average lies closer to it.

    python examples/moving_average.py
"""

import mindspore.dataset as ds
import numpy as np
from mindspore import ParameterTuple, nn, ops

import labkit
from labkit import AdamW, LossNet, PlainStep, UpdateStage, evaluate, fit, swapped
from labkit.steps.state import copied


class MovingAverage(UpdateStage):
    """Update stage that averages the weights after each update of the optimizer."""

    def __init__(self, optimizer, decay=0.99):
        super().__init__(optimizer)
        self.decay, self.settings = decay, {"decay": decay}
        self.average = ParameterTuple(copied(weight, "average") for weight in self.parameters)

    def construct(self, gradients):
        weights = ops.depend(self.parameters, self.optimizer(gradients))
        share = ops.select(self.record.updates == 0, 1.0, 1 - self.decay)
        return ops.depend(True, self.map(ops.partial(drawn, share), self.average, weights))

    def values(self):
        """Return name of a weight -> its average, as ``swapped`` takes them."""
        return {w.name: a for w, a in zip(self.parameters, self.average, strict=True)}


def drawn(share, average, weight):
    return ops.assign_add(average, share * (weight - average))


def main():
    """Train with a fifth of the labels wrong; return two losses on other points."""
    labkit.start()
    points = np.random.default_rng(1).uniform(-1, 1, (3000, 2)).astype(np.float32)
    labels = ((np.square(points).sum(1) < 0.6) ^ (np.arange(3000) % 5 == 0)).astype(np.int32)
    parts = [(points[:2000], labels[:2000]), (points[2000:], labels[2000:])]
    rows = [ds.NumpySlicesDataset(part, ["points", "label"]).batch(16) for part in parts]
    network = nn.SequentialCell(nn.Dense(2, 32), nn.ReLU(), nn.Dense(32, 2))
    loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    update = MovingAverage(AdamW(network.trainable_params(), 0.03))
    fit(PlainStep(LossNet(network, loss_fn), update.optimizer, update=update), rows[0], epochs=5)
    last = evaluate(network, loss_fn, rows[1])["loss"]
    with swapped(network, update.values()):
        averaged = evaluate(network, loss_fn, rows[1])["loss"]
    print(f"loss on other points: weights {last:.3f}, their average {averaged:.3f}")
    return last, averaged


if __name__ == "__main__":
    main()
