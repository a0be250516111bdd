"""One training of the race of Adasum, mean and sum: N virtual workers, with its curve."""

import math

import mindspore as ms
import numpy as np
from _race import Images, batches, judge
from mindspore import Tensor, nn

from labkit.algorithms.adasum import AdasumStep
from labkit.labs.results.adasum_race import BATCH
from labkit.labs.results.stored import LAYERS
from labkit.nets.lenet import LeNet5
from labkit.steps.losses import LossNet
from labkit.steps.plain import PlainStep
from labkit.steps.schedules import get_lr

MOMENTUM = 0.9
WARMUP = 0.17  # of the updates


def make_step(setting: dict, updates: int, seed: int):
    """Return (network, step) of one setting, freshly initialised.

    setting  as ``labkit.labs.results.adasum_race.setting_of`` makes it; learning_rate is the peak
    updates  length of the schedule
    """
    ms.set_seed(seed)
    np.random.seed(seed)
    network = LeNet5()
    peak = setting["learning_rate"]
    rates = Tensor(get_lr(0.0, 0.0, peak, max(1, round(WARMUP * updates)), updates, 1))
    parameters = network.trainable_params()
    if setting["optimizer"] == "Momentum":
        optimizer = nn.Momentum(parameters, rates, MOMENTUM)
    else:
        optimizer = {"SGD": nn.SGD, "Adam": nn.Adam}[setting["optimizer"]](parameters, rates)
    loss_net = LossNet(network, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"))
    if setting["workers"] == 1:
        return network, PlainStep(loss_net, optimizer)
    given = {name: setting[name] for name in ("workers", "reduction", "on", "scope")}
    return network, AdasumStep(loss_net, optimizer, **given)


def train(setting: dict, data: Images, seed: int, *, epochs: int, points: int) -> dict:
    """Train once and return its curve and what became of it, ready for JSON.

    The workers take the batches in turns. Batches that are too few for an update of all workers
    are left out at the end.

    epochs  passes over the images, all workers together
    points  how often the network is judged, the last time at the end

    Returns ``curve``, points as ``labkit.labs.results`` stores them; ``failure``, what stopped the
    training, or an empty text.
    """
    workers = setting["workers"]
    total = epochs * (len(data.rows) // BATCH) // workers
    judged = {round(total * number / points) for number in range(1, points + 1)}
    network, step = make_step(setting, total, seed)
    stream = batches(data.rows, total * workers, seed, BATCH)
    curve, losses, cosines, failure = [], [], [], ""
    try:
        for update in range(1, total + 1):
            for _ in range(workers):
                rows = next(stream)
                losses.append(step(Tensor(data.images[rows]), Tensor(data.labels[rows])))
            if workers > 1:
                cosines.append(cosines_of(step.vectors()))
            if update not in judged:
                continue
            curve.append(_point(update, network, data, losses, cosines))
            losses, cosines = [], []
            if not math.isfinite(curve[-1]["loss"] + curve[-1]["training_loss"]):
                failure = "the loss is not finite"
                break
    except (FloatingPointError, RuntimeError, ValueError) as error:
        failure = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return {"curve": curve, "failure": failure}


def _point(update, network, data, losses, cosines):
    accuracy, loss = judge(network, data)
    seen = float(np.mean([float(each.asnumpy()) for each in losses]))
    point = {"update": update, "accuracy": accuracy, "loss": loss, "training_loss": seen}
    for name in LAYERS:
        found = [each[name] for each in cosines if name in each]
        point[f"cosine_{name}"] = round(float(np.mean(found)), 5) if found else None
    return point


def cosines_of(vectors: dict) -> dict[str, float]:
    """Return the mean cosine over pairs of workers of each layer's weight.

    vectors  parameter name -> (workers, size); a layer in which a worker has a zero vector, or one
             that is not finite, is left out
    """
    found = {}
    for name in LAYERS:
        rows = vectors[f"{name}.weight"].astype(np.float64)
        lengths = np.linalg.norm(rows, axis=1)
        if not (np.isfinite(lengths) & (lengths > 0)).all():
            continue
        total = (rows / lengths[:, None]).sum(axis=0)
        count = len(rows)
        # |sum of unit vectors|^2 is N and twice the sum over pairs.
        found[name] = float((total @ total - count) / (count * (count - 1)))
    return found
