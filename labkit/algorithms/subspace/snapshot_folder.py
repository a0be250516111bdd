"""Read snapshots in parts, from many files at a time."""

import bisect
import hashlib
import math
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from io import FileIO
from itertools import accumulate
from pathlib import Path
from typing import Any, Self

import numpy as np

from labkit.algorithms.subspace.snapshot_files import check, existing_paths, read_header
from labkit.base.arguments import wrong
from labkit.base.cores import usable_cores
from labkit.errors import InputError

_HASHED = 1 << 20  # bytes at a time, for each thread


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
        names: Names of the parameters.
        shapes: Shapes of the parameters.
        described: (name, shape) of each parameter.
        size: M, the count of numbers in a snapshot.
        notes: The note saved with each snapshot.

    Raises:
        InputError: If the folder is missing or holds no snapshot, a file is truncated or damaged,
            or a file is of another network; the message names the parameter.
    """

    def __init__(self, folder: str | os.PathLike, parameters: Any = None) -> None:
        self.folder = Path(folder)
        self.paths = existing_paths(self.folder)
        wanted = None
        if parameters is not None:
            self.described = describe(parameters)
            wanted = {name for name, _ in self.described}
        headers = [read_header(path, wanted) for path in self.paths]
        self.notes = [header.note for header in headers]
        if parameters is None:
            first = headers[0].tensors
            self.described = [(name, held.shape) for name, held in sorted(first.items())]
        self.names = tuple(name for name, _ in self.described)
        self.shapes = tuple(shape for _, shape in self.described)
        for path, header in zip(self.paths, headers, strict=True):
            check(path, header.tensors, self.described)
        # Where each parameter begins, in a row and in each file.
        self._starts = [0, *accumulate(math.prod(shape) for shape in self.shapes)]
        self._places = [[header.tensors[name].start for name in self.names] for header in headers]
        self._files: list[int] = []
        self.size = self._starts[-1]

    def __len__(self) -> int:
        return len(self.paths)

    def __enter__(self) -> Self:
        opened: list[int] = []
        for path in self.paths:
            try:
                opened.append(os.open(path, os.O_RDONLY))
            except OSError as error:
                _close(opened)
                raise InputError(f"the snapshot {path} cannot be read: {error}") from error
        self._files += opened
        return self

    def __exit__(self, *_: object) -> None:
        # Close the files of the innermost block, which were opened last.
        _close(self._files[-len(self.paths) :])
        del self._files[-len(self.paths) :]

    def read(self, start: int, part: np.ndarray) -> None:
        """Fill ``part``, (N, n) float32, with each snapshot's numbers from ``start`` on."""
        for index in range(len(self)):
            self.read_snapshot(index, start, part[index])

    def read_snapshot(self, index: int, start: int, part: np.ndarray) -> None:
        """Fill ``part``, (n,) float32, with one snapshot's numbers from ``start`` on."""
        parameter, done = bisect.bisect_right(self._starts, start) - 1, 0
        while done < part.size:
            inside = start + done - self._starts[parameter]
            end = self._starts[parameter + 1] - start
            self._fill(index, self._places[index][parameter] + 4 * inside, part[done:end])
            done, parameter = end, parameter + 1

    def _fill(self, index: int, place: int, part: np.ndarray) -> None:
        """Read a part at byte ``place`` of a file, in as many reads as needed (2 GB at a time)."""
        left = part.data.cast("B") if part.size else memoryview(b"")
        while len(left):
            count = os.preadv(self._files[index], [left], place)
            if not count:
                raise InputError(f"the snapshot {self.paths[index]} was cut while it was read")
            left, place = left[count:], place + count

    def load(self, index: int) -> dict[str, np.ndarray]:
        """Return the weights of one snapshot by name; raise InputError if one is not finite."""
        values = {}
        for name, shape, start in zip(self.names, self.shapes, self._starts[:-1], strict=True):
            flat = np.empty(math.prod(shape), np.float32)
            self.read_snapshot(index, start, flat)
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

    def identities(self) -> list[dict]:
        """Return name, bytes and SHA-256 of each snapshot, which identify it.

        The SHA-256 is that of the weights if ``write_snapshot`` saved it with them, and otherwise
        that of the file. All files are read for it, with one thread per available core.

        Raises:
            InputError: If a snapshot's weights do not match the SHA-256 saved with them.
        """
        with ThreadPoolExecutor(len(usable_cores())) as pool:
            return list(pool.map(self._identity, range(len(self))))

    def _identity(self, index: int) -> dict[str, Any]:
        path, noted = self.paths[index], self.notes[index].get("sha256")
        try:
            with open(path, "rb", buffering=0) as file:
                if noted is None:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                else:
                    digest = self._weights_digest(file, index)
                size = os.fstat(file.fileno()).st_size
        except OSError as error:
            raise InputError(f"the snapshot {path} cannot be read: {error}") from error
        if noted not in (None, digest):
            raise InputError(f"the snapshot {path} is damaged: its weights have another SHA-256")
        return {"name": path.name, "bytes": size, "sha256": digest}

    def _weights_digest(self, file: FileIO, index: int) -> str:
        """Return ``snapshots.weights_digest`` of a file, without the arrays in memory."""
        digest, part = hashlib.sha256(), memoryview(bytearray(_HASHED))
        tensors = zip(self.names, self.shapes, self._places[index], strict=True)
        for name, shape, place in sorted(tensors):
            digest.update(name.encode())
            file.seek(place)
            left = 4 * math.prod(shape)
            while left:
                count = file.readinto(part[:left])
                if not count:
                    raise InputError(f"the snapshot {self.paths[index]} was cut while it was read")
                digest.update(part[:count])
                left -= count
        return digest.hexdigest()


def _close(files: Iterable[int]) -> None:
    for file in files:
        os.close(file)


def difference(then: Iterable[dict], now: Iterable[dict]) -> str | None:
    """Describe the first difference between two lists of ``identities``; None if they agree."""
    before = {snapshot["name"]: snapshot for snapshot in then}
    after = {snapshot["name"]: snapshot for snapshot in now}
    for name, snapshot in after.items():
        if name not in before:
            return f"the one there was made without {name}"
        if snapshot != before[name]:
            return f"the one there was made of another {name}"
    gone = sorted(before.keys() - after.keys())
    return f"the one there was made with {gone[0]}, which is gone" if gone else None


def describe(parameters: Any) -> list[tuple[str, tuple[int, ...]]]:
    """Return (name, shape) of each parameter; ``parameters`` as in ``SnapshotFolder``."""
    if hasattr(parameters, "trainable_params"):
        parameters = parameters.trainable_params()
    try:
        pairs = [p if isinstance(p, tuple) else (p.name, p.shape) for p in parameters]
        described = [(name, tuple(int(length) for length in shape)) for name, shape in pairs]
    except (TypeError, ValueError, AttributeError):
        expected = "a network, Parameters or pairs (name, shape)"
        raise wrong("parameters", parameters, expected) from None
    names = {name for name, _ in described}
    if not described or len(names) < len(described):
        raise InputError(
            f"parameters: expected at least one, each with a name of its own, got "
            f"{len(described)} with {len(names)} names"
        )
    return described
