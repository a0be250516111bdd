"""Prepare MNIST or Fashion-MNIST: four IDX files, unpacked and verified by SHA-256.

    python data_scripts/mnist.py                                    the bundled MNIST, no network
    python data_scripts/mnist.py --source my_files.zip --out my_digits       files of your own
    python data_scripts/mnist.py --dataset fashion-mnist            download from its publisher
    python data_scripts/mnist.py --dataset fashion-mnist --source debian     the packaged copy

The files go to `datasets/MNIST_Data/{train,test}` or `datasets/Fashion_MNIST/{train,test}` of the
project unless `--out` names another folder. Bundled, packaged and downloaded files must be the
official ones to the bit. Your own files may differ: their structure is checked, and a warning is
printed. A file is written whole or not at all, and other data is never overwritten.
"""

import gzip
import hashlib
import os
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

from _common import (
    ADVICE,
    PROJECT,
    Say,
    download,
    is_address,
    parser,
    published,
    run,
    staging,
    unpacked,
)

from labkit.data import idx
from labkit.errors import InputError, nearest, refuse_unknown

# The four files and the folder each belongs to.
FILES = {
    "train-images-idx3-ubyte": "train",
    "train-labels-idx1-ubyte": "train",
    "t10k-images-idx3-ubyte": "test",
    "t10k-labels-idx1-ubyte": "test",
}
DATASETS = published("mnist", "fashion-mnist")


def prepare(
    dataset: str = "mnist",
    source: str | os.PathLike | None = None,
    out: str | os.PathLike | None = None,
    say: Say = print,
) -> Path:
    """Put the four files of ``dataset`` into ``out``/train and ``out``/test; return ``out``.

    Args:
        dataset: a name of ``DATASETS``.
        source: "bundled", "download" or "debian" if the data set has it (default: the first it
            has), the http(s) address of a mirror folder or archive, or a folder, .zip or .tar of
            your own. Files are found by name at any depth, plain or gzipped.
        out: default: the data set's folder under `datasets` of the project.
        say: called with each line of the report.

    Raises:
        InputError: if the source is missing, incomplete, damaged or not what it should be, the
            folder cannot be written, or ``out`` holds other data.
    """
    refuse_unknown("dataset", dataset, DATASETS)
    known = DATASETS[dataset]
    text = next(iter(known["sources"])) if source is None else os.fspath(source)
    where = known["sources"].get(text, text)
    where = str(PROJECT / where) if text == "bundled" else where
    official = text in known["sources"] or is_address(where)
    if not is_address(where) and not Path(where).exists():
        install = " To install it: apt-get install dataset-fashion-mnist" * (text == "debian")
        raise InputError(
            f"source {where} is not there; expected {', '.join(known['sources'])}, a folder, an "
            f"archive or an address.{install or nearest(text, known['sources'])}"
        )
    out = PROJECT / "datasets" / known["folder"] if out is None else Path(out)
    targets = {name: out / folder / name for name, folder in FILES.items()}
    if official and {n: _sha256(p) for n, p in targets.items() if p.exists()} == known["sha256"]:
        say(f"{known['title']} is in {out} already, verified:")
    else:
        with staging(out) as work:
            files = _collect(known, where, official, work, say)
            for name, path in files.items():
                if targets[name].exists() and _sha256(targets[name]) != _sha256(path):
                    raise InputError(f"{targets[name]} holds other data than {where}. {ADVICE}")
            for name, path in files.items():
                targets[name].parent.mkdir(exist_ok=True)
                os.replace(path, targets[name])
        say(f"{known['title']} is in {out}, from {where}:")
    for path in targets.values():
        say(f"  {path}  {path.stat().st_size} bytes  SHA-256 {_sha256(path)}")
    return out


def _collect(known: dict, where: str, official: bool, work: Path, say: Say) -> dict[str, Path]:
    """Unpack the four files into ``work`` and check them; return their paths by name."""
    place = Path(where)
    if is_address(where) and where.endswith((".zip", ".tar", ".tgz", ".tar.gz")):
        place = download(where, work / Path(where).name, say)
    elif is_address(where):
        place = work / "download"
        place.mkdir()
        for name in FILES:
            download(f"{where.rstrip('/')}/{name}.gz", place / f"{name}.gz", say)
    place = unpacked(place, work / "archive")
    files = {name: work / name for name in FILES}
    for name, target in files.items():
        spelled = name.replace("-idx", "?idx")  # train-images.idx3-ubyte is as frequent
        found = [p for end in ("", ".gz") for p in place.rglob(spelled + end) if p.is_file()]
        try:
            copies = {path: _content(path) for path in found}
        except (EOFError, OSError, zlib.error) as error:
            raise InputError(f"{where}: {name}.gz cannot be unpacked ({error})") from error
        if len(set(copies.values())) != 1:  # a popular archive holds each file twice
            held = ", ".join(str(path.relative_to(place)) for path in found)
            raise InputError(f"{where}: expected one {name}, got {held or 'none'}")
        target.write_bytes(copies[found[0]])
        digest, expected = _sha256(target), known["sha256"][name]
        if digest == expected:
            continue
        if official:
            raise InputError(f"{where}: {name}: SHA-256 {digest}; expected {expected}")
        for key, other in DATASETS.items():
            if digest == other["sha256"][name]:
                raise InputError(f"{where}: this is {other['title']}, --dataset {key}")
        say(
            f"warning: {where}: {name}: SHA-256 {digest} is not that of the official "
            f"{known['title']}; only the structure is checked"
        )
    try:
        for images, labels in zip(*[iter(files.values())] * 2, strict=True):
            idx.read_pair(images, labels)
    except InputError as error:
        # Name the source: the user does not know the temporary folder.
        raise InputError(str(error).replace(f"{work}{os.sep}", f"{where}: ")) from error
    return files


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    return gzip.decompress(content) if path.suffix == ".gz" else content


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 2 for bad input with its message on stderr."""
    options = parser(__doc__)
    options.add_argument("--dataset", default="mnist", help=" or ".join(DATASETS))
    about = "bundled, download, debian, a folder, archive or address"
    options.add_argument("--source", type=os.path.expanduser, help=about)
    return run(prepare, options, words)


if __name__ == "__main__":
    sys.exit(main())
