"""Networks with their loss: what a step differentiates."""

import math
from numbers import Integral, Real

import mindspore as ms
from mindspore import Tensor, nn, ops

from labkit.errors import InputError, refuse_unknown

CONVENTIONS = ("mindspore", "pytorch")
_REDUCTIONS = ("mean", "sum", "none")


class LossNet(nn.Cell):
    """A network and a loss function as one cell: ``loss_net(*inputs, labels)`` is the mean loss.

    network  Cell, inputs -> outputs
    loss_fn  Cell or function, (outputs, labels) -> scalar; sees outputs in float32 whatever the
             network computes in
    """

    def __init__(self, network, loss_fn):
        super().__init__(auto_prefix=False)
        self.network = network
        self.loss_fn = loss_fn

    def construct(self, *batch):
        outputs = self.network(*batch[:-1])
        return self.loss_fn(ops.cast(outputs, ms.float32), batch[-1])


class TokenLossNet(nn.Cell):
    """Cross entropy over the tokens that count: returns (loss sum, token count), both shape ().

    network       Cell, tokens (B, T) int32 -> logits (B, T, V)
    ignore_index  label of positions that do not count (padding)

    For ``normalise="tokens"``: micro-batches of equally many sequences hold different numbers of
    tokens, and a mean of their means is not the mean over tokens.
    """

    def __init__(self, network, ignore_index=-1):
        super().__init__(auto_prefix=False)
        self.network = network
        self.ignore_index = ignore_index

    def construct(self, tokens, labels):
        logits = ops.cast(self.network(tokens), ms.float32)
        log_probability = ops.log_softmax(logits, -1)
        counts = ops.cast(labels != self.ignore_index, ms.float32)
        index = ops.expand_dims(ops.maximum(labels, 0), -1)
        loss = -ops.squeeze(ops.gather_elements(log_probability, -1, index), -1)
        return ops.reduce_sum(loss * counts), ops.reduce_sum(counts)


class CrossEntropySmooth(nn.LossBase):
    r"""Cross entropy against smoothed labels: ``loss(logits, labels)``.

        L = -sum_c t_c log softmax(z)_c,   t = on at the label, off at the C - 1 other classes

        convention="mindspore":  on = 1 - s,          off = s / (C - 1)
        convention="pytorch":    on = 1 - s + s / C,  off = s / C

    ``mindspore`` is that of the source documents (r1.6 sample code), ``pytorch`` that of
    torch.nn.CrossEntropyLoss(label_smoothing=s), which smooths less: its s is the other's
    s (C - 1) / C. With 0.1 and 10 classes that is 0.09.

    sparse         labels (B,) int32 or int64, each 0 .. C - 1; False: targets (B, C) whose rows
                   sum to 1, used as they are (so smooth_factor must be 0)
    reduction      over the B losses: ``mean``, ``sum`` or ``none``
    smooth_factor  s, 0 .. 1
    num_classes    C, the width of the logits

    Logits (B, C) are taken in float32. A label outside 0 .. C - 1 makes the loss and its gradients
    NaN, which a step drops and counts: no exception can leave a compiled graph, and MindSpore's
    one_hot would be ``off`` in every class, so that without smoothing such a row costs nothing.

    Raises ``InputError`` for arguments that are none of these, and, where it is compiled,
    ``ValueError`` for logits and labels whose shapes do not fit.
    """

    def __init__(
        self,
        sparse=True,
        reduction="mean",
        smooth_factor=0.0,
        num_classes=1000,
        *,
        convention="mindspore",
    ):
        refuse_unknown("reduction", reduction, _REDUCTIONS)
        refuse_unknown("convention", convention, CONVENTIONS)
        super().__init__(reduction)
        if not isinstance(sparse, bool):
            raise InputError(f"sparse is {sparse!r}; expected True or False")
        integer = isinstance(num_classes, Integral) and not isinstance(num_classes, bool)
        if not integer or num_classes < 2:
            raise InputError(f"num_classes is {num_classes!r}; expected a whole number, 2 or more")
        number = isinstance(smooth_factor, Real) and not isinstance(smooth_factor, bool)
        if not number or not 0 <= smooth_factor <= 1:
            raise InputError(f"smooth_factor is {smooth_factor!r}; expected a number from 0 to 1")
        if smooth_factor and not sparse:
            raise InputError(
                f"smooth_factor is {smooth_factor} and sparse False: targets are used as they are; "
                "expected smooth_factor=0, or labels with sparse=True"
            )
        self.sparse = sparse
        self.num_classes = int(num_classes)
        others = self.num_classes - 1
        smooth = float(smooth_factor)
        if convention == "pytorch":
            smooth *= others / self.num_classes
        self.on_value = Tensor(1.0 - smooth, ms.float32)
        self.off_value = Tensor(smooth / others, ms.float32)
        self.ce = nn.SoftmaxCrossEntropyWithLogits()

    def construct(self, logits, labels):
        if logits.ndim != 2 or logits.shape[1] != self.num_classes:
            raise ValueError(
                f"the logits have shape {logits.shape}; expected (B, {self.num_classes}), "
                "num_classes of the loss"
            )
        logits = ops.cast(logits, ms.float32)
        if not self.sparse:
            if labels.shape != logits.shape:
                raise ValueError(
                    f"the targets have shape {labels.shape}, the logits {logits.shape}; expected "
                    "the same with sparse=False"
                )
            return self.get_loss(self.ce(logits, ops.cast(labels, ms.float32)))
        if labels.ndim != 1 or labels.shape[0] != logits.shape[0]:
            raise ValueError(
                f"the labels have shape {labels.shape}, the logits {logits.shape}; expected one "
                "label for each row of logits"
            )
        targets = ops.one_hot(labels, self.num_classes, self.on_value, self.off_value)
        known = ops.logical_and(labels >= 0, labels < self.num_classes)
        # Times NaN, not plus: the gradient has to show it as well.
        return self.get_loss(self.ce(logits, targets) * ops.where(known, 1.0, math.nan))
