"""Download one file: complete under its name or not at all, resumable and verified.

The part received is in `NAME.part`; `NAME.part.json` records its address and version. A download is
continued with `Range` and `If-Range` (RFC 9110, section 13.1.5), so a server whose file has changed
meanwhile, or that cannot send ranges, answers with the whole file and the download starts again.
A download is never continued from a server that names no version (ETag or Last-Modified). The
checksum at the end verifies the result.
"""

import contextlib
import errno
import hashlib
import http.client
import os
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from labkit.base.files import read_json, write_json
from labkit.errors import InputError

TIMEOUT = 30.0  # seconds without a byte after which an attempt is given up
SAY_EVERY = 10.0  # seconds between two lines of progress
PART = ".part"
STATE = ".part.json"
# Folder for a script's downloads, inside its own folder, until the images are made.
DOWNLOADS = ".download"
_HEADERS = {"User-Agent": "labkit-data-scripts"}
_CHUNK = 1 << 20
# Other errors of the system, such as a full disk, are no reason to try again.
_BROKEN = (
    urllib.error.URLError,
    http.client.HTTPException,
    ssl.SSLError,
    TimeoutError,
    ConnectionError,
)
# HTTP statuses that may be temporary.
_PASSING = (408, 425, 429, 500, 502, 503, 504)
Say = Callable[[str], None]


@dataclass(frozen=True)
class Published:
    """A file as its publisher describes it: name, size in bytes, checksums by algorithm."""

    name: str
    size: int
    sums: dict[str, str] = field(default_factory=dict)


def is_address(text: str | os.PathLike) -> bool:
    """Return whether ``text`` is an http(s) address and not a path.

    Raises:
        InputError: if it begins as an address but is not a valid one.
    """
    text = str(text)
    if not text.startswith(("http://", "https://")):
        return False
    try:
        parts = urllib.parse.urlsplit(text)
        host, _ = parts.hostname or "", parts.port
        # The socket encodes the name in the same way: http://.foo/ raises a UnicodeError there.
        host.encode("idna")
        text.encode("ascii")
    except ValueError as error:
        raise InputError(
            f"expected an address, http://HOST/PATH, got {text!r} ({error})"
        ) from error
    if not host or not text.isprintable() or " " in text:
        raise InputError(f"expected an address, http://HOST/PATH, got {text!r}")
    return True


def download(
    address: str,
    target: Path,
    *,
    limit: int,
    attempts: int = 1,
    pause: float = 1.0,
    say: Say = print,
) -> None:
    """Download ``address`` to ``target``, which appears complete or not at all.

    Args:
        address: http(s) address.
        target: path of the file; the part received so far is stored beside it.
        limit: largest number of bytes accepted.
        attempts: number of attempts; each continues the part received so far.
        pause: seconds before the second attempt, doubled before each further attempt.
        say: called with each line of the report.

    Raises:
        InputError: if the download fails; the part received stays for the next call.
    """
    is_address(address)
    say(f"downloading {address}")
    part, state = Path(f"{target}{PART}"), Path(f"{target}{STATE}")
    with _opened(part) as file:
        transfer = _Transfer(address, file, state, limit, say)
        try:
            transfer.persist(attempts, pause)
        except BaseException:
            if not file.seek(0, os.SEEK_END):
                part.unlink(missing_ok=True)
                state.unlink(missing_ok=True)
            raise
        # Before the rename: a program killed after it would lose what is still in the buffer.
        file.flush()
        os.fsync(file.fileno())
        os.replace(part, target)
    state.unlink(missing_ok=True)


def fetch(
    published: Published, address: str, folder: Path, say: Say = print, attempts: int = 1
) -> Path:
    """Download a published file into ``folder`` unless it exists; verify it; return its path.

    ``folder`` is made, and removed if nothing is kept in it. A file that differs from the published
    one is removed, so that the next call starts again.

    Raises:
        InputError: if the file differs from the published one, and as in ``download``.
    """
    target = folder / published.name
    folder.mkdir(exist_ok=True)
    try:
        if not target.exists():
            download(address, target, limit=published.size, attempts=attempts, say=say)
        try:
            verify(target, published, say)
        except InputError as error:
            target.unlink()
            raise InputError(f"{error}. It is removed; the next call starts again") from error
        return target
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()


def verify(path: Path, published: Published, say: Say = print) -> None:
    """Raise ``InputError`` unless the file at ``path`` has the published size and checksums."""
    size = path.stat().st_size
    if size != published.size:
        raise InputError(f"{path}: {size} bytes; expected {published.size} ({published.name})")
    digests = {algorithm: hashlib.new(algorithm) for algorithm in published.sums}
    done, last = 0, time.monotonic()
    with open(path, "rb") as file:
        while block := file.read(_CHUNK):
            done += len(block)
            for digest in digests.values():
                digest.update(block)
            if time.monotonic() - last > SAY_EVERY:
                say(f"  verified {done >> 20} of {size >> 20} MiB of {path.name}")
                last = time.monotonic()
    for algorithm, digest in digests.items():
        if digest.hexdigest() != published.sums[algorithm]:
            raise InputError(
                f"{path}: {algorithm.upper()} {digest.hexdigest()}; expected "
                f"{published.sums[algorithm]} ({published.name})"
            )


