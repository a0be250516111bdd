"""The settings of every lab at every preset, as presets.yaml states them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from labkit.base.arguments import integer, local_path, number, seed, wrong
from labkit.errors import InputError, refuse_unknown

Preset = Literal["smoke", "lab", "paper"]
PRESETS = get_args(Preset)
Settings = dict[str, Any]
_WRITTEN = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
# lab -> preset -> setting -> value
LABS: dict[str, dict[str, Settings]] = {
    lab: {
        preset: {n: v[column] if isinstance(v, list) else v for n, v in settings.items()}
        for column, preset in enumerate(PRESETS)
    }
    for lab, settings in _WRITTEN.items()
}


def choose(lab: str, preset: Preset, **named: Any) -> Settings:
    """Return the settings of a lab; a named value replaces the preset's.

    Raises:
        InputError: if a lab, preset or setting is unknown, or the lab cannot run with a value.
    """
    refuse_unknown("lab", lab, LABS)
    refuse_unknown("preset", preset, PRESETS)
    settings = dict(LABS[lab][preset])
    for name, value in named.items():
        refuse_unknown("parameter", name, settings)
        settings[name] = value
    for name, value in settings.items():
        _check(name, value)
    images = settings.get("train_images", 0)
    for name in {"batch_size", "micro_batch", "second_batch_size"} & settings.keys():
        if settings[name] > images:
            raise wrong(name, settings[name], f"at most train_images {images}")
    if settings.get("data"):
        settings["data"] = str(local_path("data", settings["data"]))
    if settings.get("warmup_epochs", 0) > settings.get("epochs", 0):
        raise wrong(
            "warmup_epochs", settings["warmup_epochs"], f"at most epochs {settings['epochs']}"
        )
    if lab == "04_adasum":  # the race is longer than the 8 updates compared with float64
        batches = settings["epochs"] * (images // settings["batch_size"])
        if settings["workers"] < 2 or batches // settings["workers"] < 8:
            expected = f"at least 2, and 8 updates of all of them with {batches} micro-batches"
            raise wrong("workers", settings["workers"], expected)
    if lab.startswith("05_"):
        _check_stages(settings)
    return settings


# What a value must be; any other setting is an integer >= 1. More data workers than cores are
# allowed: the pipeline limits their number. Two components span the plane of a drawn path.
_POSITIVE = "learning_rate mean_learning_rate momentum_learning_rate damping thor_epochs"
_POSITIVE += " thor_learning_rate muon_learning_rate learning_rate_on_lines"
_KINDS: dict[str, Callable[[str, Any], object]] = {
    **dict.fromkeys(_POSITIVE.split(), partial(number, above=0)),
    "momentum": partial(number, at_least=0, below=1),
    "weight_decay": partial(number, at_least=0),
    "train_images": partial(integer, at_most=60_000),
    "components": partial(integer, at_least=2),
    "seed": lambda name, value: seed(value, name),
}


def _check(name: str, value: Any) -> None:
    if name == "data":  # a folder with train/ and val/; empty: the colour digits, made offline
        if not isinstance(value, str):
            raise wrong(name, value, "the path of a folder, or an empty text")
    else:
        _KINDS.get(name, integer)(name, value)


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
    if second < 4:
        raise InputError(f"second_epochs: expected at least 4 updates, got {second}")
