"""The trainings that are killed: ``python -m tests.support.killed_training KIND FOLDER [MOMENT]``.

Starts or continues a training in FOLDER/run and writes the SHA-256 of all Parameters into
FOLDER/ended-RANK. At MOMENT it sends SIGKILL to itself; without a MOMENT, another process may kill
it. ``Training`` starts it.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import mindspore as ms
from mindspore import nn
from mindspore.train import Callback

import labkit
from labkit.algorithms.adasum import AdasumStep
from labkit.algorithms.subspace import SubspaceStep
from labkit.algorithms.thor import ThorUpdate
from labkit.ranks import cluster
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.gradients import DynamicLossScale
from labkit.steps.losses import LossNet
from labkit.training.fit import fit
from labkit.training.records import Records, read_records
from tests.support.living import MARK, marked, wait_until
from tests.support.subspace_cells import basis_of
from tests.support.trainings import (
    ROOT,
    comparable,
    dataset,
    loss_fn,
    make_step,
    network,
)

EPOCHS, EVERY = 16, 3
RANKS = {"two ranks": 2}
SECONDS = 300  # for a process to begin, or to end
LAUNCH = (
    "import sys; from labkit import launch; launch('-m', 'tests.support.killed_training', "
    "*sys.argv[2:], workers=int(sys.argv[1]), timeout=600)"
)


def loss_net(**options):
    return LossNet(network(**options), loss_fn())


def accumulation(**options):
    """A step whose BatchNorm statistics, loss scale and partial sums are each rank's own."""
    net = loss_net(**options)
    scale = DynamicLossScale(2.0**10, 2.0, 5)
    return AccumulatedStep(net, nn.Adam(net.trainable_params(), 0.02), 4, loss_scale=scale)


def thor():
    net = loss_net()
    optimizer = nn.Momentum(net.trainable_params(), 0.02, 0.9)
    update = ThorUpdate(net, optimizer, 0.3, frequency=2)
    return AccumulatedStep(net, optimizer, 2, update=update)


def adasum():
    net = loss_net()
    return AdasumStep(net, nn.Adam(net.trainable_params(), 0.02), workers=2, micro_steps=2)


def subspace():
    net = loss_net()
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    basis = basis_of(optimizer.parameters, 3)
    return SubspaceStep(net, optimizer, basis, micro_steps=2, alpha=1.0, gamma=0.0)


STEPS = {
    "accumulation": accumulation,
    "THOR": thor,
    "Adasum": adasum,
    "subspace": subspace,
    "two ranks": lambda: accumulation(norm=True),
    # Large enough that a write takes a while; killed at MOMENTS.
    "wide": lambda: make_step(width=8000),
}


def die(*_, **__):
    """Send SIGKILL to this process: no handler, no cleanup, no flush."""
    os.kill(os.getpid(), signal.SIGKILL)


def in_a_checkpoint():
    """Die when half of a checkpoint's bytes are written."""
    save = ms.save_checkpoint

    def half(cell, path, **options):
        save(cell, path, **options)
        os.truncate(path, Path(path).stat().st_size // 2)
        die()

    ms.save_checkpoint = half


def before_the_rename():
    """Die when a checkpoint is written and does not have its name yet."""
    os.replace = die


def after_the_rename():
    """Die when a checkpoint has its name and the one it supersedes is not yet deleted."""
    Path.unlink = die


def in_a_record():
    """Die when half of a line is written, in every third row, so that other rows are whole."""
    write = Records._write

    def half(self, path, row):
        write(self, path, row)
        if len(self) % 3 == 0:
            self.close()
            os.truncate(path, path.stat().st_size - 25)
            die()

    Records._write = half


MOMENTS = {
    "in_a_group": lambda: None,
    "in_a_checkpoint": in_a_checkpoint,
    "before_the_rename": before_the_rename,
    "after_the_rename": after_the_rename,
    "in_a_record": in_a_record,
    "in_the_resume": before_the_rename,
}


class Kill(Callback):
    """Prepares the moment, and makes the training slow enough to be killed from outside."""

    def __init__(self, moment):
        super().__init__()
        self.moment, self.micro_batches = moment, 0

    def on_train_begin(self, run_context):
        MOMENTS.get(self.moment, lambda: None)()

    def on_train_step_end(self, run_context):
        time.sleep(0.01)
        self.micro_batches += 1
        if self.moment == "in_a_group" and self.micro_batches == 7:
            die()


class Failed(AssertionError):
    """A training did not end as it should have."""


class Training:
    """One training in its own folder, which may take many processes."""

    def __init__(self, kind, folder):
        self.kind, self.folder, self.run = kind, Path(folder), Path(folder) / "run"
        self.ranks = RANKS.get(kind, 1)
        self.folder.mkdir()

    def started(self, *moment):
        """Start a process that continues the training; at a given moment it kills itself."""
        command = ["-m", "tests.support.killed_training", self.kind, str(self.folder), *moment]
        if self.ranks > 1:
            command = ["-c", LAUNCH, str(self.ranks), *command[2:]]
        variables = os.environ | {"PYTHONPATH": str(ROOT), MARK: str(self.folder)}
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *command], cwd=ROOT, stdout=log, stderr=log, env=variables
            )

    def exit_code(self, process):
        """Return a process's exit code once no process of the training is left; kill it if late."""
        try:
            process.wait(SECONDS)
        finally:
            process.kill()
            process.wait()
        wait_until(lambda: not marked(self.folder), SECONDS)  # labkit ends the ranks
        return process.returncode

    def ended(self):
        return all((self.folder / f"ended-{rank}").exists() for rank in range(self.ranks))

    def result(self):
        """Return the digests of all ranks and the records."""
        digests = [(self.folder / f"ended-{n}").read_text() for n in range(self.ranks)]
        left = [path.name for path in self.run.rglob(".*")]
        if left:
            raise Failed(f"{left} left in {self.run}")
        return digests, comparable(read_records(self.run / "records.csv").rows)

    def to_its_end(self):
        """Train to the end without a kill; return the result."""
        code = self.exit_code(self.started())
        if code or not self.ended():
            raise Failed(f"exit code {code}:\n{self.last_lines()}")
        return self.result()

    def log(self):
        """Return what all processes have printed, one after another."""
        return (self.folder / "log").read_text(errors="replace")

    def last_lines(self):
        return self.log()[-3000:]

    def written(self):
        """Return what changes with each checkpoint and each record."""
        names = {path.name for path in (self.run / "checkpoint").glob("step-*")}
        records = self.run / "records.csv"
        return names, records.stat().st_size if records.exists() else 0


def main(kind, folder, moment=None):
    folder, ranks = Path(folder), RANKS.get(kind, 1)
    labkit.start("CPU", seed=1, distribute=ranks > 1)
    rank = cluster.rank_and_size()[0]
    shard = {"num_shards": ranks, "shard_id": rank} if ranks > 1 else {}
    data = dataset(46 * ranks, augment=ranks == 1, drop=kind != "wide" and ranks == 1, **shard)
    step = STEPS[kind]()
    if moment == "in_the_resume":
        MOMENTS[moment]()
    fit(
        step,
        data,
        6 if kind == "wide" else EPOCHS,
        folder=folder / "run",
        resume=True,
        checkpoint_every=EVERY,
        progress=None,
        callbacks=[Kill(moment)],
    )
    (folder / f"ended-{rank}").write_text(cluster.digest(step))


if __name__ == "__main__":
    main(*sys.argv[1:])
