"""The settings of every lab at every preset: one table, so that no notebook repeats a number.

``smoke`` is for tests (under 30 s a notebook), ``lab`` gives the numbers the text speaks of (under
4 minutes on two cores), ``paper`` is the source document's own full-scale setting.
"""

import math
from collections.abc import Callable

from labkit.errors import InputError, refuse_unknown

PRESETS = ("smoke", "lab", "paper")

# The source document trains on all 60 000 images in every setting, so `lab` and `paper` agree on
# everything that it fixes: batch 32, 4 micro-steps, 3 epochs, Momentum 0.01 / 0.9.
_GRADIENT_ACCUMULATION = {
    "lab": {
        "epochs": 3,
        "batch_size": 32,
        "micro_steps": 4,
        "learning_rate": 0.01,
        "momentum": 0.9,
        "train_images": 60_000,
        "seed": 1,
        "workers": 1,
    },
}
_GRADIENT_ACCUMULATION["paper"] = dict(_GRADIENT_ACCUMULATION["lab"])
_GRADIENT_ACCUMULATION["smoke"] = {
    **_GRADIENT_ACCUMULATION["lab"],
    "epochs": 1,
    "train_images": 2_080,
}

# Half a ResNet-18 on small images: what two cores train in two minutes. `paper` is the source
# document's ResNet-50, as labkit/recipes/resnet50_config.py trains it.
_MIGRATION = {
    "lab": {
        "depth": 18,
        "width": 0.5,
        "image_size": 64,
        "train_images": 9_000,
        "val_images": 1_000,
        "epochs": 3,
        "batch_size": 32,
        "learning_rate": 0.05,
        "warmup_epochs": 1,
        "momentum": 0.9,
        "weight_decay": 1e-4,
        "smoothing": 0.1,
        "data": "",
        "seed": 1,
        "workers": 1,
    },
}
_MIGRATION["paper"] = {
    **_MIGRATION["lab"],
    "depth": 50,
    "width": 1.0,
    "image_size": 224,
    "epochs": 90,
    "warmup_epochs": 1,
    "batch_size": 256,
    "learning_rate": 0.256,
    "momentum": 0.875,
    "weight_decay": 1 / 32768,
    "workers": 8,
}
_MIGRATION["smoke"] = {
    **_MIGRATION["lab"],
    "train_images": 200,
    "val_images": 160,
    "image_size": 32,
    "epochs": 1,
}

# Learning rates, damping, epochs: what benchmarks/thor_race.py found on a validation split, with
# the same budget for both optimizers. `paper` is the source document's ResNet-50 on 8 devices, as
# labkit/recipes/thor_config.py trains it ("ascend"); the race is then that of `lab`.
_THOR = {
    "lab": {
        "learning_rate": 1.2,
        "damping": 3.0,
        "frequency": 10,
        "thor_epochs": 2,
        "momentum_learning_rate": 0.06,
        "momentum_epochs": 2,
        "momentum": 0.9,
        "weight_decay": 5e-4,
        "batch_size": 128,
        "train_images": 60_000,
        "evaluate_every": 39,
        "data": "",
        "seed": 1,
    },
}
_THOR["paper"] = {
    **_THOR["lab"],
    "learning_rate": 0.05803,
    "damping": 0.03,
    "frequency": 834,
    "thor_epochs": 45,
    "batch_size": 32,
}
_THOR["smoke"] = {
    **_THOR["lab"],
    "thor_epochs": 1,
    "momentum_epochs": 1,
    "train_images": 2_560,
    "evaluate_every": 10,
}

