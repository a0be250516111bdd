"""The settings of every lab at every preset, so that no notebook repeats a number.

``smoke`` is for tests (half a minute per notebook), ``lab`` gives the numbers in the text (1 to 6
minutes on two cores), ``paper`` is the source document's own full-scale setting.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from labkit.base.arguments import integer, is_integer, is_number, number, seed, wrong
from labkit.errors import InputError, refuse_unknown

PRESETS = ("smoke", "lab", "paper")
Settings = dict[str, Any]


def _presets(**settings: Any) -> dict[str, Settings]:
    """Return preset -> setting -> value; a tuple holds the values of the presets, in order."""
    return {
        preset: {
            name: value[column] if isinstance(value, tuple) else value
            for name, value in settings.items()
        }
        for column, preset in enumerate(PRESETS)
    }


# Lab 05 on 5 000 images, as in benchmarks/subspace_race.py: small batches at a constant learning
# rate, so that the end of stage one is noisy.
_TWO_STAGES: Settings = {
    "train_images": (800, 5_000, 5_000),
    "batch_size": 8,
    "learning_rate": 0.01,
    "momentum": 0.9,
    "epochs": (2, 6, 6),
    "start_epoch": (1, 2, 2),
    "saves_per_epoch": (6, 8, 8),
    "components": (4, 32, 32),
    "trials": (5, 20, 20),
    "second_batch_size": (100, 250, 250),
    "second_epochs": (1, 2, 2),
    "seed": 1,
}

LABS = {
    "00_start_here": _presets(),
    # The source document trains on all 60 000 images in every setting, so `lab` and `paper` agree.
    "01_gradient_accumulation": _presets(
        epochs=(1, 3, 3),
        batch_size=32,
        micro_steps=4,
        learning_rate=0.01,
        momentum=0.9,
        train_images=(2_080, 60_000, 60_000),
        seed=1,
        workers=1,
    ),
    # A ResNet-18 of half the width on small images, which two cores train in two minutes. `paper`
    # is the source document's ResNet-50, as labkit/recipes/resnet50_config.py trains it.
    "02_resnet50_migration": _presets(
        depth=(18, 18, 50),
        width=(0.5, 0.5, 1.0),
        image_size=(32, 64, 224),
        train_images=(200, 9_000, 9_000),
        val_images=(160, 1_000, 1_000),
        epochs=(1, 3, 90),
        batch_size=(32, 32, 256),
        learning_rate=(0.05, 0.05, 0.256),
        warmup_epochs=1,
        momentum=(0.9, 0.9, 0.875),
        weight_decay=(1e-4, 1e-4, 1 / 32768),
        smoothing=0.1,
        data="",
        seed=1,
        workers=(1, 1, 8),
    ),
    # Learning rates, damping, epochs: from the tuning of benchmarks/thor_race.py on a validation
    # split, with the same budget for both optimizers. The second notebook has the source's
    # ResNet-50.
    "03_thor": _presets(
        learning_rate=1.2,
        damping=3.0,
        frequency=10,
        thor_epochs=(1, 2, 2),
        momentum_learning_rate=0.06,
        momentum_epochs=(1, 2, 2),
        momentum=0.9,
        weight_decay=5e-4,
        batch_size=128,
        train_images=(2_560, 60_000, 60_000),
        evaluate_every=(10, 39, 39),
        seed=1,
    ),
    # A short training with the race's THOR. `paper` is the source document's ResNet-50 on 8
    # devices, as labkit/recipes/thor_config.py trains it ("ascend"); measurements are as in `lab`.
    "03_thor_in_depth": _presets(
        learning_rate=(1.2, 1.2, 0.05803),
        damping=(3.0, 3.0, 0.03),
        frequency=(10, 10, 834),
        thor_epochs=(1, 2, 45),
        momentum=0.9,
        weight_decay=5e-4,
        batch_size=(128, 128, 32),
        train_images=(2_560, 60_000, 60_000),
        data="",
        seed=1,
    ),
    # benchmarks/adasum_race.py gave the learning rates of a single worker and of the mean. The
    # source trains a ResNet-50; the second notebook does so at `paper`, this one races as at `lab`.
    "04_adasum": _presets(
        workers=(4, 16, 16),
        learning_rate=0.03,
        mean_learning_rate=0.06,
        momentum=0.9,
        batch_size=32,
        epochs=(1, 2, 2),
        train_images=(1_280, 60_000, 60_000),
        evaluate_every=(5, 26, 26),
        seed=1,
    ),
    # `paper` is the source document's ResNet-50 on two servers, as labkit/recipes/adasum_config.py
    # trains it on one device.
    "04_adasum_in_depth": _presets(
        workers=(4, 16, 2),
        learning_rate=(0.03, 0.03, 0.8),
        momentum=0.9,
        batch_size=(32, 32, 256),
        epochs=(1, 1, 90),
        train_images=(1_280, 60_000, 60_000),
        data="",
        seed=1,
    ),
    "05_dimension_reduction": _presets(**_TWO_STAGES),
    # `paper` is the source document's ResNet-50 on 8 devices, as labkit/recipes/subspace_config.py
    # trains it; all sections before it are then as at `lab`.
    "05_dimension_reduction_in_depth": _presets(
        **_TWO_STAGES
        | {
            "batch_size": (8, 8, 256),
            "learning_rate": (0.01, 0.01, 0.8),
            "epochs": (2, 6, 70),
            "start_epoch": (1, 2, 31),
            "saves_per_epoch": (6, 8, 1),
            "second_batch_size": (100, 250, 256),
        },
        data="",
    ),
}

# In lab 04 the first updates are compared with float64; the race is the rest.
_ADASUM_UPDATES = 8
_SUBSPACE_UPDATES = 4


def choose(lab: str, preset: str, **named: Any) -> Settings:
    """Return the settings of a lab; a named value, if not None, replaces the preset's.

    Args:
        lab: one of ``LABS``.
        preset: one of ``PRESETS``.
        **named: values by the names of the lab's settings.

    Raises:
        InputError: if a lab, preset or setting is unknown, or the lab cannot run with a value.
    """
    refuse_unknown("lab", lab, LABS)
    refuse_unknown("preset", preset, PRESETS)
    settings = dict(LABS[lab][preset])
    for name, value in named.items():
        refuse_unknown("parameter", name, settings)
        if value is not None:
            settings[name] = value
    for name, value in settings.items():
        _CHECKS[name](name, value)
    if settings:
        _check_batch(settings, "batch_size")
    if lab == "04_adasum":
        _check_updates(settings)
    if lab.startswith("05_"):
        _check_stages(settings)
    return settings


def _check_batch(settings: Settings, name: str) -> None:
    batch, images = settings[name], settings["train_images"]
    if batch > images:
        raise wrong(name, batch, f"at most train_images {images}")


def _check_updates(settings: Settings) -> None:
    batches = settings["epochs"] * (settings["train_images"] // settings["batch_size"])
    if settings["workers"] < 2 or batches // settings["workers"] < _ADASUM_UPDATES:
        raise InputError(
            f"workers: expected at least 2, and {_ADASUM_UPDATES} updates of all of them, "
            f"got {settings['workers']} with {batches} micro-batches"
        )


def _check_stages(settings: Settings) -> None:
    """Raise ``InputError`` unless stage one makes the snapshots that stage two needs."""
    updates = settings["train_images"] // settings["batch_size"]
    saves, components = settings["saves_per_epoch"], settings["components"]
    if saves > updates:
        raise wrong("saves_per_epoch", saves, f"at most {updates}, the updates of an epoch")
    snapshots = max(settings["epochs"] - settings["start_epoch"] + 1, 0) * saves
    if snapshots <= components:
        raise InputError(
            f"epochs: expected at least {components + 1} snapshots for {components} components, "
            f"got {snapshots} of epochs {settings['epochs']}, start_epoch "
            f"{settings['start_epoch']} and saves_per_epoch {saves}"
        )
    _check_batch(settings, "second_batch_size")
    epochs, batch = settings["second_epochs"], settings["second_batch_size"]
    second = epochs * (settings["train_images"] // batch)
    if second < _SUBSPACE_UPDATES:
        raise InputError(
            f"second_epochs: expected at least {_SUBSPACE_UPDATES} updates, "
            f"got {second} of {epochs} epochs in batches of {batch}"
        )


def _among(values: tuple[float, ...], name: str, value: object) -> None:
    whole = all(isinstance(each, int) for each in values)
    if not (is_integer if whole else is_number)(value) or value not in values:
        raise wrong(name, value, f"one of {', '.join(map(str, values))}")


def _image_size(name: str, value: object) -> None:
    if integer(name, value, 32) % 4:
        raise wrong(name, value, "a multiple of 4 from 32 on")


def _text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise wrong(name, value, "the path of a folder, or an empty text")


# More data workers than cores are allowed: the pipeline limits their number.
_COUNTS = """epochs start_epoch second_epochs batch_size second_batch_size micro_steps workers
    frequency evaluate_every saves_per_epoch trials""".split()
_POSITIVE = """learning_rate mean_learning_rate momentum_learning_rate damping thor_epochs
    momentum_epochs""".split()
_CHECKS: dict[str, Callable[[str, Any], object]] = {
    **dict.fromkeys(_COUNTS, integer),
    **dict.fromkeys(_POSITIVE, partial(number, above=0)),
    **dict.fromkeys(("momentum", "smoothing"), partial(number, at_least=0, below=1)),
    "weight_decay": partial(number, at_least=0),
    "train_images": partial(integer, at_most=60_000),
    "val_images": partial(integer, at_most=10_000),
    "components": partial(integer, at_least=2),  # two span the plane of a drawn path
    "warmup_epochs": partial(integer, at_least=0),
    "seed": lambda name, value: seed(value, name),
    "width": partial(_among, (0.25, 0.5, 1, 2)),
    "depth": partial(_among, (18, 34, 50, 101, 152)),
    "image_size": _image_size,
    "data": _text,  # a folder with train/ and val/; empty: the colour digits, made offline
}
