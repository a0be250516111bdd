"""``fit`` over ``mindspore.train.Model``, with records, progress, checkpoints and resume."""

import copy
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import mindspore as ms
from mindspore import Parameter
from mindspore.dataset import Dataset
from mindspore.train import (
    Callback,
    LambdaCallback,
    LearningRateScheduler,
    Model,
    ReduceLROnPlateau,
    RunContext,
)

from labkit.base import arguments, machine
from labkit.base.arguments import integer, wrong
from labkit.base.files import locked, remove_unfinished
from labkit.base.progress import Progress
from labkit.errors import InputError, warn
from labkit.ranks import cluster
from labkit.steps.state import integer_of, rated
from labkit.steps.step import Step
from labkit.training import checkpoint
from labkit.training.checkpoint import CHECKPOINTS, Position
from labkit.training.records import RECORDS, Records
from labkit.training.resume import own_rates, refuse_other, settings_of

_LOOKED_AT = 16  # newest checkpoints of a rank among which the one that all ranks have is sought


def fit(
    step: Step,
    dataset: Dataset,
    epochs: int,
    *,
    folder: str | os.PathLike | None = None,
    resume: bool | str = False,
    checkpoint_every: int | None = None,
    checkpoint_epochs: int | None = 1,
    keep: int = 2,
    progress: str | None = "training",
    callbacks: Sequence[Callback] = (),
    by_name: bool = False,
    dataset_sink_mode: bool = False,
) -> Records:
    """Train ``step`` on ``dataset`` for ``epochs`` epochs and return one record per update.

    A record holds epoch, update, images (of that update), loss, gradient_norm, learning_rate (one
    column per parameter group), seconds (of this call and those that it resumes) and peak_memory_mb
    (of this process; NaN elsewhere than on Linux).

    A further call with the same step and the same dataset object trains ``epochs`` more, on the
    next epochs' orders and crops: ``fit(step, data, 1)`` three times is ``fit(step, data, 3)``. It
    begins where the last call ended, also within an epoch; the rest of that epoch then counts as
    one of ``epochs``. To get there it reads the earlier epochs' batches once more, as a resume
    does. Another dataset, or a step set back to fewer updates, begins at its first epoch.

    On CPU the Parameters of a resumed training are bit-identical to those of an uninterrupted one.
    Not kept: the state of Dropout's random numbers and of callbacks (EarlyStopping's patience
    starts anew), and what a data source draws by itself or several Python workers draw. Rows that a
    power cut took from records.csv stay missing, which a resume prints.

    Non-finite micro-batches that were dropped are printed and counted, in ``dropped`` of what is
    returned; a training without any update warns.

    On several ranks, call it on all of them; if one raises, all do. The first writes ``folder``,
    rank r the folder ``rank_r`` in it: some state, as BatchNorm's statistics, is each rank's own.

    Args:
        step: A step cell, called with each batch; its ``end_epoch`` is called after each epoch.
        dataset: One epoch is one pass over it. A column may be a tuple, list or dictionary, as a
            GeneratorDataset makes of Python's.
        epochs: Epochs that this call trains; with ``resume``, of the whole training, as counted in
            ``folder``: one that has finished trains nothing.
        folder: Where records.csv and checkpoint/ are written, locked during the call.
        resume: Continue from the newest checkpoint in ``folder``, if there is one. Step, optimizer,
            data, seed and ranks must be those of the checkpoint; a schedule, up to its update.
            "anyway" continues with other ones, and with the rates and momentum of ``step``.
        checkpoint_every: Micro-batches between checkpoints within an epoch. A step that keeps a
            group's rows (``SubspaceStep``) is saved at the group's end.
        checkpoint_epochs: Epochs between checkpoints; the last epoch always has one. None: no
            checkpoint after any epoch.
        keep: Number of checkpoints to keep.
        progress: Name on the progress display; None shows none.
        callbacks: Further MindSpore callbacks, called between a step's record and its checkpoint.
            ``ReduceLROnPlateau`` and ``LearningRateScheduler`` (which counts micro-batches) need
            one rate without a schedule.
        by_name: Whether the columns go to the step by their names, as in ``step(tokens=...)``, and
            not in their order.
        dataset_sink_mode: Handed to ``Model``: on Ascend and GPU an epoch is one call, with one
            record; on CPU MindSpore has no such mode and trains batch by batch.

    Raises:
        InputError: For invalid arguments; without ``labkit.start``, for a resume or a further call;
            for an array of learning rates or of damping that is shorter than the training; for a
            folder that another process writes or that holds an earlier training; and for a
            checkpoint with other settings, naming them.
    """
    intervals = {"checkpoint_every": checkpoint_every, "checkpoint_epochs": checkpoint_epochs}
    with ExitStack() as held:
        with cluster.together():
            if not isinstance(step, Step):
                raise wrong("step", type(step).__name__, "a step cell, such as PlainStep")
            if not isinstance(dataset, Dataset):
                raise wrong("dataset", type(dataset).__name__, "a MindSpore dataset")
            if isinstance(callbacks, Callback):  # as Model.train accepts it
                callbacks = [callbacks]
            several = isinstance(callbacks, Sequence)
            if not several or not all(isinstance(each, Callback) for each in callbacks):
                raise wrong("callbacks", callbacks, "a list of MindSpore callbacks")
            constant = isinstance(rated(step.optimizer).learning_rate, Parameter)
            for each in callbacks:
                if isinstance(each, ReduceLROnPlateau | LearningRateScheduler) and not constant:
                    given = "a schedule, or a rate for each group"
                    raise wrong(type(each).__name__, given, "an optimizer with one constant rate")
            for name, value in intervals.items():
                if value is not None:
                    integer(name, value)
            if resume not in (True, False, "anyway"):
                raise wrong("resume", resume, "True, False or 'anyway'")
            if folder is None and (resume or checkpoint_every):
                raise wrong("folder", folder, "a path, for resume and checkpoint_every")
            if dataset_sink_mode and not step.one_graph:
                raise InputError(f"dataset_sink_mode: {type(step).__name__} is more than one graph")
            if dataset_sink_mode and by_name:
                raise InputError("dataset_sink_mode: columns go in their order; by_name is True")
            run = _Run(step, dataset, epochs, folder, resume, keep, progress, **intervals)
            if not resume:
                run.check_schedules()
        same = {"number of batches in an epoch": run.epoch_size, "folder": folder is not None}
        same["micro-batches trained before"] = run.micro_batches
        cluster.agree(resume=resume, epochs=epochs, **intervals, **same)
        if run.folder is not None:
            with cluster.together():
                held.enter_context(locked(run.folder, "a training"))
                remove_unfinished(run.folder)  # left by a process that was killed while it wrote
            run.open_folder(resume)
        step.columns = tuple(dataset.get_col_names()) if by_name else ()
        try:
            run.train(callbacks, dataset_sink_mode)
        finally:
            step.columns = ()
    return run.records


