"""The records of a training in pandas and in TensorBoard, in one line each.

    pip install -c constraints.txt pandas tensorboardX    # pandas 3.1 needs NumPy 2, MindSpore 1.26
    python examples/records_elsewhere.py runs/mine
    tensorboard --logdir runs/mine                        # a package of its own

Neither is a dependency of labkit: ``fit`` writes records.csv and returns rows of plain numbers.
"""

import sys
import tempfile
from pathlib import Path

import mindspore.dataset as ds
import numpy as np
import pandas
from mindspore import nn
from tensorboardX import SummaryWriter

import labkit
from labkit import AccumulatedStep, LossNet, fit


def main(folder):
    """Train on random points; return the records as a DataFrame."""
    labkit.start()
    points = np.random.default_rng(1).uniform(-1, 1, (800, 2)).astype(np.float32)
    labels = (np.square(points).sum(1) < 0.6).astype(np.int32)
    data = ds.NumpySlicesDataset((points, labels), ["points", "label"]).batch(16)
    network = nn.SequentialCell(nn.Dense(2, 32), nn.ReLU(), nn.Dense(32, 2))
    loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    step = AccumulatedStep(LossNet(network, loss_fn), optimizer, micro_steps=2)
    records = fit(step, data, epochs=4, folder=folder)

    frame = pandas.read_csv(Path(folder, "records.csv"))  # or pandas.DataFrame(records.rows)
    with SummaryWriter(str(folder)) as writer:
        for row in records.rows:
            writer.add_scalar("loss", row["loss"], row["update"])

    print(frame.groupby("epoch")[["loss", "gradient_norm"]].mean())
    return frame


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(*sys.argv[1:] or [scratch])
