"""``fit`` over ``mindspore.train.Model``, with records, progress, checkpoints and resume."""

import os
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

import mindspore as ms
from mindspore.dataset import Dataset
from mindspore.train import Callback, Model, RunContext

from labkit.base import arguments
from labkit.base.arguments import flag, integer, wrong
from labkit.base.files import locked, remove_unfinished
from labkit.base.progress import Progress
from labkit.errors import InputError, nearest
from labkit.ranks import cluster
from labkit.steps.step import Step
from labkit.training import checkpoint
from labkit.training.checkpoint import CHECKPOINTS, Position
from labkit.training.records import RECORDS, Records
from labkit.training.resume import own_rates, refuse_other, settings_of

ANYWAY = "anyway"
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
    dataset_sink_mode: bool = False,
) -> Records:
    """Train ``step`` on ``dataset`` up to epoch ``epochs`` and return one record per update.

    A record holds epoch, update, images (of that update), loss, gradient_norm, learning_rate (one
    column per parameter group), seconds (of training so far) and peak_memory_mb (of this process).

    On CPU the parameters of a resumed training are bit-identical to those of an uninterrupted one,
    unless the network draws random numbers (Dropout): MindSpore's kernels do not expose their
    state, and draw from the start again. If records.csv lacks rows that the checkpoint had (after a
    power cut), the training continues without them, and says so.

    On several ranks, call it on all of them; if one raises, all do. The first writes ``folder``,
    rank r the folder ``rank_r`` in it: BatchNorm's running statistics, a dynamic loss scale and a
    partly gathered group are each rank's own.

    Args:
        step: A step cell, called with each batch; its ``end_epoch`` is called after each epoch.
        dataset: One epoch is one pass over it.
        epochs: Epochs of the whole training, including those before a resume.
        folder: Where records.csv and checkpoint/ are written; None writes nothing. It is locked
            during the call: a second training in it is refused.
        resume: Continue from the newest checkpoint in ``folder``, if there is one. Step, optimizer,
            data, seed and ranks must be those of the checkpoint; a schedule must be the same up to
            its update. "anyway" continues with different ones: the optimizer's rates and momentum
            are then those of ``step``.
        checkpoint_every: Micro-batches between checkpoints within an epoch; None writes none there.
            A step that keeps a group's rows (``SubspaceStep``) is saved at the group's end.
        checkpoint_epochs: Epochs between checkpoints; the last epoch always has one. None: no
            checkpoint after any epoch.
        keep: Number of checkpoints to keep.
        progress: Name on the progress display; None shows none.
        callbacks: Further MindSpore callbacks, called after labkit's own.
        dataset_sink_mode: Handed to ``Model``: on Ascend and GPU an epoch is one call, with one
            record; on CPU MindSpore has no such mode and trains batch by batch.

    Raises:
        InputError: For invalid arguments; for an array of learning rates or of damping that is
            shorter than the training; for a folder that another process writes or that holds an
            earlier training; for a checkpoint with other settings, naming them; and for
            ``dataset_sink_mode`` with a step that is more than one graph.
    """
    with cluster.together():
        further = _callbacks(step, callbacks)
        epochs, keep = integer("epochs", epochs), integer("keep", keep)
        intervals = {"checkpoint_every": checkpoint_every, "checkpoint_epochs": checkpoint_epochs}
        intervals = {name: x if x is None else integer(name, x) for name, x in intervals.items()}
        run = Run(step, dataset, epochs, folder)
        if resume not in (True, False, ANYWAY):
            expected = f"True, False or {ANYWAY!r}"
            raise wrong("resume", resume, expected, nearest(resume, [ANYWAY]))
        if folder is None and (resume or checkpoint_every):
            raise wrong("folder", folder, "a path, for resume and checkpoint_every")
        if flag("dataset_sink_mode", dataset_sink_mode) and not getattr(step, "one_graph", True):
            raise InputError(
                f"dataset_sink_mode: {type(step).__name__} is more than one graph, between which "
                "the host acts; expected False"
            )
        if not resume:
            run.check_schedules()
    cluster.agree(
        resume=resume,
        epochs=epochs,
        **intervals,
        **{"number of batches in an epoch": run.epoch_size, "writing a folder": folder is not None},
    )
    with ExitStack() as held:
        with cluster.together():
            if run.folder is not None:
                held.enter_context(locked(run.folder, "a training"))
                remove_unfinished(run.folder)  # left by a process that was killed while it wrote
        if resume:
            run.resume(anyway=resume == ANYWAY)
        with cluster.together():
            run.check_schedules()
            run.begin(resuming=bool(resume))
        own: list[Callback] = [Recorder(run, progress)]
        if run.folder is not None:
            own.append(Checkpointer(run, checkpoint_every, checkpoint_epochs, keep))
        if run.micro_batches < epochs * run.epoch_size:
            try:
                all_of_them = [*own, *further]
                train(step, dataset, epochs, all_of_them, run.micro_batches, dataset_sink_mode)
            finally:
                run.records.close()
    return run.records


