"""The two files of a basis: the matrix as .npy, without pickle, and a .json with everything else.

MindSpore's ``dim_reduce`` writes the matrix alone; ``load_bare`` reads it.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from labkit.base.arguments import wrong
from labkit.base.files import whole_file
from labkit.base.input_files import open_file, read_json
from labkit.errors import InputError

if TYPE_CHECKING:
    from labkit.algorithms.subspace.basis import Basis

_FORMAT = "labkit basis 1"
# Largest difference of P P^T from I that is accepted. A basis in float32 differs by 1e-6; if it is
# not orthonormal, the residual contains a part of the subspace.
ORTHONORMAL = 1e-3
_COLUMNS = 1 << 18  # read at a time: 64 MB in float64 for 32 rows


def beside(path: str | os.PathLike) -> Path:
    """Return the path of the .json that belongs to a .npy."""
    path = Path(path)
    if path.suffix != ".npy":
        raise wrong("path of a basis", str(path), "a .npy file")
    return path.with_suffix(".json")


def exists(path: str | os.PathLike) -> bool:
    """Return whether at least one of the two files exists."""
    return beside(path).exists() or Path(path).exists()


def is_bare(path: str | os.PathLike) -> bool:
    """Return whether the matrix exists without a .json beside it."""
    return Path(path).is_file() and not beside(path).exists()


def save(basis: Basis, path: str | os.PathLike) -> None:
    """Write both files; see ``Basis.save``."""
    about = {
        "format": _FORMAT,
        "shape": list(basis.matrix.shape),
        "sha256": basis.checksum,
        "parameters": [list(pair) for pair in zip(basis.names, basis.shapes, strict=True)],
        "variance": basis.variance.tolist(),
        "total_variance": basis.total_variance,
        "snapshots": basis.snapshots,
    }
    # The .json is renamed last: its SHA-256 vouches for the matrix.
    with whole_file(beside(path), "the basis") as description:
        description.write_text(json.dumps(about, indent=1) + "\n")
        with whole_file(path, "the basis") as matrix:
            np.save(matrix, basis.matrix, allow_pickle=False)


def load(path: str | os.PathLike) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the matrix, mapped from its file, and the content of the .json.

    Raises:
        InputError: if a file is missing or damaged, or the two differ in type or shape.
    """
    about_path = beside(path)
    for file in (Path(path), about_path):
        if not file.is_file():
            raise InputError(f"no basis at {path}: {file.name} is missing")
    try:
        basis, shape, digest = _described(read_json(about_path))
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise InputError(f"{about_path} is damaged, or of no basis ({error!r})") from error
    header = _header(path)
    numbers = sum(math.prod(shape) for _, shape in basis["parameters"])
    if header.dtype != np.float32 or header.shape != shape or shape[1:] != (numbers,):
        raise InputError(
            f"the basis {path} is {header.dtype} {header.shape}; {about_path.name} says "
            f"float32 {shape} over {numbers} weights"
        )
    if header.fortran or len(basis["variance"]) != shape[0]:
        raise InputError(f"the basis {path} is not one that labkit has written")
    return _mapped(path, header), {"basis": basis, "sha256": digest}


def load_bare(path: str | os.PathLike, numbers: int) -> np.ndarray:
    """Return a matrix that no .json describes, (K, ``numbers``) float32.

    Args:
        path: the .npy file.
        numbers: M, the number of weights of the network.

    Raises:
        InputError: if the file holds no such matrix, or its rows are not orthonormal to 1e-3.
    """
    header = _header(path)
    if header.dtype not in (np.float32, np.float64) or len(header.shape) != 2:
        raise InputError(f"{path}: expected float32 (K, M), got {header.dtype} {header.shape}")
    if header.shape[1] != numbers:
        raise InputError(
            f"the matrix {path} has {header.shape[1]} columns, and the network {numbers} weights; "
            "expected the basis of this network"
        )
    matrix = _mapped(path, header)
    error = off_orthonormal(matrix)
    if not error <= ORTHONORMAL:
        raise InputError(
            f"the rows of {path} are not orthonormal: P P^T differs from I by {error:.2g}; "
            f"expected at most {ORTHONORMAL}"
        )
    plain = header.dtype == np.float32 and not header.fortran
    return matrix if plain else np.ascontiguousarray(matrix, np.float32)


def off_orthonormal(matrix: np.ndarray) -> float:
    """Return the largest entry of |P P^T - I| for P (K, M); NaN or inf where P is not finite."""
    # In float64: for a row of 25.6 million numbers (ResNet-50) a float32 sum was off by 0.0012.
    products = np.zeros((len(matrix), len(matrix)))
    for start in range(0, matrix.shape[1], _COLUMNS):
        part = np.asarray(matrix[:, start : start + _COLUMNS], np.float64)
        products += part @ part.T
    return float(np.abs(products - np.eye(len(matrix))).max())


def _mapped(path: str | os.PathLike, header: _Header) -> np.ndarray:
    """Map a matrix from its file, after checking the length of the file."""
    numbers = math.prod(header.shape)
    size, expected = Path(path).stat().st_size, header.bytes + header.dtype.itemsize * numbers
    if size != expected:
        raise InputError(
            f"the basis {path} is damaged and cannot be read ({size} bytes; expected {expected})"
        )
    if not numbers:
        raise InputError(f"the basis {path} is empty: {header.shape}; expected a row and a weight")
    order: Literal["C", "F"] = "F" if header.fortran else "C"
    return np.memmap(path, header.dtype, "r", header.bytes, header.shape, order)


def _described(about: Any) -> tuple[dict[str, Any], tuple[int, ...], str]:
    """Return the arguments of ``Basis``, the matrix's shape and SHA-256, with types checked."""
    if about["format"] != _FORMAT:
        raise ValueError(f"its format: expected {_FORMAT!r}, got {about['format']!r}")
    basis: dict[str, Any] = {
        "parameters": [(_is(str, name), _shape(shape)) for name, shape in about["parameters"]],
        "variance": [float(_is(int | float, value)) for value in _is(list, about["variance"])],
        "total_variance": float(_is(int | float, about["total_variance"])),
        "snapshots": [_is(dict, snapshot) for snapshot in _is(list, about["snapshots"])],
    }
    for snapshot in basis["snapshots"]:
        _is(str, snapshot["name"])
    return basis, _shape(about["shape"]), _is(str, about["sha256"])


class _Header(NamedTuple):
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype
    bytes: int


def _header(path: str | os.PathLike) -> _Header:
    """Return the header of a .npy file, so that it can be checked before the array is mapped.

    ``open_memmap`` trusts the header: a length of -1 with items of zero bytes ('|S0') ends the
    process with SIGFPE, a division by zero in C.
    """
    try:
        with open_file(path) as file:
            # np.save uses another version only for headers of more than 64 kB.
            if (version := np.lib.format.read_magic(file)) != (1, 0):
                raise ValueError(f"a .npy file of version {version}; expected (1, 0)")
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
            return _Header(shape, fortran, dtype, file.tell())
    # A header is parsed as Python, which raises ValueError, TokenError, MemoryError, TypeError, ...
    except Exception as error:
        raise InputError(f"the basis {path} is damaged and cannot be read ({error})") from error


def _is(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{value!r} is no {getattr(kind, '__name__', kind)}")
    return value


def _shape(value: Any) -> tuple[int, ...]:
    if not all(_is(int, length) >= 0 for length in _is(list, value)):
        raise ValueError(f"{value!r} is not a shape")
    return tuple(value)
