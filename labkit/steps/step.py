"""What every step cell is made of: a gradient stage, an update stage, and the state between them.

``loss = step(*batch)`` returns the micro-batch's mean loss before any update; ``step.last_update``
describes the most recent update.
"""

import operator
from collections.abc import Callable, Iterable
from typing import Any, Unpack
from weakref import WeakKeyDictionary

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from labkit.base.arguments import wrong
from labkit.errors import warn
from labkit.steps.batches import arranged, first_batch, labels_of, mapped, nodes, said, variable
from labkit.steps.gradients import GradientStage, divided
from labkit.steps.losses import as_loss_net, check_known
from labkit.steps.options import GradientOptions, Options, gradient_options
from labkit.steps.precision import explained
from labkit.steps.schedules import check_length
from labkit.steps.state import (
    LastUpdate,
    Memory,
    UpdateRecord,
    check_weights,
    copied,
    flat,
    integer_of,
    keep_in_place,
    optimizers_in,
    parameters_in,
    rated,
    running_statistics,
    state,
)
from labkit.steps.update import UpdateStage

_NOTICED = 4  # compilations for other shapes, at which a step says what they cost
_TRAINABLE = operator.attrgetter("requires_grad")


class Step(nn.Cell):
    """Base of the step cells: owns the two stages and all state, as named Parameters.

    Args:
        loss_net: see ``GradientStage``.
        optimizer: any ``nn.Optimizer``; its own ``loss_scale`` must be 1.
        update: an ``UpdateStage``; the optimizer alone by default.

    Cells that are in evaluation mode when the step is built stay in it: the BatchNorm of a frozen
    body, a teacher. The first batch is checked on the host. Freeze weights before the optimizer is
    made: it trains those it was given. What is set on the optimizer between calls (``set_data``,
    ``load_param_into_net``) holds from the next one on. An optimizer that does not advance its
    ``global_step`` is warned of after the first update.

    A batch is Tensors, or tuples, lists and dictionaries of them to any depth, the labels last (of
    a nested last part: its entry ``labels``, or its last one); or it is given by name, the inputs
    as ``network.construct`` calls them: ``step(tokens=tokens, keep=keep, labels=labels)``. A loss
    net of your own gets what its ``construct`` names. To a ``LossNet`` or ``TokenLossNet``, a
    dictionary that is the whole batch is such names, a tuple or list several parts.

    A batch of a new shape compiles again, in seconds; the fourth one is warned of. Pad to a few
    lengths; or say, before the first call, what varies, and one graph serves all: ``set_inputs``.

    Raises:
        InputError: as in ``GradientStage``; if the update stage has another optimizer or needs a
            buffer; if the optimizer holds a frozen Parameter, also at a later call, or one of
            another network; if the whole network is in evaluation mode at a compilation, or the
            first batch cannot be trained on.
    """

    has_buffer = False  # in which the step adds up groups of micro-batches
    cuts = 1  # parts that a given batch is cut into, by an AccumulatedStep's ``_by_parts``
    _by_parts: Any

    def __init__(
        self,
        loss_net: nn.Cell,
        optimizer: nn.Optimizer,
        update: UpdateStage | None,
        options: GradientOptions,
    ):
        super().__init__(auto_prefix=False)
        update = UpdateStage(optimizer) if update is None else update
        if not isinstance(update, UpdateStage) or update.optimizer is not optimizer:
            raise wrong("update", type(update).__name__, "an UpdateStage of the step's optimizer")
        if optimizer.loss_scale != 1:
            raise wrong("optimizer", optimizer.loss_scale, "loss_scale 1: give it to the step")
        if update.needs_buffer and not self.has_buffer:
            name = f"step of {type(update).__name__}"
            raise wrong(name, type(self).__name__, "an AccumulatedStep")
        if half := [weight.name for weight in optimizer.parameters if weight.dtype == ms.float16]:
            warn(
                f"Parameter {half[0]!r} is float16: the optimizer gets 0 for a number below "
                "6e-8 in the averaged gradient and inf above 65504; expected float32 Parameters, "
                "with precision='auto' or 'O2' for float16 inside the network"
            )
        loss_net = as_loss_net(loss_net)
        check_weights(loss_net, optimizer)
        self._weights = tuple(optimizer.parameters)
        trained = set(map(id, optimizer.parameters))
        cells = [cell for _, cell in loss_net.cells_and_names()]
        self._held = [cell for cell in cells if in_evaluation(cell)]
        self._trained = [c for c in cells if trained & set(map(id, c.get_parameters(expand=False)))]
        self._refuse_evaluation()
        self.optimizer, self.update = optimizer, update
        self.gradient = GradientStage(
            loss_net,
            optimizer.parameters,
            options,
            weighted=self.has_buffer,
            extras=update.extras,
            rank_group=update.rank_group,
        )
        self.count, self.map = self.gradient.pairs * self.gradient.count, ops.HyperMap()
        self.settings: dict[str, object] = {"step": type(self).__name__}
        self.settings |= options.settings() | {"mean_over": getattr(loss_net, "over", None)}
        self.settings |= dict(update.settings)
        self.record = UpdateRecord(optimizer)
        self.updates = self.record.updates
        self.dropped = state("dropped", 0)  # non-finite micro-batches
        self.statistics = running_statistics(loss_net) if self.gradient.checked else ()
        if self.statistics:  # as they were before the micro-batch
            self.kept = ParameterTuple(copied(statistic, "kept") for statistic in self.statistics)
        self._with_extras: Any = Graph(self.micro_batch, True) if update.extras else None
        # dataset -> (micro-batches of it that ``fit`` has trained, updates after them)
        self.trained: WeakKeyDictionary = WeakKeyDictionary()
        self._seen: set[tuple] = set()  # shapes and types of the batches that were compiled
        self._open = False  # whether ``set_inputs`` made one graph for all of them
        self.columns: tuple[str, ...] = ()  # names of the parts, for ``fit`` by name

    def _complete(self) -> None:
        """Attach the update stage, at the end of a constructor."""
        self.update.attach(self)
        for cell in (self, self.update, *optimizers_in(self.optimizer)):
            keep_in_place(cell)
        self.set_train()
        if text := self.update.description():
            print(f"labkit: {text}", flush=True)

    def set_train(self, mode: bool = True) -> "Step":
        """Set the mode of all Cells that are not held in evaluation mode."""
        super().set_train(mode)
        for cell in self._held:
            cell.set_train(False)
        return self

    def construct(self, *batch: Tensor) -> Tensor:
        return self.micro_batch(False, *batch)

    def micro_batch(self, with_extras: bool, *batch: Tensor) -> Tensor:
        """Return the loss () of a micro-batch, and make an update where it completes one."""
        raise NotImplementedError

    def contribution(self, with_extras: bool, *batch: Tensor) -> tuple:
        """Return ``GradientStage.contribution``; one that is not finite leaves no trace."""
        if self.statistics:
            self.map(ops.assign, self.kept, self.statistics)
        loss, weight, gradients, finite, squares = self.gradient.contribution(with_extras, *batch)
        if self.statistics:
            # They may be NaN or inf beside a finite loss: the variance of one row is 0 / 0.
            assigned = self.map(flat, ops.depend(self.statistics, loss))
            finite = ops.logical_and(finite, ops.isfinite(ops.concat(assigned)).all())
        if self.gradient.checked:
            adjusted = self.gradient.adjust_loss_scale(finite)
            dropped = ops.assign_add(self.dropped, ops.cast(ops.logical_not(finite), ms.int32))
            if self.statistics:
                if not finite:
                    self.map(ops.assign, self.statistics, self.kept)
            loss = ops.depend(loss, (adjusted, dropped))
        return loss, weight, gradients, finite, squares

    def apply(self, total: tuple, sums: tuple, squares: Tensor | None = None) -> object:
        """Sum over ranks, average and clip, and pass the result to the update stage.

        ``total``, ``squares``: this rank's sums of w_i grad L_i (followed by those of extras) and
        its squares; ``sums``: those of w_i L_i, of w_i (> 0, on all ranks), and of rows.
        """
        loss_sum, weight, images = sums
        if self.gradient.ranks > 1:
            values: tuple = (loss_sum, ops.cast(images, ms.float32))
            parts: tuple = ()
            for value in total:  # a tuple of values: what is summed may be Parameters
                parts += (value,)
            values = self.gradient.all_over_ranks(values, parts[: self.count], parts[self.count :])
            loss_sum, images, total = values[0], ops.cast(values[1], ms.int32), values[2:]
        extras, total = total[self.count :], total[: self.count]
        if self.gradient.weighted and len(extras) > 0:
            extras = self.map(ops.partial(divided, weight), extras)
        if self.gradient.pairs > 1:
            total, loss_sum, weight = self.gradient.sum_of_means(total, loss_sum, weight)
            squares = None
        gradients, norm = self.gradient.finish(total, weight, squares)
        return self.update.take(gradients, extras, (loss_sum, weight, norm, images))

    def __call__(self, *batch: Any, **named: Any) -> Tensor:
        """Return the loss () of a micro-batch; make an update if the micro-batch completes it."""
        if named or self.columns:
            batch = arranged(self.gradient.loss_net, batch, named, self.columns)
        if self.cuts > 1:
            return self._by_parts(batch)
        gathers = self._gathers()
        parts: list[Any] = [(getattr(p, "shape", None), getattr(p, "dtype", None)) for p in batch]
        if (None, None) in parts:  # only nested batches cost more calls
            batch = variable(arranged(self.gradient.loss_net, batch))
            parts = [str(mapped(lambda tensor: (tensor.shape, tensor.dtype), batch))]
        if (kind := (gathers, *parts)) not in self._seen:
            self._look_at(kind, batch)
        if not all(map(_TRAINABLE, self._weights)):
            check_weights(self.gradient.loss_net, self.optimizer)
        self.record.see_rates()
        self.update.before(self, batch)
        loss = self._with_extras(*batch) if gathers else super().__call__(*batch)
        self.update.between(self, batch, loss)
        self._between()
        if not self.record.counts:
            self.record.check_counting()
        return loss

    def _look_at(self, kind: tuple, batch: tuple) -> None:
        """Check modes before a compilation, and the first batch."""
        self._refuse_evaluation()
        if not self._seen:
            loss_net = self.gradient.loss_net
            with first_batch(loss_net, batch), explained(str(self.settings["precision"])):
                if ms.get_context("mode") == ms.GRAPH_MODE:  # this tells how many classes
                    (self._with_extras if kind[0] else self).compile(*batch)
            check_known(loss_net, labels_of(batch))
        shapes = {seen[1:] for seen in self._seen}
        self._seen.add(kind)
        if not self._open and kind[1:] not in shapes and len(shapes) + 1 == _NOTICED:
            warn(
                f"{type(self).__name__} compiled for the fourth shape of batch, {said(batch)}: "
                "step.set_inputs(Tensor(shape=[None, None], dtype=...), ...) before the first "
                "call, or padding to a few lengths, compiles once"
            )

    def set_inputs(self, *inputs: Any, **named: Any) -> None:
        """Set the shapes that the step's graphs are compiled for, None for each axis that varies.

        Given as a batch is: Tensors, nested or by name, such as
        ``tokens=Tensor(shape=[None, None], dtype=ms.int32)``. In MindSpore an input that is a
        dictionary has no open axes.
        """
        inputs = variable(arranged(self.gradient.loss_net, inputs, named))
        if any(isinstance(part, dict) for part in nodes(inputs)):
            expected = "Tensors by name, or in tuples and lists: MindSpore opens no axes in others"
            raise wrong("set_inputs", "an input that is a dictionary", expected)
        super().set_inputs(*inputs)
        if self._with_extras is not None:
            self._with_extras.set_inputs(*inputs)
        self.update.set_inputs(*inputs)
        self._open = True

    def _refuse_evaluation(self) -> None:
        if self._trained and all(map(in_evaluation, self._trained)):
            expected = "training mode: call network.set_train() first"
            raise wrong("the network", "evaluation mode, as Model.eval leaves it", expected)

    @property
    def one_graph(self) -> bool:
        """Whether a data set can be sunk into the step, since nothing needs the host in between."""
        return self.update.one_graph

    def _gathers(self) -> bool:
        """Return whether the current update gathers extras."""
        return bool(self._with_extras) and self.update.wants_extras(integer_of(self.updates))

    def _between(self) -> None:
        """Set the size of the group that starts now."""

    def end_epoch(self) -> None:
        """Announce the end of an epoch; a step that holds part of an update handles it here."""

    @property
    def last_update(self) -> LastUpdate:
        """The most recent update, read from the device."""
        return self.record.last_update()

    def memory(self) -> Memory:
        """Return the bytes kept from call to call on this rank, by part; ``print`` shows a table.

        Each Parameter of network, optimizer and step counts once. Not in it: what a graph allocates
        while it runs: at its peak a CPU process with 5.2 million weights held 7 copies of them in
        all for a plain step, and 27 for ThorStep.
        """
        network, optimizer = self.gradient.loss_net, self.optimizer
        parts: dict[str, Iterable[Tensor]] = {
            "weights": optimizer.parameters,
            "statistics": (*running_statistics(network), *getattr(self, "kept", ())),
            "frozen weights": network.get_parameters(),
            "optimizer state": parameters_in([optimizer, list(vars(rated(optimizer)).values())]),
            "gradient sums": getattr(self, "extended_sum", ()),
        }
        return Memory(parts | dict(self.update.tensors) | {"others": self.get_parameters()})

    def updates_ahead(self, epochs: Iterable[int]) -> int:
        """Return how many updates epochs of so many micro-batches make."""
        return sum(epochs)

    def schedules(self) -> dict[str, Callable | np.ndarray]:
        """Return, by name, the schedules over updates: functions and arrays."""
        return self.update.schedules()

    def check_length(self, updates: int) -> None:
        """Refuse arrays of rates or damping that end within ``updates`` more updates."""
        if updates:
            self.record.check_rates(updates)
            for name, values in self.schedules().items():
                if isinstance(values, np.ndarray):
                    check_length(values, integer_of(self.updates) + updates, name)

    @property
    def micro_batches(self) -> int:
        """How many of this rank's micro-batches make up an update."""
        return 1


