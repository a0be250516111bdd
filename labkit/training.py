"""``fit`` over ``mindspore.train.Model``, with records, progress, checkpoints and resume."""

import resource
import sys
import tempfile
import time
from numbers import Integral
from pathlib import Path

import mindspore as ms
from mindspore.dataset.engine.datasets import MapDataset
from mindspore.train import Callback, Model

from labkit import checkpoint, cluster
from labkit.errors import InputError
from labkit.progress import Progress
from labkit.records import Records, read_records
from labkit.settings import differing, take_over

CHECKPOINTS, RECORDS = "checkpoint", "records.csv"


def fit(
    step,
    dataset,
    epochs,
    *,
    folder=None,
    resume=False,
    checkpoint_every=None,
    checkpoint_epochs=1,
    keep=2,
    write=True,
    progress="training",
    callbacks=(),
) -> Records:
    """Train ``step`` on ``dataset`` up to epoch ``epochs`` and return one record per update.

    step              a step cell: called with each batch; its ``end_epoch`` after each epoch
    dataset           MindSpore dataset; one epoch is one pass
    epochs            of the whole training, those before a resume included
    folder            where records.csv and checkpoint/ are written; None writes nothing
    resume            continue from the newest checkpoint in ``folder``, where there is one. On CPU
                      the parameters are then bit-identical to those of an uninterrupted run, but
                      not where the network draws random numbers (Dropout): MindSpore's kernels
                      show their state to nobody, and draw from the start again
    checkpoint_every  micro-batches between checkpoints within an epoch; None writes none there. A
                      step that keeps a group's rows (``SubspaceStep``) is saved at the group's end
    checkpoint_epochs epochs between checkpoints, the last epoch has one anyway; None: no checkpoint
                      after any epoch
    keep              checkpoints kept
    write             False: ``folder`` is only read from, on all ranks but the one that writes. All
                      must see the same folder. What a rank alone holds, the part of a group that
                      an ``AccumulatedStep`` has gathered, is lost to the others: checkpoints
                      between micro-batches are for one rank
    progress          name on the progress display, None for none
    callbacks         further MindSpore callbacks, called after labkit's own

    A record holds epoch, update, images (of that update), loss, gradient_norm, learning_rate (one
    column per parameter group), seconds (of training so far) and peak_memory_mb (of this process).

    Raises ``InputError`` for bad arguments; before anything is written, for an array of learning
    rates or of damping that is shorter than the training; and for a checkpoint of another network,
    step, seed, batch size or number of data workers.
    """
    check_counts(epochs=epochs, keep=keep)
    if checkpoint_every is not None:
        check_counts(checkpoint_every=checkpoint_every)
    if checkpoint_epochs is not None:
        check_counts(checkpoint_epochs=checkpoint_epochs)
    if folder is None and (resume or checkpoint_every):
        raise InputError("resume and checkpoint_every need a folder; folder is None")
    run = _Training(step, dataset, epochs, folder, write)
    if resume:
        run.resume()
    run.check_schedules()
    if folder is not None and not resume:
        run.start_anew()
    if run.micro_batches >= epochs * run.epoch_size:
        return run.records
    own = [_Recorder(run, progress)]
    if folder is not None and write:
        own.append(_Checkpointer(run, checkpoint_every, checkpoint_epochs, keep))
    try:
        train(step, dataset, int(epochs), own + list(callbacks), run.micro_batches)
    finally:
        run.records.close()
    return run.records


def train(step, dataset, epochs, callbacks, done=0) -> None:
    """Let ``Model`` train ``step`` up to epoch ``epochs``, from micro-batch ``done`` on."""
    # A fresh iterator replays the first epoch's order each time, so all epochs are one call; this
    # makes the iterator start at batch `done` of the whole training.
    dataset.set_init_step(done)
    try:
        Model(step).train(
            epochs,
            dataset,
            callbacks=callbacks,
            dataset_sink_mode=False,
            initial_epoch=done // dataset.get_dataset_size(),
        )
    finally:
        dataset.set_init_step(0)
        # Model claims a dataset for itself, and would refuse it to the next Model.
        dataset.__dict__.pop("__model_hash__", None)


