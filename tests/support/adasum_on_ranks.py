"""What each rank runs in algorithms/adasum/test_on_ranks.py: ``msrun ... adasum_on_ranks.py OUT``.

Writes OUT/rank<n>.npz: by case, parameters, counters and reports; and messages of refused calls.
"""

import sys
from pathlib import Path
from unittest import mock

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from labkit.algorithms.adasum import AdasumStep
from labkit.algorithms.adasum.combine import ByGram
from labkit.algorithms.adasum.workers import Team
from labkit.nets.lenet import LeNet5
from labkit.ranks import cluster
from labkit.runtime import start
from labkit.steps.losses import LossNet
from labkit.steps.state import set_state
from labkit.training.fit import fit
from tests.support.rank_programs import operator_names, refused, save
from tests.support.step_cells import digits, momentum, regression, rows, tensors
from tests.support.trainings import dataset, loss_fn
from tests.support.trainings import network as classifier

LEARNING_RATE = 0.05
LENET_UPDATES = 20
# name -> (number of ranks, network, options, updates, calls of a worker that are NaN, as
# (worker, member of its node, update)). The option workers counts those of one rank.
CASES = {
    "LeNet": (2, "lenet", {}, LENET_UPDATES, ()),
    "virtual workers too": (2, "linear", {"workers": 2, "micro_steps": 2}, 4, ()),
    "gradients": (2, "linear", {"on": "gradients"}, 4, ((1, 0, 1),)),
    "not finite": (2, "linear", {}, 5, ((1, 0, 1), (0, 0, 3), (1, 0, 3))),
    "nodes": (4, "linear", {"node_size": 2}, 5, ((1, 0, 1), (0, 0, 2), (0, 1, 2))),
    "four": (4, "linear", {"reduction": "mean", "workers": 1}, 3, ()),
    "LeNet, four": (4, "lenet", {}, LENET_UPDATES, ()),
}


def batch(kind, update, worker, member, turn, nan=()):
    """Return the rows of a micro-batch: the same on every rank, different in each turn."""
    make = digits if kind == "lenet" else rows
    seed = 1000 * update + 100 * worker + 10 * member + turn
    inputs, targets = make(4 + member, seed=seed)
    if (worker, member, update) in nan:
        inputs = inputs * np.float32(np.nan)
    return inputs, targets


def build(kind, options):
    """Return (network, step) with Momentum, weight decay and a rate for every update."""
    rates = [LEARNING_RATE * 0.9**update for update in range(30)]
    if kind == "linear":
        network, loss_net = regression()
    else:
        ms.set_seed(1)
        network = LeNet5()
        loss_net = LossNet(network, nn.CrossEntropyLoss())
    return network, AdasumStep(loss_net, momentum(network, rates, 0.01), **options)


def run(case, rank=0, ranks=1):
    """Train one case on this rank, or for all ranks in one process; return what to compare."""
    total, kind, options, updates, nan = CASES[case]
    node, workers = options.get("node_size", 1), options.get("workers", 1)
    members, worker_of_all = range(node), range(total // node * workers)
    if ranks == 1:
        options = options | {"workers": len(worker_of_all)}
    else:
        members = [rank % node]
        worker_of_all = range(rank // node * workers, (rank // node + 1) * workers)
    network, step = build(kind, options)
    written = {}
    for update in range(updates):
        for worker in worker_of_all:
            for turn in range(options.get("micro_steps", 1)):
                for member in members:
                    arrays = batch(kind, update, worker, member, turn, nan)
                    step(*tensors(*arrays))
        last = step.last_update
        written[f"{case}/last/{update}"] = np.array(
            [last.number, last.loss, last.gradient_norm, *last.learning_rate, last.images]
        )
        for parameter in network.trainable_params():
            written[f"{case}/{parameter.name}/{update}"] = parameter.asnumpy().copy()
    step.end_epoch()
    written[f"{case}/dropped"] = step.dropped.asnumpy()
    written[f"{case}/text"] = np.array(step.team.text())
    return written


def planted_difference(rank):
    """Return the errors for a differing bias on rank 1: at an epoch's end, and when built."""
    network, loss_net = regression()
    step = AdasumStep(loss_net, momentum(network))
    if rank == 1:
        value = network.bias.asnumpy()
        value[1] = np.nextafter(value[1], np.float32(9))
        set_state(network.bias, value)
    sgd = nn.SGD(network.trainable_params(), 0.1)
    return refused(step.end_epoch), refused(lambda: AdasumStep(loss_net, sgd))


def second_is_unsure(rank):
    """Train the case "not finite" with a second rank whose Gram form never counts as sound."""
    ByGram.sound_or_not = ByGram.coefficients
    with mock.patch.object(ByGram, "coefficients", _unsure if rank == 1 else ByGram.coefficients):
        return run("not finite", rank, 2)


def _unsure(self, grams, lengths):
    weights, sound = self.sound_or_not(grams, lengths)
    return weights, sound.logical_and(sound.logical_not())


def rows_of_node(node):
    """Return rows (2, 1000) of a node's two workers, with all that float32 may hold at its limits.

    Subnormal numbers are not among them: an AllReduce makes them 0.
    """
    rows = np.random.default_rng(node).normal(size=(2, 1000)).astype(np.float32)
    rows[:, :6] = [np.nan, np.inf, -np.inf, -0.0, 1.2e-38, -3e38]
    return rows


def resumed(out, rank):
    """Resume a training in the middle of a team; return whether it ends with the same bits."""
    net = classifier()
    optimizer = nn.Adam(net.trainable_params(), 0.02)
    step = AdasumStep(LossNet(net, loss_fn()), optimizer, workers=2)
    folder = out / "run"
    options = dict(folder=folder, progress=None, keep=100)
    fit(step, dataset(seed=1 + rank), 1, checkpoint_every=3, **options)
    final = {p.name: p.asnumpy().copy() for p in step.get_parameters()}
    # Back to micro-batch 9: on each rank one of two workers has had its turn.
    own = folder / f"rank_{rank}" if rank else folder
    newest = sorted((own / "checkpoint").iterdir())[-1]
    newest.rename(own / "kept")
    fit(step, dataset(seed=1 + rank), 1, resume=True, **options)
    same = all(np.array_equal(p.asnumpy(), final[p.name]) for p in step.get_parameters())
    return {"resume/same": np.array(same)}


def main(out):

    start(device="CPU", seed=1, distribute=True)
    rank, ranks = cluster.rank_and_size()
    written = {}
    for case in CASES:
        if CASES[case][0] == ranks:
            written |= run(case, rank, ranks)
    if ranks == 4:
        written["no divisor"] = refused(lambda: build("linear", {"node_size": 3}))
        rows_here = Tensor(rows_of_node(rank // 2))
        written["exchanged"] = Team(workers=2, node_size=2)(rows_here).asnumpy()
        written["one node"] = refused(lambda: build("linear", {"node_size": 4}))
    else:
        _, step = build("lenet", {})
        images, labels = tensors(*batch("lenet", 0, 0, 0, 0))
        written["operators"] = operator_names(step, images, labels)
        unsure = second_is_unsure(rank).items()
        written |= {f"one is unsure/{name}": value for name, value in unsure}
        written["planted/end"], written["planted/built"] = planted_difference(rank)
        written |= resumed(out, rank)
    save(out, rank, written)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
