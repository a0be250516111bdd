"""The basis of the subspace: computed from snapshots, and kept in a file for later runs.

A basis is one ``.safetensors`` file: the matrix, and everything else as metadata. MindSpore's
``dim_reduce`` keeps the matrix alone as ``.npy``, which is read and written too.
"""

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from labkit.algorithms.subspace.components import principal_components
from labkit.algorithms.subspace.snapshots import (
    BASIS,
    SnapshotFolder,
    describe,
    metadata,
    places,
)
from labkit.base.arguments import integer, wrong
from labkit.base.files import whole_file
from labkit.errors import InputError
from labkit.ranks.cluster import rank_and_size, together

# Largest difference of P P^T from I that is accepted. A basis in float32 differs by 1e-6; if it is
# not orthonormal, the residual contains a part of the subspace.
ORTHONORMAL = 1e-3
_COLUMNS = 1 << 18  # read at a time: 64 MB in float64 for 32 rows
# A network, its Parameters, or (name, shape) of each.
Parameters = Any
Snapshots = str | Path | SnapshotFolder


class Basis:
    """K orthonormal directions in the space of a network's M trainable weights.

    The coordinates of weights w are P w, (K,); P^T P (w - mean) is the part of w - mean that the
    basis can express.

    Args:
        matrix: P (K, M), with orthonormal rows, the largest variance first; kept as float32. That
            of a loaded basis is mapped from its file.
        parameters: those to which the columns belong, each flattened row by row: a network,
            Parameters, or pairs (name, shape). ``names`` and ``shapes`` hold them.
        variance: (K,), the variance of the snapshots along each row, with divisor N - 1.
        total_variance: variance of the snapshots over all M weights.
        snapshots: SHA-256 of each snapshot from which the basis was made, by the file's name.
    """

    def __init__(
        self,
        matrix: np.ndarray,
        parameters: Parameters,
        variance: Sequence[float] | np.ndarray,
        total_variance: float,
        snapshots: dict[str, str] | None = None,
    ):
        described = describe(parameters)
        if not isinstance(matrix, np.ndarray):
            raise wrong("matrix", matrix, "an array (K, M)")
        right = matrix.dtype == np.float32 and matrix.flags.c_contiguous
        self.matrix = matrix if right else np.ascontiguousarray(matrix, np.float32)
        self.names = tuple(name for name, _ in described)
        self.shapes = tuple(shape for _, shape in described)
        self.variance = np.asarray(variance, np.float64)
        self.total_variance = float(total_variance)
        self.snapshots = dict(snapshots or {})

    @classmethod
    def of(
        cls, snapshots: Snapshots, parameters: Parameters | None = None, components: int = 32
    ) -> "Basis":
        """Return the principal components of snapshots.

        Args:
            snapshots: a folder of snapshots, or a ``SnapshotFolder``.
            parameters: the network to which they must belong, in whose order the columns are;
                see ``SnapshotFolder``.
            components: K.

        Raises:
            InputError: as in ``SnapshotFolder``, or if there are fewer than K + 1 snapshots, one is
                not finite, or they span fewer than K directions.

        It reads all snapshots three times and holds P and a few MB per thread in memory.
        """
        integer("components", components)
        folder = _opened(snapshots, parameters)
        with folder:
            matrix, variance, total = principal_components(folder, components)
        return cls(matrix, folder.described, variance, total, folder.identities())

    @property
    def explained(self) -> np.ndarray:
        """The share of the snapshots' variance along each row, (K,)."""
        return self.variance / self.total_variance

    @cached_property
    def checksum(self) -> str:
        """The SHA-256 of the matrix: its float32 numbers, row by row."""
        return hashlib.sha256(self.matrix.reshape(-1).data).hexdigest()

    def check(self, parameters: Parameters) -> None:
        """Raise ``InputError`` unless the columns belong to ``parameters``, in the same order."""
        pairs = zip(self.names, self.shapes, strict=True)
        own = [f"{name} {shape}" for name, shape in pairs] + ["nothing more"]
        expected = [f"{name} {shape}" for name, shape in describe(parameters)] + ["nothing more"]
        for got, wanted in zip(own, expected, strict=False):
            if got != wanted:
                raise InputError(
                    f"the basis is of another network or order: expected {wanted}, got {got}"
                )

    def difference(self, snapshots: SnapshotFolder) -> str | None:
        """Describe how ``snapshots`` differ from those of the basis; None if they do not."""
        before, after = self.snapshots, snapshots.identities()
        for names, how in (
            (sorted(after.keys() - before.keys()), "without {}"),
            ([name for name in after if after[name] != before.get(name)], "of another {}"),
            (sorted(before.keys() - after.keys()), "with {}, which is gone"),
        ):
            if names:
                return f"the one there was made {how.format(names[0])}"
        return None

    def save(self, path: str | Path) -> None:
        """Write the basis to ``path``, completely or not at all.

        A ``.safetensors`` file holds all of it; a ``.npy`` file, as MindSpore's dim_reduce reads
        it, the matrix alone.
        """
        with whole_file(_path(path), "the basis") as temporary:
            if temporary.suffix == ".npy":
                np.save(temporary, self.matrix, allow_pickle=False)
                return
            about = {
                "parameters": list(zip(self.names, self.shapes, strict=True)),
                "variance": self.variance.tolist(),
                "total_variance": self.total_variance,
                "snapshots": self.snapshots,
            }
            save_file({"matrix": self.matrix}, temporary, {BASIS: json.dumps(about)})

    @classmethod
    def load(cls, path: str | Path, parameters: Parameters | None = None) -> "Basis":
        """Return the basis in a file.

        Args:
            path: a ``.safetensors`` file, or a ``.npy`` file, whose columns are taken in the order
                of ``parameters``; its variances are NaN.
            parameters: the network to which the basis must belong; None accepts any.

        Raises:
            InputError: if the file is missing or damaged, or the basis is of another network or
                order.
        """
        path = _path(path)
        if not path.is_file():
            raise InputError(f"no basis at {path}")
        if path.suffix == ".npy":
            return cls._bare(path, parameters)
        text = metadata(path).get(BASIS)
        if text is None:
            raise InputError(f"{path} is no basis; expected a file that Basis.save has written")
        _, shape, start = places(path)["matrix"]
        matrix = np.memmap(path, np.float32, "r", start, shape)
        about = json.loads(text)
        described = [(name, tuple(shape)) for name, shape in about.pop("parameters")]
        basis = cls(matrix, described, **about)
        if parameters is not None:
            basis.check(parameters)
        return basis

    @classmethod
    def _bare(cls, path: Path, parameters: Parameters | None) -> "Basis":
        """Return the basis whose matrix is in a ``.npy`` file."""
        if parameters is None:
            raise InputError(f"{path} holds a matrix alone; expected parameters, to name columns")
        described = describe(parameters)
        try:
            matrix = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            raise InputError(f"the basis {path} is damaged and cannot be read ({error})") from error
        numbers = sum(math.prod(shape) for _, shape in described)
        if matrix.ndim != 2 or matrix.shape[1] != numbers or not len(matrix):
            raise InputError(
                f"the matrix {path} is {matrix.dtype} {matrix.shape}; expected (K, {numbers}): "
                "the basis of this network"
            )
        check_orthonormal(matrix, f"the rows of {path}")
        return cls(matrix, described, np.full(len(matrix), np.nan), np.nan)


