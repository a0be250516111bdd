"""Print the SHA-256 of weights and state after 20 updates, for every step and many of its options.

    python -m tests.digests                    one line a configuration
    python -m tests.digests "thor, *" plain    those whose names match
    python -m tests.digests --weights "*"      without the state: of weights and losses alone

Run it on the same machine before and after a change of the code that must not change any number:
the lines must be equal. It calls only public names of ``labkit``. A digest covers the names and
bytes of all Parameters, and the losses, gradient norms and learning rates of all updates.
"""

import fnmatch
import hashlib
import sys
import tempfile
from pathlib import Path

import numpy as np

from tests.support.subspace_cells import basis_of

UPDATES, RANKS = 20, 2
WEIGHTS = "--weights" in sys.argv  # beside the patterns, of which it matches none


def images(rows, seed, spoiled=False):
    """Images (rows, 1, 8, 8) and labels (rows,); the first image is NaN if ``spoiled``."""
    from mindspore import Tensor

    random = np.random.default_rng(seed)
    values = random.normal(size=(rows, 1, 8, 8)).astype(np.float32)
    values[0] = np.nan if spoiled else values[0]
    return Tensor(values), Tensor(random.integers(0, 5, rows).astype(np.int32))


def network(norm=False):
    """A convolution, with or without BatchNorm, and two dense layers: logits (rows, 5)."""
    import mindspore as ms
    from mindspore import nn

    ms.set_seed(3)
    return nn.SequentialCell(
        nn.Conv2d(1, 4, 3, has_bias=True, pad_mode="valid"),
        *([nn.BatchNorm2d(4)] if norm else []),
        nn.ReLU(),
        nn.MaxPool2d(2, 2),
        nn.Flatten(),
        nn.Dense(36, 16),
        nn.Tanh(),
        nn.Dense(16, 5),
    )


def parts(name="Momentum", norm=False, rate=0.05):
    """Return a loss net and the optimizer ``name`` over its trainable Parameters."""
    from mindspore import nn

    from labkit import LossNet, decay_groups

    loss_net = LossNet(network(norm), nn.CrossEntropyLoss())
    if name == "SGD":
        return loss_net, nn.SGD(loss_net.trainable_params(), rate)
    if name == "Adam":
        return loss_net, nn.Adam(loss_net.trainable_params(), rate / 5)
    rates = [rate / (1 + 0.1 * k) for k in range(4 * UPDATES)]
    return loss_net, nn.Momentum(decay_groups(loss_net.network, 1e-3), rates, 0.9)


def plain(name="Momentum", norm=False, **options):
    from labkit import PlainStep

    return PlainStep(*parts(name, norm), **options)


def accumulated(name="Adam", micro_steps=3, norm=False, **options):
    from labkit import AccumulatedStep

    return AccumulatedStep(*parts(name, norm), micro_steps, **options)


def scaled(**options):
    from labkit import DynamicLossScale

    return accumulated(loss_scale=DynamicLossScale(2.0**12, 2.0, 6), **options)


def thor(damping=0.3, **options):
    from labkit import ThorStep

    return ThorStep(*parts(), damping, **({"frequency": 3} | options))


def traced_thor():
    from labkit import TraceRule

    return thor(trace_rule=TraceRule(0.1, 0.001))


def accumulated_thor(**options):
    from labkit import AccumulatedStep, ThorUpdate

    loss_net, optimizer = parts()
    update = ThorUpdate(loss_net, optimizer, 0.3, frequency=2, **options)
    return AccumulatedStep(loss_net, optimizer, 3, update=update, clip_norm=1.0)


def adasum(name="Adam", workers=3, **options):
    from labkit import AdasumStep

    return AdasumStep(*parts(name), workers=workers, **options)


def unsure(**options):
    """Adasum of a step whose first answer always counts as too inexact: all go to the tree."""
    step = adasum(**options)
    combination = step.update.combination
    attempt = combination.attempt

    def never_sure(rows, present):
        combined, sure = attempt(rows, present)
        return combined, sure < 0

    combination.attempt = never_sure
    return step


def subspace(components=6, **options):
    from labkit import SubspaceStep

    loss_net, optimizer = parts("SGD")
    return SubspaceStep(
        loss_net, optimizer, basis_of(optimizer.parameters, components, seed=5), **options
    )


