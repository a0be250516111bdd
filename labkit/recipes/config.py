"""The settings that recipes share. Each recipe adds its own, and other defaults, in a subclass."""

from dataclasses import dataclass
from typing import Any

from labkit import nets
from labkit.base.arguments import wrong
from labkit.errors import InputError
from labkit.recipes.settings import (
    check,
    count,
    flag,
    indices,
    one_of,
    path,
    positive,
    rate,
    seed,
    share,
)
from labkit.steps import options as steps

# Settings that a resumed training may change: where and how often it writes, what is fitted to the
# machine anyway, in which messages gradients are sent, and how batches reach the step.
MAY_CHANGE = (
    "save_checkpoint",
    "save_checkpoint_epochs",
    "save_checkpoint_steps",
    "keep_checkpoint_max",
    "save_checkpoint_path",
    "num_parallel_workers",
    "cache_session_id",
    "all_reduce_fusion_config",
    "dataset_sink_mode",
)


@dataclass(frozen=True)
class TrainingConfig:
    """Everything that determines a training in all recipes, except the data and the machine.

    Raises:
        InputError: if a value is invalid, or values do not fit together.
    """

    batch_size: int = count(256, "images in one micro-batch on one rank")
    class_num: int | None = count(
        1001, "width of the logits, at least the number of class folders; None: that number", 2
    )
    epoch_size: int = count(90, "epochs of the whole training")
    micro_steps: int = count(1, "micro-batches in one update; more than 1 accumulates gradients")
    weight_decay: float = rate(1e-4, "of weights; not of biases and normalisation layers")
    label_smooth_factor: float = share(0.1, "s of labkit.steps.losses.CrossEntropySmooth")
    label_smooth_convention: str = one_of(
        "mindspore", steps.CONVENTIONS, "whose smoothing: s/(n-1) for each other class, or s/n"
    )
    save_checkpoint: bool = flag(True, "False: no checkpoint is written")
    save_checkpoint_epochs: int = count(
        1, "epochs between checkpoints; the last epoch has one anyway"
    )
    save_checkpoint_steps: int | None = count(
        None, "micro-batches between checkpoints within an epoch; None: no further ones"
    )
    keep_checkpoint_max: int = count(2, "checkpoints kept")
    save_checkpoint_path: str = path(
        "runs/training", "run folder: config.json, classes.json, records.csv, checkpoint/"
    )
    depth: int = one_of(50, nets.DEPTHS, "of the ResNet")
    image_size: int = count(224, "side of its square images", 32)
    initialiser: str = one_of("seed", nets.INITIALISERS, "scheme of labkit.nets.initialisers")
    augment: bool = flag(True, "random crops and flips in training")
    dataset: str = one_of(
        "imagenet2012",
        ("imagenet2012", "cifar10"),
        "the loss of an evaluation: of imagenet2012 that of the training, of others cross entropy "
        "against the labels as they are, as the tutorials have it",
    )
    cache_session_id: int | None = count(
        None,
        "session of MindSpore's dataset cache, for evaluation; None: no cache",
    )
    all_reduce_fusion_config: tuple[int, ...] | None = indices(
        None,
        "last gradient of each message between ranks, in the tutorials 85,160 for ResNet-50; None: "
        "a message for each gradient",
    )
    dataset_sink_mode: bool = flag(
        False,
        "the data set goes into the step's graph, and one call runs an epoch, as in the tutorials; "
        "not on CPU; only where the step is one graph",
    )
    num_parallel_workers: int = count(8, "of the data pipeline, fitted to the cores")
    seed: int = seed(1, "of weights, order and augmentation")

    def __post_init__(self) -> None:
        check(self)
        if self.save_checkpoint_steps and not self.save_checkpoint:
            value = self.save_checkpoint_steps
            raise wrong("save_checkpoint_steps", value, "None with save_checkpoint False")
        if self.save_checkpoint_steps and self.dataset_sink_mode:
            value = self.save_checkpoint_steps
            raise wrong("save_checkpoint_steps", value, "None with dataset_sink_mode True")

    def step_options(self) -> dict[str, Any]:
        """Return the arguments that these settings give to a step."""
        return {"all_reduce_fusion_config": self.all_reduce_fusion_config}


@dataclass(frozen=True)
class MixedConfig(TrainingConfig):
    """The settings of recipes that can train in float16."""

    precision: str = one_of(
        "O2",
        steps.PRECISION,
        "O0 float32, O2 float16 inside the network but for BatchNorm, O3 with it",
    )
    keep_batchnorm_fp32: bool = flag(True, "False makes O3 of O2, as the tutorials have it")
    loss_scale: float = positive(1024.0, "of the loss, divided out of the gradients")
    drop_overflow_update: bool = flag(
        True, "drop a micro-batch that is not finite; False: it goes into the weights, as in r1.6"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.precision == "O2" and not self.keep_batchnorm_fp32:
            object.__setattr__(self, "precision", "O3")

    @property
    def nonfinite(self) -> str:
        """The value of a step's option ``nonfinite`` for ``drop_overflow_update``."""
        return "drop_micro" if self.drop_overflow_update else "propagate"

    def step_options(self) -> dict[str, Any]:
        """Return the arguments that these settings give to a step."""
        names = ("precision", "nonfinite", "loss_scale")
        return super().step_options() | {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class WarmUpConfig(MixedConfig):
    """The settings of recipes whose learning rates ``labkit.steps.schedules.get_lr`` returns."""

    lr_init: float = rate(0.0, "learning rate at the beginning")
    lr_end: float = rate(0.0, "learning rate at the end of the schedule")
    lr_max: float = positive(0.8, "largest learning rate")
    warmup_epochs: int = count(5, "epochs until the largest rate is reached", 0)
    lr_decay_mode: str = one_of("linear", steps.LR_DECAY_MODES, "how the rate falls after them")
    momentum: float = share(0.9, "of nn.Momentum")

    def __post_init__(self) -> None:
        super().__post_init__()
        if max(self.lr_init, self.lr_end) > self.lr_max:
            raise InputError(
                f"lr_init is {self.lr_init}, lr_end {self.lr_end} and lr_max {self.lr_max}; "
                "expected none above lr_max"
            )


def refuse_sink(config: TrainingConfig, reason: str) -> None:
    """Raise ``InputError`` if dataset_sink_mode is on; for recipes whose step is not one graph."""
    if config.dataset_sink_mode:
        raise InputError(f"dataset_sink_mode: expected False, got True: {reason}")


def at_most(name: str, value: int, other: str, most: int) -> None:
    """Raise ``InputError`` if a setting is greater than a second setting."""
    if value > most:
        raise InputError(f"{name} is {value} and {other} {most}; expected at most as many epochs")
