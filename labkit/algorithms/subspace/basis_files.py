"""The two files of a basis: the matrix as .npy, without pickle, and a .json with all the rest."""

import json
from pathlib import Path

import numpy as np

from labkit.errors import InputError
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
        about = json.loads(about_path.read_text())
        if about["format"] != _FORMAT:
            raise ValueError(f"its format is {about['format']!r}; expected {_FORMAT!r}")
        parameters = [(name, tuple(shape)) for name, shape in about["parameters"]]
        basis = {"parameters": parameters}
        basis |= {name: about[name] for name in ("variance", "total_variance", "snapshots")}
        shape, digest = tuple(about["shape"]), about["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{about_path} is damaged, or of no basis ({error!r})") from error
    try:
        matrix = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"the basis {path} is damaged and cannot be read ({error})") from error
    numbers = sum(int(np.prod(shape, dtype=np.int64)) for _, shape in parameters)
    if matrix.dtype != np.float32 or matrix.shape != shape or shape[1:] != (numbers,):
        raise InputError(
            f"the basis {path} is {matrix.dtype} {matrix.shape}; {about_path.name} speaks of "
            f"float32 {shape} over {numbers} weights"
        )
    if not matrix.flags.c_contiguous or len(basis["variance"]) != len(matrix):
        raise InputError(f"the basis {path} is not one that labkit has written")
    return matrix, {"basis": basis, "sha256": digest}
