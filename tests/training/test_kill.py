"""A training killed by SIGKILL at the worst moments ends like an undisturbed one.

``python -m tests.campaigns.kills`` kills trainings of every kind at random moments.
"""

import signal

import pytest

from labkit.training.checkpoint import checkpoints
from tests.support.killed_training import MOMENTS, Training


@pytest.mark.long
def test_at_the_worst_moments(tmp_path):
    """All processes use one folder; each resumes what the killed one before it left."""
    peace = Training("wide", tmp_path / "peace").to_its_end()
    killed = Training("wide", tmp_path / "killed")
    for moment in MOMENTS:
        code = killed.exit_code(killed.started(moment))
        assert code == -signal.SIGKILL, f"{moment}:\n{killed.last_lines()}"
    # Far enough that every kill hit a training under way, and not at its end.
    assert 8 <= int(checkpoints(killed.run / "checkpoint")[-1].stem[-9:]) < 60
    before = killed.log()
    assert killed.to_its_end() == peace
    assert "resumed after micro-batch" in killed.log().removeprefix(before)
    assert len(checkpoints(killed.run / "checkpoint")) == 2
