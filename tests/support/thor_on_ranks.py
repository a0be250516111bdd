"""What each rank runs in test_on_ranks.py of THOR: ``msrun ... thor_on_ranks.py OUT``.

Writes OUT/rank<n>.npz: the results of every case and of the failures.
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.support.rank_programs import in_mode, save

ROWS, UPDATES = 8, 4
# name -> (network, micro-batches, options, NaN as (rank, call)); 8 rows per call over all ranks.
RULE_AND_CLIP = {"trace_rule": (0.5, 0.05), "kl_clip": 1e-2, "factor_decay": 0.5}
CASES = {
    "lenet": ("lenet", 0, {"frequency": 2, "split": 32}, None),
    "rule and clip": ("mlp", 0, {"frequency": 1} | RULE_AND_CLIP, None),
    "accumulated": ("mlp", 2, {"frequency": 2}, None),
    "nan on one rank": ("mlp", 0, {"frequency": 2, "nan": "drop"}, (1, 2)),
    "retried": ("degenerate", 0, {"frequency": 1, "split": None}, None),
}
# Cases that run operator by operator: the same collectives, without four graphs on each rank.
EAGER = ("accumulated",)
# Where every rank must stop: in a call between refreshes, and in one that refreshes.
FAILURES = ("nan stops", "no inverse")
NAN_RANK = 1
# The case whose step, reset to its initial state, is used for the failures.
SHARED = "nan on one rank"


def sizes(ranks):
    """Return the number of rows of each rank in a call; they are not all equal."""
    return {1: (8,), 2: (5, 3), 4: (1, 3, 2, 2)}[ranks]


def build(kind, micro_steps, options):
    """Return (network, step) with the same weights on all ranks."""
    from mindspore import nn

    from labkit.algorithms.thor import ThorStep, ThorUpdate, TraceRule
    from labkit.steps.accumulation import AccumulatedStep
    from labkit.steps.losses import LossNet
    from labkit.steps.state import set_state
    from tests.support.step_cells import momentum
    from tests.support.thor_cells import fill, mlp

    options, damping = dict(options), 0.1
    if kind == "lenet":
        network = nn.SequentialCell(
            nn.Conv2d(1, 4, 3, pad_mode="valid", has_bias=True),
            nn.ReLU(),
            nn.MaxPool2d(2, 2),
            nn.Conv2d(4, 6, 3, pad_mode="same"),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dense(6 * 3 * 3, 10),
        )
        loss_net = LossNet(fill(network), nn.CrossEntropyLoss())
    else:
        network, loss_net = mlp()
    if kind == "degenerate":
        set_state(network[0].weight, network[0].weight.asnumpy() / np.float32(100))
        damping = 1e-6
    if "trace_rule" in options:
        options["trace_rule"] = TraceRule(*options["trace_rule"])
    optimizer = momentum(network, 0.05, weight_decay=0.1)
    if micro_steps:
        update = ThorUpdate(loss_net, optimizer, damping, **options)
        return network, AccumulatedStep(loss_net, optimizer, micro_steps, update=update)
    return network, ThorStep(loss_net, optimizer, damping, **options)


def batch(kind, call, rank=0, ranks=1):
    """This rank's rows of a call: consecutive parts of one batch."""
    from tests.support.step_cells import digits, rows

    if kind == "lenet":
        images, labels = digits(ROWS, call)
        whole = images[:, :, :8, :8], labels
    else:
        whole = rows(ROWS, call)
    if kind == "degenerate":
        whole = np.ones_like(whole[0]) * whole[0][:, :1] * np.float32(100), whole[1]
    parts = sizes(ranks)
    start = sum(parts[:rank])
    return tuple(part[start : start + parts[rank]] for part in whole)


def state(network, step):
    """Return Parameters, factors, inverses, decisions, counters and the last update, by name."""
    from tests.support.thor_cells import factors, inverses

    arrays = {f"network/{p.name}": p.asnumpy().copy() for p in network.get_parameters()}
    arrays |= {f"factor/{name}": value for name, value in factors(step.update).items()}
    arrays |= {f"inverse/{name}": value for name, value in inverses(step.update).items()}
    for name in ("refreshes", "frozen", "retries", "damping"):
        arrays[f"count/{name}"] = getattr(step.update, name).asnumpy().copy()
    last = step.last_update
    arrays["last"] = np.array([last.number, last.loss, last.gradient_norm, last.images])
    return arrays


def run(case, rank=0, ranks=1):
    """Return the result of ``train`` on a new network."""
    return train(case, *build(*CASES[case][:3]), rank, ranks)


def train(case, network, step, rank, ranks):
    """Run one case; return its state after each call, by name, and the layers this rank inverts."""
    from tests.support.step_cells import tensors

    kind, _, _, nan = CASES[case]
    arrays, seen = {}, []
    invert = step.update.inverses._invert

    def noted(group, damping):
        seen.extend(group)
        return invert(group, damping)

    step.update.inverses._invert = noted
    for call in range(UPDATES):
        inputs, targets = batch(kind, call, rank, ranks)
        if nan is not None and call == nan[1] and rank in (0 if ranks == 1 else nan[0],):
            inputs = inputs * np.float32(np.nan)
        step(*tensors(inputs, targets))
        arrays |= {f"{case}/{call}/{name}": value for name, value in state(network, step).items()}
        arrays.setdefault(f"{case}/inverted", np.array(seen))  # in the first call
    arrays[f"{case}/owned"] = np.array(step.update.inverses.owners)
    return arrays


def fail(network, step, rank, ranks):
    """Return, by case, the error at its call, and whether the weights are unchanged."""
    from tests.support.step_cells import snapshot, tensors

    def called(case, inputs, targets):
        before, said = snapshot(network), "nothing"
        try:
            step(*tensors(inputs, targets))
        except FloatingPointError as error:
            said = str(error)
        same = all(np.array_equal(before[name], now) for name, now in snapshot(network).items())
        return {f"{case}/said": np.array(said), f"{case}/same": np.array(same)}

    step(*tensors(*batch("mlp", 0, rank, ranks)))
    inputs, targets = batch("mlp", 1, rank, ranks)
    arrays = called("nan stops", inputs * np.float32(np.nan if rank == NAN_RANK else 1), targets)
    step(*tensors(inputs, targets))  # the training continues
    if rank == step.update.inverses.owners[0]:  # on this rank alone
        step.update.inverses._invert = lambda group, damping: np.full(len(group), np.inf)
    arrays |= called("no inverse", *batch("mlp", 2, rank, ranks))
    assert step.last_update.number == 2
    return arrays


def main(out):
    from mindspore.communication import get_group_size, get_rank, init

    from labkit.runtime import start
    from tests.support.step_cells import restore, snapshot

    start(device="CPU", seed=1)
    init()
    rank, ranks = get_rank(), get_group_size()
    arrays = {}
    for case in [case for case in CASES if case != SHARED] if ranks == 2 else ["lenet"]:
        with in_mode(case not in EAGER):
            arrays |= run(case, rank, ranks)
    if ranks == 2:
        network, step = build(*CASES[SHARED][:3])
        new = snapshot(step)
        arrays |= train(SHARED, network, step, rank, ranks)
        # The graphs stay the same: the reaction to a NaN is decided between them.
        restore(step, new)
        step.update.options = replace(step.update.options, nan="stop")
        arrays |= fail(network, step, rank, ranks)
    save(out, rank, arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
