"""Networks with their loss: what a step differentiates."""

import mindspore as ms
from mindspore import nn, ops


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