# The single worker's learning rate and the mean's own: what benchmarks/adasum_race.py found.
# `paper` is the source document's ResNet-50 on two servers, as labkit/recipes/adasum_config.py
# trains it on one device; the race is then that of `lab`.
_ADASUM = {
    "lab": {
        "workers": 16,
        "learning_rate": 0.03,
        "mean_learning_rate": 0.06,
        "momentum": 0.9,
        "batch_size": 32,
        "epochs": 2,
        "train_images": 60_000,
        "evaluate_every": 26,
        "data": "",
        "seed": 1,
    },
}
_ADASUM["paper"] = {
    **_ADASUM["lab"],
    "workers": 2,
    "learning_rate": 0.8,
    "batch_size": 256,
    "epochs": 90,
}
_ADASUM["smoke"] = {
    **_ADASUM["lab"],
    "workers": 4,
    "epochs": 1,
    "train_images": 1_280,
    "evaluate_every": 5,
}

# The two stages on 5 000 images, as benchmarks/subspace_race.py trains them: small batches at a
# learning rate that is never lowered, so that the end is noisy. `paper` is the source document's
# ResNet-50 on 8 devices, as labkit/recipes/subspace_config.py trains it; the race is then that of
# `lab`.
_SUBSPACE = {
    "lab": {
        "train_images": 5_000,
        "batch_size": 8,
        "learning_rate": 0.01,
        "momentum": 0.9,
        "epochs": 6,
        "start_epoch": 2,
        "saves_per_epoch": 8,
        "components": 32,
        "trials": 20,
        "second_batch_size": 250,
        "second_epochs": 2,
        "data": "",
        "seed": 1,
    },
}
_SUBSPACE["paper"] = {
    **_SUBSPACE["lab"],
    "batch_size": 256,
    "learning_rate": 0.8,
    "epochs": 70,
    "start_epoch": 31,
    "saves_per_epoch": 1,
    "second_batch_size": 256,
}
_SUBSPACE["smoke"] = {
    **_SUBSPACE["lab"],
    "train_images": 800,
    "epochs": 2,
    "start_epoch": 1,
    "saves_per_epoch": 6,
    "components": 4,
    "trials": 5,
    "second_batch_size": 100,
    "second_epochs": 1,
}

# The first are compared with float64, the others are the race.
_ADASUM_UPDATES = 8
_SUBSPACE_UPDATES = 4

LABS = {
    "00_start_here": {name: {} for name in PRESETS},
    "01_gradient_accumulation": _GRADIENT_ACCUMULATION,
    "02_resnet50_migration": _MIGRATION,
    "03_thor": _THOR,
    "04_adasum": _ADASUM,
    "05_dimension_reduction": _SUBSPACE,
}


def choose(lab: str, preset: str, **named) -> dict:
    """Return the settings of ``lab`` at ``preset``; a named value, not None, beats the preset.

    Raises ``InputError`` for an unknown lab, preset or setting name, and for a value that the lab
    cannot run with.
    """
    refuse_unknown("lab", lab, LABS)
    refuse_unknown("preset", preset, PRESETS)
    settings = dict(LABS[lab][preset])
    for name, value in named.items():
        refuse_unknown("parameter", name, settings)
        if value is not None:
            settings[name] = value
    for name, value in settings.items():
        expected, is_right = _VALUES[name]
        if not is_right(value):
            raise InputError(f"{name} is {value!r}; expected {expected}")
    if settings and settings["batch_size"] > settings["train_images"]:
        raise InputError(
            f"batch_size {settings['batch_size']} is larger than the data: "
            f"train_images {settings['train_images']}"
        )
    if lab == "04_adasum":
        _check_updates(settings)
    if lab == "05_dimension_reduction":
        _check_stages(settings)
    return settings


