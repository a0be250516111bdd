"""Inputs of the trainings of the two-stage race: labels, and the results of stage one."""

import math
import shutil
from pathlib import Path

import numpy as np
from _race import Images

from labkit.base.files import whole_file
from labkit.steps.gradients import set_state

_NOISE_SEED = 0  # wrong labels belong to the data: all trainings with noise see the same


def with_noise(data: Images, noise: float) -> np.ndarray:
    """Return the labels; a share ``noise`` of the training labels is redrawn from all classes."""
    random = np.random.default_rng(_NOISE_SEED)
    rows = random.permutation(data.rows)[: round(noise * len(data.rows))]
    labels = data.labels.copy()
    labels[rows] = random.integers(0, 10, len(rows))
    return labels


class Start:
    """The results of stage one in its folder.

    ``snapshots``: 40 snapshots of its later epochs; ``whole``: 40 from the initial weights to its
    end; ``end.npz``: the Parameters of its step by name, weights and moments.
    """

    def __init__(self, folder: Path):
        self.folder, self.snapshots, self.whole = folder, folder / "snapshots", folder / "whole"

    @property
    def finished(self) -> bool:
        return (self.folder / "end.npz").exists()

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        for folder in (self.snapshots, self.whole):
            folder.mkdir(parents=True)

    def save(self, step) -> None:
        values = {parameter.name: parameter.asnumpy() for parameter in step.get_parameters()}
        with whole_file(self.folder / "end.npz", "the end of stage one") as temporary:
            np.savez(temporary, **values)

    def load_into(self, step, moments=True) -> None:
        """Set the weights and, if ``moments``, the optimizer's moments to those of the end."""
        with np.load(self.folder / "end.npz") as values:
            for parameter in (*step.optimizer.parameters, *(step.optimizer.moments * moments)):
                set_state(parameter, values[parameter.name])


def moments_of(stage_one, per_epoch):
    """Return the updates after which ``Snapshots`` saves with the arguments of ``stage_one``."""
    saves = stage_one["saves_per_epoch"]
    inside = [math.ceil(per_epoch * part / saves) for part in range(1, saves + 1)]
    epochs = range(stage_one["start_epoch"] - 1, stage_one["epochs"])
    return [epoch * per_epoch + moment for epoch in epochs for moment in inside]
