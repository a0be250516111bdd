"""What each rank runs in test_on_ranks.py: ``msrun ... recipes_on_ranks.py DATA OUT``.

Writes OUT/rank<n>.json and OUT/rank<n>.npz: what each training reported, and its Parameters.
"""

import json
import sys
from pathlib import Path

import numpy as np

from tests.support.rank_programs import refused
from tests.support.recipes import Kept, group_norm, newest, recipe, settings, shrink


class Trainings:
    """Runs trainings and keeps their results."""

    def __init__(self, data):
        self.data, self.kept, self.arrays, self.said = data, Kept(), {}, {}

    def train(self, label, config, name="resnet50", resume=False):
        result = recipe(name).train(
            config, self.data, device="CPU", distribute=True, device_num=2, resume=resume
        )
        self.arrays |= self.kept.parameters(label)
        columns = {n: result.records.column(n) for n in ("loss", "images")}
        self.said[label] = columns | {"evaluation": result.evaluation}

    def refused(self, label, call, *arguments, **options):
        """Keep the message of the InputError that a call raises."""
        self.said[label] = refused(lambda: call(*arguments, **options))


def with_batch_norm(run, out):
    """Run ResNet-50's recipe, whole and resumed, and keep what two ranks refuse."""
    from mindspore import Tensor, ops

    from labkit.ranks import cluster

    run.train("whole", settings("resnet50", out))
    rank, _ = cluster.rank_and_size()
    run.refused("again", run.train, "again", settings("resnet50", out))
    if rank == 0:
        newest(out / "resnet50").unlink()
    cluster.gather([0.0])
    run.train("resumed", settings("resnet50", out), resume=True)
    run.refused("disagree", cluster.agree, same=1, number=rank)
    run.refused("config", run.train, "config", settings("resnet50", out / "none", lr=0.05 + rank))

    def spoil(network):
        values = network.conv1.weight.asnumpy().copy()
        values.flat[0] += rank
        ops.assign(network.conv1.weight, Tensor(values))

    spoiled = Kept(spoil)
    run.refused("weights", run.train, "weights", settings("resnet50", out / "none"))
    spoiled.undo()
    run.said["gathered"] = cluster.gather([1 / 3 + rank, -1e300, -0.0]).tolist()


def with_group_norm(run, out):
    """Run recipes with a normalisation that does not depend on the other images of a batch."""
    from labkit.ranks import cluster

    run.train("micro", settings("resnet50", out / "micro", batch_size=5, micro_steps=2))
    run.train("thor", settings("thor", out), "thor")
    adasum = settings("adasum", out, workers=1)
    run.train("adasum", adasum, "adasum")
    if cluster.rank_and_size()[0] == 0:
        newest(out / "adasum").unlink()
    cluster.gather([0.0])
    run.train("adasum resumed", adasum, "adasum", resume=True)
    servers = settings("adasum", out / "none", workers=1, node_size=8)
    run.refused("servers", run.train, "servers", servers, "adasum")
    # One step per epoch: five epochs for five snapshots.
    epochs = {"epoch_size": 5, "total_epochs": 6, "snapshots_per_epoch": 1}
    for name, changed in (("subspace-1", epochs), ("subspace-2", {})):
        run.train(name, settings(name, out, **changed), name)


def main(data, out):
    from labkit.ranks import cluster

    run = Trainings(data)
    shrink()
    with_batch_norm(run, out)
    shrink(group_norm)
    with_group_norm(run, out)
    rank, _ = cluster.rank_and_size()
    np.savez(out / f"rank{rank}.npz", **run.arrays)
    (out / f"rank{rank}.json").write_text(json.dumps(run.said))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
