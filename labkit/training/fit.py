"""``fit`` over ``mindspore.train.Model``, with records, progress, checkpoints and resume."""

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack

from mindspore.dataset import Dataset
from mindspore.train import Callback, Model, RunContext

from labkit.base.arguments import flag, integer, names_checked, wrong
from labkit.base.progress import Progress
from labkit.errors import nearest
from labkit.ranks import cluster
from labkit.steps.step import Step
from labkit.training import checkpoint, rank_state, sinking
from labkit.training.records import Records
from labkit.training.run import CHECKPOINTS as CHECKPOINTS
from labkit.training.run import NEW_SETTINGS, Run
from labkit.training.update_rows import row_of


@names_checked
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
    write: bool | None = None,
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

    On several ranks, call it on all of them; if one raises, all do.

    Args:
        step: A step cell, called with each batch; its ``end_epoch`` is called after each epoch.
        dataset: One epoch is one pass over it.
        epochs: Epochs of the whole training, including those before a resume.
        folder: Where records.csv and checkpoint/ are written; None writes nothing. It is locked
            during the call: a second training in it is refused.
        resume: Continue from the newest checkpoint in ``folder``, if there is one. The optimizer's
            numbers must be those that the training began with (an array of rates may be longer);
            "new settings" continues with different ones: rates, schedules, momentum, weight decay,
            THOR's array of damping, and functions of the number of updates (micro_steps, THOR's)
            are then those of ``step``.
        checkpoint_every: Micro-batches between checkpoints within an epoch; None writes none there.
            A step that keeps a group's rows (``SubspaceStep``) is saved at the group's end.
        checkpoint_epochs: Epochs between checkpoints; the last epoch always has one. None: no
            checkpoint after any epoch.
        keep: Number of checkpoints to keep.
        write: Whether this rank writes ``folder`` or only reads from it. None: of the ranks with
            the same folder, the first writes. All of them must see the folder. Its checkpoints also
            hold what differs on other ranks: BatchNorm's running statistics, a dynamic loss scale,
            a partly gathered group.
        progress: Name on the progress display; None shows none.
        callbacks: Further MindSpore callbacks, called after labkit's own.
        dataset_sink_mode: Whether the data set goes into the step's graph, so that one call runs an
            epoch: on Ascend and GPU, see ``labkit.training.sinking``; on CPU MindSpore has no such
            mode, and a message says so. The numbers are the same. The host sees only the end of an
            epoch: it writes one record, of the last update, and callbacks see one step. Only the
            first batch's labels are checked: a later label that is not a class makes its batch
            non-finite, which is counted and reported. All batches must have the same shape.

    Raises:
        InputError: For invalid arguments; before anything is written, for an array of learning
            rates or of damping that is shorter than the training; for a folder that another process
            writes; and for a checkpoint of another network, step, seed, batch size, number of data
            workers or of ranks, or with other numbers of the optimizer. With ``dataset_sink_mode``,
            on any device, also for a step that is more than one graph or needs the host between
            micro-batches, a smaller batch at an epoch's end, ``checkpoint_every``, and a checkpoint
            within an epoch.
    """
    intervals = {"checkpoint_every": checkpoint_every, "checkpoint_epochs": checkpoint_epochs}
    with cluster.together():
        further = _callbacks(step, callbacks)
        epochs, keep = integer("epochs", epochs), integer("keep", keep)
        flag("dataset_sink_mode", dataset_sink_mode)
        intervals = {name: x if x is None else integer(name, x) for name, x in intervals.items()}
        _check_folder(folder, resume, checkpoint_every, write)
        if dataset_sink_mode:
            sinking.check(step, dataset, checkpoint_every)
        run = Run(step, dataset, epochs, folder, whole_epochs=dataset_sink_mode)
    run.share(write)
    length = {"number of batches in an epoch": run.epoch_size}
    sinks = {"dataset_sink_mode": dataset_sink_mode}
    cluster.agree(resume=bool(resume), epochs=epochs, **sinks, **intervals, **length)
    with ExitStack() as held:
        _take_up(run, resume, held)
        own: list[Callback] = [sinking.Sunk(step), Recorder(run, progress)]
        if any(writer is not None for writer in run.writers):
            every, after = intervals.values()
            own.append(Checkpointer(run, every, after, keep))
        if run.micro_batches < epochs * run.epoch_size:
            if dataset_sink_mode:
                sinking.say_where_not()
            try:
                train(step, dataset, epochs, [*own, *further], run.micro_batches, **sinks)
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


def _take_up(run: Run, resume: bool | str, held: ExitStack) -> None:
    """Lock the folder until ``held`` closes, and load what an earlier training has left there."""
    with cluster.together():
        run.begin(resume, held)
    # If each rank has its own folder, one may have been killed before it wrote its checkpoint.
    cluster.agree(**{"number of micro-batches done": run.micro_batches})
    # Not before all ranks have accepted the checkpoint: a refused one must lose no row.
    with cluster.together():
        run.keep_rows()


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
        if dataset_sink_mode:
            sinking.release(dataset)


class EndOfEpoch(sinking.Sunk):
    """Tell a step that an epoch is over, for training by ``Model(step).train`` without ``fit``.

    Put it first: it acts right after an epoch's last micro-batch, so that the flushed update comes
    before any save. ``ModelCheckpoint`` also saves at that point, not at the end of the epoch.

    With ``Model(step).train(..., dataset_sink_mode=True)`` it checks the first batch on behalf of
    all that are sunk, see ``labkit.training.sinking``; every step that is one graph then needs it.
    On CPU MindSpore silently trains batch by batch all the same.

    Args:
        step: The step cell that is trained.

    Raises:
        InputError: When the training begins with a sunk data set, as for ``fit``; and if it begins
            within a sink, or an epoch ends within one and the step acts at an epoch's end.
    """

    def on_train_begin(self, run_context: RunContext) -> None:
        super().on_train_begin(run_context)
        dataset = run_context.original_args().train_dataset
        self._done, self._size = dataset.get_init_step(), dataset.get_dataset_size()

    def on_train_step_end(self, run_context: RunContext) -> None:
        super().on_train_step_end(run_context)
        self._done += sinking.micro_batches_of(run_context)
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
        run, count = self._run, sinking.micro_batches_of(run_context)
        run.micro_batches += count
        # Now, not in on_train_epoch_end: ModelCheckpoint saves in this very event.
        if run.micro_batches % run.epoch_size == 0:
            run.step.end_epoch()
        self._record((run.micro_batches - 1) // run.epoch_size + 1)
        if self._progress is not None:
            self._progress.advance(self._text, count)

    def on_train_end(self, run_context: RunContext) -> None:
        if self._progress is not None:
            self._progress.close()

    def _record(self, epoch: int) -> None:
        run = self._run
        if int(run.step.updates.asnumpy()) == self._updates:
            return
        row = row_of(run.step, epoch, run.seconds())
        self._updates = row["update"]
        run.records.add(**row)

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
        run, self._due = self._run, False
        others = rank_state.of_others(run.step, run.writers)
        with cluster.together():
            if run.writes:
                # The rows first: a checkpoint whose rows are not on the disk yet could lose them.
                run.records.sync()
                folder = run.own_folder / CHECKPOINTS
                checkpoint.save(run.step, run.position(), folder, self._keep, others)


def _check_folder(
    folder: str | os.PathLike | None, resume: bool | str, every: int | None, write: bool | None
) -> None:
    if resume not in (True, False, NEW_SETTINGS):
        expected = f"True, False or {NEW_SETTINGS!r}"
        raise wrong("resume", resume, expected, nearest(resume, [NEW_SETTINGS]))
    if write not in (None, True, False):
        raise wrong("write", write, "None, True or False")
    if folder is None and (resume or every):
        raise wrong("folder", folder, "a path, for resume and checkpoint_every")
