"""The two files of a basis: the matrix as .npy, without pickle, and a .json with all the rest."""

import json
import math
from pathlib import Path

import numpy as np

from labkit.errors import InputError
from labkit.input_files import read_json
from labkit.whole_files import whole_file

_FORMAT = "labkit basis 1"


def beside(path) -> Path:
    """Return the path of the .json that belongs to a .npy."""
    path = Path(path)
    if path.suffix != ".npy":
        raise InputError(f"a basis is kept in a .npy file; {path} came")
    return path.with_suffix(".json")


def exists(path) -> bool:
    """Return whether one of the two files is there."""
    return beside(path).exists() or Path(path).exists()


def save(basis, path) -> None:
    """Write both files; see ``Basis.save``."""
    about = {
        "format": _FORMAT,
        "shape": list(basis.matrix.shape),
        "sha256": basis.checksum,
        "parameters": [list(one) for one in zip(basis.names, basis.shapes, strict=True)],
        "variance": basis.variance.tolist(),
        "total_variance": basis.total_variance,
        "snapshots": basis.snapshots,
    }
    # The .json gets its name last: it vouches for the matrix by its SHA-256.
    with whole_file(beside(path), "the basis") as description:
        description.write_text(json.dumps(about, indent=1) + "\n")
        with whole_file(path, "the basis") as matrix:
            np.save(matrix, basis.matrix, allow_pickle=False)


def load(path):
    """Return the matrix, mapped from its file, and what the .json says.

    Raises ``InputError`` where one is missing or damaged, or where type or shape differ.
    """
    about_path = beside(path)
    for one in (Path(path), about_path):
        if not one.is_file():
            raise InputError(f"no basis at {path}: {one.name} is missing")
    try:
        about = read_json(about_path)
        if about["format"] != _FORMAT:
            raise ValueError(f"its format is {about['format']!r}; expected {_FORMAT!r}")
        parameters = [(_is(str, name), _shape(shape)) for name, shape in about["parameters"]]
        basis = {
            "parameters": parameters,
            "variance": [float(_is(int | float, one)) for one in _is(list, about["variance"])],
            "total_variance": float(_is(int | float, about["total_variance"])),
            "snapshots": [_snapshot(one) for one in _is(list, about["snapshots"])],
        }
        shape, digest = _shape(about["shape"]), _is(str, about["sha256"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise InputError(f"{about_path} is damaged, or of no basis ({error!r})") from error
    try:
        # Not np.load, which takes other kinds of files too.
        matrix = np.lib.format.open_memmap(path, mode="r")
    # A header is read as Python: besides ValueError TokenError, MemoryError, TypeError and others.
    except Exception as error:
        raise InputError(f"the basis {path} is damaged and cannot be read ({error})") from error
    numbers = sum(math.prod(shape) for _, shape in parameters)
    if matrix.dtype != np.float32 or matrix.shape != shape or shape[1:] != (numbers,):
        raise InputError(
            f"the basis {path} is {matrix.dtype} {matrix.shape}; {about_path.name} speaks of "
            f"float32 {shape} over {numbers} weights"
        )
    if not matrix.flags.c_contiguous or len(basis["variance"]) != len(matrix):
        raise InputError(f"the basis {path} is not one that labkit has written")
    return matrix, {"basis": basis, "sha256": digest}


def _is(kind, value):
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{value!r} is no {getattr(kind, '__name__', kind)}")
    return value


def _shape(value) -> tuple[int, ...]:
    if not all(_is(int, length) >= 0 for length in _is(list, value)):
        raise ValueError(f"{value!r} is no shape")
    return tuple(value)


def _snapshot(value) -> dict:
    _is(str, _is(dict, value)["name"])
    return value
