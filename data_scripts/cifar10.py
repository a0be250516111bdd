"""Prepare CIFAR-10 or CIFAR-100 as an image folder: `train/CLASS/*.png` and `val/CLASS/*.png`.

    python data_scripts/cifar10.py                                download the official archive
    python data_scripts/cifar10.py --source cifar-10-binary.tar.gz     the archive, already here
    python data_scripts/cifar10.py --dataset cifar100             the 100 fine classes
    python data_scripts/cifar10.py --source my_images.tar.gz --out my_cifar    images of your own

The archive is the binary version of its publisher (https://www.cs.toronto.edu/~kriz/cifar.html, by
A. Krizhevsky), verified by size and checksum. Each image becomes a PNG, which is lossless, named
after its file and number: `train/airplane/data_batch_1_00029.png`. Image folders number their
classes in alphabetical order, which is that of the labels 0, 1, 2 ... Your own archives and folders
hold `train/CLASS/IMAGE` and `val/CLASS/IMAGE`, JPEG or PNG, or unpacked .bin files; their structure
is checked, and a warning says that they are not the official set.

The images go to `datasets/CIFAR10` or `datasets/CIFAR100` of the project unless `--out` names
another folder. A class is written whole or not at all; the next call continues an interrupted
conversion.
"""

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from _common import (
    ADVICE,
    PROJECT,
    Images,
    Say,
    download,
    held,
    install_class,
    is_address,
    parser,
    published,
    report,
    run,
    staging,
    unpacked,
    verify,
)
from PIL import Image

from labkit.errors import InputError, nearest, refuse_unknown

SPLITS = ("train", "val")
SIDE = 32
ADDRESS = "https://www.cs.toronto.edu/~kriz/"
DATASETS = published("cifar10", "cifar100")


def prepare(
    dataset: str = "cifar10",
    source: str | os.PathLike | None = None,
    out: str | os.PathLike | None = None,
    say: Say = print,
) -> Path:
    """Make the image folder ``out``/{train,val}/CLASS of ``dataset``; return ``out``.

    Args:
        dataset: a name of ``DATASETS``.
        source: None or "download"; the official archive, its http(s) address, or the folder it is
            in; or an archive or folder of your own.
        out: default: the data set's folder under `datasets` of the project.
        say: called with each line of the report.

    Raises:
        InputError: if the source is missing, incomplete, damaged or not what it should be, or
            ``out`` holds other data.
    """
    refuse_unknown("dataset", dataset, DATASETS)
    known = DATASETS[dataset]
    archive, counts = known["archive"], known["per_class"]
    out = PROJECT / "datasets" / known["folder"] if out is None else Path(out)
    where = ADDRESS + archive["name"] if source in (None, "download") else os.fspath(source)
    path = Path(where)
    if (path / archive["name"]).is_file():
        path = path / archive["name"]
    sized = path.is_file() and path.stat().st_size == archive["size"]
    official = is_address(where) or sized or path.name == archive["name"]
    names = [(split, name) for split in SPLITS for name in known["classes"].split()]
    if official and all(held(out / s / name, counts[s], counts[s]) for s, name in names):
        say(f"{known['title']} is in {out} already, complete by the number of images:")
    else:
        if not is_address(where) and not path.exists():
            raise InputError(
                f"source {where} is not there; expected download, a folder, an archive or an "
                f"address.{nearest(where, ['download'])}"
            )
        with staging(out) as work:
            if is_address(where):
                path = download(where, work / archive["name"], say)
            if official:
                verify(path, archive)
                _convert(known, unpacked(path, work / "archive"), where, out, work)
            else:
                _take(known, unpacked(path, work / "archive"), where, out, work)
                say(f"warning: {where} is not the official {known['title']} ({archive['name']})")
        say(f"{known['title']} is in {out}, from {where}:")
    report(out, SPLITS, say)
    return out


