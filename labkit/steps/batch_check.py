"""A step's checks of its batches on the host, before they reach a compiled graph."""

from collections.abc import Callable, Sequence

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from mindspore.common import dtype as mstype

from labkit.base.arguments import integer, wrong
from labkit.errors import InputError
from labkit.steps.forward_state import unchanged
from labkit.steps.labels import INTEGERS, check_integers, check_labels, classes_of
from labkit.steps.losses import class_axis
from labkit.steps.modes import modes, set_modes
from labkit.steps.weights import Mean, mean_of

FLOATS = (ms.float16, ms.bfloat16, ms.float32, ms.float64)
_WORDS = "expected normalise='samples', 'tokens' or 'steps'"
Shapes = Sequence[tuple[int, ...]]


def check_flat(batch: Sequence) -> None:
    """Raise ``InputError`` if the batch is empty or has a tuple, list, dict or array as a part."""
    for number, part in enumerate(batch):
        if isinstance(part, tuple | list | dict):
            kind = f"a {type(part).__name__} of {len(part)}"
        elif isinstance(part, np.ndarray):
            kind = "a NumPy array"
        else:
            continue
        raise InputError(
            f"part {number} of the batch: expected a tensor, got {kind}; a batch is flat tensors, "
            "labels last, such as step(tokens, mask, labels)"
        )
    if not batch:
        raise InputError("the batch is empty; expected flat tensors, labels last")


