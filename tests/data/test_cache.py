"""Evaluation from MindSpore's dataset cache: the same images."""

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
from labkit.data import imagefolder
from pathlib import Path

folder, session, server = sys.argv[1], int(sys.argv[2]), sys.argv[3:]

def images(**options):
    options |= {"image_size": 16, "resize": None}
    dataset = imagefolder.create_dataset(folder, 10, do_train=False, **options)
    return [i for i, _ in dataset.create_tuple_iterator(num_epochs=1, output_numpy=True)]

plain = images()
# Only the cache can know the images of files that are no images any more.
# Rows reach it after the pass that read them, or not at all: the next pass adds those.
until = time.monotonic() + 60
while True:
    images(cache_session_id=session)
    held = subprocess.run([*server, "--list_sessions"], capture_output=True, text=True).stdout
    if re.search(rf"^ *{session} +\\d+ +23 ", held, re.M):
        break
    assert time.monotonic() < until, held
    time.sleep(0.2)
read = imagefolder.read_folder(folder)
imagefolder.read_folder = lambda path, deep: read
for path in Path(folder).rglob("*.png"):
    path.write_bytes(b"no image")
after = images(cache_session_id=session)
assert all(map(np.array_equal, plain, after))
print("CACHED", sum(map(len, after)))
images(cache_session_id=session + 1)
"""
SERVER = Path(sys.executable).parent / "dataset-cache"


@pytest.mark.slow
@pytest.mark.skipif(not SERVER.exists(), reason="MindSpore's dataset-cache is not installed")
def test_evaluation_comes_out_of_the_dataset_cache(tmp_path):
    """A session that the server does not have is MindSpore's error."""
    folder, port = numbered(tmp_path / "root", COUNTS), free_port()
    command = [str(SERVER), "-p", str(port)]

    def server(argument):
        options = {"capture_output": True, "text": True, "timeout": 60, "check": True}
        return subprocess.run([*command, argument], **options).stdout

    server("--start")
    try:
        session = int(server("--generate_session").split()[-1])
        done = run_code(CACHED, folder, session, *command, env={"MS_CACHE_PORT": str(port)})
    finally:
        server("--stop")  # takes 7 s
    assert done.stdout.splitlines() == ["CACHED 23"], done.stderr
    assert done.returncode == 1 and "session" in done.stderr
