"""Downloads are whole or absent, continue where they broke off, and are verified by checksum."""

import dataclasses
import hashlib
import os
import socket

import pytest

from labkit.data.sources import download as module
from labkit.data.sources.download import Published, download, fetch, is_address, verify
from labkit.errors import InputError
from tests.support.data_archives import Handler, ranges, served

CONTENT = hashlib.shake_256(b"a file").digest(300_000)
OTHER = hashlib.shake_256(b"another").digest(300_000)
LIMIT = 1 << 20


@pytest.fixture
def server():
    with served({"file": CONTENT}) as server:
        server.address += "/file"
        yield server


@pytest.fixture
def get(server, tmp_path):
    """A function that downloads the served file to `tmp_path/file` once and returns its report."""

    def get(address=server.address, **options):
        lines = []
        download(address, tmp_path / "file", **({"limit": LIMIT, "say": lines.append} | options))
        return lines

    return get


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def break_off(server, get, tmp_path, after=100_000):
    server.cuts = [after]
    with pytest.raises(InputError, match=f"{after} bytes; expected 300000"):
        get()
    assert names(tmp_path) == ["file.part", "file.part.json"]
    assert (tmp_path / "file.part").stat().st_size == after


def test_a_download_is_whole_and_leaves_nothing_else(server, get, tmp_path):
    assert get() == [f"downloading {server.address}"]
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert names(tmp_path) == ["file"] and ranges(server) == [None]


def test_what_broke_off_is_continued(server, get, tmp_path):
    break_off(server, get, tmp_path)
    assert "  continued after 100000 bytes" in get()
    assert (tmp_path / "file").read_bytes() == CONTENT and names(tmp_path) == ["file"]
    assert ranges(server) == [None, "bytes=100000-"]
    assert server.asked[1]["If-Range"] == '"one"'


def test_it_is_continued_more_than_once_in_one_call(server, get, tmp_path):
    server.cuts = [100_000, 0, 50_000]
    lines = get(attempts=4, pause=0)
    assert (tmp_path / "file").read_bytes() == CONTENT
    wanted = [None, "bytes=100000-", "bytes=100000-", "bytes=150000-"]
    assert ranges(server) == wanted
    assert sum("broke off" in line for line in lines) == 3


def test_only_a_failure_that_may_pass_is_tried_again(server, get, monkeypatch):
    """The pause before an attempt doubles each time."""
    waits = []
    monkeypatch.setattr(module.time, "sleep", waits.append)
    server.statuses = [503, 503, 503]
    get(attempts=4, pause=0.5)
    assert waits == [0.5, 1.0, 2.0]
    server.asked.clear()
    server.statuses = [404, 404]
    with pytest.raises(InputError, match="cannot be downloaded .*404.* give --source a folder"):
        get(attempts=5, pause=0)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("headers", "version"),
    [
        ({"Last-Modified": "Sat, 01 Jan 2000 00:00:00 GMT"}, "Sat, 01 Jan 2000 00:00:00 GMT"),
        ({"ETag": 'W/"weak"'}, None),
        ({}, None),
    ],
)
def test_only_a_named_version_is_continued(server, get, tmp_path, headers, version):
    server.headers = headers
    break_off(server, get, tmp_path)
    get()
    assert server.asked[1].get("If-Range") == version
    assert ranges(server)[1] == (version and "bytes=100000-")
    assert (tmp_path / "file").read_bytes() == CONTENT


