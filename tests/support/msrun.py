"""Start a program on local ranks and read all their logs, however it ends."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from labkit import launch
from labkit.errors import WorkerFailed

SECONDS = 600


def msrun(out, *program, root, ranks=2):
    """Run a program on two or more ranks, in folder ``out``; return (exit code, logs' ends).

    The exit code is 1 where a rank failed; one that hangs raises.
    """
    if program[0] == "python":
        program = program[1:]
    code, env = 0, {"PYTHONPATH": str(root)}
    options = {"cwd": out, "log_dir": out / "log", "cluster_timeout": 120, "env": env}
    try:
        launch(*program, workers=ranks, timeout=SECONDS, **options)
    except TimeoutError:
        raise
    except WorkerFailed:
        code = 1
    return code, "\n".join(log.read_text(errors="replace")[-3000:] for log in out.rglob("*.log"))


class Launches:
    """A program that writes rank<n>.npz, launched on each of several numbers of ranks.

    Two launches at once, from when this is made: half of a launch is waiting for each other.
    """

    def __init__(self, program, sizes: Sequence[int], root, folder):
        self._program, self._root, self._folder = program, root, folder
        pool = ThreadPoolExecutor(2)
        self._found = {size: pool.submit(self._launch, size) for size in sizes}
        pool.shutdown(wait=False)

    def __call__(self, size):
        """Return what each rank has written; fails where one fails, hangs or stays behind."""
        return self._found[size].result()

    def _launch(self, size):
        out = self._folder / f"ranks{size}"
        out.mkdir()
        code, logs = msrun(out, self._program, out, root=self._root, ranks=size)
        assert code == 0, logs
        return [dict(np.load(out / f"rank{rank}.npz")) for rank in range(size)]
