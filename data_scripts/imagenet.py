"""Prepare ImageNet (ILSVRC2012) as an image folder: `train/nXXXXXXXX/*` and `val/nXXXXXXXX/*`.

    python data_scripts/imagenet.py --source /archives                   from the three archives
    python data_scripts/imagenet.py --source /archives --first 10        the first ten classes
    python data_scripts/imagenet.py --source /archives --classes n01440764,n01443537 --only val
    python data_scripts/imagenet.py --source /archives --folders ilsvrc ilsvrc_eval

ImageNet is available with an account at https://image-net.org, so nothing is downloaded unless you
give the address of a folder that you may use. That folder, or one of your own, holds

    ILSVRC2012_img_train.tar       147 897 477 120 bytes, 1000 archives of 732 to 1300 images
    ILSVRC2012_img_val.tar           6 744 924 160 bytes, 50 000 images
    ILSVRC2012_devkit_t12.tar.gz     2 568 145 bytes, the class of each of the 50 000 images

Each is verified once, by size and checksum. The development kit has the classes in a MATLAB file,
which SciPy reads (`pip install scipy`); or give --labels, a text file with the classes of images 1,
2, 3 ... 50 000, one nXXXXXXXX per line. The inner archives are read in place. The images go to
`datasets/ImageNet` of the project unless --out names another folder. A class is written whole or
not at all, and the next call continues an interrupted one. Downloads are removed when everything
that was requested is made. The images are not changed: a handful are CMYK, and n02105855_2933.JPEG
is a PNG.
"""

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.base.arguments import wrong
from labkit.data.sources import ilsvrc
from labkit.data.sources.archives import Member
from labkit.data.sources.classfolders import MANIFEST, ClassFolders
from labkit.data.sources.download import DOWNLOADS, Published, Say, fetch, is_address, verify
from labkit.data.sources.ilsvrc import ILSVRC2012, Dataset
from labkit.data.sources.members import tar_members
from labkit.data.sources.script import exit_code, new_parser, refuse_full, staging, unreceived
from labkit.errors import InputError, nearest, refuse_unknown

PROJECT = Path(__file__).resolve().parent.parent
SPLITS = ("train", "val")
ATTEMPTS = 10


@dataclass(frozen=True)
class Request:
    """What to make: the folder of each split, which classes, and where the labels are."""

    folders: dict[str, str]
    classes: tuple[str, ...]
    first: int | None
    labels: Path | None

    def archives(self, known: Dataset) -> list[Published]:
        """Return the archives that are needed."""
        needed = [getattr(known, split) for split in self.folders]
        return needed + [known.devkit] * ("val" in self.folders and self.labels is None)

    def choose(self, names: list[str]) -> list[str]:
        """Return the requested ones of all classes; raise ``InputError`` for unknown ones."""
        for wnid in self.classes:
            if wnid not in names:
                raise InputError(
                    f"unknown class {wnid!r}; expected one of {len(names)}, {names[0]} to "
                    f"{names[-1]}.{nearest(wnid, names)}"
                )
        if self.first is not None and self.first > len(names):
            raise wrong("first", self.first, f"at most {len(names)}, the number of classes")
        return [wnid for wnid in names if not self.classes or wnid in self.classes][: self.first]


