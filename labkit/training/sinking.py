"""Dataset sink mode: MindSpore puts the data set into a step's graph, and one call runs an epoch.

On Ascend and GPU, MindSpore's ``Model`` (2.10.0, ``train/dataset_helper.py``) puts a Cell around
the step that takes its batches from a queue on the device, and runs the compiled graph
``sink_size`` times per call. The host and the callbacks see one step per sink, and there is one
record for it. On CPU ``Model`` feeds the batches itself, whatever it is asked for.

This mode was not run on Ascend or GPU. The tests on CPU run MindSpore's own Cell, its own loop over
the compiled graph and its own ``Model``, with a Python operator in place of ``GetNext``, which has
no kernel on CPU: the results are bit-identical to those without sink mode.
"""

from mindspore import Tensor, context
from mindspore.dataset import Dataset
from mindspore.dataset.engine.datasets import (
    BatchDataset,
    MapDataset,
    ProjectDataset,
    RenameDataset,
)
from mindspore.train import Callback, RunContext

from labkit.base.arguments import names_checked
from labkit.errors import InputError
from labkit.ranks import cluster
from labkit.steps.state import integer_of
from labkit.steps.step import Step
from labkit.steps.sunk import refuse_sink

# What MindSpore leaves in a data set that it has sunk: no other step could then use it.
_LEFT = ("__transfer_dataset__", "__has_sent__", "__network_aux__", "__total_batch__")


class Sunk(Callback):
    """The host's part in dataset sink mode; does nothing if MindSpore feeds the batches.

    Args:
        step: the step cell that is trained.
    """

    @names_checked
    def __init__(self, step: Step) -> None:
        super().__init__()
        self._step = step
        self._batch: tuple[Tensor, ...] = ()

    def on_train_begin(self, run_context: RunContext) -> None:
        arguments = run_context.original_args()
        if not arguments.get("dataset_sink_mode"):
            return
        with cluster.together():
            check(self._step, arguments.train_dataset)
            _check_sinks(self._step, arguments.train_dataset, arguments.batch_num)
            self._batch = first_batch(arguments.train_dataset)
            self._step.sink(*self._batch)
        self._dropped = integer_of(self._step.dropped)

    def on_train_step_begin(self, run_context: RunContext) -> None:
        if self._batch:
            # Model has set all Cells to training mode, and this one to a phase of its own.
            run_context.original_args().train_network.phase = self._step.sink(*self._batch)

    def on_train_step_end(self, run_context: RunContext) -> None:
        if not self._batch:
            return
        before, self._dropped = self._dropped, integer_of(self._step.dropped)
        if self._dropped > before:
            print(
                f"labkit: {self._dropped - before} of {run_context.original_args().batch_num} "
                "micro-batches that were sunk were not finite and left no trace; a label that is "
                "of no class makes one so",
                flush=True,
            )


def _check_sinks(step: Step, dataset: Dataset, sink_size: int) -> None:
    """Refuse a start within a sink, and an epoch's end within one if the step acts at that end."""
    size, start = dataset.get_dataset_size(), dataset.get_init_step()
    if start % sink_size:
        raise InputError(
            f"the data set is to start at batch {start}, within a sink of {sink_size}, where "
            "MindSpore starts at the sink's beginning; expected a multiple"
        )
    if size % sink_size and type(step).end_epoch is not Step.end_epoch:
        raise InputError(
            f"sink_size: expected a divisor of {size}, the batches of an epoch, at whose end "
            f"{type(step).__name__} closes its group, got {sink_size}"
        )


def check(step: Step, dataset: Dataset, checkpoint_every: int | None = None) -> None:
    """Raise ``InputError`` if a training cannot use sink mode, on any device.

    Args:
        step: refused unless it is one graph.
        dataset: refused if the last batch of an epoch is smaller.
        checkpoint_every: micro-batches between checkpoints; refused unless it is None.
    """
    refuse_sink(step)
    while isinstance(dataset, MapDataset | ProjectDataset | RenameDataset):
        dataset = dataset.children[0]  # it has as many rows
    if isinstance(dataset, BatchDataset) and not dataset.drop_remainder:
        rows, size = dataset.children[0].get_dataset_size(), dataset.get_batch_size()
        if size > 0 and rows % size:
            raise InputError(
                "dataset_sink_mode: expected batches of one shape, got a last one of "
                f"{rows % size} rows where the others have {size}; give batch drop_remainder=True"
            )
    if checkpoint_every is not None:
        raise InputError(
            "checkpoint_every: expected None with dataset_sink_mode=True, which trains an epoch "
            f"in one call, got {checkpoint_every}"
        )


def say_where_not() -> None:
    """Print a message, on the first rank, if MindSpore does not sink data sets on this device."""
    if context.get_context("device_target") == "CPU" and cluster.rank_and_size()[0] == 0:
        print(
            "labkit: dataset_sink_mode: MindSpore sinks no data set on CPU; the training runs "
            "batch by batch, with the same numbers",
            flush=True,
        )


def micro_batches_of(run_context: RunContext) -> int:
    """Return how many micro-batches one step of ``Model`` stands for."""
    arguments = run_context.original_args()
    return arguments.batch_num if arguments.get("dataset_sink_mode") else 1


def first_batch(dataset: Dataset) -> tuple[Tensor, ...]:
    """Return the first batch of a data set, whatever its initial step."""
    start = dataset.get_init_step()
    dataset.set_init_step(0)
    try:
        return tuple(next(dataset.create_tuple_iterator(num_epochs=1)))
    finally:
        dataset.set_init_step(start)


def release(dataset: Dataset) -> None:
    """Make a data set that was sunk available to another step."""
    queue, *_ = [dataset.__dict__.pop(name, None) for name in _LEFT]
    # A pipeline has one consumer, dead or alive.
    dataset.parent = [consumer for consumer in dataset.parent if consumer() is not queue]
