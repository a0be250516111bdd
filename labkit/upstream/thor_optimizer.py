"""``thor`` with MindSpore's argument list: momentum on gradients that THOR has preconditioned.

    w <- w - lr v,   v <- momentum v + clip(U + weight_decay w)

U is the gradient preconditioned by ``labkit.algorithms.thor``; ``labkit.ConvertModelUtils``
combines the two, as MindSpore's own does.

Source: ``mindspore.nn.thor`` (2.10.0, mindspore/nn/optim/thor.py). Departures: the formulas are the
published ones (``formulas="upstream_gpu"`` gives those of its GPU branch); learning rate and
damping may be numbers, arrays and functions; frequency may be 1; use_nesterov has effect on every
device (upstream ignores it on Ascend, and MindSpore's kernel on CPU); the number of rows comes from
the batch, not from batch_size; nothing is looked up by a Parameter's name; without conversion it
refuses to train.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from labkit.algorithms.thor.options import Options
from labkit.algorithms.thor.rules import TraceRule
from labkit.base.arguments import flag, integer, names_checked, number
from labkit.errors import InputError, warn
from labkit.upstream.thor_arguments import OfUpdate, checked_split, learning_rates, schedule

# Upstream's GRADIENT_CLIP_VALUE, for each gradient separately, not for their global norm.
CLIP_NORM = 1.0
NOTICE = (
    "unlike mindspore.nn.thor, this one computes the published formulas on every device (factors "
    "of every row and position of the batch, convolutions with their own padding, the bias as a "
    "coordinate of the input) and takes the number of rows from each batch: what was tuned for "
    "upstream's GPU branch may need another damping. formulas='upstream_gpu' computes as that "
    "branch does"
)


@dataclass(frozen=True)
class ThorSettings:
    """The arguments of ``thor`` besides the optimizer's own.

    Attributes:
        damping: number, float32 array with one per update (N,), or function of the update's number.
        loss_scale: scale of the loss; the step divides by it, not the optimizer.
        batch_size: rows of a batch, as given to ``thor``.
        split_indices: None, or the layers after which upstream splits the factors' AllReduce.
        rate: None, or the learning rate as a function of the update's number.
        rates: None, or the number of learning rates.
        options: options of ``ThorUpdate``.
    """

    damping: float | np.ndarray | OfUpdate
    loss_scale: float
    batch_size: int
    split_indices: tuple[int, ...] | None
    rate: OfUpdate | None
    rates: int | None
    options: Options


class ThorOptimizer(nn.Optimizer):
    """Momentum over a network's trainable Parameters, for gradients that THOR has preconditioned.

    Made by ``thor``. Called before ``ConvertModelUtils`` has converted it, it raises
    ``ValueError``: by itself it would be plain momentum.
    """

    def __init__(
        self,
        net: nn.Cell,
        rate: object,
        momentum: float,
        weight_decay: float,
        use_nesterov: bool,
        decay_filter: Callable[[Parameter], bool],
        clips: bool,
    ) -> None:
        super().__init__(rate, net.trainable_params(), weight_decay)
        self.decay_flags = tuple(bool(decay_filter(each)) for each in self.parameters)
        # Not as a child: the network is not part of the optimizer's state.
        object.__setattr__(self, "net", net)
        self.momentum = Parameter(Tensor(momentum, ms.float32), name="momentum")
        self.moments = self.parameters.clone(prefix="moments", init="zeros")
        self.apply_momentum = ops.ApplyMomentum()
        self.use_nesterov = use_nesterov
        self.clips = clips
        self.converted = False

    def construct(self, gradients: tuple[Tensor, ...]) -> tuple:
        if not self.converted:
            raise ValueError(
                "this optimizer of labkit.thor was called without THOR: by itself it would train "
                "with plain momentum. Give the model to "
                "labkit.ConvertModelUtils.convert_to_thor_model and train what it returns"
            )
        gradients = self.decay_weight(gradients)
        if self.clips:
            gradients = self.map_(_clipped, gradients)
        rate = self.get_lr()
        self.assignadd(self.global_step, self.global_step_increase_tensor)
        apply = ops.partial(_momentum_step, self.apply_momentum, self.momentum, rate)
        if self.use_nesterov:
            apply = ops.partial(_nesterov_step, self.momentum, rate)
        return self.map_(apply, gradients, self.parameters, self.moments)

    def get_frequency(self) -> int:
        """Return the number of updates between two refreshes, as upstream's method does."""
        return self.thor.options.frequency


