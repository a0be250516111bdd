"""Small archives for the tests of the data scripts, built like the official ones."""

import hashlib
import io
import os
import re
import tarfile
import threading
import urllib.parse
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest.mock import patch

import numpy as np
import scipy.io
from PIL import Image

from labkit.data.sources.download import Published
from tests.support import modules

# Ids 1, 2, 3 in the order of a development kit, which is not alphabetical. Then its labels.
WNIDS = ("n00000003", "n00000001", "n00000002")
TRUTH = (1, 3, 2, 2, 1, 3)
SCRIPTS = Path(__file__).resolve().parents[2] / "data_scripts"


def load(name):
    """Import a script of `data_scripts` as a new module."""
    return modules.load(SCRIPTS / f"{name}.py", f"{name}_script")


def tar(files, mode="w") -> bytes:
    """Return a .tar of (name, content) pairs; a ``TarInfo`` as name is used as it is."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as archive:
        for name, content in files:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def pack(kind: str, path: Path, files: Iterable[tuple[str, bytes]]) -> Path:
    """Store (name, content) pairs as a "folder", "zip", "tar", "tar.gz" ... at ``path``."""
    if kind == "folder":
        for name, content in files:
            target = path / name.replace("../", "up/").lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    elif kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a duplicate name
            for name, content in files:
                archive.writestr(name, content)
    else:
        path.write_bytes(tar(files, f"w:{kind.partition('.')[2]}"))
    return path


def special(name, kind, target="") -> tuple[tarfile.TarInfo, bytes]:
    """Return a member that is not a plain file, for ``tar``."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b""


def published(name, content: bytes) -> Published:
    """Describe ``content`` as its publisher would."""
    sums = {kind: hashlib.new(kind, content).hexdigest() for kind in ("sha256", "md5")}
    return Published(name, len(content), sums)


def image(seed, size=(32, 32), mode="RGB", format="JPEG") -> bytes:
    """Return a small picture, different for each ``seed``."""
    channels = len(Image.new(mode, (1, 1)).getbands())
    pixels = np.random.default_rng(seed).integers(0, 256, (*size[::-1], channels), dtype=np.uint8)
    packed = io.BytesIO()
    Image.fromarray(pixels.squeeze(), mode).save(packed, format)
    return packed.getvalue()


def meta(wnids=WNIDS) -> bytes:
    """Return a MATLAB file like the development kit's: classes, and a group of them."""
    fields = (
        "ILSVRC2012_ID WNID words gloss num_children children wordnet_height num_train_images"
    ).split()
    rows = [(n, wnid, "w", "g", 0, np.zeros(0), 0, 4) for n, wnid in enumerate(wnids, 1)]
    rows.append((len(rows) + 1, "n00000099", "w", "g", 2, np.array([1, 2]), 1, 0))
    synsets = np.array([[row] for row in rows], dtype=[(name, "O") for name in fields])
    packed = io.BytesIO()
    scipy.io.savemat(packed, {"synsets": synsets})
    return packed.getvalue()


def kit(truth=TRUTH, mat=None) -> bytes:
    """Return a development kit with these labels."""
    folder = "ILSVRC2012_devkit_t12"
    text = "".join(f"{label}\n" for label in truth).encode()
    files = {
        f"{folder}/data/meta.mat": meta() if mat is None else mat,
        f"{folder}/data/ILSVRC2012_validation_ground_truth.txt": text,
    }
    return tar(files.items(), "w:gz")


def tree(folder) -> dict[str, bytes]:
    """Return every file below ``folder``, except temporary ones."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file() and not path.relative_to(folder).parts[0].startswith(".")
    }


def _name(path: str) -> str:
    return urllib.parse.urlsplit(path).path.rpartition("/")[2]


class Handler(BaseHTTPRequestHandler):
    """Serves ``server.files`` by name, as ``served`` describes."""

    def do_GET(self):
        server, content = self.server, self.server.files.get(_name(self.path))
        server.asked.append(self.headers)
        if server.statuses or content is None:
            return self.send_error(server.statuses.pop(0) if server.statuses else 404)
        start, wanted = 0, re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        same = not server.if_range or self.headers.get("If-Range") in server.headers.values()
        if wanted and server.ranges and same:
            start = int(wanted[1])
            if start >= len(content):
                return self.send_error(416)
            self.send_response(206)
            of = f"bytes {start + server.shift}-{len(content) - 1}/{len(content)}"
            self.send_header("Content-Range", of)
        else:
            self.send_response(200)
        if server.length:
            self.send_header("Content-Length", str(len(content) - start))
        for name, value in server.headers.items():
            self.send_header(name, value)
        self.end_headers()
        keep = server.cuts.pop(0) if server.cuts else len(content)
        self.wfile.write(content[start : start + keep])

    def log_message(self, *_):
        pass


@contextmanager
def served(files: dict[str, bytes]) -> Iterator[ThreadingHTTPServer]:
    """Yield a server of ``files`` on this machine, which tests may change while it runs.

    ``cuts``: number of bytes after which each answer ends; ``statuses``: errors of its first
    answers; ``asked``: headers of each request; ``shift``: added to the start of a stated range.
    """
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.files, server.headers, server.shift = files, {"ETag": '"one"'}, 0
    server.ranges = server.if_range = server.length = True
    server.asked, server.cuts, server.statuses = [], [], []
    server.address = f"http://127.0.0.1:{server.server_port}/data"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    with server, patch.dict(os.environ, no_proxy="127.0.0.1"):
        try:
            yield server
        finally:
            server.shutdown()


def ranges(server: ThreadingHTTPServer) -> list[str | None]:
    """Return the range that each request asked for, or None."""
    return [headers.get("Range") for headers in server.asked]
