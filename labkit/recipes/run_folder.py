"""What a recipe writes into its run folder, besides what ``fit`` writes there.

config.json and classes.json describe the training. The tutorial's own folders, files and logs are
written beside them; i is the number of a device on its machine, E an epoch, S the steps in one:

    resnet50     resnet-E_S.ckpt
    thor         train_parallel{i}/ckpt_0/resnet-E_S.ckpt of every device;
                 on GPU train_parallel/ckpt_{rank}/resnet-E_S.ckpt
    adasum       device{i}/
    subspace-1   device{i}_stage_1/; in the first device's also checkpoint_stage_1/resnet-E_S.ckpt
                 and checkpoint_stage_1/checkpoint_pca/resnet-E_S.ckpt, the trainable weights
    subspace-2   device{i}_stage_2/; in the first device's also checkpoint_stage_2/resnet-E_S.ckpt

The folder of a device also holds train.log, the output of its process, and env.log.

Departures: a training resumes from ``fit``'s own checkpoints; env.log holds only the environment
variables that identify the rank, since the others may contain passwords; machines that share a run
folder would share device{i}: give each machine its own.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from labkit.base.files import make_folder, natural_order, write_json, write_text
from labkit.errors import InputError
from labkit.recipes import settings
from labkit.recipes.config import MAY_CHANGE, TrainingConfig

if TYPE_CHECKING:
    from mindspore import Parameter, nn
    from mindspore.train import Callback, RunContext

CONFIG, CLASSES = "config.json", "classes.json"
_PREFIXES = ("MS_", "RANK_", "DEVICE_", "SERVER_", "OMPI_COMM_WORLD_")


@dataclass(frozen=True)
class Tree:
    """Where a tutorial writes.

    Attributes:
        device: folder of a device, "{}" for its number; "": the run folder, without logs.
        checkpoints: folder for checkpoints below ``device``, or None.
        snapshots: folder for the trainable weights below ``checkpoints``, or None.
        every_device: whether every device writes checkpoints, or only the first one.
    """

    device: str
    checkpoints: str | None = None
    snapshots: str | None = None
    every_device: bool = False


TREES = {
    "accumulation": Tree(""),
    "resnet50": Tree("", ""),
    "thor": Tree("train_parallel{}", "ckpt_0", every_device=True),
    "adasum": Tree("device{}"),
    "subspace_stage_1": Tree("device{}_stage_1", "checkpoint_stage_1", "checkpoint_pca"),
    "subspace_stage_2": Tree("device{}_stage_2", "checkpoint_stage_2"),
}
_ON_GPU = {"thor": Tree("train_parallel", "ckpt_{rank}", every_device=True)}


def tree(recipe: str, device: str) -> Tree:
    """Return where the tutorial of a recipe writes on "CPU", "GPU" or "Ascend"."""
    return (_ON_GPU if device == "GPU" else {}).get(recipe, TREES[recipe])


class Log(AbstractContextManager):
    """Context manager that, once begun, copies what Python prints into a device's train.log."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._file: TextIO | None = None
        self._streams = (sys.stdout, sys.stderr)

    def begin(self) -> None:
        """Make the folder, write env.log and start to copy; a resumed training appends."""
        if self.folder is None:
            return
        make_folder(self.folder)
        known = sorted(name for name in os.environ if name.startswith(_PREFIXES))
        text = "".join(f"{name}={os.environ[name]}\n" for name in known)
        write_text(self.folder / "env.log", text, "env.log")
        # Not in the locale's encoding, which may lack a character that is printed.
        utf8 = {"encoding": "utf-8", "errors": "backslashreplace"}
        self._file = (self.folder / "train.log").open("a", buffering=1, **utf8)
        self._streams = (sys.stdout, sys.stderr)
        sys.stdout, sys.stderr = (_Both(each, self._file) for each in self._streams)

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            sys.stdout, sys.stderr = self._streams
            self._file.close()


