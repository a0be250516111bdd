"""The archives of ILSVRC2012 (ImageNet), read in place: the images of each class.

A class is named by its WordNet id (wnid), such as n01440764. The training archive holds one
uncompressed .tar per class. The validation archive holds numbered images without classes; the
development kit lists the class of each number as an id from 1 to 1000, and its MATLAB file maps ids
to wnids. The order of the ids is not the alphabetical order of the wnids, by which image folders
are labelled.
Source: https://image-net.org/challenges/LSVRC/2012, readme.txt of the development kit.
"""

import io
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from labkit.base.files import read_text
from labkit.data.sources.archives import Member
from labkit.data.sources.download import Published
from labkit.data.sources.members import opened, read, tar_members
from labkit.errors import InputError

MAX_IMAGE = 64 << 20  # bytes
META = "meta.mat"
TRUTH = "ILSVRC2012_validation_ground_truth.txt"
WNID = re.compile(r"n\d{8}", re.ASCII)

_MAX_TEXT = 16 << 20  # bytes
# JPEG, and PNG: n02105855_2933.JPEG is a PNG file.
_SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")


@dataclass(frozen=True)
class Dataset:
    """The official archives, and what they must hold.

    Attributes:
        title: name of the data set in messages.
        folder: name of its folder under `datasets`.
        train: archive of the training images.
        val: archive of the validation images, which are spread evenly over the classes.
        devkit: development kit, with the class of each validation image.
        classes: number of classes.
        train_images: number of training images.
        val_images: number of validation images.
        per_class: fewest and most training images of a class.
    """

    title: str
    folder: str
    train: Published
    val: Published
    devkit: Published
    classes: int
    train_images: int
    val_images: int
    per_class: tuple[int, int]

    def images(self, split: str) -> tuple[int, int]:
        """Return the fewest and the most images that a class of ``split`` has."""
        return self.per_class if split == "train" else (self.val_images // self.classes,) * 2


ILSVRC2012 = Dataset(
    title="ImageNet ILSVRC2012",
    folder="ImageNet",
    train=Published(
        "ILSVRC2012_img_train.tar",
        147_897_477_120,
        {
            "sha256": "b08200a27a8e34218a0e58fde36b0fe8f73bc377f4acea2d91602057c3ca45bb",
            "md5": "1d675b47d978889d74fa0da5fadfb00e",
        },
    ),
    val=Published(
        "ILSVRC2012_img_val.tar",
        6_744_924_160,
        {
            "sha256": "c7e06a6c0baccf06d8dbeb6577d71efff84673a5dbdd50633ab44f8ea0456ae0",
            "md5": "29b22e2961454d5413ddabcf34fc5622",
        },
    ),
    devkit=Published(
        "ILSVRC2012_devkit_t12.tar.gz", 2_568_145, {"md5": "fa75699e90414af021442c21a62c3abf"}
    ),
    classes=1000,
    train_images=1_281_167,
    val_images=50_000,
    per_class=(732, 1300),
)


def train_classes(members: Iterable[Member], label: str, classes: int) -> dict[str, Member]:
    """Return the inner archive of each class, by wnid.

    Raises:
        InputError: if a member is not called `nXXXXXXXX.tar`, or there are not exactly ``classes``
            of them; the message begins with ``label``.
    """
    archives = {}
    for member in members:
        wnid = member.name.removesuffix(".tar")
        if not WNID.fullmatch(wnid) or wnid == member.name:
            raise InputError(f"{label}: member {member.name!r}; expected nXXXXXXXX.tar")
        archives[wnid] = member
    if len(archives) != classes:
        raise InputError(f"{label} holds {len(archives)} classes; expected {classes}")
    return dict(sorted(archives.items()))


def train_images(archive: Member) -> Iterator[tuple[str, bytes]]:
    """Yield (file name, content) of the images in the inner archive of a class.

    Raises:
        InputError: if a member is not called `nXXXXXXXX_N.JPEG` after its class, is not a JPEG or
            PNG, or is cut short.
    """
    wnid = archive.name.removesuffix(".tar")
    with archive.open() as stream, tar_members(stream, archive.name) as images:
        for image in images:
            if not re.fullmatch(rf"{wnid}_\d+\.JPEG", image.name, re.ASCII):
                raise InputError(
                    f"{archive.name}: member {image.name!r}; expected {wnid}_NUMBER.JPEG"
                )
            yield image.name, read_image(image)


def val_images(members: Iterable[Member], label: str, images: int) -> list[Member]:
    """Return the validation images in the order of their numbers, 1 to ``images``.

    Raises:
        InputError: if a member has another name, or a number is missing; the message begins with
            ``label``.
    """
    names = [f"ILSVRC2012_val_{number:08d}.JPEG" for number in range(1, images + 1)]
    by_name = {member.name: member for member in members}
    known = set(names)
    for name in by_name:
        if name not in known:
            raise InputError(f"{label}: member {name!r}; expected {names[0]} to {names[-1]}")
    for name in names:
        if name not in by_name:
            raise InputError(f"{label} holds no {name}")
    return [by_name[name] for name in names]


def read_image(member: Member) -> bytes:
    """Return the bytes of an image; raise ``InputError`` if they do not begin as JPEG or PNG."""
    content = read(member, MAX_IMAGE)
    if not content.startswith(_SIGNATURES):
        raise InputError(f"member {member.name!r} is not a JPEG (it begins with {content[:8]!r})")
    return content


def labels_of_devkit(path: str | os.PathLike, images: int, classes: int) -> list[str]:
    """Return the wnid of validation image 1, 2, 3 ... from the development kit.

    Raises:
        InputError: if SciPy is missing, or the kit does not have ``images`` labels, the same number
            for each of the ``classes``.
    """
    with opened(path, (META, TRUTH)) as members:
        meta, truth = (read(members[name], _MAX_TEXT) for name in (META, TRUTH))
    wnids = _wnids(meta, f"{path}: {META}", classes)
    labels = []
    for number, line in enumerate(truth.decode("ascii", "replace").split(), 1):
        if not line.isdecimal() or int(line) not in wnids:
            raise InputError(f"{path}: {TRUTH}: {line!r} in line {number}; expected 1 to {classes}")
        labels.append(wnids[int(line)])
    return _even(labels, f"{path}: {TRUTH}", images, classes)


def labels_of_text(path: str | os.PathLike, images: int, classes: int) -> list[str]:
    """Return the wnid of validation image 1, 2, 3 ... from a text file with one per line.

    Raises:
        InputError: if the file cannot be read, or does not have ``images`` wnids, the same number
            for each of the ``classes``.
    """
    try:
        labels = read_text(path).split()
    except (OSError, InputError) as error:
        raise InputError(f"labels {path} cannot be read ({error})") from error
    for number, wnid in enumerate(labels, 1):
        if not WNID.fullmatch(wnid):
            raise InputError(f"{path}: {wnid!r} for image {number}; expected nXXXXXXXX")
    return _even(labels, str(path), images, classes)


def _wnids(meta: bytes, label: str, classes: int) -> dict[int, str]:
    """Return the wnid of each id, 1 to ``classes``, from the MATLAB file."""
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise InputError(
            f"{label} is a MATLAB file, which SciPy reads. Install it (pip install scipy), or "
            "give --labels, a text file with the nXXXXXXXX of each validation image"
        ) from error
    try:
        synsets = loadmat(io.BytesIO(meta), squeeze_me=True)["synsets"]
        # Synsets with children are groups of classes.
        wnids = {
            int(synset["ILSVRC2012_ID"]): str(synset["WNID"])
            for synset in synsets
            if int(synset["num_children"]) == 0
        }
    except Exception as error:  # SciPy's reader raises many types if this is not a MATLAB file
        raise InputError(f"{label} cannot be read ({error!r})") from error
    wrong = [wnid for wnid in wnids.values() if not WNID.fullmatch(wnid)]
    if set(wnids) != set(range(1, classes + 1)) or len(set(wnids.values())) < classes or wrong:
        raise InputError(f"{label} names {len(wnids)} classes; expected {classes}, numbered from 1")
    return wnids


def _even(labels: list[str], label: str, images: int, classes: int) -> list[str]:
    if len(labels) != images:
        raise InputError(f"{label}: {len(labels)} labels; expected {images}")
    counts = Counter(labels)
    if set(counts.values()) != {images // classes}:
        wnid, count = counts.most_common()[0]
        raise InputError(
            f"{label}: {len(counts)} classes, {count} images of {wnid}; expected {classes} classes "
            f"with {images // classes} each"
        )
    return labels
