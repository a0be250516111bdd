"""The trainings of test_steps_on_ranks.py: ``msrun ... steps_on_ranks.py TECHNIQUE OUT`` on ranks.

In a round every rank has consecutive rows of one batch. One process takes the micro-batches of all
ranks in turn; those of THOR, the subspace and a technique of one's own as one micro-batch. A rank
writes OUT/rank<n>.npz: weights, last update and more of each case after each round, and messages.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from labkit.algorithms.adasum import AdasumStep
from labkit.algorithms.adasum.combine import ByGram
from labkit.algorithms.adasum.workers import Team
from labkit.algorithms.subspace import Basis, SubspaceStep, basis_from
from labkit.algorithms.thor import ThorStep, ThorUpdate, TraceRule
from labkit.nets.lenet import LeNet5
from labkit.ranks import cluster
from labkit.runtime import start
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.losses import LossNet
from labkit.steps.state import set_state
from labkit.steps.step import PlainStep
from labkit.training.fit import fit
from tests.support import snapshots, step_cells, thor_cells
from tests.support.rank_programs import in_mode, operator_names, refused
from tests.support.step_cells import STEPS, Own, TwoMeans, momentum, regression, rows, tensors
from tests.support.subspace_cells import basis_of, flat, small, small_rows, small_weights
from tests.support.thor_cells import fill
from tests.support.trainings import ROOT, dataset, loss_fn
from tests.support.trainings import network as classifier

RATE = 0.05


class Case(NamedTuple):
    """A training; the numbers of its ranks are those of the tuples in ``sizes``."""

    kind: str  # of KINDS
    network: str  # of NETWORKS
    sizes: tuple[tuple[int, ...], ...]  # rows of each rank
    rounds: int
    options: dict = {}
    nan: tuple[tuple[int, int], ...] = ()  # (rank, round) of rows that are NaN; -1: the last rank


EVEN, UNEVEN, FIVE_THREE, NODES = ((4, 4),), ((6, 2),), ((5, 3),), ((4, 5, 4, 5),)
TWO_OR_THREE, TWO_OR_FOUR = ((13, 11), (9, 8, 7)), ((5, 3), (1, 3, 2, 2))
CLIP, DECAY, SUM = {"clip_norm": 0.5}, {"weight_decay": 0.1}, {"reduction": "sum"}
RULE_AND_CLIP = {"trace_rule": TraceRule(0.5, 0.05), "kl_clip": 1e-2, "factor_decay": 0.5}
SEARCH = {"components": 4, "alpha": 0.1}  # one of three ranks has no component
# 3 components are not a multiple of two ranks.
SEARCH_OF_TWO = {"components": 3, "alpha": 0.1, "micro_steps": 2, "sigma": 0.95, "trials": 2}
CASES = {
    "two means": Case("accumulated", "pairs", UNEVEN, 4),
    "plain, two means": Case("plain", "pairs", UNEVEN, 3, CLIP),
    "halves": Case("accumulated", "linear", EVEN, 5),
    "uneven": Case("accumulated", "linear", UNEVEN, 5),
    "uneven by steps": Case("accumulated", "of means", UNEVEN, 4),
    "sum": Case("accumulated", "linear", UNEVEN, 4, SUM),
    "clipped": Case("accumulated", "linear", UNEVEN, 4, CLIP | {"loss_scale": 1024.0}),
    "decayed": Case("accumulated", "linear", UNEVEN, 4, DECAY),
    "plain, decayed": Case("plain", "linear", UNEVEN, 3, DECAY | CLIP),
    "sum, decayed": Case("accumulated", "linear", UNEVEN, 4, DECAY | SUM),
    "drop_micro": Case(
        "accumulated", "linear", UNEVEN, 6, nan=((1, 0), (0, 4), (1, 4), (0, 5), (1, 5))
    ),
    # The second group of rank 0 is empty: it must add nothing, not the sums of the group before.
    "nothing on one rank": Case("accumulated", "linear", EVEN, 6, nan=((0, 2), (0, 3))),
    "drop_group": Case("accumulated", "linear", EVEN, 4, {"nonfinite": "drop_group"}, ((1, 0),)),
    "plain": Case("plain", "linear", UNEVEN, 3),
    "plain, not finite on one rank": Case("plain", "linear", EVEN, 3, nan=((0, 1),)),
    "of one's own": Case("lookahead", "linear", UNEVEN, 14),
    # The requirement on LeNet is 1e-6 after 20 updates.
    "LeNet": Case("adasum", "LeNet", EVEN, 20),
    "virtual workers too": Case("adasum", "linear", EVEN, 4, {"workers": 2, "micro_steps": 2}),
    "gradients": Case("adasum", "linear", EVEN, 4, {"on": "gradients"}, ((1, 1),)),
    "not finite": Case("adasum", "linear", EVEN, 5, nan=((1, 1), (0, 3), (1, 3))),
    "nodes": Case("adasum", "linear", NODES, 5, {"node_size": 2}, ((2, 1), (0, 2), (1, 2))),
    "four": Case("adasum", "linear", NODES, 3, {"reduction": "mean"}),
    "search": Case("subspace", "small", TWO_OR_THREE, 6, SEARCH),
    "one component": Case("subspace", "small", ((13, 11),), 4, SEARCH | {"components": 1}),
    # The last rank has no part in the second update.
    "micro-batches": Case(
        "subspace", "small", TWO_OR_THREE, 12, SEARCH_OF_TWO, ((-1, 2), (-1, 3), (-1, 5))
    ),
    "projected sgd": Case(
        "subspace", "small", ((13, 11),), 6, {"components": 5, "method": "sgd", "clip_norm": 0.7}
    ),
    "convolutions": Case("thor", "convolutions", TWO_OR_FOUR, 4, {"frequency": 2, "split": 32}),
    "one layer": Case("thor", "linear", FIVE_THREE, 4, {"frequency": 2}),
    "rule and clip": Case("thor", "mlp", FIVE_THREE, 4, {"frequency": 1} | RULE_AND_CLIP),
    "accumulated thor": Case("thor", "mlp", FIVE_THREE, 4, {"frequency": 2, "micro_steps": 2}),
    "nan on one rank": Case(
        "thor", "mlp", FIVE_THREE, 4, {"frequency": 2, "nan": "drop"}, ((1, 2),)
    ),
    # A matrix of condition 1e6: the ranks only equal one another.
    "retried": Case(
        "thor", "degenerate", FIVE_THREE, 4, {"frequency": 1, "split": None, "damping": 1e-6}
    ),
}
INDICES = {"single": None, "one": (3,), "two": (1, 3), "three": (0, 2)}
FUSED = ("plain", "accumulated", "thor", "subspace")
# What runs as graphs, in which ranks could wait for each other in two branches; the rest of these
# techniques runs operator by operator, in half a second instead of ten, and all of the others as
# graphs. Both modes agree: tests/steps/test_step.py.
GRAPHS = (
    *("uneven", "clipped", "drop_micro", "nothing on one rank", "two means", "of one's own"),
    *("plain, not finite on one rank", "fused/plain/single", "fused/plain/two"),
)


def lenet():
    ms.set_seed(1)
    network = LeNet5()
    return network, LossNet(network, nn.CrossEntropyLoss())


def convolutions():
    network = nn.SequentialCell(
        nn.Conv2d(1, 4, 3, pad_mode="valid", has_bias=True),
        nn.ReLU(),
        nn.MaxPool2d(2, 2),
        nn.Conv2d(4, 6, 3, pad_mode="same"),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dense(6 * 3 * 3, 10),
    )
    return network, LossNet(fill(network), nn.CrossEntropyLoss())


def corners(count, seed):
    images, labels = step_cells.digits(count, seed)
    return images[:, :, :8, :8], labels


def degenerate():
    network, loss_net = thor_cells.mlp()
    set_state(network[0].weight, network[0].weight.asnumpy() / np.float32(100))
    return network, loss_net


def degenerate_rows(count, seed):
    inputs, targets = rows(count, seed)
    return np.ones_like(inputs) * inputs[:, :1] * np.float32(100), targets


def of_means():
    network = step_cells.linear()
    return network, Own(network, step_cells.of_means)


def pairs():
    network = step_cells.linear()
    return network, TwoMeans(network)


# name -> (function that returns network and loss net, function that draws (count, seed) rows)
NETWORKS = {
    "linear": (regression, rows),
    "of means": (of_means, rows),
    "pairs": (pairs, rows),
    "LeNet": (lenet, step_cells.digits),
    "small": (small, small_rows),
    "convolutions": (convolutions, corners),
    "mlp": (thor_cells.mlp, rows),
    "degenerate": (degenerate, degenerate_rows),
}


# A step for a rank or, if ``ranks`` is more than 1, for one process in place of so many.


def share_of(options, ranks):
    """Return the share of a sum of gradients that ranks take: their reduction is the mean."""
    return 1 / ranks if options.get("reduction") == "sum" else 1.0


def plain(network, loss_net, ranks, weight_decay=0.0, **options):
    optimizer = momentum(network, RATE, weight_decay)
    if ranks == 1:
        return PlainStep(loss_net, optimizer, **options)
    return AccumulatedStep(loss_net, optimizer, ranks, nonfinite="drop_group", **options)


def accumulated(network, loss_net, ranks, weight_decay=0.0, **options):
    share = share_of(options, ranks)
    optimizer = momentum(network, RATE * share, weight_decay / share)
    return AccumulatedStep(loss_net, optimizer, 2 * ranks, **options)


def lookahead(network, loss_net, ranks):
    sys.path.insert(0, str(ROOT / "examples"))
    from own_technique import Lookahead

    sgd = nn.SGD(network.trainable_params(), 0.1)
    update = Lookahead(sgd, period=3, step_size=0.5)
    return AccumulatedStep(loss_net, sgd, 2, update=update, clip_norm=0.5)


def adasum(network, loss_net, ranks, workers=1, **options):
    rates = [RATE * 0.9**update for update in range(30)]
    workers *= ranks // options.get("node_size", 1) if ranks > 1 else 1
    return AdasumStep(loss_net, momentum(network, rates, 0.01), workers=workers, **options)


def subspace(network, loss_net, ranks, components, **options):
    parameters = network.trainable_params()
    sgd = nn.SGD(parameters, 0.3 if "method" in options else 1.0, weight_decay=0.01)
    return SubspaceStep(loss_net, sgd, basis_of(parameters, components), **options)


def thor(network, loss_net, ranks, damping=0.1, micro_steps=0, **options):
    optimizer = momentum(network, RATE, weight_decay=0.1)
    if micro_steps:
        update = ThorUpdate(loss_net, optimizer, damping, **options)
        return AccumulatedStep(loss_net, optimizer, micro_steps, update=update)
    return ThorStep(loss_net, optimizer, damping, **options)


# kind -> (function that makes the step, technique with which it is launched)
KINDS = {
    "plain": (plain, "accumulation"),
    "accumulated": (accumulated, "accumulation"),
    "lookahead": (lookahead, "accumulation"),
    "adasum": (adasum, "adasum"),
    "subspace": (subspace, "subspace"),
    "thor": (thor, "thor"),
}
JOINED = ("lookahead", "subspace", "thor")
# (case, number of ranks), and (technique, number of ranks) of each launch
RUNS = [(name, len(sizes)) for name, case in CASES.items() for sizes in case.sizes]
LAUNCHES = list(dict.fromkeys((KINDS[CASES[name].kind][1], ranks) for name, ranks in RUNS))


def build(name, ranks=1):
    """Return (network, step) of a rank's training, or of one process in place of ``ranks``."""
    case = CASES[name]
    network, loss_net = NETWORKS[case.network][0]()
    return network, KINDS[case.kind][0](network, loss_net, ranks, **case.options)


