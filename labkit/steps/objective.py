"""The loss of a micro-batch and its weight: what a gradient stage differentiates.

L_i, w_i of micro-batch i           (``labkit.steps.weights`` says what w_i is)
"""

from collections.abc import Callable

import mindspore as ms
from mindspore import Tensor, nn, ops

from labkit.base.arguments import wrong
from labkit.errors import InputError
from labkit.steps.batch_check import BatchCheck
from labkit.steps.labels import INTEGERS, masks
from labkit.steps.options import NORMALISE


class Objective(nn.Cell):
    """Maps a batch, labels last, to (mean loss, weight).

    Args:
        loss_net: as in ``GradientStage``.
        normalise: as in ``GradientOptions``, like the next two.
        batch_axis: axis of the batch's first tensor that indexes its rows.
        reduction: ``mean`` or ``sum``.
        weighted: whether the weight has an effect.

    Attributes:
        over: what the weight counts.
        may_be_undefined: whether a batch's loss may be 0 / 0; the batch then has weight 0 here.

    Raises:
        InputError: if ``loss_net`` is not a Cell, the reduction does not suit the loss, or a
            layer's gradient is sparse.
    """

    def __init__(
        self,
        loss_net: nn.Cell,
        normalise: str | None,
        batch_axis: int | None,
        reduction: str,
        weighted: bool,
    ):
        super().__init__(auto_prefix=False)
        if not isinstance(loss_net, nn.Cell):
            raise wrong("loss_net", type(loss_net).__name__, "an nn.Cell: network and loss")
        _refuse_sparse(loss_net)
        self.loss_net, self.batch_axis = loss_net, batch_axis
        self.loss_net.set_grad()
        self.mean = reduction == "mean"
        derived = normalise is None and self.mean and weighted
        self.check = BatchCheck(loss_net, derived, batch_axis)
        self._set_weight(normalise, reduction)

    def _set_weight(self, normalise: str | None, reduction: str) -> None:
        """Store what w_i is as plain values, the only ones that a compiled graph reads."""
        mean = self.check.mean
        self.over = mean.over if normalise is None else normalise
        if self.over == "pair":
            self.over = "tokens"
        if reduction == "sum" and self.over == "tokens":
            raise wrong("reduction", reduction, "'mean' with tokens")
        self.normalise = "tokens" if self.over == "tokens" else normalise
        self.ignore_index = mean.ignore_index
        self.mean_of_labels = mean.over == "labels" and mean.class_weights is None
        weights = mean.class_weights
        self.class_weights = None if weights is None else Tensor(weights, ms.float32)
        # Replaces the labels of a batch in which no label counts: its mean would be 0 / 0.
        self.may_be_undefined = mean.undefined
        self.stand_in = int(self.ignore_index == 0)
        if weights is not None:
            counted = [weight if i != self.ignore_index else 0 for i, weight in enumerate(weights)]
            self.stand_in = counted.index(max(counted))
        # Set by look_at, before the graph of a batch is compiled.
        self.flattened = False
        self.elements_per_row: float = 0
        self._ask_loss_net(sunk=False)

    def _ask_loss_net(self, sunk: bool) -> None:
        """Set on a ``LossNet``, which several steps may share, what this step needs from it."""
        mean = self.check.mean
        wanted = {
            "same_shape": self.check.derived and self.over == "elements",
            "guards_labels": sunk and mean.classes,
            "ignored_label": mean.ignore_index,
        }
        if hasattr(self.check.loss_net, "guards_labels"):
            for name, value in wanted.items():
                if getattr(self.check.loss_net, name) != value:
                    setattr(self.check.loss_net, name, value)

    def look_at(self, batch: tuple, compiled: Callable[[], None] | None) -> None:
        """Check a batch on the host, before it runs.

        Args:
            batch: its tensors.
            compiled: function that compiles the graph of the batch without running it. None: the
                batch is the first of a data set whose other batches are not checked.

        Raises:
            InputError: if a part is not a tensor, if the shapes give no weight or number of rows,
                or if a label of a known loss is neither of a class nor ignored.
        """
        self._ask_loss_net(sunk=compiled is None)
        self.check.shapes(batch)
        if compiled is None:
            self.check.sinkable(batch)
        self.flattened, unit = self.check.flattened, self.check.elements_per_row
        self.elements_per_row = unit or 0
        self.check.labels(batch, compiled)

    def settings(self) -> dict[str, str]:
        """Return the settings that a resumed training must share with the interrupted one."""
        normalise = "samples"
        if self.over in NORMALISE:
            normalise = self.over
        elif self.check.differs:
            normalise = self.over
        settings: dict[str, object] = {"normalise": normalise, "batch_axis": self.batch_axis}
        if self.check.derived:
            settings["derived"] = self.over
        if self.check.elements_per_row:
            settings["elements_per_row"] = self.check.elements_per_row
        return {name: repr(value) for name, value in settings.items()}

    def construct(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """Return (L_i, w_i) of a micro-batch, float32 ().

        A batch in which no label counts has loss 0 and weight 0 where MindSpore's mean is 0 / 0.
        Its loss is computed with other labels, so that a fault of the network still shows.
        """
        defined = None
        if self.may_be_undefined and batch[-1].dtype in INTEGERS:
            labels = batch[-1]
            defined = self.counted(labels) > 0
            other = ops.full_like(labels, self.stand_in)
            loss = self.loss_net(*batch[:-1], ops.where(defined, labels, other))
        else:
            loss = self.loss_net(*batch)
        weight = ops.cast(1.0, ms.float32)
        if self.normalise == "tokens":
            if not isinstance(loss, tuple):
                raise TypeError(
                    "normalise='tokens' needs a loss_net that returns the pair (loss sum, token "
                    "count); it returned one tensor"
                )
            weight = ops.cast(loss[1], ms.float32)
            loss = loss[0] / ops.maximum(weight, 1.0)
        elif isinstance(loss, tuple):
            raise TypeError(
                "loss_net returned a tuple; expected one scalar mean loss (a pair of loss sum and "
                "token count goes with normalise='tokens')"
            )
        elif self.mean and self.over != "steps":
            weight = self._weight(batch)
        if loss.ndim != 0:
            raise TypeError(f"loss_net: expected a scalar loss, shape (), got shape {loss.shape}")
        loss = ops.cast(loss, ms.float32)
        if defined is not None:
            defined = ops.cast(defined, ms.float32)
            loss, weight = loss * defined, weight * defined
        return loss, weight

    def rows(self, batch: tuple) -> int:
        """Return the number of rows of a batch, inside a graph: an integer."""
        if self.batch_axis is None and batch[-1].ndim == 1 and not self.flattened:
            return batch[-1].shape[0]
        shapes = [part.shape for part in batch if part.ndim > 0]
        return shapes[0][self.batch_axis or 0]

    def _weight(self, batch: tuple) -> Tensor:
        """Return w_i of a batch with a scalar mean loss, float32."""
        labels = batch[-1]
        if self.over == "labels" and labels.dtype in INTEGERS:
            return self.counted(labels)
        if self.over == "labels" and labels.ndim > 1:
            # Targets (B, V, ...), of the type of the logits.
            return ops.cast(ops.size(labels), ms.float32) / labels.shape[1]
        if self.over == "elements" and self.elements_per_row:
            return ops.cast(ops.size(labels), ms.float32) / self.elements_per_row
        if self.over == "rows":
            return ops.cast(labels.shape[0], ms.float32)
        return ops.cast(self.rows(batch), ms.float32)

    def counted(self, labels: Tensor) -> Tensor:
        """Return how many labels are not ignored, or the sum of their classes' weights."""
        labels = ops.cast(labels, ms.int64)
        counts = ops.cast(labels != self.ignore_index, ms.float32)
        if self.class_weights is not None:
            index, _ = masks(labels, self.class_weights.shape[0], self.ignore_index)
            counts = counts * ops.gather(self.class_weights, index, 0)
        return ops.reduce_sum(counts)


def _refuse_sparse(loss_net: nn.Cell) -> None:
    """Refuse a lookup whose gradient is the rows it has read, not a tensor of the table's shape.

    Made dense, it would train, but not as ``nn.LazyAdam`` and similar optimizers do: they leave the
    moments of all other rows unchanged. Even if not trained, it hides the types of all other
    gradients from MindSpore.
    """
    for path, cell in loss_net.cells_and_names():
        names = {primitive.name for primitive in cell._primitives.values()}
        sparse = getattr(cell, "sparse", "EmbeddingLookup" in names)
        if "SparseGatherV2" in names or (sparse and "EmbeddingLookup" in names):
            tables = [parameter.name for parameter in cell.get_parameters(expand=False)]
            raise InputError(
                f"layer {path!r}, a {type(cell).__name__}, gives {', '.join(map(repr, tables))} a "
                "sparse gradient; expected a dense one, as nn.EmbeddingLookup(..., "
                "target='DEVICE', sparse=False) and nn.Embedding give"
            )
