"""What the data scripts share: the command's end, a download, an archive, and whole class folders.

A class folder is written under a temporary name in the same file system and then renamed, so that a
killed script leaves whole classes; the next call makes the others. Nothing that is there already is
ever replaced. `published.json` holds what publishers say of their files: names, sizes, checksums.
"""

import argparse
import contextlib
import hashlib
import json
import lzma
import os
import shutil
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from labkit.base.arguments import Parser, local_path
from labkit.base.files import locked, remove_unfinished
from labkit.errors import InputError

PROJECT = Path(__file__).resolve().parent.parent
ADVICE = "Remove it, or choose another folder with --out"
Say = Callable[[str], None]
# File name and content of each image of a class.
Images = Iterable[tuple[str, bytes]]


def published(*names: str) -> dict[str, dict]:
    """Return what is published of these data sets, by name."""
    known = json.loads(Path(__file__).with_name("published.json").read_text("utf-8"))
    return {name: known[name] for name in names}


def parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with --out that shows ``description``, the script's docstring, as it is."""
    raw = argparse.RawDescriptionHelpFormatter
    result = Parser(description=description, formatter_class=raw)
    result.add_argument("--out", help="folder to write to")
    return result


def run(
    prepare: Callable[..., Path], options: argparse.ArgumentParser, words: Sequence[str] | None
) -> int:
    """Call ``prepare`` with the parsed words; return 0, or 2 with its message on stderr."""
    try:
        chosen = vars(options.parse_args(words))
        if chosen["out"] is not None:
            chosen["out"] = local_path("--out", chosen["out"])
        prepare(**chosen)
    except (InputError, OSError) as error:
        print(f"{Path(prepare.__code__.co_filename).name}: {error}", file=sys.stderr)
        return 2
    return 0


@contextlib.contextmanager
def staging(out: Path) -> Iterator[Path]:
    """Make ``out``, lock it, and yield a temporary folder in it, which is removed at the end.

    What a killed script has left there is removed first; after an error also the folders that were
    made for ``out``.
    """
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        with locked(out, "the preparation of a data set"):
            remove_unfinished(out)
            with tempfile.TemporaryDirectory(prefix=".part-", dir=out) as folder:
                yield Path(folder)
    finally:
        for folder in made:
            with contextlib.suppress(OSError):  # not empty: the data are in it
                folder.rmdir()


def is_address(text: str | os.PathLike) -> bool:
    """Return whether ``text`` is an http(s) address and not a path."""
    return str(text).startswith(("http://", "https://"))


def download(address: str, target: Path, say: Say) -> Path:
    """Download a file to ``target``; raise ``InputError`` if that breaks off."""
    say(f"downloading {address}")
    try:
        with urllib.request.urlopen(address, timeout=30) as answer, open(target, "wb") as file:
            shutil.copyfileobj(answer, file, 1 << 20)
    except (OSError, ValueError) as error:  # URLError is an OSError
        raise InputError(
            f"{address} cannot be downloaded ({error}); without network give --source a folder or "
            "archive that holds the files"
        ) from error
    return target


def verify(path: Path, known: dict) -> None:
    """Raise ``InputError`` unless the file at ``path`` has the published size and checksums."""
    size = path.stat().st_size
    if size != known["size"]:
        raise InputError(f"{path}: {size} bytes; expected {known['size']} ({known['name']})")
    for algorithm, expected in known["sums"].items():
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, algorithm).hexdigest()
        if digest != expected:
            raise InputError(f"{path}: {algorithm.upper()} {digest}; expected {expected}")


def unpacked(path: Path, folder: Path) -> Path:
    """Return a folder that holds what ``path`` does: itself, or ``folder`` for a .zip or .tar."""
    if path.is_dir():
        return path
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                archive.extractall(folder)  # drops leading / and .. itself
        else:
            with tarfile.open(path) as tar:
                if hasattr(tarfile, "data_filter"):
                    tar.extractall(folder, filter="data")
                else:  # Python 3.11.2
                    for member in tar:
                        name, plain = PurePosixPath(member.name), member.isfile() or member.isdir()
                        if name.is_absolute() or ".." in name.parts or not plain:
                            raise InputError(f"{path}: member {member.name!r} leaves the folder")
                    tar.extractall(folder)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError) as error:
        raise InputError(
            f"{path} is not a whole archive ({error}); expected a folder, .zip or .tar"
        ) from error
    return folder


def install_class(folder: Path, images: Images, work: Path) -> int:
    """Write a whole class folder; return the number of its images."""
    part = work / folder.parent.name / folder.name
    part.mkdir(parents=True)
    for name, content in images:
        (part / name).write_bytes(content)
    count = len(os.listdir(part))
    folder.parent.mkdir(parents=True, exist_ok=True)
    os.rename(part, folder)
    return count


def held(folder: Path, least: int, most: int) -> bool:
    """Return whether a class is there; raise ``InputError`` for another number of images."""
    if not folder.exists():
        return False
    count = len(os.listdir(folder))
    if not least <= count <= most:
        expected = str(most) if least == most else f"{least} to {most}"
        raise InputError(f"{folder} holds {count} files; expected {expected}. {ADVICE}")
    return True


def report(out: Path, splits: Iterable[str], say: Say) -> None:
    """Report how many classes and images each split holds."""
    for split in splits:
        counts = [len(os.listdir(folder)) for folder in (out / split).iterdir()]
        say(f"  {out / split}  {sum(counts)} images in {len(counts)} classes")
