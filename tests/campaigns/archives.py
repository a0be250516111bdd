"""Readers of data sets: IDX files, gzipped or not, .tar and .zip archives, recorded .npz steps.

Archives that unpack to far more than their size, links, and endless names are in
tests/data/test_members.py and test_idx.py.
"""

# ruff: noqa: E501 (tables of odd values)

import bz2
import functools
import gzip
import io
import json
import lzma
import random
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np

from tests.campaigns.mutate import EDGES, Tree, damaged, dumps, json_like
from tests.campaigns.reader import Reader, with_special

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")


@functools.cache
def _idx(count: int = 12, side: int = 4) -> dict[str, bytes]:
    pixels = np.random.default_rng(1).integers(0, 256, count * side * side, dtype=np.uint8)
    labels = (np.arange(count) % 10).astype(np.uint8)
    return {
        NAMES[0]: struct.pack(">4I", 2051, count, side, side) + pixels.tobytes(),
        NAMES[1]: struct.pack(">2I", 2049, count) + labels.tobytes(),
    }


def _odd_idx(rule) -> dict[str, bytes]:
    """Return IDX files whose headers disagree with their content."""
    files = dict(_idx())
    name = rule.choice(NAMES)
    content = bytearray(files[name])
    for _ in range(rule.choice((1, 2))):
        at = 4 * rule.randrange(4 if name is NAMES[0] else 2)
        content[at : at + 4] = struct.pack(">I", rule.choice((*EDGES, 10, 28, 960_000_000)) % 2**32)
    files[name] = bytes(content)
    return files


def _make_idx(rule: random.Random) -> Tree:
    act = rule.random()
    files = _odd_idx(rule) if act < 0.4 else dict(_idx())
    if act >= 0.4:
        name = rule.choice(NAMES)
        files[name] = damaged(rule, files[name], files[NAMES[0]])
    return with_special(rule, files)


def _make_gz(rule: random.Random) -> Tree:
    files = _odd_idx(rule) if rule.random() < 0.3 else _idx()
    tree: Tree = {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in files.items()}
    name = f"{rule.choice(NAMES)}.gz"
    act = rule.random()
    if act < 0.1:
        tree[name] += rule.choice((tree[name], b"\0" * 512, b"garbage", tree[name][:20]))
    elif act < 0.3:
        tree[name] = gzip.compress(damaged(rule, gzip.decompress(tree[name])), mtime=0)
    elif act < 0.95:
        tree[name] = damaged(rule, tree[name])
    return with_special(rule, tree)


def _header(name, size, kind=b"0") -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


def _padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % 512)


def _odd_header(rule, block: bytes) -> bytes:
    """Return a tar header with some fields changed and a correct checksum."""
    fields = ((0, 100), (100, 8), (108, 8), (124, 12), (136, 12), (156, 1), (157, 100), (257, 8),
              (329, 8), (345, 155), (386, 12), (482, 1), (483, 12))  # fmt: skip
    changed = bytearray(block)
    for _ in range(rule.choice((1, 1, 2, 3))):
        start, width = rule.choice(fields)
        value = rule.choice((
            b"\x80" + bytes(width - 1), b"\xff" * width, b"\0" * width, b"7" * width, b"9" * width,
            b"-1" + bytes(max(0, width - 2)), b"\x80" + b"\xff" * (width - 1), rule.randbytes(width),
            b"../../outside/x" + bytes(max(0, width - 15)), b"/etc/passwd" + bytes(max(0, width - 11)),
            rule.choice(b"01234567ALKxgSNDMVXZ").to_bytes() + bytes(width - 1), b"\xff\xfe\n" + bytes(width),
        ))  # fmt: skip
        changed[start : start + width] = value[:width]
    changed[148:156] = b" " * 8
    changed[148:156] = b"%06o\0 " % sum(changed[:512])
    return bytes(changed)


