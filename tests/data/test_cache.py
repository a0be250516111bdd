"""Evaluation from MindSpore's dataset cache: the same images, or a message if there is no cache."""

import subprocess
import sys
from pathlib import Path

import pytest

from labkit.ranks.launch import free_port
from tests.support.image_files import numbered
from tests.support.programs import run_code

COUNTS = {"ant": 7, "bee": 7, "cow": 9}

# In a separate process, because MindSpore reads the server's port when it is imported.
CACHED = """
import re
import subprocess
import sys
import time
import numpy as np
from labkit.data.imagefolder import create_dataset
from labkit.errors import InputError
from pathlib import Path

folder, session, server = sys.argv[1], int(sys.argv[2]), sys.argv[3:]

def images(**options):
    dataset = create_dataset(folder, 10, do_train=False, image_size=16, resize=None, **options)
    return [i for i, _ in dataset.create_tuple_iterator(num_epochs=1, output_numpy=True)]

try:
    create_dataset(folder, 10, do_train=False, cache_session_id=session + 1)
except InputError as error:
    print("REFUSED", error)
for rank in range(2):
    ranks = dict(rank_size=2, rank_id=rank)
    plain, filled = images(**ranks), images(cache_session_id=session, **ranks)
    again = images(cache_session_id=session, **ranks)
    for cached in (filled, again):
        assert len(cached) == len(plain) == 2 and all(map(np.array_equal, plain, cached))
    print("EQUAL", rank)
# Only the cache can know the images of files that are no images any more.
# Rows reach it after the pass that read them, or not at all: the next pass adds those.
until = time.monotonic() + 60
while True:
    before = images(cache_session_id=session)
    held = subprocess.run([*server, "--list_sessions"], capture_output=True, text=True).stdout
    if re.search(rf"^ *{session} +\\d+ +23 ", held, re.M):
        break
    assert time.monotonic() < until, held
    time.sleep(0.2)
for path in Path(folder).rglob("*.png"):
    path.write_bytes(b"no image")
after = images(cache_session_id=session, check=False)
assert all(map(np.array_equal, before, after))
print("CACHED", sum(map(len, after)))
"""
SERVER = Path(sys.executable).parent / "dataset-cache"


def server_command(port) -> list[str]:
    return [str(SERVER), "-p", str(port)]


def cached(folder, session, port):
    return run_code(
        CACHED, folder, session, *server_command(port), env={"MS_CACHE_PORT": str(port)}
    )


@pytest.mark.slow
@pytest.mark.skipif(not SERVER.exists(), reason="MindSpore's dataset-cache is not installed")
def test_evaluation_comes_out_of_the_dataset_cache(tmp_path):
    folder, port = numbered(tmp_path / "root", COUNTS), free_port()

    def server(*arguments):
        command = [*server_command(port), *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=True
        ).stdout

    server("--start")
    try:
        session = int(server("--generate_session").split()[-1])
        done = cached(folder, session, port)
    finally:
        stopping = subprocess.Popen([*server_command(port), "--stop"], stdout=subprocess.DEVNULL)
    try:
        without = cached(numbered(tmp_path / "other", COUNTS), 7, free_port())
    finally:
        assert stopping.wait(60) == 0  # stopping takes 7 s
    said = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert said[0].startswith("REFUSED cache_session_id: expected") and len(said) == 4
    assert f"got {session + 1} (" in said[0] and "session" in said[0].rpartition("(")[2]
    assert said[1:] == ["EQUAL 0", "EQUAL 1", "CACHED 23"]
    assert "REFUSED cache_session_id: expected" in without.stdout
    assert "unreachable" in without.stdout and "dataset-cache --start" in without.stdout
