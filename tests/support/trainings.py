"""Small trainings that the tests of ``fit``, checkpoints and kills share.

Rows are distinct and reshuffled in each epoch: a test of resuming on repeated rows could not detect
a wrong order.
"""

from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.dataset import NumpySlicesDataset, transforms, vision

from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.losses import LossNet

ROOT = Path(__file__).resolve().parents[2]
CLASSES = 3
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
    """Shuffled batches of images (B, 1, 4, 4) and labels; ``augment`` crops and flips at random.

    shard    num_shards and shard_id of a rank's part
    """
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


def make_step(micro_steps=4, width=7, rate=0.02, **options):
    """AccumulatedStep on ``network`` with Adam, whose state is moments, powers of beta, a rate."""
    net = network(width)
    optimizer = nn.Adam(net.trainable_params(), rate)
    return AccumulatedStep(LossNet(net, loss_fn()), optimizer, micro_steps, **options)


def comparable(rows):
    """Rows of records without the columns ``OF_THE_PROCESS``."""
    return [{k: v for k, v in row.items() if k not in OF_THE_PROCESS} for row in rows]
