"""Snapshots: the trainable weights as they were at some moments of a training, one file each.

A snapshot is a ``.safetensors`` file of float32 tensors by parameter name, so that any part of it
can be read without the rest. ``SnapshotFolder`` reads them; a checkpoint, which holds the whole
state of a step, is another thing (``labkit.training.checkpoint``).
"""

import hashlib
import json
import math
import re
from pathlib import Path

import mindspore as ms
from mindspore import nn
from mindspore.train import Callback

from labkit.algorithms.subspace.snapshot_folder import NOTE, SUFFIX, SnapshotFolder, natural_order
from labkit.base import checkpoint_files
from labkit.base.arguments import integer
from labkit.base.files import make_folder, remove_unfinished, whole_file
from labkit.errors import InputError
from labkit.ranks.cluster import rank_and_size
from labkit.steps.gradients import set_state

_NAME = re.compile(r"step-(\d{9})\.safetensors")
_WHICH = {"first": 0, "last": -1}


class Snapshots(Callback):
    """Save the trainable weights of ``network`` several times an epoch; keep the newest ``keep``.

    network          its ``trainable_params()`` are saved, by name; all must be float32
    folder           where; the files are called after the micro-batches done so far
    start_epoch      the first epoch, counted from 1, whose snapshots are saved: the weights of a
                     training's beginning explain little of its end
    saves_per_epoch  after equal parts of each epoch's micro-batches, the last after its end
    keep             at most so many files stay, the oldest go; None keeps all
    resume           the training may continue one that has saved snapshots here. Those that it
                     saved after the checkpoint it is resumed from are removed, and come again.
                     Another start_epoch, saves_per_epoch or keep counts from there on: the earlier
                     snapshots stay, among the newest ``keep``

    50 epochs from ``start_epoch=21`` on with ``saves_per_epoch=2`` make 60 snapshots.

    A callback for ``labkit.training.fit.fit``, and for ``Model.train`` of any network (behind
    ``EndOfEpoch``, where the step needs it, so that a flushed update is in the epoch's last
    snapshot). A training that is interrupted and resumed leaves the same files with the same bits
    as one that was not, where its weights have the same bits. With several ranks only the first
    one writes.

    Raises ``InputError`` for bad counts and for parameters that are not float32; when the training
    begins, for a folder that holds snapshots of another one, for more saves than micro-batches in
    an epoch, and for dataset sink mode, which hides the micro-batches.
    """

    def __init__(self, network, folder, *, start_epoch=1, saves_per_epoch=1, keep=40, resume=False):
        super().__init__()
        integer("start_epoch", start_epoch)
        integer("saves_per_epoch", saves_per_epoch)
        if keep is not None:
            integer("keep", keep)
        self._parameters = trainable(network)
        self._folder, self._resume = Path(folder), bool(resume)
        self._start, self._saves, self._keep = start_epoch, saves_per_epoch, keep
        self._writes = False

    def on_train_begin(self, run_context):
        arguments = run_context.original_args()
        if arguments.get("dataset_sink_mode"):
            raise InputError("dataset sink mode came; snapshots within an epoch need each step")
        size = arguments.batch_num
        if self._saves > size:
            raise InputError(
                f"saves_per_epoch is {self._saves}, and an epoch has {size} micro-batches; "
                "expected at most as many"
            )
        self._moments = {math.ceil(size * part / self._saves) for part in range(1, self._saves + 1)}
        # Model's own count of steps starts at 0 after a resume; the dataset knows where it stands.
        self._in_epoch = arguments.train_dataset.get_init_step() % size
        self._prepared = False

    def on_train_epoch_begin(self, run_context):
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

    def _prepare(self, done):
        """Make the folder ready for a training that goes on from micro-batch ``done``."""
        make_folder(self._folder)
        found = _saved(self._folder)
        if found and not done and not self._resume:
            raise InputError(
                f"{self._folder} holds snapshots of an earlier training; give resume=True to "
                "continue it, or another folder"
            )
        remove_unfinished(self._folder)
        for number, path in found.items():
            if number > done:
                path.unlink()

    def on_train_step_end(self, run_context):
        arguments = run_context.original_args()
        self._in_epoch += 1
        number = (arguments.cur_epoch_num - 1) * arguments.batch_num + self._in_epoch
        self._in_epoch %= arguments.batch_num
        if self._writes:
            self._save(number, arguments.batch_num)

    def _path(self, number):
        return self._folder / f"step-{number:09d}{SUFFIX}"

    def _save(self, number, size):
        """Save the weights after micro-batch ``number``, if it is one of those that are saved."""
        epoch, moment = (number - 1) // size + 1, (number - 1) % size + 1
        if epoch < self._start or moment not in self._moments:
            return
        write_snapshot(self._path(number), self._parameters, epoch=epoch, micro_batch=number)
        if self._keep is not None:
            for old in list(_saved(self._folder).values())[: -self._keep]:
                old.unlink()


