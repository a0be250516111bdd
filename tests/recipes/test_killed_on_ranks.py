"""A recipe's command when one of its ranks is ended from outside."""

import os
import re
import signal
import subprocess
import sys

import pytest

from tests.support.living import MARK, marked, ranks_of, wait_until
from tests.support.trainings import ROOT

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("runtime")]

# An epoch takes about a second, so that several are left when the first checkpoint appears.
SMALL = (
    "--ranks 2 --depth 18 --image_size 32 --batch_size 4 --epoch_size 8 --device_target CPU "
    "--num_parallel_workers 1 --save_checkpoint_epochs 1 --save_checkpoint_path run"
).split()
OF_RECIPE = {
    "adasum": "--node_size 1 --warmup_epochs 1 --lr_max 0.02 --loss_scale 1 --precision O0".split(),
    "resnet50": ["--lr", "0.02"],
}


@pytest.fixture(scope="module")
def data(digits):
    """30 + 10 images: three micro-batches per rank and epoch."""
    return digits(30, 10)


@pytest.mark.parametrize("name", OF_RECIPE)
def test_a_rank_that_is_ended_by_sigterm_is_named(data, tmp_path, name):
    """The rank is ended after the first checkpoint."""
    command = [sys.executable, "-P", "-m", "labkit.recipes", "train", name, "--data_path", data]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [*map(str, command), *SMALL, *OF_RECIPE[name]],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT), MARK: str(tmp_path)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        saved = (tmp_path / "run").rglob
        wait_until(lambda: [*saved("checkpoint/step-*")] or process.poll() is not None, 300)
        assert process.poll() is None, (tmp_path / "log").read_text(errors="replace")
        ranks_of(process.pid)[1].send_signal(signal.SIGTERM)
        assert process.wait(60) == 1
    finally:
        process.kill()
        process.wait()
    # When a command was killed, its guard ends the ranks.
    wait_until(lambda: not marked(tmp_path), 30)
    said = (tmp_path / "log").read_text(errors="replace")
    assert f"{name}: rank 1 of 2 was ended by SIGTERM: from outside" in said
    assert re.search(r"log: \S*worker_1\.log", said)
    assert "top_1_accuracy" not in said