def _callbacks(step: object, callbacks: object) -> list[Callback]:
    """Check ``step`` and return ``callbacks`` as a list; raise ``InputError`` for wrong types."""
    if not isinstance(step, Step):
        raise wrong("step", type(step).__name__, "a step cell, such as PlainStep")
    if isinstance(callbacks, Callback):
        return [callbacks]  # Model.train also accepts a single one
    if not isinstance(callbacks, Iterable):
        raise wrong("callbacks", callbacks, "MindSpore callbacks")
    return list(callbacks)


class Run:
    """One training on one rank: its step and data, its progress, and its folder."""

    def __init__(
        self, step: Step, dataset: Dataset, epochs: int, folder: str | os.PathLike | None
    ) -> None:
        if not isinstance(dataset, Dataset):
            raise wrong("dataset", dataset, "a MindSpore dataset")
        self.step, self.dataset, self.epochs = step, dataset, epochs
        self.folder: Path | None = None
        if folder is not None:
            self.folder = arguments.path("folder", folder, "a path or None")
            if rank := cluster.rank_and_size()[0]:
                self.folder /= f"rank_{rank}"
        self.records = Records(None if self.folder is None else self.folder / RECORDS)
        self.epoch_size = dataset.get_dataset_size()
        if not self.epoch_size:
            raise InputError("dataset: expected at least one batch, got none")
        self.micro_batches = 0
        self.resumed_from: Position | None = None
        self._started = time.monotonic()
        self._rates = own_rates(step)  # those it begins with: a callback may change them

    def resume(self, anyway: bool) -> None:
        """Load the newest checkpoint that every rank has, if there is one."""
        assert self.folder is not None
        with cluster.together():
            if ms.dataset.config.get_fast_recovery():
                raise InputError(
                    "cannot resume: call labkit.start first, it sets the order of the data"
                )
            paths = checkpoint.readable(self.folder / CHECKPOINTS)
        # A rank may have been killed before it wrote the newest one.
        number = _newest_of_all(list(paths))
        with cluster.together():
            if number is not None:
                self._take_up(paths[number], anyway)
            elif checkpoint.checkpoints(self.folder / CHECKPOINTS):
                raise InputError(
                    f"{self.folder / CHECKPOINTS} has no checkpoint that is whole on every rank; "
                    "expected one, or an empty folder to start from the beginning"
                )

    def check_schedules(self) -> None:
        """Refuse arrays of rates or damping that are too short for what is left of the training."""
        epochs, done = divmod(self.micro_batches, self.epoch_size)
        if left := [self.epoch_size] * (self.epochs - epochs):
            left[0] -= done
            self.step.check_length(self.step.updates_ahead(left))

    def begin(self, resuming: bool) -> None:
        """Take over or refuse what the folder holds."""
        if self.folder is None:
            return
        path = self.folder / RECORDS
        if self.resumed_from is not None:
            self.records.go_on_from(self.resumed_from.records)
            print(f"labkit: resumed after micro-batch {self.micro_batches}", flush=True)
        elif resuming and path.exists():
            print(f"labkit: no checkpoint in {self.folder}; starting from the beginning")
            path.unlink()
        elif path.exists() or checkpoint.checkpoints(self.folder / CHECKPOINTS):
            raise InputError(
                f"{self.folder} holds an earlier training; give resume=True to continue it, or "
                "another folder"
            )

    def save(self, keep: int) -> None:
        """Write a checkpoint of this rank; older ones go when all ranks have written theirs."""
        assert self.folder is not None
        updates = int(self.step.updates.asnumpy())
        settings = settings_of(self.step, self.dataset, self._rates, updates)
        done = self.micro_batches, updates, self.seconds(), len(self.records)
        with cluster.together():
            # The rows first: a checkpoint whose rows are not on the disk yet could lose them.
            self.records.sync()
            path = checkpoint.save(self.step, Position(*done, settings), self.folder / CHECKPOINTS)
        checkpoint.keep_newest(path.parent, keep, path)

    def seconds(self) -> float:
        """Return the seconds of training so far, including those before a resume."""
        before = 0.0 if self.resumed_from is None else self.resumed_from.seconds
        return before + time.monotonic() - self._started

    def _take_up(self, path: Path, anyway: bool) -> None:
        position, values = checkpoint.load(path)
        if not anyway:
            own = settings_of(self.step, self.dataset, self._rates, position.updates)
            refuse_other(own, position.settings)
        # An array of rates may be longer than it was.
        rates = {name: rate for name, rate in self._rates.items() if anyway or rate.size > 1}
        checkpoint.load_into(self.step, {**values, **rates}, path)
        self.micro_batches, self.resumed_from = position.micro_batches, position


def _newest_of_all(numbers: list[int]) -> int | None:
    """Return the largest number that is in the list of every rank; None if there is none."""
    own = sorted(numbers)[-_LOOKED_AT:]
    gathered = cluster.gather(own + [-1] * (_LOOKED_AT - len(own)))
    common = set.intersection(*(set(row[row >= 0].astype(int)) for row in gathered))
    return max(common, default=None)


