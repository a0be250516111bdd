"""Prepare CIFAR-10 or CIFAR-100 as an image folder: `train/CLASS/*.png` and `val/CLASS/*.png`.

    python data_scripts/cifar10.py                                download the official archive
    python data_scripts/cifar10.py --source cifar-10-binary.tar.gz     the archive, already here
    python data_scripts/cifar10.py --dataset cifar100             the 100 fine classes
    python data_scripts/cifar10.py --source my_images.tar.gz --out my_cifar    images of your own

The archive is the binary version of its publisher (https://www.cs.toronto.edu/~kriz/cifar.html),
verified by size, SHA-256 and MD5. Each image becomes a PNG, which is lossless, named after its
file and number: `train/airplane/data_batch_1_00029.png`. Image folders number their classes in
alphabetical order, which is that of the labels 0, 1, 2 ... Your own archives and folders hold
`train/CLASS/IMAGE` and `val/CLASS/IMAGE`, JPEG or PNG, or unpacked .bin files; their structure is
checked, and a warning says that they are not the official set.

The images go to `datasets/CIFAR10` or `datasets/CIFAR100` of the project unless `--out` names
another folder. A class is written whole or not at all; the next call continues an interrupted
download or conversion. The Python version of the archives is refused: it is a pickle, and a pickle
can execute any code.
"""

import os
import shutil
import sys
from pathlib import Path, PurePosixPath

from labkit.data.sources import cifar
from labkit.data.sources.cifar import Dataset
from labkit.data.sources.classfolders import ClassFolders
from labkit.data.sources.download import DOWNLOADS, Published, Say, fetch, is_address, verify
from labkit.data.sources.members import listed, opened
from labkit.data.sources.script import exit_code, new_parser, refuse_full, staging, unreceived
from labkit.errors import InputError, nearest, refuse_unknown

PROJECT = Path(__file__).resolve().parent.parent
SPLITS = ("train", "val")
ATTEMPTS = 5

_CIFAR100 = (
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus "
    "butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch "
    "crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo "
    "keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse "
    "mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy "
    "porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper "
    "snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television "
    "tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm"
)


DATASETS = {
    "cifar10": Dataset(
        title="CIFAR-10",
        folder="CIFAR10",
        address="https://www.cs.toronto.edu/~kriz/",
        archive=Published(
            "cifar-10-binary.tar.gz",
            170_052_171,
            {
                "sha256": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                "md5": "c32a1d4ab5d03f1284b67883e8d87530",
            },
        ),
        files={
            "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
            "val": ("test_batch.bin",),
        },
        records={"train": 10_000, "val": 10_000},
        names="batches.meta.txt",
        classes=tuple("airplane automobile bird cat deer dog frog horse ship truck".split()),
    ),
    "cifar100": Dataset(
        title="CIFAR-100",
        folder="CIFAR100",
        address="https://www.cs.toronto.edu/~kriz/",
        archive=Published(
            "cifar-100-binary.tar.gz",
            168_513_733,
            {
                "sha256": "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
                "md5": "03b5dce01913d631647c71ecec9e9cb8",
            },
        ),
        files={"train": ("train.bin",), "val": ("test.bin",)},
        records={"train": 50_000, "val": 10_000},
        names="fine_label_names.txt",
        classes=tuple(_CIFAR100.split()),
        label_bytes=2,  # coarse, fine
    ),
}


def prepare(
    dataset: str = "cifar10",
    source: str | os.PathLike | None = None,
    out: str | os.PathLike | None = None,
    say: Say = print,
) -> Path:
    """Make the image folder ``out``/{train,val}/CLASS of ``dataset``; return ``out``.

    Args:
        dataset: a name of ``DATASETS``.
        source: None or "download"; the http(s) address of a mirror folder or archive; the official
            archive, or the folder it is in; or an archive or folder of your own, with
            train/CLASS/IMAGE and val/CLASS/IMAGE or unpacked .bin files.
        out: default: the data set's folder under `datasets` of the project.
        say: called with each line of the report.

    Raises:
        InputError: if the source is missing, incomplete, damaged or not what it should be, there is
            not enough disk space, or ``out`` holds other data.
    """
    refuse_unknown("dataset", dataset, DATASETS)
    known = DATASETS[dataset]
    where = known.address if source in (None, "download") else os.fspath(source)
    if not is_address(where) and os.path.isfile(Path(where) / known.archive.name):
        where = str(Path(where) / known.archive.name)
    form = "official" if is_address(where) else _form_of(known, where)
    out = PROJECT / "datasets" / known.folder if out is None else Path(out)
    if form == "official" and _is_complete(known, out):
        say(f"{known.title} is in {out} already, verified:")
    else:
        with staging(out) as work:
            folders = ClassFolders(out, known.title, SPLITS, form == "official")
            if form == "official":
                _convert(known, folders, work, where, say)
            else:
                _copy(known, folders, work, where, form, say)
        say(f"{known.title} is in {out}, from {where}:")
    ClassFolders(out, known.title, SPLITS, form == "official").report(say)
    return out


