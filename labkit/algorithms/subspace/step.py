"""The step: gradients as usual, then a search in the subspace on the update's own rows."""

from typing import Any

from mindspore import nn

from labkit.algorithms.subspace.basis import Basis
from labkit.algorithms.subspace.search import CONSTANT_NAMES, LastSearch
from labkit.algorithms.subspace.update import SubspaceUpdate
from labkit.steps.accumulation import AccumulatedStep, MicroSteps
from labkit.steps.options import gradient_options


class SubspaceStep(AccumulatedStep):
    """One update from a search in a subspace: an ``AccumulatedStep`` with a ``SubspaceUpdate``.

    Args:
        loss_net: see ``GradientStage``.
        optimizer: any ``nn.Optimizer``; applies alpha r once per update, with its own groups and
            rates. ``nn.SGD(parameters, 1.0)`` gives the source's rule. Adam and similar optimizers
            divide by the gradient's size, so that alpha has no effect except through their epsilon.
        basis: ``Basis`` of the optimizer's parameters.
        method: ``bfgs`` searches; ``sgd`` passes P^T P g to the optimizer without a search.
        micro_steps: micro-batches that an update averages, as in ``AccumulatedStep``; a trial's
            loss is then their weighted mean, and the step keeps them until the update is made.
        tail: what ``end_epoch`` does with a partly filled group: ``flush`` or ``drop``.
        **options: ``Constants`` of the search and ``GradientOptions``. g is clipped first of all: B
            learns from clipped gradients, and a trial must show only the decrease that they
            predict.

    Raises:
        InputError: as in ``SubspaceUpdate``.

    Dropout draws a new mask for each trial: the search cannot tell its noise from a decrease.

    A checkpoint holds no rows: with ``bfgs`` and several micro-batches per update, ``fit`` writes
    checkpoints only between groups, and a step loaded in the middle of a group refuses to continue.
    With several ranks, every rank builds the same step and holds K / ranks of the components.

    >>> step = SubspaceStep(LossNet(network, loss_fn), optimizer, basis)
    >>> loss = step(images, labels)
    >>> step.last_search
    LastSearch(trials=1, accepted=True, step_size=1.0, failures=0)
    """

    def __init__(
        self,
        loss_net: nn.Cell,
        optimizer: nn.Optimizer,
        basis: Basis,
        *,
        method: str = "bfgs",
        micro_steps: MicroSteps = 1,
        tail: str = "flush",
        **options: Any,
    ):
        constants = {name: options.pop(name) for name in CONSTANT_NAMES if name in options}
        gradient_options(options, "method", "micro_steps", "tail", *CONSTANT_NAMES)
        update = SubspaceUpdate(optimizer, basis, method=method, **constants)
        super().__init__(loss_net, optimizer, micro_steps, update=update, tail=tail, **options)

    @property
    def last_search(self) -> LastSearch:
        """The search of the most recent update, read from the device."""
        return self.update.last_search
