"""What each rank runs in test_subspace_on_ranks.py: ``msrun ... subspace_on_ranks.py DATA OUT``.

Writes OUT/rank<n>.npz (the network's Parameters) and OUT/rank<n>.json (losses, evaluation).
"""

import json
import sys
from pathlib import Path

import numpy as np

from tests.recipes.resnet50_on_ranks import Kept, group_norm, shrink

SHARED = {
    "depth": 18,
    "class_num": 12,
    "image_size": 32,
    "batch_size": 10,
    "loss_scale": 1024.0,
    "precision": "O0",
    "initialiser": "torchvision",
    "augment": False,
    "num_parallel_workers": 1,
}
STAGE_1 = SHARED | {
    "epoch_size": 3,
    "total_epochs": 4,
    "warmup_epochs": 1,
    "lr_max": 0.05,
    "snapshots_per_epoch": 2,
    "snapshot_max": 5,
    "save_checkpoint_epochs": 1,
    "keep_checkpoint_max": 2,
}
STAGE_2 = SHARED | {"epoch_size": 2, "n_components": 3, "trials": 4}


def stage_1(out, **changed):
    from labkit.recipes.subspace_config import StageOneConfig

    return StageOneConfig(**STAGE_1 | {"save_checkpoint_path": str(out / "stage_1")} | changed)


def stage_2(out, **changed):
    from labkit.recipes.subspace_config import StageTwoConfig

    folders = {"stage_1": str(out / "stage_1"), "save_checkpoint_path": str(out / "stage_2")}
    return StageTwoConfig(**STAGE_2 | folders | changed)


def main(data, out):
    from labkit.ranks import cluster
    from labkit.recipes import subspace_stage_1, subspace_stage_2

    shrink(group_norm)
    kept, arrays, said = Kept(), {}, {}
    options = dict(device="CPU", distribute=True, device_num=2)
    for name, recipe, config in (
        ("stage_1", subspace_stage_1, stage_1(out)),
        ("stage_2", subspace_stage_2, stage_2(out)),
    ):
        trained = recipe.train(config, data, **options)
        arrays |= kept.parameters(name)
        said[name] = [row["loss"] for row in trained.records.rows]
        said[f"{name} evaluation"] = trained.evaluation
    rank, _ = cluster.rank_and_size()
    np.savez(out / f"rank{rank}.npz", **arrays)
    (out / f"rank{rank}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
