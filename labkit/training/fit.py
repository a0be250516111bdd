"""``fit`` over ``mindspore.train.Model``, with records, progress, checkpoints and resume."""

import shutil
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import mindspore as ms
from mindspore.dataset.engine.datasets import MapDataset
from mindspore.train import Callback, Model

from labkit.base.arguments import integer
from labkit.base.files import make_folder, remove_unfinished, whole_file
from labkit.base.locks import locked
from labkit.base.printable import printable
from labkit.base.progress import Progress
from labkit.errors import InputError, refuse_unknown
from labkit.ranks import cluster
from labkit.steps.gradients import set_state
from labkit.steps.settings import differing, take_over
from labkit.training import checkpoint, optimizer_numbers, rank_state
from labkit.training.records import Records
from labkit.training.update_rows import DAMAGED, RECORDS, row_of, rows_until_now, updates_missing

CHECKPOINTS = "checkpoint"
NEW_SETTINGS = "new settings"


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
    write=None,
    progress="training",
    callbacks=(),
) -> Records:
    """Train ``step`` on ``dataset`` up to epoch ``epochs`` and return one record per update.

    step              a step cell: called with each batch; its ``end_epoch`` after each epoch
    dataset           MindSpore dataset; one epoch is one pass
    epochs            of the whole training, those before a resume included
    folder            where records.csv and checkpoint/ are written; None writes nothing. It is
                      locked meanwhile: a second training in it is refused
    resume            continue from the newest checkpoint in ``folder``, where there is one. On CPU
                      the parameters are then bit-identical to those of an uninterrupted run, but
                      not where the network draws random numbers (Dropout): MindSpore's kernels
                      show their state to nobody, and draw from the start again. The optimizer's
                      numbers must be those that the training began with (an array of rates may be
                      longer); "new settings" goes on with other ones: rates, schedules, momentum,
                      weight decay, THOR's array of damping, and functions of the number of updates
                      (micro_steps, THOR's) are then those of ``step``
    checkpoint_every  micro-batches between checkpoints within an epoch; None writes none there. A
                      step that keeps a group's rows (``SubspaceStep``) is saved at the group's end
    checkpoint_epochs epochs between checkpoints, the last epoch has one anyway; None: no checkpoint
                      after any epoch
    keep              checkpoints kept
    write             whether this rank writes ``folder`` or only reads from it; None: of the ranks
                      that have the same folder, the first writes. All of them must see it. Its
                      checkpoints hold what other ranks hold otherwise, too: BatchNorm's running
                      statistics, a dynamic loss scale, a group that is partly gathered
    progress          name on the progress display, None for none
    callbacks         further MindSpore callbacks, called after labkit's own

    A record holds epoch, update, images (of that update), loss, gradient_norm, learning_rate (one
    column per parameter group), seconds (of training so far) and peak_memory_mb (of this process).

    On several ranks, call it on all of them; where one refuses, all raise. Where records.csv lacks
    rows that the checkpoint had (a power cut), the training goes on without them, and says so.

    Raises ``InputError`` for bad arguments; before anything is written, for an array of learning
    rates or of damping that is shorter than the training; for a folder that another process
    writes; and for a checkpoint of another network, step, seed, batch size, number of data workers
    or of ranks, or of other numbers of the optimizer.
    """
    with cluster.together():
        _check(epochs, keep, checkpoint_every, checkpoint_epochs, folder, resume, write)
        run = _Training(step, dataset, epochs, folder)
    run.share(write)
    cluster.agree(
        resume=bool(resume),
        epochs=epochs,
        checkpoint_every=checkpoint_every,
        checkpoint_epochs=checkpoint_epochs,
        **{"number of batches in an epoch": run.epoch_size},
    )
    with ExitStack() as held:
        with cluster.together():
            run.begin(resume, held)
        # With a folder each, one rank may have been ended before it could write its checkpoint.
        cluster.agree(**{"number of micro-batches done": run.micro_batches})
        # Not before all ranks have taken the checkpoint: a refused one loses no row.
        with cluster.together():
            run.keep_rows()
        if run.micro_batches >= epochs * run.epoch_size:
            return run.records
        own = [_Recorder(run, progress)]
        if any(writer is not None for writer in run.writers):
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

    def __init__(self, step, dataset, epochs, folder):
        self.step, self.dataset, self.epochs = step, dataset, epochs
        self.folder = None if folder is None else Path(folder)
        self.epoch_size = dataset.get_dataset_size()
        self.batch_size = dataset.get_batch_size()
        if not self.epoch_size:
            raise InputError("the dataset holds no batch; expected at least one")
        self.micro_batches = 0
        self.taken = None  # the position that the training goes on from
        self.seconds_before = 0.0
        self.started = time.monotonic()
        self.rank, self.ranks = cluster.rank_and_size()
        self.numbers = optimizer_numbers.noted(step)

    def share(self, write):
        """Settle which rank writes; the others read."""
        self.writers = rank_state.writers(self.folder, write)
        self.writes = self.folder is not None and self.writers[self.rank] == self.rank
        self.records = Records(self.folder / RECORDS if self.writes else None)

    def begin(self, resume, held):
        """Take the folder, until ``held`` lets it go, and what an earlier training left there."""
        if not resume:
            self.check_schedules(0)
        if self.writes:
            make_folder(self.folder)
            held.enter_context(locked(self.folder, "a training"))
            remove_unfinished(self.folder)
        if resume:
            self.resume(take_new=resume == NEW_SETTINGS)
        elif self.folder is not None:
            self.refuse_earlier()

    def refuse_earlier(self):
        """Raise ``InputError`` where the folder holds an earlier training."""
        found = checkpoint.checkpoints(self.folder / CHECKPOINTS)
        if found or (self.folder / RECORDS).exists():
            raise InputError(
                f"{self.folder} holds an earlier training; give resume=True to continue it, or "
                "another folder"
            )

    def check_schedules(self, done):
        """Refuse arrays of rates or damping that end before the training, ``done`` so far, does."""
        epochs, done = divmod(done, self.epoch_size)
        left = [self.epoch_size] * (self.epochs - epochs)
        if left:
            left[0] -= done
            self.step.check_length(self.step.updates_ahead(left))

    def resume(self, take_new):
        """Take up the newest checkpoint of the folder; start anew where there is none."""

        def accept(position, values):
            self._accept(position)
            self._accept_numbers(position, values, take_new)
            with _counting_from(values, self.step):
                self.check_schedules(position.micro_batches)

        position = checkpoint.load_latest(self.step, self.folder / CHECKPOINTS, accept)
        if position is None:
            self.check_schedules(0)
            if self.writes and (self.folder / RECORDS).exists():
                print(f"labkit: no checkpoint in {self.folder}; starting anew", flush=True)
                self.records.remove_file()
            return
        take_over(self.step, position.settings)
        self.micro_batches, self.seconds_before = position.micro_batches, position.seconds
        self.taken = position

    def keep_rows(self):
        """Keep the rows up to the checkpoint that was taken up, if one was."""
        if self.taken is None:
            return
        self.records.rows = self._rows(self.taken)
        self.records.keep_first(self.taken.records)
        print(f"labkit: resumed after micro-batch {self.micro_batches}", flush=True)

    def _accept(self, position):
        """Refuse a checkpoint that would not continue as an uninterrupted run."""
        if ms.dataset.config.get_fast_recovery():
            raise InputError(
                "cannot resume: call labkit.start first, it sets the order of the data"
            )
        own = self.position()
        names = ["settings", "epoch_size", "batch_size", "seed", "workers"]
        for name in names + ["ranks"] * (position.ranks is not None):
            here, before = getattr(own, name), getattr(position, name)
            if name == "settings" and all(
                "damping" in (one.optimizer or {}) for one in (own, position)
            ):
                # An array that may go on: compared with the optimizer's numbers.
                here, before = ({**one, "damping": None} for one in (here, before))
            if name == "settings":
                here, before = differing(here, before)
            if here != before:
                raise InputError(f"cannot resume: {name} is {here}, the checkpoint's {before}")

    def _accept_numbers(self, position, values, take_new):
        """Refuse other numbers of the optimizer than the checkpoint's, or put them into it."""
        then, optimizer = position.optimizer, self.step.optimizer
        if then is None and self.rank == 0:
            print(
                "labkit: the checkpoint does not say what the optimizer's numbers were, so they "
                "could not be compared: rate and momentum are the checkpoint's, weight decay and "
                "all that is no Parameter are this optimizer's",
                flush=True,
            )
        differ = optimizer_numbers.differences(then, values, self.step)
        text = "; ".join(f"{name} is {own}, {{}}{was}" for name, (own, was) in differ.items())
        # Of a file that may be anybody's; in a terminal, and in one line.
        text = printable(text).replace("\n", "\\n")
        if differ and not take_new:
            raise InputError(
                f"cannot resume: {text.replace('{}', 'the checkpoint has ')}; give the optimizer "
                f"what it had, or resume={NEW_SETTINGS!r} to go on with what it has now"
            )
        if differ and self.rank == 0:
            print(f"labkit: {NEW_SETTINGS}: {text.replace('{}', 'was ')}", flush=True)
        if self.rank == 0 and (names := optimizer_numbers.not_compared(then, self.step)):
            print(
                f"labkit: not compared with the checkpoint's: {', '.join(names)}; resumed as if "
                "they were the same",
                flush=True,
            )
        optimizer_numbers.keep_own(values, then, optimizer, differ)
        if then is not None:
            # What counts in the training has begun where it did; what was taken begins now.
            begun = {n: v for n, v in then["parameters"].items() if n not in differ}
            self.numbers["parameters"] |= {
                name: begun.get(name, value) for name, value in self.numbers["parameters"].items()
            }

    def _rows(self, position):
        """Return the rows of the updates that the checkpoint holds; say which are missing."""
        path, updates = self.folder / RECORDS, int(self.step.updates.asnumpy())
        rows, fit = rows_until_now(path, self.step)
        missing = position.records - len(rows)
        if self.writes and path.is_file() and (missing > 0 or not fit):
            with whole_file(self.folder / DAMAGED, "the damaged records") as copy:
                shutil.copyfile(path, copy)
            print(f"labkit: {path} is damaged; kept as it was in {DAMAGED}", flush=True)
        if missing > 0 and self.writes:
            print(
                f"labkit: {path} lacks {missing} of the {position.records} rows that were written "
                f"before the checkpoint{updates_missing(rows, updates, position.records)}; the "
                "training goes on without them",
                flush=True,
            )
        return rows

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
            optimizer=self.numbers,
            ranks=self.ranks,
        )


