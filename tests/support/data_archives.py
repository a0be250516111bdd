"""Small data files and archives, built like the official ones."""

import gzip
import hashlib
import io
import sys
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

from tests.support import modules
from tests.support.image_files import encode, picture

SCRIPTS = Path(__file__).resolve().parents[2] / "data_scripts"


def load(name):
    """Import a script of `data_scripts` as a new module."""
    if str(SCRIPTS) not in sys.path:
        sys.path.append(str(SCRIPTS))  # for what the scripts share
    return modules.load(SCRIPTS / f"{name}.py", f"{name}_script")


def tar(files, mode="w") -> bytes:
    """Return a .tar of (name, content) pairs."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as archive:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def published(name, content: bytes) -> dict:
    """Describe ``content`` as its publisher would."""
    sums = {"sha256": hashlib.sha256(content).hexdigest()}
    return {"name": name, "size": len(content), "sums": sums}


def image(seed, size=(32, 32), format="JPEG") -> bytes:
    """Return a small RGB picture, different for each ``seed``."""
    return encode(Image.fromarray(picture(*size[::-1], seed=seed)), format)


def tree(folder) -> dict[str, bytes]:
    """Return every file below ``folder``, except temporary ones."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file() and not path.relative_to(folder).parts[0].startswith(".")
    }


def tree_sums(folder) -> dict[str, str]:
    """Return the SHA-256 of what ``tree`` returns."""
    return {name: hashlib.sha256(content).hexdigest() for name, content in tree(folder).items()}


def write_idx(path: Path, array: np.ndarray) -> Path:
    """Write images (count, rows, columns) or labels (count,), uint8; gzipped if named .gz."""
    header = np.array([{3: 2051, 1: 2049}[array.ndim], *array.shape], ">u4").tobytes()
    content = header + array.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def write_set(folder: Path, usage: str, images: np.ndarray, labels: np.ndarray, end="") -> None:
    """Write a set, "train" or "test", under MNIST's names into a folder."""
    prefix = {"train": "train", "test": "t10k"}[usage]
    folder.mkdir(parents=True, exist_ok=True)
    write_idx(folder / f"{prefix}-images-idx3-ubyte{end}", images)
    write_idx(folder / f"{prefix}-labels-idx1-ubyte{end}", labels)
