"""The options of every step, and their allowed values; no MindSpore import: recipes read them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any, Literal, TypedDict, get_args

from labkit.base.arguments import choice, integer, is_integer, number, wrong
from labkit.errors import refuse_unknown

Tail = Literal["flush", "drop", "carry"]
Reduction = Literal["mean", "sum"]
Precision = Literal["O0", "O2", "O3", "auto", "auto-bfloat16"]
Nonfinite = Literal["drop_micro", "drop_group", "propagate"]
Convention = Literal["mindspore", "pytorch"]  # off value of label smoothing: s / (C - 1), or s / C
LrDecayMode = Literal["steps", "poly", "cosine", "linear"]
TAILS, REDUCTION, PRECISION = get_args(Tail), get_args(Reduction), get_args(Precision)
NONFINITE, CONVENTIONS = get_args(Nonfinite), get_args(Convention)
LR_DECAY_MODES = get_args(LrDecayMode)
BFLOAT16: Precision = "auto-bfloat16"

_IN_FLOAT32 = {"at_least": 1e-37, "at_most": 1e37}  # and so are their reciprocals
# A dynamic loss scale stops growing here: once infinite, it would never shrink again.
LARGEST_SCALE = 2.0**120


def fusion_indices(name: str, value: object) -> tuple[int, ...]:
    """Return indices as a tuple, or raise ``InputError``."""
    if isinstance(value, (list, tuple)) and value and all(map(is_integer, value)):
        indices = tuple(map(int, value))
        if indices[0] >= 0 and all(low < high for low, high in pairwise(indices)):
            return indices
    raise wrong(name, value, "integers >= 0, each above the one before, as in [85, 160]")


def precision_word(value: object) -> str:
    """Return a precision as a plain word, also if it is ("auto", MindSpore's type)."""
    if isinstance(value, (tuple, list)) and len(value) == 2 and value[0] == "auto":
        value = {"float16": "auto", "bfloat16": BFLOAT16}.get(str(value[1]).lower(), value)
    return choice("precision", value, PRECISION)


@dataclass(frozen=True)
class DynamicLossScale:
    """Loss scale that shrinks on a non-finite micro-batch and grows after a run of finite ones.

    Attributes:
        initial: 1 .. 2**120, the bounds of the scale.
        factor: > 1; divides on a non-finite micro-batch, multiplies after ``interval`` finite ones.
    """

    initial: float = 2.0**16
    factor: float = 2.0
    interval: int = 2000

    def __post_init__(self) -> None:
        number("initial", self.initial, at_least=1, at_most=LARGEST_SCALE)
        number("factor", self.factor, above=1)
        integer("interval", self.interval)


class OtherOptions(TypedDict, total=False):
    """``GradientOptions`` but for ``reduction``, as ``**options`` that type checkers know."""

    precision: Precision | tuple[str, Any]
    loss_scale: float | DynamicLossScale
    nonfinite: Nonfinite
    clip_norm: float | None
    all_reduce_fusion_config: Sequence[int] | None


class Options(OtherOptions, total=False):
    """All ``GradientOptions``."""

    reduction: Reduction


@dataclass(frozen=True)
class GradientOptions:
    """The ``**options`` of every step: how gradients are computed, averaged and clipped.

    Attributes:
        reduction: ``mean``, or ``sum``: sum_i grad L_i, not divided (but averaged over ranks).
        precision: ``O0``: float32; ``O2``: float16 inside the network, except BatchNorm and
            LayerNorm; ``O3``: in these too; ``auto``: MindSpore's lists of operators decide: matrix
            products and convolutions in float16, softmax, norms, exp and log in float32, a sum of
            both in float32. It suits attention written by hand, whose operators O2 does not cast.
            ``("auto", ms.bfloat16)``, or ``auto-bfloat16``: the same in bfloat16. The loss,
            everything after the gradients, Parameters and running statistics stay float32. A loss
            net of your own needs the Cell ``self.network``: everything else in it is loss.
        loss_scale: number > 0, or ``DynamicLossScale``, which suits float16; bfloat16, with the
            range of float32, needs none.
        nonfinite: ``drop_micro`` leaves a micro-batch that is not finite (its loss, the norm of its
            gradient in float32, or the running statistics that it gives BatchNorm, as one row does)
            out of its group, ``drop_group`` discards the whole group; ``propagate`` checks nothing.
            Running averages of your own Cells are neither checked nor restored.
        clip_norm: largest global norm of the averaged gradient.
        all_reduce_fusion_config: the index of the last gradient of each message between ranks, see
            ``labkit.steps.gradients``; None sends every gradient by itself.
    """

    reduction: Reduction = "mean"
    precision: Precision | tuple[str, Any] = "O0"
    loss_scale: float | DynamicLossScale = 1.0
    nonfinite: Nonfinite = "drop_micro"
    clip_norm: float | None = None
    all_reduce_fusion_config: Sequence[int] | None = None

    def __post_init__(self) -> None:
        choice("reduction", self.reduction, REDUCTION)
        object.__setattr__(self, "precision", precision_word(self.precision))
        choice("nonfinite", self.nonfinite, NONFINITE)
        if self.clip_norm is not None:
            number("clip_norm", self.clip_norm, **_IN_FLOAT32)
        if self.all_reduce_fusion_config is not None:
            indices = fusion_indices("all_reduce_fusion_config", self.all_reduce_fusion_config)
            object.__setattr__(self, "all_reduce_fusion_config", indices)
        if not isinstance(self.loss_scale, DynamicLossScale):
            number("loss_scale", self.loss_scale, **_IN_FLOAT32)
        elif self.nonfinite == "propagate":
            expected = "'drop_micro' or 'drop_group' beside a DynamicLossScale"
            raise wrong("nonfinite", self.nonfinite, expected)

    def settings(self) -> dict[str, object]:
        """Return what a resumed training must share, as plain values."""
        values = asdict(self)
        del values["all_reduce_fusion_config"]  # differs between machines
        return values


def gradient_options(options: Mapping[str, Any], *others: str) -> GradientOptions:
    """Return a step's options, or refuse a name that is neither one nor among ``others``."""
    known = [field.name for field in fields(GradientOptions)]
    for name in options:
        refuse_unknown("option", name, [*others, *known])
    return GradientOptions(**options)