def _form_of(known: Dataset, where: str) -> str:
    """Return what is at a path: "official" archive, folder of "records", or "images"."""
    if not os.path.exists(where):
        raise InputError(
            f"source {where} is not there; expected download, a folder, an archive or an address."
            f"{nearest(where, ['download'])}"
        )
    with listed(where) as members:
        paths = [PurePosixPath(member.name) for member in members]
    last = {path.name for path in paths}
    if not last.isdisjoint(name for files in known.files.values() for name in files):
        return "records" if Path(where).is_dir() else "official"
    if any(len(path.parts) > 2 and path.parts[-3] in SPLITS for path in paths):
        return "images"
    other = [key for key, known in DATASETS.items() if not last.isdisjoint(known.files["val"])]
    if other:
        hint = f"this is {DATASETS[other[0]].title}, --dataset {other[0]}; expected"
    elif any("data_batch" in name for name in last) or {"train", "test", "meta"} <= last:
        hint = "it is the Python version, a pickle, which can execute any code; expected"
    else:
        hint = "expected train/CLASS/IMAGE and val/CLASS/IMAGE, or"
    raise InputError(f"{where} holds no {known.title}: {hint} {known.archive.name}")


def _is_complete(known: Dataset, out: Path) -> bool:
    """Return whether ``out`` has every class of the official set, by checksum of its images."""
    folders = ClassFolders(out, known.title, SPLITS, official=True)
    return all(folders.whole(split, name, True) for split in SPLITS for name in known.classes)


def _convert(known: Dataset, folders: ClassFolders, work: Path, where: str, say: Say) -> None:
    """Make the missing classes from the official archive."""
    out = folders.out
    missing = [s for s in SPLITS for name in known.classes if not folders.whole(s, name)]
    images = sum(map(known.per_class, missing))
    more = unreceived(known.archive, out / DOWNLOADS) if is_address(where) else 0
    refuse_full(out, images * cifar.MAX_PNG + more, images)
    if is_address(where):
        name = known.archive.name
        address = where if where.endswith((".tar.gz", ".tgz")) else f"{where.rstrip('/')}/{name}"
        archive = fetch(known.archive, address, out / DOWNLOADS, say, attempts=ATTEMPTS)
    else:
        archive = Path(where)
        verify(archive, known.archive, say)
    with opened(archive, known.members) as members:
        images = cifar.images_of_records(known, members, str(archive))
    for (split, name), made in images.items():
        if not folders.whole(split, name, content=True):
            record = folders.stage(work, split, name, made)
            folders.install(work, split, name, record, say)
    shutil.rmtree(out / DOWNLOADS, ignore_errors=True)


def _copy(
    known: Dataset, folders: ClassFolders, work: Path, where: str, form: str, say: Say
) -> None:
    """Copy the user's own images; all are checked before the first is put into its place."""
    with listed(where) as members:
        refuse_full(folders.out, sum(member.size for member in members), len(members))
        images = {} if form == "records" else cifar.images_of_files(known, members, where)
    if form == "records":
        with opened(where, known.members) as by_name:
            images = cifar.images_of_records(known, by_name, where)
    staged = {key: folders.stage(work, *key, made) for key, made in images.items()}
    for (split, name), record in staged.items():
        held = folders.records.get(f"{split}/{name}", record)
        if held != record and folders.whole(split, name):
            raise InputError(
                f"{folders.out / split / name} holds other images ({held.images}; expected "
                f"{record.images} from {where}). Remove {folders.out}, or choose another folder "
                "with --out"
            )
    for (split, name), record in staged.items():
        if folders.records.get(f"{split}/{name}") != record or not folders.whole(split, name, True):
            folders.install(work, split, name, record)
    say(
        f"warning: {where} is not the official {known.title} ({known.archive.name}); only the "
        "structure is checked"
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return 0, or 2 for bad input with its message on stderr."""
    parser = new_parser(__doc__)
    parser.add_argument("--dataset", default="cifar10", help=" or ".join(DATASETS))
    parser.add_argument("--source", help="download, an address, an archive or a folder")
    parser.add_argument("--out", help="folder to write to")
    return exit_code(__file__, prepare, parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
