"""Ranks: how many were started, what each of them holds, and whether they hold the same.

A rank is one process of a distributed training (one device each). ``labkit.start`` with
``distribute=True`` joins them; from then on, what gathers or agrees must be called on every rank.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from labkit.errors import InputError

if TYPE_CHECKING:  # the doctor must start where NumPy does not
    import numpy as np

# Variables with the number of ranks: of msrun and the source documents' scripts, msrun, mpirun.
SIZES = ("RANK_SIZE", "MS_WORKER_NUM", "OMPI_COMM_WORLD_SIZE")
RANKS_HERE = "LOCAL_WORLD_SIZE"  # ranks of this machine; torchrun's name, set by labkit.launch
_TEXT = 1000  # bytes of an error message that the other ranks receive


def ranks_started() -> int:
    """Return the number of ranks in this process's environment; 1 if there is none."""
    for name in SIZES:
        if os.environ.get(name):
            return environment_number(name, low=1)
    return 1


def environment_number(name: str, low: int = 0) -> int:
    """Return a set environment variable as an int; raise ``InputError`` unless >= ``low``."""
    text = os.environ[name]
    if not (text.isascii() and text.isdigit()) or int(text) < low:
        raise InputError(f"the environment has {name}={text!r}; expected a number >= {low}")
    return int(text)


def joined() -> bool:
    """Return whether this process has joined others (or itself alone, as a cluster of one)."""
    from mindspore.communication import GlobalComm

    return bool(GlobalComm.INITED)


def rank_and_size() -> tuple[int, int]:
    """Return this rank and the number of ranks; (0, 1) in a process that has not joined others."""
    if not joined():
        return 0, 1
    from mindspore.communication import get_group_size, get_rank

    return get_rank(), get_group_size()


def gather(values: Iterable[float]) -> np.ndarray:
    """Return the ``values`` of all ranks, (ranks, n) float64, bit-exact; (n,) on each rank."""
    import numpy as np

    own = np.ascontiguousarray(values, np.float64)
    return np.ascontiguousarray(gather_bytes(own.tobytes())).view(np.float64)


def agree(**values: object) -> None:
    """Raise ``InputError`` on every rank unless each of ``values``, as text, is the same on all."""
    rank, ranks = rank_and_size()
    if ranks == 1:
        return
    for name, value in values.items():
        gathered = gather_bytes(hashlib.sha256(str(value).encode()).digest())
        if others := [other for other in range(ranks) if (gathered[other] != gathered[0]).any()]:
            raise InputError(
                f"rank {others[0]} differs from rank 0 in {name} ({value} on this rank, {rank}); "
                "expected the same on all ranks"
            )


@contextmanager
def together() -> Iterator[None]:
    """Make ranks fail together: if one raises in the block, all others raise ``InputError``.

    Each waits at the end of the block for all others: nothing in it may wait for another rank.
    """
    refusal: Exception | None = None
    try:
        yield
    except OSError as error:
        refusal = InputError(f"the system refused: {error}")
        refusal.__cause__ = error
    except Exception as error:
        refusal = error
    own = "" if refusal is None else str(refusal) or type(refusal).__name__
    texts = gather_bytes(own.encode(errors="replace")[:_TEXT].ljust(_TEXT, b"\0"))
    if refusal is not None:
        raise refusal
    for rank, text in enumerate(texts):
        if message := bytes(text).rstrip(b"\0").decode(errors="replace"):
            raise InputError(f"rank {rank}: {message}")


def gather_bytes(data: bytes) -> np.ndarray:
    """Return the ``data`` of all ranks, (ranks, n) uint8; it has n bytes on every rank."""
    import numpy as np

    own = np.frombuffer(data, np.uint8)
    _, ranks = rank_and_size()
    if ranks == 1:
        return own[None]
    from mindspore import Tensor, ops

    # Collectives on CPU support neither integers nor float64: each float32, which holds all
    # integers up to 2^24, carries two bytes.
    pairs = np.append(own, np.zeros(len(own) % 2, np.uint8)).view(np.uint16)
    gathered = ops.AllGather()(Tensor(pairs.astype(np.float32))).asnumpy().astype(np.uint16)
    return gathered.view(np.uint8).reshape(ranks, 2 * len(pairs))[:, : len(own)]


def take_from_first(parameters: Iterable) -> None:
    """Set Parameters, float32 or counts up to 2**53, to the first rank's values on every rank.

    BatchNorm's running statistics are of each rank's own images; evaluation must use the same ones.
    """
    from mindspore import Tensor, ops

    rank, ranks = rank_and_size()
    for parameter in parameters if ranks > 1 else ():
        first = gather(parameter.asnumpy().ravel())[0]
        if rank:
            ops.assign(parameter, Tensor(first.reshape(parameter.shape), parameter.dtype))


def digest(cell: Any) -> str:
    """Return the SHA-256 of the names and bytes of all Parameters of ``cell``."""
    digest = hashlib.sha256()
    for parameter in sorted(cell.get_parameters(), key=lambda parameter: parameter.name):
        digest.update(parameter.name.encode() + parameter.asnumpy().tobytes())
    return digest.hexdigest()
