"""What each rank runs in test_accumulation_on_ranks.py: ``msrun ... accumulation_on_ranks.py OUT``.

Writes OUT/rank<n>.npz: parameters, counters and reports after every call of every case; and, by
step and indices, the weights after three updates that send several gradients in one message.
"""

import sys
from pathlib import Path

import numpy as np

from tests.support.rank_programs import save

LEARNING_RATE = 0.05
# name -> (step, options, rows of each rank, calls that are NaN as (rank, call), number of calls)
CASES = {
    "two means": ("accumulated", {"pairs": True}, (6, 2), (), 4),
    "plain, two means": ("plain", {"pairs": True, "clip_norm": 0.5}, (6, 2), (), 3),
    "halves": ("accumulated", {}, (4, 4), (), 5),
    "uneven": ("accumulated", {}, (6, 2), (), 5),
    "uneven by steps": ("accumulated", {"of_means": True}, (6, 2), (), 4),
    "sum": ("accumulated", {"reduction": "sum"}, (6, 2), (), 4),
    "clipped": ("accumulated", {"clip_norm": 0.5, "loss_scale": 1024.0}, (6, 2), (), 4),
    "decayed": ("accumulated", {"weight_decay": 0.1}, (6, 2), (), 4),
    "plain, decayed": ("plain", {"weight_decay": 0.1, "clip_norm": 0.5}, (6, 2), (), 3),
    "sum, decayed": ("accumulated", {"weight_decay": 0.1, "reduction": "sum"}, (6, 2), (), 4),
    "drop_micro": ("accumulated", {}, (6, 2), ((1, 0), (0, 4), (1, 4), (0, 5), (1, 5)), 6),
    # The second group of rank 0 is empty: it must add nothing, not the sums of the group before.
    "nothing on one rank": ("accumulated", {}, (4, 4), ((0, 2), (0, 3)), 6),
    "drop_group": ("accumulated", {"nonfinite": "drop_group"}, (4, 4), ((1, 0),), 4),
    "plain": ("plain", {}, (6, 2), (), 3),
    "plain, not finite on one rank": ("plain", {}, (4, 4), ((0, 1),), 3),
}
INDICES = {"single": None, "one": (5,), "two": (1, 5), "three": (0, 3)}
FUSED = ("plain", "accumulated", "thor", "subspace")
# Cases that run as graphs, in which ranks could wait for each other in two branches; the others run
# operator by operator, in half a second instead of ten. Both modes agree: tests/steps/test_step.py.
COMPILED = (
    *("uneven", "clipped", "drop_micro", "nothing on one rank", "two means"),
    *("plain, not finite on one rank", "fused/plain/single", "fused/plain/two"),
)


def batch(rank, call, sizes, nan=()):
    """This rank's rows of a call: consecutive parts of one batch."""
    from tests.support.step_cells import rows

    start = sum(sizes[:rank])
    inputs, targets = (part[start : start + sizes[rank]] for part in rows(sum(sizes), seed=call))
    return inputs, targets * np.float32(np.nan if (rank, call) in nan else 1.0)


def run(case, rank):
    """Run one case and return the arrays to compare, by name."""
    from tests.support.step_cells import (
        STEPS,
        Own,
        TwoMeans,
        momentum,
        of_means,
        regression,
        tensors,
    )

    kind, options, sizes, nan, calls = CASES[case]
    network, loss_net = regression()
    options = dict(options)
    optimizer = momentum(network, LEARNING_RATE, options.pop("weight_decay", 0.0))
    if options.pop("of_means", False):
        loss_net = Own(network, of_means)
    if options.pop("pairs", False):
        loss_net = TwoMeans(network)
    step = STEPS[kind](loss_net, optimizer, **options)
    results = {}
    for call in range(calls + 1):
        if call < calls:
            step(*tensors(*batch(rank, call, sizes, nan)))
        else:
            step.end_epoch()
        last = step.last_update
        results[f"{case}/{call}/weight"] = network.weight.asnumpy().copy()
        results[f"{case}/{call}/bias"] = network.bias.asnumpy().copy()
        results[f"{case}/{call}/last"] = np.array(
            [last.number, last.loss, last.gradient_norm, last.images]
        )
        results[f"{case}/{call}/dropped"] = step.dropped.asnumpy().copy()
    return results


def fused(kind, indices, rank):
    """Make three updates of a step that sends gradients in such messages; return the weights."""
    import mindspore as ms
    from mindspore import nn

    from labkit import LossNet
    from tests.support.step_cells import STEPS, momentum, tensors
    from tests.support.trainings import loss_fn

    ms.set_seed(3)
    network = nn.SequentialCell(
        nn.Dense(6, 5), nn.ReLU(), nn.Dense(5, 4), nn.ReLU(), nn.Dense(4, 3)
    )
    options = {"all_reduce_fusion_config": indices, "clip_norm": 0.5}
    step = STEPS[kind](LossNet(network, loss_fn()), momentum(network, 0.1), **options)
    random = np.random.default_rng(rank)
    for _ in range(6 if kind == "accumulated" else 3):
        images = random.normal(size=(7 + rank, 6)).astype(np.float32)
        labels = random.integers(0, 3, 7 + rank).astype(np.int32)
        step(*tensors(images, labels))
    assert step.last_update.number == 3
    return np.concatenate([p.asnumpy().ravel() for p in network.trainable_params()])


def main(out):
    from mindspore.communication import get_rank, init

    from labkit.runtime import start
    from tests.support.rank_programs import in_mode

    start(device="CPU", seed=1)
    init()
    results = {}
    for case in CASES:
        with in_mode(case in COMPILED):
            results |= run(case, get_rank())
    for kind in FUSED:
        for name, indices in INDICES.items():
            case = f"fused/{kind}/{name}"
            with in_mode(case in COMPILED):
                results[case] = fused(kind, indices, get_rank())
    save(out, get_rank(), results)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
