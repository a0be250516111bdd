"""LeNet on MNIST with Adasum over ranks, to compare with virtual workers, as lab 04 does.

    msrun ... examples/adasum_on_ranks.py FOLDER [--updates N] [--seed N]

Micro-batch n belongs to worker n mod N, whether N virtual workers share one process or N ranks have
one worker each. Rank r writes FOLDER/rank_<r>.npz: the weights after training with Adasum, and the
milliseconds of an update for each reduction.
"""

import argparse
import time
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

import labkit
from labkit.data.mnist import load_arrays
from labkit.data.prepare import prepare
from labkit.labs.compare import parameter_values

BATCH, RATE, MOMENTUM = 32, 0.03, 0.9


def make_step(seed, reduction="adasum", workers=1):
    """Return an ``AdasumStep`` of a LeNet with the weights of ``seed``, and a constant rate."""
    ms.set_seed(seed)
    network = labkit.LeNet5()
    optimizer = nn.Momentum(network.trainable_params(), RATE, MOMENTUM)
    loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    loss_net = labkit.LossNet(network, loss_fn)
    return labkit.AdasumStep(loss_net, optimizer, workers=workers, reduction=reduction)


def train(steps, images, labels, updates):
    """Make ``updates`` updates of each of ``steps``, in turns, with this process's micro-batches.

    They are cut from images (N, 1, 32, 32) and labels (N,). Returns each step's median time of an
    update in milliseconds, without the first update, which compiles.
    """
    seconds = np.zeros((updates, len(steps)))
    for update, number in np.ndindex(*seconds.shape):
        step = steps[number]
        first, own = step.team.rank * step.workers, step.workers
        began = time.perf_counter()
        for worker in range(first, first + own):
            first = BATCH * (update * step.total_workers + worker)
            rows = slice(first, first + BATCH)
            step(Tensor(images[rows]), Tensor(labels[rows]))
        step.update.worker.asnumpy()  # waits until the update has been made
        seconds[update, number] = time.perf_counter() - began
    return (1000 * np.median(seconds[1:], axis=0)).tolist()


def main():
    """Train on this rank and write its file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--updates", type=int, default=20, help="2 or more")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    runtime = labkit.start(seed=options.seed, distribute=True)
    data = load_arrays(prepare("mnist"), "train", options.updates * runtime.ranks * BATCH)
    steps = {name: make_step(options.seed, name) for name in ("mean", "adasum")}
    times = train(list(steps.values()), *data, options.updates)
    steps["adasum"].end_epoch()  # it refuses ranks whose weights differ
    arrays = parameter_values(steps["adasum"].gradient.loss_net)
    arrays |= {f"ms_{name}": milliseconds for name, milliseconds in zip(steps, times, strict=True)}
    options.folder.mkdir(parents=True, exist_ok=True)
    np.savez(options.folder / f"rank_{runtime.rank}.npz", **arrays)


if __name__ == "__main__":
    main()
