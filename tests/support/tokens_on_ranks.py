"""The program of test_tokens_on_ranks.py: each step on a GPT; rank r writes OUT/rank<r>.npz."""

import sys
from pathlib import Path

import numpy as np

from labkit.ranks import cluster
from labkit.runtime import start
from labkit.steps.losses import TokenLossNet
from tests.support.rank_programs import in_mode
from tests.support.step_cells import STEPS, snapshot, tensors
from tests.support.tiny_gpt import KINDS, batch, gpt, optimizer

RANKS, UPDATES = 2, 2


def micro_batches(kind, update, rank):
    """Return this rank's micro-batches of an update: the first rank's have 17 labels each."""
    size = KINDS[kind][0]
    return [batch(RANKS * (size * update + turn) + rank) for turn in range(size)]


def main(out):
    start(device="CPU", seed=1, distribute=True)
    rank, written = cluster.rank_and_size()[0], {}
    for kind in KINDS:
        network = gpt()
        # One as a graph: test_matrix.py compiles all, test_steps_on_ranks.py all kinds on ranks.
        with in_mode(kind == "accumulated"):
            step = STEPS[kind](TokenLossNet(network), optimizer(network))
            for update in range(UPDATES):
                for each in micro_batches(kind, update, rank):
                    step(*tensors(*each))
                last = step.last_update
                written[f"{kind}/{update}/last"] = np.array([last.number, last.loss, last.images])
        written |= {f"{kind}/{name}": value for name, value in snapshot(network).items()}
    np.savez(out / f"rank{rank}.npz", **written)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
