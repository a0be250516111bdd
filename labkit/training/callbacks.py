"""What ``fit`` does after each micro-batch and epoch: records, progress, checkpoints."""

from mindspore.train import Callback, RunContext

from labkit.base.progress import Progress
from labkit.ranks import cluster
from labkit.training import checkpoint, rank_state
from labkit.training.run import CHECKPOINTS, Run
from labkit.training.update_rows import row_of


class Recorder(Callback):
    """Count micro-batches, close epochs, add one record per update, show progress."""

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
        run = self._run
        run.micro_batches += 1
        # Now, not in on_train_epoch_end: ModelCheckpoint saves in this very event.
        if run.micro_batches % run.epoch_size == 0:
            run.step.end_epoch()
        self._record((run.micro_batches - 1) // run.epoch_size + 1)
        if self._progress is not None:
            self._progress.advance(self._text)

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
        if self._due and self._run.step.can_be_saved:
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
