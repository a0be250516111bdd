"""40 snapshots of ResNet-50, 25.6 million weights: time to read them and to compute a basis.

    python benchmarks/subspace.py [--folder FOLDER] [--rounds 5]

32 components; from the page cache and from the disk; also the peak of anonymous memory. FOLDER
holds the snapshots during the run (4.1 GB; by default the system's temporary folder).
"""

import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from side_by_side import Target, in_child, look_at_machine, write_results

from labkit.base.arguments import Parser

SNAPSHOTS, COMPONENTS = 40, 32
READINGS, MEMORY = 3.0, 4  # limits: multiples of the reading time; snapshots beside the basis
PART = 1 << 18  # numbers that are read at a time, over all snapshots: 1 MB
CACHED, COLD = "from the page cache", "from the disk"


def main():
    """Measure in separate children and print; as a child, do one part and print a line of JSON."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--rounds", default="5")
    parser.add_argument("--child", nargs="+")
    options = parser.parse_args()
    if options.child:
        name, *arguments = options.child
        print(json.dumps(globals()[name](*arguments)))
        return
    machine = look_at_machine()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        in_child(__file__, "--child", "write", folder)
        taken = in_child(__file__, "--child", "times", folder, options.rounds)
        peak = in_child(__file__, "--child", "memory", folder)
    snapshot = taken["weights"] * 4 / 1e6
    beside = peak["peak_mb"] / snapshot - COMPONENTS
    print(f"snapshots of {snapshot:.0f} MB; {peak}; {taken}")
    targets = [
        Target(f"basis over reading once, {where}", each["basis"] / each["reading"], READINGS)
        for where, each in taken["seconds"].items()
    ]
    targets.append(Target("memory beside the basis, in snapshots", beside, MEMORY))
    write_results("subspace", {**taken, **peak}, machine, targets)


def write(folder):
    """Write snapshots of a random walk of ResNet-50 in which every weight moves in every step."""
    from mindspore import Tensor

    from labkit.algorithms.subspace.snapshots import write_snapshot
    from labkit.nets.resnet import resnet50

    random, weights = np.random.default_rng(0), resnet50().trainable_params()
    for number in range(SNAPSHOTS):
        for weight in weights:
            move = 0.01 * random.standard_normal(weight.shape, dtype=np.float32)
            weight.set_data(Tensor(weight.asnumpy() + move))
        write_snapshot(Path(folder) / f"step-{number:09d}.safetensors", weights)
    return {}


def times(folder, rounds):
    """Return the median seconds of the readings and of the basis, timed in turn."""
    from labkit.algorithms.subspace.components import principal_components
    from labkit.algorithms.subspace.snapshots import SnapshotFolder
    from labkit.nets.resnet import resnet50

    snapshots = SnapshotFolder(folder, resnet50())
    part = np.empty((len(snapshots), PART // len(snapshots)), np.float32)
    matrices = {}

    def read():
        for start in range(0, snapshots.size, part.shape[1]):
            snapshots.read(start, part[:, : min(part.shape[1], snapshots.size - start)])

    def basis():
        matrices["matrix"] = principal_components(snapshots, COMPONENTS)[0]

    calls = {"reading": read, "basis": basis}
    taken = {where: {name: [] for name in calls} for where in (CACHED, COLD)}
    read()  # into the page cache
    for _ in range(int(rounds)):
        for where, by_name in taken.items():
            for name, call in calls.items():
                matrices.clear()  # two bases at once would take 6.5 GB
                # So that all start alike: on a virtual machine the first touch of memory that
                # the host has reclaimed is slow, 14 s for a basis, against 0.9 s right after.
                np.empty(COMPONENTS * snapshots.size * 4, np.uint8).fill(1)
                for path in snapshots.paths if where == COLD else ():
                    with open(path, "rb") as file:
                        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                begin = time.perf_counter()
                call()
                by_name[name].append(time.perf_counter() - begin)
    return {
        "weights": snapshots.size,
        "seconds": {
            where: {name: statistics.median(values) for name, values in by_name.items()}
            for where, by_name in taken.items()
        },
    }


def memory(folder):
    """Return the anonymous memory in MB before a basis is computed, and the peak during it."""
    from labkit.algorithms.subspace import Basis
    from labkit.labs.measure import Peak, anonymous_mb
    from labkit.nets.resnet import resnet50

    network = resnet50()
    before = anonymous_mb()
    with Peak() as peak:
        basis = Basis.of(folder, network, COMPONENTS)
    assert basis.matrix.any()
    return {"before_mb": before, "peak_mb": peak.value}


if __name__ == "__main__":
    main()
