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
    but not where the network draws random numbers (Dropout): MindSpore's kernels do not expose
    their state, and draw from the start again. Where records.csv lacks rows that the checkpoint
    had (a power cut), the training goes on without them, and says so.

    On several ranks, call it on all of them; where one refuses, all raise.

    Args:
        step: A step cell, called with each batch; its ``end_epoch`` is called after each epoch.
        dataset: One epoch is one pass over it.
        epochs: Of the whole training, those before a resume included.
        folder: Where records.csv and checkpoint/ are written; None writes nothing. It is locked
            meanwhile: a second training in it is refused.
        resume: Continue from the newest checkpoint in ``folder``, where there is one. The
            optimizer's numbers must be those that the training began with (an array of rates may
            be longer); "new settings" goes on with other ones: rates, schedules, momentum, weight
            decay, THOR's array of damping, and functions of the number of updates (micro_steps,
            THOR's) are then those of ``step``.
        checkpoint_every: Micro-batches between checkpoints within an epoch; None writes none there.
            A step that keeps a group's rows (``SubspaceStep``) is saved at the group's end.
        checkpoint_epochs: Epochs between checkpoints; the last epoch has one anyway. None: no
            checkpoint after any epoch.
        keep: Checkpoints kept.
        write: Whether this rank writes ``folder`` or only reads from it. None: of the ranks with
            the same folder, the first writes. All of them must see it. Its checkpoints hold what
            other ranks hold differently, too: BatchNorm's running statistics, a dynamic loss
            scale, a group that is partly gathered.
        progress: Name on the progress display; None shows none.
        callbacks: Further MindSpore callbacks, called after labkit's own.
        dataset_sink_mode: Whether the data set goes into the step's graph, so that one call runs an
            epoch: on Ascend and GPU, see ``labkit.training.sinking``; on CPU MindSpore has no such
            mode, and a line says so. The numbers are the same. The host sees an epoch's end alone:
            there is one record for it, of its last update, callbacks see one step, and of the
            labels the first batch's alone are looked at: any other that is of no class makes its
            batch not finite, which is counted and said. All batches must be of one shape.

    Raises:
        InputError: For bad arguments; before anything is written, for an array of learning rates
            or of damping that is shorter than the training; for a folder that another process
            writes; and for a checkpoint of another network, step, seed, batch size, number of data
            workers or of ranks, or of other numbers of the optimizer. With ``dataset_sink_mode``,
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
    """Return ``callbacks`` as a list; ``InputError`` for what ``fit`` cannot train with."""
    if not isinstance(step, Step):
        raise wrong("step", type(step).__name__, "a step cell, such as PlainStep")
    if isinstance(callbacks, Callback):
        return [callbacks]  # as Model.train takes one
    if not isinstance(callbacks, Iterable):
        raise wrong("callbacks", callbacks, "MindSpore callbacks")
    return list(callbacks)


def _take_up(run: Run, resume: bool | str, held: ExitStack) -> None:
    """Take the folder, until ``held`` ends, and what an earlier training has left there."""
    with cluster.together():
        run.begin(resume, held)
    # With a folder each, one rank may have been ended before it could write its checkpoint.
    cluster.agree(**{"number of micro-batches done": run.micro_batches})
    # Not before all ranks have taken the checkpoint: a refused one loses no row.
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
    """Let ``Model`` train ``step`` up to epoch ``epochs``, from micro-batch ``done`` on."""
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
    before any save. ``ModelCheckpoint`` saves there, not at the end of the epoch.

    With ``Model(step).train(..., dataset_sink_mode=True)`` it looks at the first batch for all that
    are sunk, see ``labkit.training.sinking``; every step that is one graph needs it there. On CPU
    MindSpore trains batch by batch all the same, and tells nobody.

    Args:
        step: The step cell that is trained.

    Raises:
        InputError: When the training begins, for a data set that is sunk, as ``fit`` does; and for
            sinks that an epoch ends in, of a step that acts at an epoch's end.
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
        # MindSpore counts from 0 after a resume, and its callbacks would.
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
    """Write checkpoints ``every`` so many micro-batches and ``epochs``; the newest ``keep`` stay.

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
                # The rows first: a checkpoint on the disk whose rows are not there has lost them.
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
