"""MindSpore's dataset cache for evaluation: a separate server keeps the preprocessed images."""

import mindspore.dataset as ds

from labkit.base.arguments import integer
from labkit.data.imagefiles import ImageFolder
from labkit.errors import InputError


def open_cache(session_id: int, folder: ImageFolder) -> ds.DatasetCache:
    """Return the cache of a session, after checking that the server has the session.

    The server is given by MS_CACHE_HOST and MS_CACHE_PORT as they were when MindSpore was imported.
    Files that change after they were cached are returned in their old state; changed files need a
    new session.

    Raises:
        InputError: if the session or the server does not exist.
    """
    session_id = integer("cache_session_id", session_id, at_least=0)
    try:
        cache = ds.DatasetCache(session_id=session_id, size=0)
        # MindSpore looks for the session only when rows are read: reading one file takes 40 ms,
        # and a missing session fails here.
        probe = ds.ImageFolderDataset(
            str(folder.path), sampler=ds.SequentialSampler(0, 1), cache=cache
        )
        next(probe.create_tuple_iterator(num_epochs=1, output_numpy=True))
        return ds.DatasetCache(session_id=session_id, size=0)
    except (ValueError, RuntimeError) as error:
        # MindSpore's reason is one line among headings and source locations.
        reason = str(error).rpartition("Error Message'.")[2].rpartition("[ERROR] ")[2]
        line = reason.strip().partition("\n")[0]
        raise InputError(
            "cache_session_id: expected the number that `dataset-cache --generate_session` prints, "
            f"after `dataset-cache --start`, got {session_id} ({line})"
        ) from error
