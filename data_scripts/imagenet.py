"""Prepare ImageNet (ILSVRC2012) as an image folder: `train/nXXXXXXXX/*` and `val/nXXXXXXXX/*`.

    python data_scripts/imagenet.py --source /archives                   from the three archives
    python data_scripts/imagenet.py --source /archives --first 10        the first ten classes
    python data_scripts/imagenet.py --source /archives --only val
    python data_scripts/imagenet.py --source /archives --folders ilsvrc ilsvrc_eval

ImageNet is available with an account at https://image-net.org, so nothing is downloaded. The folder
holds

    ILSVRC2012_img_train.tar       147 897 477 120 bytes, 1000 archives of 732 to 1300 images
    ILSVRC2012_img_val.tar           6 744 924 160 bytes, 50 000 images
    ILSVRC2012_devkit_t12.tar.gz     2 568 145 bytes, the class of each of the 50 000 images

Each is verified by size and checksum before it is read. A class is named by its WordNet id (wnid).
The development kit numbers the classes in another order, in a MATLAB file, which SciPy reads (`pip
install scipy`); or give --labels, a text file with the classes of images 1, 2, 3 ... 50 000, one
nXXXXXXXX per line. The inner archives are read in place. The images go to `datasets/ImageNet` of
the project unless --out names another folder. A class is written whole or not at all, and the next
call continues an interrupted one. The images are not changed: a handful are CMYK, and
n02105855_2933.JPEG is a PNG.
"""

import io
import os
import sys
import tarfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from _common import (
    ADVICE,
    PROJECT,
    Images,
    Say,
    held,
    install_class,
    parser,
    published,
    report,
    run,
    staging,
    verify,
)

from labkit.base.arguments import integer, wrong
from labkit.errors import InputError, refuse_unknown

SPLITS = ("train", "val")
META = "meta.mat"
TRUTH = "ILSVRC2012_validation_ground_truth.txt"
ILSVRC2012 = published("imagenet")["imagenet"]


def prepare(
    source: str | os.PathLike | None = None,
    out: str | os.PathLike | None = None,
    *,
    only: str | None = None,
    first: int | None = None,
    labels: str | os.PathLike | None = None,
    folders: Sequence[str] = SPLITS,
    say: Say = print,
    known: dict = ILSVRC2012,
) -> Path:
    """Make the image folder ``out``/{train,val}/CLASS; return ``out``.

    Args:
        source: folder that holds the archives.
        out: default: `datasets/ImageNet` of the project.
        only: "train" or "val"; None: both.
        first: make only this many classes, the first in alphabetical order.
        labels: text file with the class of each validation image, instead of the development kit.
        folders: names of the two folders in ``out``.
        say: called with each line of the report.
        known: the data set; tests give a small one.

    Raises:
        InputError: if an archive is missing, damaged or not the official one, or ``out`` holds
            other data.
    """
    if only is not None:
        refuse_unknown("split", only, SPLITS)
    if first is not None:
        integer("first", first, 1, known["classes"])
    if any(os.path.basename(name) != name for name in folders) or len(set(folders)) < 2:
        raise wrong("folders", tuple(folders), "two plain names that differ")
    out = PROJECT / "datasets" / known["folder"] if out is None else Path(out)
    splits = {s: out / f for s, f in zip(SPLITS, folders, strict=True) if only in (None, s)}
    if first is None and all(_is_there(known, *item) for item in splits.items()):
        say(f"{known['title']} is in {out} already, complete by the number of images:")
    else:
        archives = _archives(known, source, splits, labels)
        with staging(out) as work:
            for name, path in archives.items():
                say(f"verifying {path}")
                verify(path, known["archives"][name])
            wnids = _labels(known, archives.get("devkit"), labels) if "val" in splits else []
            for split, folder in splits.items():
                with tarfile.open(archives[split]) as archive:
                    by_class = _inner(archive) if split == "train" else _numbered(archive, wnids)
                    names = sorted(by_class)[:first]
                    for done, wnid in enumerate(names, 1):
                        if not held(folder / wnid, *known["per_class"][split]):
                            count = install_class(folder / wnid, by_class[wnid], work)
                            of = f"{done} of {len(names)}"
                            say(f"  {folder.name}/{wnid}  {count} images ({of})")
        say(f"{known['title']} is in {out}, from {source}:")
    report(out, [folder.name for folder in splits.values()], say)
    return out


