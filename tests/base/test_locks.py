"""One process at a time writes a folder; the owner is named, and a dead owner is recognised."""

import errno
import fcntl
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys

import pytest

from labkit.base import locks
from labkit.base.locks import locked
from labkit.errors import InputError

HOLDS = """
import os, sys
from labkit.base.locks import locked
with locked(sys.argv[1], "a training"):
    print(os.getpid(), flush=True)
    sys.stdin.readline()
"""
DEAD = 2**30


def holder(folder, code=HOLDS):
    """Start a process that holds the lock of ``folder`` until it reads a line or is killed."""
    pipe = subprocess.PIPE
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdin=pipe, stdout=pipe, text=True
    )
    assert child.stdout.readline()
    return child


def left(folder, **changed):
    """Leave the lock of a process that has ended."""
    named = {**locks.owner(), "what": "a training", "pid": DEAD, **changed}
    folder.mkdir(exist_ok=True)
    (folder / ".lock").write_text(json.dumps(named) + "\n")


def take(folder):
    """Take the lock; return the lines that are said."""
    said = []
    with locked(folder, "a test", said.append):
        named = json.loads((folder / ".lock").read_text())
        assert (named["pid"], named["what"]) == (os.getpid(), "a test")
        assert named["host"] == socket.gethostname()
    assert not (folder / ".lock").exists()
    return said


def test_a_second_process_is_refused_with_host_and_process(tmp_path):
    folder = tmp_path / "new" / "run"
    child = holder(folder)
    words = f"run is in use by a training, process {child.pid} on {socket.gethostname()}$"
    with child:
        with pytest.raises(InputError, match=words), locked(folder, "a test"):
            pass
        child.communicate("\n")
    assert take(folder) == []


def test_this_very_process_is_refused_too(tmp_path):
    with locked(tmp_path, "a run"):
        with pytest.raises(InputError, match=f"by a run, process {os.getpid()} on "):
            take(tmp_path)
        assert take(tmp_path / "below") == []
    assert take(tmp_path) == []


@pytest.mark.parametrize("forks", [False, True])
def test_the_lock_of_a_killed_process_is_taken_over_and_said(tmp_path, forks):
    """Its forked child, such as a data worker, may outlive it and does not hold the lock."""
    fork = "    if not os.fork():\n        sys.stdin.read()\n    print"
    child = holder(tmp_path, HOLDS.replace("    print", fork) if forks else HOLDS)
    child.kill()
    assert child.wait() == -signal.SIGKILL
    (said,) = take(tmp_path)
    child.stdin.close()
    child.stdout.close()
    words = f"left locked by a training, process {child.pid} on {socket.gethostname()}, which has"
    assert f"{words} ended; taken over" in said
    assert take(tmp_path) == []


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"pid": os.getpid(), "created": 1.0},
        {"pid": os.getpid(), "boot": "before"},
        {"pid": None},
        {"pid": "x"},
    ],
    ids=["dead", "its number is another's", "before the machine was started", "none", "a text"],
)
def test_who_has_ended(tmp_path, changed):
    left(tmp_path, **changed)
    (said,) = take(tmp_path)
    assert "which has ended; taken over" in said


@pytest.mark.parametrize(
    "changed",
    [
        {},
        *({"created": created} for created in (math.nan, math.inf, "now", 10**400, None)),
        {"host": "container", "space": 1},
    ],
    ids=["alive", "nan", "infinity", "a text", "a large number", "none", "a container's"],
)
def test_a_lock_that_nobody_holds_keeps_nobody_out(tmp_path, changed):
    """In a copy of a folder in use, the named process lives but holds the original's lock."""
    left(tmp_path, **{"pid": os.getpid(), **changed})
    (said,) = take(tmp_path)
    assert said.startswith(f"{tmp_path} was left locked by a training, process {os.getpid()} on ")
    assert said.endswith(", which does not hold it; taken over")


def test_a_folder_made_anew_keeps_the_lock_of_its_next_owner(tmp_path):
    folder = tmp_path / "run"
    with locked(folder, "a training"):
        shutil.rmtree(folder)
        second = holder(folder)
    with second:
        assert json.loads((folder / ".lock").read_text())["pid"] == second.pid
        with pytest.raises(InputError, match=f"process {second.pid} on "):
            take(folder)
        second.communicate("\n")
    assert take(folder) == []


@pytest.mark.parametrize("text", ["not json", "[1]", '{"packages": 1}', "true", "[" * 4000, "\xff"])
def test_the_lock_file_of_another_program_is_left(tmp_path, text):
    (tmp_path / ".lock").write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match=r"/.lock is of another program; .* remove it$"):
        take(tmp_path)
    assert (tmp_path / ".lock").read_text(encoding="latin-1") == text


def test_what_a_lock_file_says_is_printed_in_one_line_without_escapes(tmp_path):
    left(tmp_path, what="a\x1b]0;x\x07\nb\ud800", host="node\u202e7", boot="other", pid=1)
    with pytest.raises(
        InputError, match=r"process 1 on .*another host: .* remove .*/.lock"
    ) as refused:
        take(tmp_path)
    text = str(refused.value)
    assert r"locked by a\u001b]0;x\u0007\nb\ufffd, process".replace(r"\ufffd", "\ufffd") in text
    assert "on node\\u202e7, another host" in text and text.encode() and "\n" not in text


def test_who_could_not_read_its_boot_is_not_of_another_boot(tmp_path):
    named = locks.owner() | {"pid": DEAD}
    assert locks.has_ended(named) is True
    assert locks.has_ended(named | {"boot": None, "space": None}) is None


@pytest.mark.parametrize("text", ["", "123\n", "{}", '{"pid": "x"}', '{"pid": null}', "\0" * 200])
def test_what_names_nobody_keeps_nobody_out(tmp_path, text):
    """Earlier versions of labkit left their PID in the file for good; a power cut leaves zeros."""
    (tmp_path / ".lock").write_text(text)
    assert take(tmp_path) == []


@pytest.fixture
def no_locks(request, monkeypatch):
    """A file system on which every lock raises an error."""

    def refuse(*_):
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(locks, "_SAID", set())


@pytest.mark.parametrize("no_locks", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP], indirect=True)
def test_a_file_system_without_locks(no_locks, tmp_path):
    """This is said once; the named process keeps others out unless it has ended."""
    (said,) = take(tmp_path)
    assert said.startswith("the file system of ") and "has no locks" in said
    assert take(tmp_path) == []
    with locked(tmp_path, "a training"):
        with pytest.raises(InputError, match=f"a training, process {os.getpid()} on "):
            take(tmp_path)
    left(tmp_path)
    assert "which has ended; taken over" in take(tmp_path)[0]
    for changed in ({"host": "node7", "boot": "other"}, {"host": "container", "space": 1}):
        left(tmp_path, **changed)
        with pytest.raises(InputError, match="another host"):
            take(tmp_path)


@pytest.mark.parametrize("no_locks", [errno.EIO], indirect=True)
def test_another_error_is_an_error(no_locks, tmp_path):
    with pytest.raises(InputError, match="cannot write to .*Input/output error"):
        take(tmp_path)


def test_links_and_pipes_are_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(outside)
    with pytest.raises(InputError, match="cannot write to"):
        take(tmp_path / "run")
    assert outside.read_text() == "mine"
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / ".lock")
    with pytest.raises(InputError, match="is not a plain file"):
        take(tmp_path / "pipe")


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "run", "/proc/self"):
        with pytest.raises(InputError, match="cannot write to"), locked(folder, "a test"):
            pass
