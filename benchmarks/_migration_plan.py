"""Plans of the race of PyTorch and MindSpore, at full and at small size.

training   network, optimizer and schedule, as in section 12 of lab 02
images     numbers of colour digits, equally many of each class
seeds      seeds of the initial weights and of the order of the images
timed      processes of each framework, rounds in each process, updates in a round
"""

import math
from collections.abc import Mapping

from _trainings import at_end
from _trainings import check as check_table

from labkit.errors import InputError
from labkit.labs.presets import choose
from labkit.labs.results import Stored
from labkit.labs.results.races import AVX2, FRAMEWORKS

_LAB = choose("02_resnet50_migration", "lab")
_TRAINING = {
    name: _LAB[name]
    for name in (
        "depth", "width", "image_size", "epochs", "batch_size", "learning_rate", "warmup_epochs",
        "momentum", "weight_decay", "smoothing",
    )
}  # fmt: skip

PLANS = {
    "all": {
        "training": _TRAINING,
        # Five times the lab's validation images, for a more precise accuracy.
        "images": {"train": _LAB["train_images"], "val": 5 * _LAB["val_images"]},
        "seeds": [1, 2, 3],
        "timed": {"processes": 3, "rounds": 5, "updates": 10},
    },
    # To check that the program runs: two minutes, mostly compilation; the results mean nothing.
    "quick": {
        "training": _TRAINING | {"width": 0.125, "image_size": 32, "epochs": 2, "batch_size": 16},
        "images": {"train": 60, "val": 40},
        "seeds": [1],
        "timed": {"processes": 1, "rounds": 1, "updates": 1},
    },
}
# Contestants of the timing and their environment variables; None removes one. On processors with
# AVX-512, labkit.start limits MindSpore's oneDNN to AVX2; the last contestant is PyTorch with the
# same limit.
_FREE = {"ONEDNN_MAX_CPU_ISA": None, "ATEN_CPU_CAPABILITY": None}
CONTESTANTS = {
    "PyTorch": ("PyTorch", _FREE),
    "MindSpore": ("MindSpore", _FREE),
    AVX2: ("PyTorch", {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}),
}
# Largest relative difference of the first loss: same weights and images, section 9's bound.
_FIRST_LOSS = 1e-5


def planned(plan: Mapping) -> list[tuple[str, dict[str, str], int]]:
    """Return (stage, setting, seed) of every training of a plan, in order."""
    given = [{"framework": framework, "order": "given"} for framework in FRAMEWORKS]
    race = [("race", setting, seed) for seed in plan["seeds"] for setting in given]
    return [*race, ("control", {"framework": "PyTorch", "order": "backwards"}, plan["seeds"][0])]


def updates_of(plan: dict) -> tuple[int, int]:
    """Return the updates of an epoch, and of a training."""
    per_epoch = plan["images"]["train"] // plan["training"]["batch_size"]
    return per_epoch, per_epoch * plan["training"]["epochs"]


def check(stored: Stored) -> None:
    """Raise ``InputError`` unless the rows agree with ``stored.head``."""
    plan = stored.head["plan"]
    per_epoch, total = updates_of(plan)
    check_table(stored, planned(plan), lambda row, curve: at_end(curve), lambda row: total)
    for number, row in enumerate(stored.rows, start=1):
        _check_curve(number, stored.curves[number], per_epoch, total)
        _check_exchange(number, row, plan["images"]["val"])
    for seed in plan["seeds"]:
        first = [stored.curves[r["run"]][0]["training_loss"] for r in stored.select(seed=seed)]
        if max(first) - min(first) > _FIRST_LOSS * min(first):
            raise InputError(f"seed {seed}: expected one loss before any update, got {first}")
    if set(stored.head["times"]) != set(CONTESTANTS):
        raise InputError(f"expected times of {[*CONTESTANTS]}, got {[*stored.head['times']]}")


def _check_curve(number, curve, per_epoch, total):
    updates = [point["update"] for point in curve]
    judged = [point["update"] for point in curve if point["accuracy"] is not None]
    if updates != list(range(1, total + 1)) or judged != updates[per_epoch - 1 :: per_epoch]:
        raise InputError(f"row {number}: expected {total} losses, judged every {per_epoch}")
    if not all(math.isfinite(point["training_loss"]) for point in curve):
        raise InputError(f"row {number}: a loss is not finite")


def _check_exchange(number, row, images):
    """Refuse impossible counts: if accuracies differ by n images, at least n answers differ."""
    apart = round(abs(row["other_accuracy"] - row["last_accuracy"]) * images)
    if not apart <= row["images_differ"] <= images:
        other = {name: row[name] for name in ("last_accuracy", "other_accuracy", "images_differ")}
        raise InputError(f"row {number}: expected at least {apart} images that differ, got {other}")
