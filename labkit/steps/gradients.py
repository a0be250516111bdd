r"""The gradient stage of a step: from micro-batches to one averaged gradient.

For micro-batches i = 1 .. k with mean losses L_i and weights w_i, over all ranks,

    g = sum_i w_i grad L_i / sum_i w_i          (``loss_net(*batch)`` returns L_i and w_i)
    g <- g * min(1, clip_norm / |g|)            (once per update, after averaging)

The order is fixed: scale the loss, differentiate, unscale (exactly once, into float32), check for
non-finite values, accumulate, sum over ranks, divide, clip. A loss net that returns the pairs
((L, w), (M, v)), and has the attribute ``pairs = 2``, gets the sum of two such g, each
differentiated and averaged by itself (README.md here says when (L + M, w) is wrong).

Gradients are sent one by one, or fused: ``all_reduce_fusion_config=(85, 160)``, as in MindSpore's
``set_auto_parallel_context``, lists the index, from 0, of the last gradient of each message; those
after it form one more. On two ranks sums are the same bits; on more, rounding may differ.
"""

from collections.abc import Callable, Sequence

import mindspore as ms
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from mindspore.communication import GlobalComm, get_group_size

from labkit.base.arguments import wrong
from labkit.steps.batches import INTEGERS, labels_of, refuse
from labkit.steps.options import LARGEST_SCALE, DynamicLossScale, GradientOptions
from labkit.steps.precision import set_precision
from labkit.steps.state import are_float32, state, trainable_batch_norms

_NO_WEIGHT = (
    "loss_net returns a loss alone, and its mean over micro-batches or ranks needs the number that "
    "it is a mean over: return (loss, weight), or (loss, 1) for the mean of means; for a function "
    "of your own over the rows of a batch: LossNet(network, fn, per='rows'). A contrastive loss "
    "over pairs of a batch's rows lacks the other micro-batches' negatives, whatever its weight"
)
_OUTPUTS = (
    "loss_net returns a loss and outputs, and its mean over micro-batches or ranks, as factors, "
    "needs the number that it is a mean over; expected two scalars, (loss, weight), as a Cell "
    "around it may return"
)
_NO_COUNT = (
    "loss_net returns a loss alone, and factors need the number of terms that it is a mean over: "
    "return (loss, weight), as TokenLossNet does; for a function of your own over the rows of a "
    "batch: LossNet(network, fn, per='rows')"
)
_SUM_OF_TERMS = (
    "reduction: expected 'mean' beside factors of a loss over terms (tokens), got 'sum', which "
    "takes their number away"
)
_NO_LOSS = (
    "loss_net: expected a scalar loss and a scalar weight, as of LossNet(network, loss_fn), got "
    "other shapes, such as a network's outputs"
)
_SEVERAL_PAIRS = "loss_net returns {} (loss, weight) pairs; expected {}, its attribute ``pairs``"
LEAST = 1e-30  # of a weight that is divided by: where nothing counts, sums and weight are 0