def _convert(known: dict, place: Path, where: str, out: Path, work: Path) -> None:
    """Make the missing classes from the record files.

    A record is label bytes, then the red, the green and the blue plane, each row by row.
    """
    first = known["label_bytes"]
    for split in SPLITS:
        # By file: labels (n,) and images (n, 32, 32, 3), uint8.
        batches: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for file in known["files"][split]:
            found, length = list(place.rglob(file)), first + 3 * SIDE * SIDE
            if len(found) != 1:
                raise InputError(f"{where} holds {len(found)} files {file}; expected one")
            content = np.fromfile(found[0], np.uint8)
            if content.size % length:
                raise InputError(f"{where}: {file}: {content.size} bytes; expected n x {length}")
            rows = content.reshape(-1, length)
            images = rows[:, first:].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
            batches[file] = rows[:, first - 1], images
        count = known["per_class"][split]
        for label, name in enumerate(known["classes"].split()):
            shown = sum(int((labels == label).sum()) for labels, _ in batches.values())
            if shown != count:
                raise InputError(f"{where}: {shown} images of {name} in {split}; expected {count}")
            if not held(out / split / name, count, count):
                install_class(out / split / name, _as_png(batches, label), work)


def _as_png(batches: dict[str, tuple[np.ndarray, np.ndarray]], label: int) -> Images:
    """Yield (file name, PNG) of each image with ``label``: `data_batch_1_00029.png` is number 29.

    The names sort in the order of the images.
    """
    for file, (labels, images) in batches.items():
        for index in np.flatnonzero(labels == label):
            packed = io.BytesIO()
            Image.fromarray(np.ascontiguousarray(images[index])).save(packed, "PNG")
            yield f"{file.removesuffix('.bin')}_{index:05d}.png", packed.getvalue()


def _take(known: dict, place: Path, where: str, out: Path, work: Path) -> None:
    """Take the user's own record files or images; all are checked before the first appears."""
    if any((out / split).exists() for split in SPLITS):
        raise InputError(f"{out} holds images already, perhaps others. {ADVICE}")
    if any(place.rglob(known["files"]["val"][0])):
        return _convert(known, place, where, out, work)
    roots = [path.parent for path in place.rglob("train") if (path.parent / "val").is_dir()]
    if len(roots) != 1:
        raise InputError(
            f"{where} holds no {known['title']}: expected train/CLASS/IMAGE and val/CLASS/IMAGE, "
            f"or {known['archive']['name']} (its Python version is a pickle, which is not read)"
        )
    classes = set(known["classes"].split())
    for split in SPLITS:
        names = {path.name for path in (roots[0] / split).iterdir()}
        if names != classes:
            odd = ", ".join(sorted(names ^ classes))
            raise InputError(f"{where}: {split} and {known['title']} differ in classes: {odd}")
        for name in names:
            install_class(work / "own" / split / name, _checked(roots[0] / split / name), work)
    for split in SPLITS:
        os.rename(work / "own" / split, out / split)


def _checked(folder: Path) -> Images:
    """Yield (file name, content) of the images; each must be whole, of 32 x 32 pixels and RGB."""
    for path in sorted(folder.iterdir()):
        try:
            with Image.open(path, formats=("JPEG", "PNG")) as image:
                image.load()
        except Exception as error:  # Pillow raises many types for damaged images
            raise InputError(f"{path} is not a whole JPEG or PNG ({error})") from error
        if (*image.size, image.mode) != (SIDE, SIDE, "RGB"):
            raise InputError(f"{path} is {image.size} {image.mode}; expected {SIDE} x {SIDE} RGB")
        yield path.name, path.read_bytes()


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 2 for bad input with its message on stderr."""
    options = parser(__doc__)
    options.add_argument("--dataset", default="cifar10", help=" or ".join(DATASETS))
    about = "download, an address, an archive or a folder"
    options.add_argument("--source", type=os.path.expanduser, help=about)
    return run(prepare, options, words)


if __name__ == "__main__":
    sys.exit(main())