def turns(case):
    """Return the number of micro-batches of a rank in a round."""
    many = case.kind == "adasum"
    return case.options.get("workers", 1) * case.options.get("micro_steps", 1) if many else 1


def micro_batches(case, number, ranks, rank=None):
    """Return the micro-batches of a round: this rank's, or those of one process."""
    (sizes,) = (sizes for sizes in case.sizes if len(sizes) == ranks)
    spoiled = {at % ranks for at, when in case.nan if when == number}
    made = []
    for at in range(ranks) if rank is None else [rank]:
        first, last = sum(sizes[:at]), sum(sizes[: at + 1])
        for turn in range(turns(case)):
            inputs, targets = NETWORKS[case.network][1](sum(sizes), seed=10 * number + turn)
            factor = np.float32(np.nan if at in spoiled else 1)
            made.append((inputs[first:last] * factor, targets[first:last]))
    if rank is None and case.kind in JOINED:
        if case.kind == "subspace":  # whose search takes the rows that are finite
            made = [arrays for arrays in made if np.isfinite(arrays[0]).all()]
        made = [tuple(map(np.concatenate, zip(*made, strict=True)))]
    return made


def state(network, step, share):
    """Return copies of the weights, of the last update, and of what a kind of step has more."""
    last, update = step.last_update, step.update
    numbers = [last.number, last.loss, last.gradient_norm * share, last.images]
    rates = [rate / share for rate in last.learning_rate]
    arrays = {"weights": flat(network), "last": np.array([*numbers, *rates])}
    if isinstance(update, ThorUpdate):
        arrays |= thor_cells.factors(update) | thor_cells.inverses(update)
        counts = ("refreshes", "frozen", "retries", "damping")
        arrays |= {name: getattr(update, name).asnumpy().copy() for name in counts}
    elif isinstance(step, SubspaceStep) and update.searches:
        search = step.last_search
        arrays["search"] = np.array([search.trials, search.step_size, search.failures])
    slow = [p for p in step.get_parameters() if p.name.startswith("lookahead.slow.")]
    return arrays | {parameter.name: parameter.asnumpy().copy() for parameter in slow}


