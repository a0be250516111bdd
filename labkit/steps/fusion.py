"""Gradient fusion by index: which gradients go over the network in one message.

``all_reduce_fusion_config=(85, 160)``, the name and numbers of MindSpore's
``set_auto_parallel_context``, are the indices, from 0, of the last gradient of each message; those
behind the last index are one more message. Of ResNet-50's 161 gradients that makes 0 .. 85 and
86 .. 160; of 162 it would make three messages.

MindSpore fuses its own AllReduce of ``DistributedGradReducer``, and reads the indices while it
compiles that; the steps here sum over ranks themselves, and fuse themselves. A fused sum is that of
single gradients, bit by bit on two ranks; on more, the order in which an AllReduce adds, and so the
rounding, may depend on where in its message a number is. While a message is under way its
gradients are in memory twice.
"""

from collections.abc import Callable

from mindspore import ops

from labkit.errors import InputError


def message_ends(indices: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Return for each message the index behind its last gradient; the last is ``count``.

    Args:
        indices: of the last gradient of each message, checked by ``GradientOptions``.
        count: of gradients, one for each trained Parameter.

    Raises:
        InputError: for an index of no gradient.
    """
    if indices[-1] >= count:
        raise InputError(
            f"all_reduce_fusion_config: expected indices below {count}, the number of gradients, "
            f"got {list(indices)}"
        )
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
    """Return the parts of ``messages``, in the shapes of ``values``: ``joined`` undone."""
    parts: tuple = ()
    start = 0
    for message, end in zip(messages, ends):  # noqa: B905, a graph knows no strict=
        first = 0
        for value in values[start:end]:
            # Slices: ops.split nests a call for each part, and a graph takes 1000.
            parts += (ops.reshape(message[first : first + value.size], value.shape),)
            first += value.size
        start = end
    return parts


def summed_in_order(all_reduce: Callable, values: tuple) -> tuple:
    """Return each value's sum over ranks, one after the other.

    The order must be the same on all ranks, and a graph promises none to nodes that do not depend
    on each other: of four ranks on two cores, one added its loss to a second one's factor.
    """
    sums: tuple = ()
    last = values[0]
    for value in values:
        last = all_reduce(ops.depend(value, last))
        sums += (last,)
    return sums
