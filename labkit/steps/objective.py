"""The contract of a loss net: ``loss_net(*batch, labels) -> (loss, weight)``.

``weight`` is what the mean loss was divided by: labels that count, rows, or tokens. ``LossNet``
and ``TokenLossNet`` fulfil it; a Cell of your own returns the pair itself.
"""

import mindspore as ms
from mindspore import Tensor, mint, nn, ops

from labkit.base.arguments import wrong
from labkit.errors import InputError
from labkit.steps.labels import INTEGERS, masks
from labkit.steps.losses import FUNCTIONS, OVER_CLASSES, CrossEntropySmooth, LossNet, TokenLossNet

_OVER_ELEMENTS = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCELoss)
_OVER_ELEMENTS += (nn.BCEWithLogitsLoss, mint.nn.MSELoss)


class Objective(nn.Cell):
    """Maps a batch, labels last, to (mean loss, weight), both float32 ().

    Args:
        loss_net: a ``LossNet``, a ``TokenLossNet``, or a Cell that returns (mean loss, weight).
        normalise: None, or ``samples`` (rows) or ``steps`` (1) instead of the net's own weight.
        batch_axis: axis of the first tensor that indexes rows; None: that of the labels.
        reduction: ``mean`` or ``sum``.

    Raises:
        InputError: if ``loss_net`` is not a Cell, or its loss is not a mean that is known.
    """

    def __init__(
        self, loss_net: nn.Cell, normalise: str | None, batch_axis: int | None, reduction: str
    ):
        super().__init__(auto_prefix=False)
        if not isinstance(loss_net, nn.Cell):
            raise wrong("loss_net", type(loss_net).__name__, "an nn.Cell: network and loss")
        self.loss_net, self.batch_axis = loss_net.set_grad(), batch_axis
        self.mean = reduction == "mean"
        self.over = normalise or _over(loss_net)
        loss_fn = getattr(loss_net, "loss_fn", loss_net)
        self.ignore_index = getattr(loss_fn, "ignore_index", -100)
        weights = getattr(loss_fn, "weight", None) if self.over == "labels" else None
        self.class_weights = None if weights is None else Tensor(weights, ms.float32)
        # MindSpore's mean is 0 / 0 where no label counts: the loss of this label replaces it.
        self.may_be_undefined = isinstance(loss_fn, OVER_CLASSES) or loss_fn in FUNCTIONS
        self.stand_in = int(self.ignore_index == 0)
        if weights is not None:
            values = weights.asnumpy().tolist()
            self.stand_in = max(
                (i for i in range(len(values)) if i != self.ignore_index), key=values.__getitem__
            )

    def settings(self) -> dict[str, str]:
        """Return what a resumed training must share."""
        return {"normalise": repr(self.over), "batch_axis": repr(self.batch_axis)}

    def construct(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        labels, defined = batch[-1], None
        if self.may_be_undefined and labels.dtype in INTEGERS:
            defined = self.counted(labels) > 0
            other = ops.full_like(labels, self.stand_in)
            loss = self.loss_net(*batch[:-1], ops.where(defined, labels, other))
        else:
            loss = self.loss_net(*batch)
        weight = ops.cast(1.0, ms.float32)
        if self.over == "tokens":
            weight = ops.cast(loss[1], ms.float32)
            loss = loss[0] / ops.maximum(weight, 1.0)
        elif self.over == "pair":
            loss, weight = loss[0], ops.cast(loss[1], ms.float32)
        elif self.mean and self.over != "steps":
            weight = self._weight(batch)
        loss = ops.cast(loss, ms.float32)
        if defined is not None:
            defined = ops.cast(defined, ms.float32)
            loss, weight = loss * defined, weight * defined
        return loss, weight

    def rows(self, batch: tuple) -> int:
        """Return the number of rows of a batch, inside a graph: an integer."""
        if self.batch_axis is None:
            return batch[-1].shape[0]
        return batch[0].shape[self.batch_axis]

    def _weight(self, batch: tuple) -> Tensor:
        if self.over == "labels" and batch[-1].dtype in INTEGERS:
            return self.counted(batch[-1])
        if self.over == "elements":
            return ops.cast(ops.size(batch[-1]), ms.float32)
        return ops.cast(self.rows(batch), ms.float32)

    def counted(self, labels: Tensor) -> Tensor:
        """Return how many labels are not ignored, or the sum of their classes' weights."""
        labels = ops.cast(labels, ms.int64)
        counts = ops.cast(labels != self.ignore_index, ms.float32)
        if self.class_weights is not None:
            index, _ = masks(labels, self.class_weights.shape[0], self.ignore_index)
            counts = counts * ops.gather(self.class_weights, index, 0)
        return ops.reduce_sum(counts)


def _over(loss_net: nn.Cell) -> str:
    """Return what the loss is a mean over; ``pair`` for a Cell that says it itself."""
    if isinstance(loss_net, TokenLossNet):
        return "tokens"
    if not isinstance(loss_net, LossNet):
        return "pair"
    loss_fn = loss_net.loss_fn
    if loss_fn in FUNCTIONS or isinstance(loss_fn, OVER_CLASSES):
        return "labels"
    if isinstance(loss_fn, CrossEntropySmooth):
        return "labels" if loss_fn.sparse else "rows"
    if isinstance(loss_fn, nn.SoftmaxCrossEntropyWithLogits):
        return "rows"
    if isinstance(loss_fn, _OVER_ELEMENTS):
        return "elements"
    raise InputError(
        f"the loss is a {type(loss_fn).__name__}, of which it is not known what it is a mean over; "
        "expected a Cell that returns (mean loss, weight), or normalise='samples' or 'steps'"
    )
