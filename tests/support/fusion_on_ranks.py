"""What each rank runs in test_fusion_on_ranks.py: ``msrun ... fusion_on_ranks.py OUT``.

Writes OUT/rank<n>.npz: the weights after three updates, by step and indices.
"""

import sys
from pathlib import Path

import numpy as np

from tests.support.rank_programs import save

INDICES = {"single": None, "one": (5,), "two": (1, 5), "three": (0, 3)}
STEPS = ("plain", "accumulated", "thor", "subspace")


def step_of(kind, network, indices):
    """A step over all ranks that sends gradients in these messages."""
    from mindspore import nn

    from labkit import AccumulatedStep, LossNet, PlainStep, SubspaceStep, ThorStep
    from tests.support.subspace_cells import basis_of

    loss_net = LossNet(network, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"))
    parameters = network.trainable_params()
    fused = {"all_reduce_fusion_config": indices, "clip_norm": 0.5}
    if kind == "plain":
        return PlainStep(loss_net, nn.Momentum(parameters, 0.1, 0.9), **fused)
    if kind == "accumulated":
        return AccumulatedStep(loss_net, nn.Momentum(parameters, 0.1, 0.9), 2, **fused)
    if kind == "thor":
        return ThorStep(loss_net, nn.Momentum(parameters, 0.1, 0.9), 0.1, frequency=2, **fused)
    return SubspaceStep(loss_net, nn.SGD(parameters, 1.0), basis_of(parameters, 3), **fused)


def run(kind, indices, rank):
    """Three updates; return the weights."""
    import mindspore as ms
    from mindspore import Tensor, nn

    ms.set_seed(3)
    network = nn.SequentialCell(
        nn.Dense(6, 5), nn.ReLU(), nn.Dense(5, 4), nn.ReLU(), nn.Dense(4, 3)
    )
    step = step_of(kind, network, indices)
    random = np.random.default_rng(rank)
    for _ in range(6 if kind == "accumulated" else 3):
        images = random.normal(size=(7 + rank, 6)).astype(np.float32)
        labels = random.integers(0, 3, 7 + rank).astype(np.int32)
        step(Tensor(images), Tensor(labels))
    assert step.last_update.number == 3
    return np.concatenate([p.asnumpy().ravel() for p in network.trainable_params()])


def main(out):
    from mindspore.communication import get_rank, init

    from labkit.runtime import start

    start(device="CPU", seed=1)
    init()
    rank = get_rank()
    results = {
        f"{kind}/{name}": run(kind, indices, rank)
        for kind in STEPS
        for name, indices in INDICES.items()
    }
    save(out, rank, results)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
