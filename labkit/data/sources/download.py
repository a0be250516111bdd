"""Download one file: whole under its name or not at all, continued where it broke off, verified.

What has come lies in `NAME.part`, and `NAME.part.json` says of which version of which address it
is a part. It is continued with `Range` and `If-Range` (RFC 9110, section 13.1.5), so a server
whose file has changed meanwhile, or that cannot send ranges, answers with the whole file and the
download starts anew. A server that names no version (ETag or Last-Modified) is never continued.
The checksum at the end judges what the server said.
"""

import errno
import fcntl
import hashlib
import http.client
import json
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

from labkit.base.files import no_link, whole_file
from labkit.base.input_files import read_json
from labkit.errors import InputError

TIMEOUT = 30.0  # seconds without a byte
SAY_EVERY = 10.0  # seconds between two lines of progress
PART = ".part"
STATE = ".part.json"
# Where a script keeps what it downloads, in its folder, until the images are made.
DOWNLOADS = ".download"

_CHUNK = 1 << 20
_BROKEN = (
    urllib.error.URLError,
    http.client.HTTPException,
    ssl.SSLError,
    TimeoutError,
    ConnectionError,
)
# Statuses that may be others a moment later.
_PASSING = (408, 425, 429, 500, 502, 503, 504)

Say = Callable[[str], None]


@dataclass(frozen=True)
class Published:
    """A file as its publisher describes it: name, size in bytes, checksums by algorithm."""

    name: str
    size: int
    sums: dict[str, str] = field(default_factory=dict)


def is_address(text: str | os.PathLike) -> bool:
    """Whether ``text`` is the http(s) address of something and not a path.

    Raises ``InputError`` for one that begins as an address and is none.
    """
    text = str(text)
    if not text.startswith(("http://", "https://")):
        return False
    try:
        parts = urllib.parse.urlsplit(text)
        host, _ = parts.hostname or "", parts.port
        # What the socket does with a name: http://.foo/ ends in a UnicodeError there.
        host.encode("idna")
        text.encode("ascii")
    except ValueError as error:
        raise InputError(f"{text!r} is not an address ({error})") from error
    if not host or not text.isprintable() or " " in text:
        raise InputError(f"{text!r} is not an address; expected http://HOST/PATH")
    return True


def download(
    address: str,
    target: Path,
    *,
    limit: int,
    timeout: float = TIMEOUT,
    attempts: int = 1,
    pause: float = 1.0,
    say: Say = print,
) -> None:
    """Fetch ``address`` to ``target``, which appears whole or not at all.

    limit     refuse more than so many bytes.
    timeout   seconds without a byte after which an attempt is given up.
    attempts  how often to try; each continues what is there. ``pause`` seconds before the second,
              twice as many before each further one.
    say       takes each line of the report.

    Raises ``InputError`` for what cannot be downloaded; what has come then stays in `NAME.part`
    for the next call. Also where another program is downloading to ``target``.
    """
    is_address(address)
    say(f"downloading {address}")
    part = Path(f"{target}{PART}")
    with _opened(part) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(f"another program is downloading to {target}; wait for it") from error
        except OSError:  # A file system without locks.
            pass
        try:
            _persist(address, file, target, limit, timeout, attempts, pause, say)
        except BaseException:
            if not file.seek(0, os.SEEK_END):
                _remove(part, Path(f"{target}{STATE}"))
            raise
        # Before the rename: what is still in the buffer would come too late for a killed program.
        file.flush()
        os.replace(part, target)
    _remove(Path(f"{target}{STATE}"))


def fetch(published: Published, address: str, folder: Path, say: Say = print, **options) -> Path:
    """Download a published file into ``folder`` unless it is there; verify it; return its path.

    A file that is not what was published is removed, so that the next call starts anew. Raises
    ``InputError`` for that, and as ``download`` does, which takes ``options``.
    """
    target = folder / published.name
    if not target.exists():
        download(address, target, limit=published.size, say=say, **options)
    try:
        verify(target, published, say)
    except InputError as error:
        target.unlink()
        raise InputError(f"{error}. It is removed; the next call starts anew") from error
    return target


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
    """Open a file for appending that is no link, which leads elsewhere, and no pipe."""
    try:
        return open(part, "ab", opener=no_link)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        raise InputError(f"{part} is a link or a pipe; expected a file, or nothing") from error


