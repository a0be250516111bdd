"""A training killed by SIGKILL, anywhere and at the worst moments, ends like an undisturbed one."""

import random
import signal

import pytest

from labkit.training.checkpoint import checkpoints
from tests.support.killed_training import EPOCHS, MOMENTS, STEPS, Training

# test_resume.py: every state is in a checkpoint, and a step built anew continues from it.
LONG = "plain", "accumulation", "THOR", "subspace"
KINDS = [
    pytest.param(kind, marks=pytest.mark.long) if kind in LONG else kind
    for kind in STEPS
    if kind != "wide"
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_at_a_random_micro_batch(kind, tmp_path):
    """Killed twice: within the first epochs, and again in what has been resumed."""
    undisturbed = Training(kind, tmp_path / "undisturbed").to_its_end()
    killed = Training(kind, tmp_path / "killed")
    draw = random.Random(kind)
    # Steps of several micro-batches write the first checkpoint after the fourth.
    moments = draw.randint(5, 18), draw.randint(4, 18)
    for moment in moments:
        assert killed.go_on(moment) == -signal.SIGKILL, killed.log()[-3000:]
    assert killed.to_its_end() == undisturbed, moments
    assert killed.log().count("labkit: resumed after micro-batch") == 2


@pytest.mark.long
def test_at_the_worst_moments(tmp_path):
    """All processes use one folder; each resumes what the killed one before it left."""
    undisturbed = Training("wide", tmp_path / "undisturbed").to_its_end()
    killed = Training("wide", tmp_path / "killed")
    for moment in (7, *MOMENTS):
        assert killed.go_on(moment) == -signal.SIGKILL, f"{moment}:\n{killed.log()[-3000:]}"
    # Far enough that every kill hit a training under way, and not at its end.
    assert 6 <= int(checkpoints(killed.run / "checkpoint")[-1].stem[-9:]) < 12 * EPOCHS
    before = killed.log()
    assert killed.to_its_end() == undisturbed
    assert "resumed after micro-batch" in killed.log().removeprefix(before)
    assert len(checkpoints(killed.run / "checkpoint")) == 2
