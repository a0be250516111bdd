"""One training of the race of Adasum, mean and sum: N virtual workers, with its curve."""

import mindspore as ms
import numpy as np
from _adasum_plan import BATCH
from _race import Images, batches, run
from mindspore import Tensor, nn

from labkit.algorithms.adasum import AdasumStep
from labkit.labs.results.races import LAYERS
from labkit.nets.lenet import LeNet5
from labkit.steps.losses import LossNet
from labkit.steps.plain import PlainStep
from labkit.steps.schedules import get_lr

MOMENTUM = 0.9
WARMUP = 0.17  # of the updates


def make_step(setting: dict, updates: int, seed: int):
    """Return (network, step) of one setting, newly initialised, for a schedule of ``updates``.

    Args:
        setting: from ``labkit.labs.results.races.adasum_setting``; learning_rate is the peak
        updates: length of the schedule
        seed: seed of the weights
    """
    peak = setting["learning_rate"]
    rates = get_lr(0.0, 0.0, peak, max(1, round(WARMUP * updates)), updates, 1)
    return step_at(setting, Tensor(rates), seed)


def step_at(setting: dict, rate: float | Tensor, seed: int):
    """Return (network, step) of one setting at a constant rate or with one rate per update."""
    ms.set_seed(seed)
    np.random.seed(seed)
    network = LeNet5()
    optimizer = nn.Momentum(network.trainable_params(), rate, MOMENTUM)
    loss_net = LossNet(network, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"))
    if setting["workers"] == 1:
        return network, PlainStep(loss_net, optimizer)
    options = {name: setting[name] for name in ("workers", "reduction", "on", "scope")}
    return network, AdasumStep(loss_net, optimizer, **options)


def train(setting: dict, data: Images, seed: int, *, epochs: int, points: int) -> dict:
    """Train once and return what ``_race.run`` does; points also have the workers' cosines.

    The workers take batches in turn. Batches at the end that do not suffice for an update of all
    workers are dropped.

    Args:
        setting: as for ``make_step``
        data: images for training and for judging
        seed: seed of weights and order
        epochs: passes over the images, all workers together
        points: number of evaluations, the last one at the end
    """
    workers = setting["workers"]
    total = epochs * (len(data.rows) // BATCH) // workers
    judged = {round(total * number / points) for number in range(1, points + 1)}
    network, step = make_step(setting, total, seed)
    stream = batches(data.rows, total * workers, seed, BATCH)
    cosines = []  # since the previous point

    def after(update):
        if workers > 1:
            cosines.append(cosines_of(step.vectors()))

    def mean_cosines():
        fields = {}
        for name in LAYERS:
            values = [by_layer[name] for by_layer in cosines if name in by_layer]
            fields[f"cosine_{name}"] = round(float(np.mean(values)), 5) if values else None
        cosines.clear()
        return fields

    return run(
        step, network, data, stream, judged, workers=workers, after=after, extra=mean_cosines
    )


def cosines_of(vectors: dict) -> dict[str, float]:
    """Return, for each layer's weight, the mean cosine over pairs of workers.

    ``vectors`` is parameter name -> (workers, size); a layer in which a worker's vector is zero or
    not finite is left out.
    """
    cosines = {}
    for name in LAYERS:
        rows = vectors[f"{name}.weight"].astype(np.float64)
        lengths = np.linalg.norm(rows, axis=1)
        if not (np.isfinite(lengths) & (lengths > 0)).all():
            continue
        total = (rows / lengths[:, None]).sum(axis=0)
        count = len(rows)
        # |sum of unit vectors|^2 is N plus twice the sum over pairs.
        cosines[name] = float((total @ total - count) / (count * (count - 1)))
    return cosines
