"""A recipe's command that is ended from outside."""

import os
import subprocess
import sys
from pathlib import Path

import psutil

from tests.support.living import MARK, marked, wait_until

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 300
EPOCHS = 8  # an epoch takes about a second: enough are left when the first checkpoint is seen
SMALL = (
    f"--depth 18 --image_size 32 --batch_size 4 --epoch_size {EPOCHS} --device_target CPU "
    "--num_parallel_workers 1 --save_checkpoint_epochs 1 --save_checkpoint_path run"
).split()
OF_RECIPE = {
    "adasum": "--node_size 1 --warmup_epochs 1 --lr_max 0.02 --loss_scale 1 --precision O0".split(),
    "resnet50": ["--lr", "0.02"],
}


class Training:
    """The command of a recipe in a folder of its own; its run folder is FOLDER/run."""

    def __init__(self, folder, name, data, ranks=1):
        folder.mkdir(exist_ok=True)
        self.folder, self.run, self.log = folder, folder / "run", folder / "log"
        several = ["--ranks", str(ranks)] if ranks > 1 else []
        self._command = [sys.executable, "-P", "-m", "labkit.recipes", "train", name]
        self._command += ["--data_path", str(data), *SMALL, *OF_RECIPE[name], *several]

    def start(self, *more):
        """Start it, with further options; what it says goes into ``log``."""
        with self.log.open("wb") as log:
            return subprocess.Popen(
                [*self._command, *more],
                cwd=self.folder,
                env=os.environ | {"PYTHONPATH": str(ROOT), MARK: str(self.folder)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def ended_by(self, number, rank=None, more=()):
        """Start it and send a signal after one more checkpoint; return its exit code.

        Args:
            number: of the signal.
            rank: which gets it; None: the command itself.
            more: further options.
        """
        before = self.checkpoints()
        process = self.start(*more)
        try:
            wait_until(lambda: self.checkpoints() - before or process.poll() is not None, SECONDS)
            assert process.poll() is None, self.said()
            victim = process if rank is None else worker(process.pid, rank)
            victim.send_signal(number)
            code = process.wait(60)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        # The guard of a command that was killed ends its ranks.
        wait_until(lambda: not marked(self.folder), 30)
        return code

    def said(self):
        return self.log.read_text(errors="replace")

    def checkpoints(self):
        """Names of all whole checkpoints, with their folder."""
        return {str(path.relative_to(self.run)) for path in self.run.rglob("checkpoint/step-*")}


def worker(pid, rank):
    """The process of a rank that a command has started."""
    for child in psutil.Process(pid).children(recursive=True):
        try:
            environment = child.environ()
        except psutil.Error:  # one that has just ended
            continue
        if (environment.get("MS_ROLE"), environment.get("RANK_ID")) == ("MS_WORKER", str(rank)):
            return child
    raise AssertionError(f"{pid} has no rank {rank}")
