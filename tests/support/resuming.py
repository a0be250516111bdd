"""A training with a checkpoint after every micro-batch, to be resumed from any of them."""

import json
import shutil

from labkit.training import checkpoint
from labkit.training.fit import fit
from tests.support.step_cells import snapshot
from tests.support.trainings import comparable, dataset, make_step

EPOCHS = 3


def quiet_fit(step, data, epochs=EPOCHS, **options):
    return fit(step, data, epochs, progress=None, **options)


def position_of(path):
    """What a checkpoint says of its position."""
    return json.loads(str(checkpoint.read(path)["labkit_position"]))


class Training:
    """An uninterrupted training with a checkpoint after every micro-batch."""

    def __init__(self, folder, make=make_step, data=dataset):
        self.folder, self.make, self.data = folder, make, data
        self.step = make()
        self.fresh = snapshot(self.step)
        records = quiet_fit(self.step, data(), folder=folder, checkpoint_every=1, keep=1000)
        self.rows = comparable(records.rows)
        self.final = snapshot(self.step)
        self.paths = checkpoint.checkpoints(folder / "checkpoint")

    def interrupted(self, path, folder):
        """Put into ``folder`` what a kill right after the checkpoint ``path`` leaves."""
        (folder / "checkpoint").mkdir(parents=True)
        shutil.copy(path, folder / "checkpoint")
        lines = (self.folder / "records.csv").read_text().splitlines(keepends=True)
        count = position_of(path)["records"]
        # Two rows of later updates, the last one cut short: written, and then no checkpoint was.
        kept, later = lines[: count + 1], lines[count + 1 : count + 3] or ["3,99,1"]
        (folder / "records.csv").write_text("".join(kept + later)[:-5])
        return folder

    def resumed(self, path, folder, step=None):
        """Resume from ``path``; return the records and all Parameters at the end."""
        step = self.make() if step is None else step
        self.interrupted(path, folder)
        records = quiet_fit(step, self.data(), folder=folder, resume=True)
        return comparable(records.rows), snapshot(step)