def prepare(
    source: str | os.PathLike | None = None,
    out: str | os.PathLike | None = None,
    *,
    only: str | None = None,
    classes: Sequence[str] = (),
    first: int | None = None,
    labels: str | os.PathLike | None = None,
    folders: Sequence[str] = SPLITS,
    say: Say = print,
    known: Dataset = ILSVRC2012,
) -> Path:
    """Make the image folder ``out``/{train,val}/CLASS; return ``out``.

    Args:
        source: folder that holds the archives, or http(s) address of one.
        out: default: `datasets/ImageNet` of the project.
        only: "train" or "val"; None: both.
        classes: make only these classes; default: all.
        first: make only this many classes, the first in alphabetical order.
        labels: text file with the class of each validation image, instead of the development kit.
        folders: names of the two folders in ``out``.
        say: called with each line of the report.
        known: the data set; tests give a small one.

    Raises:
        InputError: if an archive is missing, damaged or not the official one, there is not enough
            disk space, or ``out`` holds other data.
    """
    request = _checked(only, classes, first, labels, folders)
    out = PROJECT / "datasets" / known.folder if out is None else Path(out)
    target = ClassFolders(out, known.title, request.folders.values(), official=True)
    if _is_complete(request, target):
        say(f"{known.title} is in {out} already, complete by number and bytes:")
    else:
        where = _checked_source(source, request.archives(known))
        with staging(out) as work:
            target = ClassFolders(out, known.title, request.folders.values(), official=True)
            job = _Job(known, request, target, work, say)
            job.convert(job.archives(where))
            _check_total(known, request, target)
            shutil.rmtree(out / DOWNLOADS, ignore_errors=True)
        say(f"{known.title} is in {out}, from {where}:")
    target.report(say)
    return out


def _checked(
    only: str | None,
    classes: Sequence[str],
    first: int | None,
    labels: str | os.PathLike | None,
    folders: Sequence[str],
) -> Request:
    """Return the request; raise ``InputError`` for invalid arguments."""
    if only is not None:
        refuse_unknown("split", only, SPLITS)
    for wnid in classes:
        if not ilsvrc.WNID.fullmatch(wnid):
            raise wrong("classes", wnid, "names nXXXXXXXX, such as n01440764")
    if first is not None and (classes or first < 1):
        raise wrong("first", first, "1 or more, and not together with classes")
    bad = [name for name in folders if not re.fullmatch(r"\w[\w.-]*", name) or name == MANIFEST]
    if bad or len(folders) != len(SPLITS) or folders[0] == folders[1]:
        raise wrong("folders", tuple(folders), "two plain names that differ")
    by_split = dict(zip(SPLITS, folders, strict=True))
    return Request(
        {split: by_split[split] for split in SPLITS if only in (None, split)},
        tuple(classes),
        first,
        None if labels is None else Path(labels),
    )


def _is_complete(request: Request, target: ClassFolders) -> bool:
    """Return whether everything requested exists; False if no earlier call recorded classes."""
    return bool(target.names) and all(
        target.whole(folder, wnid)
        for folder in request.folders.values()
        for wnid in request.choose(target.names)
    )


def _checked_source(source: str | os.PathLike | None, needed: list[Published]) -> str:
    """Return the address or folder; raise ``InputError`` unless it holds what is needed."""
    names = ", ".join(published.name for published in needed)
    if source is None:
        raise InputError(
            f"ImageNet needs an account at https://image-net.org: download {names} there, and give "
            "their folder with --source"
        )
    where = os.fspath(source)
    if not is_address(where):
        missing = [known.name for known in needed if not os.path.isfile(Path(where, known.name))]
        if missing:
            raise InputError(
                f"{where} holds no {', '.join(missing)}; expected a folder with {names}, or an "
                "address"
            )
    return where


