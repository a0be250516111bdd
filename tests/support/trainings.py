"""Small trainings that the tests of ``fit``, checkpoints, resuming and kills share.

Rows are distinct and reshuffled in each epoch: a test of resuming on repeated rows could not detect
a wrong order.
"""

import shutil
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.dataset import NumpySlicesDataset, transforms, vision

from labkit.algorithms.adasum import AdasumStep
from labkit.algorithms.subspace import SubspaceStep
from labkit.algorithms.thor import ThorStep, ThorUpdate, TraceRule
from labkit.optimizers import AdamW, Both, Muon
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.losses import LossNet
from labkit.steps.step import PlainStep
from labkit.training import checkpoint
from labkit.training.fit import fit
from tests.support.step_cells import snapshot
from tests.support.subspace_cells import basis_of

ROOT = Path(__file__).resolve().parents[2]
CLASSES, EPOCHS = 3, 3
# Columns in which a resumed training differs from an uninterrupted one.
OF_THE_PROCESS = ("seconds", "peak_memory_mb")


def images_and_labels(rows, dtype=np.float32):
    """Arrays (rows, 4, 4, 1) and (rows,) int32, all rows different."""
    random = np.random.default_rng(0)
    images = random.normal(128, 60, size=(rows, 4, 4, 1)).clip(0, 255).astype(dtype)
    return images, random.integers(0, CLASSES, rows).astype(np.int32)


def dataset(
    rows=46, batch=4, augment=False, workers=1, drop=True, spoiled_row=None, seed=1, **shard
):
    """Shuffled batches of images (B, 1, 4, 4) and labels; ``shard``: num_shards and shard_id."""
    ms.dataset.config.set_seed(seed)
    images, labels = images_and_labels(rows, np.uint8 if augment else np.float32)
    if spoiled_row is not None:
        images[spoiled_row] = np.nan
    scale = [vision.Rescale(1 / 60, -128 / 60), vision.HWC2CHW()]
    random = [vision.RandomCrop(4, padding=2), vision.RandomHorizontalFlip()] if augment else []
    source = NumpySlicesDataset((images, labels), ["images", "labels"], shuffle=True, **shard)
    source = source.map(random + scale, "images", num_parallel_workers=workers)
    source = source.map(transforms.TypeCast(ms.int32), "labels", num_parallel_workers=1)
    return source.shuffle(20).batch(batch, drop_remainder=drop)


def network(width=7, norm=False):
    """Network of images (B, 1, 4, 4) -> logits (B, 3), with the same weights at each call."""
    ms.set_seed(1)
    middle = [nn.BatchNorm1d(width)] if norm else []
    return nn.SequentialCell(
        nn.Flatten(), nn.Dense(16, width), *middle, nn.ReLU(), nn.Dense(width, CLASSES)
    )


def loss_fn():
    return nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")


def with_loss(**options):
    """``network`` with its loss, and its Parameters."""
    net = network(**options)
    return LossNet(net, loss_fn()), net.trainable_params()


def make_step(micro_steps=4, width=7, rate=0.02, **options):
    """AccumulatedStep on ``network`` with Adam, whose state is moments, powers of beta, a rate."""
    net, parameters = with_loss(width=width)
    return AccumulatedStep(net, nn.Adam(parameters, rate), micro_steps, **options)


def comparable(rows):
    """Rows of records without the columns ``OF_THE_PROCESS``."""
    return [{k: v for k, v in row.items() if k not in OF_THE_PROCESS} for row in rows]


def plain():
    net, parameters = with_loss()
    rates = nn.ExponentialDecayLR(0.05, 0.9, 1)
    return PlainStep(net, nn.Momentum(parameters, rates, 0.9, 1e-3))


def muon_and_adamw():
    """Two optimizers as one, with a schedule: the resume is within a group, too."""
    net, parameters = with_loss()
    matrices = [parameter for parameter in parameters if parameter.ndim == 2]
    biases = [parameter for parameter in parameters if parameter.ndim == 1]
    rates = nn.ExponentialDecayLR(0.02, 0.9, 1)
    return AccumulatedStep(net, Both(parameters, Muon(matrices, rates), AdamW(biases)), 4)


def accumulated_thor():
    net, parameters = with_loss()
    adam = nn.Adam(parameters, 0.02)
    options = {"frequency": 2, "factor_decay": 0.5, "trace_rule": TraceRule(0.2, 0.02)}
    update = ThorUpdate(net, adam, 0.3 * 0.9 ** np.arange(20), **options)
    return AccumulatedStep(net, adam, 4, update=update)


def adasum(**options):
    net, parameters = with_loss()
    return AdasumStep(net, nn.Adam(parameters, 0.02), **options)


def thor(**options):
    """A step with every kind of state: trace rule, running average, schedules, BatchNorm."""
    net, parameters = with_loss(norm=True)
    momentum = nn.Momentum(parameters, nn.ExponentialDecayLR(0.05, 0.9, 1), 0.9, 1e-3)
    own = {"frequency": 3, "factor_decay": 0.7, "trace_rule": TraceRule(0.2, 0.02)}
    return ThorStep(net, momentum, 0.3, **own | options)


def subspace(seed=0, **options):
    """A step with every kind of state: B, residual, Adam's moments, BatchNorm."""
    net, parameters = with_loss(norm=True)
    adam = nn.Adam(parameters, nn.ExponentialDecayLR(0.02, 0.9, 1))
    return SubspaceStep(net, adam, basis_of(parameters, 6, seed=seed), alpha=0.5, **options)


def quiet_fit(step, data, epochs=EPOCHS, **options):
    return fit(step, data, epochs, progress=None, **options)


def position_of(path):
    """Return the position that a checkpoint holds."""
    return checkpoint.load(path)[0]


class Training:
    """An uninterrupted training with a checkpoint after every micro-batch."""

    def __init__(self, folder, make=make_step, data=dataset):
        self.folder, self.make, self.data, self.step = folder, make, data, make()
        self.fresh = snapshot(self.step)
        records = quiet_fit(self.step, data(), folder=folder, checkpoint_every=1, keep=1000)
        self.rows, self.final = comparable(records.rows), snapshot(self.step)
        self.paths = checkpoint.checkpoints(folder / "checkpoint")

    def interrupted(self, path, folder):
        """Write into ``folder`` what a kill right after the checkpoint ``path`` leaves behind."""
        (folder / "checkpoint").mkdir(parents=True)
        shutil.copy(path, folder / "checkpoint")
        lines = (self.folder / "records.csv").read_text().splitlines(keepends=True)
        count = position_of(path).records + 1
        # Two rows of later updates, the last one cut short: no checkpoint was written after them.
        later = lines[count : count + 2] or ["3,99,1"]
        (folder / "records.csv").write_text("".join(lines[:count] + later)[:-5])
        return folder

    def resumed(self, path, folder, step=None):
        """Resume from ``path``; return the records and all Parameters at the end."""
        step = self.make() if step is None else step
        self.interrupted(path, folder)
        records = quiet_fit(step, self.data(), folder=folder, resume=True)
        return comparable(records.rows), snapshot(step)
