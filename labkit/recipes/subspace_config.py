"""The settings of the two stages, ``labkit.recipes.subspace_stage_1`` and ``..._2``.

Source: the dimension reduction tutorial (ResNet-50, ImageNet, 8 devices, 256 images on each: with
1 281 167 images an epoch has 625 steps), and the lr_generator and resnet samples of r1.6, from
which it takes the learning rate and the loss. ``upstream.boost`` reads its ``boost_config_dict``;
in this module the keys of that dict are settings.

Departures: weight decay exempts normalisation layers and biases by what they are, not by their
names; keep_batchnorm_fp32 and drop_overflow_update are True by default (in the tutorial False): a
micro-batch that is not finite is dropped.
The second stage has no weight decay: the tutorial writes 1e-4 at rate 1, which would remove an
eighth of every weight in its 1250 steps (1 - (1 - 1e-4)^1250 = 0.118), but MindSpore replaces the
optimizer that it is written for by one without weight decay.

The tutorial's figures, which labkit has not reproduced: loss 5.248, 3.018, 2.423 and 2.312 after
epochs 1, 10, 30 and 70 of the first stage, accuracy 66.05 %; loss 2.342 and 2.164 after the two
epochs of the second, accuracy 74.31 %; an ordinary training reaches 70.18 % after 80 epochs.
"""

from dataclasses import dataclass

from labkit.algorithms import words
from labkit.base.arguments import names_checked, wrong
from labkit.recipes.config import MixedConfig, WarmUpConfig, at_most, refuse_sink
from labkit.recipes.settings import count, inside, one_of, path, positive, rate, share

STARTS = ("last", "first")


@names_checked
@dataclass(frozen=True)
class StageOneConfig(WarmUpConfig):
    """The first stage: an ordinary training that keeps snapshots of the weights."""

    epoch_size: int = count(
        70,
        "epochs that are trained; the learning rate is made for total_epochs and still at 0.188 "
        "where the tutorial stops, after 70 of 90",
    )
    total_epochs: int = count(90, "epochs of the learning rate's schedule")
    snapshot_start_epoch: int = count(1, "first epoch with snapshots, counted from 1")
    snapshots_per_epoch: int = count(1, "at even distances; the last one at the epoch's end")
    snapshot_max: int | None = count(
        40, "snapshots kept, the newest: of 70 epochs those from epoch 31 on; None: all"
    )
    save_checkpoint_epochs: int = 10
    keep_checkpoint_max: int = 10
    save_checkpoint_path: str = path(
        "runs/subspace/stage_1", "run folder: also checkpoint_pca/, the snapshots"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        # The learning rate ends after total_epochs; a start after epoch_size has no snapshots.
        at_most("epoch_size", self.epoch_size, "total_epochs", self.total_epochs)
        at_most("warmup_epochs", self.warmup_epochs, "total_epochs", self.total_epochs)
        at_most("snapshot_start_epoch", self.snapshot_start_epoch, "epoch_size", self.epoch_size)
        if self.dataset_sink_mode and self.snapshots_per_epoch > 1:
            value = self.snapshots_per_epoch
            raise wrong("snapshots_per_epoch", value, "1 with dataset_sink_mode True")


@names_checked
@dataclass(frozen=True)
class StageTwoConfig(MixedConfig):
    """The second stage: a search in the directions that the first stage's snapshots span."""

    stage_1: str = path(
        "runs/subspace/stage_1", "run folder of the first stage, for what the next three leave out"
    )
    pretrained_weight_path: str | None = path(
        None, "checkpoint to start from; None: the newest of stage_1", "a path"
    )
    weight_load_dir: str | None = path(
        None,
        "folder of the snapshots; None: that of the checkpoint's run folder, or of stage_1",
        "a path",
    )
    pca_mat_path: str | None = path(
        None,
        "the basis: loaded where the file is there, else made of the snapshots and saved there; "
        "None: pca_mat.npy beside the snapshots",
        "a path",
    )
    start_from: str = one_of(
        "last",
        STARTS,
        "last: from the checkpoint, as the tutorial; first: from the first snapshot's weights, the "
        "nearest to the paper, which starts from the initial ones: no snapshot holds these",
    )
    n_components: int = count(32, "of the basis")
    method: str = one_of("bfgs", words.SEARCH_METHODS, "of labkit.SubspaceStep")
    rho: float = inside(0.55, "factor between the lengths of two trials of the search")
    sigma: float = inside(0.4, "share of the predicted decrease that the loss must show")
    trials: int = count(20, "most trials of a search; MindSpore has 2")
    gamma: float = share(0.9, "momentum of the residual")
    alpha: float = rate(0.001, "factor of the residual, which the optimizer takes")
    failure: str = one_of(
        "reset", words.SEARCH_FAILURES, "what a failed search forgets, see labkit.SubspaceStep"
    )
    learning_rate: float = positive(
        1.0, "of nn.SGD, which takes what the search leaves: 1 is the source's rule"
    )
    weight_decay: float = 0.0
    epoch_size: int = 2
    save_checkpoint_path: str = "runs/subspace/stage_2"

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_sink(self, words.SUBSPACE_ON_HOST)


# "as_it_ran": what MindSpore does with the tutorial's settings. Two trials are fixed in its code,
# and its loss scale of 1024 stays in the residual: alpha is 1024 times 0.001.
STAGE_TWO = {
    "tutorial": StageTwoConfig(),
    "as_it_ran": StageTwoConfig(trials=2, alpha=1.024, failure="rollback"),
}
