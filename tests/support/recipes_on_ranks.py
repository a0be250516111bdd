"""What each rank runs in test_on_ranks.py: ``msrun ... recipes_on_ranks.py DATA OUT``.

Writes OUT/rank<n>.json and OUT/rank<n>.npz: what each training reported, and its Parameters.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.rank_programs import refused
from tests.support.recipes import group_norm, interpret, kept, newest, recipe, settings, shrink


def main(data, out):
    from mindspore import Tensor, ops

    from labkit.ranks import cluster

    arrays, said, patch = {}, {}, pytest.MonkeyPatch()

    def train(label, config, name="resnet50", resume=False, **spoil):
        """Keep the result of a training, and the Parameters that it ends with."""
        machine = dict(device="CPU", distribute=True, device_num=2)
        with kept(**spoil) as networks:
            result = recipe(name).train(config, data, resume=resume, **machine)
        arrays.update({f"{label}/{p.name}": p.asnumpy() for p in networks[-1].get_parameters()})
        said[label] = {n: result.records.column(n) for n in ("loss", "images")}
        said[label]["evaluation"] = result.evaluation

    def resumed(label, folder, *arguments):
        """Resume from the newest checkpoint that both ranks have; the first has lost its last."""
        if rank == 0:
            newest(folder).unlink()
        cluster.gather([0.0])
        train(label, *arguments, resume=True)

    def refuses(label, call, *arguments, **options):
        said[label] = refused(lambda: call(label, *arguments, **options))

    def spoil(network):
        values = network.conv1.weight.asnumpy().copy()
        values.flat[0] += rank
        ops.assign(network.conv1.weight, Tensor(values))

    shrink(patch)
    whole = settings("resnet50", out)
    train("whole", whole)
    rank, _ = cluster.rank_and_size()
    refuses("again", train, whole)
    resumed("resumed", out / "resnet50", whole)
    refuses("disagree", lambda label: cluster.agree(same=1, number=rank))
    refuses("config", train, settings("resnet50", out / "none", lr=0.05 + rank))
    refuses("weights", train, settings("resnet50", out / "none"), spoil=spoil)
    said["gathered"] = cluster.gather([1 / 3 + rank, -1e300, -0.0]).tolist()

    # In one process they are compiled in test_battery.py, and steps on ranks in
    # test_steps_on_ranks.py.
    interpret(patch)
    shrink(patch, group_norm)
    train("micro", settings("resnet50", out / "micro", batch_size=5, micro_steps=2))
    train("thor", settings("thor", out), "thor")
    adasum = settings("adasum", out, workers=1)
    train("adasum", adasum, "adasum")
    resumed("adasum resumed", out / "adasum", adasum, "adasum")
    refuses("servers", train, settings("adasum", out / "none", workers=1, node_size=8), "adasum")
    # One step per epoch: five epochs for five snapshots.
    epochs = {"epoch_size": 5, "total_epochs": 6, "snapshots_per_epoch": 1}
    train("subspace-1", settings("subspace-1", out, **epochs), "subspace-1")
    train("subspace-2", settings("subspace-2", out), "subspace-2")
    np.savez(out / f"rank{rank}.npz", **arrays)
    (out / f"rank{rank}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