class _Both:
    """A stream whose text is also written to a file."""

    def __init__(self, stream: TextIO, file: TextIO) -> None:
        self._stream, self._copy = stream, file

    def write(self, text: str) -> int:
        self._copy.write(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def callbacks(
    config: Any, recipe: str, classes: Sequence[str], rank: int
) -> tuple[Log, list[Callback]]:
    """Return the log of this rank's device, and the callback that writes all that is above.

    Nothing is written before the training begins: ``fit`` refuses a folder of another training,
    whose files must not change.

    Args:
        config: the recipe's settings.
        recipe: name of the recipe in ``TREES``.
        classes: names of the classes.
        rank: rank of this process.
    """
    from mindspore import get_context
    from mindspore.train import Callback

    where = tree(recipe, get_context("device_target"))
    root = Path(config.save_checkpoint_path)
    folder = root / where.device.format(os.environ.get("DEVICE_ID") or rank)
    log = Log(folder if where.device else None)
    writes = where.checkpoints is not None and (where.every_device or rank == 0)
    checkpoints = folder / (where.checkpoints or "").format(rank=rank)

    class Documents(Callback):
        def on_train_begin(self, run_context: RunContext) -> None:
            if rank == 0:
                settings.write(config, root / CONFIG)
                write_json(root / CLASSES, list(classes), "the classes")
            log.begin()

        def on_train_epoch_end(self, run_context: RunContext) -> None:
            if not writes:
                return
            now = run_context.original_args()
            name = f"resnet-{now.cur_epoch_num}_{now.batch_num}.ckpt"
            last = now.cur_epoch_num == now.epoch_num
            due = last or now.cur_epoch_num % config.save_checkpoint_epochs == 0
            if config.save_checkpoint and due:
                _write(now.network, checkpoints / name, config.keep_checkpoint_max)
            if where.snapshots is not None and now.cur_epoch_num >= config.snapshot_start_epoch:
                # Not train_network, which in dataset sink mode is a Cell around the step.
                weights = now.network.optimizer.parameters
                _write(weights, checkpoints / where.snapshots / name, config.snapshot_max)

    return log, [Documents()]


def _write(what: nn.Cell | Iterable[Parameter], path: Path, keep: int | None) -> None:
    """Write a checkpoint, and remove the oldest beyond ``keep``; None keeps all."""
    from mindspore import nn

    from labkit.training import checkpoint

    make_folder(path.parent)
    if not isinstance(what, nn.Cell):
        what = [{"name": parameter.name, "data": parameter} for parameter in what]
    checkpoint.write(what, path)
    if keep is not None:
        for old in sorted(path.parent.glob("resnet-*.ckpt"), key=natural_order)[:-keep]:
            old.unlink()


def check_resume(config: TrainingConfig, classes: Sequence[str]) -> None:
    """Raise ``InputError`` if ``config`` would not continue the training in its run folder."""
    folder = Path(config.save_checkpoint_path)
    if not (folder / CONFIG).is_file():
        return
    before = _read(folder / CONFIG, dict)
    check_classes(classes, folder / CLASSES)
    for name, value in json.loads(json.dumps(asdict(config))).items():
        if name not in MAY_CHANGE and value != before.get(name):
            raise InputError(
                f"cannot resume: {name}: expected {before.get(name)}, as in {folder}, got {value}"
            )


def check_classes(classes: Sequence[str], path: Path | None) -> None:
    """Raise ``InputError`` if ``classes`` are not those in ``path``; without a file, accept any.

    One class more or fewer would shift the labels of all that follow.
    """
    if path is None or not path.is_file():
        return
    known = _read(path, list)
    if list(classes) == known:
        return
    differ = []
    for where, names in (("here", set(classes) - set(known)), ("there", set(known) - set(classes))):
        if names:
            few = ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")
            differ.append(f"only {where}: {few}")
    raise InputError(
        f"the data has {len(classes)} classes and the training had {len(known)} ({path}); expected "
        f"the same. {'; '.join(differ)}"
    )


def beside(checkpoint_path: str | Path, name: str) -> Path | None:
    """Return RUN/name for a checkpoint that a training wrote into its run folder, else None."""
    path = Path(checkpoint_path).absolute()
    return next((f / name for f in path.parents[:4] if (f / name).is_file()), None)


def newest(folder: Path) -> Path | None:
    """Return the newest checkpoint of ``fit`` in the run folder, or None."""
    from labkit.training.checkpoint import CHECKPOINTS, checkpoints

    paths = checkpoints(folder / CHECKPOINTS)
    return paths[-1] if paths else None


def _read(path: Path, kind: type) -> Any:
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, kind):
        raise InputError(f"{path} is damaged; expected what a recipe has written")
    return value
