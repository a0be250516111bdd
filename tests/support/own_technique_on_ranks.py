"""What each rank runs in test_own_technique.py: Lookahead on its half of every batch.

    python own_technique_on_ranks.py EXAMPLES OUT      under msrun

Writes OUT/rank<n>.npz: all Parameters of the step after seven updates of two micro-batches.
"""

import sys
from pathlib import Path

import numpy as np

SIZES = (6, 2)  # rows of each rank


def trained(examples, rank=None):
    """Train on this rank's rows, or on all of them (None); return the step."""
    sys.path.insert(0, str(examples))
    from mindspore import nn
    from own_technique import Lookahead

    from labkit.steps.accumulation import AccumulatedStep
    from tests.support.step_cells import regression, rows, tensors

    network, loss_net = regression()
    sgd = nn.SGD(network.trainable_params(), 0.1)
    update = Lookahead(sgd, period=3, step_size=0.5)
    step = AccumulatedStep(loss_net, sgd, 2, update=update, clip_norm=0.5)
    start = 0 if rank is None else sum(SIZES[:rank])
    size = sum(SIZES) if rank is None else SIZES[rank]
    for call in range(14):
        step(*tensors(*(part[start : start + size] for part in rows(sum(SIZES), seed=call))))
    return step


if __name__ == "__main__":
    import labkit

    runtime = labkit.start("CPU", distribute=True)
    step = trained(Path(sys.argv[1]), runtime.rank)
    values = {parameter.name: parameter.asnumpy() for parameter in step.get_parameters()}
    np.savez(Path(sys.argv[2]) / f"rank{runtime.rank}.npz", **values)
