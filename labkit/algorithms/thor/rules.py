"""What a user chooses: options, refreshes, damping, and the losses that THOR takes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from mindspore import Tensor, nn

from labkit.base.arguments import choice, integer, number, wrong
from labkit.errors import InputError, refuse_unknown
from labkit.steps.losses import as_loss_net

REFRESH, SKIP, FREEZE = "refresh", "skip", "freeze"
WORDS = {
    "bias": ("homogeneous", "plain"),
    "damping_split": ("equal", "pi"),
    "formulas": ("thor", "upstream_gpu"),
    "loss": ("known", "sample mean"),
    "nan": ("stop", "drop"),
}

ByUpdate = float | np.ndarray


@dataclass(frozen=True)
class TraceRule:
    """THOR's own rule for each layer (Chen et al., AAAI 2021), by the change of the trace.

        D = |tr(F + damping I) - tr(F' + damping I)| / tr(F' + damping I)

    F' is F at the last refresh of the layer's inverses. D > refresh: refresh them; D < freeze:
    never refresh them again; otherwise: skip this refresh.

    Args:
        refresh: threshold of D, at least ``freeze``.
        freeze: threshold of D, at least 0. 0 never freezes.

    Raises:
        InputError: unless 0 <= freeze <= refresh, both finite.
    """

    refresh: float = 0.01
    freeze: float = 0.001

    def __post_init__(self) -> None:
        refresh = number("refresh", self.refresh, at_least=0)
        number("freeze", self.freeze, at_least=0, at_most=refresh)

    def decide(self, trace: float, last: float) -> str:
        """Return REFRESH, SKIP or FREEZE for the trace now and at the last refresh."""
        change = abs(trace - last) / last
        if not change <= self.refresh:  # NaN if the traces are infinite
            return REFRESH
        return SKIP if change >= self.freeze else FREEZE


@dataclass(frozen=True)
class ThorOptions:
    """The options of THOR; ``ThorUpdate``, ``ThorStep`` and ``labkit.thor`` take them by name.

    Attributes:
        damping: number > 0, or array with one per update (updates,).
        frequency: updates between refreshes of factors and inverses, an integer >= 1. The first
            update refreshes them.
        split: largest block of a factor, or None for whole factors.
        bias: ``homogeneous``: the bias is one more coordinate of its layer's input; ``plain``: it
            takes the plain update, as in MindSpore's THOR.
        factor_decay: weight of the old factors in their running average, 0 <= decay < 1.
        damping_split: ``equal`` or ``pi``, see ``labkit.algorithms.thor.curvature``.
        trace_rule: rule for each layer; None: each refresh recomputes every layer's inverses.
        kl_clip: None, or c > 0: U is scaled by min(1, sqrt(c / s)), s = |sum of rate^2 <U, grad>
            over the layers|.
        skip: layers that take the plain update: names as in ``ThorUpdate.layers``, or patterns such
            as ``encoder.*``. Layers whose weight is tied to another Cell's, or used without their
            call, must be among them.
        formulas: ``thor``, or ``upstream_gpu``: what MindSpore's THOR computes on GPU, to compare.
        loss: ``known``: the loss net must say that its loss is a mean over rows; ``sample mean``:
            take any loss as one.
        nan: ``stop``: a loss that is not finite raises FloatingPointError, which names the layer;
            ``drop``: the step's ``nonfinite`` handles it.

    Raises:
        InputError: if an attribute has any other value.
    """

    damping: ByUpdate
    frequency: int = 100
    split: int | None = 128
    bias: str = "homogeneous"
    factor_decay: float = 0.0
    damping_split: str = "equal"
    trace_rule: TraceRule | None = None
    kl_clip: float | None = None
    skip: Sequence[str] = ()
    formulas: str = "thor"
    loss: str = "known"
    nan: str = "stop"

    def __post_init__(self) -> None:
        object.__setattr__(self, "damping", by_update("damping", self.damping, above=0))
        integer("frequency", self.frequency)
        for name, words in WORDS.items():
            choice(name, getattr(self, name), words)
        if self.split is not None:
            integer("split", self.split)
        number("factor_decay", self.factor_decay, at_least=0, below=1)
        if self.kl_clip is not None:
            number("kl_clip", self.kl_clip, above=0)
        if not isinstance(self.trace_rule, TraceRule | None):
            raise wrong("trace_rule", self.trace_rule, "a TraceRule or None")
        if isinstance(self.skip, str) or not all(isinstance(name, str) for name in self.skip):
            raise wrong("skip", self.skip, "a list of names or patterns of layers")
        object.__setattr__(self, "skip", tuple(self.skip))

    def schedules(self) -> dict[str, Callable | np.ndarray]:
        """Return, by name, the options that change from update to update."""
        return {"damping": self.damping} if isinstance(self.damping, np.ndarray) else {}

    def settings(self) -> dict[str, object]:
        """Return the options as plain values that a resumed training must share."""
        return asdict(self) | dict.fromkeys(self.schedules(), "a schedule")


OPTION_NAMES = tuple(field.name for field in fields(ThorOptions))


def thor_options(damping: object, options: Mapping[str, Any]) -> ThorOptions:
    """Return ``ThorOptions``; refuse unknown names, with the nearest one, as ``InputError``."""
    for name in options:
        refuse_unknown("option", name, OPTION_NAMES)
    return ThorOptions(damping, **options)  # type: ignore[arg-type]


def by_update(name: str, value: Any, **bounds: float) -> ByUpdate:
    """Return a number, or an array with one per update (updates,), given as one or as a Tensor.

    Raises:
        InputError: for another shape, or a number outside ``bounds`` (``labkit.base.arguments``).
    """
    if isinstance(value, Tensor):
        value = value.asnumpy()
    values = np.asarray(value, dtype=object)
    if values.ndim > 1 or not values.size:
        raise InputError(f"{name}: expected shape () or (updates,), got {values.shape}")
    if not values.ndim:
        return number(name, value.item() if isinstance(value, np.ndarray) else value, **bounds)
    return np.array([number(f"{name}[{i}]", x, **bounds) for i, x in enumerate(values)])


def check_loss(loss_net: nn.Cell) -> None:
    """Raise ``InputError`` unless ``loss_net`` says that its loss is a mean over rows.

    With a mean over N rows, N dL/dy is the derivative of one row's loss. The same holds for a mean
    over elements (nn.MSELoss): a row's loss is then the mean over its elements.
    """
    loss_net = as_loss_net(loss_net)
    over = getattr(loss_net, "over", None)
    weighted = getattr(loss_net, "class_weights", None) is not None
    if over in ("rows", "labels", "elements") and not weighted:
        return
    name = f"a {type(loss_net).__name__}"
    if hasattr(loss_net, "loss_name"):
        name += f" of {loss_net.loss_name}" + (" with class weights" if weighted else "")
    raise InputError(
        "loss_net: expected the mean over the batch's rows of one loss a row, as that of "
        f"LossNet(network, nn.CrossEntropyLoss()) or LossNet(network, own, per='rows'), got {name}"
        "; loss='sample mean' says that yours is one"
    )
