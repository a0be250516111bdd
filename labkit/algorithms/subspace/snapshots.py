"""Snapshots: the trainable weights at certain moments of a training, one file each.

A snapshot is a ``.safetensors`` file of float32 tensors by parameter name. ``Snapshots`` saves
them during a training; ``SnapshotFolder`` reads any part of all of them without the rest. A
checkpoint, in contrast, holds the whole state of a step (``labkit.training.checkpoint``).

A folder without such a file may hold the ``.ckpt`` files of a tutorial's first stage: each is
loaded once and copied to a temporary file. Everything in them except the parameters is ignored, and
the names of the tutorials' ResNets are translated to labkit's (``labkit.nets.resnet``).
"""

import bisect
import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, Self

import mindspore as ms
import numpy as np
from mindspore import Parameter, nn
from mindspore.train import Callback, RunContext
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from labkit.base.arguments import choice, flag, integer, wrong
from labkit.base.files import make_folder, natural_order, remove_unfinished, whole_file
from labkit.errors import InputError
from labkit.nets.resnet import own_name
from labkit.ranks.cluster import rank_and_size
from labkit.steps.state import set_state

Described = list[tuple[str, tuple[int, ...]]]
BASIS = "labkit_basis"  # the metadata of a basis, which may lie beside its snapshots
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
        self._parameters = _trainable(network)
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
        self._prepared, self._writes = True, rank_and_size()[0] == 0
        if not self._writes:
            return
        arguments = run_context.original_args()
        done = (arguments.cur_epoch_num - 1) * arguments.batch_num + self._in_epoch
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
        # The training may have been killed after its checkpoint and before this snapshot.
        if self._resume and done and done not in saved:
            self._save(done, arguments.batch_num)

    def on_train_step_end(self, run_context: RunContext) -> None:
        arguments = run_context.original_args()
        self._in_epoch += self._micro_batches
        number = (arguments.cur_epoch_num - 1) * arguments.batch_num + self._in_epoch
        self._in_epoch %= arguments.batch_num
        if self._writes:
            self._save(number, arguments.batch_num)

    def _save(self, number: int, size: int) -> None:
        """Save the weights after micro-batch ``number`` if a snapshot is due there."""
        epoch, moment = (number - 1) // size + 1, (number - 1) % size + 1
        if epoch < self._start or moment not in self._moments:
            return
        path = self._folder / f"step-{number:09d}.safetensors"
        write_snapshot(path, self._parameters, {"epoch": epoch, "micro_batch": number})
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
    parameters = _trainable(network)
    if isinstance(which, str):
        choice("which", which, _WHICH)
    index = _WHICH[which] if isinstance(which, str) else integer("which", which, -1)
    with SnapshotFolder(folder, parameters) as snapshots:
        if index >= len(snapshots):
            raise wrong("which", which, f"at most {len(snapshots) - 1}, the last in {folder}")
        path, values = snapshots.paths[index], snapshots.load(index)
    for parameter in parameters:
        set_state(parameter, values[parameter.name])
    return path


def _trainable(network: nn.Cell) -> list[Parameter]:
    """Return the trainable Parameters of a network; raise InputError unless all are float32."""
    if not isinstance(network, nn.Cell):
        raise wrong("network", network, "an nn.Cell")
    for parameter in (parameters := network.trainable_params()):
        if parameter.dtype != ms.float32:
            raise InputError(
                f"{parameter.name} is {parameter.dtype}; snapshots are of float32 weights (the "
                "precision= of a step computes in float16 and keeps float32 weights)"
            )
    if not parameters:
        raise InputError(f"{type(network).__name__} has no trainable parameter")
    return parameters


def _saved(folder: Path) -> dict[int, Path]:
    """Return the files that ``Snapshots`` saved in ``folder``: number -> path, oldest first."""
    named = ((_NAME.fullmatch(path.name), path) for path in sorted(folder.iterdir()))
    return {int(match[1]): path for match, path in named if match}


