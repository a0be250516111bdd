"""The trainings that ``kills.py`` kills: ``python -m tests.campaigns.killed KIND FOLDER``.

Trains, or goes on, in FOLDER/run, and leaves in FOLDER/ended-RANK the SHA-256 of all Parameters.
"""

import sys
import time
from pathlib import Path

import mindspore as ms
from mindspore import nn
from mindspore.dataset import NumpySlicesDataset
from mindspore.train import Callback

import labkit
from labkit.algorithms.adasum import AdasumStep
from labkit.algorithms.subspace import SubspaceStep
from labkit.algorithms.thor import ThorUpdate
from labkit.ranks import cluster
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.gradients import DynamicLossScale
from labkit.steps.losses import LossNet
from labkit.training.fit import fit
from tests.support.subspace_cells import basis_of
from tests.support.trainings import dataset, digest, images_and_labels, loss_fn, network

EPOCHS, EVERY = 16, 3
RANKS = {"two ranks": 2}


def loss_net(**options):
    return LossNet(network(**options), loss_fn())


def accumulation():
    net = loss_net()
    scale = DynamicLossScale(2.0**10, 2.0, 5)
    return AccumulatedStep(net, nn.Adam(net.trainable_params(), 0.02), 4, loss_scale=scale)


def thor():
    net = loss_net()
    optimizer = nn.Momentum(net.trainable_params(), 0.02, 0.9)
    update = ThorUpdate(net, optimizer, 0.3, frequency=2)
    return AccumulatedStep(net, optimizer, 2, update=update)


def adasum():
    net = loss_net()
    return AdasumStep(net, nn.Adam(net.trainable_params(), 0.02), workers=2, micro_steps=2)


def subspace():
    net = loss_net()
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    basis = basis_of(optimizer.parameters, 3)
    return SubspaceStep(net, optimizer, basis, micro_steps=2, alpha=1.0, gamma=0.0)


def two_ranks():
    """BatchNorm's statistics, loss scale and partly gathered sums are of each rank."""
    net = loss_net(norm=True)
    scale = DynamicLossScale(2.0**10, 2.0, 5)
    return AccumulatedStep(net, nn.Adam(net.trainable_params(), 0.02), 4, loss_scale=scale)


STEPS = {
    "accumulation": accumulation,
    "THOR": thor,
    "Adasum": adasum,
    "subspace": subspace,
    "two ranks": two_ranks,
}


def of_rank(rank, ranks):
    """Shuffled batches of this rank's rows."""
    ms.dataset.config.set_seed(1)
    images, labels = images_and_labels(92)
    images = (images - 128).transpose(0, 3, 1, 2) / 60
    columns = ["images", "labels"]
    shard = {"num_shards": ranks, "shard_id": rank}
    return NumpySlicesDataset((images, labels), columns, shuffle=True, **shard).batch(4)


class Slow(Callback):
    """Leave time to be killed in."""

    def on_train_step_end(self, run_context):
        time.sleep(0.01)


def main(kind, folder):
    ranks = RANKS.get(kind, 1)
    labkit.start("CPU", seed=1, distribute=ranks > 1)
    rank = cluster.rank_and_size()[0]
    data = of_rank(rank, ranks) if ranks > 1 else dataset(augment=True)
    step = STEPS[kind]()
    fit(
        step,
        data,
        EPOCHS,
        folder=folder / "run",
        resume=True,
        checkpoint_every=EVERY,
        progress=None,
        callbacks=[Slow()],
    )
    (folder / f"ended-{rank}").write_text(digest(step))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
