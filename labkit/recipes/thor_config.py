"""The settings of ``labkit.recipes.thor``: the tutorial's two sets of values, by name.

Source: the THOR tutorial (ResNet-50 v1.5, ImageNet, 8 devices, 32 images on each); its values are
those of official/cv/resnet in MindSpore's models repository, whose latest file for Ascend has
lr_decay 4.04839 and damping_init 0.02714 instead. With 1 281 167 images an epoch has 5004 updates,
and 834 are a sixth of them.

These files also have all_reduce_fusion_config, [80, 160] for Ascend and [75, 155] for GPU. In
labkit it is a setting and None by default: the indices are those of a ResNet-50's gradients, and on
two ranks they do not change any number. The damping's 70 epochs are not a setting: they are only
the length of its array, which in labkit is that of the training.
"""

from dataclasses import dataclass

from labkit.algorithms.words import THOR_ON_HOST
from labkit.base.arguments import names_checked
from labkit.recipes.config import MixedConfig, at_most, refuse_sink
from labkit.recipes.settings import count, flag, path, positive, rate, share


@names_checked
@dataclass(frozen=True)
class ThorConfig(MixedConfig):
    """Everything that determines a training, except the data and the machine."""

    batch_size: int = 32
    epoch_size: int = 45
    lr_init: float = positive(0.05803, "learning rate of labkit.steps.schedules.get_thor_lr")
    lr_decay: float = rate(4.0839, "its exponent")
    lr_end_epoch: int = count(53, "epoch at which the rate would be 0")
    decay_epochs: int = count(39, "epoch at which the rate is halved, and once more one later")
    damping_init: float = positive(0.03, "damping of labkit.steps.schedules.get_thor_damping")
    damping_decay: float = positive(0.50036, "its factor over ten epochs")
    frequency: int = count(834, "updates between two refreshes of factors and inverses")
    split: int | None = count(128, "largest block of a factor; None: whole factors")
    weight_decay: float = rate(
        5e-4, "of every Parameter, biases and BatchNorm's too, as in the tutorial"
    )
    momentum: float = share(0.9, "of nn.Momentum")
    loss_scale: float = 128.0
    use_label_smooth: bool = flag(True, "False makes label_smooth_factor 0")
    keep_checkpoint_max: int = 15
    save_checkpoint_path: str = path("runs/thor", "run folder: also ckpt_0/resnet-EPOCH_STEP.ckpt")

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_sink(self, THOR_ON_HOST)
        if not self.use_label_smooth:
            object.__setattr__(self, "label_smooth_factor", 0.0)
        # The learning rate ends at lr_end_epoch.
        at_most("epoch_size", self.epoch_size, "lr_end_epoch", self.lr_end_epoch)


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