# name -> (step, whether every fifth micro-batch holds a NaN)
ALONE = {
    "plain": (plain, False),
    "plain, Adam, clipped, batch norm": (lambda: plain("Adam", True, clip_norm=0.5), False),
    "plain, O2": (lambda: plain(norm=True, precision="O2", loss_scale=1024.0), False),
    "accumulated": (accumulated, False),
    "accumulated, clipped, dynamic scale": (lambda: scaled(clip_norm=0.5), True),
    "accumulated, O2": (lambda: accumulated(precision="O2", loss_scale=1024.0), False),
    "accumulated, sums": (lambda: accumulated("SGD", reduction="sum"), False),
    "accumulated, groups dropped": (lambda: accumulated(nonfinite="drop_group"), True),
    "accumulated, tail carried": (lambda: accumulated(norm=True, tail="carry"), False),
    "thor": (thor, False),
    "thor, plain bias, pi, blocks of 8": (
        lambda: thor(bias="plain", damping_split="pi", split=8),
        False,
    ),
    "thor, trace rule": (traced_thor, False),
    "thor, running factors, KL clip": (lambda: thor(factor_decay=0.9, kl_clip=1e-3), False),
    "thor, formulas of the GPU": (lambda: thor(formulas="upstream_gpu"), False),
    "thor, accumulated": (accumulated_thor, False),
    "thor, accumulated, NaN dropped": (lambda: accumulated_thor(nan="drop"), True),
    "adasum of updates": (adasum, False),
    "adasum of gradients, network": (
        lambda: adasum("Momentum", on="gradients", scope="network"),
        True,
    ),
    "adasum, micro-batches, mean": (lambda: adasum(micro_steps=2, reduction="mean"), False),
    "adasum of 4": (lambda: adasum(workers=4), False),
    "adasum of 5": (lambda: adasum(workers=5), True),
    "adasum of 7": (lambda: adasum("Momentum", workers=7, scope="network"), False),
    "adasum of 5, by the tree": (lambda: unsure(workers=5), False),
    "subspace, bfgs": (lambda: subspace(alpha=1.0, gamma=0.0), False),
    "subspace, bfgs, accumulated": (lambda: subspace(micro_steps=3), True),
    "subspace, sgd": (lambda: subspace(method="sgd"), False),
}
ON_RANKS = {
    "two ranks, accumulated, batch norm": (lambda: scaled(norm=True, clip_norm=0.5), True),
    "two ranks, thor": (thor, False),
    "two ranks, adasum of updates": (lambda: adasum(workers=1), False),
    "two ranks, adasum of gradients": (lambda: adasum(workers=1, on="gradients"), False),
    "two ranks, subspace, bfgs": (lambda: subspace(alpha=1.0, gamma=0.0), False),
}


def digest(make, spoiled, rank=0) -> str:
    """Train 20 updates, in epochs of seven micro-batches; return the digest of the results."""
    step, content, number = make(), hashlib.sha256(), 0
    noted = -1
    while int(step.updates.asnumpy()) < UPDATES:
        rows = 6 if number % 7 == 6 else 8  # an epoch's last micro-batch is smaller
        batch = images(rows, 100 * number + rank, spoiled and number % 5 == 3 and rank == 0)
        step(*batch)
        number += 1
        if number % 7 == 0:
            step.end_epoch()
        if (updates := int(step.updates.asnumpy())) != noted:
            last, noted = step.last_update, updates
            content.update(repr((last.loss, last.gradient_norm, last.learning_rate)).encode())
    held = step.optimizer.parameters if WEIGHTS else step.get_parameters()
    for parameter in sorted(held, key=lambda parameter: parameter.name):
        content.update(parameter.name.encode() + parameter.asnumpy().tobytes())
    return content.hexdigest()


def on_ranks(patterns, out) -> None:
    """Run as one rank of two; write its digests to a file in ``out``."""
    import labkit
    from labkit.ranks import cluster

    labkit.start("CPU", seed=1, distribute=True)
    rank = cluster.rank_and_size()[0]
    lines = [
        f"{digest(*ON_RANKS[name], rank)}  {name}, rank {rank}\n"
        for name in matching(ON_RANKS, patterns)
    ]
    Path(out, f"rank{rank}").write_text("".join(lines))


def matching(names, patterns) -> list[str]:
    return [name for name in names if any(fnmatch.fnmatch(name, p) for p in patterns or ["*"])]


def main(patterns) -> None:
    """Print the digests, those of a single process first."""
    import labkit

    labkit.start("CPU", seed=1)
    for name in matching(ALONE, patterns):
        print(f"{digest(*ALONE[name])}  {name}", flush=True)
    if matching(ON_RANKS, patterns):
        with tempfile.TemporaryDirectory() as out:
            launched = ("-m", "tests.digests", "--ranks", out, *patterns)
            labkit.launch(*launched, workers=RANKS, timeout=900)
            for rank in range(RANKS):
                print(Path(out, f"rank{rank}").read_text(), end="", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ranks"]:
        on_ranks(sys.argv[3:], sys.argv[2])
    else:
        main(sys.argv[1:])
