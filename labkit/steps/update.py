"""The update stage: the part of a step that makes new weights of averaged gradients.

Some of its methods run in compiled graphs, others on the host between them; README.md beside this
file shows both in one picture, and which of them a technique needs.
A technique that needs nothing but averaged gradients defines ``construct`` alone.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from labkit.base.arguments import names_checked
from labkit.errors import InputError, warn
from labkit.steps.options import TAILS
from labkit.steps.state import UpdateRecord, cast_like, check_optimizer

# sum of w_i L_i, sum of w_i > 0, norm of the averaged gradient before clipping: float32; rows:
# int32. All are (), over all ranks whose gradients are averaged.
Summary = tuple[Tensor, Tensor, Tensor, Tensor]
_BETWEEN = ("before", "between")


class UpdateStage(nn.Cell):
    """Base of the update stages: one optimizer, and the state of one technique as Parameters.

    Args:
        optimizer: any ``nn.Optimizer``.

    Attributes:
        settings: plain values, by name, that a resumed training must share.
        extras: None, or two tuples of Parameters whose "gradients" the stage wants at some of the
            updates, as ``GradientStage`` takes them. ``wants_extras`` says at which; a compiled
            graph of its own gathers them, and all others hold nothing of this.
        turns: groups of micro-batches that make up one update.
        group_factor: how many times the step's ``micro_steps`` a group holds.
        tails: what ``AccumulatedStep`` may be asked to do with a partly filled group.
        needs_buffer: whether the stage works with the buffer of an ``AccumulatedStep`` only.
        chooses_ranks: whether ``rank_group`` of the stage says over which ranks gradients are
            averaged, and not the step's option.
        record: what is known of the updates, an ``UpdateRecord``; set when the step is built.

    Raises:
        InputError: for what is no optimizer.
    """

    settings: Mapping[str, object] = MappingProxyType({})
    extras: tuple[tuple[Parameter, ...], tuple[Parameter, ...]] | None = None
    turns = 1
    group_factor = 1
    tails: tuple[str, ...] = TAILS
    needs_buffer = False
    chooses_ranks = False
    rank_group: str | None = None

    def __init_subclass__(cls, **keywords: object) -> None:
        """Let every stage refuse a misspelled argument by the nearest name."""
        super().__init_subclass__(**keywords)
        if "__init__" in vars(cls):
            cls.__init__ = names_checked(cls.__init__)  # type: ignore[method-assign]

    @names_checked
    def __init__(self, optimizer: nn.Optimizer):
        super().__init__(auto_prefix=False)
        check_optimizer(optimizer)
        self.optimizer, self.parameters = optimizer, optimizer.parameters
        self.map = ops.HyperMap()

    def attach(self, step: nn.Cell) -> None:
        """Refuse a step that the stage cannot work with; called once, when the step is built.

        Args:
            step: the step; its parts but the stage are complete.

        Raises:
            InputError: where the stage cannot work with it, or already works for a different step.
        """
        if hasattr(self, "record"):
            name = type(self).__name__
            raise InputError(f"{name} belongs to another step: expected a stage for each")
        self.record: UpdateRecord = step.record

    def description(self) -> str:
        """Return what the step prints when it is built; nothing where that is empty."""
        return ""

    def construct(self, gradients: tuple[Tensor, ...]) -> object:
        """Update the parameters.

        Args:
            gradients: averaged, shaped and typed as the parameters.

        Returns:
            What the update is waited for by.
        """
        return self.optimizer(gradients)

    def take(self, gradients: tuple, extras: tuple, summary: Summary) -> object:
        """Take what a group has averaged.

        Args:
            gradients: averaged and clipped, shaped as the parameters, float32.
            extras: means of the extras' "gradients", float32; () where none were gathered.
            summary: four numbers (); see ``Summary``.

        Returns:
            What the group's end is waited for by.
        """
        return self.updated(self.recorded(gradients, summary))

    def recorded(self, gradients: tuple, summary: Summary) -> tuple:
        """Record the group as the update's; arguments as in ``take``.

        Returns:
            The gradients, typed as the parameters.
        """
        loss_sum, weight, norm, images = summary
        noted = self.record.note(loss_sum / weight, norm, images)
        gradients = self.map(cast_like, gradients, self.parameters)
        return ops.depend(gradients, noted)

    def updated(self, gradients: tuple) -> object:
        """Update and count it; arguments as in ``construct``."""
        done = self.construct(gradients)
        counted = ops.assign_add(self.record.updates, 1)
        return ops.depend(True, (done, counted))

    def take_nothing(self) -> object:
        """Take a group that holds no finite micro-batch."""
        return False

    def close(self, done: object) -> object:
        """Go on from a group that was taken and cleared.

        Args:
            done: what that is waited for by.
        """
        return done

    def host_work(self) -> str:
        """Return why the host must see each micro-batch; "" where the step's one graph is enough.

        Only in a step without such work may a data set be sunk into the graph.
        """
        if self.extras is not None:
            return f"{type(self).__name__} has two graphs, of which the host chooses one"
        acts = [n for n in _BETWEEN if getattr(type(self), n) is not getattr(UpdateStage, n)]
        if not acts:
            return ""
        return f"{type(self).__name__} acts on the host between graphs, in {' and '.join(acts)}"

    def wants_extras(self, updates: int) -> bool:
        """Return whether an update needs the extras.

        Args:
            updates: made before it.
        """
        return False

    def before(self, step: nn.Cell, batch: tuple) -> None:
        """Act before a graph runs.

        Args:
            step: the step.
            batch: the micro-batch; () where an epoch's end closes a group.
        """

    def between(self, step: nn.Cell, batch: tuple, loss: Tensor | None) -> None:
        """Act after a graph has run; arguments as in ``before``, and one more.

        Args:
            loss: of the micro-batch (); None where there was none.
        """

    def turns_taken(self) -> int:
        """Return how many of the ``turns`` were taken since the last update."""
        return 0

    def reset(self) -> None:
        """Forget the groups that were taken since the last update."""

    def end_epoch(self, step: nn.Cell) -> None:
        """Act when an epoch is over and its last group is closed; arguments as in ``before``."""

    def protect(self, parameters: tuple[Parameter, ...]) -> None:
        """Know what a forward pass assigns, for a stage that makes some itself.

        Args:
            parameters: running averages and the like.
        """

    def schedules(self) -> dict[str, Callable | np.ndarray]:
        """Return, by name, what the stage was given by update: functions, or arrays (updates,)."""
        return {}

    def check_length(self, updates: int) -> None:
        """Refuse schedules that end too early.

        Args:
            updates: made at the training's end.

        Raises:
            InputError: where a schedule of the stage has fewer values.
        """

    @property
    def can_be_saved(self) -> bool:
        """Whether the Parameters are all that the step would have to go on from."""
        return True

    @property
    def more_to_record(self) -> dict[str, float]:
        """What a record of the most recent update holds beside ``last_update``: name -> number."""
        return {}


class PlainUpdate(UpdateStage):
    """Update stage that hands the averaged gradients to the optimizer.

    Args:
        optimizer: any ``nn.Optimizer``.
    """


def check_stage(
    update: object,
    step: nn.Cell,
    optimizer: nn.Optimizer,
    has_buffer: bool,
    rank_group: str | None,
) -> None:
    """Raise ``InputError`` for what is no update stage, or one that ``step`` cannot hold."""
    kind = type(step).__name__
    if not isinstance(update, UpdateStage):
        raise InputError(f"update of {kind}: expected an UpdateStage, got {update!r}")
    name = type(update).__name__
    if update.optimizer is not optimizer:
        raise InputError(f"{name}: expected the optimizer of the {kind}, got a different one")
    if update.needs_buffer and not has_buffer:
        raise InputError(f"{name} holds groups of micro-batches: expected an AccumulatedStep")
    if update.chooses_ranks and rank_group is not None:
        raise InputError(
            f"rank_group: expected none beside {name}, which says itself over which ranks "
            f"gradients are averaged, got {rank_group!r}"
        )


def warn_of_float16(parameters: tuple[Parameter, ...]) -> None:
    """Warn of Parameters that are float16 themselves: an optimizer takes gradients like them."""
    names = [parameter.name for parameter in parameters if str(parameter.dtype) == "Float16"]
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        warn(
            f"Parameter {names[0]!r}{more} is float16: whatever the loss scale, the optimizer gets "
            "0 for a number below 6e-8 in the averaged gradient and inf above 65504, while "
            "last_update.gradient_norm is of float32; expected float32 Parameters, with "
            "precision='O2' for float16 inside the network",
        )
