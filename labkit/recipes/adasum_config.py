"""The settings of ``labkit.recipes.adasum``: the tutorial's, and what it leaves open.

Source: the Adasum tutorial (ResNet-50, ImageNet, 2 servers of 8 devices, 256 images on each: with
1 281 167 images an epoch has 312 steps) and the lr_generator and resnet samples of r1.6 that it
takes the learning rate and the loss from.

Departures: weight decay spares normalisation layers and biases by what they are, not by their
names; precision O2 leaves BatchNorm in float32 (there keep_batchnorm_fp32 is False). An image that
is not finite drops its micro-batch (there drop_overflow_update is False: it goes into the weights).
"""

from dataclasses import dataclass

from labkit.errors import InputError
from labkit.recipes.resnet50_config import CONVENTIONS, DEPTHS, INITIALISERS
from labkit.recipes.settings import check, checked, count, number, one_of
from labkit.recipes.thor_config import PRECISIONS

# Of algorithms.adasum and steps.schedules, which need MindSpore or hide the names; a test
# compares them.
REDUCTIONS = ("adasum", "mean", "sum")
ON = ("updates", "gradients")
SCOPES = ("layer", "network")
TAILS = ("flush", "drop")
LR_DECAY_MODES = ("steps", "poly", "cosine", "linear")


def _rate(default):
    return number(default, "a finite number >= 0", lambda value: value >= 0)


def _share(default):
    return number(default, "a number from 0 to below 1", lambda value: 0 <= value < 1)


@dataclass(frozen=True)
class AdasumConfig:
    """Everything that decides a training but the data and the machine.

    reduction, on, scope, tail
                             of ``labkit.AdasumStep``
    node_size                ranks to a server: averaged inside it, combined across servers; 1
                             combines every rank. On one rank: micro-batches that stand for them
    workers                  virtual workers of each rank
    batch_size               images in one micro-batch on one rank
    lr_init, lr_end, lr_max, warmup_epochs, lr_decay_mode
                             of ``labkit.steps.schedules.get_lr``; its total_epochs is epoch_size
    weight_decay             of weights; not of biases and normalisation layers
    loss_scale               a number; a micro-batch that is not finite is dropped
    precision                O0 float32, O2 float16 inside the network but for BatchNorm
    class_num, epoch_size, momentum, label_smooth_factor, label_smooth_convention, save_checkpoint,
    save_checkpoint_epochs, save_checkpoint_steps, keep_checkpoint_max, save_checkpoint_path, depth,
    image_size, initialiser, micro_steps, augment, num_parallel_workers, seed
                             as in ``labkit.recipes.resnet50_config``

    Raises ``InputError`` for values that are not right.
    """

    reduction: str = one_of("adasum", REDUCTIONS)
    on: str = one_of("updates", ON)
    scope: str = one_of("layer", SCOPES)
    tail: str = one_of("flush", TAILS)
    node_size: int = count(8)
    workers: int = count(1)
    micro_steps: int = count(1)
    batch_size: int = count(256)
    class_num: int | None = count(1001, low=2)
    lr_init: float = _rate(0.0)
    lr_end: float = _rate(0.0)
    lr_max: float = number(0.8, "a finite number > 0", lambda value: value > 0)
    warmup_epochs: int = count(5, low=0)
    lr_decay_mode: str = one_of("linear", LR_DECAY_MODES)
    epoch_size: int = count(90)
    weight_decay: float = _rate(1e-4)
    momentum: float = _share(0.9)
    loss_scale: float = number(1024.0, "a finite number > 0", lambda value: value > 0)
    precision: str = one_of("O2", PRECISIONS)
    label_smooth_factor: float = _share(0.1)
    label_smooth_convention: str = one_of("mindspore", CONVENTIONS)
    save_checkpoint: bool = True
    save_checkpoint_epochs: int = count(1)
    save_checkpoint_steps: int | None = count(None)
    keep_checkpoint_max: int = count(2)
    save_checkpoint_path: str = checked("runs/adasum", "the path of a folder", bool)
    depth: int = one_of(50, DEPTHS)
    image_size: int = count(224, low=32)
    seed: int = checked(1, "a whole number from 0 to 2**32 - 1", lambda value: 0 <= value < 2**32)
    initialiser: str = one_of("seed", INITIALISERS)
    augment: bool = True
    num_parallel_workers: int = count(8)

    def __post_init__(self):
        check(self)
        if self.warmup_epochs > self.epoch_size:
            raise InputError(
                f"warmup_epochs is {self.warmup_epochs}, epoch_size {self.epoch_size}; expected at "
                "most as many"
            )
        if max(self.lr_init, self.lr_end) > self.lr_max:
            raise InputError(
                f"lr_init is {self.lr_init}, lr_end {self.lr_end} and lr_max {self.lr_max}; "
                "expected none above lr_max"
            )
        if self.save_checkpoint_steps and not self.save_checkpoint:
            raise InputError("save_checkpoint_steps came with save_checkpoint False; expected one")


# "servers": the tutorial's 16 devices. "one_device": the same training on one, 4096 images in an
# update and 312 updates in an epoch, which holds 5004 micro-batches: 8 of them are what a server
# averages, and the 12 that are left over go, as in the tutorial the images that no batch takes.
NAMED = {
    "servers": AdasumConfig(),
    "one_device": AdasumConfig(workers=2, tail="drop"),
}