@dataclass(frozen=True)
class _Job:
    """One call: the data set, the request, where the images go, and where they are made."""

    known: Dataset
    request: Request
    target: ClassFolders
    work: Path
    say: Say

    def archives(self, where: str) -> dict[str, Path]:
        """Return the path of each needed archive by its name, downloaded and verified."""
        folder = self.target.out / DOWNLOADS if is_address(where) else Path(where)
        needed = self.request.archives(self.known)
        paths = {published.name: folder / published.name for published in needed}
        if is_address(where):
            missing = [known for known in needed if not paths[known.name].exists()]
            whole = not self.request.classes and self.request.first is None
            # The images of all classes take the size of their archive again.
            size = sum(unreceived(known, folder) + whole * known.size for known in missing)
            refuse_full(self.target.out, size, len(missing))
        for published in needed:
            path = paths[published.name]
            if path.exists() and self.target.remembers(path):
                self.say(f"{path}: verified before")
                continue
            if is_address(where):
                address = f"{where.rstrip('/')}/{published.name}"
                fetch(published, address, folder, self.say, attempts=ATTEMPTS)
            else:
                self.say(f"verifying {path}")
                verify(path, published, self.say)
            self.target.remember(path)
        return paths

    def convert(self, archives: dict[str, Path]) -> None:
        """Make the missing classes, one after the other."""
        request, target = self.request, self.target
        with contextlib.ExitStack() as stack:
            by_split = {split: self._open(split, archives, stack) for split in request.folders}
            names = [sorted(classes) for classes in by_split.values()]
            if names[0] != names[-1] or (target.names and names[0] != target.names):
                raise InputError(f"{self.known.title}: archives and labels differ in their classes")
            target.names = names[0]
            missing = [
                (split, wnid)
                for split, folder in request.folders.items()
                for wnid in request.choose(target.names)
                if not target.whole(folder, wnid)
            ]
            members = [member for split, wnid in missing for member in by_split[split][wnid]]
            images = sum(self.known.images(split)[1] for split, _ in missing)
            refuse_full(target.out, sum(member.size for member in members), images)
            for done, (split, wnid) in enumerate(missing, 1):
                images = self._make(split, wnid, by_split[split][wnid])
                place = f"{request.folders[split]}/{wnid}"
                self.say(f"  {place}  {images} images ({done} of {len(missing)})")

    def _open(
        self, split: str, archives: dict[str, Path], stack: contextlib.ExitStack
    ) -> dict[str, list[Member]]:
        """Return for each class its one inner archive (train) or its images (val)."""
        known, labels = self.known, self.request.labels
        path = archives[getattr(known, split).name]
        stream = stack.enter_context(open(path, "rb"))
        members = stack.enter_context(tar_members(stream, str(path)))
        if split == "train":
            classes = ilsvrc.train_classes(members, str(path), known.classes)
            return {wnid: [member] for wnid, member in classes.items()}
        if labels is not None:
            wnids = ilsvrc.labels_of_text(labels, known.val_images, known.classes)
        else:
            kit = archives[known.devkit.name]
            wnids = ilsvrc.labels_of_devkit(kit, known.val_images, known.classes)
        images = ilsvrc.val_images(members, str(path), known.val_images)
        by_class: dict[str, list[Member]] = {}
        for wnid, member in zip(wnids, images, strict=True):
            by_class.setdefault(wnid, []).append(member)
        return by_class

    def _make(self, split: str, wnid: str, members: list[Member]) -> int:
        """Make one class; return the number of its images."""
        folder = self.request.folders[split]
        if split == "train":
            images = ilsvrc.train_images(members[0])
        else:
            images = ((member.name, ilsvrc.read_image(member)) for member in members)
        record = self.target.stage(self.work, folder, wnid, images)
        least, most = self.known.images(split)
        if not least <= record.images <= most:
            raise InputError(
                f"{wnid} has {record.images} images in {split}; expected {least} to {most}"
            )
        self.target.install(self.work, folder, wnid, record, self.say)
        return record.images


def _check_total(known: Dataset, request: Request, target: ClassFolders) -> None:
    folder = request.folders.get("train")
    if folder and target.count(folder)[0] == known.classes:
        images = target.count(folder)[1]
        if images != known.train_images:
            raise InputError(f"{images} training images; expected {known.train_images}")


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return 0, or 2 for bad input with its message on stderr."""
    parser = new_parser(__doc__)
    parser.add_argument("--source", help="folder that holds the archives, or its address")
    parser.add_argument("--out", help="folder to write to")
    parser.add_argument("--only", help="train or val")
    parser.add_argument("--classes", default="", help="these classes: n01440764,n01443537")
    parser.add_argument("--first", type=int, help="so many classes, in alphabetical order")
    parser.add_argument("--labels", help="text file with the class of each validation image")
    parser.add_argument("--folders", nargs=2, default=SPLITS, help="instead of train and val")
    options = parser.parse_args(arguments)
    options.classes = [wnid for wnid in options.classes.split(",") if wnid]
    return exit_code(__file__, prepare, options)


if __name__ == "__main__":
    sys.exit(main())
