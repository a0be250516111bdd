"""A folder of snapshots, read in parts from many files at a time.

The package safetensors checks each file; its tensors are then read at their places, so that several
threads can read at once (the package's own slices hold the interpreter lock and cut along rows, and
a flat weight may be a single row of 100 MB).

A folder without such a file may hold the ``.ckpt`` files of a tutorial's first stage: each is
loaded once and copied to a temporary file. Everything in them except the parameters is ignored, and
the names of the tutorials' ResNets are translated to labkit's (``labkit.nets.resnet``).
"""

import bisect
import contextlib
import hashlib
import json
import math
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, Self

import mindspore as ms
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from labkit.base.arguments import wrong
from labkit.base.files import natural_order
from labkit.errors import InputError
from labkit.nets.resnet import own_name

Described = list[tuple[str, tuple[int, ...]]]
BASIS = "labkit_basis"  # the metadata of a basis, which may lie beside its snapshots


class Place(NamedTuple):
    """Where a tensor is in a file: its type (F32, ...), its shape and its first byte."""

    kind: str
    shape: tuple[int, ...]
    start: int


class SnapshotFolder:
    """The snapshots in a folder, in the order of their names, as the rows of an (N, M) matrix.

    Parts are read inside a ``with`` block, which holds the files open.

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
        self._to_read, self._files = files, contextlib.ExitStack()
        self._handles: list[int] = []
        self.size = self._starts[-1]

    def __len__(self) -> int:
        return len(self.paths)

    def __enter__(self) -> Self:
        opened = [self._files.enter_context(open(path, "rb")) for path in self._to_read]
        self._handles = [file.fileno() for file in opened]
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def read(self, start: int, part: np.ndarray) -> None:
        """Fill ``part``, (N, n) float32, with each snapshot's numbers from ``start`` on."""
        for index in range(len(self)):
            self._read_row(index, start, part[index])

    def _read_row(self, index: int, start: int, row: np.ndarray) -> None:
        parameter, done = bisect.bisect_right(self._starts, start) - 1, 0
        while done < row.size:
            inside = start + done - self._starts[parameter]
            end = self._starts[parameter + 1] - start
            self._fill(index, self._places[index][parameter] + 4 * inside, row[done:end])
            done, parameter = end, parameter + 1

    def _fill(self, index: int, place: int, part: np.ndarray) -> None:
        left = part.data.cast("B") if part.size else memoryview(b"")
        while len(left):  # the system reads at most 2 GB at a time
            count = os.preadv(self._handles[index], [left], place)
            if not count:
                raise InputError(f"the snapshot {self.paths[index]} was cut while it was read")
            left, place = left[count:], place + count

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

        def identity(path: Path) -> str:
            with open(path, "rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            digests = list(pool.map(identity, self.paths))
        return dict(zip((path.name for path in self.paths), digests, strict=True))


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
