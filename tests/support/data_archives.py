"""Small archives for the tests of the data scripts, made as the official ones are made."""

import hashlib
import importlib.util
import io
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import scipy.io
from PIL import Image

from labkit.data.sources.download import Published

# Ids 1, 2, 3 in the order of a development kit: not the alphabetical one. Then its labels.
WNIDS = ("n00000003", "n00000001", "n00000002")
TRUTH = (1, 3, 2, 2, 1, 3)
SCRIPTS = Path(__file__).resolve().parents[2] / "data_scripts"


def load(name):
    """Import a script of `data_scripts` anew."""
    spec = importlib.util.spec_from_file_location(f"{name}_script", SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tar(files, mode="w") -> bytes:
    """Return a .tar of (name, content) pairs; a ``TarInfo`` as name is taken as it is."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as archive:
        for name, content in files:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def special(name, kind, target="") -> tuple[tarfile.TarInfo, bytes]:
    """Return a member that is no plain file, for ``tar``."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b""


def published(name, content: bytes) -> Published:
    """Describe ``content`` as its publisher would."""
    sums = {kind: hashlib.new(kind, content).hexdigest() for kind in ("sha256", "md5")}
    return Published(name, len(content), sums)


def image(seed, size=(32, 32), mode="RGB", format="JPEG") -> bytes:
    """Return a small picture; another one for each ``seed``."""
    channels = len(Image.new(mode, (1, 1)).getbands())
    pixels = np.random.default_rng(seed).integers(0, 256, (*size[::-1], channels), dtype=np.uint8)
    packed = io.BytesIO()
    Image.fromarray(pixels.squeeze(), mode).save(packed, format)
    return packed.getvalue()


def meta(wnids=WNIDS) -> bytes:
    """Return a MATLAB file as that of the development kit: classes, and a group of them."""
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
    """Return every file below ``folder``, but for temporary ones."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file() and not path.relative_to(folder).parts[0].startswith(".")
    }


class Handler(BaseHTTPRequestHandler):
    """Serves ``server.files`` by name; ``server.cut`` says after how many bytes an answer ends."""

    def do_GET(self):
        self.server.asked.append(self.headers.get("Range"))
        content = self.server.files.get(self.path.rpartition("/")[2])
        if content is None:
            return self.send_error(404)
        wanted = self.headers.get("Range", "bytes=0-")
        start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        self.send_response(206 if start else 200)
        self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.send_header("ETag", '"1"')
        self.end_headers()
        end, self.server.cut = self.server.cut, None
        self.wfile.write(content[start:end])

    def log_message(self, *_):
        pass


def serve(files: dict[str, bytes]) -> ThreadingHTTPServer:
    """Start a server of ``files`` on this machine; the caller shuts it down."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.files, server.asked, server.cut = files, [], None
    server.address = f"http://127.0.0.1:{server.server_port}/data"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return server
