"""What each rank runs in test_thor_on_ranks.py: ``msrun ... thor_on_ranks.py DATA OUT``.

Writes OUT/rank<n>.npz (the network's Parameters) and OUT/rank<n>.json (losses, evaluation).
"""

import json
import sys
from pathlib import Path

import numpy as np

from tests.recipes.resnet50_on_ranks import Kept, group_norm, shrink

SETTINGS = {
    "depth": 18,
    "class_num": 12,
    "image_size": 32,
    "batch_size": 10,
    "epoch_size": 2,
    "lr_init": 0.02,
    "lr_end_epoch": 3,
    "damping_init": 0.3,
    "frequency": 2,
    "precision": "O0",
    "initialiser": "torchvision",
    "augment": False,
    "num_parallel_workers": 1,
}


def settings(folder, **changed):
    from labkit.recipes.thor_config import ThorConfig

    return ThorConfig(**SETTINGS | {"save_checkpoint_path": str(folder)} | changed)


def main(data, out):
    from labkit.ranks import cluster
    from labkit.recipes import thor

    shrink(group_norm)
    kept = Kept()
    config = settings(out / "run")
    trained = thor.train(config, data, device="CPU", distribute=True, device_num=2)
    rank, _ = cluster.rank_and_size()
    np.savez(out / f"rank{rank}.npz", **kept.parameters("thor"))
    losses = [row["loss"] for row in trained.records.rows]
    said = {"losses": losses, "evaluation": trained.evaluation}
    (out / f"rank{rank}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
