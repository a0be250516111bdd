"""A training killed by SIGKILL, at any moment and often, ends as one that was left in peace."""

import random
import signal
import subprocess
import sys
import time

import pytest

from labkit.training.checkpoint import checkpoints
from labkit.training.records import read_records
from tests.faults.killed_training import MOMENTS
from tests.support.trainings import ROOT, comparable

SECONDS = 60  # for one child to come to its end


def child(folder, moment):
    return subprocess.Popen(
        [sys.executable, "-m", "tests.faults.killed_training", str(folder), moment],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end_of(process):
    """Return (exit code, standard output) of a child."""
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode in (0, -signal.SIGKILL), err[-3000:]
    return process.returncode, out


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """(SHA-256 of the final Parameters, records) of a training that nobody killed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    code, out = end_of(child(folder, "never"))
    assert code == 0
    return out.split()[-1], comparable(read_records(folder / "records.csv").rows)


def assert_ends_as(undisturbed, folder):
    code, out = end_of(child(folder, "never"))
    assert code == 0 and "resumed after micro-batch" in out
    assert out.split()[-1] == undisturbed[0]
    assert comparable(read_records(folder / "records.csv").rows) == undisturbed[1]
    assert len(checkpoints(folder / "checkpoint")) == 2
    assert not list((folder / "checkpoint").glob(".part*"))


def test_at_the_worst_moments(undisturbed, tmp_path):
    """One after another on the same folder; each process takes up what the killed one left."""
    for moment in MOMENTS:
        if moment != "never":
            code, out = end_of(child(tmp_path, moment))
            assert code == -signal.SIGKILL, (moment, out)
    # Far enough that every moment met a training under way, and not at its end.
    assert 8 <= int(checkpoints(tmp_path / "checkpoint")[-1].stem[-9:]) < 60
    assert_ends_as(undisturbed, tmp_path)


@pytest.mark.slow
def test_from_outside_at_random_moments(undisturbed, tmp_path):
    names = set()
    for _ in range(3):
        process = child(tmp_path, "never")
        limit = time.monotonic() + SECONDS
        # Not in the seconds in which it only imports and compiles.
        while {path.name for path in checkpoints(tmp_path / "checkpoint")} <= names:
            assert time.monotonic() < limit and process.poll() is None
            time.sleep(0.005)
        time.sleep(random.uniform(0, 0.3))
        process.kill()
        assert end_of(process)[0] == -signal.SIGKILL
        names = {path.name for path in checkpoints(tmp_path / "checkpoint")}
        assert names
    assert_ends_as(undisturbed, tmp_path)
