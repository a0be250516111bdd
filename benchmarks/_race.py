"""Parts of a race of optimizers: the images in memory, and one training with its curve."""

import math
import time
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from labkit.algorithms.thor import ThorStep, TraceRule
from labkit.data.mnist import load_arrays
from labkit.nets.lenet import LeNet5
from labkit.nets.resnet import ResidualBlockBase, ResNet
from labkit.reference.lenet import cross_entropy
from labkit.steps.losses import LossNet
from labkit.steps.plain import PlainStep
from labkit.steps.schedules import cosine

BATCH = 128
MOMENTUM = 0.9
WEIGHT_DECAY = 5e-4
# The split is independent of a training's seed: all are validated on the same images.
_SPLIT_SEED = 0
_EVALUATION_BATCH = 1000
NETS = ("LeNet", "ResNet", "dense")


@dataclass(frozen=True)
class Images:
    """Data of a training: images (N, 1, 32, 32) float32, labels (N,), and those it is judged by.

    ``rows`` selects the images that it trains on.
    """

    images: np.ndarray
    labels: np.ndarray
    rows: np.ndarray
    judged_images: np.ndarray
    judged_labels: np.ndarray


def images_for(data_path: Path, part: str, *, held_out: int, train: int | None, test: int | None):
    """Return the ``Images`` of a part of the race.

    Args:
        data_path: folder with train/ and test/ of MNIST
        part: "validation": the training set without ``held_out`` images, which judge it; "test":
            the whole training set, judged by the test set; "as published": as "test", with the two
            rescalings in the order of MindSpore's tutorial
        held_out: number of images held out
        train: use only the first ``train`` images of the training set; None: all
        test: use only the first ``test`` images of the test set; None: all
    """
    rescale = "seed" if part == "as published" else "correct"
    images, labels = load_arrays(data_path, "train", train, rescale=rescale)
    if part != "validation":
        judged = load_arrays(data_path, "test", test, rescale=rescale)
        return Images(images, labels, np.arange(len(labels)), *judged)
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(labels))
    out = np.sort(order[:held_out])
    return Images(images, labels, np.sort(order[held_out:]), images[out], labels[out])


def build(net: str) -> nn.Cell:
    """Return a new network of ``NETS``.

    It is LeNet-5, a ResNet-10 of a quarter of the width, or one dense layer, which compiles fast
    and is not raced.
    """
    if net == "LeNet":
        return LeNet5()
    if net == "dense":
        return nn.SequentialCell(nn.Flatten(), nn.Dense(32 * 32, 10))
    return ThreeChannels(
        ResNet(ResidualBlockBase, [1] * 4, [16, 16, 32, 64], [16, 32, 64, 128], [1, 2, 2, 2], 10)
    )


class ThreeChannels(nn.Cell):
    """Applies a network for colour images to grey ones (B, 1, H, W), repeated as 3 channels."""

    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, x):
        return self.network(ms.ops.concat((x, x, x), axis=1))