class GradientStage(nn.Cell):
    """Loss, weight and gradients of one micro-batch; and their mean over micro-batches and ranks.

    Args:
        loss_net: Cell that maps a batch, labels last, to (mean loss, weight), or to several such
            pairs: a ``LossNet``, a ``TokenLossNet``, or one of your own. With ``weighted=False`` on
            one rank it may also return a loss alone, or (loss, outputs, ...).
        weighted: False only if one micro-batch on one rank is the whole update.
        extras: None, or three tuples of Parameters for which taps in the network define
            "gradients": sums over positions of quantities that do not depend on the loss; the
            numbers of positions in these and in the third, (2,); and sums of squares of the loss's
            derivative, which a tap first divides by ``loss_scale``. See ``_means``.
        rank_group: the communication group to average over; None for all ranks, "" for this alone.

    Raises ``InputError`` if a layer's gradient is sparse, or the options do not suit the loss.
    """

    def __init__(
        self,
        loss_net: nn.Cell,
        parameters: Sequence[Parameter],
        options: GradientOptions = GradientOptions(),  # noqa: B008, it is frozen
        *,
        weighted: bool = True,
        extras: tuple[Sequence[Parameter], ...] | None = None,
        rank_group: str | None = None,
    ):
        super().__init__(auto_prefix=False)
        self.ranks, self.all_reduce = 1, None
        if GlobalComm.INITED and rank_group != "":
            group = rank_group or GlobalComm.WORLD_COMM_GROUP
            self.ranks = get_group_size(group)
            self.all_reduce = ops.AllReduce(group=group) if self.ranks > 1 else None
        self.mean = options.reduction == "mean"
        self.weighted = weighted or self.ranks > 1
        self.pairs = int(getattr(loss_net, "pairs", 1)) if self.weighted else 1
        self.checked = options.nonfinite != "propagate"
        self.clip_norm = None if options.clip_norm is None else float(options.clip_norm)
        half = options.precision != "O0" or any(p.dtype == ms.float16 for p in parameters)
        scale = options.loss_scale
        self.dynamic = isinstance(scale, DynamicLossScale)
        # Also if float16 is differentiated at scale 1: the weight must come later, see below.
        self.scaled = self.dynamic or half or scale != 1
        if self.scaled:
            initial = scale.initial if isinstance(scale, DynamicLossScale) else scale
            self.loss_scale = state("loss_scale", float(initial))
        if isinstance(scale, DynamicLossScale):
            self.finite_run = state("finite_run", 0)  # since the scale last changed
            self.growth, self.interval = float(scale.factor), int(scale.interval)
        _refuse_sparse(loss_net)
        if self.pairs > 1 and trainable_batch_norms(loss_net):
            expected = "a network without BatchNorm, which each pair's pass would move"
            raise wrong("pairs of loss_net", self.pairs, expected)
        if extras is not None and getattr(loss_net, "pairs", 1) > 1:
            raise wrong("pairs of loss_net", loss_net.pairs, "one (loss, weight) beside factors")
        self.count, self.float32 = len(parameters), are_float32(parameters)
        self.message_ends = message_ends(options.all_reduce_fusion_config, self.pairs * self.count)
        # After all refusals: it changes the network.
        set_precision(loss_net, str(options.precision))
        self.loss_net = loss_net.set_grad()
        self.with_extras, self.over = extras is not None, getattr(loss_net, "over", None)
        # Labels with more axes, of integers, belong to several terms a row; -2 is always exceeded.
        self.row_axes = {"rows": 99, "elements": 99, "labels": 1}.get(str(self.over), -2)
        self.of_sums = Tensor((1.0, 0.0), ms.float32)
        self.value_and_grad = ops.value_and_grad(self._scaled, None, parameters, has_aux=True)
        self.map = ops.HyperMap()
        if extras is None:
            return
        everything = ParameterTuple((*parameters, *extras[0], *extras[1], *extras[2]))
        self.sums_end = self.count + len(extras[0])
        self.positions_end = self.sums_end + len(extras[1])
        self.value_and_extras = ops.value_and_grad(self._scaled, None, everything, has_aux=True)

    def objective(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """Return what ``loss_net`` returns, float32 () or (pairs,), or refuse it when compiled."""
        result = self.loss_net(*batch)
        if isinstance(result, (list, dict)) or (isinstance(result, tuple) and len(result) < 2):
            refuse(_NO_LOSS)
        if isinstance(result, tuple) and _has_outputs(result):
            if self.weighted or self.with_extras:
                refuse(_OUTPUTS)
            result = result[0]
        if not isinstance(result, tuple):
            if result.ndim != 0:
                refuse(_NO_LOSS)
            if self.weighted or self.with_extras:
                refuse(_NO_COUNT if self.with_extras else _NO_WEIGHT)
            result = (result, 1.0)
        pairs = result if isinstance(result[0], tuple) else (result,)
        if (self.weighted or self.with_extras) and len(pairs) != self.pairs:
            refuse(_SEVERAL_PAIRS, len(pairs), self.pairs)
        losses: tuple = ()
        weights: tuple = ()
        for loss, weight in pairs:
            loss, weight = _float32(loss), _float32(weight)
            if loss.ndim != 0 or weight.ndim != 0:
                refuse(_NO_LOSS)
            if not self.mean:
                weight = ops.cast(weight > 0, ms.float32)
            losses, weights = (*losses, loss), (*weights, weight)
        if len(pairs) == 1:
            return losses[0], weights[0]
        if self.weighted:
            return ops.stack(losses), ops.stack(weights)
        return ops.addn(losses), ops.cast(1.0, ms.float32)

    def _scaled(self, pair: int, *batch: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return (the value to differentiate, L_i, w_i) of one pair."""
        loss, weight = self.objective(*batch)
        if self.pairs > 1:
            loss, weight = loss[pair], weight[pair]
        if self.scaled:
            # Weighted later, in float32: a factor of 32 would cost float16 five of 30 binades.
            return loss * self.loss_scale, loss, weight
        if self.weighted:
            return loss * weight, loss, weight
        return loss, loss, weight

    def contribution(self, with_extras: bool, *batch: Tensor) -> tuple:
        """Return (L_i, w_i, gradients, finite, squares) of one micro-batch.

        The gradients are w_i grad L_i (grad L_i if not ``weighted``), unscaled, float32, pair by
        pair, with what ``_means`` makes of the extras at the end. ``squares`` is the sum of the
        gradients' squares (they overflow from 1.8e19 on), ``finite`` whether that sum and the loss
        are finite; without a check they are None and True. Of several pairs, L_i, w_i are (pairs,).
        """
        if with_extras:
            (_, loss, weight), found = self.value_and_extras(0, *batch)
        else:
            (_, loss, weight), found = self.value_and_grad(0, *batch)
        gradients = self._unscaled(found[: self.count], weight)
        if self.pairs > 1:
            losses: tuple = (loss,)
            weights: tuple = (weight,)
            for pair in range(1, self.pairs):
                (_, loss, weight), more = self.value_and_grad(pair, *batch)
                losses, weights = (*losses, loss), (*weights, weight)
                gradients += self._unscaled(more, weight)
            loss, weight = ops.stack(losses), ops.stack(weights)
        finite, squares = True, None
        if self.checked:
            squares = self._squares(gradients)
            finite = ops.logical_and(ops.isfinite(squares), ops.isfinite(self.added(loss)))
        if with_extras:
            gradients += self._means(found, weight, labels_of(batch))
        return loss, weight, gradients, finite, squares

    def _means(self, found: tuple, weight: Tensor, labels: Tensor) -> tuple:
        """Return what to add up of the extras, to be divided by the sum of w_i if ``weighted``.

        For a mean over rows: means over the N rows of the batch, squares of the derivative of a
        row's loss. Over c terms (tokens), whose positions may be any: the sums as they are, with 0
        as the positions of the squares; and c times these, the mean over terms of a term's.
        """
        sums, counts = found[self.count : self.sums_end], found[self.sums_end : self.positions_end]
        squares = found[self.positions_end :]
        integers = labels.dtype in INTEGERS
        if labels.ndim > self.row_axes + (0 if integers else 1):
            if not self.mean:
                refuse(_SUM_OF_TERMS)
            counts = self.map(ops.partial(times, self.of_sums), counts)
            if self.weighted:
                # If the loss is not scaled, the weight was part of what was differentiated.
                weight = weight * weight if self.scaled else ops.cast(1.0, ms.float32)
            return sums + counts + self.map(ops.partial(times, weight), squares)
        rows = ops.cast(labels.shape[0], ms.float32)
        counted = rows
        if self.over == "labels" and integers:
            # A row whose label is ignored has no loss, and the mean does not count it.
            counted = self.loss_net.counted(labels)
        # The derivative of a row's own loss is ``counted`` times that of the mean. If the loss is
        # not scaled, the weight was part of what was differentiated, and is in a square twice.
        divisor, factor = rows, counted
        if self.weighted:
            divisor = rows / ops.maximum(weight, LEAST)
            factor = counted * weight if self.scaled else counted / ops.maximum(weight, LEAST)
        constant = self.map(ops.partial(divided, divisor), sums + counts)
        return constant + self.map(ops.partial(times, factor), squares)

    def _unscaled(self, gradients: tuple, weight: Tensor) -> tuple:
        if not self.scaled:
            return gradients if self.float32 else self.map(_float32, gradients)
        factor = 1.0 / self.loss_scale
        if self.weighted:
            factor = weight * factor
        return self.map(ops.partial(times, factor), gradients)

    def _squares(self, gradients: tuple) -> Tensor:
        return ops.addn(self.map(_squared_norm, gradients))

    def added(self, loss: Tensor) -> Tensor:
        """Return the loss () of a micro-batch: the sum over its pairs."""
        return ops.reduce_sum(loss) if self.pairs > 1 else loss

    def counts(self, weight: Tensor) -> Tensor:
        """Return whether anything counts in a weight, () or (pairs,)."""
        return (ops.reduce_max(weight) if self.pairs > 1 else weight) > 0

    def adjust_loss_scale(self, finite: Tensor) -> bool:
        """Shrink or grow a dynamic loss scale after a micro-batch."""
        if self.dynamic:
            if finite:
                run = ops.assign_add(self.finite_run, 1)
                if run >= self.interval:
                    grown = ops.minimum(self.loss_scale * self.growth, LARGEST_SCALE)
                    ops.assign(self.loss_scale, grown)
                    ops.assign(self.finite_run, 0)
            else:
                ops.assign(self.loss_scale, ops.maximum(self.loss_scale / self.growth, 1.0))
                ops.assign(self.finite_run, 0)
        return True

    def over_ranks(self, value: Tensor) -> Tensor:
        """Return the sum of a float32 or int32 tensor over all ranks."""
        if self.all_reduce is None:
            return value
        # Through float32, exact up to 2**24: the CPU's AllReduce does not accept integers.
        return ops.cast(self.all_reduce(ops.cast(value, ms.float32)), value.dtype)

    def all_over_ranks(self, values: tuple, gradients: tuple, extras: tuple) -> tuple:
        """Return the three tuples' sums over all ranks, the gradients' in fused messages, if so."""
        if self.all_reduce is None:
            return values + gradients + extras
        if not self.message_ends:
            return summed_in_order(self.all_reduce, values + gradients + extras)
        messages = joined(gradients, self.message_ends)
        sums = summed_in_order(self.all_reduce, values + messages + extras)
        first, last = len(values), len(values) + len(messages)
        parts = separated(sums[first:last], gradients, self.message_ends)
        return sums[:first] + parts + sums[last:]

    def sum_of_means(self, total: tuple, loss_sum: Tensor, weight: Tensor) -> tuple:
        """Return ``total`` and ``loss_sum`` of several pairs as those of one of weight 1."""
        divisor = ops.maximum(weight, LEAST)
        gradients: tuple = ()
        for place in range(self.count):
            gradient = 0.0
            for pair in range(self.pairs):
                part = total[pair * self.count + place]
                gradient = gradient + (part / divisor[pair] if self.mean else part)
            gradients += (gradient,)
        return gradients, ops.reduce_sum(loss_sum / divisor), ops.cast(1.0, ms.float32)

    def finish(self, total: tuple, weight: Tensor, squares: Tensor | None = None) -> tuple:
        """Return (mean gradients, clipped; their global norm () before clipping), float32.

        ``total`` and ``weight`` > 0 are sums over micro-batches and ranks, ``squares`` is the sum
        of the squares of ``total``, if known.

        Hazard: the output of AllReduce must be divided, never multiplied. MindSpore rewrites
        AllReduce(g) * y + z as AllReduce(g + z) * y (its pass adjust_all_reduce_mul_add): with
        y = 1 / rows the weight decay was a tenth of what it should be with 10 rows on each rank.
        """
        if self.all_reduce is not None:
            divisor = weight if self.mean else ops.cast(self.ranks, ms.float32)
            norm = ops.sqrt(self._squares(total)) / divisor
            if self.clip_norm is not None:
                divisor = divisor * (ops.maximum(norm, self.clip_norm) / self.clip_norm)
            return self.map(ops.partial(divided, divisor), total), norm
        norm = ops.sqrt(self._squares(total) if squares is None else squares)
        scale = ops.cast(1.0, ms.float32)
        if self.weighted:
            if self.mean:
                scale = 1.0 / weight
            norm = norm * scale
        elif self.clip_norm is None:
            return total, norm
        if self.clip_norm is not None:
            scale = scale * (self.clip_norm / ops.maximum(norm, self.clip_norm))
        return self.map(ops.partial(times, scale), total), norm


def _has_outputs(result: tuple) -> bool:
    """Return whether what a loss net returns is (loss, outputs, ...), as of Hugging Face's."""
    first, second = result[0], result[1]
    if isinstance(first, (tuple, list, dict)):  # pairs
        return False
    if len(result) > 2 or isinstance(second, (tuple, list, dict)):
        return True
    return first.ndim == 0 and isinstance(second, Tensor) and second.ndim > 0


def _float32(gradient: Tensor) -> Tensor:
    return ops.cast(gradient, ms.float32)


def times(factor: Tensor, gradient: Tensor) -> Tensor:
    """Return ``factor`` times a gradient, in float32."""
    return ops.cast(gradient, ms.float32) * factor


def divided(divisor: Tensor, gradient: Tensor) -> Tensor:
    """Return a gradient, divided."""
    return gradient / divisor


def _squared_norm(gradient: Tensor) -> Tensor:
    # Not ops.L2Loss: its CPU kernel sums in one float32 and is 0.6 % off at 5 million elements.
    # Nor a product of two vectors, in half the time: its float32 is 2 % off at 100 million.
    # Flattened: the CPU's reductions over four axes take twice as long as over one.
    return ops.reduce_sum(ops.square(ops.reshape(gradient, (-1,))))


def message_ends(indices: Sequence[int] | None, count: int) -> tuple[int, ...]:
    """Return the index after the last gradient, of ``count``, of each message; () for None."""
    if indices is None:
        return ()
    if indices[-1] >= count:
        expected = f"indices below {count}, the number of gradients"
        raise wrong("all_reduce_fusion_config", list(indices), expected)
    ends = tuple(index + 1 for index in indices)
    return ends if ends[-1] == count else (*ends, count)


def joined(values: tuple, ends: tuple[int, ...]) -> tuple:
    """Return one flat tensor for each message; ``values`` are float32 tensors of any shape."""
    messages: tuple = ()
    start = 0
    for end in ends:
        parts: tuple = ()
        for value in values[start:end]:
            parts += (ops.reshape(value, (-1,)),)
        messages += (ops.concat(parts),)
        start = end
    return messages


def separated(messages: tuple, values: tuple, ends: tuple[int, ...]) -> tuple:
    """Return the parts of messages in the shapes of ``values``: the inverse of ``joined``."""
    parts: tuple = ()
    start = 0
    for message, end in zip(messages, ends):  # noqa: B905, a graph knows no strict=
        first = 0
        for value in values[start:end]:
            # Slices: ops.split nests one call per part, and a graph allows 1000.
            parts += (ops.reshape(message[first : first + value.size], value.shape),)
            first += value.size
        start = end
    return parts


def summed_in_order(all_reduce: Callable, values: tuple) -> tuple:
    """Return each value's sum over ranks, computed one after the other.

    The order must be the same on all ranks, and a graph guarantees none for nodes that do not
    depend on each other.
    """
    sums: tuple = ()
    last = values[0]
    for value in values:
        last = all_reduce(ops.depend(value, last))
        sums += (last,)
    return sums


def _refuse_sparse(loss_net: nn.Cell) -> None:
    """Refuse a lookup whose gradient is rows, which hides the types of all other gradients."""
    for path, cell in loss_net.cells_and_names():
        names = {primitive.name for primitive in cell._primitives.values()}
        sparse = getattr(cell, "sparse", "EmbeddingLookup" in names)
        if "SparseGatherV2" in names or (sparse and "EmbeddingLookup" in names):
            expected = "a dense gradient, as of target='DEVICE', sparse=False, or nn.Embedding"
            raise wrong(f"layer {path!r}", f"{type(cell).__name__} with sparse gradient", expected)
