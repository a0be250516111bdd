"""The settings of the two stages of ``labkit.recipes.subspace_stage_1`` and ``..._2``.

Source: the dimension reduction tutorial (ResNet-50, ImageNet, 8 devices, 256 images on each: with
1 281 167 images an epoch has 625 steps) and the lr_generator and resnet samples of r1.6 that it
takes the learning rate and the loss from. Its ``boost_config_dict`` is read by ``upstream.boost``;
here its words are settings.

Departures: weight decay spares normalisation layers and biases by what they are, not by their
names; precision O2 leaves BatchNorm in float32 (there keep_batchnorm_fp32 is False). A micro-batch
that is not finite is dropped (there drop_overflow_update is False: it goes into the weights).
The second stage has no weight decay: the tutorial writes 1e-4 at rate 1, which would take an
eighth of every weight in its 1250 steps (1 - (1 - 1e-4)^1250 = 0.118), but MindSpore puts an
optimizer without any in the place of the one it is written for.

The tutorial's figures, which are not repeated here: loss 5.248, 3.018, 2.423 and 2.312 after epochs
1, 10, 30 and 70 of the first stage, accuracy 66.05 %; 2.342 and 2.164 after the two epochs of the
second, 74.31 %. An ordinary training has 70.18 % after 80 epochs, it says.
"""

from dataclasses import dataclass

from labkit.errors import InputError
from labkit.recipes.adasum_config import LR_DECAY_MODES
from labkit.recipes.resnet50_config import CONVENTIONS, DEPTHS, INITIALISERS
from labkit.recipes.settings import check, checked, count, number, one_of
from labkit.recipes.thor_config import PRECISIONS

# Of labkit.algorithms.subspace, which needs MindSpore; a test compares them.
METHODS = ("bfgs", "sgd")
FAILURES = ("reset", "rollback")
STARTS = ("last", "first")


def _positive(default):
    return number(default, "a finite number > 0", lambda value: value > 0)


def _rate(default):
    return number(default, "a finite number >= 0", lambda value: value >= 0)


def _share(default):
    return number(default, "a number from 0 to below 1", lambda value: 0 <= value < 1)


def _inside(default):
    return number(default, "a number between 0 and 1", lambda value: 0 < value < 1)


def _folder(default):
    return checked(default, "the path of a folder", bool)


def _path():
    return checked(None, "a path", bool)


@dataclass(frozen=True)
class _Training:
    """What both stages say: data, network, loss, gradients, checkpoints."""

    batch_size: int = count(256)
    class_num: int | None = count(1001, low=2)
    loss_scale: float = _positive(1024.0)
    precision: str = one_of("O2", PRECISIONS)
    label_smooth_factor: float = _share(0.1)
    label_smooth_convention: str = one_of("mindspore", CONVENTIONS)
    micro_steps: int = count(1)
    save_checkpoint: bool = True
    save_checkpoint_epochs: int = count(1)
    save_checkpoint_steps: int | None = count(None)
    keep_checkpoint_max: int = count(2)
    depth: int = one_of(50, DEPTHS)
    image_size: int = count(224, low=32)
    seed: int = checked(1, "a whole number from 0 to 2**32 - 1", lambda value: 0 <= value < 2**32)
    initialiser: str = one_of("seed", INITIALISERS)
    augment: bool = True
    num_parallel_workers: int = count(8)

    def __post_init__(self):
        check(self)
        if self.save_checkpoint_steps and not self.save_checkpoint:
            raise InputError("save_checkpoint_steps came with save_checkpoint False; expected one")