def _pax(rule) -> bytes:
    """Return a PAX header with records of all kinds, including those of sparse files."""
    keys = ("path", "linkpath", "size", "mtime", "uid", "hdrcharset", "comment", "GNU.sparse.major",
            "GNU.sparse.minor", "GNU.sparse.map", "GNU.sparse.size", "GNU.sparse.realsize",
            "GNU.sparse.numblocks", "GNU.sparse.offset", "GNU.sparse.numbytes", "GNU.sparse.name")  # fmt: skip
    values = ("0", "1", "-1", "10", "1.5", "nan", "inf", "9" * 30, "9" * 5000, "a,b", "0,1,2", "1,2,3,4", "",
              "BINARY", "../../outside/x", "x" * 300, "\0", "\n", NAMES[0], "1e9")  # fmt: skip
    body = b""
    for _ in range(rule.choice((1, 2, 3, 5))):
        record = f" {rule.choice(keys)}={rule.choice(values)}\n".encode()
        length = len(record) + len(str(len(record) + 2))
        if rule.random() < 0.2:
            length = rule.choice((0, 1, 2, 10**6, 10**18, int("9" * 30)))
        body += str(length).encode() + record
    if rule.random() < 0.15:
        body = damaged(rule, body)
    return _header("pax", len(body), rule.choice((b"x", b"x", b"g", b"X"))) + _padded(body)