def train(
    step: Step,
    dataset: Dataset,
    epochs: int,
    callbacks: Sequence[Callback],
    done: int = 0,
    dataset_sink_mode: bool = False,
) -> None:
    """Train ``step`` with ``Model`` up to epoch ``epochs``, from micro-batch ``done`` on."""
    # A fresh iterator replays the first epoch's order each time, so all epochs are one call; this
    # makes the iterator start at batch `done` of the whole training.
    dataset.set_init_step(done)
    try:
        Model(step).train(
            epochs,
            dataset,
            callbacks=list(callbacks),
            dataset_sink_mode=dataset_sink_mode,
            initial_epoch=done // dataset.get_dataset_size(),
        )
    finally:
        dataset.set_init_step(0)
        # Model claims a dataset for itself, and would refuse it to the next Model.
        dataset.__dict__.pop("__model_hash__", None)


class EndOfEpoch(Callback):
    """Tell a step that an epoch is over, for training by ``Model(step).train`` without ``fit``.

    Put it first: it acts right after an epoch's last micro-batch, so that the flushed update comes
    before any save. ``ModelCheckpoint`` also saves at that point, not at the end of the epoch.

    Args:
        step: The step cell that is trained.
    """

    def __init__(self, step: Step) -> None:
        super().__init__()
        self._step = step

    def on_train_begin(self, run_context: RunContext) -> None:
        dataset = run_context.original_args().train_dataset
        self._done, self._size = dataset.get_init_step(), dataset.get_dataset_size()

    def on_train_step_end(self, run_context: RunContext) -> None:
        self._done += _micro_batches_of(run_context)
        if self._done % self._size == 0:
            self._step.end_epoch()


class Recorder(Callback):
    """Count micro-batches, close epochs, add one record per update seen, show progress."""

    def __init__(self, run: Run, progress: str | None) -> None:
        super().__init__()
        self._run, self._name = run, progress
        self._progress: Progress | None = None

    def on_train_begin(self, run_context: RunContext) -> None:
        run = self._run
        # After a resume MindSpore counts from 0, and its callbacks would too.
        run_context.original_args().cur_step_num = run.micro_batches
        self._updates = run.step.last_update.number
        if self._name is not None:
            self._progress = Progress(self._name, run.epochs * run.epoch_size, run.micro_batches)

    def on_train_step_end(self, run_context: RunContext) -> None:
        run, count = self._run, _micro_batches_of(run_context)
        run.micro_batches += count
        # Now, not in on_train_epoch_end: ModelCheckpoint saves in this very event.
        if run.micro_batches % run.epoch_size == 0:
            run.step.end_epoch()
        if int(run.step.updates.asnumpy()) != self._updates:
            epoch = (run.micro_batches - 1) // run.epoch_size + 1
            row = _row_of(run.step, epoch, run.seconds())
            self._updates = int(row["update"])
            run.records.add(**row)
        if self._progress is not None:
            self._progress.advance(self._text, count)

    def on_train_end(self, run_context: RunContext) -> None:
        if self._progress is not None:
            self._progress.close()

    def _text(self) -> str:
        if not self._run.records.rows:
            return ""
        row = self._run.records.rows[-1]
        return f"epoch {row['epoch']} update {row['update']} loss {row['loss']:.4f}"


class Checkpointer(Callback):
    """Write a checkpoint every ``every`` micro-batches and ``epochs`` epochs; ``keep`` are kept.

    Called after ``Recorder``, so that a flushed update comes before the save.
    """

    def __init__(self, run: Run, every: int | None, epochs: int | None, keep: int) -> None:
        super().__init__()
        self._run, self._every, self._epochs, self._keep = run, every, epochs, keep
        self._due = False

    def on_train_step_end(self, run_context: RunContext) -> None:
        done = self._run.micro_batches
        # Not at an epoch's last micro-batch: the epoch's own checkpoint follows.
        if self._every and done % self._every == 0 and done % self._run.epoch_size:
            self._due = True
        if self._due and self._run.step.update.can_be_saved:
            self._save()

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        epoch = self._run.micro_batches // self._run.epoch_size
        if self._epochs and (epoch % self._epochs == 0 or epoch == self._run.epochs):
            self._save()

    def _save(self) -> None:
        self._due = False
        self._run.save(self._keep)


def _row_of(step: Step, epoch: int, seconds: float) -> dict[str, float]:
    """Return the row of a step's last update, made in ``epoch`` (from 1)."""
    last = step.last_update
    rates = {
        "learning_rate" if group == 0 else f"learning_rate_{group}": rate
        for group, rate in enumerate(last.learning_rate)
    }
    return {
        "epoch": epoch,
        "update": last.number,
        "images": last.images,
        "loss": last.loss,
        "gradient_norm": last.gradient_norm,
        **rates,
        **step.update.more_to_record,
        "seconds": round(seconds, 3),
        "peak_memory_mb": round(_peak_memory_mb(), 1),
    }


def _peak_memory_mb() -> float:
    """Return the largest resident memory of this process so far, in MB (10^6 bytes)."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


def _micro_batches_of(run_context: RunContext) -> int:
    """Return how many micro-batches one step of ``Model`` stands for: in sink mode an epoch."""
    arguments = run_context.original_args()
    return arguments.batch_num if arguments.get("dataset_sink_mode") else 1
