"""Members are found by file name, unpacked whole, and never written to the path they state."""

import bz2
import gzip
import hashlib
import io
import lzma
import os
import tarfile
import tracemalloc
import zipfile
from random import Random

import pytest

from labkit.data.sources import archives
from labkit.data.sources.archives import Member
from labkit.data.sources.members import listed, opened, read, tar_members, unpack
from labkit.errors import InputError
from tests.support.data_archives import pack, special, tar

NAMES = ("one", "two")
CONTENT = {"one": b"first" * 1000, "two": b"second" * 1000}
PACKED = ("zip", "tar", "tar.gz", "tar.xz", "tar.bz2")


def make(kind, path, files):
    """Store names and contents as a folder or an archive at ``path``; return it."""
    return pack(kind, path, list(files.items()) if isinstance(files, dict) else files)


@pytest.fixture(params=["folder", *PACKED])
def kind(request):
    return request.param


@pytest.fixture
def out(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def collect(path, out, limit=1 << 20) -> dict[str, str]:
    with opened(path, NAMES) as members:
        return {name: unpack(members[name], out / name, limit) for name in NAMES}


def names_of(path) -> list[str]:
    with listed(path) as members:
        return [member.name for member in members]


def test_members_at_any_depth_plain_or_gzipped_are_unpacked(tmp_path, out, kind):
    """A plain file is preferred to a gzipped one."""
    files = {"a/b/one": CONTENT["one"], "two.gz": gzip.compress(CONTENT["two"]), "other": b"x"}
    files["one.gz"] = gzip.compress(b"older")
    sums = collect(make(kind, tmp_path / "source", files), out)
    for name in NAMES:
        assert (out / name).read_bytes() == CONTENT[name]
        assert sums[name] == hashlib.sha256(CONTENT[name]).hexdigest()
    with pytest.raises(FileNotFoundError):  # the archive is not called damaged
        collect(tmp_path / "source", out / "no folder")


@pytest.mark.parametrize("place", ["../../{}", "/tmp/evil/{}", "a/../../../{}"])
def test_a_member_is_never_written_where_it_asks_to_be(tmp_path, out, kind, place):
    nested = tmp_path / "deep" / "deeper"
    nested.mkdir(parents=True)
    source = make(kind, nested / "source", {place.format(name): CONTENT[name] for name in NAMES})
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    collect(source, out)
    after = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert after - before == {out / "one", out / "two"}


def test_a_link_in_a_tar_is_not_followed_and_names_spelt_with_a_dot_are_known(tmp_path, out):
    (tmp_path / "secret").write_bytes(b"not yours")
    secret = str(tmp_path / "secret")
    members = [special("one", tarfile.SYMTYPE, secret), special("two", tarfile.LNKTYPE, secret)]
    source = make("tar", tmp_path / "a.tar", [*members, ("train-images.idx3-ubyte", b"x")])
    with pytest.raises(InputError, match="holds no one, two"):
        collect(source, out)
    with opened(source, ["train-images-idx3-ubyte"]) as members:
        assert read(members["train-images-idx3-ubyte"], 1) == b"x"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"one": b"1"}, "holds no two; expected one, two"),
        ({"a/one": b"", "b/one": b"", "two": b""}, r"one more than once \(.*a/one and .*b/one\)"),
        (
            {"one": b"1", "two.gz": gzip.compress(CONTENT["two"])[:-10]},
            "two.gz: cut short or damaged",
        ),
        (
            {"one": b"1", "two.gz": gzip.compress(bytes(5 << 20))},
            "unpacks to more than 1048576 bytes",
        ),
    ],
    ids=["missing", "twice", "cut", "bomb"],
)
def test_what_cannot_be_unpacked_is_refused(tmp_path, out, kind, files, message):
    with pytest.raises(InputError, match=message):
        collect(make(kind, tmp_path / "source", files), out)
    assert all(path.stat().st_size <= 1 << 20 for path in out.iterdir())


# ---- all members, by clean names


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("kind", PACKED)
def test_an_archive_cut_short_is_refused(tmp_path, kind, keep):
    noise = {name: hashlib.shake_256(name.encode()).digest(50_000) for name in NAMES}
    whole = make(kind, tmp_path / "whole", noise).read_bytes()
    (tmp_path / "cut").write_bytes(whole[: int(keep * len(whole))])
    for look in (listed, lambda path: opened(path, NAMES)):
        with pytest.raises(InputError, match="cut short|not a whole archive"):
            with look(tmp_path / "cut"):
                pass


