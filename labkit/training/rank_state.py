"""Which rank writes a checkpoint, and what other ranks hold that differs from the writer's state.

After an update all ranks hold the same weights. What differs are BatchNorm's running statistics, a
dynamic loss scale, counters of dropped micro-batches, the sums of a partly gathered group, and, if
Adasum combines updates, the optimizer's moments: the checkpoint of the rank that writes holds these
of every rank.
"""

import hashlib
import os
import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from mindspore import Tensor, nn

from labkit.errors import InputError
from labkit.ranks import cluster

_NAME = re.compile(r"labkit_rank\.(\d+)\.(.*)", re.DOTALL)
_CHUNK = 2**24  # bytes that are gathered at once
_WORDS = {None: 0, True: 1, False: 2}


def writers(folder: str | os.PathLike | None, write: bool | None) -> list[int | None]:
    """Return for each rank the rank that writes its folder; None if no rank does.

    Call it on every rank.

    Args:
        folder: Folder of this rank, or None: the first rank that writes saves the state of a rank
            without a folder.
        write: Whether this rank writes it. None: of ranks with the same folder, the first writes.

    Raises:
        InputError: On all ranks, if two ranks of one machine have ``write=True`` for one folder.
    """
    path = b"" if folder is None else hashlib.sha256(os.fsencode(Path(folder).resolve())).digest()
    host = hashlib.sha256(socket.gethostname().encode()).digest()
    own = path.ljust(32, b"\0") + host + bytes([_WORDS[write]])
    rows = [bytes(row) for row in cluster.gather_bytes(own)]
    with_folder = [rank for rank, row in enumerate(rows) if any(row[:32])]
    insisting = [rank for rank in with_folder if rows[rank][64] == _WORDS[True]]
    willing = [rank for rank in with_folder if rows[rank][64] == _WORDS[None]]
    # By folder and host, and by folder alone for readers on other hosts.
    chosen: dict[bytes, int] = {}
    for rank in insisting:
        first = chosen.setdefault(rows[rank][:64], rank)
        if first != rank:
            raise InputError(
                f"ranks {first} and {rank} both have write=True for one folder ({folder} on this "
                "rank); expected write=None, or a folder for each"
            )
    for rank in insisting + willing:
        chosen.setdefault(rows[rank][:32], rank)
    lowest = min(chosen.values(), default=None)
    return [chosen.get(row[:64], chosen.get(row[:32])) if any(row[:32]) else lowest for row in rows]


def of_others(step: nn.Cell, writer_of: Sequence[int | None]) -> dict[str, Tensor]:
    """Return, on a rank that writes, name -> value of what differs on its readers.

    Call it on every rank, with the result of ``writers``; ranks that do not write get an empty
    dict.
    """
    rank, ranks = cluster.rank_and_size()
    readers = {
        other: writer
        for other, writer in enumerate(writer_of)
        if writer is not None and writer != other
    }
    if not readers:
        return {}
    parameters = list(step.get_parameters())
    arrays = [parameter.asnumpy() for parameter in parameters]
    own_digests = b"".join(hashlib.sha256(array.tobytes()).digest() for array in arrays)
    digests = cluster.gather_bytes(own_digests).reshape(ranks, len(arrays), 32)
    differ = {r: (digests[r] != digests[w]).any(axis=1) for r, w in readers.items()}
    sizes = np.array([array.nbytes for array in arrays])
    length = max(int(sizes[differ[reader]].sum()) for reader in readers)
    own = b""
    if rank in differ:
        own = b"".join(arrays[index].tobytes() for index in np.flatnonzero(differ[rank]))
    gathered = _gathered(own.ljust(length, b"\0"))
    values = {}
    for reader, writer in readers.items():
        if writer != rank:
            continue
        start = 0
        for index in np.flatnonzero(differ[reader]):
            data = gathered[reader][start : start + sizes[index]].tobytes()
            start += sizes[index]
            value = np.frombuffer(data, arrays[index].dtype).reshape(arrays[index].shape)
            values[f"labkit_rank.{reader}.{parameters[index].name}"] = Tensor(value.copy())
    return values


def own_name(name: str) -> str:
    """Return the name in a checkpoint of a value of this rank that differs from its writer's."""
    return f"labkit_rank.{cluster.rank_and_size()[0]}.{name}"


def of_this_rank(values: Mapping) -> dict:
    """Return the values of a checkpoint as this rank holds them, without those of other ranks."""
    rank = cluster.rank_and_size()[0]
    shared, own = {}, {}
    for name, value in values.items():
        if not (match := _NAME.fullmatch(name)):
            shared[name] = value
        elif int(match[1]) == rank:
            own[match[2]] = value
    return shared | own


def _gathered(data: bytes) -> np.ndarray:
    """Return the ``data`` of every rank, (ranks, n) uint8, gathered part by part."""
    parts = [data[start : start + _CHUNK] for start in range(0, len(data), _CHUNK)]
    nothing = np.zeros((cluster.rank_and_size()[1], 0), np.uint8)
    return np.concatenate([nothing, *(cluster.gather_bytes(part) for part in parts)], axis=1)