def write_snapshot(path, parameters, **note) -> None:
    """Write float32 Parameters to ``path`` by name: complete, or not at all.

    note  plain values to be kept beside them, as JSON, with the SHA-256 of the weights
    """
    from safetensors.numpy import save_file

    values = {parameter.name: parameter.asnumpy() for parameter in parameters}
    note["sha256"] = weights_digest(values)
    with whole_file(path, "the snapshot") as temporary:
        # One entry: the order of several would change from process to process, and so the bits.
        save_file(values, temporary, metadata={NOTE: json.dumps(note, sort_keys=True)})


def load_snapshot(network, folder, which="last") -> Path:
    """Set the trainable weights of ``network`` from a snapshot in ``folder``; return its path.

    which  ``last``, ``first``, or the number of a snapshot, counted from 0 in their order

    Raises ``InputError`` as ``SnapshotFolder`` does, and for a snapshot that is damaged or not
    finite; the network is then as it was. BatchNorm's running statistics are no trainable weights:
    they stay what they are.
    """
    parameters = trainable(network)
    with SnapshotFolder(folder, parameters) as snapshots:
        index = _WHICH.get(which, which) if isinstance(which, str) else which
        if isinstance(index, bool) or not isinstance(index, int):
            raise InputError(f"which is {which!r}; expected 'last', 'first' or a number")
        if not -1 <= index < len(snapshots):
            raise InputError(f"which is {which}; {folder} holds {len(snapshots)} snapshots, from 0")
        path, values = snapshots.paths[index], snapshots.load(index)
        expected = snapshots.notes[index].get("sha256")
    if expected is not None and weights_digest(values) != expected:
        raise InputError(f"the snapshot {path} is damaged: its weights have another SHA-256")
    for parameter in parameters:
        set_state(parameter, values[parameter.name])
    return path


def convert_checkpoints(source, network, folder) -> SnapshotFolder:
    """Write the ``.ckpt`` files in ``source`` as snapshots of ``network``; return the new folder.

    source  folder of MindSpore checkpoints, in their order by name (``resnet-2_625.ckpt`` before
            ``resnet-10_625.ckpt``); what they hold beside the trainable weights is left out
    """
    paths = sorted(Path(source).glob("*.ckpt"), key=natural_order)
    if not paths:
        raise InputError(f"{source} holds no .ckpt file")
    parameters, folder = trainable(network), Path(folder)
    make_folder(folder)
    if _saved(folder):
        raise InputError(f"{folder} holds snapshots; expected a folder without")
    expected = {parameter.name: (parameter.dtype, parameter.shape) for parameter in parameters}
    for number, path in enumerate(paths, 1):
        values = checkpoint_files.read(path, expected=expected)
        for parameter in parameters:
            came = values.get(parameter.name)
            held = (getattr(came, "dtype", None), getattr(came, "shape", None))
            if held != (parameter.dtype, parameter.shape):
                held = "no such tensor" if None in held else f"{came.dtype} {came.shape}"
                raise InputError(
                    f"{path} is of another network: for {parameter.name} it holds {held}; "
                    f"expected {parameter.dtype} {parameter.shape}"
                )
        ours = [values[parameter.name] for parameter in parameters]
        write_snapshot(folder / f"step-{number:09d}{SUFFIX}", ours, source=path.name)
    return SnapshotFolder(folder, parameters)


def trainable(network) -> list:
    """Return the trainable Parameters of a network; ``InputError`` unless all are float32."""
    if not isinstance(network, nn.Cell):
        raise InputError(f"network is a {type(network).__name__}; expected an nn.Cell")
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


def weights_digest(values) -> str:
    """Return the SHA-256 over names and bytes of arrays by name, in the order of their names."""
    found = hashlib.sha256()
    for name in sorted(values):
        found.update(name.encode())
        found.update(values[name].ravel().data)  # hashlib takes one dimension only
    return found.hexdigest()


def _saved(folder):
    """Return what ``Snapshots`` has saved in ``folder``: number -> path, oldest first."""
    named = ((_NAME.fullmatch(path.name), path) for path in sorted(folder.iterdir()))
    return {int(match[1]): path for match, path in named if match}
