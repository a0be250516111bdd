"""The settings of ``labkit.recipes.resnet50``, their defaults and where these come from.

Names up to save_checkpoint_path are those of the migration document's config. It does not print
their values: the defaults are those of the sample that it was written from
(docs/sample_code/migration_sample/src/config.py of MindSpore's docs, r1.6), a ResNet-50 on ImageNet
with 256 images an update: 256 on one device, or batch_size=32 on each of 8. Departures: class_num
is counted in the data (there 1000), save_checkpoint_path is a folder of this training's own (there
./ckpt/). The document's train.py writes a checkpoint every 5 steps whatever its config says; here
the config counts.
"""

from dataclasses import dataclass

from labkit.errors import InputError
from labkit.recipes.settings import check, checked, count, number, one_of

# Names of labkit.nets.resnet, .nets.initialisers and .losses, which import MindSpore; a test
# compares them.
DEPTHS = (18, 34, 50, 101, 152)
INITIALISERS = ("seed", "seed_table", "torchvision", "pytorch")
CONVENTIONS = ("mindspore", "pytorch")
SCHEDULES = ("cosine", "cosine_as_in_the_blog")


@dataclass(frozen=True)
class Config:
    """Everything that decides a training but the data and the machine.

    batch_size               images in one micro-batch on one rank
    class_num                width of the logits, at least the number of class folders; None: that
    lr, lr_end, warmup       largest and last rate; epochs until the largest is reached
    epoch_size               epochs of the whole training
    weight_decay             of weights; not of biases and normalisation layers
    momentum                 of nn.Momentum
    label_smooth_factor      s of ``labkit.steps.losses.CrossEntropySmooth``, whose convention is
                             label_smooth_convention
    save_checkpoint          False: none is written
    save_checkpoint_epochs   epochs between checkpoints; the last epoch has one anyway
    save_checkpoint_steps    micro-batches between checkpoints within an epoch, or None
    keep_checkpoint_max      checkpoints kept
    save_checkpoint_path     run folder: config.json, classes.json, records.csv, checkpoint/
    depth, image_size        of the ResNet and its square images
    initialiser              scheme of ``labkit.nets.initialisers``
    lr_schedule              function of ``labkit.steps.schedules``: cosine has a warm-up;
                             cosine_as_in_the_blog is the document's call, which takes warmup for
                             the length of the decay
    micro_steps              micro-batches in one update; more than 1 accumulates gradients
    augment                  random crops and flips in training; the document has none
    num_parallel_workers     of the data pipeline, fitted to the cores
    seed                     of weights, order and augmentation

    Raises ``InputError`` for values that are not right.
    """

    batch_size: int = count(256)
    class_num: int | None = count(None, low=2)
    lr: float = number(0.256, "a finite number > 0", lambda value: value > 0)
    lr_end: float = number(0.0, "a finite number >= 0", lambda value: value >= 0)
    warmup: int = count(1, low=0)
    epoch_size: int = count(90)
    weight_decay: float = number(1 / 32768, "a finite number >= 0", lambda value: value >= 0)
    momentum: float = number(0.875, "a number from 0 to below 1", lambda value: 0 <= value < 1)
    label_smooth_factor: float = number(
        0.1, "a number from 0 to below 1", lambda value: 0 <= value < 1
    )
    save_checkpoint: bool = True
    save_checkpoint_epochs: int = count(5)
    save_checkpoint_steps: int | None = count(None)
    keep_checkpoint_max: int = count(10)
    save_checkpoint_path: str = checked("runs/resnet50", "the path of a folder", bool)
    depth: int = one_of(50, DEPTHS)
    image_size: int = count(224, low=32)
    seed: int = checked(1, "a whole number from 0 to 2**32 - 1", lambda value: 0 <= value < 2**32)
    initialiser: str = one_of("seed", INITIALISERS)
    label_smooth_convention: str = one_of("mindspore", CONVENTIONS)
    lr_schedule: str = one_of("cosine", SCHEDULES)
    micro_steps: int = count(1)
    augment: bool = True
    num_parallel_workers: int = count(8)

    def __post_init__(self):
        check(self)
        self._check_together()

    def _check_together(self):
        if self.warmup > self.epoch_size:
            raise InputError(
                f"warmup is {self.warmup} epochs of epoch_size {self.epoch_size}; expected at most "
                "as many"
            )
        if self.lr_end > self.lr:
            raise InputError(f"lr_end is {self.lr_end}, lr {self.lr}; expected lr_end <= lr")
        if self.lr_schedule == "cosine_as_in_the_blog" and not (
            self.warmup and self.lr_end < self.lr
        ):
            raise InputError(
                f"warmup is {self.warmup}, lr_end {self.lr_end} and lr {self.lr}; "
                "cosine_as_in_the_blog needs warmup >= 1 and lr_end < lr"
            )
        if self.save_checkpoint_steps and not self.save_checkpoint:
            raise InputError("save_checkpoint_steps came with save_checkpoint False; expected one")
