"""The parts of a training, built from a recipe's settings: data, network, loss, step, callbacks.

All recipes train a ResNet on an image folder; ``network="lenet"`` of the accumulation recipe is
LeNet-5 on MNIST. It imports MindSpore, so it is imported after ``labkit.start``.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TextIO

import mindspore as ms
import numpy as np
from mindspore import Parameter, nn
from mindspore.train import Callback, RunContext

from labkit.base.files import make_folder, natural_order, write_json, write_text
from labkit.data import imagefolder, mnist
from labkit.data.imagefiles import class_names
from labkit.errors import InputError, warn
from labkit.nets import lenet, resnet
from labkit.nets.initialisers import initialise
from labkit.recipes.settings import MixedConfig, TrainingConfig, WarmUpConfig
from labkit.recipes.training import CLASSES, CONFIG, tree
from labkit.steps import schedules
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.losses import CrossEntropySmooth, LossNet
from labkit.steps.parameter_groups import decay_groups
from labkit.steps.step import PlainStep, Step
from labkit.steps.update import UpdateStage
from labkit.training import checkpoint

# (training, evaluation) folders: in the tutorials' code, in the text of the dimension reduction
# tutorial, and in THOR's tutorial.
_TREES = (("train", "val"), ("train", "validation_preprocess"), ("ilsvrc", "ilsvrc_eval"))
_ENVIRONMENT = ("MS_", "RANK_", "DEVICE_", "SERVER_", "OMPI_COMM_WORLD_")  # in env.log


def datasets(
    config: TrainingConfig,
    dataset_path: str | Path,
    rank: int,
    ranks: int,
    *,
    only_evaluate: bool = False,
) -> tuple:
    """Return (training set or None, evaluation set or None, class names)."""
    workers = {"num_parallel_workers": config.num_parallel_workers}
    if is_lenet(config):
        shared: dict[str, Any] = workers | {"rank_size": ranks, "rank_id": rank}
        shared["rescale"] = config.rescale  # type: ignore[attr-defined]
        val_set = mnist.create_eval_dataset(dataset_path, **shared)
        if only_evaluate:
            return None, val_set, tuple("0123456789")
        train_set = mnist.create_dataset(dataset_path, config.batch_size, usage="train", **shared)
        return train_set, val_set, tuple("0123456789")
    root, train_folder, val_folder = folders(dataset_path)
    share = (config.batch_size, ranks, rank)
    options: dict[str, Any] = workers | {"image_size": config.image_size}
    if only_evaluate:
        options["cache_session_id"] = config.cache_session_id
        val_set = imagefolder.create_dataset(val_folder, *share, do_train=False, **options)
        return None, val_set, class_names(val_folder)
    options["augment"] = config.augment
    if train_folder == root:
        return imagefolder.create_dataset(root, *share, **options), None, class_names(root)
    options |= {"train": train_folder.name, "val": val_folder.name}
    options["cache_session_id"] = config.cache_session_id
    return imagefolder.create_datasets(root, *share, **options)


def is_lenet(config: TrainingConfig) -> bool:
    """Return whether the settings are of LeNet-5 on MNIST."""
    return getattr(config, "network", "resnet") == "lenet"


def folders(dataset_path: str | Path) -> tuple[Path, Path, Path]:
    """Return (the folder, its training folder, its evaluation folder).

    All three are the folder itself if it holds the folders of the classes.
    """
    root = Path(dataset_path)
    names = dict.fromkeys(name for pair in _TREES for name in pair)
    there = [name for name in names if (root / name).is_dir()]
    for pair in _TREES:
        if there == list(pair):
            return root, root / pair[0], root / pair[1]
    trees = " or ".join(f"{train}/ and {val}/" for train, val in _TREES)
    if len(there) > 1:
        raise InputError(f"{root} holds {', '.join(there)}; expected {trees}, and none besides")
    if there and sum(entry.is_dir() for entry in root.iterdir()) == 1:
        raise InputError(f"{root} holds {there[0]}/ alone; expected {trees}, or one folder a class")
    return root, root, root


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
    assert config.class_num is not None  # see with_classes
    if is_lenet(config):
        return lenet.LeNet5(config.class_num)
    network = resnet.resnet(config.depth, config.class_num)
    initialise(network, config.initialiser, config.seed)
    return network


def build_loss(config: TrainingConfig, evaluation: bool = False) -> CrossEntropySmooth:
    """Return the loss, cross entropy against smoothed labels; see ``dataset`` for an evaluation."""
    assert config.class_num is not None  # see with_classes
    plain = evaluation and config.dataset != "imagenet2012"
    return CrossEntropySmooth(
        smooth_factor=0.0 if plain else config.label_smooth_factor,
        num_classes=config.class_num,
    )


def updates_in_epoch(config: TrainingConfig, micro_batches: int) -> int:
    """Return the updates in an epoch, where leftover micro-batches make an update of their own."""
    return -(-micro_batches // config.micro_steps)


def warm_up_rates(config: WarmUpConfig, epochs: int, updates: int) -> np.ndarray:
    """Return the learning rates of ``epochs`` epochs with ``updates`` updates each."""
    ends = (config.lr_init, config.lr_end, config.lr_max, config.warmup_epochs)
    return schedules.get_lr(*ends, epochs, updates, config.lr_decay_mode)


def momentum(network: nn.Cell, rates: np.ndarray, decay: float, factor: float) -> nn.Optimizer:
    """Return nn.Momentum with weight decay on weights only, and a rate for each update."""
    return nn.Momentum(decay_groups(network, decay), ms.Tensor(rates), factor)


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
    values = checkpoint.read(checkpoint_path)
    pooling = [name for name in values if resnet.pools(name)]
    values = {resnet.own_name(name): value for name, value in values.items()}
    own = {parameter.name for parameter in network.get_parameters()}
    kept = {name: value for name, value in values.items() if name in own}
    checkpoint.load_into(network, kept, checkpoint_path)
    if pooling:
        warn(
            f"{checkpoint_path} is of the migration document's network: its blocks pool behind a "
            f"convolution ({pooling[0]}) that strides here; the weights fit, and the function is "
            "another",
        )


class Losses(Callback):
    """Print a line after each epoch, as the tutorials do: ``epoch: 1 step: 625 loss is  5.24``.

    The loss is that of the first rank's last micro-batch; records.csv has those of every update.

    Args:
        micro_batches: micro-batches of this rank in an epoch.
        updates: updates in an epoch, printed as the step.
        title: line before the training, or "".
        words: text between the step and the loss.
    """

    def __init__(self, micro_batches: int, updates: int, title: str, words: str) -> None:
        super().__init__()
        self._micro_batches, self._title = micro_batches, title
        self._words = f" step: {updates}{words}"

    def on_train_begin(self, run_context: RunContext) -> None:
        if self._title:
            print(self._title, flush=True)

    def on_train_step_end(self, run_context: RunContext) -> None:
        now = run_context.original_args()
        if now.cur_step_num % self._micro_batches == 0:
            epoch = now.cur_step_num // self._micro_batches
            print(f"epoch: {epoch}{self._words}{now.net_outputs}", flush=True)


class Documents(Callback):
    """Write what describes the training, and the tutorial's files, see ``training.Tree``.

    Nothing is written before the training begins: ``fit`` refuses a folder of another training,
    whose files must not change.

    Args:
        config: the recipe's settings.
        recipe: name of the recipe in ``training.TREES``.
        classes: names of the classes.
        rank: rank of this process.
        held: closes the log of this rank's device.
    """

    def __init__(
        self, config: Any, recipe: str, classes: Sequence[str], rank: int, held: ExitStack
    ) -> None:
        super().__init__()
        where = self._tree = tree(recipe, ms.get_context("device_target"))
        self._config, self._classes, self._held = config, classes, held
        self._root, self._first = Path(config.save_checkpoint_path), rank == 0
        self._device = self._root / where.device.format(os.environ.get("DEVICE_ID") or rank)
        self._writes = where.checkpoints is not None and (where.every_device or rank == 0)
        self._checkpoints = self._device / (where.checkpoints or "").format(rank=rank)

    def on_train_begin(self, run_context: RunContext) -> None:
        if self._first:
            write_json(self._root / CONFIG, asdict(self._config), "the settings")
            write_json(self._root / CLASSES, list(self._classes), "the classes")
        if self._tree.device:
            self._held.enter_context(_logged(self._device))

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        if not self._writes:
            return
        now, config = run_context.original_args(), self._config
        epoch, last = now.cur_epoch_num, now.cur_epoch_num == now.epoch_num
        name = f"resnet-{epoch}_{now.batch_num}.ckpt"
        if config.save_checkpoint and (last or epoch % config.save_checkpoint_epochs == 0):
            _write(now.network, self._checkpoints / name, config.keep_checkpoint_max)
        if self._tree.snapshots is not None and epoch >= config.snapshot_start_epoch:
            # Not train_network, which in dataset sink mode is a Cell around the step.
            weights = now.network.optimizer.parameters
            _write(weights, self._checkpoints / self._tree.snapshots / name, config.snapshot_max)


def _write(what: nn.Cell | Iterable[Parameter], path: Path, keep: int | None) -> None:
    """Write a checkpoint, and remove the oldest beyond ``keep``; None keeps all."""
    make_folder(path.parent)
    if not isinstance(what, nn.Cell):
        what = [{"name": parameter.name, "data": parameter} for parameter in what]
    checkpoint.write(what, path)
    if keep is not None:
        for old in sorted(path.parent.glob("resnet-*.ckpt"), key=natural_order)[:-keep]:
            old.unlink()


@contextlib.contextmanager
def _logged(folder: Path) -> Iterator[None]:
    """Write env.log, and copy what Python prints into train.log; a resumed training appends."""
    make_folder(folder)
    known = sorted(name for name in os.environ if name.startswith(_ENVIRONMENT))
    text = "".join(f"{name}={os.environ[name]}\n" for name in known)
    write_text(folder / "env.log", text, "env.log")
    # Not in the locale's encoding, which may lack a character that is printed.
    utf8: Any = {"encoding": "utf-8", "errors": "backslashreplace"}
    with (
        (folder / "train.log").open("a", buffering=1, **utf8) as file,
        contextlib.redirect_stdout(_Both(sys.stdout, file)),
        contextlib.redirect_stderr(_Both(sys.stderr, file)),
    ):
        yield


class _Both:
    """A stream whose text is also written to a file."""

    def __init__(self, stream: TextIO, file: TextIO) -> None:
        self._stream, self._copy = stream, file

    def write(self, text: str) -> int:
        self._copy.write(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