def _persist(address, file, target, limit, timeout, attempts, pause, say) -> None:
    for attempt in range(1, attempts + 1):
        try:
            return _continue(address, file, Path(f"{target}{STATE}"), limit, timeout, say)
        except _BROKEN as error:
            passing = True
            if isinstance(error, urllib.error.HTTPError):
                passing = error.code in _PASSING
                error.close()
            if attempt == attempts or not passing:
                raise InputError(
                    f"{address} cannot be downloaded ({error}); without network give "
                    "--source a folder or archive that holds the files"
                ) from error
            say(f"{address} broke off ({error}); trying again")
            time.sleep(pause * 2 ** (attempt - 1))


def _continue(
    address: str, file: BinaryIO, state: Path, limit: int, timeout: float, say: Say
) -> None:
    """Bring the rest of ``address`` to the end of ``file``, or all of it where that cannot be."""
    have = file.seek(0, os.SEEK_END)
    known = _read_state(state) if have else {}
    if known.get("address") == address and known["size"] == str(have):
        return
    headers = {"User-Agent": "labkit-data-scripts"}
    if known.get("address") == address and known.get("version"):
        headers |= {"Range": f"bytes={have}-", "If-Range": known["version"]}
    try:
        answer = urllib.request.urlopen(
            urllib.request.Request(address, headers=headers), timeout=timeout
        )
    except urllib.error.HTTPError as error:
        if error.code != 416 or "Range" not in headers:
            raise
        error.close()
        # The file has become shorter than what is here: begin again.
        file.truncate(0)
        return _continue(address, file, state, limit, timeout, say)
    with answer:
        if answer.status == 206 and "Range" not in headers:
            raise http.client.HTTPException("a part came; expected the whole file")
        if answer.status == 206 and not _follows(answer, have, known):
            file.truncate(0)
            return _continue(address, file, state, limit, timeout, say)
        if answer.status == 206:
            say(f"  continued after {have} bytes")
        else:
            file.truncate(0)
            have = 0
            promised = answer.headers.get("Content-Length", "")
            promised = promised if promised.isdecimal() else None
            known = {"address": address, "version": _version(answer), "size": promised}
            _write_state(state, known)
        have = _receive(answer, address, file, have, limit, known["size"], say)
    if known["size"] is not None and known["size"] != str(have):
        raise http.client.HTTPException(f"{have} bytes came; expected {known['size']}")


def _receive(
    answer, address: str, file: BinaryIO, have: int, limit: int, size: str | None, say: Say
) -> int:
    """Append the body of ``answer`` to ``file``; return how many bytes it has then."""
    last = time.monotonic()
    while block := answer.read(_CHUNK):
        have += len(block)
        if have > limit:
            file.truncate(0)
            raise InputError(f"{address}: more than the {limit} bytes expected")
        file.write(block)
        if time.monotonic() - last > SAY_EVERY:
            of = f" of {int(size) >> 20}" if size else ""
            say(f"  {have >> 20}{of} MiB")
            last = time.monotonic()
    return have


def _version(answer) -> str | None:
    """Return what If-Range may hold: a strong ETag, else the date of the last change."""
    tag = answer.headers.get("ETag")
    if tag and not tag.startswith("W/"):
        return tag
    return answer.headers.get("Last-Modified")


def _follows(answer, have: int, known: dict) -> bool:
    """Whether a partial answer continues exactly what is here."""
    found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", ""))
    if not found or int(found[1]) != have:
        return False
    same_size = known["size"] is None or found[2] in ("*", known["size"])
    return same_size and _version(answer) in (None, known["version"])


def _remove(*paths: Path) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _read_state(state: Path) -> dict:
    try:
        known = read_json(state)
    except (OSError, InputError):
        return {}
    kinds = {"address": str, "version": str | None, "size": str | None}
    is_right = isinstance(known, dict) and known.keys() == kinds.keys()
    # Another program's file, or a damaged one: the download begins again.
    return known if is_right and all(isinstance(known[n], k) for n, k in kinds.items()) else {}


def _write_state(state: Path, known: dict) -> None:
    with whole_file(state, "the state of the download") as fresh:
        fresh.write_text(json.dumps(known), encoding="utf-8")
