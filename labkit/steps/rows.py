"""How many rows (samples) a batch holds: what its inputs and its labels agree on."""

from labkit.base.arguments import integer
from labkit.errors import InputError


def batch_rows(batch: object, axis: int | None = None) -> int:
    """Return the number of rows of a batch: inputs, labels last.

    Args:
        batch: tensors or arrays, in tuples, lists or dicts of any depth; anything without axes (a
            number, a scalar tensor) does not count.
        axis: None: axis 0 counts rows, and must be of one size in every tensor; so labels (B,)
            beside time-major inputs (T, B, D) are refused, and not taken for T rows. A number: that
            axis of the first tensor counts rows, whatever the tensors in between look like.

    Raises:
        InputError: naming the shapes, where the tensors disagree, for a batch without a tensor that
            has an axis, for an axis that the first tensor has not, and where the labels do not fit
            the axis: they have one axis that is no multiple of the rows (k labels a row,
            flattened), or several of which neither ``axis`` nor axis 0 counts the rows.
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
            f"batch_axis is {axis}, and the batch's first tensor has shape {first}; expected one "
            "of its axes"
        )
    rows = first[axis]
    if len(labels) == 1:
        fits = labels[0] % rows == 0 if rows else labels[0] == 0
    else:
        fits = rows in (labels[0], *labels[axis : axis + 1])
    if not fits:
        raise InputError(
            f"batch_axis is {axis}, {rows} rows, and the batch's shapes are {text}; expected "
            f"labels of {rows} rows"
        )
    return rows


def leaves(batch: object) -> list:
    """Return what is in tuples, lists and dicts of any depth, in order."""
    if isinstance(batch, dict):
        batch = tuple(batch.values())
    if not isinstance(batch, tuple | list):
        return [batch]
    return [leaf for part in batch for leaf in leaves(part)]
