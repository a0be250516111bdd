"""The tutorials' own folders, files and logs, which ``layout="documents"`` writes in addition.

In the run folder; i is the number of a device on its machine, E an epoch, S the steps in an epoch:

    resnet50     resnet-E_S.ckpt
    thor         train_parallel{i}/ckpt_0/resnet-E_S.ckpt of every device;
                 on GPU train_parallel/ckpt_{rank}/resnet-E_S.ckpt
    adasum       device{i}/
    subspace-1   device{i}_stage_1/; in the first device's also checkpoint_stage_1/resnet-E_S.ckpt
                 and checkpoint_stage_1/checkpoint_pca/resnet-E_S.ckpt, the trainable weights
    subspace-2   device{i}_stage_2/; in the first device's also checkpoint_stage_2/resnet-E_S.ckpt

The folder of a device also holds train.log, the output of its process, and env.log.

Departures: the run folder keeps its own files, from which a training resumes; env.log holds only
the environment variables that identify the rank, since the others may contain passwords; machines
that share a run folder would share device{i}: give each machine its own run folder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from labkit.base.arguments import wrong
from labkit.base.files import make_folder, natural_order, write_text

if TYPE_CHECKING:
    from mindspore import Parameter, nn
    from mindspore.train import Callback, RunContext

LAYOUTS = ("run", "documents")
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
    "resnet50": Tree("", ""),
    "thor": Tree("train_parallel{}", "ckpt_0", every_device=True),
    "adasum": Tree("device{}"),
    "subspace_stage_1": Tree("device{}_stage_1", "checkpoint_stage_1", "checkpoint_pca"),
    "subspace_stage_2": Tree("device{}_stage_2", "checkpoint_stage_2"),
}
_GPU = {"thor": Tree("train_parallel", "ckpt_{rank}", every_device=True)}


def tree(recipe: str, device: str) -> Tree:
    """Return where the tutorial of a recipe writes on "CPU", "GPU" or "Ascend".

    Raises:
        InputError: if the tutorial of the recipe names no folders.
    """
    if recipe not in TREES:
        raise wrong("layout", "documents", f"'run': the tutorial of {recipe} names no folders")
    return (_GPU if device == "GPU" else {}).get(recipe, TREES[recipe])


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


def of(config: Any, recipe: str, rank: int) -> tuple[Log, list[Callback]]:
    """Return the log of this rank's device, and the callbacks that write the tutorial's files.

    Args:
        config: the recipe's settings; with layout "run" nothing is written.
        recipe: name of the recipe's module.
        rank: rank of this process.
    """
    if config.layout == "run":
        return Log(None), []
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
