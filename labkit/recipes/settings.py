"""The settings of a recipe: frozen dataclasses, filled by name, from a file, and by options."""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from labkit.base import arguments
from labkit.base.arguments import parse, read_yaml, wrong
from labkit.errors import InputError, refuse_unknown
from labkit.steps.options import GradientOptions

CONFIG, CLASSES = "config.json", "classes.json"  # in the run folder; they describe the training
DEPTHS = (18, 34, 50, 101, 152)  # of labkit.nets.resnet
SCHEMES = ("seed", "seed_table", "torchvision", "pytorch")  # of labkit.nets.initialisers
PATHS = ("save_checkpoint_path", "stage_1", "pretrained_weight_path", "pca_mat_path", "pretrained")
Settings = TypeVar("Settings", bound="TrainingConfig")


def setting(
    default: Any, meaning: str, *, words: Sequence = (), within: str = "", **bounds: float
) -> Any:
    """Return a field that is one of ``words``, if given, and at most the setting ``within``.

    ``bounds`` are as for ``arguments``; without, integers are >= 1 and numbers >= 0. A subclass may
    change the default alone: ``batch_size: int = 32``.
    """
    stated = {"meaning": meaning, "words": words, "within": within, "bounds": bounds}
    return field(default=default, metadata=stated)


@dataclass(frozen=True)
class TrainingConfig:
    """Everything that determines a training in all recipes, except the data and the machine.

    Raises ``InputError`` if a value is not of its type or outside its bounds, or fits no other.
    """

    batch_size: int = setting(256, "images in one micro-batch on one rank")
    class_num: int | None = setting(1001, "width of the logits; None: the number of class folders")
    epoch_size: int = setting(90, "epochs of the whole training")
    micro_steps: int = setting(1, "micro-batches in one update; more than 1 accumulates gradients")
    weight_decay: float = setting(1e-4, "of weights; not of biases and normalisation layers")
    label_smooth_factor: float = setting(0.1, "of the loss, also in evaluation", below=1)
    save_checkpoint: bool = setting(True, "False: no checkpoint after an epoch")
    save_checkpoint_epochs: int = setting(1, "epochs between checkpoints; the last one has one too")
    save_checkpoint_steps: int | None = setting(None, "micro-batches between further checkpoints")
    keep_checkpoint_max: int = setting(2, "checkpoints kept")
    save_checkpoint_path: str = setting("runs/training", "run folder, of this training alone")
    depth: int | None = setting(50, "of the ResNet; None: LeNet-5 on MNIST", words=DEPTHS)
    image_size: int = setting(224, "side of the ResNet's square images", at_least=32)
    initialiser: str = setting("seed", "of the ResNet: labkit.nets.initialisers", words=SCHEMES)
    augment: bool = setting(True, "random crops and flips of the images in training")
    all_reduce_fusion_config: Sequence[int] | None = setting(
        None, "last gradient of each message between ranks: 85,160; None: each has its own message"
    )
    dataset_sink_mode: bool = setting(
        False, "one call runs an epoch; not on CPU, and only where the step is one graph"
    )
    num_parallel_workers: int = setting(8, "of the data pipeline, fitted to the cores")
    seed: int = setting(1, "of weights, order and augmentation", at_least=0)
    precision: str = setting(
        "O2", "O0: float32; O2: float16 but for norms; O3: with them; auto: by operator"
    )
    loss_scale: float = setting(1024.0, "of the loss, divided out of the gradients")
    nonfinite: str = setting("drop_micro", "what is not finite is dropped; or propagate")

    def __post_init__(self) -> None:
        for name, (kind, optional, stated) in declared(type(self)).items():
            bounds, value = stated["bounds"], getattr(self, name)
            if value is None and optional:
                continue
            if kind is bool:
                arguments.flag(name, value)
            elif kind is str and not (isinstance(value, str) and value):
                raise wrong(name, value, "a text")
            elif name in PATHS:
                value = str(arguments.local_path(name, value))
            elif kind is int:
                value = arguments.integer(name, value, **{"at_least": 1, **bounds})
            elif kind is float:
                lowest = None if "above" in bounds else 0
                value = arguments.number(name, value, **{"at_least": lowest, **bounds})
            object.__setattr__(self, name, value)
            if stated["words"] and value not in stated["words"]:
                raise wrong(name, value, "one of " + ", ".join(map(str, stated["words"])))
        GradientOptions(**self.step_options())
        for name, (_, _, stated) in declared(type(self)).items():
            if (most := stated["within"]) and getattr(self, name) > getattr(self, most):
                raise wrong(name, getattr(self, name), f"at most {getattr(self, most)}, the {most}")
        if self.save_checkpoint_steps and (not self.save_checkpoint or self.dataset_sink_mode):
            expected = "None without save_checkpoint or with dataset_sink_mode"
            raise wrong("save_checkpoint_steps", self.save_checkpoint_steps, expected)

    def step_options(self) -> dict[str, Any]:
        """Return the ``GradientOptions`` that these settings give to a step."""
        names = ("all_reduce_fusion_config", "precision", "loss_scale", "nonfinite")
        return {name: getattr(self, name) for name in names}


