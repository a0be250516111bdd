"""A recipe's command, one of whose ranks is ended from outside."""

import re
import signal

import pytest

from tests.support.killed_recipe import Training

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("runtime")]


@pytest.fixture(scope="module")
def data(digits):
    """30 + 10 images: three micro-batches of a rank in an epoch."""
    return digits(30, 10)


@pytest.mark.parametrize("name", ["adasum", "resnet50"])
def test_a_rank_that_is_ended_by_sigterm_is_named(data, tmp_path, name):
    training = Training(tmp_path / "run", name, data, ranks=2)
    assert training.ended_by(signal.SIGTERM, rank=1) == 1
    said = training.said()
    assert f"{name}: rank 1 of 2 was ended by SIGTERM: from outside" in said
    assert re.search(r"log: \S*worker_1\.log", said)
    assert "top_1_accuracy" not in said
