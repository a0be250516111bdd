"""The settings of ``labkit.recipes.accumulation``: the tutorial's LeNet, or a ResNet.

Source: the tutorial on gradient accumulation (MindSpore r1.0): LeNet-5 on MNIST, 4 micro-batches of
32 in an update, Momentum(0.01, 0.9), 3 epochs. It sums the gradients (``reduction="sum"``), carries
the last micro-batches of an epoch, which do not fill an update, into the next epoch
(``tail="carry"``), and has its two Rescales in the wrong order (``rescale="seed"``).
"""

from dataclasses import dataclass, fields

from labkit.base.arguments import names_checked
from labkit.data import RESCALES
from labkit.errors import InputError
from labkit.recipes.config import MixedConfig
from labkit.recipes.settings import one_of, positive, share
from labkit.steps import options as steps

# Settings that apply only to the ResNet and to image folders.
_OF_RESNET = ("depth", "image_size", "initialiser", "augment", "cache_session_id")


@names_checked
@dataclass(frozen=True)
class AccumulationConfig(MixedConfig):
    """Everything that determines a training, except the data and the machine."""

    network: str = one_of(
        "lenet", ("lenet", "resnet"), "lenet: LeNet-5 on MNIST; resnet: a ResNet on an image folder"
    )
    learning_rate: float = positive(0.01, "of nn.Momentum, the same throughout")
    momentum: float = share(0.9, "of nn.Momentum")
    reduction: str = one_of("mean", steps.REDUCTION, "of labkit.AccumulatedStep; sum: the source")
    tail: str = one_of("flush", steps.TAILS, "what becomes of an epoch's last micro-batches")
    rescale: str = one_of("correct", RESCALES, "order of the two Rescales, see labkit.data.mnist")
    batch_size: int = 32
    micro_steps: int = 4
    epoch_size: int = 3
    class_num: int | None = None
    weight_decay: float = 0.0
    label_smooth_factor: float = 0.0
    precision: str = "O0"
    loss_scale: float = 1.0
    save_checkpoint_path: str = "runs/accumulation"

    def __post_init__(self) -> None:
        super().__post_init__()
        others = _OF_RESNET if self.network == "lenet" else ("rescale",)
        defaults = {each.name: each.default for each in fields(self)}
        for name in others:
            if getattr(self, name) != defaults[name]:
                raise InputError(
                    f"{name} is {getattr(self, name)} with network {self.network}, which has none; "
                    f"expected {defaults[name]}"
                )


# "resnet50": 256 images in an update, in micro-batches of 64.
NAMED = {
    "lenet": AccumulationConfig(),
    "resnet50": AccumulationConfig(
        network="resnet",
        batch_size=64,
        learning_rate=0.1,
        epoch_size=90,
        class_num=1001,
        weight_decay=1e-4,
        label_smooth_factor=0.1,
        precision="O2",
        loss_scale=1024.0,
    ),
}
