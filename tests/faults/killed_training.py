"""A training that is killed: the child process of ``test_kill.py``.

    python -m tests.faults.killed_training FOLDER MOMENT

Trains, or goes on, in FOLDER and prints the SHA-256 of all Parameters at the end. At MOMENT it
sends SIGKILL to itself; ``never`` leaves that to others, or to nobody.
"""

import os
import signal
import sys
import time
from pathlib import Path

import mindspore as ms
from mindspore.train import Callback

from labkit.runtime import start
from labkit.training.fit import fit
from labkit.training.records import Records
from tests.support.trainings import dataset, digest, make_step

EPOCHS, EVERY = 6, 2


def die(*_, **__):
    """SIGKILL: no handler, no cleaning up, no flushing."""
    os.kill(os.getpid(), signal.SIGKILL)


def in_a_checkpoint():
    """Half of its bytes are written."""
    save = ms.save_checkpoint

    def half(cell, path, **options):
        save(cell, path, **options)
        os.truncate(path, Path(path).stat().st_size // 2)
        die()

    ms.save_checkpoint = half


def before_the_rename():
    """A checkpoint is written and has not got its name."""
    os.replace = die


def after_the_rename():
    """A checkpoint has its name and the one it supersedes is not yet deleted."""
    Path.unlink = die


def in_a_record():
    """Half of a line is written: every third row's, so that other rows are whole."""
    write = Records._write

    def half(self, row):
        write(self, row)
        if len(self) % 3 == 0:
            self.close()
            os.truncate(self.path, self.path.stat().st_size - 25)
            die()

    Records._write = half


MOMENTS = {
    "never": lambda: None,
    "in_a_group": lambda: None,
    "in_a_checkpoint": in_a_checkpoint,
    "before_the_rename": before_the_rename,
    "after_the_rename": after_the_rename,
    "in_a_record": in_a_record,
    "in_the_resume": before_the_rename,
}


class Kill(Callback):
    """Prepare the moment, and make the training slow enough to be hit from outside."""

    def __init__(self, moment):
        super().__init__()
        self.moment, self.micro_batches = moment, 0

    def on_train_begin(self, run_context):
        MOMENTS[self.moment]()

    def on_train_step_end(self, run_context):
        time.sleep(0.02)
        self.micro_batches += 1
        if self.moment == "in_a_group" and self.micro_batches == 7:
            die()


def main(folder, moment):
    start("CPU", seed=1)
    step = make_step(width=8000)
    if moment == "in_the_resume":
        MOMENTS[moment]()
    fit(
        step,
        dataset(augment=True, drop=False),
        EPOCHS,
        folder=folder,
        resume=True,
        checkpoint_every=EVERY,
        progress=None,
        callbacks=[Kill(moment)],
    )
    print(digest(step))


if __name__ == "__main__":
    main(*sys.argv[1:])