class EndOfEpoch(Callback):
    """Tell a step that an epoch is over, for training by ``Model(step).train`` without ``fit``.

    Put it first: it acts right after an epoch's last micro-batch, so that the flushed update comes
    before any save. ``ModelCheckpoint`` saves there, not at the end of the epoch.
    """

    def __init__(self, step):
        super().__init__()
        self._step = step

    def on_train_begin(self, run_context):
        arguments = run_context.original_args()
        if arguments.get("dataset_sink_mode"):
            raise InputError("dataset sink mode came; a step is more than one graph: train without")
        self._done = arguments.train_dataset.get_init_step()

    def on_train_step_end(self, run_context):
        self._done += 1
        if self._done % run_context.original_args().batch_num == 0:
            self._step.end_epoch()


class _Training:
    """What is known of one training: position, records, folder."""

    def __init__(self, step, dataset, epochs, folder, write):
        self.step, self.dataset, self.epochs, self.write = step, dataset, epochs, write
        self.folder = None if folder is None else Path(folder)
        self.epoch_size = dataset.get_dataset_size()
        self.batch_size = dataset.get_batch_size()
        if not self.epoch_size:
            raise InputError("the dataset holds no batch; expected at least one")
        self.micro_batches = 0
        self.seconds_before = 0.0
        self.started = time.monotonic()
        self.records = Records(self.folder / RECORDS if folder is not None and write else None)

    def start_anew(self):
        """Make sure that the folder can be written and holds nothing of an earlier training."""
        found = checkpoint.checkpoints(self.folder / CHECKPOINTS)
        if found or (self.folder / RECORDS).exists():
            raise InputError(
                f"{self.folder} holds an earlier training; give resume=True to continue it, or "
                "another folder"
            )
        if self.write:
            make_folder(self.folder)

    def check_schedules(self):
        """Refuse arrays of rates or damping that end before the training does."""
        epochs, done = divmod(self.micro_batches, self.epoch_size)
        left = [self.epoch_size] * (self.epochs - epochs)
        if left:
            left[0] -= done
            self.step.check_length(self.step.updates_ahead(left))

    def resume(self):
        """Take up the newest checkpoint of the folder; start anew where there is none."""
        if self.write:
            make_folder(self.folder)
        position = checkpoint.load_latest(self.step, self.folder / CHECKPOINTS, self._accept)
        # With a folder each, one rank may have been ended before it could write its checkpoint.
        cluster.agree(**{"number of micro-batches done": position and position.micro_batches})
        if position is None:
            if self.write and (self.folder / RECORDS).exists():
                print(f"labkit: no checkpoint in {self.folder}; starting anew", flush=True)
                (self.folder / RECORDS).unlink()
            return
        self.micro_batches, self.seconds_before = position.micro_batches, position.seconds
        self.records.rows = self._rows()
        self.records.keep_first(position.records)
        print(f"labkit: resumed after micro-batch {self.micro_batches}", flush=True)

    def _accept(self, position):
        """Refuse a checkpoint that would not continue as an uninterrupted run."""
        if ms.dataset.config.get_fast_recovery():
            raise InputError(
                "cannot resume: call labkit.start first, it sets the order of the data"
            )
        own = self.position()
        for name in ("settings", "epoch_size", "batch_size", "seed", "workers"):
            came, expected = getattr(own, name), getattr(position, name)
            if name == "settings":
                came, expected = differing(came, expected)
            if came != expected:
                raise InputError(f"cannot resume: {name} is {came}, the checkpoint's {expected}")
        if len(self._rows()) < position.records:
            raise InputError(
                f"{self.folder / RECORDS} holds {len(self._rows())} rows; the checkpoint was "
                f"written after {position.records}"
            )
        take_over(self.step, position.settings)

    def _rows(self):
        path = self.folder / RECORDS
        return read_records(path).rows if path.exists() else []  # no file before the first update

    def seconds(self):
        return self.seconds_before + time.monotonic() - self.started

    def position(self):
        return checkpoint.Position(
            micro_batches=self.micro_batches,
            epoch_size=self.epoch_size,
            batch_size=self.batch_size,
            seed=ms.dataset.config.get_seed(),
            workers=data_workers(self.dataset),
            seconds=self.seconds(),
            records=len(self.records),
            settings=self.step.settings,
        )


