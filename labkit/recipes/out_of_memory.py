"""Advice that is added to MindSpore's own error when a device runs out of memory."""

import contextlib
from collections.abc import Iterator

# MindSpore 2.10 on CPU says "Memory isn't enough and alloc failed", r1.6 on a device
# "Device(id:0) memory isn't enough and alloc failed"; the others are Ascend's and the allocators'.
_PHRASES = (
    "memory isn't enough",
    "memory not enough",
    "out of memory",
    "malloc device memory failed",
    "allocate memory failed",
    "alloc failed",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that a device or a process has run out of memory."""
    text = str(error).lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    return isinstance(error, MemoryError) or any(phrase in text for phrase in _PHRASES)


@contextlib.contextmanager
def advice(batch_size: int, micro_steps: int) -> Iterator[None]:
    """Add advice to an out-of-memory error, which is otherwise raised unchanged.

    A traceback shows the advice below the error (``__notes__``).

    Args:
        batch_size: images in a micro-batch.
        micro_steps: micro-batches in an update.
    """
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            error.add_note(_advice(batch_size, micro_steps))
        raise


def _advice(batch_size: int, micro_steps: int) -> str:
    text = f"labkit: memory was not enough for micro-batches of {batch_size} images."
    if batch_size == 1:
        return f"{text} The batch is already 1; reduce image_size or depth."
    parts = next(k for k in range(2, batch_size + 1) if batch_size % k == 0)
    return (
        f"{text} A smaller batch_size needs less: --set batch_size={batch_size // 2} (half the "
        f"images in an update). Or --set batch_size={batch_size // parts} --set "
        f"micro_steps={micro_steps * parts}: {batch_size * micro_steps} images in an update as "
        "before, the same update but for BatchNorm, which sees micro-batches."
    )
