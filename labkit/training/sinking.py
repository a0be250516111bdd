"""Dataset sink mode: MindSpore puts the data set into a step's graph, and one call runs an epoch.

What MindSpore's ``Model`` does on Ascend and GPU (2.10.0, ``train/dataset_helper.py``): a Cell
around the step takes its batches from a queue on the device, and the compiled graph runs
``sink_size`` times a call. The host sees one step for each sink: so do callbacks, and there is one
record for it. On CPU ``Model`` feeds the batches itself, whatever it is asked for.

It was not run on Ascend or GPU here. What the tests run on CPU are MindSpore's own Cell, its own
loop over the compiled graph and its own ``Model``, with an operator of Python's in the place of
``GetNext``, which has no kernel there: the same bits as without sink mode.
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

# What MindSpore leaves in a data set that it has sunk: no other step could have it then.
_LEFT = ("__transfer_dataset__", "__has_sent__", "__network_aux__", "__total_batch__")


class Sunk(Callback):
    """What the host does in dataset sink mode; where MindSpore feeds the batches, nothing.

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
    """Refuse sinks that a training begins in, or an epoch ends in whose end a step acts at."""
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
    """Raise ``InputError`` for what cannot be sunk, on any device.

    Args:
        step: refused unless it is one graph.
        dataset: refused where the last batch of an epoch is a smaller one.
        checkpoint_every: micro-batches between checkpoints; refused where there is a number.
    """
    refuse_sink(step)
    while isinstance(dataset, MapDataset | ProjectDataset | RenameDataset):
        dataset = dataset.children[0]  # as many rows
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
    """Say, on the first rank, where MindSpore does not sink a data set."""
    if context.get_context("device_target") == "CPU" and cluster.rank_and_size()[0] == 0:
        print(
            "labkit: dataset_sink_mode: MindSpore sinks no data set on CPU; the training runs "
            "batch by batch, with the same numbers",
            flush=True,
        )


def micro_batches_of(run_context: RunContext) -> int:
    """Return how many micro-batches the end of a step of ``Model`` stands for."""
    arguments = run_context.original_args()
    return arguments.batch_num if arguments.get("dataset_sink_mode") else 1


def first_batch(dataset: Dataset) -> tuple[Tensor, ...]:
    """Return the first batch of a data set, wherever it is to start."""
    start = dataset.get_init_step()
    dataset.set_init_step(0)
    try:
        return tuple(next(dataset.create_tuple_iterator(num_epochs=1)))
    finally:
        dataset.set_init_step(start)


def release(dataset: Dataset) -> None:
    """Let another step have a data set that was sunk."""
    queue, *_ = [dataset.__dict__.pop(name, None) for name in _LEFT]
    # A pipeline has one consumer, dead or alive.
    dataset.parent = [consumer for consumer in dataset.parent if consumer() is not queue]