class Place(NamedTuple):
    """Where a tensor is in a file: its type (F32, ...), its shape and its first byte."""

    kind: str
    shape: tuple[int, ...]
    start: int


class SnapshotFolder:
    """The snapshots in a folder, in the order of their names, as the rows of an (N, M) matrix.

    Parts are read inside a ``with`` block, which maps the files: several threads can read at once,
    and anywhere. The slices of safetensors hold the interpreter lock and cut along rows, and a flat
    weight may be a single row of 100 MB.

    Args:
        folder: A folder of ``.safetensors`` files or, if it has none of them, of ``.ckpt`` files;
            numbers in file names are ordered as numbers.
        parameters: The parameters that every file must hold, in the order of the columns: a network
            (its trainable parameters), Parameters, or pairs (name, shape); None takes those of the
            first file, in the order of their names.

    Attributes:
        paths: Paths of the N files.
        described: (name, shape) of each parameter.
        size: M, the count of numbers in a snapshot.

    Raises:
        InputError: If the folder is missing or holds no snapshot, a file is damaged, or it is of
            another network; the message names the parameter.
    """

    def __init__(self, folder: str | os.PathLike, parameters: Any = None) -> None:
        self.folder = Path(folder)
        self.paths = files = snapshot_paths(self.folder)
        if not files:
            raise InputError(f"{self.folder} holds no snapshot; expected .safetensors or .ckpt")
        wanted = None if parameters is None else describe(parameters)
        if files[0].suffix == ".ckpt":
            self._copies = tempfile.TemporaryDirectory()  # removed with this object
            files = [_converted(path, Path(self._copies.name), wanted) for path in files]
        held = [places(file) for file in files]
        self.described = wanted or [(name, place.shape) for name, place in sorted(held[0].items())]
        for path, own in zip(self.paths, held, strict=True):
            _check(path, own, self.described)
        # Where each parameter begins, in a row and in each file.
        self._starts = [0, *accumulate(math.prod(shape) for _, shape in self.described)]
        self._places = [[own[name].start for name, _ in self.described] for own in held]
        self._files = files
        self._bytes: list[np.ndarray] = []
        self.size = self._starts[-1]

    def __len__(self) -> int:
        return len(self.paths)

    def __enter__(self) -> Self:
        self._bytes = [np.asarray(np.memmap(path, np.uint8, "r")) for path in self._files]
        return self

    def __exit__(self, *_: object) -> None:
        self._bytes = []

    def read(self, start: int, part: np.ndarray) -> None:
        """Fill ``part``, (N, n) float32, with each snapshot's numbers from ``start`` on."""
        for index, row in enumerate(part):
            self._read_row(index, start, row)

    def _read_row(self, index: int, start: int, row: np.ndarray) -> None:
        parameter, done = bisect.bisect_right(self._starts, start) - 1, 0
        while done < row.size:
            end = min(self._starts[parameter + 1] - start, row.size)
            inside = start + done - self._starts[parameter]
            place = self._places[index][parameter] + 4 * inside
            numbers = self._bytes[index][place : place + 4 * (end - done)]
            row[done:end] = numbers.view(np.float32)
            done, parameter = end, parameter + 1

    def load(self, index: int) -> dict[str, np.ndarray]:
        """Return the weights of one snapshot by name; raise InputError if one is not finite."""
        values = {}
        for (name, shape), start in zip(self.described, self._starts, strict=False):
            flat = np.empty(math.prod(shape), np.float32)
            self._read_row(index, start, flat)
            bad = np.flatnonzero(~np.isfinite(flat))
            if bad.size:
                raise InputError(
                    f"the snapshot {self.paths[index]} is not finite: {name} holds {flat[bad[0]]} "
                    f"({bad.size} of {flat.size} numbers)"
                )
            values[name] = flat.reshape(shape)
        return values

    def refuse_nonfinite(self) -> None:
        """Raise ``InputError`` for the first snapshot that holds NaN or infinity."""
        for index in range(len(self)):
            self.load(index)

    def need(self, components: int) -> None:
        """Raise ``InputError`` if there are fewer snapshots than ``components`` + 1."""
        if len(self) <= components:
            most = f"at most {len(self) - 1}, one less than the snapshots in {self.folder}"
            raise wrong("components", components, most)

    def identities(self) -> dict[str, str]:
        """Return the SHA-256 of each file by its name; one thread per core reads the files."""
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            return dict(pool.map(_identity, self.paths))