def test_all_files_are_listed_in_order_and_can_be_read(tmp_path, kind):
    files = {"b/two.gz": CONTENT["two"], "a/one": CONTENT["one"], "zero": b""}
    with listed(make(kind, tmp_path / "source", files)) as members:
        content = {member.name: read(member, 1 << 20) for member in members}
        with pytest.raises(InputError, match="(two.gz|one): .*4999"):
            for member in members:
                read(member, 4999)
    assert content == files
    assert list(content) == (sorted(files) if kind == "folder" else list(files))


def test_directories_are_not_listed_and_names_are_clean(tmp_path):
    members = [special("./", tarfile.DIRTYPE), ("./a//one", b"")]
    with zipfile.ZipFile(tmp_path / "source.zip", "w") as archive:
        archive.mkdir("a")
        archive.writestr("a/./one", b"")
    source = make("tar", tmp_path / "source.tar", members)
    assert names_of(source) == names_of(tmp_path / "source.zip") == ["a/one"]


HOSTILE_NAMES = {
    "../one": r"'\.\./one' leaves the folder",
    "/tmp/one": "'/tmp/one' leaves the folder",
    "a\\..\\one": "leaves the folder",
    "a/\x1b[2Jone": r"'a/\\x1b\[2Jone' has no usable name",
    ".": "has no usable name",
    "fine": "'fine' appears more than once",
    "./fine": "'./fine' appears more than once",
}


@pytest.mark.parametrize("name", HOSTILE_NAMES)
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_a_name_that_leaves_the_folder_or_is_there_twice_is_refused(tmp_path, kind, name):
    source = make(kind, tmp_path / "source", [("fine", b"1"), (name, b"2")])
    with pytest.raises(InputError, match=f"source: member .*{HOSTILE_NAMES[name]}"):
        names_of(source)


