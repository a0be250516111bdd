"""The settings of ``labkit.recipes.adasum``: the tutorial's, and those that it leaves open.

Source: the Adasum tutorial (ResNet-50, ImageNet, 2 servers of 8 devices, 256 images on each device:
with 1 281 167 images an epoch has 312 steps), and the lr_generator and resnet samples of r1.6, from
which it takes the learning rate and the loss.

Departures: weight decay exempts normalisation layers and biases by what they are, not by their
names; keep_batchnorm_fp32 and drop_overflow_update are True by default (in the tutorial False): a
micro-batch with an image that is not finite is dropped.
"""

from dataclasses import dataclass

from labkit.algorithms import words
from labkit.base.arguments import names_checked
from labkit.recipes.config import WarmUpConfig, at_most, refuse_sink
from labkit.recipes.settings import count, one_of


@names_checked
@dataclass(frozen=True)
class AdasumConfig(WarmUpConfig):
    """Everything that determines a training, except the data and the machine."""

    reduction: str = one_of("adasum", words.ADASUM_REDUCTIONS, "of labkit.AdasumStep")
    on: str = one_of("updates", words.ADASUM_ON, "of labkit.AdasumStep: what is combined")
    scope: str = one_of("layer", words.ADASUM_SCOPES, "of labkit.AdasumStep: by layer, or whole")
    tail: str = one_of("flush", words.WHOLE_TAILS, "what becomes of an epoch's last micro-batches")
    node_size: int = count(
        8,
        "ranks to a server: averaged inside it, combined across servers; 1 combines every rank. On "
        "one rank: micro-batches that stand for them",
    )
    workers: int = count(1, "virtual workers of each rank")
    save_checkpoint_path: str = "runs/adasum"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reduction == "adasum":
            refuse_sink(self, words.ADASUM_ON_HOST)
        at_most("warmup_epochs", self.warmup_epochs, "epoch_size", self.epoch_size)


# "servers": the tutorial's 16 devices. "one_device": the same training on one, with 4096 images in
# an update and 312 updates in an epoch of 5004 micro-batches. A server averages 8 of them, and the
# 12 left over are dropped, as the tutorial drops the images that fill no batch.
NAMED = {
    "servers": AdasumConfig(),
    "one_device": AdasumConfig(workers=2, tail="drop"),
}