def make_step(setting: dict, per_epoch: int, seed: int):
    """Return (network, step) of one setting, newly initialised.

    Args:
        setting: net, optimizer ("Momentum" or "THOR"), learning_rate, epochs (of the cosine), and,
            for THOR, damping and further options of ``ThorStep`` (trace_rule as a list)
        per_epoch: updates per epoch
        seed: seed of the weights
    """
    ms.set_seed(seed)
    np.random.seed(seed)
    options = dict(setting)
    network = build(options.pop("net"))
    name, peak = options.pop("optimizer"), options.pop("learning_rate")
    rates = Tensor(cosine(peak, 0.0, 1, updates_of(options.pop("epochs"), per_epoch)))
    loss_net = LossNet(network, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"))
    optimizer = nn.Momentum(network.trainable_params(), rates, MOMENTUM, WEIGHT_DECAY)
    if name == "Momentum":
        return network, PlainStep(loss_net, optimizer, **options)
    if rule := options.pop("trace_rule", None):
        options["trace_rule"] = TraceRule(*rule)
    return network, ThorStep(loss_net, optimizer, options.pop("damping"), **options)


def updates_of(epochs: float, per_epoch: int) -> int:
    """Return the updates of a training of ``epochs``, which may be a fraction."""
    return round(epochs * per_epoch)


def train(setting: dict, data: Images, seed: int, every: int, *, updates=None, stop_at=None):
    """Train once and return the outcome as ``run`` does; for THOR with ``refreshes``, ``retries``.

    Args:
        setting: as for ``make_step``
        data: images for training and for judging
        seed: seed of weights and order
        every: updates between evaluations
        updates: number of updates; None: until the end of the cosine
        stop_at: stop at the first evaluation with at least this accuracy
    """
    per_epoch = len(data.rows) // BATCH
    total = updates or updates_of(setting["epochs"], per_epoch)
    network, step = make_step(setting, per_epoch, seed)
    stream = batches(data.rows, total, seed)
    judged = {*range(every, total, every), total}
    outcome = run(step, network, data, stream, judged, stop_at=stop_at)
    if isinstance(step, ThorStep):
        outcome |= {
            "refreshes": int(step.update.refreshes.asnumpy().sum()),
            "retries": int(step.update.retries.asnumpy().sum()),
        }
    return outcome


def run(
    step: Callable,
    network: nn.Cell,
    data: Images,
    stream: Iterable[np.ndarray],
    judged: Container[int],
    *,
    workers: int = 1,
    after: Callable[[int], object] = lambda update: None,
    extra: Callable[[], dict] = dict,
    stop_at: float | None = None,
) -> dict:
    """Train on the batches of ``stream`` and return the outcome, ready for JSON.

    Args:
        step: makes an update from every ``workers`` batches
        network: network that ``step`` trains
        data: the images
        stream: rows of each batch
        judged: updates after which the network is judged
        workers: batches in an update
        after: called after each update with its number
        extra: returns further fields of a point
        stop_at: stop at the first evaluation with at least this accuracy

    Returns:
        ``curve``, points as ``labkit.labs.results`` stores them; ``failure``, what stopped the
        training, or an empty string; ``seconds``, with compilation, without judging.
    """
    curve, losses, failure, seconds = [], [], "", 0.0
    begin = time.perf_counter()
    try:
        for number, rows in enumerate(stream, start=1):
            losses.append(step(Tensor(data.images[rows]), Tensor(data.labels[rows])))
            update, rest = divmod(number, workers)
            if rest:
                continue
            after(update)
            if update not in judged:
                continue
            training_loss = float(np.mean([float(loss.asnumpy()) for loss in losses]))
            seconds += time.perf_counter() - begin
            accuracy, loss = judge(network, data)
            point = {"update": update, "accuracy": accuracy, "loss": loss}
            curve.append(point | {"training_loss": training_loss} | extra())
            losses, begin = [], time.perf_counter()
            if not math.isfinite(loss + training_loss):
                failure = "the loss is not finite"
                break
            if stop_at is not None and accuracy >= stop_at:
                break
    except (FloatingPointError, RuntimeError, ValueError) as error:
        failure = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return {"curve": curve, "failure": failure, "seconds": seconds}


def batches(rows: np.ndarray, total: int, seed: int, size: int = BATCH):
    """Yield ``total`` batches of rows, in a new order each epoch, without incomplete batches."""
    random = np.random.default_rng(seed)
    made = 0
    while True:
        order = random.permutation(rows)
        for start in range(0, len(order) - size + 1, size):
            if made == total:
                return
            made += 1
            yield order[start : start + size]


def judge(network: nn.Cell, data: Images) -> tuple[float, float]:
    """Return (accuracy, mean loss) over all images that the training is judged by."""
    network.set_train(False)
    starts = range(0, len(data.judged_labels), _EVALUATION_BATCH)
    parts = (data.judged_images[start : start + _EVALUATION_BATCH] for start in starts)
    logits = np.concatenate([network(Tensor(part)).asnumpy() for part in parts])
    network.set_train(True)
    return score(logits, data.judged_labels)


def score(logits: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Return (accuracy, mean cross-entropy in nats) of logits (N, classes) and labels (N,)."""
    loss, _ = cross_entropy(logits.astype(np.float64), labels)
    return float((logits.argmax(axis=1) == labels).mean()), loss
