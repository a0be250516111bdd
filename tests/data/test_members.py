"""Members are found by their last name, unpacked whole, and never written where they ask to be."""

import bz2
import gzip
import hashlib
import io
import lzma
import os
import tarfile
import tracemalloc
import warnings
import zipfile
from random import Random

import pytest

from labkit.data.sources import archives as module
from labkit.data.sources.archives import Member
from labkit.data.sources.members import listed, opened, read, tar_members, unpack
from labkit.errors import InputError

NAMES = ("one", "two")
CONTENT = {"one": b"first" * 1000, "two": b"second" * 1000}


def make(kind, path, files: dict[str, bytes]):
    """Store ``files`` as a folder or an archive at ``path``; return it."""
    if kind == "folder":
        for name, content in files.items():
            target = path / name.replace("../", "up/").lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    elif kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, content)
    else:
        with tarfile.open(path, f"w:{kind.partition('.')[2]}") as archive:
            for name, content in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return path


@pytest.fixture(params=["folder", "zip", "tar", "tar.gz", "tar.xz", "tar.bz2"])
def kind(request):
    return request.param


def collect(path, out, limit=1 << 20) -> dict[str, str]:
    with opened(path, NAMES) as members:
        return {name: unpack(members[name], out / name, limit) for name in NAMES}


