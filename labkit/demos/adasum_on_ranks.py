"""LeNet on MNIST with Adasum over ranks: lab 04 starts it, to compare with virtual workers.

    python -m labkit.demos.adasum_on_ranks FOLDER [--updates N] [--seed N]      under msrun

Micro-batch n belongs to worker n mod N, whether N virtual workers share one process or N ranks have
one worker each. Rank r writes FOLDER/rank_<r>.npz: the weights after training with Adasum, and the
milliseconds of an update for each reduction.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.base.arguments import Parser
from labkit.base.files import whole_file
from labkit.labs.compare import parameter_values
from labkit.runtime import start

if TYPE_CHECKING:
    from labkit.algorithms.adasum import AdasumStep

BATCH, RATE, MOMENTUM = 32, 0.03, 0.9


def make_step(seed: int, reduction: str = "adasum", workers: int = 1) -> AdasumStep:
    """Return an ``AdasumStep`` of a LeNet with the weights of ``seed``, and a constant rate."""
    import mindspore as ms
    from mindspore import nn

    from labkit.algorithms.adasum import AdasumStep
    from labkit.nets.lenet import LeNet5
    from labkit.steps.losses import LossNet

    ms.set_seed(seed)
    network = LeNet5()
    optimizer = nn.Momentum(network.trainable_params(), RATE, MOMENTUM)
    loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    loss_net = LossNet(network, loss_fn)
    return AdasumStep(loss_net, optimizer, workers=workers, reduction=reduction)


def train(
    steps: Sequence[AdasumStep], images: np.ndarray, labels: np.ndarray, updates: int
) -> list[float]:
    """Make ``updates`` updates of each of ``steps`` with this process's micro-batches.

    They are cut from images (N, 1, 32, 32) and labels (N,). The steps take turns. Returns each
    step's median time of an update in milliseconds, without the first update, which compiles.
    """
    from mindspore import Tensor

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


def main(argv: Sequence[str] | None = None) -> None:
    """Train on this rank and write its file."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    if options.updates < 2:
        parser.error(f"--updates: expected at least 2, got {options.updates}")
    runtime = start(seed=options.seed, distribute=True)

    from labkit.data.mnist import load_arrays
    from labkit.data.prepare import prepare

    data = load_arrays(prepare("mnist"), "train", options.updates * runtime.ranks * BATCH)
    reductions = ("mean", "adasum")
    steps = [make_step(options.seed, reduction) for reduction in reductions]
    times = train(steps, *data, options.updates)
    arrays: dict[str, Any] = {f"ms_{name}": ms for name, ms in zip(reductions, times, strict=True)}
    steps[-1].check_replicas()
    arrays |= parameter_values(steps[-1].gradient.loss_net)
    with whole_file(options.folder / f"rank_{runtime.rank}.npz", "the weights") as temporary:
        np.savez(temporary, **arrays)


if __name__ == "__main__":
    main()
