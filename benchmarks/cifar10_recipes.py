"""Every recipe on 10 000 images of CIFAR-10: accuracy after equally many images.

    python benchmarks/cifar10_recipes.py FOLDER [--cores 1] [--out runs/bench/cifar10]

FOLDER has train/ and val/, each with a folder of 32x32 images for each of the ten classes. Each
training is a command of its own, printed first: ResNet-18 at 32 pixels in float32, five passes over
train/, 128 images per update, then its accuracy on val/. The two most accurate are trained with two
further seeds. No rate was tuned, so the order of the recipes says nothing about the techniques.

Finished trainings are kept in --out and not repeated. Processor seconds (user and system) and the
peak of resident memory are those of the whole process: data, compilation, training, evaluation.
"""

import csv
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from side_by_side import print_table

from labkit.base.arguments import Parser
from labkit.base.files import write_json

# Five passes. Random crops down to a twelfth of an image (augment) would need more.
COMMON = """--depth=18 --image_size=32 --class_num=None --augment=False --label_smooth_factor=0
    --num_parallel_workers=1 --save_checkpoint_epochs=5
    --device_target=CPU"""
WARM_UP = "--precision=O0 --loss_scale=1 --warmup_epochs=1 --weight_decay=5e-4"
# name -> its commands, in order: the recipe and its settings in addition to ``COMMON``.
PLAN = {
    "resnet50": [
        "resnet50 --batch_size=128 --epoch_size=5 --lr=0.1 --momentum=0.9 --weight_decay=5e-4"
    ],
    "accumulation": [
        """accumulation --batch_size=32 --micro_steps=4 --epoch_size=5 --learning_rate=0.05
        --weight_decay=5e-4"""
    ],
    "thor": [
        """thor --batch_size=128 --epoch_size=5 --lr_init=0.05 --lr_decay=2 --frequency=20
        --lr_end_epoch=6 --precision=O0 --loss_scale=1"""
    ],
    "adasum": [
        f"adasum --batch_size=32 --workers=4 --node_size=1 --epoch_size=5 --lr_max=0.05 {WARM_UP}"
    ],
    "subspace": [
        f"""subspace-1 --batch_size=128 --epoch_size=4 --total_epochs=5 --lr_max=0.1
        --snapshots_per_epoch=8 {WARM_UP}""",
        """subspace-2 --batch_size=128 --epoch_size=1 --n_components=16 --precision=O0
        --loss_scale=1""",
    ],
}
SEEDS = (1, 2, 3)


def main() -> None:
    """Run the unfinished trainings and print the table; subspace training has a row per stage."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, metavar="FOLDER")
    parser.add_argument("--cores", type=int, default=1, help="of each training (1)")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/cifar10"))
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-options.cores :])
    rows = [trained(name, SEEDS[0], options) for name in PLAN]
    best = sorted(rows, key=lambda row: -row[-1]["accuracy"])[:2]
    rows += [trained(row[0]["name"], seed, options) for row in best for seed in SEEDS[1:]]
    columns = ("recipe", "seed", "updates", "images", "accuracy", "seconds", "peak_mb")
    print_table([*columns], [[each[n] for n in columns] for row in rows for each in row])


def trained(name: str, seed: int, options) -> list[dict]:
    """Return one outcome for each command of a plan, from this or an earlier run."""
    folder, outcomes = options.out / f"{name}-{seed}", []
    for command in PLAN[name]:
        recipe, *words = (command + " " + COMMON).split()
        path = folder / f"{recipe}.json"
        if not path.exists():
            words += [f"--seed={seed}", f"--data_path={options.data}"]
            if recipe == "subspace-2":
                words.append(f"--stage_1={folder / 'subspace-1'}")
            made = outcome(recipe, words, folder)
            write_json(path, {"name": name, "seed": seed, **made}, "the training")
        outcomes.append(json.loads(path.read_text()))
    return outcomes


def outcome(recipe: str, words: list[str], folder: Path) -> dict:
    """Train, and return accuracy, updates, images, processor seconds and peak memory in MB."""
    run = folder / recipe
    shutil.rmtree(run, ignore_errors=True)
    run.parent.mkdir(parents=True, exist_ok=True)
    words = ["train", recipe, *words, f"--save_checkpoint_path={run}"]
    print("labkit", shlex.join(words), file=sys.stderr, flush=True)
    with open(folder / f"{recipe}.log", "w+") as log:
        command = [sys.executable, "-m", "labkit.recipes", *words]
        child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        _, child.returncode, usage = os.wait4(child.pid, 0)
        log.seek(0)
        text = log.read()
    accuracies = re.findall(r"^labkit: top_1_accuracy ([\d.]+)", text, re.MULTILINE)
    if child.returncode or not accuracies:
        raise RuntimeError(f"{recipe} failed:\n{text[-3000:]}")
    with open(run / "records.csv", newline="") as file:
        images = [int(row["images"]) for row in csv.DictReader(file)]
    return {
        "recipe": recipe,
        "accuracy": float(accuracies[-1]),
        "updates": len(images),
        "images": sum(images),
        "seconds": usage.ru_utime + usage.ru_stime,
        "peak_mb": usage.ru_maxrss / 1024,
    }


if __name__ == "__main__":
    main()
