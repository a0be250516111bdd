"""The basis of the subspace: computed from snapshots, and kept in a file for later runs."""

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from labkit.algorithms.subspace import basis_files
from labkit.algorithms.subspace.components import principal_components
from labkit.algorithms.subspace.snapshot_folder import SnapshotFolder, describe, difference
from labkit.base.arguments import integer, names_checked, wrong
from labkit.errors import InputError
from labkit.ranks.cluster import rank_and_size, together

_HASHED = 2**24  # bytes of the matrix at a time
# A network, its Parameters, or (name, shape) of each.
Parameters = Any
Snapshots = str | Path | SnapshotFolder


class Basis:
    """K orthonormal directions in the space of a network's M trainable weights.

    Args:
        matrix: P (K, M), with orthonormal rows, the largest variance first.
        parameters: those to which the columns belong: a network, Parameters, or pairs
            (name, shape).
        variance: (K,), the variance of the snapshots along each row.
        total_variance: variance of the snapshots over all M weights.
        snapshots: name, bytes and SHA-256 of each snapshot.

    Attributes:
        matrix: P (K, M) float32; a loaded basis reads it from the file on demand.
        names: names of the parameters, in the order of P's columns; each parameter is flattened
            row by row.
        shapes: shapes of the parameters, in the same order.
        variance: (K,), the variance of the snapshots along each row, with divisor N - 1.
        total_variance: variance of the snapshots over all M weights.
        snapshots: name, bytes and SHA-256 of each snapshot from which the basis was made.

    The coordinates of weights w are P w, (K,); P^T P (w - mean) is the part of w - mean that the
    basis can express.
    """

    @names_checked
    def __init__(
        self,
        matrix: np.ndarray,
        parameters: Parameters,
        variance: Sequence[float] | np.ndarray,
        total_variance: float,
        snapshots: Sequence = (),
    ):
        described = describe(parameters)
        if not isinstance(matrix, np.ndarray):
            raise wrong("matrix", matrix, "an array (K, M)")
        # The format of the files: a matrix that is mapped from a file is not copied.
        right = matrix.dtype == np.float32 and matrix.flags.c_contiguous
        self.matrix = matrix if right else np.ascontiguousarray(matrix, np.float32)
        self.names = tuple(name for name, _ in described)
        self.shapes = tuple(shape for _, shape in described)
        self.variance = np.asarray(variance, np.float64)
        self.total_variance = float(total_variance)
        self.snapshots = list(snapshots)

    @classmethod
    @names_checked
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
            InputError: as in ``SnapshotFolder`` and its ``identities``, or if there are fewer than
                K + 1 snapshots, one is not finite, or they span fewer than K directions.

        It reads all snapshots three times and holds P and a few MB per thread in memory.
        """
        integer("components", components)
        snapshots = _opened(snapshots, parameters)
        return cls._of(snapshots, snapshots.identities(), components)

    @classmethod
    def _of(cls, snapshots: SnapshotFolder, identities: list, components: int) -> "Basis":
        with snapshots:
            matrix, variance, total = principal_components(snapshots, components)
        return cls(matrix, snapshots.described, variance, total, identities)

    @property
    def explained(self) -> np.ndarray:
        """The share of the snapshots' variance along each row, (K,)."""
        return self.variance / self.total_variance

    @cached_property
    def checksum(self) -> str:
        """The SHA-256 of the matrix: its float32 numbers, row by row."""
        digest = hashlib.sha256()
        flat = self.matrix.reshape(-1)
        for start in range(0, flat.size, _HASHED // 4):
            digest.update(flat[start : start + _HASHED // 4].data)
        return digest.hexdigest()

    def check(self, parameters: Parameters) -> None:
        """Raise ``InputError`` unless the columns belong to ``parameters``, in the same order."""
        own = list(zip(self.names, self.shapes, strict=True))
        others = describe(parameters)
        for (name, shape), (other, other_shape) in zip(own, others, strict=False):
            if (name, shape) != (other, other_shape):
                raise InputError(
                    f"the basis is of another network or order: expected {other} {other_shape}, "
                    f"got {name} {shape}"
                )
        if len(own) != len(others):
            counts = f"expected {len(others)} parameters, got {len(own)}"
            raise InputError(f"the basis is of another network: {counts}")

    def difference(self, snapshots: SnapshotFolder) -> str | None:
        """Describe how ``snapshots`` differ from those of the basis; None if they do not."""
        return difference(self.snapshots, snapshots.identities())

    def save(self, path: str | Path) -> None:
        """Write the matrix to ``path`` (.npy), and all other data to the .json beside it.

        Both are written under temporary names and renamed. A save that is killed leaves the old
        pair, the new pair, two files that ``load`` refuses to pair, or a complete matrix alone.
        """
        basis_files.save(self, path)

    @classmethod
    @names_checked
    def load(cls, path: str | Path, parameters: Parameters | None = None) -> "Basis":
        """Return the basis in ``path`` (.npy) and the .json beside it, read without pickle.

        A .npy alone, as MindSpore's dim_reduce writes it, is accepted if ``parameters`` say what
        its columns are; its variances are NaN.

        Args:
            path: the .npy file.
            parameters: the network to which the basis must belong; None accepts any.

        Raises:
            InputError: if one of the two files is missing or damaged, they do not belong together
                (type, shape or SHA-256), or the basis is of another network or order.
        """
        if parameters is not None and basis_files.is_bare(path):
            described = describe(parameters)
            numbers = sum(math.prod(shape) for _, shape in described)
            matrix = basis_files.load_bare(path, numbers)
            return cls(matrix, described, np.full(len(matrix), np.nan), np.nan)
        matrix, about = basis_files.load(path)
        basis = cls(matrix, **about["basis"])
        if parameters is not None:
            basis.check(parameters)
        if basis.checksum != about["sha256"]:
            raise InputError(
                f"the basis {path} is damaged, or of another .json: its SHA-256 is not the one "
                f"in {basis_files.beside(path)}"
            )
        return basis


@names_checked
def basis_of(
    path: str | Path,
    snapshots: Snapshots,
    parameters: Parameters | None = None,
    components: int = 32,
    report: Callable[[str], None] | None = None,
) -> Basis:
    """Return the basis in ``path``; make and save it first unless it is that of ``snapshots``.

    Args:
        path: the .npy file.
        snapshots: as in ``Basis.of``, like the next two.
        parameters: the network to which they must belong.
        components: K.
        report: called on the first rank with a sentence on what was done, for example ``print``.

    Raises:
        InputError: as in ``Basis.of``, or if the basis is of another network; it is then kept.

    A basis that is damaged, is of other snapshots (a file was added, removed or changed) or has
    another number of components is made again. Each call reads all snapshots to identify them
    (0.9 s for 400 MB on two cores; making the basis takes five times as long). With several ranks,
    the first one makes it and the others load it: all must see the same folders and make the same
    call.
    """
    integer("components", components)
    report = report or (lambda text: None)
    rank, ranks = rank_and_size()
    if ranks == 1:
        return _made(path, snapshots, parameters, components, report)
    with together():
        basis = None if rank else _made(path, snapshots, parameters, components, report)
    return basis or Basis.load(path, parameters)


def _made(
    path: str | Path,
    snapshots: Snapshots,
    parameters: Parameters | None,
    components: int,
    report: Callable[[str], None],
) -> Basis:
    """``basis_of`` in one process."""
    snapshots = _opened(snapshots, parameters)
    there = basis_files.exists(path)  # before anything is read: refuses a wrong file name
    identities, why = snapshots.identities(), ""
    if there:
        saved, reason = _saved(path, snapshots.described, identities, components)
        if saved is not None:
            report(f"labkit: basis loaded from {path}, nothing computed")
            return saved
        why = f" ({reason})"
    basis = Basis._of(snapshots, identities, components)
    basis.save(path)
    report(
        f"labkit: basis of {components} components computed from {len(snapshots)} snapshots, "
        f"{basis.explained.sum():.1%} of their variance; saved to {path}{why}"
    )
    return basis


def _saved(
    path: str | Path, described: Iterable, identities: list, components: int
) -> tuple[Basis | None, str | None]:
    """Return (the basis in ``path``, None), or (None, the reason why it cannot be used)."""
    try:
        basis = Basis.load(path)
    except InputError as damage:
        return None, str(damage)
    basis.check(described)
    if len(basis.matrix) != components:
        return None, f"the one there had {len(basis.matrix)} components"
    reason = difference(basis.snapshots, identities)
    return (None, reason) if reason else (basis, None)


def _opened(snapshots: Snapshots, parameters: Parameters | None) -> SnapshotFolder:
    if not isinstance(snapshots, SnapshotFolder):
        return SnapshotFolder(snapshots, parameters)
    if parameters is not None and describe(parameters) != snapshots.described:
        return SnapshotFolder(snapshots.folder, parameters)
    return snapshots