@dataclass(frozen=True)
class StageOneConfig(_Training):
    """The first stage: an ordinary training that keeps snapshots of the weights.

    epoch_size               epochs that are trained; the learning rate is made for total_epochs and
                             still at 0.188 where the tutorial stops, after 70 of 90
    lr_init, lr_end, lr_max, warmup_epochs, total_epochs, lr_decay_mode
                             of ``labkit.steps.schedules.get_lr``
    weight_decay             of weights; not of biases and normalisation layers
    snapshot_start_epoch     first epoch with snapshots, counted from 1
    snapshots_per_epoch      at even distances; the last one at the epoch's end
    snapshot_max             snapshots kept, the newest: of 70 epochs those from epoch 31 on; None:
                             all
    save_checkpoint_path     run folder: also checkpoint_pca/, the snapshots
    batch_size, loss_scale, precision, label_smooth_factor, label_smooth_convention, micro_steps,
    save_checkpoint, save_checkpoint_epochs, save_checkpoint_steps, keep_checkpoint_max, depth,
    image_size, class_num, seed, initialiser, augment, num_parallel_workers, momentum
                             as in ``labkit.recipes.adasum_config``

    Raises ``InputError`` for values that are not right.
    """

    epoch_size: int = count(70)
    lr_init: float = _rate(0.0)
    lr_end: float = _rate(0.0)
    lr_max: float = _positive(0.8)
    warmup_epochs: int = count(5, low=0)
    total_epochs: int = count(90)
    lr_decay_mode: str = one_of("linear", LR_DECAY_MODES)
    weight_decay: float = _rate(1e-4)
    momentum: float = _share(0.9)
    snapshot_start_epoch: int = count(1)
    snapshots_per_epoch: int = count(1)
    snapshot_max: int | None = count(40)
    save_checkpoint_epochs: int = count(10)
    keep_checkpoint_max: int = count(10)
    save_checkpoint_path: str = _folder("runs/subspace/stage_1")

    def __post_init__(self):
        super().__post_init__()
        if self.epoch_size > self.total_epochs:
            raise InputError(
                f"epoch_size is {self.epoch_size} and total_epochs, where the learning rate ends, "
                f"{self.total_epochs}; expected at most as many epochs"
            )
        if self.warmup_epochs > self.total_epochs:
            raise InputError(
                f"warmup_epochs is {self.warmup_epochs}, total_epochs {self.total_epochs}; "
                "expected at most as many"
            )
        if max(self.lr_init, self.lr_end) > self.lr_max:
            raise InputError(
                f"lr_init is {self.lr_init}, lr_end {self.lr_end} and lr_max {self.lr_max}; "
                "expected none above lr_max"
            )
        if self.snapshot_start_epoch > self.epoch_size:
            raise InputError(
                f"snapshot_start_epoch is {self.snapshot_start_epoch}, epoch_size "
                f"{self.epoch_size}; expected at most as many: there would be no snapshot"
            )


@dataclass(frozen=True)
class StageTwoConfig(_Training):
    """The second stage: a search in the directions that the first one's snapshots lie in.

    stage_1                  run folder of the first stage, for what the next three leave out
    pretrained_weight_path   checkpoint to start from; None: the newest of stage_1
    weight_load_dir          folder of the snapshots; None: that of the checkpoint's run folder, or
                             of stage_1
    pca_mat_path             the basis: loaded where the file is there, else made of the snapshots
                             and saved there; None: pca_mat.npy beside the snapshots
    start_from               ``last``: from the checkpoint, as the tutorial; ``first``: from the
                             first snapshot's weights, the nearest to the paper, which starts from
                             the initial ones: no snapshot holds these
    n_components             of the basis
    method, rho, sigma, trials, gamma, alpha, failure
                             of ``labkit.SubspaceStep``
    learning_rate            of nn.SGD, which takes what the search leaves: 1 is the source's rule
    weight_decay             of weights; not of biases and normalisation layers
    epoch_size               epochs that are trained
    save_checkpoint_path     run folder
    others                   as in ``StageOneConfig``

    Raises ``InputError`` for values that are not right.
    """

    stage_1: str = _folder("runs/subspace/stage_1")
    pretrained_weight_path: str | None = _path()
    weight_load_dir: str | None = _path()
    pca_mat_path: str | None = _path()
    start_from: str = one_of("last", STARTS)
    n_components: int = count(32)
    method: str = one_of("bfgs", METHODS)
    rho: float = _inside(0.55)
    sigma: float = _inside(0.4)
    trials: int = count(20)
    gamma: float = _share(0.9)
    alpha: float = _rate(0.001)
    failure: str = one_of("reset", FAILURES)
    learning_rate: float = _positive(1.0)
    weight_decay: float = _rate(0.0)
    epoch_size: int = count(2)
    save_checkpoint_path: str = _folder("runs/subspace/stage_2")


# "as_it_ran": what MindSpore makes of the tutorial's words. Two trials are hidden in its code, and
# its loss scale of 1024 stays in the residual: alpha is 1024 times 0.001.
STAGE_TWO = {
    "tutorial": StageTwoConfig(),
    "as_it_ran": StageTwoConfig(trials=2, alpha=1.024, failure="rollback"),
}