NUMBERS = '{"address": "ADDRESS", "version": 5, "size": 300000}'
# What changed since the interruption: content, server, record of the part, address.
CHANGES = {
    "no ranges": (CONTENT, dict(ranges=False), None, ""),
    "changed, with If-Range": (OTHER, dict(headers={"ETag": '"two"'}), None, ""),
    "changed, without": (OTHER, dict(headers={"ETag": '"two"'}, if_range=False), None, ""),
    "other size": (OTHER[:200_000], dict(headers={}, if_range=False), None, ""),
    "shorter than the part": (OTHER[:1000], {}, None, ""),
    "another place": (CONTENT, dict(shift=1), None, ""),
    "another address": (OTHER, {}, None, "?other"),
    **{
        f"record {state}": (OTHER, {}, state, "")
        for state in ("", "no json", "[1]", '{"address": 1}', NUMBERS)
    },
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_cannot_be_continued_is_fetched_anew(server, get, tmp_path, change):
    break_off(server, get, tmp_path)
    server.files["file"], changes, state, query = CHANGES[change]
    vars(server).update(changes)
    if state is not None:
        (tmp_path / "file.part.json").write_text(state.replace("ADDRESS", server.address))
    get(server.address + query)
    assert (tmp_path / "file").read_bytes() == server.files["file"]
    if state is not None or query:
        assert ranges(server) == [None, None]


def test_what_cannot_be_downloaded_is_said(get, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for port, reason in ((silent.getsockname()[1], "timed out"), (9, "refused")):
            with pytest.raises(InputError, match=f"cannot be downloaded .*{reason}"):
                get(f"http://127.0.0.1:{port}/file")
    assert names(tmp_path) == []
    with pytest.raises(InputError, match="expected an address"):
        get("http://[::1/file")


def test_a_whole_part_is_taken_without_asking_again(server, get, tmp_path):
    break_off(server, get, tmp_path)
    (tmp_path / "file.part").write_bytes(CONTENT)
    get()
    assert len(server.asked) == 1 and names(tmp_path) == ["file"]


def test_an_unasked_part_is_refused(server, get, monkeypatch):
    monkeypatch.setattr(Handler, "send_response", lambda self, _: self.send_response_only(206))
    with pytest.raises(InputError, match="the server sent a part; expected the whole file"):
        get()


def test_more_than_the_limit_is_refused_and_not_kept(server, get, tmp_path):
    server.length = False
    with pytest.raises(InputError, match="more than the 299999 bytes expected"):
        get(limit=299_999)
    assert names(tmp_path) == []
    get(limit=300_000)


def test_all_is_written_before_the_file_has_its_name(server, get, monkeypatch):
    sizes = []

    def replace(old, new, real=os.replace):
        sizes.append(os.stat(old).st_size)
        real(old, new)

    # So few bytes stay in the buffer until the file is closed.
    server.files["file"] = CONTENT[:100]
    monkeypatch.setattr(os, "replace", replace)
    get()
    assert sizes[-1] == 100


def test_progress_is_said(server, get, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SAY_EVERY", -1.0)
    server.files["file"] = CONTENT * 10
    lines = get(limit=len(server.files["file"]))
    assert lines == [f"downloading {server.address}"] + [f"  {n} of 2 MiB" for n in (1, 2, 2)]
    # A length that is not a number is ignored.
    (tmp_path / "file").unlink()
    server.length, server.headers = False, {"Content-Length": "many"}
    assert "  2 MiB" in get(limit=len(server.files["file"]))
    assert (tmp_path / "file").read_bytes() == server.files["file"]


# ---- verification


SUMS = {name: hashlib.new(name, CONTENT).hexdigest() for name in ("sha256", "md5")}
PUBLISHED = Published("file", len(CONTENT), SUMS)


def test_a_published_file_is_fetched_once_and_verified_each_time(server, tmp_path):
    folder = tmp_path / "new"
    for _ in range(2):
        assert fetch(PUBLISHED, server.address, folder, say=list().append) == folder / "file"
    assert len(server.asked) == 1
    # With the same size and ETag, only the checksum reveals other content.
    (folder / "file").write_bytes(OTHER)
    with pytest.raises(InputError, match="SHA256 .*expected .*It is removed; the next call"):
        fetch(PUBLISHED, server.address, folder)
    assert not folder.exists()
    fetch(PUBLISHED, server.address, folder)
    for changed, message in (
        (dict(sums=SUMS | {"sha256": "0" * 64}), f"SHA256 {SUMS['sha256']}; expected 0000"),
        (dict(sums=SUMS | {"md5": "0" * 32}), f"MD5 {SUMS['md5']}; expected 0000"),
        (dict(size=300_001), "300000 bytes; expected 300001"),
    ):
        with pytest.raises(InputError, match=message):
            verify(folder / "file", dataclasses.replace(PUBLISHED, **changed))


@pytest.mark.parametrize(
    "address",
    ["http://.foo/", "http://[::1/", "http://", "http://a..b/", "http://a:x/", "https:///x",
     "http://" + "a" * 64 + ".org/", "http://a/b c", "http://a/\n", "http://a/é"],
)  # fmt: skip
def test_what_is_no_address_is_refused_before_anything_is_asked(address):
    with pytest.raises(InputError, match="expected an address"):
        is_address(address)
    for right in ("http://localhost:1/x", "https://a.org/b%20c", "http://[::1]/"):
        assert is_address(right) and not is_address(f"x{right}")