class EndOfEpoch(Callback):
    """Tell ``step`` that an epoch is over, for training by ``Model(step).train`` without ``fit``.

    Put it first: it acts right after an epoch's last micro-batch, so that the flushed update comes
    before any save (``ModelCheckpoint`` also saves at that point, not at the end of the epoch), and
    it gives further callbacks the optimizer whose rate applies.
    """

    def __init__(self, step: Step) -> None:
        super().__init__()
        self.step = step

    def on_train_begin(self, run_context: RunContext) -> None:
        arguments = run_context.original_args()
        arguments.optimizer = rated(self.step.optimizer)
        dataset = arguments.train_dataset
        self.micro_batches, self.epoch_size = dataset.get_init_step(), dataset.get_dataset_size()

    def on_train_step_end(self, run_context: RunContext) -> None:
        arguments = run_context.original_args()
        # A step of Model is an epoch in sink mode.
        self.last = arguments.batch_num if arguments.get("dataset_sink_mode") else 1
        self.micro_batches += self.last
        if self.micro_batches % self.epoch_size == 0:
            self.step.end_epoch()


class _Run(EndOfEpoch):
    """One training on one rank, and the callback that counts, records and saves it."""

    def __init__(
        self,
        step: Step,
        dataset: Dataset,
        epochs: int,
        folder: str | os.PathLike | None,
        resume: bool | str,
        keep: int,
        progress: str | None,
        checkpoint_every: int | None,
        checkpoint_epochs: int | None,
    ) -> None:
        super().__init__(step)
        self.dataset = dataset
        self._keep, self._every = integer("keep", keep), checkpoint_every
        self._epochs, self._name = checkpoint_epochs, progress
        self._progress: Progress | None = None
        self.folder = (
            None if folder is None else arguments.local_path("folder", folder, "a path or None")
        )
        if self.folder is not None and (rank := cluster.rank_and_size()[0]):
            self.folder /= f"rank_{rank}"
        self.records = Records(None if self.folder is None else self.folder / RECORDS)
        self.epoch_size = dataset.get_dataset_size()
        if not self.epoch_size:
            raise InputError("dataset: expected at least one batch, got none")
        self.micro_batches, updates = (0, 0) if resume else step.trained.get(dataset, (0, 0))
        if integer_of(step.updates) < updates:  # set back since: a new training
            self.micro_batches = 0
        if (resume or self.micro_batches) and ms.dataset.config.get_fast_recovery():
            raise InputError("cannot go on: call labkit.start first, for the order of the data")
        # What is left of an epoch that was broken off counts as the first of those to come.
        self.epochs = self.micro_batches // self.epoch_size + integer("epochs", epochs)
        self._due = False  # a checkpoint, for which a step that keeps a group's rows is not ready
        self._began = time.monotonic()  # the training, if it had not been interrupted
        self._rates = own_rates(step)  # those it begins with: a callback may change them

    def check_schedules(self) -> None:
        """Refuse arrays of rates or damping that are too short for what is left of the training."""
        epochs, done = divmod(self.micro_batches, self.epoch_size)
        if left := [self.epoch_size] * (self.epochs - epochs):
            left[0] -= done
            self.step.check_length(self.step.updates_ahead(left))

    def open_folder(self, resume: bool | str) -> None:
        """Refuse what the folder holds, or load the newest checkpoint that every rank has."""
        assert self.folder is not None
        folder, records = self.folder / CHECKPOINTS, self.folder / RECORDS
        common: set[int] = set()
        if resume:
            with cluster.together():
                paths = checkpoint.readable(folder)
            # A rank may have been killed before it wrote the newest one.
            newest = sorted(paths)[-_LOOKED_AT:]
            gathered = cluster.gather(newest + [-1] * (_LOOKED_AT - len(newest)))
            common = set.intersection(*(set(row[row >= 0].astype(int)) for row in gathered))
        with cluster.together():
            earlier = checkpoint.checkpoints(folder)
            if common:
                position = self._load(paths[max(common)], anyway=resume == "anyway")
            elif resume and earlier:
                raise InputError(f"{self.folder} has no checkpoint that is whole on every rank")
            elif earlier or (records.exists() and not resume):
                raise InputError(
                    f"{self.folder} holds an earlier training; give resume=True, or another folder"
                )
            if resume:
                self.check_schedules()
        with cluster.together():  # only if no rank has refused
            if common:
                self.records.go_on_from(position.records)
                print(f"labkit: resumed after micro-batch {self.micro_batches}", flush=True)
            elif records.exists():
                print(f"labkit: no checkpoint in {self.folder}; starting from the beginning")
                records.unlink()

    def _load(self, path: Path, anyway: bool) -> Position:
        """Continue from a checkpoint of the same training, or of any with these Parameters."""
        position, values = checkpoint.load(path)
        if not anyway:
            own = settings_of(self.step, self.dataset, self._rates, position.updates)
            refuse_other(own, position.settings)
        # An array of rates may be longer than it was.
        rates = {n: rate for n, rate in self._rates.items() if anyway or rate.size > 1}
        checkpoint.load_into(self.step, {**values, **rates}, path)
        self.micro_batches = position.micro_batches
        self._began -= position.seconds
        return position

    def train(self, callbacks: Sequence[Callback], dataset_sink_mode: bool) -> None:
        """Train from the next micro-batch on, if there is one."""
        # Checkpoints come last: they hold the rates that other callbacks have set.
        saving = LambdaCallback(
            on_train_step_end=self._save_within_epoch, on_train_epoch_end=self._save_after_epoch
        )
        callbacks = [self, *callbacks, saving]
        # The position belongs to the object, and Model claims it for itself: with a copy, other
        # passes over the data, in callbacks or later, begin at the first batch.
        own = copy.copy(self.dataset)
        own.__dict__.pop("__model_hash__", None)
        # A fresh iterator replays the first epoch's order each time, so all epochs are one call;
        # this makes the iterator start at that micro-batch of the whole training.
        own.set_init_step(self.micro_batches)
        begun, epochs = self.micro_batches // self.epoch_size, self.epochs
        try:
            if begun < epochs:
                Model(self.step).train(
                    epochs, own, callbacks, dataset_sink_mode, initial_epoch=begun
                )
                found = self._look_at_dropped()
                if self._dropped:
                    print(f"labkit: {found}, and are dropped", flush=True)
                if self._updates == self._updates_before:
                    why = "no group of micro-batches is complete, or no label counts"
                    warn(f"this call made no update: {found if self._dropped else why}")
        finally:
            self.records.dropped = integer_of(self.step.dropped)
            self.step.trained[self.dataset] = self.micro_batches, integer_of(self.step.updates)

    def on_train_begin(self, run_context: RunContext) -> None:
        super().on_train_begin(run_context)
        arguments = run_context.original_args()
        # MindSpore counts from 0 in each call, and its callbacks would too.
        arguments.cur_step_num, arguments.train_dataset = self.micro_batches, self.dataset
        self._updates = self._updates_before = integer_of(self.step.updates)
        self._first, self._dropped = self.micro_batches, 0
        self._dropped_before = integer_of(self.step.dropped)
        if self._name is not None:
            self._progress = Progress(self._name, self.epochs * self.epoch_size, self.micro_batches)

    def on_train_step_end(self, run_context: RunContext) -> None:
        super().on_train_step_end(run_context)
        if int(self.step.updates.asnumpy()) != self._updates:
            self._record()
        if self._progress is not None:
            self._progress.advance(self._text, self.last)
        done = self.micro_batches - self._first
        if done & (done - 1) == 0:  # 1, 2, 4, ...: each read from the device takes time
            self._look_at_dropped()

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        self._look_at_dropped()

    def on_train_end(self, run_context: RunContext) -> None:
        if self._progress is not None:
            self._progress.close()

    def _look_at_dropped(self) -> str:
        """Return how many micro-batches of this call were dropped; print the first that is seen."""
        told, self._dropped = self._dropped, integer_of(self.step.dropped) - self._dropped_before
        done = self.micro_batches - self._first
        found = f"{self._dropped} of {done} micro-batches were not finite"
        if self._dropped and not told:
            print(f"labkit: so far {found}, and are dropped", flush=True)
        return found

    def _record(self) -> None:
        """Add the row of the last update."""
        last = self.step.last_update
        self._updates = last.number
        rates = {
            "learning_rate" if group == 0 else f"learning_rate_{group}": rate
            for group, rate in enumerate(last.learning_rate)
        }
        self.records.add(
            epoch=(self.micro_batches - 1) // self.epoch_size + 1,
            update=last.number,
            images=last.images,
            loss=last.loss,
            gradient_norm=last.gradient_norm,
            **rates,
            **self.step.update.more_to_record,
            seconds=round(time.monotonic() - self._began, 3),
            peak_memory_mb=round(machine.peak_memory() / 1e6, 1),
        )

    def _save_within_epoch(self, run_context: RunContext) -> None:
        # At an epoch's last micro-batch the epoch's own checkpoint follows.
        in_epoch = self.micro_batches % self.epoch_size
        if self._every and self.micro_batches % self._every == 0 and in_epoch:
            self._due = True
        if self._due and self.step.update.can_be_saved:
            self._save()

    def _save_after_epoch(self, run_context: RunContext) -> None:
        epoch = self.micro_batches // self.epoch_size
        if self._epochs and (epoch % self._epochs == 0 or epoch == self.epochs):
            self._save()

    def _save(self) -> None:
        """Write a checkpoint of this rank; older ones go when all ranks have written theirs."""
        if self.folder is None:
            return
        self._due = False
        updates = int(self.step.updates.asnumpy())
        settings = settings_of(self.step, self.dataset, self._rates, updates)
        done = self.micro_batches, updates, time.monotonic() - self._began, len(self.records)
        with cluster.together():
            path = checkpoint.save(self.step, Position(*done, settings), self.folder / CHECKPOINTS)
        checkpoint.keep_newest(path.parent, self._keep, path)

    def _text(self) -> str:
        self._look_at_dropped()
        text = f"dropped {self._dropped}" if self._dropped else ""
        if not self.records.rows:
            return text
        row = self.records.rows[-1]
        return f"epoch {row['epoch']} update {row['update']} loss {row['loss']:.4f} {text}".rstrip()