# What a resumed training may change: what decides no number, and paths.
MAY_CHANGE = frozenset(
    "save_checkpoint save_checkpoint_epochs save_checkpoint_steps keep_checkpoint_max "
    "num_parallel_workers all_reduce_fusion_config dataset_sink_mode".split()
) | set(PATHS)


@dataclass(frozen=True)
class WarmUpConfig(TrainingConfig):
    """The settings of recipes whose learning rates ``labkit.steps.schedules.get_lr`` returns."""

    lr_init: float = setting(0.0, "learning rate at the beginning", within="lr_max")
    lr_end: float = setting(0.0, "learning rate at the end of the schedule", within="lr_max")
    lr_max: float = setting(0.8, "largest learning rate", above=0)
    warmup_epochs: int = setting(5, "epochs to the largest rate", at_least=0, within="epoch_size")
    momentum: float = setting(0.9, "of nn.Momentum", below=1)


def declared(settings: type) -> dict[str, tuple[Any, bool, Mapping[str, Any]]]:
    """Return name -> (type, whether it may be None, what the nearest class states of it)."""
    found = {}
    for name, hint in get_type_hints(settings).items():
        kinds = get_args(hint) if NoneType in get_args(hint) else (hint,)
        classes = [vars(base).get("__dataclass_fields__", {}) for base in settings.__mro__]
        stated = next(own[name].metadata for own in classes if name in own and own[name].metadata)
        found[name] = (kinds[0], NoneType in kinds, stated)
    return found


def read(base: Settings, path: str | os.PathLike | None = None, **changes: Any) -> Settings:
    """Return ``base``, changed by a YAML file (JSON is YAML too) and then by ``changes``."""
    content = {} if path is None else read_yaml(path) or {}
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected name: value lines, got a {type(content).__name__}")
    for name in content:
        refuse_unknown(f"setting in {path}:", name, asdict(base))
    return replace(base, **content | changes)


def beside(checkpoint_path: str | Path, name: str) -> Path | None:
    """Return RUN/name for a checkpoint that a training wrote into its run folder, else None."""
    path = arguments.local_path("checkpoint", checkpoint_path).absolute()
    if not path.is_file():
        raise InputError(f"no checkpoint at {checkpoint_path}")
    return next((f / name for f in path.parents[:4] if (f / name).is_file()), None)


def add_options(parser: argparse.ArgumentParser, named: Mapping[str, TrainingConfig]) -> None:
    """Add an option for each setting of ``named``; only those that are given will be parsed."""
    base, *others = named
    group = parser.add_argument_group("settings")
    shown = {int: "INT", float: "NUMBER", bool: "BOOL", str: "TEXT"}
    for name, (kind, _, stated) in declared(type(named[base])).items():
        default = getattr(named[base], name)
        values = {other: getattr(named[other], name) for other in others}
        more = "".join(f"; {other}: {v}" for other, v in values.items() if v != default)
        group.add_argument(
            f"--{name}",
            type=partial(_from_text, kind),
            default=argparse.SUPPRESS,
            metavar="|".join(map(str, stated["words"])) or shown.get(kind, "INT,INT,..."),
            help=f"{stated['meaning']} ({default}{more})".replace("%", "%%"),
        )


def _from_text(kind: Any, text: str) -> Any:
    if kind is str and (not text.strip() or parse(text) is not None):
        return text
    try:
        return parse(f"[{text.strip('[]')}]" if "," in text else text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