def data_workers(dataset) -> list[int]:
    """Return the numbers of workers of a pipeline's sources and maps, from its end to its start.

    They decide random augmentation, each for itself: a map with one worker draws other numbers
    than the same map with two.
    """
    found = [workers for child in dataset.children for workers in data_workers(child)]
    if not dataset.children or isinstance(dataset, MapDataset):
        default = ms.dataset.config.get_num_parallel_workers()
        found.insert(0, dataset.num_parallel_workers or default)
    return found


class _Recorder(Callback):
    """Count micro-batches, close epochs, add one record per update, show progress."""

    def __init__(self, run, progress):
        super().__init__()
        self._run, self._name = run, progress
        self._progress = None

    def on_train_begin(self, run_context):
        run = self._run
        # MindSpore counts from 0 after a resume, and its callbacks would.
        run_context.original_args().cur_step_num = run.micro_batches
        self._updates = run.step.last_update.number
        if self._name is not None:
            self._progress = Progress(self._name, run.epochs * run.epoch_size, run.micro_batches)

    def on_train_step_end(self, run_context):
        run = self._run
        run.micro_batches += 1
        # Now, not in on_train_epoch_end: ModelCheckpoint saves in this very event.
        if run.micro_batches % run.epoch_size == 0:
            run.step.end_epoch()
        self._record((run.micro_batches - 1) // run.epoch_size + 1)
        if self._progress is not None:
            self._progress.advance(self._text)

    def on_train_end(self, run_context):
        if self._progress is not None:
            self._progress.close()

    def _record(self, epoch):
        run = self._run
        if int(run.step.updates.asnumpy()) == self._updates:
            return
        last = run.step.last_update
        self._updates = last.number
        rates = {
            "learning_rate" if group == 0 else f"learning_rate_{group}": rate
            for group, rate in enumerate(last.learning_rate)
        }
        run.records.add(
            epoch=epoch,
            update=last.number,
            images=last.images,
            loss=last.loss,
            gradient_norm=last.gradient_norm,
            **rates,
            **run.step.more_to_record,
            seconds=round(run.seconds(), 3),
            peak_memory_mb=round(peak_memory_mb(), 1),
        )

    def _text(self):
        if not self._run.records.rows:
            return ""
        row = self._run.records.rows[-1]
        return f"epoch {row['epoch']} update {row['update']} loss {row['loss']:.4f}"


class _Checkpointer(Callback):
    """Write checkpoints; after ``_Recorder``, so that a flushed update comes before the save."""

    def __init__(self, run, every, epochs, keep):
        super().__init__()
        self._run, self._every, self._epochs, self._keep = run, every, epochs, keep
        self._due = False

    def on_train_step_end(self, run_context):
        done = self._run.micro_batches
        # Not at an epoch's last micro-batch: the epoch's own checkpoint follows.
        if self._every and done % self._every == 0 and done % self._run.epoch_size:
            self._due = True
        if self._due and self._run.step.can_be_saved:
            self._save()

    def on_train_epoch_end(self, run_context):
        epoch = self._run.micro_batches // self._run.epoch_size
        if self._epochs and (epoch % self._epochs == 0 or epoch == self._run.epochs):
            self._save()

    def _save(self):
        run, self._due = self._run, False
        checkpoint.save(run.step, run.position(), run.folder / CHECKPOINTS, self._keep)


def peak_memory_mb() -> float:
    """Return the largest resident memory of this process so far, in MB (10^6 bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


def make_folder(folder: Path) -> None:
    """Make a folder, or make sure that files can be made in it; else ``InputError``."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error}") from error


def check_counts(**counts) -> None:
    """Raise ``InputError`` for a named value that is not an integer >= 1."""
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise InputError(f"{name} is {value!r}; expected an integer >= 1")
