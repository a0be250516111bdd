"""What each rank runs in algorithms/subspace/test_on_ranks.py: ``msrun ... THIS_FILE OUT``.

Writes OUT/rank<n>.npz: by case, the weights, reports and searches after every micro-batch; and the
messages of what was refused.
"""

import sys
from pathlib import Path

import numpy as np
from mindspore import nn

from labkit.algorithms.subspace import Basis, SubspaceStep, basis_from
from labkit.ranks import cluster
from labkit.runtime import start
from tests.support.rank_programs import operator_names, refused, save
from tests.support.snapshots import SHAPES, SIZE, with_spectrum, write
from tests.support.step_cells import tensors
from tests.support.subspace_cells import basis_of, flat, small, small_rows, small_weights

RANKS = (2, 3)
ROWS = 24  # of an update's micro-batch, over all ranks
UPDATES = 6
# name -> (components, options, numbers of micro-batches that are NaN on the last rank). The last
# case, whose collectives the others use as well, runs on two ranks only.
CASES = {
    # With 4 components, one of three ranks has none.
    "search": (4, {"alpha": 0.1}, ()),
    # The last rank has no part in the second update; 3 components are not a multiple of two ranks.
    "micro-batches": (3, {"micro_steps": 2, "sigma": 0.95, "trials": 2, "alpha": 0.1}, (2, 3, 5)),
    "projected sgd": (5, {"method": "sgd", "clip_norm": 0.7}, ()),
}


def cases(ranks):
    """Return the names of the cases that this number of ranks runs."""
    return list(CASES) if ranks == 2 else list(CASES)[:2]


def micro_batches(case, number, ranks):
    """Return each rank's rows, of different sizes, in micro-batch ``number``; None if they are NaN.

    In one process all finite rows are one micro-batch.
    """
    inputs, labels = small_rows(ROWS, seed=number)
    sizes = np.full(ranks, ROWS // ranks) + np.r_[1, np.zeros(ranks - 2, int), -1]
    ends = np.cumsum(sizes)
    parts = [(inputs[e - s : e], labels[e - s : e]) for s, e in zip(sizes, ends, strict=True)]
    if number in CASES[case][2]:
        parts[-1] = None
    return parts


def run(case, ranks, rank=None):
    """Train one case on this rank, or on all rows in one process; return the arrays to compare."""
    components, options, _ = CASES[case]
    network, loss_net = small()
    parameters = network.trainable_params()
    rate = 0.3 if options.get("method") == "sgd" else 1.0
    sgd = nn.SGD(parameters, rate, weight_decay=0.01)
    step = SubspaceStep(loss_net, sgd, basis_of(parameters, components), **options)
    arrays = {}
    for number in range(UPDATES * options.get("micro_steps", 1)):
        parts = micro_batches(case, number, ranks)
        if rank is None:
            finite = [part for part in parts if part is not None]
            batch = [np.concatenate(part) for part in zip(*finite, strict=True)]
        else:
            batch = parts[rank] or (np.full((4, 6), np.nan, np.float32), np.zeros(4, np.int32))
        step(*tensors(*batch))
        arrays[f"{case}/weights/{number}"] = flat(network)
        last = step.last_update
        arrays[f"{case}/last/{number}"] = np.array([last.number, last.loss, last.images])
        if step.update.searches:
            search = step.last_search
            arrays[f"{case}/search/{number}"] = np.array(
                [search.trials, search.step_size, search.failures]
            )
    return arrays


def refusals(rank):
    """Return the errors of ranks whose bases differ, and of ranks whose weights differ."""

    def build(seed, weights):
        network, loss_net = small(weights)
        parameters = network.trainable_params()
        basis = basis_of(parameters, 3, seed=seed)
        return SubspaceStep(loss_net, nn.SGD(parameters, 1.0), basis)

    weights = small_weights()
    other = np.where(np.arange(70) == 41, np.nextafter(np.float32(weights), np.float32(9)), weights)
    return {
        "refused/basis": refused(lambda: build(rank == 1, weights)),
        "refused/weights": refused(lambda: build(0, other if rank == 1 else weights)),
    }


def of_snapshots(out, rank):
    """Return the checksums and messages of the calls of ``basis_from`` on this rank."""
    if rank == 0:  # the others wait for it in basis_from
        write(out / "snapshots", with_spectrum(6, SIZE, 2.0 ** -np.arange(5.0)))
    said, pairs = [], SHAPES.items()
    made, loaded = (basis_from(None, out / "snapshots", pairs, 3, said.append) for _ in range(2))
    other = out / "other.safetensors"
    refused_basis = refused(lambda: basis_from(other, out / "snapshots", pairs, 7))
    expected = Basis.of(out / "snapshots", pairs, 3).checksum
    checksums = np.array([made.checksum, loaded.checksum, expected])
    return {"basis/checksums": checksums, "basis/said": said, "basis/refused": refused_basis}


def main(out):

    start(device="CPU", seed=1, distribute=True)
    rank, ranks = cluster.rank_and_size()
    arrays = {}
    for case in cases(ranks):
        arrays |= run(case, ranks, rank)
    if ranks == 2:
        arrays |= refusals(rank) | of_snapshots(out, rank)
        arrays["operators"] = operator_names(run, "search", 2, 0)
    save(out, rank, arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
