"""Snapshots: the trainable weights at moments of a training, float32, one file each."""

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Container, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, nn
from mindspore.train import Callback, RunContext
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from labkit.base.arguments import integer, local_path, wrong
from labkit.base.files import make_folder, natural_order, remove_unfinished, whole_file
from labkit.base.machine import own_cores
from labkit.errors import InputError
from labkit.nets.resnet import own_name
from labkit.ranks.cluster import rank_and_size
from labkit.steps.state import bounds

Described = list[tuple[str, tuple[int, ...]]]
BASIS = "labkit_basis"  # the metadata of a basis, which may lie beside its snapshots
_NAMES = "step-" + 9 * "[0-9]" + ".safetensors"


class Snapshots(Callback):
    """Save the trainable weights of ``network`` several times an epoch; keep the newest ``keep``.

    It is for ``fit``, and for ``Model.train`` of any network (after ``EndOfEpoch`` if the step
    needs that). A resumed training leaves the same files as an uninterrupted one, bit for bit. With
    several ranks only the first one writes.

    Args:
        network: its ``trainable_params()`` are saved, by name; all must be float32.
        folder: where to save; files are named after the number of micro-batches done so far.
        start_epoch: first epoch, counted from 1, whose snapshots are saved.
        saves_per_epoch: saves after equal parts of each epoch's micro-batches, the last at its end.
        keep: maximum number of files; the oldest are removed. None keeps all.
        resume: whether the training may continue one that saved snapshots in ``folder``. Those
            saved after the checkpoint from which it resumes are removed and saved again.

    Raises:
        InputError: if a count is invalid or a parameter is not float32; when the training begins,
            if the folder holds snapshots of another one, or an epoch has fewer calls of the step
            (in dataset sink mode one) than saves.
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
        self._folder, self._resume = local_path("folder", folder), resume
        self._parameters = network.trainable_params()
        for parameter in self._parameters:
            if parameter.dtype != ms.float32:
                expected = "Float32, as precision= of a step keeps it"
                raise InputError(f"{parameter.name} is {parameter.dtype}; expected {expected}")

    def on_train_begin(self, run_context: RunContext) -> None:
        arguments = run_context.original_args()
        self._size = arguments.batch_num
        self._in_call = self._size if arguments.get("dataset_sink_mode") else 1
        calls = self._size // self._in_call
        if self._saves > calls:
            raise wrong("saves_per_epoch", self._saves, f"at most {calls}, an epoch's calls")
        self._begun = False

    def on_train_epoch_begin(self, run_context: RunContext) -> None:
        if self._begun:
            return
        arguments = run_context.original_args()
        # After a resume ``fit`` sets the step count; Model's starts at 0, but its dataset knows.
        done = arguments.get("cur_step_num") or arguments.train_dataset.get_init_step()
        in_epoch = done % self._size
        self._begun, self._done = True, (arguments.cur_epoch_num - 1) * self._size + in_epoch
        if rank_and_size()[0]:
            return
        make_folder(self._folder)
        if (saved := _saved(self._folder)) and not self._done and not self._resume:
            there = f"{self._folder} holds snapshots of an earlier training"
            raise InputError(f"{there}; give resume=True to continue it, or another folder")
        remove_unfinished(self._folder)
        for number in [number for number in saved if number > self._done]:
            saved.pop(number).unlink()
        # The training may have been killed after its checkpoint and before this snapshot.
        if self._resume and self._done and self._done not in saved:
            self._save()

    def on_train_step_end(self, run_context: RunContext) -> None:
        self._done += self._in_call
        if rank_and_size()[0] == 0:
            self._save()

    def _save(self) -> None:
        """Save the weights if a snapshot is due now."""
        epoch, last = divmod(self._done - 1, self._size)
        is_due = (last + 1) * self._saves // self._size > last * self._saves // self._size
        if epoch + 1 < self._start or not is_due:
            return
        write_snapshot(self._folder / f"step-{self._done:09d}.safetensors", self._parameters)
        if self._keep is not None:
            for old in list(_saved(self._folder).values())[: -self._keep]:
                old.unlink()


def write_snapshot(path: str | os.PathLike, parameters: Iterable[Parameter]) -> None:
    """Write float32 Parameters to ``path`` by name, completely or not at all."""
    with whole_file(path, "the snapshot") as temporary:
        save_file({parameter.name: parameter.asnumpy() for parameter in parameters}, temporary)


def _saved(folder: Path) -> dict[int, Path]:
    """Return the files that ``Snapshots`` saved in ``folder``: number -> path, oldest first."""
    return {int(path.stem[5:]): path for path in sorted(folder.glob(_NAMES))}


class SnapshotFolder:
    """The snapshots in a folder, in the order of their names, as the rows of an (N, M) matrix.

    Args:
        folder: of ``.safetensors`` files or, if it has none of them, of a tutorial's ``.ckpt``
            files; numbers in file names are ordered as numbers. Of a ``.ckpt`` file everything but
            the parameters is ignored, and names of the tutorials' ResNets become labkit's.
        parameters: what every file must hold, in the order of the columns: a network (its trainable
            parameters), Parameters, or pairs (name, shape).

    ``paths`` are those of the N files, ``described`` is (name, shape) of each parameter, ``size``
    is M. The files are mapped: several threads can read any parts at once.

    Raises:
        InputError: if the folder holds no snapshot, or a file is damaged or of another network.
    """

    def __init__(self, folder: str | os.PathLike, parameters: Any) -> None:
        self.folder, self.described = local_path("folder", folder), describe(parameters)
        own = dict(self.described)
        # A dot begins the names of files that a killed process left half-written.
        files = sorted(self.folder.glob("[!.]*.safetensors"), key=natural_order)
        opened = {path: mapped(path) for path in files}
        held = {path: arrays for path, (arrays, texts) in opened.items() if BASIS not in texts}
        if not held:
            checkpoints = sorted(self.folder.glob("[!.]*.ckpt"), key=natural_order)
            with tempfile.TemporaryDirectory() as copies:  # what is mapped stays until it is unused
                held = {path: _converted(path, Path(copies), own) for path in checkpoints}
        if not held:
            raise InputError(f"{folder} holds no snapshot; expected .safetensors or .ckpt files")
        for path, arrays in held.items():
            shapes = {name: array.shape for name, array in arrays.items()}
            check_network(f"the snapshot {path}", shapes, own)
        self.paths = list(held)
        rows = [[arrays[name].ravel() for name in own] for arrays in held.values()]
        self._parameters = list(zip(*rows, strict=True))  # of each parameter all rows, flat
        self._bounds = bounds([math.prod(shape) for _, shape in self.described])
        self.size = self._bounds[-1][1]

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, start: int, part: np.ndarray) -> None:
        """Fill ``part``, (N, n) float32, with each snapshot's numbers from ``start`` on."""
        for (begin, end), rows in zip(self._bounds, self._parameters, strict=True):
            first, last = max(start, begin), min(start + part.shape[1], end)
            if first < last:
                for numbers, row in zip(part, rows, strict=True):
                    numbers[first - start : last - start] = row[first - begin : last - begin]

    def load(self, index: int) -> dict[str, np.ndarray]:
        """Return the weights of one snapshot by name; raise InputError if one is not finite.

        BatchNorm's running statistics are in none, nor computed anew for weights that are loaded or
        averaged: pass training data through the network in training mode before evaluating.
        """
        values = {}
        for (name, shape), rows in zip(self.described, self._parameters, strict=True):
            values[name] = np.array(rows[index]).reshape(shape)
            if not np.isfinite(values[name]).all():
                raise InputError(f"the snapshot {self.paths[index]} is not finite: see {name}")
        return values

    def checksum(self) -> str:
        """Return the SHA-256 of the names and bytes of all files; a thread per core reads them."""

        def digest(path: Path) -> str:
            return hashlib.sha256(np.memmap(path, np.uint8, "r").data).hexdigest()

        with ThreadPoolExecutor(len(own_cores())) as pool:
            digests = list(pool.map(digest, self.paths))
        names = [path.name for path in self.paths]
        return hashlib.sha256(json.dumps([names, digests]).encode()).hexdigest()


