"""One training up to a target accuracy: N workers' mean as one large batch, or Adasum of moves."""

import time

import numpy as np
from _adasum_training import step_at
from _critical_plan import judged_at
from _race import Images, batches, run

from labkit.labs.results.races import BATCH, rounded


def train(setting: dict, data: Images, seed: int, *, most: int, target: float) -> dict:
    """Train until ``target``; return what ``_race.run`` does, and ``processor_seconds``.

    The momentum of a mean is the mean of the workers' momentums, and the mean of their gradients is
    the gradient over all their images: so the mean is trained as a single worker with N times the
    batch. Adasum's workers split the same large batch and take their parts in turn.

    Args:
        setting: from ``labkit.labs.results.races.adasum_setting``, at a constant learning rate
        data: images for training and for judging
        seed: seed of weights and order
        most: number of updates after which it ends
        target: accuracy at which it ends, 0 .. 1
    """
    begin = time.process_time()
    workers, is_adasum = setting["workers"], setting["reduction"] == "adasum"
    turns = workers if is_adasum else 1
    network, step = step_at(setting | {"workers": turns}, setting["learning_rate"], seed)
    large = batches(data.rows, most, seed, workers * BATCH)
    stream = (rows for batch in large for rows in np.split(batch, turns))
    outcome = run(step, network, data, stream, judged_at(most), workers=turns, stop_at=target)
    # Rounded to six digits: at full precision the table would be twice as large.
    losses = ("loss", "training_loss")
    short = [
        {**point, **{name: rounded(point[name]) for name in losses}} for point in outcome["curve"]
    ]
    return outcome | {"curve": short, "processor_seconds": time.process_time() - begin}
