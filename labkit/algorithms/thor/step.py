"""The step: THOR's update stage after the plain step's gradient stage."""

from collections.abc import Callable, Sequence

from mindspore import nn

from labkit.algorithms.thor.options import Options
from labkit.algorithms.thor.rules import TraceRule
from labkit.algorithms.thor.update import DampingSchedule, ThorUpdate
from labkit.base.arguments import names_checked
from labkit.steps.plain import PlainStep
from labkit.steps.precision import DynamicLossScale


class ThorStep(PlainStep):
    """One THOR update per batch: a ``PlainStep`` with a ``ThorUpdate``.

    With accumulation:
    ``AccumulatedStep(loss_net, optimizer, 4, update=ThorUpdate(loss_net, optimizer, damping))``.

    Args:
        loss_net: network and loss, a mean over rows; its layers get taps, in place.
        optimizer: any ``nn.Optimizer``; THOR's own is nn.Momentum.
        damping: number > 0, array with one per update (updates,), or function of the number of
            updates so far.
        frequency: updates between refreshes of the inverses; see ``Options`` for this and the
            options down to ``nan``.
        factor_frequency: likewise for the factors.
        split: largest block of a factor, or None.
        bias: ``homogeneous`` or ``plain``.
        factor_decay: weight of the old factors in their running average.
        damping_split: ``equal`` or ``pi``.
        trace_rule: ``TraceRule``, or None.
        kl_clip: limit of the update, measured by rate^2 <U, grad>, or None.
        skip: layers that take the plain update.
        formulas: ``thor`` or ``upstream_gpu``.
        loss: ``known`` or ``sample mean``.
        nan: ``stop`` or ``drop``.
        reduction: ``mean`` or ``sum``.
        precision: ``O0``, ``O2`` or ``O3``.
        loss_scale: number > 0, or ``DynamicLossScale``.
        nonfinite: ``drop_micro``, ``drop_group`` or ``propagate``.
        clip_norm: largest global norm of the gradient, or None.
        rank_group: group of ranks over which gradients are averaged.
        all_reduce_fusion_config: index of the last gradient of each message between ranks, or None.

    Raises:
        InputError: as ``ThorUpdate`` does.
        FloatingPointError: likewise.

    >>> step = ThorStep(LossNet(network, loss_fn), optimizer, damping=0.3, frequency=10)
    >>> loss = step(images, labels)
    """

    @names_checked
    def __init__(
        self,
        loss_net: nn.Cell,
        optimizer: nn.Optimizer,
        damping: DampingSchedule,
        *,
        frequency: int | Callable[[int], int] = Options.frequency,
        factor_frequency: int | Callable[[int], int] | None = Options.factor_frequency,
        split: int | None = Options.split,
        bias: str = Options.bias,
        factor_decay: float = Options.factor_decay,
        damping_split: str = Options.damping_split,
        trace_rule: TraceRule | None = None,
        kl_clip: float | None = None,
        skip: Sequence[nn.Cell | str] = (),
        formulas: str = Options.formulas,
        loss: str = Options.loss,
        nan: str = Options.nan,
        reduction: str = "mean",
        precision: str = "O0",
        loss_scale: float | DynamicLossScale = 1.0,
        nonfinite: str = "drop_micro",
        clip_norm: float | None = None,
        rank_group: str | None = None,
        all_reduce_fusion_config: Sequence[int] | None = None,
    ):
        update = ThorUpdate(
            loss_net,
            optimizer,
            damping,
            frequency=frequency,
            factor_frequency=factor_frequency,
            split=split,
            bias=bias,
            factor_decay=factor_decay,
            damping_split=damping_split,
            trace_rule=trace_rule,
            kl_clip=kl_clip,
            skip=skip,
            formulas=formulas,
            loss=loss,
            nan=nan,
        )
        try:
            super().__init__(
                loss_net,
                optimizer,
                update=update,
                reduction=reduction,
                precision=precision,
                loss_scale=loss_scale,
                nonfinite=nonfinite,
                clip_norm=clip_norm,
                rank_group=rank_group,
                all_reduce_fusion_config=all_reduce_fusion_config,
            )
        except Exception:
            update.release()
            raise
