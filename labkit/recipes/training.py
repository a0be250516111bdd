"""A full training program: what all recipes share, around a step of their own.

The module of a recipe defines what differs: its settings, its step, and what it prints. Departures
of all from their sources: a training resumes, from RUN/checkpoint; all ranks evaluate, each its
part, so that every image counts, in float32; weight decay exempts normalisation layers and biases
by what they are, not by their names.
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import mindspore as ms
from mindspore import nn
from mindspore.dataset import Dataset
from mindspore.train import Callback, RunContext, TimeMonitor

from labkit import runtime
from labkit.algorithms.subspace.snapshots import Snapshots
from labkit.base.arguments import wrong
from labkit.base.files import make_folder, natural_order, write_json, write_text
from labkit.errors import InputError
from labkit.ranks import cluster
from labkit.recipes import parts
from labkit.recipes.settings import CLASSES, CONFIG, MAY_CHANGE, TrainingConfig, beside
from labkit.steps.step import Step, running_statistics
from labkit.training import checkpoint
from labkit.training.evaluation import evaluate
from labkit.training.fit import fit
from labkit.training.records import Records

SNAPSHOTS = "checkpoint_pca"  # folder of the snapshots, below the checkpoints
TITLE = "============== Starting {} =============="
_ENVIRONMENT = ("MS_", "RANK_", "DEVICE_", "SERVER_", "OMPI_COMM_WORLD_")  # in env.log


class Tree(NamedTuple):
    """Where a tutorial writes, inside the run folder, beside what ``fit`` writes there.

    The folder of a device also holds train.log, the output of its process, and env.log: only the
    variables that identify the rank, since others may contain passwords. Give each machine a run
    folder of its own: they would share device{i}.

    Attributes:
        device: folder of a device, "{}" for its number; "": the run folder, without logs.
        checkpoints: folder of resnet-EPOCH_STEP.ckpt below ``device``, "{}" for the rank, or None.
        every_device: whether every device writes checkpoints, or only the first one.
    """

    device: str = ""
    checkpoints: str | None = None
    every_device: bool = False


class Trained(NamedTuple):
    """Result of ``train``: one record per update, and the evaluation or None."""

    records: Records
    evaluation: dict[str, float] | None


@dataclass(frozen=True)
class Recipe:
    """A training program.

    Attributes:
        description: text for ``--help``: the module's docstring.
        named: settings by name; without ``--settings`` the first are used.
        build_step: (settings, network, micro-batches in an epoch) -> step cell.
        tree: what the tutorial writes.
        tree_on_gpu: the same on GPU, if that differs.
        losses: title and words of the tutorial's printed losses; None: a progress display.
        snapshots: whether the settings ask for snapshots of the trainable weights.
        starts_from: settings -> checkpoint that a training starts from.
        judged: lines that the tutorial prints about an evaluation of ``path``, as a format.
    """

    description: str | None
    named: Mapping[str, TrainingConfig]
    build_step: Callable[[Any, nn.Cell, int], Step]
    tree: Tree = Tree()
    tree_on_gpu: Tree | None = None
    losses: tuple[str, str] | None = None
    snapshots: bool = False
    starts_from: Callable[[Any], Path] | None = None
    judged: str = ""

    def train(
        self, config: Any, dataset_path: str | Path, *, resume: bool | str = False, **machine: Any
    ) -> Trained:
        """Train on this device or as one rank of several; evaluate any evaluation set in float32.

        Args:
            config: the recipe's settings.
            dataset_path: folder with train/ and val/, or with one folder per class.
            resume: continue from the newest checkpoint in the run folder, as for ``labkit.fit``.
            **machine: device, distribute and device_num, as for ``start``.

        Raises:
            InputError: if the folder, the number of ranks or an earlier training does not fit, or
                if ranks hold different weights, data or settings.
        """
        started = start(config.seed, **machine)
        rank, ranks, folder = started.rank, started.ranks, config.save_checkpoint_path
        every = config.save_checkpoint_epochs if config.save_checkpoint else None
        path = self.starts_from(config) if self.starts_from is not None else None
        if path is not None:
            beside(path, CLASSES)  # before minutes of reading: refuses a path that is no file
        train_set, val_set, classes = parts.datasets(config, dataset_path, rank, ranks)
        config, batches = parts.with_classes(config, classes), train_set.get_dataset_size()
        network = parts.build_network(config)
        if path is not None:
            load(network, path, classes)
            if rank == 0:
                print(f"labkit: starts from {path}", flush=True)
        step = self.build_step(config, network, batches)
        if not step.updates_ahead([batches] * config.epoch_size):
            raise InputError(f"an epoch has {batches} micro-batches; expected enough for an update")
        weights = cluster.digest(network)
        cluster.agree(config=config, classes=classes, steps=batches, weights=weights)
        own = {name: value for name, value in asdict(config).items() if name not in MAY_CHANGE}
        step.settings |= {"recipe": own, "classes": list(classes)}
        name = "LeNet-5" if config.depth is None else f"ResNet-{config.depth}"
        with ExitStack() as held:
            updates = step.updates_ahead([batches])
            documents = Documents(self, config, classes, rank, updates, held)
            shown: list[Callback] = [documents]
            if rank == 0:
                images = config.batch_size * step.micro_batches * ranks
                print(f"labkit: {name} into {folder}, {images} images in an update")
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
                    folder=folder,
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
            fresh = parts.build_network(config)
            values = {parameter.name: parameter for parameter in network.get_parameters()}
            checkpoint.load_into(fresh, values, "the training")
            return Trained(records, self._evaluated(config, fresh, val_set, started, folder))

    def evaluate_checkpoint(
        self, config: Any, dataset_path: str | Path, checkpoint_path: str | Path, **machine: Any
    ) -> dict[str, float]:
        """Return accuracies and loss of a checkpoint over every image of the folder.

        The checkpoint is one of ``train``, or of the network alone, such as one of
        ``labkit.migration``; all other arguments are those of ``train``.

        Raises:
            InputError: as for ``train``, and for a checkpoint of another network or other classes.
        """
        started = start(config.seed, **machine)
        data = parts.datasets(config, dataset_path, started.rank, started.ranks, only_evaluate=True)
        _, val_set, classes = data
        config = parts.with_classes(config, classes)
        network = parts.build_network(config)
        load(network, checkpoint_path, classes)
        cluster.agree(config=config, classes=classes, weights=cluster.digest(network))
        return self._evaluated(config, network, val_set, started, checkpoint_path)

    def _evaluated(
        self, config: Any, network: nn.Cell, val_set: Dataset, started: runtime.Runtime, path: Any
    ) -> dict[str, float]:
        """Return accuracies and loss over every image; the first rank prints them, and ``path``."""
        cluster.take_from_first(running_statistics(network))
        loss, several = parts.build_loss(config), started.ranks > 1
        found = evaluate(network, loss, val_set, top=(1, 5), over_ranks=several)
        result = {name: found[name] for name in ("top_1_accuracy", "top_5_accuracy", "loss")}
        if started.rank == 0:
            if self.judged:
                print(self.judged.format(path=path, **result))
            values = ", ".join(f"{name} {value:.4f}" for name, value in result.items())
            print(f"labkit: {values}, {path}", flush=True)
        return result


def start(
    seed: int, device: str = "auto", distribute: bool = False, device_num: int | None = None
) -> runtime.Runtime:
    """Call ``labkit.start`` and check that there are ``device_num`` ranks, if it is given."""
    ranks = cluster.ranks_started()
    if device_num not in (None, ranks):
        raise wrong("device_num", device_num, f"{ranks}, the number of ranks started")
    if ranks > 1 and not distribute:
        raise wrong("run_distribute", distribute, f"True with {ranks} ranks")
    return runtime.start(device, seed, distribute=distribute)


def load(network: nn.Cell, path: str | Path, classes: Sequence[str]) -> None:
    """Set a network's Parameters from a checkpoint, if its training had the same ``classes``.

    One class more or fewer would shift the labels of all that follow.
    """
    known = beside(path, CLASSES)
    before = classes if known is None else json.loads(known.read_text("utf-8"))
    if odd := sorted(set(classes) ^ set(before)):
        raise InputError(
            f"the data has {len(classes)} classes and the training had {len(before)} ({known}); "
            f"expected the same, got {', '.join(odd[:3])} on one side only"
        )
    parts.load_network(network, path)


@dataclass(eq=False)
class Documents(Callback):
    """Print the tutorial's lines, and write its files (see ``Tree``) and what describes a training.

        epoch: 1 step: 625 loss is  5.2484765

    The loss is that of the first rank's last micro-batch, the step the epoch's last update. Nothing
    is written before the training begins: ``fit`` refuses a folder of another training, whose files
    must not change. ``held`` closes the log of this rank's device.
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
            self.held.enter_context(_logged(self.device))
        if self.losses and self.losses[0]:
            print(self.losses[0], flush=True)

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        now, config = run_context.original_args(), self.config
        epoch, last = now.cur_epoch_num, now.cur_epoch_num == now.epoch_num
        if self.losses:
            step = f"step: {self.updates}{self.losses[1]}{now.net_outputs}"
            print(f"epoch: {epoch} {step}", flush=True)
        name = f"resnet-{epoch}_{now.batch_num}.ckpt"
        due = config.save_checkpoint and (last or epoch % config.save_checkpoint_epochs == 0)
        if self.writes and due:
            # Not train_network, which in dataset sink mode is a Cell around the step.
            checkpoint.write(now.network, self.checkpoints / name)
            saved = sorted(self.checkpoints.glob("resnet-*.ckpt"), key=natural_order)
            for old in saved[: -config.keep_checkpoint_max]:
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