def train(name, network, step, ranks, rank=None):
    """Train a case on this rank or in one process; return its arrays by name, round and kind."""
    case, arrays = CASES[name], {}
    share = share_of(case.options, ranks) if rank is None else 1.0
    for number in range(case.rounds + 1):
        if number < case.rounds:
            for arguments in micro_batches(case, number, ranks, rank):
                step(*tensors(*arguments))
        else:
            step.end_epoch()
        now = state(network, step, share)
        arrays |= {f"{name}/{number}/{kind}": value for kind, value in now.items()}
    return arrays | {f"{name}/dropped": step.dropped.asnumpy()}


def as_graphs(name, technique):
    """Return whether a case runs as graphs."""
    return name in GRAPHS or technique != "accumulation" and name != "accumulated thor"


def alone(name, ranks):
    """Train a case in one process: as graphs if the bits are compared, which are Adasum's."""
    with in_mode(KINDS[CASES[name].kind][1] == "adasum"):
        return train(name, *build(name, ranks), ranks)


def fused(kind, indices, rank):
    """Make three updates of a step that sends gradients in such messages; return the weights."""
    network, loss_net = small()
    options = {"all_reduce_fusion_config": indices, "clip_norm": 0.5}
    step = STEPS[kind](loss_net, momentum(network, 0.1), **options)
    for call in range(6 if kind == "accumulated" else 3):
        step(*tensors(*small_rows(7 + rank, seed=2 * call + rank)))
    assert step.last_update.number == 3
    return flat(network)


