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

import hashlib
import os
import sys
import urllib.parse
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from labkit.base.files import open_file
from labkit.data import idx
from labkit.data.sources.download import Say, download, is_address
from labkit.data.sources.members import opened, unpack
from labkit.data.sources.script import exit_code, new_parser, staging
from labkit.errors import InputError, nearest, refuse_unknown

PROJECT = Path(__file__).resolve().parent.parent
# The four files and the folder each belongs to.
FILES = {
    "train-images-idx3-ubyte": "train",
    "train-labels-idx1-ubyte": "train",
    "t10k-images-idx3-ubyte": "test",
    "t10k-labels-idx1-ubyte": "test",
}
ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.xz", ".tar.bz2")
MAX_DOWNLOAD = 64 << 20  # bytes; the largest official file, gzipped, has 26 421 880


@dataclass(frozen=True)
class Dataset:
    """A data set: its official sources, and the SHA-256 of its unpacked files in order of FILES."""

    title: str
    folder: str
    sources: dict[str, str]
    sums: tuple[str, str, str, str]

    @property
    def sha256(self) -> dict[str, str]:
        """The checksums by file name."""
        return dict(zip(FILES, self.sums, strict=True))


DATASETS = {
    "mnist": Dataset(
        title="MNIST",
        folder="MNIST_Data",
        sources={
            "bundled": str(PROJECT / "data_scripts" / "bundled" / "mnist"),
            # A mirror that torchvision uses too.
            "download": "https://ossci-datasets.s3.amazonaws.com/mnist/",
        },
        sums=(
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    ),
    "fashion-mnist": Dataset(
        title="Fashion-MNIST",
        folder="Fashion_MNIST",
        sources={
            "download": "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "debian": "/usr/share/datasets/fashion-mnist",
        },
        sums=(
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
    ),
}


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
    where, official = _find_source(known, source)
    out = PROJECT / "datasets" / known.folder if out is None else Path(out)
    targets = {name: out / folder / name for name, folder in FILES.items()}
    digests = _digests(targets)
    if official and digests == known.sha256:
        say(f"{known.title} is in {out} already, verified:")
    else:
        with staging(out) as folder:
            digests = _collect(known, where, official, folder, say)
            _refuse_to_replace(targets, digests, say)
            for name, target in targets.items():
                target.parent.mkdir(exist_ok=True)
                os.replace(folder / name, target)
        say(f"{known.title} is in {out}, from {where}:")
    for name, target in targets.items():
        say(f"  {target}  {target.stat().st_size} bytes  SHA-256 {digests[name]}")
    return out


def _find_source(known: Dataset, source: str | os.PathLike | None) -> tuple[str, bool]:
    """Return the address or path of a source, and whether its files must be the official ones."""
    text = next(iter(known.sources)) if source is None else os.fspath(source)
    offered = ", ".join(known.sources)
    named = {name for dataset in DATASETS.values() for name in dataset.sources}
    if text in named and text not in known.sources:
        raise InputError(
            f"{known.title} has no source {text!r}; expected {offered}, a folder, an archive or "
            "an address"
        )
    where = known.sources.get(text, text)
    if not is_address(where) and not os.path.exists(where):
        hint = "" if text in known.sources else nearest(text, known.sources)
        if text == "debian":
            hint = " To install it: apt-get install dataset-fashion-mnist"
        raise InputError(
            f"source {where} is not there; expected {offered}, a folder, an archive or an "
            f"address.{hint}"
        )
    return where, text in known.sources or is_address(where)


def _collect(known: Dataset, where: str, official: bool, folder: Path, say: Say) -> dict[str, str]:
    """Unpack the four files into ``folder`` and check them; return the SHA-256 of each."""
    place = _download(where, folder, say) if is_address(where) else where
    with opened(place, FILES) as members:
        digests = {name: unpack(members[name], folder / name, idx.MAX_BYTES) for name in FILES}
    try:
        for usage in ("train", "t10k"):
            images, labels = (
                folder / f"{usage}-{kind}-ubyte" for kind in ("images-idx3", "labels-idx1")
            )
            idx.check_pair(images, labels, size=(28, 28))
    except InputError as error:
        # Name the source: the user does not know the temporary folder.
        raise InputError(str(error).replace(f"{folder}{os.sep}", f"{where}: ")) from error
    for name, digest in digests.items():
        _judge(known, name, digest, f"{where}: {name}", official, say)
    return digests


def _judge(known: Dataset, name: str, digest: str, label: str, official: bool, say: Say) -> None:
    """Compare a checksum with the official one: raise an error if it must match, else warn."""
    expected = known.sha256[name]
    if digest == expected:
        return
    if official:
        raise InputError(f"{label}: SHA-256 {digest}; expected {expected} ({known.title})")
    for key, other in DATASETS.items():
        if digest == other.sha256[name]:
            raise InputError(
                f"{label}: this is {other.title}; expected {known.title}, or --dataset {key}"
            )
    say(
        f"warning: {label}: SHA-256 {digest} is not that of the official {known.title}; "
        "only the structure is checked"
    )


def _refuse_to_replace(targets: dict[str, Path], digests: dict[str, str], say: Say) -> None:
    """Raise ``InputError`` if an undamaged file with other content is in the way."""
    for name, digest in _digests(targets).items():
        if digest is None or digest == digests[name]:
            continue
        try:
            (idx.read_images if "images" in name else idx.read_labels)(targets[name])
        except InputError as error:
            say(f"replacing a damaged file: {error}")
            continue
        raise InputError(
            f"{targets[name]} holds other data (SHA-256 {digest}; expected {digests[name]}). "
            "Remove it, or choose another folder with --out"
        )


def _digests(paths: dict[str, Path]) -> dict[str, str | None]:
    """Return the SHA-256 of each file, None for a missing one.

    Raises:
        InputError: if a file cannot be read, or is a pipe, which may block forever, or a folder.
    """
    digests: dict[str, str | None] = {}
    for name, path in paths.items():
        try:
            with open_file(path) as file:
                digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
        except (FileNotFoundError, NotADirectoryError):
            digests[name] = None
        except OSError as error:
            raise InputError(
                f"{path} cannot be read ({error.strerror}). Remove it, or choose another folder "
                "with --out"
            ) from error
    return digests


def _download(address: str, folder: Path, say: Say) -> Path:
    """Fetch an archive, or the four gzipped files of a mirror; return the archive or folder."""
    last = PurePosixPath(urllib.parse.urlsplit(address).path).name
    if last.endswith(ARCHIVES):
        download(address, folder / last, limit=MAX_DOWNLOAD, say=say)
        return folder / last
    place = folder / "download"
    place.mkdir()
    for name in FILES:
        packed = f"{address.rstrip('/')}/{name}.gz"
        download(packed, place / f"{name}.gz", limit=MAX_DOWNLOAD, say=say)
    return place


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return 0, or 2 for bad input with its message on stderr."""
    parser = new_parser(__doc__)
    parser.add_argument("--dataset", default="mnist", help=" or ".join(DATASETS))
    parser.add_argument("--source", help="bundled, download, debian, a folder, archive or address")
    parser.add_argument("--out", help="folder to write to")
    return exit_code(__file__, prepare, parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