def _opened(part: Path) -> BinaryIO:
    """Open a file for appending; refuse a pipe, and a link, which leads elsewhere."""
    try:
        return open(part, "ab")
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        raise InputError(f"{part} is a link or a pipe; expected a file, or nothing") from error


@dataclass
class _Transfer:
    """A transfer from ``address`` that appends to ``file``; ``state`` describes that part."""

    address: str
    file: BinaryIO
    state: Path
    limit: int
    say: Say

    def persist(self, attempts: int, pause: float) -> None:
        """Try until all is received; raise ``InputError`` after a permanent or the last failure."""
        for attempt in range(1, attempts + 1):
            try:
                return self.resume()
            except _BROKEN as error:
                passing = True
                if isinstance(error, urllib.error.HTTPError):
                    passing = error.code in _PASSING
                    error.close()
                if attempt == attempts or not passing:
                    raise InputError(
                        f"{self.address} cannot be downloaded ({error}); without network give "
                        "--source a folder or archive that holds the files"
                    ) from error
                self.say(f"{self.address} broke off ({error}); trying again")
                time.sleep(pause * 2 ** (attempt - 1))

    def resume(self) -> None:
        """Append the missing bytes to the file, or download all of it if it cannot be continued."""
        have = self.file.seek(0, os.SEEK_END)
        known = _read_state(self.state) if have else {}
        if known.get("address") != self.address:
            known = {}
        if known and known["size"] == str(have):
            return None
        version = known.get("version")
        ranges = {"Range": f"bytes={have}-", "If-Range": version} if version else {}
        request = urllib.request.Request(self.address, headers=_HEADERS | ranges)
        try:
            answer = urllib.request.urlopen(request, timeout=TIMEOUT)
        except urllib.error.HTTPError as error:
            if error.code != 416 or not version:
                raise
            # The file on the server has become shorter than the part received.
            error.close()
            self.file.truncate(0)
            return self.resume()
        with answer:
            if answer.status != 206:
                have, known = 0, self._begin(answer)
            elif not version:
                raise http.client.HTTPException("the server sent a part; expected the whole file")
            elif not _follows(answer, have, known):
                self.file.truncate(0)
                return self.resume()
            else:
                self.say(f"  continued after {have} bytes")
            have = self._receive(answer, have, known["size"])
        if known["size"] is not None and known["size"] != str(have):
            raise http.client.HTTPException(f"received {have} bytes; expected {known['size']}")

    def _begin(self, answer: http.client.HTTPResponse) -> dict:
        """Discard the part received, and record the version of the file that begins."""
        self.file.truncate(0)
        length = answer.headers.get("Content-Length", "")
        size = length if length.isdecimal() else None
        known = {"address": self.address, "version": _version(answer), "size": size}
        write_json(self.state, known, "the state of the download", indent=None)
        return known

    def _receive(self, answer: http.client.HTTPResponse, have: int, size: str | None) -> int:
        """Append the body of ``answer`` to the file; return the new length of the file in bytes."""
        last = time.monotonic()
        while block := answer.read(_CHUNK):
            have += len(block)
            if have > self.limit:
                self.file.truncate(0)
                raise InputError(f"{self.address}: more than the {self.limit} bytes expected")
            self.file.write(block)
            if time.monotonic() - last > SAY_EVERY:
                of = f" of {int(size) >> 20}" if size else ""
                self.say(f"  {have >> 20}{of} MiB")
                last = time.monotonic()
        return have


def _version(answer: http.client.HTTPResponse) -> str | None:
    """Return a value for If-Range: a strong ETag, else the date of the last change."""
    tag = answer.headers.get("ETag")
    if tag and not tag.startswith("W/"):
        return tag
    return answer.headers.get("Last-Modified")


def _follows(answer: http.client.HTTPResponse, have: int, known: dict) -> bool:
    """Return whether a partial answer continues exactly the part received."""
    place = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", ""))
    if not place or int(place[1]) != have:
        return False
    same_size = known["size"] is None or place[2] in ("*", known["size"])
    return same_size and _version(answer) in (None, known["version"])


def _read_state(state: Path) -> dict:
    try:
        known = read_json(state)
    except (OSError, InputError):
        return {}
    kinds = {"address": str, "version": str | None, "size": str | None}
    is_right = isinstance(known, dict) and known.keys() == kinds.keys()
    # Another program's file, or a damaged one: the download begins again.
    return known if is_right and all(isinstance(known[n], k) for n, k in kinds.items()) else {}
