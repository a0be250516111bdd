"""The options of every step, and their allowed values.

No MindSpore import: recipes read them too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from labkit.base.arguments import choice, integer, is_integer, names_checked, number, wrong

TAILS = ("flush", "drop", "carry")
REDUCTION = ("mean", "sum")
PRECISION = ("O0", "O2", "O3")
NORMALISE = ("samples", "tokens", "steps")
NONFINITE = ("drop_micro", "drop_group", "propagate")
# The off value of label smoothing: s / (C - 1), or s / C.
CONVENTIONS = ("mindspore", "pytorch")
LR_DECAY_MODES = ("steps", "poly", "cosine", "linear")
INDICES = "integers >= 0, each above the one before, as in [85, 160]"

# float32 holds these and their reciprocals.
_SMALLEST, _LARGEST = 1e-37, 1e37
# A dynamic loss scale stops growing here: once infinite, it would never shrink again.
LARGEST_SCALE = 2.0**120


def fusion_indices(name: str, value: object) -> tuple[int, ...]:
    """Return the indices of gradients in ``value`` as a tuple.

    Raises:
        InputError: naming ``name``, unless they are integers >= 0, each above the one before.
    """
    if isinstance(value, (list, tuple)) and value and all(map(is_integer, value)):
        indices = tuple(map(int, value))
        if indices[0] >= 0 and all(low < high for low, high in pairwise(indices)):
            return indices
    raise wrong(name, value, INDICES)


@names_checked
@dataclass(frozen=True)
class DynamicLossScale:
    """Loss scale that shrinks on a non-finite micro-batch and grows after a run of finite ones.

    Attributes:
        initial: scale at the start, 1 .. 2**120; the scale stays within these bounds.
        factor: divides the scale on a non-finite micro-batch, multiplies it after ``interval``
            finite ones in a row, > 1.
        interval: integer >= 1.

    Raises:
        InputError: if an attribute has any other value.
    """

    initial: float = 2.0**16
    factor: float = 2.0
    interval: int = 2000

    def __post_init__(self) -> None:
        number("initial", self.initial, at_least=1, at_most=LARGEST_SCALE)
        number("factor", self.factor, above=1)
        integer("interval", self.interval)


@names_checked
@dataclass(frozen=True)
class GradientOptions:
    """The options of a gradient stage, which every step takes by name.

    Attributes:
        normalise: None: w_i is what the mean loss was divided by, see ``labkit.steps.weights``, so
            that the micro-batches make up the whole batch. Otherwise w_i is the number of
            ``samples`` (rows) or ``tokens``, or 1 (``steps``: mean of the micro-batches' means).
        batch_axis: axis of the batch's first tensor that indexes its rows: 1 for time-major inputs
            (T, B, ...). None: the rows are counted by labels (B,), else by axis 0.
        reduction: ``mean``, or ``sum``: sum_i grad L_i, not divided (but averaged over ranks).
        precision: ``O0``: float32; ``O2``: float16 inside the network, except BatchNorm and
            LayerNorm; ``O3``: in these too. The loss, everything after the gradients, Parameters
            and running statistics stay float32. In a custom ``loss_net``, the Cell
            ``self.network`` is the network and everything else is loss; without that name see
            ``precision.use_float16``, which refuses what it cannot classify.
        loss_scale: number > 0, or ``DynamicLossScale``.
        nonfinite: ``drop_micro`` leaves a micro-batch that is not finite (its loss, or the norm of
            its gradient in float32) out of its group, ``drop_group`` discards the whole group;
            ``propagate`` checks nothing.
        clip_norm: largest global norm of the averaged gradient, or None.
        rank_group: the ranks to average over: None for all, the name of a communication group that
            contains this rank, or "" for this rank alone.
        all_reduce_fusion_config: None: each gradient is sent over the network in its own message.
            Otherwise the indices of the last gradient of each message, see
            ``labkit.steps.fusion``; with one rank they are checked, but nothing is sent.

    Raises:
        InputError: if an attribute has any other value.
    """

    normalise: str | None = None
    batch_axis: int | None = None
    reduction: str = "mean"
    precision: str = "O0"
    loss_scale: float | DynamicLossScale = 1.0
    nonfinite: str = "drop_micro"
    clip_norm: float | None = None
    rank_group: str | None = None
    all_reduce_fusion_config: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if self.normalise is not None:
            choice("normalise", self.normalise, NORMALISE)
        if self.batch_axis is not None:
            integer("batch_axis", self.batch_axis, 0)
        choice("reduction", self.reduction, REDUCTION)
        choice("precision", self.precision, PRECISION)
        choice("nonfinite", self.nonfinite, NONFINITE)
        if not isinstance(self.rank_group, str | None):
            raise wrong("rank_group", self.rank_group, "the name of a group, '' or None")
        if self.clip_norm is not None:
            number("clip_norm", self.clip_norm, at_least=_SMALLEST, at_most=_LARGEST)
        if self.all_reduce_fusion_config is not None:
            indices = fusion_indices("all_reduce_fusion_config", self.all_reduce_fusion_config)
            object.__setattr__(self, "all_reduce_fusion_config", indices)
        if not isinstance(self.loss_scale, DynamicLossScale):
            number("loss_scale", self.loss_scale, at_least=_SMALLEST, at_most=_LARGEST)
        elif self.nonfinite == "propagate":
            expected = "'drop_micro' or 'drop_group' beside a DynamicLossScale"
            raise wrong("nonfinite", self.nonfinite, expected)

    def settings(self, weighted: bool) -> dict[str, str]:
        """Return the options in force, as text, that a resumed training must share."""
        texts = {name: repr(value) for name, value in vars(self).items()}
        # The division into messages is not one of them: it differs between machines.
        del texts["all_reduce_fusion_config"]
        return texts | {"weighted": repr(weighted), "nonfinite": self.nonfinite}