class BatchCheck:
    """Checks that a step makes of its batches before they reach a compiled graph.

    Args:
        loss_net: as in ``GradientStage``.
        derived: whether the weight is derived from the loss and has an effect.
        batch_axis: as ``axis`` in ``batch_rows``.

    Attributes:
        mean: what the loss is a mean over.
        elements_per_row: that of the first batch, for a mean over elements: the unit of weights.
        differs: whether any weight so far was not the number of rows.
    """

    def __init__(self, loss_net: nn.Cell, derived: bool, batch_axis: int | None = None):
        self.loss_net, self.derived, self.batch_axis = loss_net, derived, batch_axis
        self.mean = mean_of(loss_net)
        self.elements_per_row: float | None = None
        self.differs = derived and self.mean.class_weights is not None
        self.flattened = False
        self._flattened: dict[tuple, bool] = {}  # by signature of a batch
        self._asked = False  # whether V has been looked up
        self._classes: int | None = None

    def shapes(self, batch: tuple) -> None:
        """Raise ``InputError`` if the shapes give no weight; shapes seen before cost nothing."""
        signature = tuple((type(part), getattr(part, "shape", None)) for part in batch)
        if signature in self._flattened:
            self.flattened = self._flattened[signature]
            return
        check_flat(batch)
        shapes = [tuple(part.shape) for part in batch if getattr(part, "shape", ())]
        self.flattened = self.batch_axis is None and is_flattened(shapes)
        if self.batch_axis is not None or not shapes:
            batch_rows(batch, self.batch_axis)
        if (self.derived or self.batch_axis is None) and not isinstance(batch[-1], Tensor):
            raise wrong("the batch's last part", batch[-1], "a tensor of labels")
        if self.derived:
            check_derivable(self.mean, batch, self.batch_axis)
            self._compare_with_rows(batch, shapes)
        self._flattened[signature] = self.flattened

    def _compare_with_rows(self, batch: tuple, shapes: Shapes) -> None:
        """Note whether weights differ from the number of rows, as far as the shapes show it."""
        labels = batch[-1]
        self.differs |= self.flattened
        if self.mean.over == "elements":
            rows = shapes[0][0] if self.flattened else batch_rows(batch, self.batch_axis)
            if not rows:
                raise InputError("the batch: expected at least one row, got none")
            per_row = labels.size / rows
            self.elements_per_row = self.elements_per_row or per_row
            self.differs |= per_row != self.elements_per_row
        elif self.mean.over == "labels" and np.issubdtype(_dtype(labels), np.integer):
            self.differs |= labels.ndim != 1

    def sinkable(self, batch: tuple) -> None:
        """Raise ``InputError`` unless the graph itself can replace the host's check of labels."""
        if self.mean.classes and not hasattr(self.loss_net, "label_key"):
            raise InputError(
                "dataset sink mode: no label is looked at on the host, and the loss of a "
                f"{type(self.loss_net).__name__} does not show one that is of no class; expected "
                "a LossNet"
            )
        if self._may_ignore(batch[-1]):
            raise InputError(
                "dataset sink mode: no label is looked at on the host, and the loss, not a known "
                f"one, may ignore some: what its mean is taken over is unknown; {_WORDS}"
            )

    def labels(self, batch: tuple, compiled: Callable[[], None] | None) -> None:
        """Check the labels of a batch.

        Args:
            batch: inputs and labels.
            compiled: function that compiles the graph of the batch, from which V is known. Where
                there is no such graph (PyNative mode, nn.WithLossCell), the network is run once.
                None: V is taken from the loss alone.

        Raises:
            InputError: if a label is invalid, or an unknown loss may ignore it.
        """
        labels = batch[-1]
        if not isinstance(labels, Tensor) or not (self.mean.classes or self._may_ignore(labels)):
            return
        array = labels.asnumpy()
        if not self.mean.classes:
            self._refuse_ignored(array)
            return
        if self.mean.dense and labels.dtype in FLOATS and array.ndim > 1:
            return
        check_integers(array)
        if self.classes is None and compiled is not None and not self._asked:
            self._asked = True
            # Not in PyNative mode: the graph would not be run, and takes seconds for a ResNet.
            if ms.get_context("mode") == ms.GRAPH_MODE and hasattr(self.loss_net, "label_key"):
                compiled()
            else:
                self._classes = self._classes_of_outputs(batch)
        check_labels(array, self.classes, self.mean.ignore_index)
        if self.derived and not self.differs and self.mean.over == "labels":
            self.differs = bool((array == self.mean.ignore_index).any())

    def _refuse_ignored(self, array: np.ndarray) -> None:
        """Refuse labels that an unknown loss, taken for a mean over rows, may ignore."""
        if array.size and array.min() < 0:
            raise InputError(
                f"label {array.min()} is negative, and the loss, not a known one, may ignore "
                f"it: what its mean is taken over is unknown; {_WORDS}"
            )
        for ignored in self.mean.ignores:
            if (array == ignored).any():
                raise InputError(
                    f"label {ignored} is one that a loss in the {type(self.loss_net).__name__} "
                    f"ignores: what its mean is taken over is unknown; {_WORDS}"
                )

    def _may_ignore(self, labels: Tensor) -> bool:
        """Return whether an unknown loss, taken for a mean over rows, may ignore labels."""
        integers = labels.dtype in INTEGERS
        return self.derived and self.mean.over == "unknown" and integers

    @property
    def classes(self) -> int | None:
        """V, the number of classes; None while it is unknown, before anything is compiled."""
        loss_fn = getattr(self.loss_net, "loss_fn", None)
        loss_fn = loss_fn or getattr(self.loss_net, "_loss_fn", None)
        known = self._classes or getattr(loss_fn, "num_classes", None)
        return known or classes_of(self.loss_net)

    def _classes_of_outputs(self, batch: tuple) -> int | None:
        """Return V from a run of the network in evaluation mode, which draws no random numbers."""
        if isinstance(self.loss_net, nn.WithLossCell):
            network, axis = self.loss_net.backbone_network, class_axis(self.loss_net._loss_fn)
        else:
            network, axis = self.loss_net.network, getattr(self.loss_net, "class_axis", -1)
        kept, phase = modes(network), network.phase
        try:
            with unchanged(network):
                outputs = network.set_train(False)(*batch[:-1])
        finally:
            set_modes(kept)
            network.phase = phase
        return outputs.shape[axis] if axis is not None and outputs.ndim > 1 else None


