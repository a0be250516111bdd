"""What a rank runs in tests/training/test_on_ranks.py: ``training_on_ranks.py OUT KILLED REFUSED``.

Trains with the README's own call in OUT/run; rank KILLED (-1 for none) kills itself in the middle
of a group. Writes OUT/rank<n>.json: the SHA-256 of all Parameters, the values that this rank alone
holds, the records; and, if REFUSED is 1, the messages of the refused calls.
"""

import json
import sys
from pathlib import Path

import numpy as np

EPOCHS = 3


def data(rank, ranks, batch=4):
    """Shuffled batches of this rank's part of 44 rows per rank; one row in all is not finite."""
    from tests.support.trainings import dataset

    shard = {"num_shards": ranks, "shard_id": rank}
    return dataset(44 * ranks, batch, drop=False, spoiled_row=1, **shard)


def refusals(step, rank, ranks, out):
    """Return this rank's errors in cases where one rank, or every rank, cannot train."""
    from labkit import fit
    from tests.support.rank_programs import refused

    def said(folder="run", rows=None, **options):
        options = {"epochs": EPOCHS, "resume": True, "progress": None} | options
        return refused(lambda: fit(step, rows or data(rank, ranks), folder=out / folder, **options))

    return {
        "other epochs": said(epochs=EPOCHS + rank),
        "an earlier training": said(resume=False),
        "in use": said(folder="in use"),
        "batches": said(rows=data(rank, ranks, batch=2)),
        "one alone has other numbers": said() if rank else other_rate(said, step),
        "resumed when ended": said(),
    }


def other_rate(said, step):
    from labkit.steps.gradients import set_state

    rate = step.optimizer.learning_rate
    set_state(rate, np.float32(0.5))
    words = said()
    set_state(rate, np.float32(0.02))
    return words


def main(out, killed, refused):
    import labkit
    from labkit import fit
    from labkit.ranks import cluster
    from tests.support.killed_training import Kill, accumulation
    from tests.support.trainings import comparable

    labkit.start("CPU", seed=1, distribute=True)
    rank, ranks = cluster.rank_and_size()
    # With BatchNorm, a dynamic loss scale and groups, each rank holds values of its own.
    step = accumulation(norm=True)
    callbacks = [Kill("15")] if rank == killed else []
    options = {"resume": True, "checkpoint_every": 3, "callbacks": callbacks}
    records = fit(step, data(rank, ranks), epochs=EPOCHS, folder=out / "run", **options)
    report = {"digest": cluster.digest(step), "records": comparable(records.rows)}
    own = ("moving_mean", "step.loss_scale", "step.dropped")
    parameters = step.get_parameters()
    report["own"] = {p.name: p.asnumpy().tolist() for p in parameters if p.name.endswith(own)}
    if refused:
        report["refused"] = refusals(step, rank, ranks, out)
    (out / f"rank{rank}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
