"""The step: THOR's update stage behind the plain step's gradient stage."""

from labkit.algorithms.thor.options import split_options
from labkit.algorithms.thor.update import ThorUpdate
from labkit.steps.plain import PlainStep


class ThorStep(PlainStep):
    """One THOR update per batch: a ``PlainStep`` with a ``ThorUpdate``.

    loss_net   network and loss, a mean over rows; its layers get taps, in place
    optimizer  any ``nn.Optimizer``; THOR's is nn.Momentum
    damping    number > 0, array of them by update, or function of the number of updates so far
    options    of ``labkit.algorithms.thor.options.Options`` and of ``GradientStage``

    >>> step = ThorStep(LossNet(network, loss_fn), optimizer, damping=0.3, frequency=10)
    >>> loss = step(images, labels)

    Three compiled graphs share the state: one that gathers factors beside the gradients, one that
    updates from what that one has prepared, and one for all other updates, which contains nothing
    of the curvature but the products with the inverses. With accumulation:
    ``AccumulatedStep(loss_net, optimizer, 4, update=ThorUpdate(loss_net, optimizer, damping))``.

    Raises ``InputError`` and FloatingPointError as ``ThorUpdate`` does.
    """

    def __init__(self, loss_net, optimizer, damping, **options):
        own, others = split_options(options)
        update = ThorUpdate(loss_net, optimizer, damping, **own)
        try:
            super().__init__(loss_net, optimizer, update=update, **others)
        except Exception:
            update.release()
            raise
