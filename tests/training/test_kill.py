"""A training killed by SIGKILL at the worst moments ends as one that was left in peace.

At random moments, and of every kind: ``python -m tests.campaigns.kills``.
"""

import signal
import subprocess
import sys

import pytest

from labkit.training.checkpoint import checkpoints
from labkit.training.records import read_records
from tests.support.killed_training import MOMENTS
from tests.support.trainings import ROOT, comparable

SECONDS = 120  # for one child to come to its end


def train(folder, *moment):
    """Let a child train in ``folder``; return (exit code, what it has printed)."""
    command = [sys.executable, "-m", "tests.support.killed_training", "wide", folder, *moment]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr[-3000:]
    return done.returncode, done.stdout


def result(folder):
    """SHA-256 of the final Parameters, and the records."""
    rows = read_records(folder / "run" / "records.csv").rows
    return (folder / "ended-0").read_text(), comparable(rows)


@pytest.mark.long
def test_at_the_worst_moments(tmp_path):
    """One after another on the same folder; each process takes up what the killed one left."""
    peace, killed = tmp_path / "peace", tmp_path / "killed"
    peace.mkdir()
    assert train(peace)[0] == 0
    killed.mkdir()
    for moment in MOMENTS:
        assert train(killed, moment)[0] == -signal.SIGKILL, moment
    # Far enough that every moment met a training under way, and not at its end.
    assert 8 <= int(checkpoints(killed / "run" / "checkpoint")[-1].stem[-9:]) < 60
    code, out = train(killed)
    assert code == 0 and "resumed after micro-batch" in out
    assert result(killed) == result(peace)
    assert len(checkpoints(killed / "run" / "checkpoint")) == 2
    assert not list((killed / "run" / "checkpoint").glob(".part*"))