def mapped(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the tensors of a file, mapped, and its metadata, or raise ``InputError``."""
    # The slices of safetensors hold the interpreter lock, and cut along rows.
    try:
        with safe_open(path, "numpy"):  # it compares the header with the file's length
            data = np.memmap(path, np.uint8, "r")
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    begin = 8 + int(data[:8].view(np.uint64)[0])
    header, arrays = json.loads(bytes(data[8:begin])), {}
    texts = header.pop("__metadata__", {})
    for name, about in header.items():
        if about["dtype"] != "F32":
            raise InputError(f"{path}: {name} is {about['dtype']}; expected F32, float32")
        first, end = about["data_offsets"]
        arrays[name] = data[begin + first : begin + end].view(np.float32).reshape(about["shape"])
    return arrays, texts


def _converted(path: Path, folder: Path, wanted: Container[str]) -> dict[str, np.ndarray]:
    """Return the parameters of a ``.ckpt`` file whose names are ``wanted``, mapped from a copy."""
    try:
        values = ms.load_checkpoint(str(path), crc_check=True)
    except Exception as error:  # MindSpore raises a different one for each kind of damage
        raise InputError(f"{path} cannot be read: it is damaged") from error
    named = {own_name(name): value for name, value in values.items()}
    held = {name: np.array(value.asnumpy()) for name, value in named.items() if name in wanted}
    save_file(held, folder / path.name)
    return mapped(folder / path.name)[0]


def check_network(what: object, held: Mapping[str, tuple], expected: Mapping[str, tuple]) -> None:
    """Raise ``InputError`` unless ``what`` holds the expected parameters: name -> shape."""
    for name in [*expected, *held]:
        if held.get(name) != expected.get(name):
            got, wanted = held.get(name, "nothing"), expected.get(name, "nothing")
            raise InputError(f"{what} is of another network: {name} is {got}; expected {wanted}")


def describe(parameters: Any) -> Described:
    """Return (name, shape) of each parameter; ``parameters`` as in ``SnapshotFolder``."""
    if isinstance(parameters, nn.Cell):
        parameters = parameters.trainable_params()
    pairs = (p if isinstance(p, tuple) else (p.name, p.shape) for p in parameters)
    return [(name, tuple(shape)) for name, shape in pairs]
