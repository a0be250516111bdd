"""The step: gradients as usual, then a search in the subspace on the update's own rows."""

from collections.abc import Sequence

from mindspore import nn

from labkit.algorithms.subspace.basis import Basis
from labkit.algorithms.subspace.search import Constants, LastSearch
from labkit.algorithms.subspace.update import SubspaceUpdate
from labkit.base.arguments import names_checked
from labkit.steps.accumulation import AccumulatedStep, MicroSteps
from labkit.steps.precision import DynamicLossScale


class SubspaceStep(AccumulatedStep):
    """One update from a search in a subspace: an ``AccumulatedStep`` with a ``SubspaceUpdate``.

    Args:
        loss_net: see ``GradientStage``.
        optimizer: any ``nn.Optimizer``; applies alpha r once per update, with its own groups and
            rates. ``nn.SGD(parameters, 1.0)`` gives the source's rule. Adam and similar optimizers
            divide by the gradient's size, so that alpha has no effect except through their epsilon.
        basis: ``Basis`` of the optimizer's parameters: matrix (K, M), names, shapes, checksum.
        method: ``bfgs`` searches; ``sgd`` passes P^T P g to the optimizer without a search.
        micro_steps: micro-batches that an update averages, as in ``AccumulatedStep``; a trial's
            loss is then their weighted mean, and the step keeps them until the update is made.
        tail: what ``end_epoch`` does with a partly filled group: ``flush`` or ``drop``.
        rho: factor between the step sizes of consecutive trials; see ``Constants``, as for the
            arguments down to ``failure``.
        sigma: share of the predicted decrease that the loss must show.
        trials: maximum number of trials of a search.
        gamma: momentum of the residual.
        alpha: factor of the residual.
        curvature: a pair enters B only if y.s > curvature |y| |s|.
        start: B before its first pair, ``identity`` or ``scaled``.
        failure: what a failed search does to B and the pair, ``reset`` or ``rollback``.
        reduction: ``mean`` or ``sum``.
        precision: ``O0``, ``O2`` or ``O3``.
        loss_scale: number > 0, or ``DynamicLossScale``.
        nonfinite: ``drop_micro``, ``drop_group`` or ``propagate``.
        clip_norm: maximum global norm of g, or None. g is clipped first of all: B learns from
            clipped gradients, and a trial must show only the decrease that the clipped gradient
            predicts, which is smaller.
        all_reduce_fusion_config: index of the last gradient of each message between ranks, or None.

    Raises:
        InputError: if an argument has an invalid value, the basis is of other weights, or ranks
            differ in their weights or in the basis.

    A trial is a forward pass in training mode. Dropout draws a new mask for each trial, so the
    search compares losses under different masks and cannot distinguish this noise from a decrease.

    A checkpoint holds no rows: with ``bfgs`` and several micro-batches per update, ``fit`` writes
    checkpoints only between groups, and a step loaded in the middle of a group refuses to continue.
    With several ranks, every rank builds the same step and holds K / ranks of the components.

    >>> step = SubspaceStep(LossNet(network, loss_fn), optimizer, basis)
    >>> loss = step(images, labels)
    >>> step.last_search
    LastSearch(trials=1, accepted=True, step_size=1.0, failures=0)
    """

    @names_checked
    def __init__(
        self,
        loss_net: nn.Cell,
        optimizer: nn.Optimizer,
        basis: Basis,
        *,
        method: str = "bfgs",
        micro_steps: MicroSteps = 1,
        tail: str = "flush",
        rho: float = Constants.rho,
        sigma: float = Constants.sigma,
        trials: int = Constants.trials,
        gamma: float = Constants.gamma,
        alpha: float = Constants.alpha,
        curvature: float = Constants.curvature,
        start: str = Constants.start,
        failure: str = Constants.failure,
        reduction: str = "mean",
        precision: str = "O0",
        loss_scale: float | DynamicLossScale = 1.0,
        nonfinite: str = "drop_micro",
        clip_norm: float | None = None,
        all_reduce_fusion_config: Sequence[int] | None = None,
    ):
        update = SubspaceUpdate(
            optimizer,
            basis,
            method=method,
            rho=rho,
            sigma=sigma,
            trials=trials,
            gamma=gamma,
            alpha=alpha,
            curvature=curvature,
            start=start,
            failure=failure,
        )
        super().__init__(
            loss_net,
            optimizer,
            micro_steps,
            update=update,
            tail=tail,
            reduction=reduction,
            precision=precision,
            loss_scale=loss_scale,
            nonfinite=nonfinite,
            clip_norm=clip_norm,
            all_reduce_fusion_config=all_reduce_fusion_config,
        )

    @property
    def last_search(self) -> LastSearch:
        """The search of the most recent update, read from the device."""
        return self.update.last_search