def check_orthonormal(matrix: np.ndarray, what: str) -> None:
    """Raise ``InputError`` unless P P^T is I for P (K, M), to 1e-3."""
    # In float64: for a row of 25.6 million numbers (ResNet-50) a float32 sum was off by 0.0012.
    products = np.zeros((len(matrix), len(matrix)))
    for start in range(0, matrix.shape[1], _COLUMNS):
        part = np.asarray(matrix[:, start : start + _COLUMNS], np.float64)
        products += part @ part.T
    off = float(np.abs(products - np.eye(len(matrix))).max())
    if not off <= ORTHONORMAL:
        raise InputError(
            f"{what} are not orthonormal: P P^T differs from I by {off:.2g}; expected at most "
            f"{ORTHONORMAL}"
        )


def basis_of(
    path: str | Path,
    snapshots: Snapshots,
    parameters: Parameters | None = None,
    components: int = 32,
    report: Callable[[str], None] | None = None,
) -> Basis:
    """Return the basis in ``path``; make and save it first unless it is that of ``snapshots``.

    Args:
        path: a ``.safetensors`` file, or a ``.npy`` file, which is always made again.
        snapshots: as in ``Basis.of``, like the next two.
        parameters: the network to which they must belong.
        components: K.
        report: called on the first rank with a sentence on what was done, for example ``print``.

    Raises:
        InputError: as in ``Basis.of``, or if the basis is damaged or of another network; it is then
            kept.

    A basis of other snapshots (a file was added, removed or changed) or with another number of
    components is made again. With several ranks, the first one makes it and the others load it: all
    must see the same folders and make the same call.
    """
    integer("components", components)
    path, report = _path(path), report or (lambda text: None)
    rank, ranks = rank_and_size()
    if ranks == 1:
        return _loaded_or_made(path, _opened(snapshots, parameters), components, report)
    basis = None
    with together():
        if rank == 0:
            basis = _loaded_or_made(path, _opened(snapshots, parameters), components, report)
    return basis or Basis.load(path, parameters)


def _loaded_or_made(
    path: Path, folder: SnapshotFolder, components: int, report: Callable[[str], None]
) -> Basis:
    why = ""
    if path.exists() and path.suffix != ".npy":
        saved = Basis.load(path, folder.described)
        reason = saved.difference(folder)
        if len(saved.matrix) != components:
            reason = f"the one there had {len(saved.matrix)} components"
        if reason is None:
            report(f"labkit: basis loaded from {path}, nothing computed")
            return saved
        why = f" ({reason})"
    basis = Basis.of(folder, None, components)
    basis.save(path)
    report(
        f"labkit: basis of {components} components computed from {len(folder)} snapshots, "
        f"{basis.explained.sum():.1%} of their variance; saved to {path}{why}"
    )
    return basis


def _opened(snapshots: Snapshots, parameters: Parameters | None) -> SnapshotFolder:
    if not isinstance(snapshots, SnapshotFolder):
        return SnapshotFolder(snapshots, parameters)
    if parameters is not None and describe(parameters) != snapshots.described:
        return SnapshotFolder(snapshots.folder, parameters)
    return snapshots


def _path(path: str | Path) -> Path:
    if Path(path).suffix not in (".safetensors", ".npy"):
        raise wrong("path of a basis", str(path), "a .safetensors or .npy file")
    return Path(path)
