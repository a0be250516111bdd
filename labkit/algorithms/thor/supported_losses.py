"""Which losses THOR's factors are right for: means over rows of one loss a row."""

from mindspore import mint, nn

from labkit.errors import InputError
from labkit.steps.losses import CrossEntropySmooth

# Their mean over a batch of N rows makes N dL/dy the derivative of one row's loss. Those over
# elements (nn.MSELoss) do too: a row's loss is then its elements' mean.
SUPPORTED = (
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
LOSSES = ("known", "sample mean")


def check_loss(loss_net) -> None:
    """Raise ``InputError`` unless ``loss_net``'s loss is a supported one with reduction mean."""
    loss_fn = getattr(loss_net, "loss_fn", None) or getattr(loss_net, "_loss_fn", None)
    vouch = "loss='sample mean' says that yours is the mean over the batch's rows of one loss a row"
    if loss_fn is None or not isinstance(loss_fn, SUPPORTED):
        what = type(loss_net if loss_fn is None else loss_fn).__name__
        what = f"a {'loss_net' if loss_fn is None else 'loss'} of class {what} came"
        names = ", ".join(sorted({supported.__name__ for supported in SUPPORTED}))
        raise InputError(f"{what}; expected LossNet(network, one of {names}). {vouch}")
    reduction = getattr(loss_fn, "reduction", None)
    if reduction is None:  # a LossBase keeps it as two flags
        reduction = ("mean" if loss_fn.average else "sum") if loss_fn.reduce else "none"
    if reduction != "mean":
        raise InputError(
            f"the {type(loss_fn).__name__} has reduction {reduction!r}; expected 'mean': THOR's "
            "factors are those of a mean over rows"
        )
    if getattr(loss_fn, "weight", None) is not None:
        raise InputError(
            f"the {type(loss_fn).__name__} has weights, so that its mean is not the mean over "
            f"rows; expected none. {vouch}"
        )