def _check_updates(settings):
    batches = settings["epochs"] * (settings["train_images"] // settings["batch_size"])
    if settings["workers"] < 2 or batches // settings["workers"] < _ADASUM_UPDATES:
        raise InputError(
            f"{batches} micro-batches and {settings['workers']} workers came; expected at least 2 "
            f"workers, and {_ADASUM_UPDATES} updates of all of them"
        )


def _check_stages(settings):
    """Raise ``InputError`` unless stage one makes the snapshots that stage two needs."""
    updates = settings["train_images"] // settings["batch_size"]
    if settings["saves_per_epoch"] > updates:
        raise InputError(
            f"saves_per_epoch is {settings['saves_per_epoch']}, and an epoch has {updates} updates;"
            " expected at most as many"
        )
    epochs = settings["epochs"] - settings["start_epoch"] + 1
    snapshots = max(epochs, 0) * settings["saves_per_epoch"]
    if snapshots <= settings["components"]:
        raise InputError(
            f"epochs {settings['epochs']}, start_epoch {settings['start_epoch']} and "
            f"saves_per_epoch {settings['saves_per_epoch']} make {snapshots} snapshots; "
            f"{settings['components']} components need at least {settings['components'] + 1}"
        )
    if settings["second_batch_size"] > settings["train_images"]:
        raise InputError(
            f"second_batch_size {settings['second_batch_size']} is larger than the data: "
            f"train_images {settings['train_images']}"
        )
    second = settings["second_epochs"] * (settings["train_images"] // settings["second_batch_size"])
    if second < _SUBSPACE_UPDATES:
        raise InputError(
            f"second_epochs {settings['second_epochs']} in batches of "
            f"{settings['second_batch_size']} are {second} updates; expected {_SUBSPACE_UPDATES}"
        )


def _integer(low: int, high: float = math.inf) -> Callable[[object], bool]:
    return lambda value: (
        isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    )


def _number(is_right: Callable[[float], bool]) -> Callable[[object], bool]:
    return lambda value: (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) < 2**1023  # finite; math.isfinite refuses 10**400 with OverflowError
        and is_right(value)
    )


_COUNT = ("an integer >= 1", _integer(1))
# More data workers than cores are no error: the pipeline fits them, and says so.
_VALUES = {
    "epochs": _COUNT,
    "batch_size": _COUNT,
    "micro_steps": _COUNT,
    "workers": _COUNT,
    "train_images": ("an integer from 1 to 60000", _integer(1, 60_000)),
    "frequency": _COUNT,
    "evaluate_every": _COUNT,
    "start_epoch": _COUNT,
    "saves_per_epoch": _COUNT,
    # Two of them span the plane that a path is drawn in.
    "components": ("an integer >= 2", _integer(2)),
    "trials": _COUNT,
    "second_batch_size": _COUNT,
    "second_epochs": _COUNT,
    "seed": ("an integer from 0 to 2**32 - 1", _integer(0, 2**32 - 1)),
    "learning_rate": ("a finite number > 0", _number(lambda value: value > 0)),
    "thor_epochs": ("a finite number > 0", _number(lambda value: value > 0)),
    "momentum_epochs": ("a finite number > 0", _number(lambda value: value > 0)),
    "mean_learning_rate": ("a finite number > 0", _number(lambda value: value > 0)),
    "momentum_learning_rate": ("a finite number > 0", _number(lambda value: value > 0)),
    "damping": ("a finite number > 0", _number(lambda value: value > 0)),
    "momentum": ("a number from 0 to below 1", _number(lambda value: 0 <= value < 1)),
    "weight_decay": ("a finite number >= 0", _number(lambda value: value >= 0)),
    "smoothing": ("a number from 0 to below 1", _number(lambda value: 0 <= value < 1)),
    "width": ("0.25, 0.5, 1 or 2", lambda value: value in (0.25, 0.5, 1, 2)),
    "depth": ("18, 34, 50, 101 or 152", lambda value: value in (18, 34, 50, 101, 152)),
    "image_size": (
        "a multiple of 4 from 32 on",
        lambda value: _COUNT[1](value) and value % 4 == 0 and value >= 32,
    ),
    "val_images": ("an integer from 1 to 10000", _integer(1, 10_000)),
    "warmup_epochs": ("an integer >= 0", _integer(0)),
    # A folder with train/ and val/; empty: the colour digits, made offline.
    "data": ("the path of a folder, or an empty text", lambda value: isinstance(value, str)),
}
