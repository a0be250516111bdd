"""An image folder that is filled class by class: `SPLIT/CLASS/*`, each class whole or absent.

A class is written into a temporary folder of the same file system, counted, recorded in
`manifest.json` and then renamed to its place. A killed program thus leaves whole classes; the next
run skips classes that are recorded and present, and makes the others. Unrecorded folders belong to
the user and are never touched.
"""

import hashlib
import os
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from labkit.base.files import read_json, write_json
from labkit.data.sources.download import Say
from labkit.errors import InputError

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Record:
    """Content of a class folder.

    Attributes:
        images: number of images.
        bytes: total size of the images.
        sha256: output of `sha256sum * | sha256sum` in the folder (LC_ALL=C).
    """

    images: int
    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        numbers = all(type(n) is int and n >= 0 for n in (self.images, self.bytes))
        if not numbers or not isinstance(self.sha256, str):
            raise ValueError(f"a class of {self.images!r} images, {self.bytes!r} bytes")


class ClassFolders:
    """The classes of one data set in ``out``, and the only way to add classes.

    Args:
        out: the image folder.
        title: name of the data set; a different data set in ``out`` is refused.
        splits: the folders that belong to the data set, such as train and val.
        official: whether the images are the published ones; a folder never mixes both kinds.

    Raises:
        InputError: if ``out`` holds other data or its manifest cannot be read.
    """

    def __init__(self, out: Path, title: str, splits: Collection[str], official: bool) -> None:
        self.out, self.title, self.official = out, title, official
        self.splits = tuple(splits)
        self.records: dict[str, Record] = {}
        self.verified: dict[str, list] = {}
        # All class names, including classes not requested yet; empty until they are known.
        self.names: list[str] = []
        self._read()
        for split in self.splits:
            self._refuse_other(split)

    def whole(self, split: str, name: str, content: bool = False) -> bool:
        """Return whether a class is recorded and present with the recorded images and bytes.

        With ``content``, the SHA-256 must agree too.
        """
        record = self.records.get(f"{split}/{name}")
        folder = self.out / split / name
        if record is None or not folder.is_dir():
            return False
        try:
            with os.scandir(folder) as entries:
                sizes = [entry.stat().st_size for entry in entries]
            if (len(sizes), sum(sizes)) != (record.images, record.bytes):
                return False
            return not content or _record_of(folder) == record
        except OSError:  # a broken link, or a file without read permission
            return False

    def stage(
        self, work: Path, split: str, name: str, images: Iterable[tuple[str, bytes]]
    ) -> Record:
        """Write the (file name, content) pairs of a class into ``work``; return its record."""
        folder = work / split / name
        folder.mkdir(parents=True)
        lines, size = {}, 0
        for file, content in images:
            if file in lines:
                raise InputError(f"{split}/{name}/{file} appears more than once")
            plain = file == os.path.basename(file) and file.isprintable()
            if not plain or file[:1] in ("", "."):
                raise InputError(f"{split}/{name}: {file!r} is not a valid image name")
            (folder / file).write_bytes(content)
            lines[file], size = hashlib.sha256(content).hexdigest(), size + len(content)
        return Record(len(lines), size, _digest(lines))

    def install(
        self, work: Path, split: str, name: str, record: Record, say: Say | None = None
    ) -> None:
        """Move a class from ``work`` to its place; replace a damaged one and report it to ``say``.

        Raises:
            InputError: if the class folder to replace holds a file with a name that the class does
                not have: the file is the user's, and would be removed.
        """
        folder = self.out / split / name
        if folder.is_dir() and (
            own := set(os.listdir(folder)) - set(os.listdir(work / split / name))
        ):
            raise InputError(
                f"{folder / min(own)} is not a file of this class, which must be made again; "
                "expected nothing else in its folder. Move it away, or choose another folder with "
                "--out"
            )
        if say and folder.exists():
            say(f"replacing a damaged class: {folder}")
        # First the record: a folder without one would be taken for the user's.
        self.records[f"{split}/{name}"] = record
        self._write()
        folder.parent.mkdir(exist_ok=True)
        if folder.exists():
            (work / "replaced" / split).mkdir(parents=True, exist_ok=True)
            os.rename(folder, work / "replaced" / split / name)
        os.rename(work / split / name, folder)

    def report(self, say: Say) -> None:
        """Report to ``say`` how many classes and images are recorded for each split."""
        for split in self.splits:
            classes, images = self.count(split)
            say(f"  {self.out / split}  {images} images in {classes} classes")

    def remember(self, path: Path) -> None:
        """Record that the archive at ``path`` is verified, so that it need not be read again."""
        self.verified[path.name] = _identity(path)
        self._write()

    def remembers(self, path: Path) -> bool:
        """Return whether ``path`` is the archive that was verified: same place, size and time."""
        return self.verified.get(path.name) == _identity(path)

    def count(self, split: str) -> tuple[int, int]:
        """Return how many classes of ``split`` are recorded, and how many images they have."""
        records = [self.records[name] for name in self.records if name.startswith(f"{split}/")]
        return len(records), sum(record.images for record in records)

    def _refuse_other(self, split: str) -> None:
        """Raise ``InputError`` if a split holds anything that is not recorded."""
        folder = self.out / split
        try:
            names = sorted(os.listdir(folder)) if folder.exists() else []
        except OSError as error:
            raise InputError(
                f"{folder} cannot be read ({error}); expected a folder, or nothing"
            ) from error
        for name in names:
            if f"{split}/{name}" not in self.records:
                raise InputError(
                    f"{folder / name} holds other data, which {MANIFEST} does not record. "
                    "Remove it, or choose another folder with --out"
                )

    def _read(self) -> None:
        place = self.out / MANIFEST
        try:
            known = read_json(place)
            title, official = known["data set"], known["official"]
            self.records = {name: Record(**record) for name, record in known["classes"].items()}
            self.verified, self.names = dict(known["verified"]), list(known["names"])
            if not all(isinstance(name, str) for name in self.names):
                raise ValueError("names are not all texts")
        except (FileNotFoundError, NotADirectoryError):
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{place} cannot be read ({error!r}). Remove {self.out}, or choose another folder "
                "with --out"
            ) from error
        if (title, official) != (self.title, self.official):
            raise InputError(
                f"{self.out} holds {_called(title, official)}; asked for is "
                f"{_called(self.title, self.official)}. Remove it, or choose another folder with "
                "--out"
            )

    def _write(self) -> None:
        known = {
            "data set": self.title,
            "official": self.official,
            "verified": self.verified,
            "names": self.names,
            "classes": {name: asdict(record) for name, record in sorted(self.records.items())},
        }
        write_json(self.out / MANIFEST, known, "the manifest")


def _called(title: str, official: bool) -> str:
    return f"the official {title}" if official else f"images of {title} from elsewhere"


def _identity(path: Path) -> list:
    status = path.stat()
    return [str(path.resolve()), status.st_size, status.st_mtime_ns]


def _record_of(folder: Path) -> Record:
    lines, size = {}, 0
    for path in folder.iterdir():
        content = path.read_bytes() if path.is_file() else b""
        lines[path.name], size = hashlib.sha256(content).hexdigest(), size + len(content)
    return Record(len(lines), size, _digest(lines))


def _digest(lines: dict[str, str]) -> str:
    text = "".join(f"{digest}  {file}\n" for file, digest in sorted(lines.items()))
    return hashlib.sha256(text.encode()).hexdigest()
