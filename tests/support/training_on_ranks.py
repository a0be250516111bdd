"""What a rank runs in tests/training/test_on_ranks.py: ``training_on_ranks.py OUT KILLED REFUSED``.

Trains with the README's own call in OUT/run; rank KILLED (-1 for none) kills itself in the middle
of a group. Writes OUT/rank<n>.json: the SHA-256 of all Parameters, the values that this rank alone
holds, the records; and, if REFUSED is 1, the messages of calls that one rank, or every, refuses.
"""

import json
import sys
from pathlib import Path

import labkit
from labkit import fit
from labkit.ranks import cluster
from labkit.steps.state import set_state
from tests.support.killed_training import Kill, accumulation
from tests.support.rank_programs import refused
from tests.support.trainings import comparable, dataset

EPOCHS = 3


def data(rank, ranks, batch=4):
    """Shuffled batches of this rank's part of 44 rows per rank; one row in all is not finite."""
    shard = {"num_shards": ranks, "shard_id": rank}
    return dataset(44 * ranks, batch, drop=False, spoiled_row=1, **shard)


def refusals(step, rank, ranks, out):
    def said(folder="run", rows=None, rate=0.02, **options):
        set_state(step.optimizer.learning_rate, rate)
        options = {"epochs": EPOCHS, "resume": True, "progress": None} | options
        return refused(lambda: fit(step, rows or data(rank, ranks), folder=out / folder, **options))

    begun = data(rank, ranks)
    step.trained[begun] = (rank, 0)
    return {
        "begun by one alone": said(rows=begun, resume=False),
        "other epochs": said(epochs=EPOCHS + rank),
        "an earlier training": said(resume=False),
        "in use": said(folder="in use"),
        "batches": said(rows=data(rank, ranks, batch=2)),
        "one alone has other numbers": said(rate=0.02 if rank else 0.5),
        "resumed when ended": said(),
    }


def main(out, killed, with_refusals):
    labkit.start("CPU", seed=1, distribute=True)
    rank, ranks = cluster.rank_and_size()
    # With BatchNorm, a dynamic loss scale and groups, each rank holds values of its own.
    step = accumulation(norm=True)
    callbacks = [Kill("15")] if rank == killed else []
    options = {"resume": True, "checkpoint_every": 3, "callbacks": callbacks}
    records = fit(step, data(rank, ranks), epochs=EPOCHS, folder=out / "run", **options)
    report = {"digest": cluster.digest(step), "records": comparable(records.rows)}
    means = [p.asnumpy().tolist() for p in step.get_parameters() if p.name == "2.moving_mean"]
    report["means"] = means
    if with_refusals:
        report["refused"] = refusals(step, rank, ranks, out)
    (out / f"rank{rank}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
