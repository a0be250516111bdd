"""Start a program on local ranks and read what each of them has written."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from labkit import launch

SECONDS = 600


def rank_results(out, *program, root, ranks=2):
    """Run a program on ranks, in folder ``out``, where it writes rank<n>.npz; return each's arrays.

    It fails if a rank fails or hangs.
    """
    options = {"cwd": out, "log_dir": out / "log", "env": {"PYTHONPATH": str(root)}}
    launch(*program, workers=ranks, timeout=SECONDS, cluster_timeout=120, **options)
    return [dict(np.load(out / f"rank{rank}.npz")) for rank in range(ranks)]


class Launches:
    """A program that writes rank<n>.npz, launched on each of several numbers of ranks.

    Two launches run at a time, from construction on: half of a launch is ranks waiting for others.
    """

    def __init__(self, program, sizes: Sequence[int], root, folder):
        def launched(size):
            out = folder / f"ranks{size}"
            out.mkdir()
            return rank_results(out, program, out, root=root, ranks=size)

        pool = ThreadPoolExecutor(2)
        self._launched = {size: pool.submit(launched, size) for size in sizes}
        pool.shutdown(wait=False)

    def __call__(self, size):
        """Return the arrays of each rank; fail if a rank fails, hangs or stays behind."""
        return self._launched[size].result()
