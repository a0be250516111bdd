"""The trainings that are killed: ``python -m tests.support.killed_training KIND FOLDER [MOMENT]``.

Trains in FOLDER/run and writes the SHA-256 of all Parameters into FOLDER/ended. At MOMENT, one of
``MOMENTS`` or a number of micro-batches, it sends SIGKILL to itself. ``Training`` starts it.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

from mindspore import nn
from mindspore.train import Callback

import labkit
from labkit.ranks import cluster
from labkit.ranks.launch import child_environment
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.options import DynamicLossScale
from labkit.training import checkpoint, records
from labkit.training.records import read_records
from tests.support import trainings

EPOCHS, EVERY = 4, 3
WORST = "in_a_checkpoint before_the_rename after_the_rename in_a_record in_the_resume"
MOMENTS = tuple(WORST.split())


def accumulation(**options):
    """A step whose BatchNorm statistics, loss scale and partial sums are each rank's own."""
    net, parameters = trainings.with_loss(**options)
    scale = DynamicLossScale(2.0**10, 2.0, 5)
    return AccumulatedStep(net, nn.Adam(parameters, 0.02), 4, loss_scale=scale)


STEPS = {
    "plain": trainings.plain,
    "accumulation": accumulation,
    "THOR": trainings.accumulated_thor,
    "Adasum": lambda: trainings.adasum(workers=2, micro_steps=2),
    "subspace": lambda: trainings.subspace(micro_steps=2),
    # Large enough that a write takes a while.
    "wide": lambda: trainings.make_step(width=8000),
}


def die(*_, **__):
    """Send SIGKILL to this process: no handler, no cleanup, no flush."""
    os.kill(os.getpid(), signal.SIGKILL)


def arm(moment):
    """Let this process die at a moment of ``MOMENTS``."""
    save, write, written = checkpoint.save_file, records._write, []

    def half_a_checkpoint(values, path, metadata):
        save(values, path, metadata)
        os.truncate(path, Path(path).stat().st_size // 2)
        die()

    def half_a_line(file, rows, header):  # in every third row, so that other rows are whole
        write(file, rows, header)
        written.append(rows)
        if len(written) % 3 == 0:
            file.flush()
            os.truncate(file.name, Path(file.name).stat().st_size - 25)
            die()

    if moment == "in_a_checkpoint":
        checkpoint.save_file = half_a_checkpoint
    elif moment == "in_a_record":
        records._write = half_a_line
    elif moment == "after_the_rename":  # of a checkpoint, before what it supersedes is deleted
        checkpoint.keep_newest = die
    else:
        os.replace = die


class Kill(Callback):
    """Arms the moment, or dies after as many micro-batches."""

    def __init__(self, moment):
        super().__init__()
        self.moment, self.left = moment, int(moment) if moment.isdigit() else 0

    def on_train_begin(self, run_context):
        if self.moment in MOMENTS:
            arm(self.moment)

    def on_train_step_end(self, run_context):
        self.left -= 1
        if self.left == 0:
            die()


class Training:
    """One training in its own folder, which may take many processes."""

    def __init__(self, kind, folder):
        self.kind, self.folder, self.run = kind, Path(folder), Path(folder) / "run"
        self.folder.mkdir()

    def go_on(self, *moment):
        """Continue the training in a process, which kills itself at a moment; return its code."""
        command = [sys.executable, "-m", "tests.support.killed_training", self.kind, self.folder]
        options = {"cwd": trainings.ROOT, "env": child_environment(), "timeout": 300}
        with (self.folder / "log").open("ab") as log:
            command += map(str, moment)
            return subprocess.run(command, stdout=log, stderr=log, **options).returncode

    def to_its_end(self):
        """Train to the end without a kill; return the digest of all Parameters and the records."""
        assert self.go_on() == 0, self.log()[-3000:]
        assert not list(self.run.rglob(".part-*"))
        digest = (self.folder / "ended").read_text()
        return digest, trainings.comparable(read_records(self.run / "records.csv").rows)

    def log(self):
        """Return what all processes have printed, one after another."""
        return (self.folder / "log").read_text(errors="replace")


def main(kind, folder, moment=""):
    labkit.start("CPU", seed=1)
    step, data = STEPS[kind](), trainings.dataset(46, augment=True, drop=kind != "wide")
    if moment == "in_the_resume":
        arm(moment)
    options = {"resume": True, "checkpoint_every": EVERY, "callbacks": [Kill(moment)]}
    trainings.quiet_fit(step, data, EPOCHS, folder=Path(folder) / "run", **options)
    (Path(folder) / "ended").write_text(cluster.digest(step))


if __name__ == "__main__":
    main(*sys.argv[1:])
