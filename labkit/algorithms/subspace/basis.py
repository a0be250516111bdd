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
    check_network,
    describe,
    mapped,
)
from labkit.base.arguments import wrong
from labkit.base.files import whole_file
from labkit.errors import InputError
from labkit.ranks.cluster import rank_and_size, together

# A network, its Parameters, or (name, shape) of each.
Parameters = Any


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
        snapshots: ``SnapshotFolder.checksum`` of the snapshots from which it was made.

    Raises:
        InputError: if the matrix is not (K, M).
    """

    def __init__(
        self,
        matrix: np.ndarray,
        parameters: Parameters,
        variance: Sequence[float] | np.ndarray,
        total_variance: float,
        snapshots: str = "",
    ):
        described = describe(parameters)
        numbers = sum(math.prod(shape) for _, shape in described)
        if matrix.ndim != 2 or matrix.shape[1] != numbers or not len(matrix):
            expected = f"an array (K, {numbers}), a column for every weight"
            raise wrong("matrix of a basis", f"{matrix.dtype} {matrix.shape}", expected)
        self.matrix = np.require(matrix, np.float32, "C")
        self.names = tuple(name for name, _ in described)
        self.shapes = tuple(shape for _, shape in described)
        self.variance = np.asarray(variance, np.float64)
        self.total_variance, self.snapshots = float(total_variance), snapshots

    @classmethod
    def of(
        cls, folder: str | Path, parameters: Parameters | None = None, components: int = 32
    ) -> "Basis":
        """Return the principal components of the snapshots in a folder.

        Args:
            folder: a folder of snapshots.
            parameters: the network to which they must belong, in whose order the columns are;
                see ``SnapshotFolder``.
            components: K.

        Raises:
            InputError: as in ``SnapshotFolder``, or if there are fewer than K + 1 snapshots, one is
                not finite, or they span fewer than K directions.

        It reads all snapshots three times and holds P and a few MB per thread in memory.
        """
        snapshots = SnapshotFolder(folder, parameters)
        matrix, variance, total = principal_components(snapshots, components)
        return cls(matrix, snapshots.described, variance, total, snapshots.checksum())

    @property
    def explained(self) -> np.ndarray:
        """The share of the snapshots' variance along each row, (K,)."""
        return self.variance / self.total_variance

    @cached_property
    def checksum(self) -> str:
        """The SHA-256 of the matrix: its float32 numbers, row by row."""
        return hashlib.sha256(self.matrix.reshape(-1).data).hexdigest()

    def check(self, parameters: Parameters) -> None:
        """Raise ``InputError`` unless the columns belong to ``parameters``, in any order."""
        own = dict(zip(self.names, self.shapes, strict=True))
        check_network("the basis", own, dict(describe(parameters)))

    def save(self, path: str | Path) -> None:
        """Write the basis to ``path``, completely or not at all.

        A ``.safetensors`` file holds all of it; a ``.npy`` file, as MindSpore's dim_reduce reads
        it, the matrix alone.
        """
        with whole_file(_path(path), "the basis") as temporary:
            if temporary.suffix == ".npy":
                np.save(temporary, self.matrix)
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
            InputError: if the file is missing or damaged, or the basis is of another network.
        """
        path = _path(path)
        if not path.is_file():
            raise InputError(f"no basis at {path}")
        if path.suffix == ".npy":
            if parameters is None:
                raise InputError(f"{path} is a matrix alone; expected parameters, to name columns")
            try:
                matrix = np.load(path, mmap_mode="r")
            except (ValueError, EOFError) as error:
                raise InputError(f"{path} is damaged and cannot be read ({error})") from error
            return cls(matrix, parameters, np.full(len(matrix), np.nan), np.nan)
        arrays, texts = mapped(path)
        if BASIS not in texts:
            raise InputError(f"{path} is no basis; expected a file that Basis.save has written")
        about = json.loads(texts[BASIS])
        described = [tuple(pair) for pair in about.pop("parameters")]
        basis = cls(arrays["matrix"], described, **about)
        if parameters is not None:
            basis.check(parameters)
        return basis


def basis_from(
    path: str | Path | None,
    folder: str | Path | None,
    parameters: Parameters,
    components: int,
    report: Callable[[str], None] = print,
) -> Basis:
    """Return the basis that MindSpore's two settings ask for; the first of several ranks makes it.

    Args:
        path: pca_mat_path, a ``.npy`` or ``.safetensors`` file. If it exists, it is loaded and
            nothing is computed; otherwise it is made. None: pca_mat.safetensors beside the
            snapshots, made again if these or the number of components are others.
        folder: weight_load_dir, a folder of snapshots, or None.
        parameters: the network to which the basis must belong.
        components: K.
        report: called on the first rank with a sentence that says what was done.

    Raises:
        InputError: if there is neither, the basis is of another network or, in ``path``, of another
            size, and as in ``Basis.of``.
    """
    basis, file = None, Path(path or Path(folder or "") / "pca_mat.safetensors")
    with together():
        # The first rank decides: another may not see the file that it sees, or has just made.
        if rank_and_size()[0] == 0:
            if folder is None and not (path and file.exists()):
                raise InputError(
                    f"dim_reduce needs weights to make its basis of: weight_load_dir is None, and "
                    f"pca_mat_path {path} is not a file; expected the folder of the first stage's "
                    "snapshots, or a basis"
                )
            basis = Basis.load(file, parameters) if file.exists() else None
            if basis and path is None:
                same = basis.snapshots == SnapshotFolder(folder or "", parameters).checksum()
                basis = basis if same and len(basis.matrix) == components else None
            elif basis and len(basis.matrix) != components:
                expected = f"{len(basis.matrix)}, the number in the basis in {file}"
                raise wrong("n_components", components, expected)
            if basis:
                report(f"labkit: basis loaded from {file}, nothing computed")
            else:
                basis = Basis.of(folder or "", parameters, components)
                basis.save(file)
                report(
                    f"labkit: basis of {components} components computed from the snapshots in "
                    f"{folder}, {basis.explained.sum():.1%} of their variance; saved to {file}"
                )
    return basis or Basis.load(file, parameters)


def _path(path: str | Path) -> Path:
    if Path(path).suffix not in (".safetensors", ".npy"):
        raise wrong("path of a basis", str(path), "a .safetensors or .npy file")
    return Path(path)