def _is_there(known: dict, split: str, folder: Path) -> bool:
    """Return whether all classes are there, with all of their images."""
    names = os.listdir(folder) if folder.is_dir() else []
    whole = all(held(folder / name, *known["per_class"][split]) for name in names)
    if len(names) != known["classes"]:
        return False
    images = sum(len(os.listdir(folder / name)) for name in names)
    expected = known["images"][split]
    if images != expected:
        raise InputError(f"{folder} holds {images} images; expected {expected}. {ADVICE}")
    return whole


def _archives(
    known: dict,
    source: str | os.PathLike | None,
    splits: dict[str, Path],
    labels: str | os.PathLike | None,
) -> dict[str, Path]:
    """Return the paths of the archives that are needed, by their names in `published.json`."""
    needed = [*splits, *["devkit"] * ("val" in splits and labels is None)]
    names = [known["archives"][name]["name"] for name in needed]
    if source is None:
        raise InputError(
            "ImageNet needs an account at https://image-net.org: download "
            f"{', '.join(names)} there, and give their folder with --source"
        )
    missing = [name for name in names if not Path(source, name).is_file()]
    if missing:
        raise InputError(f"{source} holds no {', '.join(missing)}")
    return {name: Path(source, file) for name, file in zip(needed, names, strict=True)}


def _inner(archive: tarfile.TarFile) -> dict[str, Images]:
    """Return the training images of each class, read from its inner archive when needed."""

    def images(member: tarfile.TarInfo) -> Images:
        with tarfile.open(fileobj=archive.extractfile(member)) as inner:
            for image in inner:
                yield image.name, inner.extractfile(image).read()

    return {member.name.removesuffix(".tar"): images(member) for member in archive}


def _numbered(archive: tarfile.TarFile, wnids: list[str]) -> dict[str, Images]:
    """Return the validation images of each class; the names of the files have their numbers."""
    by_class: dict[str, list[tarfile.TarInfo]] = {}
    members = sorted(archive, key=lambda member: member.name)
    for wnid, member in zip(wnids, members, strict=True):
        by_class.setdefault(wnid, []).append(member)
    return {
        wnid: ((member.name, archive.extractfile(member).read()) for member in members)
        for wnid, members in by_class.items()
    }


def _labels(known: dict, kit: Path | None, text: str | os.PathLike | None) -> list[str]:
    """Return the wnid of validation image 1, 2, 3 ..., from the development kit or a text file."""
    if text is not None:
        labels = Path(text).read_text("utf-8").split()
    else:
        try:
            from scipy.io import loadmat
        except ImportError as error:
            raise InputError(
                f"{kit} holds a MATLAB file, which SciPy reads. Install it (pip install scipy), or "
                "give --labels, a text file with the nXXXXXXXX of each validation image"
            ) from error
        with tarfile.open(kit) as archive:
            files = {Path(member.name).name: member for member in archive}
            meta, truth = (archive.extractfile(files[name]).read() for name in (META, TRUTH))
        synsets = loadmat(io.BytesIO(meta), squeeze_me=True)["synsets"]
        wnids = {int(synset["ILSVRC2012_ID"]): str(synset["WNID"]) for synset in synsets}
        labels = [wnids[int(line)] for line in truth.split()]
    counts = Counter(labels)
    each = known["images"]["val"] // known["classes"]
    if len(counts) != known["classes"] or set(counts.values()) != {each}:
        raise InputError(
            f"{text or kit}: {len(labels)} labels of {len(counts)} classes; expected "
            f"{known['images']['val']} of {known['classes']}, {each} of each"
        )
    return labels


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 2 for bad input with its message on stderr."""
    options = parser(__doc__)
    options.add_argument("--source", type=os.path.expanduser, help="folder that holds the archives")
    options.add_argument("--only", help="train or val")
    options.add_argument("--first", type=int, help="so many classes, in alphabetical order")
    options.add_argument("--labels", help="text file with the class of each validation image")
    options.add_argument("--folders", nargs=2, default=SPLITS, help="instead of train and val")
    return run(prepare, options, words)


if __name__ == "__main__":
    sys.exit(main())