def zipped(mode, name, content, kind=zipfile.ZIP_STORED) -> bytes:
    """Return a .zip with one member that has this file mode, such as that of a link."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", kind) as archive:
        info = zipfile.ZipInfo(name)
        info.external_attr, info.compress_type = mode << 16, kind
        archive.writestr(info, content)
    return packed.getvalue()


def _header(name, size, kind=tarfile.REGTYPE):
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


def _with_size(size):
    """Return a header that states ``size`` bytes, possibly negative, with a right checksum."""
    block = bytearray(_header("a", 0))
    block[124:136] = b"\xff" * 4 + size.to_bytes(8, "big", signed=True)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


TWO = tar([("one", bytes(512)), ("two", bytes(512))])
CHECKSUM = bytearray(tar(CONTENT.items(), "w:gz"))
CHECKSUM[-5] ^= 1
TYPES = ("SYMTYPE", "LNKTYPE", "CHRTYPE", "BLKTYPE", "FIFOTYPE", "GNUTYPE_SPARSE")
HOSTILE = {
    **{
        name: (tar([special("a/one", getattr(tarfile, name), "/x")]), "'a/one' is a link or a dev")
        for name in TYPES
    },
    "link in a zip": (zipped(0o120777, "a/one", "/etc/passwd"), "'a/one' is a link or a device"),
    # zipfile would decompress these all at once.
    "bzip2": (zipped(0, "a", "x" * 999, zipfile.ZIP_BZIP2), "expected 0 .stored. or 8 .deflated"),
    "lzma": (zipped(0, "a", "x" * 999, zipfile.ZIP_LZMA), "expected 0 .stored. or 8 .deflated"),
    # tarfile alone takes both faults for the end of the archive.
    "ends between two members": (TWO[:1024], "cut short or damaged after 1024 bytes"),
    "garbled between two": (TWO[:1024] + b"x" * 512 + TWO[1536:], "damaged after 1024 bytes"),
    "gzip checksum": (bytes(CHECKSUM), "bad: the archive is cut short or damaged .CRC"),
    "less than nothing": (_with_size(-512) + bytes(1024), "has -512 bytes|damaged"),
}


@pytest.mark.parametrize("fault", HOSTILE)
def test_a_hostile_archive_is_refused(tmp_path, fault):
    content, message = HOSTILE[fault]
    (tmp_path / "bad").write_bytes(content)
    with pytest.raises(InputError, match=message):
        names_of(tmp_path / "bad")
    if "between" in fault:
        with tarfile.open(tmp_path / "bad") as archive:
            assert archive.getnames() == ["one"]


def test_an_archive_inside_a_tar_is_read_where_it_lies(tmp_path):
    """A .zip at the end of a tar is a member of it and does not make the tar a .zip."""
    inner = {
        "good.tar": tar(CONTENT.items()),
        "bad.tar": tar(CONTENT.items())[:1000],
        "hostile.tar": tar([("../one", b"1")]),
        "inner.zip": make("zip", tmp_path / "inner", CONTENT).read_bytes(),
    }
    outer = make("tar", tmp_path / "outer", inner)
    before = sorted(tmp_path.rglob("*"))
    with listed(outer) as (good, *others, last):
        assert last.name == "inner.zip" and read(last, 1 << 20) == inner["inner.zip"]
        with good.open() as stream, tar_members(stream, good.name) as members:
            assert {member.name: read(member, 1 << 20) for member in members} == CONTENT
        messages = ("bad.tar: .*cut short", r"hostile.tar: member '\.\./one' leaves the folder")
        for bad, message in zip(others, messages, strict=True):
            with pytest.raises(InputError, match=message):
                with bad.open() as stream, tar_members(stream, bad.name):
                    pass
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("content", "size", "limit", "message"),
    [
        (b"abc", 4, 10, "one: 3 bytes; expected 4"),
        (None, 11, 10, "one: 11 bytes; expected at most 10"),  # before it is opened
        (b"abc", None, 2, "one: unpacks to more than 2 bytes"),
    ],
)
def test_a_member_has_its_stated_size_and_no_more_than_the_limit(content, size, limit, message):
    member = Member("one", lambda: io.BytesIO(content) if content else pytest.fail("opened"), size)
    with pytest.raises(InputError, match=message):
        read(member, limit)
    assert read(Member("one", lambda: io.BytesIO(b"abc"), 3), 3) == b"abc"


@pytest.mark.parametrize("kind", PACKED)
def test_any_damage_is_bad_input_and_no_traceback(tmp_path, kind):
    noise = {f"{name}.bin": hashlib.shake_256(name.encode()).digest(300) for name in NAMES}
    whole = make(kind, tmp_path / "whole", noise).read_bytes()
    random, refused = Random(1), 0
    for _ in range(200):
        content = bytearray(whole)
        for _ in range(random.choice([1, 2, 20])):
            content[random.randrange(len(content))] = random.randrange(256)
        (tmp_path / "bad").write_bytes(content)
        try:
            with listed(tmp_path / "bad") as members:
                for member in members:
                    read(member, 1000)
        except InputError:
            refused += 1
    assert refused > 10


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, b"x"])
def test_a_name_of_60_mb_is_not_read(tmp_path, kind):
    path = tmp_path / "a.tar.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(_header("x", 60 << 20, kind))
        for _ in range(60):
            file.write(b"9" * (1 << 20))
        file.write(_header("a", 0) + bytes(1024))
    tracemalloc.start()
    with pytest.raises(InputError, match="name or header of more than 1048576 bytes"):
        names_of(path)
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()


@pytest.mark.parametrize("pack", [gzip.open, bz2.open, lzma.open], ids=["gz", "bz2", "xz"])
def test_an_archive_that_unpacks_without_end_is_stopped(tmp_path, pack, monkeypatch):
    monkeypatch.setattr(archives, "_UNPACKED", 8 << 20)
    path = tmp_path / "a.tar"
    for size in (7 << 20, 40 << 20):
        with pack(path, "wb") as file:
            file.write(_header("a", size) + bytes(size) + bytes(1024))
        if size < 8 << 20:
            with opened(path, ["a"]) as members:
                unpack(members["a"], tmp_path / "out", size)
            assert names_of(path) == ["a"] and (tmp_path / "out").stat().st_size == size
    with pytest.raises(InputError, match="unpacks to more than 8388608 bytes"):
        names_of(path)


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_the_number_of_members_is_limited(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(archives, "MAX_MEMBERS", 3)
    assert names_of(make(kind, tmp_path / "a", dict.fromkeys("abc", b""))) == ["a", "b", "c"]
    with pytest.raises(InputError, match="more than 3 members"):
        names_of(make(kind, tmp_path / "b", dict.fromkeys("abcd", b"")))


@pytest.mark.parametrize(
    ("record", "damaged"),
    [("GNU.sparse.major=x", False), ("GNU.sparse.map=1,x", True), ("size=x", False)],
)
def test_headers_of_sparse_files_that_make_no_sense(tmp_path, record, damaged):
    """A header that tarfile cannot read is damage; one that it ignores changes nothing."""
    body = f" {record}\n".encode()
    body = str(len(body) + 2).encode() + body
    head = _header("x", len(body), b"x") + body + bytes(512 - len(body))
    (tmp_path / "a.tar").write_bytes(head + _header("a", 0) + bytes(1024))
    if damaged:
        with pytest.raises(InputError, match="cut short or damaged"):
            names_of(tmp_path / "a.tar")
    else:
        assert names_of(tmp_path / "a.tar") == ["a"]


@pytest.mark.parametrize("kind", ["fifo", "/dev/zero", "nowhere"])
def test_what_is_no_file_is_no_archive(tmp_path, kind):
    path = tmp_path / "a.tar"
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(kind)
    with pytest.raises(InputError):
        names_of(path)
