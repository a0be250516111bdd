"""Snapshots: the trainable weights at certain moments of a training, one file each.

A snapshot is a ``.safetensors`` file of float32 tensors by parameter name, so that any part of it
can be read without the rest. ``SnapshotFolder`` reads them. A checkpoint, in contrast, holds the
whole state of a step (``labkit.training.checkpoint``).
"""

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import mindspore as ms
from mindspore import Parameter, nn
from mindspore.train import Callback, RunContext
from safetensors.numpy import save_file

from labkit.algorithms.subspace.snapshot_folder import SnapshotFolder
from labkit.base.arguments import choice, flag, integer, wrong
from labkit.base.files import make_folder, remove_unfinished, whole_file
from labkit.errors import InputError
from labkit.ranks.cluster import rank_and_size
from labkit.steps.state import set_state

_NAME = re.compile(r"step-(\d{9})\.safetensors")
_WHICH = {"first": 0, "last": -1}


class Snapshots(Callback):
    """Save the trainable weights of ``network`` several times an epoch; keep the newest ``keep``.

    A training of 50 epochs with ``start_epoch=21`` and ``saves_per_epoch=2`` saves 60 snapshots.

    It is a callback for ``labkit.training.fit.fit``, and for ``Model.train`` of any network (after
    ``EndOfEpoch`` if the step needs that, so that the epoch's last snapshot includes a flushed
    update). A training that is interrupted and resumed leaves the same files with the same bits as
    an uninterrupted one, provided that its weights have the same bits. With several ranks only the
    first one writes.

    Args:
        network: The network whose ``trainable_params()`` are saved, by name; all must be float32.
        folder: Where to save; files are named after the number of micro-batches done so far.
        start_epoch: First epoch, counted from 1, whose snapshots are saved: weights from the
            beginning of a training explain little of its end.
        saves_per_epoch: Saves after equal parts of each epoch's micro-batches, the last at its end.
        keep: Maximum number of files; the oldest are removed. None keeps all.
        resume: Whether the training may continue one that saved snapshots in ``folder``. Snapshots
            that were saved after the checkpoint from which it resumes are removed and saved again.
            A changed start_epoch, saves_per_epoch or keep applies from there on: the earlier
            snapshots stay if they are among the newest ``keep``.

    Raises:
        InputError: If a count is invalid or a parameter is not float32. When the training begins:
            if the folder holds snapshots of another training, there are more saves than
            micro-batches in an epoch, or there are saves within an epoch in dataset sink mode,
            which runs a whole epoch (MindSpore calls each sink an epoch) in one call.
    """

    def __init__(
        self,
        network: nn.Cell,
        folder: str | os.PathLike,
        *,
        start_epoch: int = 1,
        saves_per_epoch: int = 1,
        keep: int | None = 40,
        resume: bool = False,
    ) -> None:
        super().__init__()
        self._start = integer("start_epoch", start_epoch)
        self._saves = integer("saves_per_epoch", saves_per_epoch)
        self._keep = None if keep is None else integer("keep", keep)
        self._parameters = trainable(network)
        self._folder, self._resume = Path(folder), flag("resume", resume)
        self._writes = False

    def on_train_begin(self, run_context: RunContext) -> None:
        arguments = run_context.original_args()
        size, sinks = arguments.batch_num, arguments.get("dataset_sink_mode")
        if sinks and self._saves > 1:
            raise wrong("saves_per_epoch", self._saves, "1 in dataset sink mode")
        self._micro_batches = size if sinks else 1
        if self._saves > size:
            raise wrong("saves_per_epoch", self._saves, f"at most {size}, an epoch's micro-batches")
        self._moments = {math.ceil(size * part / self._saves) for part in range(1, self._saves + 1)}
        # Model's own step count starts at 0 after a resume; the dataset knows its position.
        self._in_epoch = arguments.train_dataset.get_init_step() % size
        self._prepared = False

    def on_train_epoch_begin(self, run_context: RunContext) -> None:
        if self._prepared:
            return
        self._prepared = True
        self._writes = rank_and_size()[0] == 0
        if self._writes:
            arguments = run_context.original_args()
            done = (arguments.cur_epoch_num - 1) * arguments.batch_num + self._in_epoch
            self._prepare(done)
            # The training may have been killed after its checkpoint and before this snapshot.
            if self._resume and done and not self._path(done).exists():
                self._save(done, arguments.batch_num)

    def _prepare(self, done: int) -> None:
        """Prepare the folder for a training that continues from micro-batch ``done``."""
        make_folder(self._folder)
        saved = _saved(self._folder)
        if saved and not done and not self._resume:
            raise InputError(
                f"{self._folder} holds snapshots of an earlier training; give resume=True to "
                "continue it, or another folder"
            )
        remove_unfinished(self._folder)
        for number, path in saved.items():
            if number > done:
                path.unlink()

    def on_train_step_end(self, run_context: RunContext) -> None:
        arguments = run_context.original_args()
        self._in_epoch += self._micro_batches
        number = (arguments.cur_epoch_num - 1) * arguments.batch_num + self._in_epoch
        self._in_epoch %= arguments.batch_num
        if self._writes:
            self._save(number, arguments.batch_num)

    def _path(self, number: int) -> Path:
        return self._folder / f"step-{number:09d}.safetensors"

    def _save(self, number: int, size: int) -> None:
        """Save the weights after micro-batch ``number`` if a snapshot is due there."""
        epoch, moment = (number - 1) // size + 1, (number - 1) % size + 1
        if epoch < self._start or moment not in self._moments:
            return
        note = {"epoch": epoch, "micro_batch": number}
        write_snapshot(self._path(number), self._parameters, note)
        if self._keep is not None:
            for old in list(_saved(self._folder).values())[: -self._keep]:
                old.unlink()


