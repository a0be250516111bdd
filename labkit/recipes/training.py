"""A full training program: what all recipes share, around a step of their own.

Departures of all from their sources: a training resumes, from RUN/checkpoint; all ranks evaluate,
each its part, so that every image counts, in float32; weight decay exempts normalisation layers and
biases by what they are, not by their names.
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.dataset import Dataset
from mindspore.train import Callback, RunContext, TimeMonitor

from labkit import runtime
from labkit.algorithms.subspace.snapshots import Snapshots
from labkit.base.arguments import wrong
from labkit.base.files import make_folder, natural_order, write_json, write_text
from labkit.data import imagefolder, mnist
from labkit.data.imagefiles import class_names
from labkit.errors import InputError, warn
from labkit.nets import lenet, resnet
from labkit.nets.initialisers import initialise
from labkit.ranks import cluster
from labkit.recipes.settings import CLASSES, CONFIG, MAY_CHANGE, TrainingConfig, beside
from labkit.steps import schedules
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.losses import CrossEntropySmooth, LossNet
from labkit.steps.parameter_groups import decay_groups
from labkit.steps.state import running_statistics
from labkit.steps.step import PlainStep, Step
from labkit.training import checkpoint
from labkit.training.evaluation import evaluate
from labkit.training.fit import fit
from labkit.training.records import Records

SNAPSHOTS = "checkpoint_pca"  # folder of the snapshots, below the checkpoints
_ENVIRONMENT = ("MS_", "RANK_", "DEVICE_", "SERVER_", "OMPI_COMM_WORLD_")  # in env.log
# (training, evaluation): of the tutorials' code, of dimension reduction's text, of THOR's tutorial.
_FOLDERS = (("train", "val"), ("train", "validation_preprocess"), ("ilsvrc", "ilsvrc_eval"))


class Tree(NamedTuple):
    """Where a tutorial writes, inside the run folder, beside what ``fit`` writes there.

    The folder of a device also holds train.log, the output of its process, and env.log: only the
    variables that identify the rank, since others may contain passwords. Give each machine a run
    folder of its own: they would share device{i}.
    """

    device: str = ""  # folder of a device, "{}" for its number; "": the run folder, without logs
    checkpoints: str | None = None  # below it, of resnet-EPOCH_STEP.ckpt; "{}" for the rank
    every_device: bool = False  # whether every device writes checkpoints, or only the first one


class Trained(NamedTuple):
    """Result of ``train``: one record per update, and the evaluation or None."""

    records: Records
    evaluation: dict[str, float] | None


@dataclass(frozen=True)
class Recipe:
    """A training program; ``build_step`` gets the micro-batches in an epoch of this rank."""

    description: str | None  # for --help
    named: Mapping[str, TrainingConfig]  # settings by name; the first are the default
    build_step: Callable[[Any, LossNet, int], Step]
    tree: Tree = Tree()  # what the tutorial writes
    tree_on_gpu: Tree | None = None  # if that differs
    losses: tuple[str, str] | None = None  # title and words that it prints; None: our progress bar
    snapshots: bool = False  # whether the settings ask for snapshots of the trainable weights
    starts_from: Callable[[Any], Path | None] | None = None  # settings -> checkpoint
    prepare: Callable[[Any, nn.Cell], list[str]] | None = None  # loads it; what was done, in lines
    judged: str = ""  # what it prints about an evaluation of ``path``, as a format

    def train(
        self, config: Any, dataset_path: str | Path, *, resume: bool | str = False, **machine: Any
    ) -> Trained:
        """Train on this device or as one rank of several; evaluate any evaluation set in float32.

        ``dataset_path`` holds train/ and val/, or a folder for each class, or MNIST. ``resume`` is
        as for ``labkit.fit``, ``machine`` (device, distribute, device_num) as for ``begin``. Raises
        ``InputError`` if the folder, the ranks or an earlier training does not fit.
        """
        path = None if self.starts_from is None else self.starts_from(config)
        if path is not None and not path.exists():  # before minutes of reading
            raise InputError(f"no checkpoint at {path}")
        started, config, data, network = begin(config, dataset_path, **machine)
        train_set, val_set, classes = data
        rank, batches = started.rank, train_set.get_dataset_size()
        if path is not None:
            lines = [f"starts from {path}"]
            if self.prepare is None:
                load(network, path, classes)
            else:
                lines += self.prepare(config, network)
            if rank == 0:
                print(*(f"labkit: {line}" for line in lines), sep="\n", flush=True)
        step = self.build_step(config, LossNet(network, build_loss(config)), batches)
        if not step.updates_ahead([batches] * config.epoch_size):
            raise InputError(f"an epoch has {batches} micro-batches; expected enough for an update")
        weights = cluster.digest(network)
        cluster.agree(config=config, classes=classes, steps=batches, weights=weights)
        own = {name: value for name, value in asdict(config).items() if name not in MAY_CHANGE}
        step.settings |= {"recipe": own, "classes": list(classes)}
        every = config.save_checkpoint_epochs if config.save_checkpoint else None
        name = "LeNet-5" if config.depth is None else f"ResNet-{config.depth}"
        with ExitStack() as held:
            documents = Documents(self, config, classes, rank, step.updates_ahead([batches]), held)
            shown: list[Callback] = [documents]
            if rank == 0:
                images = config.batch_size * step.micro_batches * started.ranks
                print(f"labkit: {name} into {documents.root}, {images} images in an update")
                for setting, value in asdict(config).items():
                    print(f"  {setting:24}  {value}", flush=True)
                shown += [TimeMonitor(batches)] if self.losses else []
                if self.snapshots:
                    kept = Snapshots(
                        network,
                        documents.checkpoints / SNAPSHOTS,
                        start_epoch=config.snapshot_start_epoch,
                        saves_per_epoch=config.snapshots_per_epoch,
                        keep=config.snapshot_max,
                        resume=bool(resume),
                    )
                    shown.append(kept)
            try:
                records = fit(
                    step,
                    train_set,
                    config.epoch_size,
                    folder=documents.root,
                    resume=resume,
                    checkpoint_every=config.save_checkpoint_steps,
                    checkpoint_epochs=every,
                    keep=config.keep_checkpoint_max,
                    progress=name if rank == 0 and self.losses is None else None,
                    callbacks=shown,
                    dataset_sink_mode=config.dataset_sink_mode,
                )
            except RuntimeError as error:
                if "alloc" in str(error).lower():
                    error.add_note(
                        f"labkit: memory was not enough for micro-batches of {config.batch_size} "
                        "images; half, with twice the micro_steps, is the same but for BatchNorm"
                    )
                raise
            if val_set is None:
                return Trained(records, None)
            # A step leaves its network in float16, which overflows while running statistics are
            # based on few updates: ResNet-50 at 224 pixels has after three a loss of 35486, or NaN.
            fresh = build_network(config)
            values = {parameter.name: parameter for parameter in network.get_parameters()}
            checkpoint.load_into(fresh, values, "the training")
            evaluation = self._evaluated(config, fresh, val_set, started, documents.root)
            return Trained(records, evaluation)

    def evaluate_checkpoint(
        self, config: Any, dataset_path: str | Path, checkpoint_path: str | Path, **machine: Any
    ) -> dict[str, float]:
        """Return accuracies and loss of a checkpoint over every image of the folder.

        The checkpoint is one of ``train``, or of the network alone, such as one of
        ``labkit.migration``. Raises ``InputError`` if it is of another network or other classes.
        """
        begun = begin(config, dataset_path, only_evaluate=True, **machine)
        started, config, (_, val_set, classes), network = begun
        load(network, checkpoint_path, classes)
        cluster.agree(config=config, classes=classes, weights=cluster.digest(network))
        return self._evaluated(config, network, val_set, started, checkpoint_path)

    def _evaluated(
        self, config: Any, network: nn.Cell, val_set: Dataset, started: runtime.Runtime, path: Any
    ) -> dict[str, float]:
        """Return accuracies and loss over every image; the first rank prints them, and ``path``."""
        cluster.take_from_first(running_statistics(network))
        loss, several = build_loss(config), started.ranks > 1
        found = evaluate(network, loss, val_set, top=(1, 5), over_ranks=several)
        result = {name: found[name] for name in ("top_1_accuracy", "top_5_accuracy", "loss")}
        if started.rank == 0:
            if self.judged:
                print(self.judged.format(path=path, **result))
            values = ", ".join(f"{name} {value:.4f}" for name, value in result.items())
            print(f"labkit: {values}, {path}", flush=True)
        return result


def begin(
    config: Any,
    dataset_path: str | Path,
    *,
    only_evaluate: bool = False,
    device: runtime.Device = "auto",
    distribute: bool = False,
    device_num: int | None = None,
) -> tuple[runtime.Runtime, Any, tuple, nn.Cell]:
    """Call ``labkit.start``; return its result, complete settings, ``datasets`` and the network."""
    ranks = cluster.ranks_started()
    if device_num not in (None, ranks):
        raise wrong("device_num", device_num, f"{ranks}, the number of ranks started")
    if ranks > 1 and not distribute:
        raise wrong("run_distribute", distribute, f"True with {ranks} ranks")
    started = runtime.start(device, config.seed, distribute=distribute)
    data = datasets(config, dataset_path, started.rank, started.ranks, only_evaluate)
    count = len(data[2])
    if (wanted := config.class_num or count) < count:
        raise wrong("class_num", wanted, f"at least {count}, the data's classes, or None")
    config = replace(config, class_num=wanted)
    return started, config, data, build_network(config)


def datasets(
    config: TrainingConfig, path: str | Path, rank: int, ranks: int, only_evaluate: bool = False
) -> tuple[Any, Any, tuple[str, ...]]:
    """Return (training set or None, evaluation set or None, class names)."""
    workers: dict[str, Any] = {"num_parallel_workers": config.num_parallel_workers}
    train_set = None
    if config.depth is None:
        workers |= {"rank_size": ranks, "rank_id": rank}
        val_set = mnist.create_eval_dataset(path, **workers)
        if not only_evaluate:
            train_set = mnist.create_dataset(path, config.batch_size, usage="train", **workers)
        return train_set, val_set, tuple("0123456789")
    root, names = Path(path), _folders(Path(path))
    share = (config.batch_size, ranks, rank)
    options = workers | {"image_size": config.image_size}
    if only_evaluate:
        folder = root / names[1] if names else root
        val_set = imagefolder.create_dataset(folder, *share, do_train=False, **options)
        return None, val_set, class_names(folder)
    options["augment"] = config.augment
    if names is None:
        return imagefolder.create_dataset(root, *share, **options), None, class_names(root)
    return imagefolder.create_datasets(root, *share, train=names[0], val=names[1], **options)


def _folders(root: Path) -> tuple[str, str] | None:
    """Return the names of the training and evaluation folders; None: ``root`` holds the classes."""
    there = {name for pair in _FOLDERS for name in pair if (root / name).is_dir()}
    for pair in _FOLDERS:
        if there == set(pair):
            return pair
    # A class may be called "train".
    if len(there) > 1 or (there and sum(entry.is_dir() for entry in root.iterdir()) == 1):
        pairs = " or ".join(f"{train}/ and {val}/" for train, val in _FOLDERS)
        raise InputError(f"{root} holds {', '.join(sorted(there))}; expected {pairs}, none besides")
    return None


def build_network(config: Any) -> nn.Cell:
    """Return the network with its initial weights, the same on every rank right after ``start``."""
    if config.depth is None:
        return lenet.LeNet5(config.class_num)
    network = resnet.resnet(config.depth, config.class_num)
    initialise(network, config.initialiser, config.seed)
    return network


def build_loss(config: Any) -> CrossEntropySmooth:
    """Return the loss, cross entropy against smoothed labels."""
    factor = config.label_smooth_factor
    return CrossEntropySmooth(smooth_factor=factor, num_classes=config.class_num)


def warm_up_rates(config: Any, epochs: int, updates: int) -> np.ndarray:
    """Return the learning rates of a ``WarmUpConfig``, with ``updates`` updates in an epoch."""
    ends = (config.lr_init, config.lr_end, config.lr_max, config.warmup_epochs)
    return schedules.get_lr(*ends, epochs, updates)


def momentum(config: Any, net: LossNet, rates: np.ndarray | float) -> nn.Optimizer:
    """Return nn.Momentum with weight decay on weights only, and one rate or one for each update."""
    rates = rates if isinstance(rates, float) else ms.Tensor(rates)
    return nn.Momentum(decay_groups(net.network, config.weight_decay), rates, config.momentum)


def make_step(config: Any, net: LossNet, optimizer: nn.Optimizer, **options: Any) -> Step:
    """Return the step cell for the settings; it accumulates if micro_steps is more than 1."""
    options |= config.step_options()
    if config.micro_steps > 1:
        return AccumulatedStep(net, optimizer, config.micro_steps, **options)
    return PlainStep(net, optimizer, **options)


def load(network: nn.Cell, path: str | Path, classes: Sequence[str]) -> None:
    """Set the network's Parameters from a checkpoint, which may also hold an optimizer or a step.

    The names may be those of the tutorials' ResNets, see ``labkit.nets.resnet``. ``InputError`` if
    one is missing or has another shape, or the training had other ``classes``; nothing is then set.
    """
    known = beside(path, CLASSES)
    before = classes if known is None else json.loads(known.read_text("utf-8"))
    if odd := sorted(set(classes) ^ set(before)):
        raise InputError(
            f"the data has {len(classes)} classes and the training had {len(before)} ({known}); "
            f"expected the same, got {', '.join(odd[:3])} on one side only"
        )
    values = checkpoint.read(path)
    pooling = [name for name in values if resnet.pools(name)]
    values = {resnet.own_name(name): value for name, value in values.items()}
    own = {parameter.name for parameter in network.get_parameters()}
    kept = {name: value for name, value in values.items() if name in own}
    checkpoint.load_into(network, kept, path)
    if pooling:
        warn(
            f"{path} is of the migration document's network: its blocks pool where this one strides"
            f" ({pooling[0]}); the weights fit, and the function is another"
        )


@dataclass(eq=False)
class Documents(Callback):
    """Print the tutorial's lines, and write its files (see ``Tree``) and what describes a training.

        epoch: 1 step: 625 loss is  5.2484765

    The loss is that of the first rank's last micro-batch, the step the epoch's last update. Nothing
    is written before ``fit`` has refused a folder of another training. ``held`` closes the log.
    """

    recipe: Recipe
    config: Any
    classes: Sequence[str]
    rank: int
    updates: int
    held: ExitStack

    def __post_init__(self) -> None:
        super().__init__()
        on_gpu = ms.get_context("device_target") == "GPU"
        self.tree = tree = (on_gpu and self.recipe.tree_on_gpu) or self.recipe.tree
        self.losses = self.recipe.losses if self.rank == 0 else None
        self.root = Path(self.config.save_checkpoint_path)
        self.device = self.root / tree.device.format(os.environ.get("DEVICE_ID") or self.rank)
        self.checkpoints = self.device / (tree.checkpoints or "").format(self.rank)
        self.writes = tree.checkpoints is not None and (tree.every_device or self.rank == 0)

    def on_train_begin(self, run_context: RunContext) -> None:
        if self.rank == 0:
            write_json(self.root / CONFIG, asdict(self.config), "the settings")
            write_json(self.root / CLASSES, list(self.classes), "the classes")
        if self.tree.device:
            make_folder(self.device)
            known = sorted(name for name in os.environ if name.startswith(_ENVIRONMENT))
            text = "".join(f"{name}={os.environ[name]}\n" for name in known)
            write_text(self.device / "env.log", text, "env.log")
            # Not in the locale's encoding, which may lack a character that is printed.
            utf8: Any = {"encoding": "utf-8", "errors": "backslashreplace"}
            log = self.held.enter_context((self.device / "train.log").open("a", 1, **utf8))
            self.held.enter_context(contextlib.redirect_stdout(_Both(sys.stdout, log)))
            self.held.enter_context(contextlib.redirect_stderr(_Both(sys.stderr, log)))
        if self.losses and self.losses[0]:
            print(self.losses[0], flush=True)

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        now, config = run_context.original_args(), self.config
        epoch, last = now.cur_epoch_num, now.cur_epoch_num == now.epoch_num
        if self.losses:
            step = f"step: {self.updates}{self.losses[1]}{now.net_outputs}"
            print(f"epoch: {epoch} {step}", flush=True)
        due = config.save_checkpoint and (last or epoch % config.save_checkpoint_epochs == 0)
        if self.writes and due:
            # Not train_network, which in dataset sink mode is a Cell around the step.
            checkpoint.write(now.network, self.checkpoints / f"resnet-{epoch}_{now.batch_num}.ckpt")
            saved = sorted(self.checkpoints.glob("resnet-*.ckpt"), key=natural_order)
            for old in saved[: -config.keep_checkpoint_max]:
                old.unlink()


class _Both:
    """A stream whose text is also written to a file."""

    def __init__(self, stream: TextIO, file: TextIO) -> None:
        self._stream, self._copy = stream, file

    def write(self, text: str) -> int:
        self._copy.write(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
