"""The parts of a recipe: data, network, loss and step, built from its settings.

All recipes train a ResNet on an image folder; ``network="lenet"`` of the accumulation recipe is
LeNet-5 on MNIST.

What needs MindSpore is imported inside the functions, which are called after ``labkit.start``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.errors import InputError, warn
from labkit.recipes.config import MixedConfig, TrainingConfig, WarmUpConfig

if TYPE_CHECKING:
    import numpy as np
    from mindspore import nn
    from mindspore.train import Callback, RunContext

    from labkit.steps.losses import CrossEntropySmooth
    from labkit.steps.step import Step
    from labkit.steps.update import UpdateStage

# (training, evaluation) folders: in the tutorials' code, in the text of the dimension reduction
# tutorial, and in THOR's tutorial.
_TREES = (("train", "val"), ("train", "validation_preprocess"), ("ilsvrc", "ilsvrc_eval"))


def datasets(
    config: TrainingConfig,
    dataset_path: str | Path,
    rank: int,
    ranks: int,
    *,
    only_evaluate: bool = False,
) -> tuple:
    """Return (training set or None, evaluation set or None, class names)."""
    if is_lenet(config):
        return _mnist(config, dataset_path, rank, ranks, only_evaluate)
    from labkit.data import imagefolder
    from labkit.data.imagefiles import class_names

    root, train_folder, val_folder = folders(dataset_path)
    share = (config.batch_size, ranks, rank)
    options: dict[str, Any] = {
        "image_size": config.image_size,
        "num_parallel_workers": config.num_parallel_workers,
    }
    if only_evaluate:
        options["cache_session_id"] = config.cache_session_id
        val_set = imagefolder.create_dataset(val_folder, *share, do_train=False, **options)
        return None, val_set, class_names(val_folder)
    if train_folder == root:
        train_set = imagefolder.create_dataset(root, *share, augment=config.augment, **options)
        return train_set, None, class_names(root)
    options |= {"train": train_folder.name, "val": val_folder.name, "augment": config.augment}
    options["cache_session_id"] = config.cache_session_id
    return imagefolder.create_datasets(root, *share, **options)


def is_lenet(config: TrainingConfig) -> bool:
    """Return whether the settings are of LeNet-5 on MNIST."""
    return getattr(config, "network", "resnet") == "lenet"


def _mnist(
    config: Any, dataset_path: str | Path, rank: int, ranks: int, only_evaluate: bool
) -> tuple:
    from labkit.data import mnist

    shared: dict[str, Any] = {
        "num_parallel_workers": config.num_parallel_workers,
        "rescale": config.rescale,
        "rank_size": ranks,
        "rank_id": rank,
    }
    digits = tuple("0123456789")
    val_set = mnist.create_eval_dataset(dataset_path, **shared)
    if only_evaluate:
        return None, val_set, digits
    train_set = mnist.create_dataset(dataset_path, config.batch_size, usage="train", **shared)
    return train_set, val_set, digits


def folders(dataset_path: str | Path) -> tuple[Path, Path, Path]:
    """Return (the folder, its training folder, its evaluation folder).

    All three are the folder itself if it holds the folders of the classes.
    """
    root = Path(dataset_path)
    names = dict.fromkeys(name for tree in _TREES for name in tree)
    there = [name for name in names if (root / name).is_dir()]
    for tree in _TREES:
        if there == list(tree):
            return root, root / tree[0], root / tree[1]
    trees = " or ".join(f"{train}/ and {val}/" for train, val in _TREES)
    if len(there) > 1:
        raise InputError(f"{root} holds {', '.join(there)}; expected {trees}, and none besides")
    if there and sum(entry.is_dir() for entry in root.iterdir()) == 1:
        raise InputError(f"{root} holds {there[0]}/ alone; expected {trees}, or one folder a class")
    return root, root, root


def updates_in_epoch(config: TrainingConfig, micro_batches: int) -> int:
    """Return the updates in an epoch, where leftover micro-batches make an update of their own."""
    return -(-micro_batches // config.micro_steps)


def with_classes(config: TrainingConfig, classes: Sequence[object]) -> TrainingConfig:
    """Return ``config`` with a class_num that is at least the number of classes in the data."""
    wanted = config.class_num
    if wanted is not None and wanted < len(classes):
        raise InputError(
            f"class_num is {wanted}, and the data has {len(classes)} classes; expected as many, or "
            "None, which counts them"
        )
    return replace(config, class_num=wanted or len(classes))


def network_name(config: TrainingConfig) -> str:
    """Return the name of the network in printed lines."""
    return "LeNet-5" if is_lenet(config) else f"ResNet-{config.depth}"


def build_network(config: TrainingConfig) -> nn.Cell:
    """Return the network with its initial weights, the same on every rank right after ``start``.

    The scheme ``seed`` leaves the dense bias as MindSpore makes it, from the global random state.
    """
    from labkit.nets import lenet, resnet
    from labkit.nets.initialisers import initialise

    assert config.class_num is not None  # see with_classes
    if is_lenet(config):
        return lenet.LeNet5(config.class_num)
    network = resnet.resnet(config.depth, config.class_num)
    initialise(network, config.initialiser, config.seed)
    return network


def build_loss(config: TrainingConfig) -> CrossEntropySmooth:
    """Return the loss: cross entropy against smoothed labels."""
    from labkit.steps.losses import CrossEntropySmooth

    assert config.class_num is not None  # see with_classes
    return CrossEntropySmooth(
        smooth_factor=config.label_smooth_factor,
        num_classes=config.class_num,
        convention=config.label_smooth_convention,
    )


def build_evaluation_loss(config: TrainingConfig) -> nn.Cell:
    """Return the loss of an evaluation, see the setting ``dataset``."""
    if config.dataset == "imagenet2012":
        return build_loss(config)
    return build_loss(replace(config, label_smooth_factor=0.0))


def warm_up_rates(config: WarmUpConfig, epochs: int, updates: int) -> np.ndarray:
    """Return the learning rates of ``epochs`` epochs with ``updates`` updates each."""
    from labkit.steps import schedules

    return schedules.get_lr(
        config.lr_init,
        config.lr_end,
        config.lr_max,
        config.warmup_epochs,
        epochs,
        updates,
        config.lr_decay_mode,
    )


def momentum(network: nn.Cell, rates: np.ndarray, decay: float, factor: float) -> nn.Optimizer:
    """Return nn.Momentum with weight decay on weights only, and a rate for each update."""
    import mindspore as ms
    from mindspore import nn

    from labkit.steps.parameter_groups import decay_groups

    return nn.Momentum(decay_groups(network, decay), ms.Tensor(rates), factor)


def monitors(micro_batches: int) -> list[Callback]:
    """Return TimeMonitor and LossMonitor, which print once per epoch, as in THOR's tutorial.

    ``epoch: 1 step: 5004, loss is 4.4182425`` is the loss of the first rank's last micro-batch,
    while records.csv has the loss of every update.
    """
    from mindspore.train import LossMonitor, TimeMonitor

    return [TimeMonitor(data_size=micro_batches), LossMonitor(per_print_times=micro_batches)]


def printed_losses(micro_batches: int, updates: int, words: str) -> list[Callback]:
    """Return a callback that prints as the other tutorials' trainings do, and a TimeMonitor.

    ============== Starting Training ==============
    epoch: 1 step: 625 loss is  5.2477064

    The loss is the same as in ``monitors``.

    Args:
        micro_batches: micro-batches of this rank in an epoch.
        updates: updates in an epoch, printed as the step.
        words: text between the step and the loss.
    """
    from mindspore.train import Callback, TimeMonitor

    class Printed(Callback):
        def on_train_begin(self, run_context: RunContext) -> None:
            print("============== Starting Training ==============", flush=True)

        def on_train_step_end(self, run_context: RunContext) -> None:
            now = run_context.original_args()
            if now.cur_step_num % micro_batches == 0:
                epoch = now.cur_step_num // micro_batches
                print(f"epoch: {epoch} step: {updates}{words}{now.net_outputs}", flush=True)

    return [Printed(), TimeMonitor(data_size=micro_batches)]


def make_step(
    config: TrainingConfig,
    network: nn.Cell,
    optimizer: nn.Optimizer,
    make_update: Callable[[nn.Cell], UpdateStage] | None = None,
) -> Step:
    """Return the step cell for the settings; it accumulates if micro_steps is more than 1.

    Args:
        config: the recipe's settings.
        network: inputs -> logits.
        optimizer: optimizer of the network's trainable Parameters.
        make_update: loss_net -> update stage; None: the optimizer applies the gradients unchanged.
    """
    from labkit.steps.accumulation import AccumulatedStep
    from labkit.steps.losses import LossNet
    from labkit.steps.plain import PlainStep

    loss_net = LossNet(network, build_loss(config))
    update = None if make_update is None else make_update(loss_net)
    options = config.step_options() | {"update": update}
    if config.micro_steps > 1:
        return AccumulatedStep(loss_net, optimizer, config.micro_steps, **options)
    return PlainStep(loss_net, optimizer, **options)


def in_float32(config: TrainingConfig, network: nn.Cell) -> nn.Cell:
    """Return the network that ``labkit eval`` would evaluate: in float32, with the trained values.

    A step leaves its network in float16, which overflows while running statistics are based on few
    updates: ResNet-50 at 224 pixels has after three updates a loss of 35486 in float32, and NaN in
    float16.
    """
    if not isinstance(config, MixedConfig) or config.precision == "O0":
        return network
    from labkit.training import checkpoint

    fresh = build_network(config)
    values = {parameter.name: parameter for parameter in network.get_parameters()}
    checkpoint.load_into(fresh, values, "the training")
    return fresh


def load_network(network: nn.Cell, checkpoint_path: str | Path) -> None:
    """Set the network's Parameters from a checkpoint, which may also hold an optimizer or a step.

    The names may be those of the tutorials' ResNets, see ``labkit.nets.resnet``.

    Raises:
        InputError: if a Parameter is missing or has another shape; the network is then unchanged.
    """
    from labkit.nets import resnet
    from labkit.training import checkpoint

    pooling = []

    def own_name(name: str) -> str:
        if resnet.pools(name):
            pooling.append(name)
        return resnet.own_name(name)

    values = checkpoint.read(checkpoint_path)
    values = {own_name(name): value for name, value in values.items()}
    own = {parameter.name for parameter in network.get_parameters()}
    kept = {name: value for name, value in values.items() if name in own}
    checkpoint.load_into(network, kept, checkpoint_path)
    if pooling:
        warn(
            f"{checkpoint_path} is of the migration document's network: its blocks pool behind a "
            f"convolution ({pooling[0]}) that strides here; the weights fit, and the function is "
            "another",
        )
