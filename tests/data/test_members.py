"""Members are found by their last name, unpacked whole, and never written where they ask to be."""

import gzip
import hashlib
import io
import tarfile
import zipfile

import pytest

from labkit.data.members import opened, unpack
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


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no one, two"), opened(tmp_path, NAMES):
        pass


@pytest.mark.parametrize("kind", ["zip", "tar.gz", "tar.xz", "tar.bz2"])
@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9])
def test_an_archive_cut_short_is_refused(tmp_path, out, kind, keep):
    noise = {name: hashlib.shake_256(name.encode()).digest(50_000) for name in NAMES}
    whole = make(kind, tmp_path / "whole", noise).read_bytes()
    (tmp_path / "cut").write_bytes(whole[: int(keep * len(whole))])
    with pytest.raises(InputError, match="cut short|not a whole archive"):
        collect(tmp_path / "cut", out)


def test_a_gzipped_member_cut_short_is_refused(tmp_path, out, kind):
    files = {"one": b"1", "two.gz": gzip.compress(CONTENT["two"])[:-10]}
    with pytest.raises(InputError, match="two.gz: cut short or damaged"):
        collect(make(kind, tmp_path / "source", files), out)


def test_a_file_that_is_no_archive_is_refused(tmp_path):
    (tmp_path / "text").write_text("nothing of the kind")
    with pytest.raises(InputError, match="not a whole archive; expected a folder, .zip or .tar"):
        with opened(tmp_path / "text", NAMES):
            pass


def test_a_small_file_that_unpacks_to_a_huge_one_is_stopped(tmp_path, out, kind):
    files = {"one": b"1", "two.gz": gzip.compress(bytes(5 << 20))}
    with pytest.raises(InputError, match="unpacks to more than 1048576 bytes"):
        collect(make(kind, tmp_path / "source", files), out)
    assert (out / "two").stat().st_size <= 1 << 20