def _identity(path: Path) -> tuple[str, str]:
    with open(path, "rb") as file:
        return path.name, hashlib.file_digest(file, "sha256").hexdigest()


def snapshot_paths(folder: Path) -> list[Path]:
    """Return a folder's ``.safetensors`` files, or its ``.ckpt`` files, in their natural order."""
    if not folder.is_dir():
        raise InputError(f"no folder of snapshots at {folder}")
    # A dot begins the names of files that a killed process left half-written.
    paths = [path for path in folder.glob("[!.]*.safetensors") if BASIS not in metadata(path)]
    return sorted(paths or folder.glob("[!.]*.ckpt"), key=natural_order)


def metadata(path: Path) -> dict[str, str]:
    """Return the texts beside the tensors of a file; raise ``InputError`` if it is damaged."""
    try:
        with safe_open(path, "numpy") as file:
            return file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is damaged and cannot be read ({error})") from error


def places(path: Path) -> dict[str, Place]:
    """Return name -> place of the tensors in a file; raise ``InputError`` if it is damaged."""
    metadata(path)
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    begin = 8 + length
    return {
        name: Place(tensor["dtype"], tuple(tensor["shape"]), begin + tensor["data_offsets"][0])
        for name, tensor in header.items()
    }


def _converted(path: Path, folder: Path, wanted: Described | None) -> Path:
    """Copy a ``.ckpt`` file's parameters, those of ``wanted`` if given, into ``folder``."""
    try:
        values = ms.load_checkpoint(str(path), crc_check=True)
    except Exception as error:  # MindSpore raises a different one for each kind of damage
        raise InputError(f"the checkpoint {path} is damaged and cannot be read") from error
    held = {own_name(name): value for name, value in values.items()}
    names = held.keys() if wanted is None else held.keys() & dict(wanted).keys()
    save_file({name: np.array(held[name].asnumpy()) for name in names}, folder / path.name)
    return folder / path.name


def _check(path: Path, held: dict[str, Place], described: Described) -> None:
    """Raise ``InputError`` unless a file holds exactly these parameters, all float32."""
    of_another = f"the snapshot {path} is of another network"
    for name, shape in described:
        if name not in held:
            raise InputError(f"{of_another}: it lacks {name}")
        if (held[name].kind, held[name].shape) != ("F32", shape):
            kind, other, _ = held[name]
            raise InputError(f"{of_another}: {name} is {kind} {other}; expected F32 {shape}")
    more = sorted(held.keys() - dict(described).keys())
    if more:
        raise InputError(f"{of_another}: it also holds {more[0]}")


def describe(parameters: Any) -> Described:
    """Return (name, shape) of each parameter; ``parameters`` as in ``SnapshotFolder``."""
    if hasattr(parameters, "trainable_params"):
        parameters = parameters.trainable_params()
    try:
        pairs = [p if isinstance(p, tuple) else (p.name, p.shape) for p in parameters]
        described = [(name, tuple(int(length) for length in shape)) for name, shape in pairs]
    except (TypeError, ValueError, AttributeError):
        expected = "a network, Parameters or pairs (name, shape)"
        raise wrong("parameters", parameters, expected) from None
    if not described:
        raise InputError("parameters: expected at least one, got none")
    return described
