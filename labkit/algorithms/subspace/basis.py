"""The basis of the subspace: computed from snapshots, and kept in a file for later runs.

A ``.safetensors`` file holds all of it; a ``.npy`` file, as MindSpore's ``dim_reduce`` keeps it,
the matrix alone.
"""

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor
from safetensors.numpy import save_file

from labkit.algorithms.subspace.components import principal_components
from labkit.algorithms.subspace.snapshots import (
    BASIS,
    SnapshotFolder,
    check_network,
    describe,
    mapped,
)
from labkit.base.arguments import local_path, wrong
from labkit.base.files import whole_file
from labkit.errors import InputError
from labkit.ranks.cluster import rank_and_size, together
from labkit.steps.state import bounds

# A network, its Parameters, or (name, shape) of each.
Parameters = Any
_COLUMNS = 1 << 18  # read at a time: 64 MB in float64 for 32 rows


class Basis:
    """K orthonormal directions in the space of a network's M trainable weights.

    Args:
        matrix: P (K, M), the largest variance first; kept as float32.
        parameters: those to which the columns belong, each flattened row by row: a network,
            Parameters, or pairs (name, shape).
        variance: (K,), that of the snapshots along each row, with divisor N - 1.
        total_variance: that of the snapshots over all M weights.
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
    def of(cls, folder: str | Path, parameters: Parameters, components: int = 32) -> "Basis":
        """Return the K = ``components`` principal components of a ``SnapshotFolder``.

        Raises:
            InputError: as in ``SnapshotFolder``, or if there are fewer than K + 1 snapshots, one is
                not finite, or they span fewer than K directions.
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
        """Write the basis to a ``.safetensors`` or ``.npy`` file."""
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
    def load(cls, path: str | Path, parameters: Parameters) -> "Basis":
        """Return the basis in a file, of the network with ``parameters``.

        The columns of a ``.npy`` file are taken in their order; its variances are NaN.

        Raises:
            InputError: if the file is missing or damaged, or the basis is of another network.
        """
        path = _path(path)
        if path.suffix == ".npy":
            try:
                matrix = np.load(path, mmap_mode="r")
            except (ValueError, EOFError, OSError) as error:
                raise InputError(f"{path} cannot be read: {error}") from error
            return cls(matrix, parameters, np.full(len(matrix), np.nan), np.nan)
        arrays, texts = mapped(path)
        if BASIS not in texts:
            raise InputError(f"{path} is no basis; expected a file that Basis.save has written")
        about = json.loads(texts[BASIS])
        basis = cls(arrays["matrix"], [tuple(pair) for pair in about.pop("parameters")], **about)
        basis.check(parameters)
        return basis


def basis_from(
    path: str | Path | None,
    folder: str | Path | None,
    parameters: Parameters,
    components: int,
    report: Callable[[str], None] = print,
) -> Basis:
    """Return the basis that MindSpore's two settings ask for; the first rank makes and reports it.

    ``path`` is pca_mat_path: a basis there is loaded, and nothing is computed; otherwise it is made
    of the snapshots in ``folder``, weight_load_dir. None is pca_mat.safetensors beside these, which
    is made again if they, or the number of components, are others.

    Raises:
        InputError: if there is neither, the basis in ``path`` is of another network or size, and as
            in ``Basis.of``.
    """
    basis: Basis | None = None
    file = local_path("pca_mat_path", path or Path(folder or "") / "pca_mat.safetensors")
    with together():
        # The first rank decides: another may not see the file that it sees, or has just made.
        if rank_and_size()[0] == 0:
            if (path or folder) and file.exists():
                basis = Basis.load(file, parameters)
            elif folder is None:
                raise InputError(
                    f"no basis: weight_load_dir is None, and pca_mat_path {path} is not a file; "
                    "expected the folder of the first stage's snapshots, or a basis"
                )
            if basis and not path:
                given = SnapshotFolder(folder or "", parameters).checksum(), components
                basis = basis if given == (basis.snapshots, len(basis.matrix)) else None
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


class Shard:
    """This rank's components of a basis, in the order of the optimizer's parameters.

    ``tensor`` is (L, M) float32, L = ceil(K / ranks); rows beyond the K components are zero.
    """

    def __init__(self, basis: Basis, parameters: Sequence[Parameter]):
        if not isinstance(basis, Basis):
            raise wrong("basis", basis, "a Basis, as Basis.load and Basis.of return")
        basis.check(parameters)
        self.components, self.numbers = basis.matrix.shape
        # In float64: for a row of 25.6 million numbers (ResNet-50) a float32 sum was off by 0.0012.
        products = np.zeros((self.components, self.components))
        for start in range(0, self.numbers, _COLUMNS):
            part = np.asarray(basis.matrix[:, start : start + _COLUMNS], np.float64)
            products += part @ part.T
        off = float(np.abs(products - np.eye(self.components)).max())
        if not off <= 1e-3:  # then the residual would contain a part of the subspace
            found = f"P P^T - I up to {off:.2g}"
            raise InputError(f"rows of the basis: expected orthonormal, got {found}")
        rank, self.ranks = rank_and_size()
        self.rows = math.ceil(self.components / self.ranks)
        self.first = rank * self.rows
        own = basis.matrix[self.first : self.first + self.rows]
        if basis.names != tuple(parameter.name for parameter in parameters):
            held = bounds([math.prod(shape) for shape in basis.shapes])
            columns = dict(zip(basis.names, held, strict=True))
            own = np.concatenate([own[:, slice(*columns[p.name])] for p in parameters], axis=1)
        if len(own) < self.rows:
            own = np.pad(own, ((0, self.rows - len(own)), (0, 0)))
        self.tensor = Tensor(np.ascontiguousarray(own))

    def of(self, coefficients: np.ndarray) -> Tensor:
        """Return this rank's columns (N, L) of coefficients (N, K)."""
        padded = np.zeros((len(coefficients), self.ranks * self.rows), np.float32)
        padded[:, : self.components] = coefficients
        return Tensor(np.ascontiguousarray(padded[:, self.first : self.first + self.rows]))


def _path(path: str | Path) -> Path:
    if local_path("path", path).suffix not in (".safetensors", ".npy"):
        raise wrong("path of a basis", str(path), "a .safetensors or .npy file")
    return local_path("path", path)
