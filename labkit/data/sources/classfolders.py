"""An image folder that is filled class by class: `SPLIT/CLASS/*`, each class whole or not there.

A class is written into a temporary folder of the same file system, counted, recorded in
`manifest.json` and then renamed to its place. A killed program thus leaves whole classes; the next
one skips those that are recorded and there, and makes the others. What is not recorded is somebody
else's and never touched.
"""

import hashlib
import json
import os
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from labkit.base.input_files import read_json
from labkit.errors import InputError

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Record:
    """What a class folder holds: number of images, their bytes in all, and a checksum.

    sha256  that of `sha256sum * | sha256sum` in the folder (LC_ALL=C).
    """

    images: int
    bytes: int
    sha256: str

    def __post_init__(self):
        numbers = all(type(one) is int and one >= 0 for one in (self.images, self.bytes))
        if not numbers or not isinstance(self.sha256, str):
            raise ValueError(f"a class of {self.images!r} images, {self.bytes!r} bytes")


class ClassFolders:
    """The classes of one data set in ``out``, and the only way to add to them.

    title     of the data set; another one in ``out`` is refused.
    official  whether the images are the published ones; the two kinds are not mixed.
    splits    the folders that belong to the data set, such as train and val.

    Raises ``InputError`` where ``out`` holds other data or its manifest cannot be read.
    """

    def __init__(self, out: Path, title: str, splits: Collection[str], official: bool):
        self.out, self.title, self.official = out, title, official
        self.records: dict[str, Record] = {}
        self.verified: dict[str, list] = {}
        # Of all classes, also those that were not asked for yet; empty until somebody says them.
        self.names: list[str] = []
        self._read()
        for split in splits:
            self._refuse_other(split)

    def whole(self, split: str, name: str, content: bool = False) -> bool:
        """Whether a class is recorded and there, by number and bytes, or by its ``content``."""
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
        except OSError:  # A link to nothing, or a file that may not be read.
            return False

    def stage(
        self, work: Path, split: str, name: str, images: Iterable[tuple[str, bytes]]
    ) -> Record:
        """Write the (file name, content) pairs of a class into ``work``; return what it holds."""
        folder = work / split / name
        folder.mkdir(parents=True)
        lines, size = {}, 0
        for file, content in images:
            if file in lines:
                raise InputError(f"{split}/{name}/{file} is there more than once")
            plain = file == os.path.basename(file) and file.isprintable()
            if not plain or file[:1] in ("", "."):
                raise InputError(f"{split}/{name}: {file!r} is no name for an image")
            (folder / file).write_bytes(content)
            lines[file], size = hashlib.sha256(content).hexdigest(), size + len(content)
        return Record(len(lines), size, _digest(lines))

    def install(self, work: Path, split: str, name: str, record: Record) -> None:
        """Move a class from ``work`` to its place; a damaged one that is there makes way.

        Raises ``InputError`` where that one holds a file of a name that the class does not have: it
        is somebody's own, and would be removed.
        """
        folder = self.out / split / name
        if folder.is_dir() and (
            own := set(os.listdir(folder)) - set(os.listdir(work / split / name))
        ):
            raise InputError(
                f"{folder / min(own)} is no file of this class, which must be made anew; expected "
                "nothing else in its folder. Move it away, or choose another folder with --out"
            )
        # First the record: a folder without one would be taken for somebody else's.
        self.records[f"{split}/{name}"] = record
        self._write(work)
        folder.parent.mkdir(exist_ok=True)
        if folder.exists():
            (work / "replaced" / split).mkdir(parents=True, exist_ok=True)
            os.rename(folder, work / "replaced" / split / name)
        os.rename(work / split / name, folder)

    def remember(self, work: Path, path: Path) -> None:
        """Record that the archive at ``path`` is verified, so that it need not be read again."""
        self.verified[path.name] = _identity(path)
        self._write(work)

    def remembers(self, path: Path) -> bool:
        """Whether the archive at ``path`` is the one that was verified, by size and time."""
        return self.verified.get(path.name) == _identity(path)

    def count(self, split: str) -> tuple[int, int]:
        """Return how many classes of ``split`` are recorded, and how many images they have."""
        found = [one for name, one in self.records.items() if name.startswith(f"{split}/")]
        return len(found), sum(record.images for record in found)

    def _refuse_other(self, split: str) -> None:
        """Raise ``InputError`` where a split holds what no record knows."""
        folder = self.out / split
        try:
            found = sorted(os.listdir(folder)) if folder.exists() else []
        except OSError as error:
            raise InputError(
                f"{folder} cannot be read ({error}); expected a folder, or nothing"
            ) from error
        for name in found:
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

    def _write(self, work: Path) -> None:
        known = {
            "data set": self.title,
            "official": self.official,
            "verified": self.verified,
            "names": self.names,
            "classes": {name: asdict(record) for name, record in sorted(self.records.items())},
        }
        (work / MANIFEST).write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        os.replace(work / MANIFEST, self.out / MANIFEST)


def _called(title: str, official: bool) -> str:
    return f"the official {title}" if official else f"images of {title} from elsewhere"


def _identity(path: Path) -> list:
    found = path.stat()
    return [str(path.resolve()), found.st_size, found.st_mtime_ns]


def _record_of(folder: Path) -> Record:
    lines, size = {}, 0
    for path in folder.iterdir():
        content = path.read_bytes() if path.is_file() else b""
        lines[path.name], size = hashlib.sha256(content).hexdigest(), size + len(content)
    return Record(len(lines), size, _digest(lines))


def _digest(lines: dict[str, str]) -> str:
    text = "".join(f"{digest}  {file}\n" for file, digest in sorted(lines.items()))
    return hashlib.sha256(text.encode()).hexdigest()