def check_derivable(mean: Mean, batch: tuple, batch_axis: int | None = None) -> None:
    """Raise ``InputError`` if no weight can be derived from a batch's loss and shapes."""
    if mean.over == "pair":
        return
    if mean.why_not:
        raise InputError(f"{mean.why_not}: what a micro-batch counts for is unknown; {_WORDS}")
    shapes = [tuple(part.shape) for part in batch if getattr(part, "shape", ())]
    labels = tuple(getattr(batch[-1], "shape", ()))
    known = mean.over != "unknown"
    if not known and len(labels) != 1:
        raise InputError(
            f"the labels have shape {labels} and the loss is not a known one: what its mean is "
            f"taken over is unknown; {_WORDS}"
        )
    if known and batch_axis is None and is_flattened(shapes):
        return
    if mean.over in ("labels", "rows"):
        # Tensors in between need not have an axis of rows: a causal mask (T, T), a graph's edges.
        batch = (*[part for part in batch[:-1] if getattr(part, "shape", ())][:1], batch[-1])
    try:
        rows = batch_rows(batch, batch_axis)
    except InputError as error:
        raise InputError(f"{error}; or else {_WORDS}") from None
    if not known and rows != labels[0]:
        raise InputError(
            f"the batch has {rows} rows and {labels[0]} labels, and the loss is not a known one: "
            f"what its mean is taken over is unknown; {_WORDS}"
        )


def batch_rows(batch: object, axis: int | None = None) -> int:
    """Return the number of rows of a batch of inputs, with the labels last.

    Args:
        batch: tensors or arrays, nested to any depth in tuples, lists or dicts; anything without
            axes (a number, a scalar tensor) is ignored.
        axis: None: axis 0 indexes the rows and must have the same size in every tensor, so that
            labels (B,) with time-major inputs (T, B, D) are refused, not taken for T rows. A
            number: that axis of the first tensor indexes the rows, whatever the shapes in between.

    Raises:
        InputError: if the tensors disagree (the message gives their shapes), no tensor has an
            axis, the first tensor does not have the given axis, or the labels do not fit it: they
            have one axis, not a multiple of the number of rows (k labels per row, flattened), or
            several, of which neither ``axis`` nor axis 0 has that size.
    """
    shapes = [tuple(leaf.shape) for leaf in leaves(batch) if getattr(leaf, "shape", ())]
    text = ", ".join(map(str, shapes))
    if not shapes:
        raise InputError("the batch holds no tensor with an axis; expected inputs and labels")
    if axis is None:
        rows = shapes[-1][0]
        if any(shape[0] != rows for shape in shapes):
            raise InputError(
                f"the batch's tensors disagree on its number of rows: their shapes are {text}; "
                "expected the same axis 0 in all, or batch_axis, the axis that counts rows (1 for "
                "time-major inputs)"
            )
        return rows
    axis = integer("batch_axis", axis, 0)
    first, labels = shapes[0], shapes[-1]
    if axis >= len(first):
        raise InputError(
            f"batch_axis: expected an axis of the batch's first tensor, {first}, got {axis}"
        )
    rows = first[axis]
    if len(labels) == 1:
        fits = labels[0] % rows == 0 if rows else labels[0] == 0
    else:
        fits = rows in (labels[0], *labels[axis : axis + 1])
    if not fits:
        raise InputError(
            f"labels: expected {rows} rows, as the first tensor has at batch_axis {axis}, got a "
            f"batch of shapes {text}"
        )
    return rows


def leaves(batch: object) -> list:
    """Return the leaves of tuples, lists and dicts nested to any depth, in order."""
    if isinstance(batch, dict):
        batch = tuple(batch.values())
    if not isinstance(batch, tuple | list):
        return [batch]
    return [leaf for part in batch for leaf in leaves(part)]


def is_flattened(shapes: Shapes) -> bool:
    """Return whether labels (B T,) belong to inputs (B, T, ...), these axes flattened into one."""
    if not shapes or len(shapes[-1]) != 1 or len(shapes[0]) < 2:
        return False
    return shapes[-1] != shapes[0][:1] and shapes[-1][0] in np.cumprod(shapes[0])[1:]


def _dtype(tensor: Tensor) -> type:
    return mstype.dtype_to_nptype(tensor.dtype)
