"""The files of snapshots: which files exist, what each holds, and where.

A ``.safetensors`` file begins with the length of its header (8 bytes) and the header (JSON: type,
shape and offset of each tensor). The package safetensors checks both against the file; the tensors
are then read at their offsets, so that several threads can read at once (the package's own slices
hold the interpreter lock and cut along rows, and a flat weight may be a single row of 100 MB).

A folder without such a file may hold the ``.ckpt`` files of a tutorial's first stage, whose tensors
are read at their offsets in the same way. Everything in them except the parameters is ignored, and
the names of the tutorials' ResNets are translated to labkit's (``labkit.nets.resnet_names``).
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from labkit.base.files import natural_order
from labkit.base.input_files import Place, open_file, parse_json
from labkit.errors import InputError
from labkit.nets.resnet_names import own_name

SUFFIX = ".safetensors"
CHECKPOINT = ".ckpt"
NOTE = "labkit"


class Header(NamedTuple):
    """The header of a file: its tensors by name, and the note that labkit added."""

    tensors: dict[str, Place]
    note: dict[str, Any]


def existing_paths(folder: Path) -> list[Path]:
    """Return ``snapshot_paths``; raise ``InputError`` if there is none."""
    if not folder.is_dir():
        raise InputError(f"no folder of snapshots at {folder}")
    paths = snapshot_paths(folder)
    if not paths:
        raise InputError(f"{folder} holds no snapshot ({SUFFIX} or {CHECKPOINT} file)")
    return paths


def snapshot_paths(folder: Path) -> list[Path]:
    """Return a folder's ``.safetensors`` files, or its ``.ckpt`` files, in their natural order."""
    # A dot begins the names of files that a killed process left half-written.
    paths = list(folder.glob(f"[!.]*{SUFFIX}")) or list(folder.glob(f"[!.]*{CHECKPOINT}"))
    return sorted(paths, key=natural_order)


def read_header(path: Path, wanted: Collection[str] | None) -> Header:
    """Return the header of a file; a checkpoint's is limited to ``wanted`` tensors, unless None."""
    if path.suffix != CHECKPOINT:
        return _header_of_snapshot(path)
    from labkit.base import checkpoint_files

    tensors = {
        name: place._replace(kind="F32") if place.kind == "Float32" else place
        for name, place in checkpoint_files.places(path, own_name).items()
        if wanted is None or name in wanted
    }
    return Header(tensors, {})


def _header_of_snapshot(path: Path) -> Header:
    """Return the header of a file, after the package safetensors has checked that it is whole."""
    from safetensors import SafetensorError, safe_open

    try:
        with open_file(path) as file, safe_open(path, "numpy"):
            length = int.from_bytes(file.read(8), "little")
            entries = parse_json(file.read(length).decode())
        note = parse_json(entries.pop("__metadata__", {}).get(NOTE, "{}"))
        if not isinstance(note, dict) or not isinstance(note.get("sha256"), str | None):
            raise ValueError(f"its note: expected an object, its sha256 a text, got {note!r}")
        tensors = {
            name: Place(
                entry["dtype"], tuple(entry["shape"]), 8 + length + entry["data_offsets"][0]
            )
            for name, entry in entries.items()
        }
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise InputError(f"the snapshot {path} is truncated or damaged ({error})") from error
    return Header(tensors, note)


def check(
    path: Path, tensors: dict[str, Place], described: list[tuple[str, tuple[int, ...]]]
) -> None:
    """Raise ``InputError`` unless a file holds exactly these parameters, all float32."""
    for name, shape in described:
        if name not in tensors:
            raise InputError(f"the snapshot {path} is of another network: it lacks {name}")
        held = tensors[name]
        if held.shape != shape or held.kind != "F32":
            raise InputError(
                f"the snapshot {path} is of another network: {name} is {held.kind} {held.shape}; "
                f"expected F32 {shape}"
            )
    more = sorted(tensors.keys() - {name for name, _ in described})
    if more:
        raise InputError(f"the snapshot {path} is of another network: it also holds {more[0]}")