@pytest.fixture
def out(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def test_members_at_any_depth_plain_or_gzipped_are_unpacked(tmp_path, out, kind):
    files = {"a/b/one": CONTENT["one"], "two.gz": gzip.compress(CONTENT["two"]), "other": b"x"}
    sums = collect(make(kind, tmp_path / "source", files), out)
    for name in NAMES:
        assert (out / name).read_bytes() == CONTENT[name]
        assert sums[name] == hashlib.sha256(CONTENT[name]).hexdigest()


@pytest.mark.parametrize("place", ["../../{}", "/tmp/evil/{}", "a/../../../{}"])
def test_a_member_is_never_written_where_it_asks_to_be(tmp_path, out, kind, place):
    nested = tmp_path / "deep" / "deeper"
    nested.mkdir(parents=True)
    source = make(kind, nested / "source", {place.format(name): CONTENT[name] for name in NAMES})
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    collect(source, out)
    after = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert after - before == {out / "one", out / "two"}


def test_a_link_in_a_tar_is_not_followed(tmp_path, out):
    secret = tmp_path / "secret"
    secret.write_bytes(b"not yours")
    with tarfile.open(tmp_path / "source.tar", "w") as archive:
        for name, kind in (("one", tarfile.SYMTYPE), ("two", tarfile.LNKTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, str(secret)
            archive.addfile(info)
    with pytest.raises(InputError, match="holds no one, two"):
        collect(tmp_path / "source.tar", out)


def test_the_plain_file_is_preferred_to_the_gzipped_one(tmp_path, out, kind):
    files = {name: CONTENT[name] for name in NAMES} | {"one.gz": gzip.compress(b"older")}
    collect(make(kind, tmp_path / "source", files), out)
    assert (out / "one").read_bytes() == CONTENT["one"]


def test_names_spelt_with_a_dot_are_known(tmp_path):
    make("folder", tmp_path / "source", {"train-images.idx3-ubyte": b"x"})
    with opened(tmp_path / "source", ["train-images-idx3-ubyte"]) as members:
        assert members["train-images-idx3-ubyte"].name.endswith("train-images.idx3-ubyte")


def test_missing_and_doubled_members_are_named(tmp_path, kind):
    source = make(kind, tmp_path / "source", {"one": b"1"})
    with pytest.raises(InputError, match="holds no two; expected one, two"), opened(source, NAMES):
        pass
    files = {"a/one": b"1", "b/one": b"1", "two": b"2"}
    source = make(kind, tmp_path / "again", files)
    with pytest.raises(InputError, match=r"one more than once \(.*a/one and .*b/one\)"):
        with opened(source, NAMES):
            pass


def test_a_gzipped_member_cut_short_is_refused(tmp_path, out, kind):
    files = {"one": b"1", "two.gz": gzip.compress(CONTENT["two"])[:-10]}
    with pytest.raises(InputError, match="two.gz: cut short or damaged"):
        collect(make(kind, tmp_path / "source", files), out)


def test_a_small_file_that_unpacks_to_a_huge_one_is_stopped(tmp_path, out, kind):
    files = {"one": b"1", "two.gz": gzip.compress(bytes(5 << 20))}
    with pytest.raises(InputError, match="unpacks to more than 1048576 bytes"):
        collect(make(kind, tmp_path / "source", files), out)
    assert (out / "two").stat().st_size <= 1 << 20


# ---- all members, by clean names


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz", "tar.xz", "tar.bz2"])
def test_an_archive_cut_short_is_refused(tmp_path, kind, keep):
    noise = {name: hashlib.shake_256(name.encode()).digest(50_000) for name in NAMES}
    whole = make(kind, tmp_path / "whole", noise).read_bytes()
    (tmp_path / "cut").write_bytes(whole[: int(keep * len(whole))])
    for look in (listed, lambda path: opened(path, NAMES)):
        with pytest.raises(InputError, match="cut short|not a whole archive"):
            with look(tmp_path / "cut"):
                pass


def names_of(path) -> list[str]:
    with listed(path) as members:
        return [member.name for member in members]


def test_all_files_are_listed_in_order_and_can_be_read(tmp_path, kind):
    files = {"b/two.gz": CONTENT["two"], "a/one": CONTENT["one"], "zero": b""}
    source = make(kind, tmp_path / "source", files)
    with listed(source) as found:
        content = {member.name: read(member, 1 << 20) for member in found}
    assert content == files
    assert list(content) == (sorted(files) if kind == "folder" else list(files))


def test_directories_are_not_listed_and_names_are_clean(tmp_path):
    with tarfile.open(tmp_path / "source.tar", "w") as archive:
        info = tarfile.TarInfo("./")
        info.type = tarfile.DIRTYPE
        archive.addfile(info)
        archive.addfile(tarfile.TarInfo("./a//one"))
    with zipfile.ZipFile(tmp_path / "source.zip", "w") as archive:
        archive.mkdir("a")
        archive.writestr("a/./one", b"")
    assert names_of(tmp_path / "source.tar") == names_of(tmp_path / "source.zip") == ["a/one"]


HOSTILE_NAMES = {
    "../one": r"'\.\./one' leaves the folder",
    "a/../../one": "leaves the folder",
    "/tmp/one": "'/tmp/one' leaves the folder",
    "a\\..\\one": "leaves the folder",
    "a/o\nne": r"'a/o\\nne' has no usable name",
    "a/\x1b[2Jone": r"'a/\\x1b\[2Jone' has no usable name",
    ".": "has no usable name",
}


@pytest.mark.parametrize("name", HOSTILE_NAMES)
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_a_name_that_leaves_the_folder_is_refused(tmp_path, kind, name):
    source = make(kind, tmp_path / "source", {"fine": b"1", name: b"2"})
    with pytest.raises(InputError, match=f"source: member .*{HOSTILE_NAMES[name]}"):
        names_of(source)


@pytest.mark.parametrize("again", ["a/one", "./a/one"])
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_a_member_that_is_there_twice_is_refused(tmp_path, kind, again):
    source = tmp_path / "source"
    if kind == "zip":
        with zipfile.ZipFile(source, "w") as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in ("a/one", again):
                archive.writestr(name, b"1")
    else:
        with tarfile.open(source, "w") as archive:
            for name in ("a/one", again):
                archive.addfile(tarfile.TarInfo(name))
    with pytest.raises(InputError, match=f"member '{again}' is there more than once"):
        names_of(source)


KINDS = {
    "symbolic link": tarfile.SYMTYPE,
    "hard link": tarfile.LNKTYPE,
    "character device": tarfile.CHRTYPE,
    "block device": tarfile.BLKTYPE,
    "pipe": tarfile.FIFOTYPE,
    "sparse": tarfile.GNUTYPE_SPARSE,
}


@pytest.mark.parametrize("special", KINDS)
def test_anything_but_a_plain_file_in_a_tar_is_refused(tmp_path, special):
    with tarfile.open(tmp_path / "source.tar", "w") as archive:
        info = tarfile.TarInfo("a/one")
        info.type, info.linkname = KINDS[special], "/etc/passwd"
        archive.addfile(info)
    with pytest.raises(InputError, match="member 'a/one' is a link or a device"):
        names_of(tmp_path / "source.tar")


def test_a_link_in_a_zip_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "source.zip", "w") as archive:
        info = zipfile.ZipInfo("a/one")
        info.external_attr = 0o120777 << 16
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(InputError, match="member 'a/one' is a link or a device"):
        names_of(tmp_path / "source.zip")


@pytest.mark.parametrize("garbled", [False, True])
def test_a_tar_that_ends_between_two_members_is_refused(tmp_path, garbled):
    # tarfile alone takes both for the end of the archive.
    whole = make("tar", tmp_path / "whole", {"one": bytes(512), "two": bytes(512)}).read_bytes()
    (tmp_path / "cut").write_bytes(whole[:1024] + (b"x" * 512 + whole[1536:] if garbled else b""))
    with tarfile.open(tmp_path / "cut") as archive:
        assert archive.getnames() == ["one"]
    with pytest.raises(InputError, match="cut short or damaged after 1024 bytes"):
        names_of(tmp_path / "cut")


def test_a_wrong_gzip_checksum_behind_the_last_member_is_refused(tmp_path):
    whole = bytearray(make("tar.gz", tmp_path / "whole", CONTENT).read_bytes())
    whole[-5] ^= 1
    (tmp_path / "bad").write_bytes(whole)
    with pytest.raises(InputError, match="bad: the archive is cut short or damaged .CRC"):
        names_of(tmp_path / "bad")


def test_a_tar_inside_a_tar_is_read_where_it_lies(tmp_path):
    inner = make("tar", tmp_path / "inner", CONTENT).read_bytes()
    outer = make("tar", tmp_path / "outer", {"inner.tar": inner, "bad.tar": inner[:1000]})
    before = sorted(tmp_path.rglob("*"))
    with listed(outer) as (good, bad):
        with good.open() as stream, tar_members(stream, good.name) as found:
            assert {member.name: read(member, 1 << 20) for member in found} == CONTENT
        with pytest.raises(InputError, match="bad.tar: .*cut short"):
            with bad.open() as stream, tar_members(stream, bad.name):
                pass
    assert sorted(tmp_path.rglob("*")) == before


def test_hostile_members_of_an_inner_tar_name_both(tmp_path):
    inner = make("tar", tmp_path / "inner", {"../one": b"1"}).read_bytes()
    with pytest.raises(InputError, match=r"in.tar: member '\.\./one' leaves the folder"):
        with tar_members(io.BytesIO(inner), "in.tar"):
            pass


def test_more_than_the_limit_is_not_read(tmp_path, kind):
    source = make(kind, tmp_path / "source", {"one": bytes(1001)})
    with listed(source) as (member,):
        assert len(read(member, 1001)) == 1001
        with pytest.raises(InputError, match="one: .*1000"):
            read(member, 1000)


def test_a_member_must_have_its_stated_size():
    with pytest.raises(InputError, match="one: 3 bytes; expected 4"):
        read(Member("one", lambda: io.BytesIO(b"abc"), 4), 10)


def test_the_limit_holds_before_a_member_is_opened_and_without_a_stated_size():
    with pytest.raises(InputError, match="one: 11 bytes; expected at most 10"):
        read(Member("one", lambda: pytest.fail("it was opened"), 11), 10)
    with pytest.raises(InputError, match="one: unpacks to more than 2 bytes"):
        read(Member("one", lambda: io.BytesIO(b"abc")), 2)


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz", "tar.xz", "tar.bz2"])
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
            with listed(tmp_path / "bad") as found:
                for one in found:
                    read(one, 1000)
        except InputError:
            refused += 1
    assert refused > 10


def test_a_file_that_cannot_be_written_is_not_called_damaged(tmp_path):
    with opened(make("tar", tmp_path / "source", CONTENT), NAMES) as members:
        with pytest.raises(FileNotFoundError):
            unpack(members["one"], tmp_path / "no folder" / "one", 1 << 20)


def _header(name, size, kind=tarfile.REGTYPE):
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


def _with_size(size):
    """A header of ``size`` bytes, also below zero, with a checksum that is right."""
    block = bytearray(_header("a", 0))
    block[124:136] = b"\xff" * 4 + size.to_bytes(8, "big", signed=True)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def test_a_member_of_less_than_nothing_ends(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(_with_size(-512) + bytes(1024))
    with pytest.raises(InputError, match="has -512 bytes|damaged"):
        names_of(path)


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, b"x"])
def test_a_name_of_200_mb_is_not_read(tmp_path, kind):
    path = tmp_path / "a.tar.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(_header("x", 200 << 20, kind))
        for _ in range(200):
            file.write(b"9" * (1 << 20))
        file.write(_header("a", 0) + bytes(1024))
    tracemalloc.start()
    with pytest.raises(InputError, match="name or header of more than 1048576 bytes"):
        names_of(path)
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()


@pytest.mark.parametrize("pack", [gzip.open, bz2.open, lzma.open], ids=["gz", "bz2", "xz"])
def test_an_archive_that_unpacks_without_end_is_stopped(tmp_path, pack, monkeypatch):
    monkeypatch.setattr(module, "_UNPACKED", 8 << 20)
    path = tmp_path / "a.tar"
    with pack(path, "wb") as file:
        file.write(_header("a", 40 << 20))
        for _ in range(40):
            file.write(bytes(1 << 20))
        file.write(bytes(1024))
    with pytest.raises(InputError, match="unpacks to more than 8388608 bytes"):
        names_of(path)


def test_an_archive_that_unpacks_to_what_is_allowed_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_UNPACKED", 8 << 20)
    path = tmp_path / "a.tar.gz"
    with gzip.open(path, "wb") as file:
        file.write(_header("a", 7 << 20) + bytes(7 << 20) + bytes(1024))
    assert names_of(path) == ["a"]
    with opened(path, ["a"]) as found:
        unpack(found["a"], tmp_path / "out", 7 << 20)
    assert (tmp_path / "out").stat().st_size == 7 << 20


@pytest.mark.parametrize("suffix", ["tar", "zip"])
def test_the_number_of_members_is_limited(tmp_path, suffix, monkeypatch):
    monkeypatch.setattr(module, "MAX_MEMBERS", 3)
    path = tmp_path / f"a.{suffix}"
    for count in (3, 4):
        names = ["a", *(f"b{number}" for number in range(count - 1))]
        if suffix == "tar":
            path.write_bytes(b"".join(_header(name, 0) for name in names) + bytes(1024))
        else:
            with zipfile.ZipFile(path, "w") as archive:
                for name in names:
                    archive.writestr(name, b"")
        if count == 3:
            names_of(path)
        else:
            with pytest.raises(InputError, match="more than 3 members"):
                names_of(path)


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_that_would_be_unpacked_in_one_go_is_refused(tmp_path, kind):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", kind) as archive:
        archive.writestr("a", b"x" * 1000)
    with pytest.raises(InputError, match="expected 0 .stored. or 8 .deflated."):
        names_of(tmp_path / "a.zip")


@pytest.mark.parametrize("record", ["GNU.sparse.major=x", "GNU.sparse.map=1,x", "size=x"])
def test_headers_of_sparse_files_that_make_no_sense_are_damage(tmp_path, record):
    body = f" {record}\n".encode()
    body = str(len(body) + 2).encode() + body
    head = _header("x", len(body), b"x") + body + bytes(512 - len(body))
    (tmp_path / "a.tar").write_bytes(head + _header("a", 0) + bytes(1024))
    try:
        names_of(tmp_path / "a.tar")
    except InputError:
        pass


@pytest.mark.parametrize("kind", ["fifo", "/dev/zero", "nowhere"])
def test_what_is_no_file_is_no_archive(tmp_path, kind):
    path = tmp_path / "a.tar"
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(kind)
    with pytest.raises(InputError):
        names_of(path)