def differing(array, rank, place):
    """Return a copy of an array that is larger by one bit at one place on the second rank."""
    other = array.astype(np.float32)
    if rank == 1:
        other[place] = np.nextafter(other[place], np.float32(9))
    return other


def differing_workers(rank):
    """Return the errors for a differing bias on rank 1: at an epoch's end, and when built."""
    network, loss_net = regression()
    step = AdasumStep(loss_net, momentum(network))
    set_state(network.bias, differing(network.bias.asnumpy(), rank, 1))
    return {
        "weights at the end": refused(step.end_epoch),
        "weights": refused(lambda: AdasumStep(loss_net, momentum(network))),
    }


def differing_replicas(rank):
    """Return the errors of ranks whose bases differ, and of ranks whose weights differ."""

    def subspace_of(weights, seed):
        network, loss_net = small(weights)
        parameters = network.trainable_params()
        return SubspaceStep(loss_net, nn.SGD(parameters, 1.0), basis_of(parameters, 3, seed=seed))

    weights = small_weights()
    return {
        "basis": refused(lambda: subspace_of(weights, rank == 1)),
        "weights": refused(lambda: subspace_of(differing(weights, rank, 41), 0)),
    }


def second_is_unsure(rank):
    """Train the case "not finite" with a second rank whose Gram form never counts as sound."""
    sound_or_not = ByGram.coefficients

    def unsure(self, grams, lengths):
        weights, sound = sound_or_not(self, grams, lengths)
        return weights, sound.logical_and(sound.logical_not())

    with mock.patch.object(ByGram, "coefficients", unsure if rank == 1 else sound_or_not):
        arrays = train("not finite", *build("not finite"), 2, rank)
    return {f"one is unsure/{name}": value for name, value in arrays.items()}


def rows_of_node(node):
    """Return rows (2, 1000) of a node's two workers, with all that float32 may hold at its limits.

    Subnormal numbers are not among them: an AllReduce makes them 0.
    """
    made = np.random.default_rng(node).normal(size=(2, 1000)).astype(np.float32)
    made[:, :6] = [np.nan, np.inf, -np.inf, -0.0, 1.2e-38, -3e38]
    return made


