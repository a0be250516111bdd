"""What each rank runs in test_adasum_on_ranks.py: ``msrun ... adasum_on_ranks.py DATA OUT``.

Writes OUT/rank<n>.npz (the network's Parameters) and OUT/rank<n>.json (losses, evaluation).
"""

import json
import sys
from pathlib import Path

import numpy as np

from tests.recipes.resnet50_on_ranks import Kept, group_norm, refused, shrink

SETTINGS = {
    "depth": 18,
    "class_num": 12,
    "image_size": 32,
    "batch_size": 10,
    "epoch_size": 2,
    "lr_max": 0.02,
    "warmup_epochs": 1,
    "node_size": 1,
    "loss_scale": 1.0,
    "precision": "O0",
    "initialiser": "torchvision",
    "augment": False,
    "num_parallel_workers": 1,
}


def settings(folder, **changed):
    from labkit.recipes.adasum_config import AdasumConfig

    return AdasumConfig(**SETTINGS | {"save_checkpoint_path": str(folder)} | changed)


def main(data, out):
    from labkit.ranks import cluster
    from labkit.recipes import adasum

    shrink(group_norm)
    kept = Kept()
    options = dict(device="CPU", distribute=True, device_num=2)
    config = settings(out / "run")
    trained = adasum.train(config, data, **options)
    rank, _ = cluster.rank_and_size()
    arrays = kept.parameters("adasum")
    max((trained.folder / "checkpoint").iterdir()).unlink()
    adasum.train(config, data, resume=True, **options)
    arrays |= kept.parameters("resumed")
    said = {
        "losses": [row["loss"] for row in trained.records.rows],
        "images": [row["images"] for row in trained.records.rows],
        "evaluation": trained.evaluation,
        "folder": trained.folder.name,
        "servers": refused(
            lambda: adasum.train(settings(out / "none", node_size=8), data, **options)
        ),
    }
    np.savez(out / f"rank{rank}.npz", **arrays)
    (out / f"rank{rank}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
