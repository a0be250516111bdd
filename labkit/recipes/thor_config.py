"""The settings of ``labkit.recipes.thor``: the tutorial's two, by name.

Source: the THOR tutorial (ResNet-50 v1.5, ImageNet, 8 devices, 32 images on each); its values are
those of official/cv/resnet in MindSpore's models repository, whose latest file for Ascend has
lr_decay 4.04839 and damping_init 0.02714 instead. With 1 281 167 images an epoch has 5004 updates,
and 834 are a sixth of them.

What these files have besides is no setting here: all_reduce_fusion_config ([80, 160] for Ascend,
[75, 155] for GPU) cuts the gradients' AllReduce into three messages, which changes no number; the
damping's 70 epochs are only the length of its array, which is here that of the training.
"""

from dataclasses import dataclass

from labkit.errors import InputError
from labkit.recipes.resnet50_config import CONVENTIONS, DEPTHS, INITIALISERS
from labkit.recipes.settings import check, checked, count, number, one_of

# labkit.steps.gradients.PRECISION, which needs MindSpore; a test compares them.
PRECISIONS = ("O0", "O2")


def _positive(default):
    return number(default, "a finite number > 0", lambda value: value > 0)


@dataclass(frozen=True)
class ThorConfig:
    """Everything that decides a training but the data and the machine.

    batch_size               images in one micro-batch on one rank
    class_num                width of the logits, at least the number of class folders; None: that
    lr_init, lr_decay, lr_end_epoch, decay_epochs
                             of ``steps.schedules.get_thor_lr``; lr_end_epoch is where the rate
                             would be 0, decay_epochs where it is halved (and once more an epoch
                             later)
    damping_init, damping_decay
                             of ``steps.schedules.get_thor_damping``: a factor damping_decay over
                             ten epochs
    frequency                updates between two refreshes of factors and inverses
    split                    largest block of a factor, or None for whole factors
    epoch_size               epochs of the whole training
    weight_decay             of every Parameter, biases and BatchNorm's too, as in the tutorial
    momentum                 0 to below 1
    loss_scale               a number; a batch that is not finite updates nothing
    precision                O0 float32, O2 float16 inside the network but for BatchNorm
    use_label_smooth         False makes label_smooth_factor 0
    label_smooth_factor      s of ``labkit.steps.losses.CrossEntropySmooth``, whose convention is
                             label_smooth_convention
    save_checkpoint, save_checkpoint_epochs, save_checkpoint_steps, keep_checkpoint_max,
    depth, image_size, initialiser, micro_steps, augment, num_parallel_workers, seed
                             as in ``labkit.recipes.resnet50_config``
    save_checkpoint_path     run folder: also ckpt_0/resnet-{epoch}_{step}.ckpt

    Raises ``InputError`` for values that are not right.
    """

    batch_size: int = count(32)
    class_num: int | None = count(1001, low=2)
    lr_init: float = _positive(0.05803)
    lr_decay: float = number(4.0839, "a finite number >= 0", lambda value: value >= 0)
    lr_end_epoch: int = count(53)
    decay_epochs: int = count(39)
    damping_init: float = _positive(0.03)
    damping_decay: float = _positive(0.50036)
    frequency: int = count(834)
    split: int | None = count(128)
    epoch_size: int = count(45)
    weight_decay: float = number(5e-4, "a finite number >= 0", lambda value: value >= 0)
    momentum: float = number(0.9, "a number from 0 to below 1", lambda value: 0 <= value < 1)
    loss_scale: float = _positive(128.0)
    precision: str = one_of("O2", PRECISIONS)
    use_label_smooth: bool = True
    label_smooth_factor: float = number(
        0.1, "a number from 0 to below 1", lambda value: 0 <= value < 1
    )
    label_smooth_convention: str = one_of("mindspore", CONVENTIONS)
    save_checkpoint: bool = True
    save_checkpoint_epochs: int = count(1)
    save_checkpoint_steps: int | None = count(None)
    keep_checkpoint_max: int = count(15)
    save_checkpoint_path: str = checked("runs/thor", "the path of a folder", bool)
    depth: int = one_of(50, DEPTHS)
    image_size: int = count(224, low=32)
    seed: int = checked(1, "a whole number from 0 to 2**32 - 1", lambda value: 0 <= value < 2**32)
    initialiser: str = one_of("seed", INITIALISERS)
    micro_steps: int = count(1)
    augment: bool = True
    num_parallel_workers: int = count(8)

    def __post_init__(self):
        check(self)
        if not self.use_label_smooth:
            object.__setattr__(self, "label_smooth_factor", 0.0)
        if self.epoch_size > self.lr_end_epoch:
            raise InputError(
                f"epoch_size is {self.epoch_size} and lr_end_epoch {self.lr_end_epoch}, where the "
                "learning rate ends; expected at most as many epochs"
            )
        if self.save_checkpoint_steps and not self.save_checkpoint:
            raise InputError("save_checkpoint_steps came with save_checkpoint False; expected one")


NAMED = {
    "ascend": ThorConfig(),
    "gpu": ThorConfig(
        lr_init=0.05672,
        lr_decay=4.9687,
        lr_end_epoch=50,
        damping_init=0.02345,
        damping_decay=0.5467,
        epoch_size=40,
    ),
}