def _make_tar(rule: random.Random) -> Tree:
    files = _odd_idx(rule) if rule.random() < 0.05 else _idx()
    parts = []
    for name, content in files.items():
        parts += [_header(f"data/{name}", len(content)), _padded(content)]
    act = rule.random()
    at = 2 * rule.randrange(len(parts) // 2)
    if act < 0.5:
        parts[at] = _odd_header(rule, parts[at])
    elif act < 0.8:
        parts.insert(at, _pax(rule))
    content = b"".join(parts) + bytes(1024)
    if act >= 0.8:
        content = damaged(rule, content)
    return with_special(rule, _packed(rule, content))


def _packed(rule, content: bytes) -> Tree:
    kind = rule.choice(("", "", "gz", "xz", "bz2"))
    pack = {"": bytes, "gz": lambda content: gzip.compress(content, 1, mtime=0), "bz2": bz2.compress,
            "xz": lambda content: lzma.compress(content, preset=0)}[kind]  # fmt: skip
    content = pack(content)
    if rule.random() < 0.15:
        content = damaged(rule, content)
    return {f"archive.tar{'.' + kind if kind else ''}": content}


@functools.cache
def _zip(kind: int, gzipped: bool, prefix: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", kind) as archive:
        for name, content in _idx().items():
            info = zipfile.ZipInfo(f"{prefix}{name}{'.gz' if gzipped else ''}")
            info.compress_type = kind
            archive.writestr(info, gzip.compress(content, mtime=0) if gzipped else content)
    return packed.getvalue()


def _make_zip(rule: random.Random) -> Tree:
    kinds = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    prefix = rule.choice(("data/", "data/", "", "../../outside/", "/", "a\\b/", "a//./b/"))
    content = _zip(rule.choice(kinds), rule.random() < 0.3, prefix)
    act = rule.random()
    if act < 0.6:
        content = _odd_zip(rule, bytearray(content))
    elif act < 0.95:
        content = damaged(rule, content)
    return with_special(rule, {"archive.zip": content})


def _odd_zip(rule, content: bytearray) -> bytes:
    """Return a .zip with changed fields in its records: of a file, the directory, or its end."""
    marks = {b"PK\3\4": 30, b"PK\1\2": 46, b"PK\5\6": 22}
    places = [(at, size) for mark, size in marks.items() for at in _finds(content, mark)]
    for _ in range(rule.choice((1, 1, 2, 3))):
        start, size = rule.choice(places)
        at, width = start + rule.randrange(4, size, 2), rule.choice((2, 2, 4))
        content[at : at + width] = (rule.choice(EDGES) % 2 ** (8 * width)).to_bytes(width, "little")
    return bytes(content)


def _finds(content: bytes, mark: bytes):
    at = content.find(mark)
    while at >= 0:
        yield at
        at = content.find(mark, at + 1)


def _npy(header: str, data: bytes = b"", version=(1, 0)) -> bytes:
    packed = (header + "\n").encode("latin1", "replace")
    size = struct.pack("<H" if version == (1, 0) else "<I", len(packed) % 2**16)
    return b"\x93NUMPY" + bytes(version) + size + packed + data


def odd_npy(rule: random.Random) -> bytes:
    """Return a .npy file whose header is valid, odd, or not Python at all."""
    shape = rule.choice(("(4,)", "(2, 2)", "(-1,)", "(10**9,)", "(1000000000000,)", "()", "(0,)", "[4]", "4",
                         "(4.0,)", "(True,)", "(9223372036854775807, 2)", "(" * 300 + ")" * 300,
                         f"({'9' * 5000},)", "(0, 9999999999999)", "None"))  # fmt: skip
    kind = rule.choice(("'<f4'", "'<f4'", "'<f8'", "'|O'", "'<U9'", "'|V0'", "'x'", "None", "'<M8[ns]'",
                        "[('a', '<f4')]", "'<f4,<f4'", "'<S0'", "'<U1000000000'", "'|S0'", "['<f4']"))  # fmt: skip
    header = f"{{'descr': {kind}, 'fortran_order': {rule.choice(('False', 'True', '0', 'None'))}, 'shape': {shape}, }}"
    if rule.random() < 0.3:
        header = rule.choice(("", "{", "(", "{'a'", "-" * 3000 + "1", "[" * 3000, "'" * 3 + "x", "\\", "1L",
                              "{**{}}", "{'descr': '<f4'}", "f'{1}'", "\0", "{'shape': (4,), " + "'a':" * 200,
                              "{" + "1:1," * 20_000 + "}", header[:-4], "x" * 60_000))  # fmt: skip
    data = np.arange(rule.choice((0, 3, 4, 8)), dtype=np.float32).tobytes()
    return _npy(header, data, rule.choice(((1, 0), (1, 0), (2, 0), (3, 0), (9, 9))))


@functools.cache
def _recorded() -> dict[str, bytes]:
    packed = {}
    tensors = [["loss", "loss", [], 1.0], ["weights", "a", [2, 3], 1.0]]
    header = {"origin": "PyTorch", "settings": {"depth": 18}, "tensors": tensors}
    values = {"header": np.array(json.dumps(header)), "numbers": np.ones(1 + 6 + 2 * 4)}
    for name, value in values.items():
        file = io.BytesIO()
        np.save(file, value)
        packed[name] = file.getvalue()
    return packed


def _npz(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), content, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def _make_npz(rule: random.Random) -> Tree:
    files = dict(_recorded())
    act = rule.random()
    if act < 0.3:
        files[rule.choice(sorted(files))] = odd_npy(rule)
    elif act < 0.6:
        tensors = [["loss", "loss", [], 1.0], ["a", "b", [2], 1.0]]
        header = {"origin": "x", "settings": {}, "tensors": tensors}
        file = io.BytesIO()
        np.save(file, np.array(dumps(json_like(rule, header)).decode()))
        files["header"] = file.getvalue()
    content = _npz(files)
    if act >= 0.8:
        content = damaged(rule, content)
    elif act >= 0.6:
        content = _odd_zip(rule, bytearray(content))
    return with_special(rule, {"resnet18.npz": content})


def _check_idx(folder: Path, _out: Path):
    from labkit.data import idx

    return idx.check_pair(*_pair(folder), size=(4, 4))


def _read_idx(folder: Path, _out: Path):
    from labkit.data import idx

    return idx.read_pair(*_pair(folder))


def _pair(folder: Path):
    places = ([folder / name, folder / f"{name}.gz"] for name in NAMES)
    return [gz if gz.is_symlink() or gz.exists() else plain for plain, gz in places]


def _named_members(folder: Path, out: Path):
    from labkit.data.sources.members import opened, unpack

    place = next(iter(sorted(folder.glob("archive*"))), folder)
    with opened(place, NAMES) as members:
        return [unpack(members[name], out / name, 1 << 28) for name in NAMES]


def _all_members(folder: Path, _out: Path):
    from labkit.data.sources.members import listed, read

    place = next(iter(sorted(folder.glob("archive*"))), folder)
    with listed(place) as members:
        return [read(member, 1 << 20) for member in members]


def _recorded_step(folder: Path, _out: Path):
    from labkit.migration import recorded

    recorded.FOLDER = folder
    return recorded.load("resnet18"), recorded.settings("resnet18")


READERS = {
    "idx": Reader(_make_idx, (_check_idx, _read_idx)),
    "gz": Reader(_make_gz, (_check_idx, _read_idx, _named_members)),
    "tar": Reader(_make_tar, (_named_members, _all_members)),
    "zip": Reader(_make_zip, (_named_members, _all_members)),
    "npz": Reader(_make_npz, (_recorded_step,), heavy=True),
}
