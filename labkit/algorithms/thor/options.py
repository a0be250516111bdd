"""The options of ``ThorUpdate``, checked, and the losses for which THOR's factors are correct."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mindspore import mint, nn

from labkit.algorithms.thor.curvature import DAMPING_SPLITS
from labkit.algorithms.thor.rules import TraceRule
from labkit.base.arguments import choice, integer, names_checked, number, wrong
from labkit.errors import InputError
from labkit.steps.losses import CrossEntropySmooth

WORDS = {
    "bias": ("homogeneous", "plain"),
    "damping_split": DAMPING_SPLITS,
    "formulas": ("thor", "upstream_gpu"),
    "loss": ("known", "sample mean"),
    "nan": ("stop", "drop"),
}

# With a mean over a batch of N rows, N dL/dy is the derivative of one row's loss. The same holds
# for a mean over elements (nn.MSELoss): a row's loss is then the mean over its elements.
LOSSES = (
    nn.SoftmaxCrossEntropyWithLogits,
    nn.CrossEntropyLoss,
    CrossEntropySmooth,
    nn.NLLLoss,
    nn.BCELoss,
    nn.BCEWithLogitsLoss,
    nn.MSELoss,
    mint.nn.CrossEntropyLoss,
    mint.nn.MSELoss,
)


@names_checked
@dataclass(frozen=True)
class Options:
    """The keyword options of ``ThorUpdate``.

    Args:
        frequency: updates between refreshes of the inverses: integer >= 1, or a function of the
            number of updates so far that returns one.
        factor_frequency: likewise for the factors; None: as often as the inverses. The first update
            refreshes both, and a refresh of the inverses also refreshes the factors it uses.
        split: largest block of a factor, or None for whole factors.
        bias: ``homogeneous``: the bias is one more coordinate of its layer's input; ``plain``: it
            takes the plain update, as in MindSpore's THOR.
        factor_decay: weight of the old factors in their running average, 0 <= decay < 1.
        damping_split: ``equal`` or ``pi``, see ``labkit.algorithms.thor.curvature``.
        trace_rule: rule for each layer; None: each refresh recomputes every layer's inverses.
        kl_clip: None, or c > 0: U is scaled by min(1, sqrt(c / s)), s = |sum of rate^2 <U, grad>
            over the layers|.
        skip: layers that take the plain update: Cells, or names as in ``layers``. Layers whose
            weight is tied to another Cell's or used without their call must be skipped.
        formulas: ``thor``, or ``upstream_gpu``: what MindSpore's THOR computes on GPU, to compare.
        loss: ``known``: refuse a loss that is not known to be a mean over rows; ``sample mean``:
            accept any loss as one.
        nan: ``stop``: a loss that is not finite raises FloatingPointError, which names the layer;
            ``drop``: the step's ``nonfinite`` handles it.

    Raises:
        InputError: if an option has an invalid value; ``Frequency`` checks the frequencies.
    """

    frequency: int | Callable[[int], int] = 100
    factor_frequency: int | Callable[[int], int] | None = None
    split: int | None = 128
    bias: str = "homogeneous"
    factor_decay: float = 0.0
    damping_split: str = "equal"
    trace_rule: TraceRule | None = None
    kl_clip: float | None = None
    skip: Sequence[nn.Cell | str] = ()
    formulas: str = "thor"
    loss: str = "known"
    nan: str = "stop"

    def __post_init__(self) -> None:
        for name, words in WORDS.items():
            choice(name, getattr(self, name), words)
        if self.split is not None:
            integer("split", self.split)
        number("factor_decay", self.factor_decay, at_least=0, below=1)
        if self.kl_clip is not None:
            number("kl_clip", self.kl_clip, above=0)
        if not isinstance(self.trace_rule, TraceRule | None):
            raise wrong("trace_rule", self.trace_rule, "a TraceRule or None")
        if not isinstance(self.skip, tuple | list):
            raise wrong("skip", self.skip, "a tuple of Cells or layer names")


def check_loss(loss_net: nn.Cell) -> None:
    """Raise ``InputError`` unless ``loss_net``'s loss is one of ``LOSSES`` with reduction mean."""
    loss_fn = getattr(loss_net, "loss_fn", None) or getattr(loss_net, "_loss_fn", None)
    vouch = "loss='sample mean' says that yours is the mean over the batch's rows of one loss a row"
    if not isinstance(loss_fn, LOSSES):
        part, value = ("loss_net", loss_net) if loss_fn is None else ("loss", loss_fn)
        names = ", ".join(sorted({loss.__name__ for loss in LOSSES}))
        raise InputError(
            f"loss_net: expected LossNet(network, one of {names}), got a {part} of class "
            f"{type(value).__name__}. {vouch}"
        )
    name = type(loss_fn).__name__
    reduction = getattr(loss_fn, "reduction", None)
    if reduction is None:  # a LossBase keeps it as two flags
        reduction = ("mean" if loss_fn.average else "sum") if loss_fn.reduce else "none"
    if reduction != "mean":
        raise InputError(
            f"the {name} has reduction {reduction!r}; expected 'mean': THOR's factors are those of "
            "a mean over rows"
        )
    if getattr(loss_fn, "weight", None) is not None:
        raise InputError(
            f"the {name} has weights, so that its mean is not the mean over rows; expected none. "
            f"{vouch}"
        )


def settled(value: object) -> str:
    """Return the value that a resumed training must share; functions cannot be compared."""
    return "a schedule" if callable(value) else repr(value)