class PlainStep(Step):
    """One update for every batch: w <- optimizer(w, g), with g = grad L(w; batch).

    A batch that is non-finite on any rank makes no update (``nonfinite="propagate"`` does not
    check), nor does a batch in which no label counts. Arguments and errors are those of ``Step``,
    ``**options`` those of ``GradientOptions``.

    >>> step = PlainStep(LossNet(network, loss_fn), optimizer)
    >>> loss = step(images, labels)
    """

    def __init__(
        self,
        loss_net: nn.Cell,
        optimizer: nn.Optimizer,
        *,
        update: UpdateStage | None = None,
        **options: Unpack[Options],
    ):
        super().__init__(loss_net, optimizer, update, gradient_options(options, "update"))
        self.always = Parameter(Tensor(True), name="step.always", requires_grad=False)
        self._complete()

    def micro_batch(self, with_extras: bool, *batch: Tensor) -> Tensor:
        """Make an update from one batch; return its loss ()."""
        loss, weight, gradients, finite, squares = self.contribution(with_extras, *batch)
        if not self.gradient.checked:
            # A condition that only the device knows moves the graph to MindSpore's faster
            # executor: 3.7 ms instead of 6.2 for a LeNet step on two cores, bit-equal.
            finite = self.always
        elif self.gradient.ranks > 1:
            # All ranks take the same branch: a rank alone in it would wait for the others forever.
            finite = self.gradient.over_ranks(ops.cast(finite, ms.int32)) == self.gradient.ranks
        # Depends on ``finite``: all ranks must sum in the same order.
        weight_sum = self.gradient.over_ranks(ops.depend(weight, finite))
        done: object = False
        if ops.logical_and(finite, self.gradient.counts(weight_sum)):
            images = ops.cast(labels_of(batch).shape[0], ms.int32)
            done = self.apply(gradients, (loss * weight, weight_sum, images), squares)
        return ops.depend(self.gradient.added(loss), done)


class Graph(nn.Cell):
    """A further compiled graph: a method of a step or its stage, some first arguments given."""

    def __init__(self, method: Callable, *first: bool):
        super().__init__(auto_prefix=False)
        self.method, self.first = method, first

    def construct(self, *others: Tensor) -> Any:
        return self.method(*self.first, *others)


def in_evaluation(cell: nn.Cell) -> bool:
    """Return whether a Cell was put into evaluation mode; a new one has no mode yet."""
    return cell.get_flags().get("training") is False
