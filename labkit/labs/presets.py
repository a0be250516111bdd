"""The settings of every lab at every preset, as presets.yaml states them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from labkit.base.arguments import integer, number, seed, wrong
from labkit.errors import InputError, refuse_unknown

PRESETS = ("smoke", "lab", "paper")
Settings = dict[str, Any]

# In lab 04 the first updates are compared with float64; the race is the rest.
_ADASUM_UPDATES = 8
_SUBSPACE_UPDATES = 4


def _load() -> dict[str, dict[str, Settings]]:
    """Return lab -> preset -> setting -> value."""
    written = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return {
        lab: {
            preset: {n: v[column] if isinstance(v, list) else v for n, v in settings.items()}
            for column, preset in enumerate(PRESETS)
        }
        for lab, settings in written.items()
    }


LABS = _load()


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
    for name in ("batch_size", "second_batch_size"):
        if name in settings and settings[name] > settings["train_images"]:
            raise wrong(name, settings[name], f"at most train_images {settings['train_images']}")
    if lab == "04_adasum":
        _check_updates(settings)
    if lab.startswith("05_"):
        _check_stages(settings)
    return settings


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
        expected = f"at least {components + 1} snapshots for {components} components"
        raise InputError(f"epochs: expected {expected}, got {snapshots} from start_epoch on")
    second = settings["train_images"] // settings["second_batch_size"] * settings["second_epochs"]
    if second < _SUBSPACE_UPDATES:
        expected = f"at least {_SUBSPACE_UPDATES} updates"
        raise InputError(f"second_epochs: expected {expected}, got {second}")


def _among(values: tuple[float, ...], name: str, value: object) -> None:
    if value not in values or isinstance(value, bool):
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
