"""What a process that is killed while it writes a file leaves in the folder."""

import os
import time

from labkit.base import locks

DEAD = 2**30  # a PID that no process has


def left_over(folder, pid, hours=0.0, **changed):
    """Make a leftover in ``folder``, ``hours`` old; ``pid`` 0: of a labkit that notes no PID."""
    own = {**locks.owner(), "pid": pid, **changed}
    name = f".part-{pid}-{100 * own['created']:.0f}-{own['space']}-{own['boot']}-{own['host']}-abc"
    part = folder / (name if pid else ".part-abc")
    part.mkdir(parents=True)
    (part / "part.npy").write_bytes(b"half")
    for path in (part / "part.npy", part):
        os.utime(path, (time.time() - 3600 * hours,) * 2)
    return part
