"""One training as ``fit`` runs it: its progress, its folder, and what it resumes from."""

import os
import time
from contextlib import ExitStack
from pathlib import Path

import mindspore as ms
from mindspore.dataset import Dataset
from mindspore.dataset.engine.datasets import MapDataset

from labkit.base import arguments
from labkit.base.arguments import wrong
from labkit.base.files import locked, make_folder, remove_unfinished
from labkit.errors import InputError
from labkit.ranks import cluster
from labkit.steps.step import Step
from labkit.training import checkpoint, optimizer_numbers, rank_state, resume
from labkit.training.position import Position
from labkit.training.records import Records
from labkit.training.update_rows import RECORDS, rows_before

CHECKPOINTS = "checkpoint"
NEW_SETTINGS = "new settings"


class Run:
    """One training: its step and data, its progress, and its folder."""

    def __init__(
        self,
        step: Step,
        dataset: Dataset,
        epochs: int,
        folder: str | os.PathLike | None,
        whole_epochs: bool = False,
    ) -> None:
        if not isinstance(dataset, Dataset):
            raise wrong("dataset", dataset, "a MindSpore dataset")
        self.step, self.dataset, self.epochs = step, dataset, epochs
        self.folder = None if folder is None else arguments.path("folder", folder, "a path or None")
        self._whole_epochs = whole_epochs
        self.epoch_size, self.batch_size = dataset.get_dataset_size(), dataset.get_batch_size()
        if not self.epoch_size:
            raise InputError("dataset: expected at least one batch, got none")
        self.micro_batches = 0
        self.resumed_from: Position | None = None
        self._seconds_before = 0.0
        self._started = time.monotonic()
        self._rank, self._ranks = cluster.rank_and_size()
        self._numbers = optimizer_numbers.noted(step)

    def share(self, write: bool | None) -> None:
        """Settle which rank writes the folder; the others read."""
        self.writers = rank_state.writers(self.folder, write)
        self.writes = self.folder is not None and self.writers[self._rank] == self._rank
        self.records = Records(self.own_folder / RECORDS if self.writes else None)

    @property
    def own_folder(self) -> Path:
        """The folder of a training that writes or resumes: without a folder it does neither."""
        if self.folder is None:
            raise ValueError("this training has no folder")
        return self.folder

    def begin(self, resuming: bool | str, held: ExitStack) -> None:
        """Lock the folder until ``held`` closes, and load what an earlier training left there."""
        if not resuming:
            self._check_schedules(0)
        if self.writes:
            make_folder(self.own_folder)
            held.enter_context(locked(self.own_folder, "a training"))
            remove_unfinished(self.own_folder)
        if resuming:
            self._resume(take_new=resuming == NEW_SETTINGS)
        elif self.folder is not None:
            self._refuse_earlier(self.folder)

    def keep_rows(self) -> None:
        """Keep the rows up to the checkpoint that was resumed from, if there was one."""
        if self.resumed_from is None:
            return
        count = self.resumed_from.records
        self.records.rows = rows_before(self.own_folder, self.step, count, self.writes)
        self.records.keep_first(count)
        print(f"labkit: resumed after micro-batch {self.micro_batches}", flush=True)

    def seconds(self) -> float:
        """Return the seconds of training so far, including those before a resume."""
        return self._seconds_before + time.monotonic() - self._started

    def position(self) -> Position:
        """Return where the training stands, as a checkpoint holds it."""
        return Position(
            micro_batches=self.micro_batches,
            epoch_size=self.epoch_size,
            batch_size=self.batch_size,
            seed=ms.dataset.config.get_seed(),
            workers=data_workers(self.dataset),
            seconds=self.seconds(),
            records=len(self.records),
            settings=self.step.settings,
            optimizer=self._numbers,
            ranks=self._ranks,
        )

    def _refuse_earlier(self, folder: Path) -> None:
        if checkpoint.checkpoints(folder / CHECKPOINTS) or (folder / RECORDS).exists():
            raise InputError(
                f"{folder} holds an earlier training; give resume=True to continue it, or "
                "another folder"
            )

    def _check_schedules(self, done: int) -> None:
        """Refuse arrays of rates or damping too short for the training after batch ``done``."""
        epochs, done = divmod(done, self.epoch_size)
        left = [self.epoch_size] * (self.epochs - epochs)
        if left:
            left[0] -= done
            self.step.check_length(self.step.updates_ahead(left))

    def _resume(self, take_new: bool) -> None:
        """Resume from the newest checkpoint in the folder; start from the beginning without one."""

        def accept(position: Position, values: dict) -> None:
            resume.refuse_others(self.position(), position)
            if self._whole_epochs and (done := position.micro_batches % self.epoch_size):
                raise InputError(
                    f"cannot resume: dataset_sink_mode trains whole epochs, and the checkpoint is "
                    f"after {done} of an epoch's {self.epoch_size} micro-batches; expected False"
                )
            resume.settle_numbers(self.step, self._numbers, position.optimizer, values, take_new)
            with resume.counting_from(values, self.step):
                self._check_schedules(position.micro_batches)

        folder = self.own_folder
        position = checkpoint.load_latest(self.step, folder / CHECKPOINTS, accept)
        if position is None:
            self._check_schedules(0)
            if self.writes and (folder / RECORDS).exists():
                print(f"labkit: no checkpoint in {folder}; starting from the beginning", flush=True)
                self.records.remove_file()
            return
        resume.take_over(self.step, position.settings)
        self.micro_batches, self._seconds_before = position.micro_batches, position.seconds
        self.resumed_from = position


def data_workers(dataset: Dataset) -> list[int]:
    """Return the numbers of workers of a pipeline's sources and maps, from its end to its start.

    Each of them affects random augmentation: a map with one worker draws different numbers from the
    same map with two.
    """
    numbers = [workers for child in dataset.children for workers in data_workers(child)]
    if not dataset.children or isinstance(dataset, MapDataset):
        default = ms.dataset.config.get_num_parallel_workers()
        numbers.insert(0, dataset.num_parallel_workers or default)
    return numbers
