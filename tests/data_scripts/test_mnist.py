"""The MNIST script: verified files or none, from every source, and never a half-written one."""

import dataclasses
import gzip
import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from labkit.data import idx
from labkit.errors import InputError

SCRIPT = Path(__file__).resolve().parents[2] / "data_scripts" / "mnist.py"
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
PUBLISHED_MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("mnist_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_files(folder: Path, seed=0, suffix="") -> Path:
    """Store a small set of the right structure, all in one folder; return the folder."""
    random = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for prefix, count in (("train", 40), ("t10k", 20)):
        images = random.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = random.integers(0, 10, count, dtype=np.uint8)
        idx.write_idx(folder / f"{prefix}-images-idx3-ubyte{suffix}", images)
        idx.write_idx(folder / f"{prefix}-labels-idx1-ubyte{suffix}", labels)
    return folder


@pytest.fixture
def own(tmp_path) -> Path:
    return make_files(tmp_path / "own")


def tree(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file below ``folder``."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def installed(script, source: Path) -> dict[str, str]:
    """Return what ``tree`` shows of a folder that was prepared from the plain files ``source``."""
    found = tree(source)
    return {f"{folder}/{name}": found[name] for name, folder in script.FILES.items()}


def command(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=SCRIPT.parents[1],
        timeout=60,
    )


# ---- the bundled files


def test_bundled_files_are_the_published_ones(script):
    bundled = SCRIPT.parent / "bundled" / "mnist"
    readme = (bundled / "README.md").read_text(encoding="utf-8")
    for name, md5 in PUBLISHED_MD5.items():
        packed = (bundled / f"{name}.gz").read_bytes()
        content = gzip.decompress(packed)
        assert hashlib.md5(content).hexdigest() == md5
        sha256 = hashlib.sha256(content).hexdigest()
        assert script.DATASETS["mnist"].sha256[name] == sha256
        for stated in (md5, sha256, hashlib.sha256(packed).hexdigest()):
            assert stated in readme
    assert "CC BY-SA 3.0" in readme and "LeCun" in readme


def test_bundled_data_is_prepared_in_the_tutorials_layout(script, mnist):
    known = script.DATASETS["mnist"].sha256
    assert tree(mnist) == {f"{folder}/{name}": known[name] for name, folder in script.FILES.items()}
    assert mnist.name == "MNIST_Data"


def test_a_second_call_verifies_and_writes_nothing(script, mnist):
    before = {path: path.stat().st_mtime_ns for path in mnist.rglob("*")}
    lines, start = [], time.perf_counter()
    script.prepare(out=mnist, say=lines.append)
    # 0.04 s measured for 55 MB, with the processor's SHA instructions.
    assert time.perf_counter() - start < 2
    assert "already, verified" in lines[0] and len(lines) == 5
    assert {path: path.stat().st_mtime_ns for path in mnist.rglob("*")} == before


def test_the_report_gives_path_size_and_checksum(script, mnist, capsys):
    script.prepare(out=mnist)
    said = capsys.readouterr().out
    for name, folder in script.FILES.items():
        path = mnist / folder / name
        digest = script.DATASETS["mnist"].sha256[name]
        assert f"{path}  {path.stat().st_size} bytes  SHA-256 {digest}" in said


def test_the_default_folder_is_the_projects(script, own, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "PROJECT", tmp_path / "project")
    assert script.prepare(source=own, say=print) == tmp_path / "project/datasets/MNIST_Data"


def test_a_damaged_file_is_replaced_and_said(script, tmp_path, mnist):
    out = tmp_path / "out"
    shutil.copytree(mnist, out)
    labels = out / "test" / "t10k-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:-1])
    lines = []
    script.prepare(out=out, say=lines.append)
    assert tree(out) == tree(mnist)
    assert any(line.startswith("replacing a damaged file") for line in lines)


def test_a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(script, tmp_path):
    (tmp_path / "train").mkdir()
    os.mkfifo(tmp_path / "train" / "train-images-idx3-ubyte")
    with pytest.raises(InputError, match="train-images-idx3-ubyte is a pipe"):
        script.prepare(out=tmp_path)


def test_other_data_is_never_overwritten(script, own, tmp_path):
    out = tmp_path / "out"
    script.prepare(source=own, out=out)
    before = tree(out)
    for source in ("bundled", make_files(tmp_path / "other", seed=1)):
        with pytest.raises(InputError, match="holds other data .* Remove it, or choose"):
            script.prepare(source=source, out=out)
    assert tree(out) == before


def test_own_files_asked_for_are_not_passed_over_for_official_ones(script, own, mnist):
    before = tree(mnist)
    with pytest.raises(InputError, match="holds other data"):
        script.prepare(source=own, out=mnist)
    assert tree(mnist) == before


# ---- files of one's own


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("kind", ["folder", "zip", "tar.gz", "tar"])
def test_own_folders_and_archives_are_taken(script, own, tmp_path, kind, suffix):
    source = make_files(tmp_path / "data" / "deep", suffix=suffix).parent
    if kind != "folder":
        archive = tmp_path / f"files.{kind}"
        if kind == "zip":
            with zipfile.ZipFile(archive, "w") as file:
                for path in source.rglob("*ubyte*"):
                    file.write(path, f"../../{path.name}")
        else:
            with tarfile.open(archive, "w:gz" if kind == "tar.gz" else "w") as file:
                for path in source.rglob("*ubyte*"):
                    file.add(path, f"a/../../{path.name}")
        source = archive
    lines = []
    out = script.prepare(source=source, out=tmp_path / "x" / "out", say=lines.append)
    assert tree(out) == installed(script, own)
    assert not (tmp_path / "train-images-idx3-ubyte").exists()
    warnings = [line for line in lines if line.startswith("warning: ")]
    assert len(warnings) == 4
    assert all("is not that of the official MNIST" in line for line in warnings)


def test_official_files_from_a_folder_bring_no_warning(script, mnist, tmp_path):
    lines = []
    script.prepare(source=mnist, out=tmp_path / "out", say=lines.append)
    assert not any("warning" in line for line in lines)


def test_the_same_own_files_twice_are_no_conflict(script, own, tmp_path):
    for _ in range(2):
        out = script.prepare(source=own, out=tmp_path / "out")
    assert tree(out) == installed(script, own)


def test_one_data_set_is_not_taken_for_another(script, mnist, tmp_path):
    with pytest.raises(
        InputError, match="this is MNIST; expected Fashion-MNIST, or --dataset mnist"
    ):
        script.prepare("fashion-mnist", source=mnist, out=tmp_path / "out")


def cut(folder: Path, name: str, keep: int) -> None:
    path = folder / name
    path.write_bytes(path.read_bytes()[:keep])


def swap(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)


def labels_file(values) -> bytes:
    return b"\0\0\x08\x01" + len(values).to_bytes(4, "big") + bytes(values)


BAD_FOLDERS = {
    "wrong magic number": (
        lambda f: swap(f, "train-images-idx3-ubyte", labels_file([1] * 40)),
        "train-images-idx3-ubyte: magic number 2049.*expected 2051",
    ),
    "truncated": (lambda f: cut(f, "t10k-images-idx3-ubyte", -1), "15679 bytes.*expected 15680"),
    "gzip cut short": (
        lambda f: (
            swap(f, "t10k-labels-idx1-ubyte.gz", gzip.compress(labels_file([1] * 20))[:-9]),
            (f / "t10k-labels-idx1-ubyte").unlink(),
        ),
        "t10k-labels-idx1-ubyte.gz: cut short or damaged",
    ),
    "label outside 0 to 9": (
        lambda f: swap(f, "t10k-labels-idx1-ubyte", labels_file([1] * 19 + [10])),
        "label 10 at position 19.*expected 0 to 9",
    ),
    "different length": (
        lambda f: swap(f, "train-labels-idx1-ubyte", labels_file([1] * 39)),
        "40 images.*39 labels",
    ),
    "one file missing": (
        lambda f: (f / "train-labels-idx1-ubyte").unlink(),
        "holds no train-labels-idx1-ubyte",
    ),
    "empty": (lambda f: [path.unlink() for path in f.iterdir()], "holds no train-images"),
}


@pytest.mark.parametrize("fault", BAD_FOLDERS)
def test_a_bad_source_is_refused_and_nothing_is_written(script, own, tmp_path, fault):
    damage, message = BAD_FOLDERS[fault]
    damage(own)
    with pytest.raises(InputError, match=message) as caught:
        script.prepare(source=own, out=tmp_path / "new" / "out")
    assert str(own) in str(caught.value) and ".partial" not in str(caught.value)
    assert not (tmp_path / "new").exists()


def test_bundled_files_must_match_to_the_bit(script, own, tmp_path, monkeypatch):
    known = dataclasses.replace(script.DATASETS["mnist"], sources={"bundled": str(own)})
    monkeypatch.setitem(script.DATASETS, "mnist", known)
    with pytest.raises(InputError, match="SHA-256 .*; expected ba891046e6505d7a"):
        script.prepare(out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


# ---- the command


def test_the_command_prepares_and_says_what(own, tmp_path, script):
    done = command("--source", own, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert tree(tmp_path / "out") == installed(script, own)
    assert done.stdout.count("SHA-256") == 8  # four warnings, four lines of the report


def test_bad_input_ends_the_command_with_2_and_a_message(own, tmp_path):
    (tmp_path / "file").write_text("x")
    for arguments, message in {
        ("--dataset", "fashon-mnist"): "Did you mean 'fashion-mnist'?",
        ("--source", "bundeld"): "Did you mean 'bundled'?",
        ("--source", tmp_path / "absent"): "absent is not there",
        ("--source", tmp_path / "file"): "is not a whole archive",
        ("--source", own, "--out", tmp_path / "file"): "expected a folder that can be written",
        ("--source", "debian"): "MNIST has no source 'debian'; expected bundled, download",
        ("--dataset", "fashion-mnist", "--source", "bundled"): "expected download, debian",
    }.items():
        out = () if "--out" in arguments else ("--out", tmp_path / "out")
        done = command(*arguments, *out)
        assert done.returncode == 2, arguments
        assert message in done.stderr and "Traceback" not in done.stderr
        assert done.stdout == "" or "warning" in done.stdout
    assert not (tmp_path / "out").exists()


# ---- killed in the middle

KILLED = """
import hashlib, os, signal, sys
sys.path.insert(0, sys.argv[1])
import mnist
from labkit.data import members

def die_at(count, real):
    calls = []
    def counted(*arguments):
        calls.append(1)
        if len(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments)
    return counted

point, count = sys.argv[2], int(sys.argv[3])
if point == "write":
    members._CHUNK = 512
    class Digest:
        def __init__(self): self.real = hashlib.sha256()
        def hexdigest(self): return self.real.hexdigest()
        def update(self, block): tick(); self.real.update(block)
    tick = die_at(count, lambda: None)
    members.hashlib = type("hashlib", (), {"sha256": Digest})
else:
    os.replace = die_at(count, os.replace)
mnist.prepare(source=sys.argv[4], out=sys.argv[5])
"""


@pytest.mark.parametrize(
    ("point", "count", "complete"),
    [("write", 5, 0), ("write", 80, 0), ("replace", 1, 0), ("replace", 2, 1), ("replace", 4, 3)],
)
def test_killed_at_any_moment_leaves_whole_files_or_none(
    script, own, tmp_path, point, count, complete
):
    out = tmp_path / "out"
    arguments = [str(SCRIPT.parent), point, str(count), str(own), str(out)]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *arguments],
        capture_output=True,
        check=False,
        cwd=SCRIPT.parents[1],
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    whole = installed(script, own)
    left = {name: sha for name, sha in tree(out).items() if not name.startswith(".labkit-partial-")}
    assert len(left) == complete and left.items() <= whole.items()
    partial = [path for path in out.glob(".labkit-partial-*/*")]
    assert partial, "the kill came before anything was written"
    script.prepare(source=own, out=out)
    assert whole.items() <= tree(out).items()


# ---- download


class Files(BaseHTTPRequestHandler):
    """Serves ``server.files``: path -> bytes, or a function of the handler."""

    def do_GET(self):
        content = self.server.files.get(self.path)
        if content is None:
            self.send_error(404)
        elif callable(content):
            content(self)
        else:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    packed = make_files(tmp_path / "served", suffix=".gz")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Files)
    server.daemon_threads = True
    server.files = {f"/mnist/{path.name}": path.read_bytes() for path in packed.iterdir()}
    server.address = f"http://127.0.0.1:{server.server_port}/mnist/"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def served(script, server, own, monkeypatch):
    """The script, for which the small set on the local server is the official one."""
    found = tree(own)
    known = dataclasses.replace(
        script.DATASETS["mnist"],
        sources={"download": server.address},
        sums=tuple(found[name] for name in script.FILES),
    )
    monkeypatch.setitem(script.DATASETS, "mnist", known)
    return script


def test_download_is_verified_and_unpacked(served, own, tmp_path):
    lines = []
    out = served.prepare(source="download", out=tmp_path / "out", say=lines.append)
    assert tree(out) == installed(served, own)
    assert sum(line.startswith("downloading http://127.0.0.1") for line in lines) == 4


def test_a_mirror_and_an_archive_are_taken_by_their_address(served, server, own, tmp_path):
    assert served.prepare(source=server.address, out=tmp_path / "a")
    shutil.make_archive(str(tmp_path / "MNIST_Data"), "zip", own)
    server.files["/MNIST_Data.zip"] = (tmp_path / "MNIST_Data.zip").read_bytes()
    address = server.address.replace("/mnist/", "/MNIST_Data.zip")
    served.prepare(source=address, out=tmp_path / "b")
    assert tree(tmp_path / "a") == tree(tmp_path / "b") == installed(served, own)


def refused(served, tmp_path, message):
    with pytest.raises(InputError, match=message):
        served.prepare(source="download", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


NAME = "/mnist/t10k-labels-idx1-ubyte.gz"


def test_a_download_with_another_checksum_is_refused(served, server, tmp_path):
    server.files[NAME] = gzip.compress(labels_file([3] * 20))
    refused(served, tmp_path, "t10k-labels-idx1-ubyte: SHA-256 .*; expected")


def test_a_mirror_must_hold_the_official_files_too(served, server, tmp_path):
    server.files[NAME] = gzip.compress(labels_file([3] * 20))
    with pytest.raises(InputError, match="SHA-256 .*; expected"):
        served.prepare(source=server.address, out=tmp_path / "out")


def test_a_missing_file_on_the_server_is_refused(served, server, tmp_path):
    del server.files[NAME]
    refused(served, tmp_path, "cannot be downloaded .*404.* give --source a folder")


def test_no_server_is_refused(served, server, tmp_path):
    server.shutdown()
    server.server_close()
    refused(served, tmp_path, "cannot be downloaded")


def test_a_connection_that_ends_early_is_refused(served, server, tmp_path):
    def short(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", "100000")
        handler.end_headers()
        handler.wfile.write(b"x" * 500)

    server.files[NAME] = short
    refused(served, tmp_path, "500 bytes came; expected 100000|cannot be downloaded")


def test_a_silent_server_is_given_up_on(served, server, tmp_path, monkeypatch):
    monkeypatch.setattr(served, "TIMEOUT", 0.2)
    release = threading.Event()
    server.files[NAME] = lambda handler: release.wait(20)
    try:
        refused(served, tmp_path, "cannot be downloaded .*timed out")
    finally:
        release.set()


def test_a_download_without_end_is_stopped(served, server, tmp_path, monkeypatch):
    monkeypatch.setattr(served, "MAX_DOWNLOAD", 3 << 20)

    def endless(handler):
        handler.send_response(200)
        handler.end_headers()
        try:
            while True:
                handler.wfile.write(bytes(1 << 16))
        except OSError:
            pass

    server.files[NAME] = endless
    refused(served, tmp_path, "more than the 3145728 bytes expected")


# ---- Fashion-MNIST as Debian packages it


@pytest.mark.skipif(not DEBIAN.is_dir(), reason="package dataset-fashion-mnist is not installed")
def test_the_packaged_fashion_mnist_is_the_official_one(script, tmp_path):
    out = script.prepare("fashion-mnist", "debian", tmp_path / "out")
    known = script.DATASETS["fashion-mnist"].sha256
    assert tree(out) == {f"{folder}/{name}": known[name] for name, folder in script.FILES.items()}


def test_the_package_that_is_not_installed_is_named(script, tmp_path, monkeypatch):
    known = script.DATASETS["fashion-mnist"]
    sources = known.sources | {"debian": str(tmp_path / "absent")}
    monkeypatch.setitem(
        script.DATASETS, "fashion-mnist", dataclasses.replace(known, sources=sources)
    )
    with pytest.raises(InputError, match="apt-get install dataset-fashion-mnist"):
        script.prepare("fashion-mnist", "debian", tmp_path / "out")