def resumed(out, rank):
    """Resume a training in the middle of a team; return whether it ends with the same bits."""
    net = classifier()
    optimizer = nn.Adam(net.trainable_params(), 0.02)
    step = AdasumStep(LossNet(net, loss_fn()), optimizer, workers=2)
    folder = out / "run"
    options = dict(folder=folder, progress=None, keep=100)
    fit(step, dataset(seed=1 + rank), 1, checkpoint_every=3, **options)
    final = step_cells.snapshot(step)
    # Back to micro-batch 9: on each rank one of two workers has had its turn.
    own = folder / f"rank_{rank}" if rank else folder
    max((own / "checkpoint").iterdir()).rename(own / "kept")
    fit(step, dataset(seed=1 + rank), 1, resume=True, **options)
    same = all(np.array_equal(p.asnumpy(), final[p.name]) for p in step.get_parameters())
    return {"resume/same": np.array(same)}


def of_snapshots(out, rank):
    """Return the checksums and messages of the calls of ``basis_from`` on this rank."""
    spectrum, pairs, said = 2.0 ** -np.arange(5.0), snapshots.SHAPES.items(), []
    if rank == 0:  # the others wait for it in basis_from
        many = snapshots.with_spectrum(6, snapshots.SIZE, spectrum)
        snapshots.write(out / "snapshots", many)
    made, loaded = (basis_from(None, out / "snapshots", pairs, 3, said.append) for _ in range(2))
    other = out / "other.safetensors"
    refused_basis = refused(lambda: basis_from(other, out / "snapshots", pairs, 7))
    expected = Basis.of(out / "snapshots", pairs, 3).checksum
    checksums = np.array([made.checksum, loaded.checksum, expected])
    return {"basis/checksums": checksums, "basis/said": said, "basis/refused": refused_basis}


def watched(inverses):
    """Return a list that gets the number of each layer which this rank inverts from now on."""
    seen, invert = [], inverses._invert

    def noted(group, damping):
        seen.extend(group)
        return invert(group, damping)

    inverses._invert = noted
    return seen


def failures(network, step, rank):
    """Return the errors of all ranks in a call between refreshes, and in one that refreshes."""
    # The graphs stay the same: the reaction to a NaN is decided between them.
    step.update.options = replace(step.update.options, nan="stop")
    clean, spoiled = CASES["accumulated thor"], CASES["nan on one rank"]

    def said(case, number):
        before = step_cells.snapshot(network)
        try:
            step(*tensors(*micro_batches(case, number, 2, rank)[0]))
        except FloatingPointError as error:
            now = step_cells.snapshot(network)
            assert all(np.array_equal(before[name], now[name]) for name in before)
            return str(error)
        return "nothing"

    assert said(clean, 0) == "nothing"
    written = {"nan stops": said(spoiled, 2)}
    assert said(clean, 2) == "nothing"  # the training continues
    if rank == step.update.inverses.owners[0]:  # on this rank alone
        step.update.inverses._invert = lambda group, damping: np.full(len(group), np.inf)
    written["no inverse"] = said(clean, 3)
    assert step.last_update.number == 2
    return written


def main(technique, out):
    start(device="CPU", seed=1, distribute=True)
    rank, ranks = cluster.rank_and_size()
    written = {}
    for name, count in RUNS:
        if (KINDS[CASES[name].kind][1], count) != (technique, ranks):
            continue
        with in_mode(as_graphs(name, technique)):
            network, step = build(name)
            fresh = step_cells.snapshot(step)
            seen = watched(step.update.inverses) if technique == "thor" else []
            written |= train(name, network, step, ranks, rank)
        if name == "convolutions":
            written |= {"owned": step.update.inverses.owners, "inverted": np.unique(seen)}
        if name == "nan on one rank":
            step_cells.restore(step, fresh)
            written |= failures(network, step, rank)
    if technique == "accumulation":
        for kind in FUSED:
            for name, indices in INDICES.items():
                case = f"fused/{kind}/{name}"
                with in_mode(case in GRAPHS):
                    written[case] = fused(kind, indices, rank)
    elif (technique, ranks) == ("subspace", 2):
        written |= differing_replicas(rank) | of_snapshots(out, rank)
        written["operators"] = operator_names(train, "search", *build("search"), 2, rank)
    elif (technique, ranks) == ("adasum", 2):
        written |= second_is_unsure(rank) | differing_workers(rank) | resumed(out, rank)
        written["operators"] = operator_names(train, "LeNet", *build("LeNet"), 2, rank)
    elif (technique, ranks) == ("adasum", 4):
        written["nodes of 2"] = Team(1, 2).text()
        written["nodes of 3"] = refused(lambda: Team(1, 3))
        written["nodes of 4"] = refused(lambda: Team(1, 4))
        written["exchanged"] = Team(2, 2)(Tensor(rows_of_node(rank // 2))).asnumpy()
    np.savez(out / f"rank{rank}.npz", **written)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