@contextmanager
def _counting_from(values, step):
    """Have a step's counters be a checkpoint's for a while: how many updates follow hangs on them.

    Raises ``InputError`` for a place in a group that no group has.
    """
    own = []
    try:
        for parameter in step.get_parameters():
            value = values.get(parameter.name)
            if parameter.size != 1 or parameter.dtype not in (ms.int32, ms.int64):
                continue
            # Another one is of another network, which is said when it is loaded.
            if getattr(value, "shape", None) == parameter.shape and value.dtype == parameter.dtype:
                own.append((parameter, parameter.asnumpy().copy()))
                set_state(parameter, value)
        if hasattr(step, "group_size"):
            held, size = int(step.micro_step.asnumpy()), int(step.group_size.asnumpy())
            if not 0 <= held <= size or not size:
                raise InputError(
                    f"cannot resume: the checkpoint is after {held} of a group's {size} "
                    "micro-batches; expected a place within a group"
                )
        yield
    finally:
        for parameter, value in own:
            set_state(parameter, value)


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
        row = row_of(run.step, epoch, run.seconds(), peak_memory_mb())
        self._updates = row["update"]
        run.records.add(**row)

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
        others = rank_state.of_others(run.step, run.writers)
        with cluster.together():
            if run.writes:
                # The rows first: a checkpoint on the disk whose rows are not there has lost them.
                run.records.sync()
                folder = run.folder / CHECKPOINTS
                checkpoint.save(run.step, run.position(), folder, self._keep, others)


def peak_memory_mb() -> float:
    """Return the largest resident memory of this process so far, in MB (10^6 bytes).

    NaN on Windows, where Python does not know it.
    """
    try:
        import resource
    except ImportError:
        return float("nan")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


def _check(epochs, keep, every, epochs_between, folder, resume, write):
    """Raise ``InputError`` for arguments of ``fit`` that are none."""
    integer("epochs", epochs)
    integer("keep", keep)
    if every is not None:
        integer("checkpoint_every", every)
    if epochs_between is not None:
        integer("checkpoint_epochs", epochs_between)
    if isinstance(resume, str):
        refuse_unknown("word for resume", resume, [NEW_SETTINGS])
    elif resume not in (True, False):
        raise InputError(f"resume is {resume!r}; expected True, False or {NEW_SETTINGS!r}")
    if write not in (None, True, False):
        raise InputError(f"write is {write!r}; expected None, True or False")
    if folder is None and (resume or every):
        raise InputError("resume and checkpoint_every need a folder; folder is None")