@names_checked
def thor(
    net: nn.Cell,
    learning_rate: object,
    damping: object,
    momentum: float,
    weight_decay: float = 0.0,
    loss_scale: float = 1.0,
    batch_size: int = 32,
    use_nesterov: bool = False,
    decay_filter: Callable[[Parameter], bool] = lambda x: x.name not in [],
    split_indices: Sequence[int] | None = None,
    enable_clip_grad: bool = False,
    frequency: int = 100,
    *,
    factor_frequency: int | Callable[[int], int] | None = None,
    split: int | None = 128,
    bias: str = "homogeneous",
    factor_decay: float = 0.0,
    damping_split: str = "equal",
    trace_rule: TraceRule | None = None,
    kl_clip: float | None = None,
    skip: tuple[nn.Cell | str, ...] | list[nn.Cell | str] = (),
    formulas: str = "thor",
    loss: str = "known",
    nan: str = "stop",
) -> ThorOptimizer:
    """Return THOR's optimizer for ``net``, to be passed to ``convert_to_thor_model``.

    The arguments from factor_frequency on are those of ``labkit.algorithms.thor.Options``.

    Args:
        net: network whose trainable Parameters are trained; unchanged until the conversion.
        learning_rate: number >= 0, array or Tensor with one for each update, function of the
            update's number (0, 1, ..), or a LearningRateSchedule.
        damping: number > 0, array or Tensor with one for each update, or such a function.
        momentum: >= 0 and < 1.
        weight_decay: >= 0, for the Parameters that ``decay_filter`` selects.
        loss_scale: that of the FixedLossScaleManager, if there is one.
        batch_size: rows of a batch on one device. Upstream multiplies by it; labkit counts N in
            each batch. A training with batches of another size warns, and is refused with
            ``formulas="upstream_gpu"``.
        use_nesterov: Nesterov's momentum.
        decay_filter: Parameter -> bool; by default all, biases and normalisation too.
        split_indices: increasing indices of preconditioned layers, the last layer of each group.
            Upstream fuses the AllReduce of factors by them, which affects only the speed; labkit
            checks them and does not use them.
        enable_clip_grad: limit the norm of each preconditioned gradient, weight decay included, to
            1 (each Parameter's separately, as in upstream).
        frequency: updates between two refreshes, 1 or more.
        factor_frequency: updates between two refreshes of the factors; None: ``frequency``.
        split: largest block of a factor, or None.
        bias: ``homogeneous`` or ``plain``.
        factor_decay: weight of the old factors in their running average.
        damping_split: ``equal`` or ``pi``.
        trace_rule: rule that decides which layers' inverses are refreshed, or None.
        kl_clip: limit of the update's length, or None.
        skip: layers that take the plain update.
        formulas: ``thor`` or ``upstream_gpu``.
        loss: ``known`` or ``sample mean``.
        nan: ``stop`` or ``drop``.

    Raises:
        InputError: if an argument has an invalid value; arrays that are shorter than the training
            are refused when it starts.
    """
    if not isinstance(net, nn.Cell) or not net.trainable_params():
        name = f"a {type(net).__name__}" + (" without any" if isinstance(net, nn.Cell) else "")
        raise InputError(f"net: expected a Cell with trainable Parameters, got {name}")
    if not callable(decay_filter):
        raise InputError(f"decay_filter: expected a function of a Parameter, got {decay_filter!r}")
    frequency = integer("frequency", frequency)  # not a function of the update, as in upstream
    given = locals()
    options = Options(**{each.name: given[each.name] for each in fields(Options)})
    rate, following = learning_rates(learning_rate)
    optimizer = ThorOptimizer(
        net,
        rate,
        number("momentum", momentum, at_least=0, below=1),
        number("weight_decay", weight_decay, at_least=0),
        flag("use_nesterov", use_nesterov),
        decay_filter,
        flag("enable_clip_grad", enable_clip_grad),
    )
    optimizer.thor = ThorSettings(
        damping=schedule("damping", damping, zero=False),
        loss_scale=number("loss_scale", loss_scale, above=0),
        batch_size=integer("batch_size", batch_size),
        split_indices=checked_split(net, split_indices),
        rate=following,
        rates=len(rate) if isinstance(rate, Tensor) else None,
        options=options,
    )
    if formulas == "thor":
        warn(NOTICE)
    return optimizer


def _momentum_step(
    apply: ops.ApplyMomentum,
    momentum: Parameter,
    rate: Tensor,
    gradient: Tensor,
    weight: Parameter,
    moment: Parameter,
) -> Tensor:
    return apply(weight, moment, rate, gradient, momentum)


def _nesterov_step(
    momentum: Parameter, rate: Tensor, gradient: Tensor, weight: Parameter, moment: Parameter
) -> Tensor:
    # Not ops.ApplyMomentum(use_nesterov=True): its CPU kernel (2.10.0) ignores the flag.
    new = momentum * moment + gradient
    step = ops.cast(rate * (gradient + momentum * new), weight.dtype)
    return ops.depend(ops.assign_sub(weight, step), ops.assign(moment, new))


def _clipped(gradient: Tensor) -> Tensor:
    norm = ops.sqrt(ops.reduce_sum(ops.square(gradient.reshape(-1))))
    return gradient * (CLIP_NORM / ops.maximum(norm, CLIP_NORM))