def write_snapshot(
    path: str | os.PathLike,
    parameters: Iterable[Parameter],
    note: Mapping[str, str | float] | None = None,
) -> None:
    """Write float32 Parameters to ``path`` by name, completely or not at all.

    Args:
        path: The file.
        parameters: The Parameters to write.
        note: Plain values to store with them as JSON.
    """
    values = {parameter.name: parameter.asnumpy() for parameter in parameters}
    with whole_file(path, "the snapshot") as temporary:
        # A single entry: the order of several, and so the bits, would vary between processes.
        save_file(values, temporary, metadata={"labkit": json.dumps(dict(note or {}))})


def load_snapshot(network: nn.Cell, folder: str | os.PathLike, which: str | int = "last") -> Path:
    """Set the trainable weights of ``network`` from a snapshot in ``folder``; return its path.

    BatchNorm's running statistics are not trainable weights and stay unchanged.

    Args:
        network: The network to set; it is unchanged if the snapshot is refused.
        folder: A folder of snapshots.
        which: ``last``, ``first``, or the number of a snapshot, from 0; -1 is the last.

    Raises:
        InputError: As in ``SnapshotFolder``, or if the snapshot is not finite.
    """
    parameters = trainable(network)
    with SnapshotFolder(folder, parameters) as snapshots:
        if isinstance(which, str):
            choice("which", which, _WHICH)
        index = _WHICH[which] if isinstance(which, str) else integer("which", which, -1)
        if index >= len(snapshots):
            raise wrong("which", which, f"at most {len(snapshots) - 1}, the last in {folder}")
        path, values = snapshots.paths[index], snapshots.load(index)
    for parameter in parameters:
        set_state(parameter, values[parameter.name])
    return path


def trainable(network: nn.Cell) -> list[Parameter]:
    """Return the trainable Parameters of a network; raise InputError unless all are float32."""
    if not isinstance(network, nn.Cell):
        raise wrong("network", network, "an nn.Cell")
    parameters = network.trainable_params()
    if not parameters:
        raise InputError(f"{type(network).__name__} has no trainable parameter")
    for parameter in parameters:
        if parameter.dtype != ms.float32:
            raise InputError(
                f"{parameter.name} is {parameter.dtype}; snapshots are of float32 weights (the "
                "precision= of a step computes in float16 and keeps float32 weights)"
            )
    return parameters


def _saved(folder: Path) -> dict[int, Path]:
    """Return the files that ``Snapshots`` saved in ``folder``: number -> path, oldest first."""
    named = ((_NAME.fullmatch(path.name), path) for path in sorted(folder.iterdir()))
    return {int(match[1]): path for match, path in named if match}
