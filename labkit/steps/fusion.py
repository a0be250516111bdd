"""Gradient fusion by index: which gradients are sent over the network in one message.

``all_reduce_fusion_config=(85, 160)``, with the name and numbers of MindSpore's
``set_auto_parallel_context``, lists the indices, from 0, of the last gradient of each message;
gradients after the last index form one more: ResNet-50's 161 are split into 0 .. 85 and 86 .. 160.
On two ranks a fused sum equals that of single gradients bit for bit; on more, rounding may depend
on the position of a number in its message. A message being sent has its gradients in memory twice.
"""

from collections.abc import Callable, Sequence

from mindspore import ops

from labkit.base.arguments import wrong


def message_ends(indices: Sequence[int] | None, count: int) -> tuple[int, ...]:
    """Return, for each message, the index after its last gradient; the last one is ``count``.

    ``indices`` are those of the last gradients, of ``count`` in all; None: no messages, ().
    """
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
    """Return the parts of ``messages`` in the shapes of ``values``: the inverse of ``joined``."""
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
    depend on each other: of four ranks on two cores, one added its loss to another rank's factor.
    """
    sums: tuple = ()
    last = values[0]
    for value in values:
        last = all_reduce(ops.depend(value, last))
        sums += (last,)
    return sums
