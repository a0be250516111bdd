"""40 snapshots of ResNet-50, 25.6 million weights: time to read them and to compute a basis.

    python benchmarks/subspace.py [--folder FOLDER] [--rounds 5]

32 components; from the page cache and from the disk; also the peak of anonymous memory. FOLDER
holds the snapshots during the run (4.1 GB; by default the system's temporary folder).
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from side_by_side import Target, in_child, look_at_machine, print_table, write_results

from labkit.base.command_line import Parser

SNAPSHOTS, COMPONENTS = 40, 32
READINGS, MEMORY = 3.0, 4  # limits: multiples of the reading time; snapshots beside the basis
PART = 1 << 18  # numbers that are read at a time, over all snapshots: 1 MB
CACHED, COLD = "from the page cache", "from the disk"
READ, LOAD, BASIS = "reading by parts, one thread", "safetensors' load_file", "basis"


def main():
    """Measure and print; as a child, do one part and print one line of JSON."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name, *arguments = options.child
        print(json.dumps({"write": write, "times": times, "memory": memory}[name](*arguments)))
        return
    machine = look_at_machine()
    basis = measure_basis(options.folder, options.rounds)
    targets = [
        Target(f"basis of {SNAPSHOTS} snapshots over reading them once, {where}", ratio, READINGS)
        for where, ratio in basis["ratios"].items()
    ]
    beside = basis["snapshots_beside_the_basis"]
    targets.append(Target("memory beside the basis, in snapshots", beside, MEMORY))
    write_results("subspace", {"basis": basis}, machine, targets)


def measure_basis(place, rounds) -> dict:
    """Write the snapshots, measure in separate children, print and return the figures."""
    with tempfile.TemporaryDirectory(dir=place) as folder:
        in_child(__file__, "--child", "write", folder)
        print("snapshots written", file=sys.stderr)
        times = in_child(__file__, "--child", "times", folder, str(rounds))
        print("times measured", file=sys.stderr)
        memory = in_child(__file__, "--child", "memory", folder)
    print(f"{SNAPSHOTS} snapshots of {times['weights'] / 1e6:.1f} million weights, ", end="")
    print(f"{COMPONENTS} components, {len(os.sched_getaffinity(0))} cores\n")
    rows, ratios = [], {}
    for where, seconds in times["seconds"].items():
        ratios[where] = seconds[BASIS] / seconds[READ]
        for name, taken in seconds.items():
            rows.append([f"{where}: {name}", taken, taken / seconds[READ]])
    print_table(["", "seconds", "/ reading"], rows)
    basis, snapshot = COMPONENTS * times["weights"] * 4 / 1e6, times["weights"] * 4 / 1e6
    over = (memory["peak_mb"] - basis) / snapshot
    print(
        f"\nanonymous memory: {memory['before_mb']:.0f} MB before, {memory['peak_mb']:.0f} MB at "
        f"the peak, the basis {basis:.0f} MB: {over:.2f} snapshots more in all"
    )
    print(f"largest entry of P P^T - I: {times['departure']:.1e}")
    return {**times, **memory, "ratios": ratios, "snapshots_beside_the_basis": over}


def write(folder):
    """Write snapshots of a random walk of ResNet-50 in which every weight moves in every step."""
    from labkit.algorithms.subspace.snapshots import write_snapshot
    from labkit.nets.resnet import resnet50

    class Weights:
        def __init__(self, parameter):
            self.name, self.value = parameter.name, parameter.asnumpy().copy()

        def asnumpy(self):
            return self.value

    random = np.random.default_rng(0)
    weights = [Weights(parameter) for parameter in resnet50().trainable_params()]
    for number in range(SNAPSHOTS):
        for weight in weights:
            weight.value += 0.01 * random.standard_normal(weight.value.shape, dtype=np.float32)
        write_snapshot(Path(folder) / f"step-{number:09d}.safetensors", weights)
    return {}


def times(folder, rounds):
    """Return the median seconds of the readings and of the basis, timed in turn."""
    from safetensors.numpy import load_file

    from labkit.algorithms.subspace.components import principal_components
    from labkit.algorithms.subspace.snapshot_folder import SnapshotFolder

    snapshots = SnapshotFolder(folder)
    part = np.empty((len(snapshots), PART // len(snapshots)), np.float32)
    matrices = {}

    def read():
        for start in range(0, snapshots.size, part.shape[1]):
            snapshots.read(start, part[:, : min(part.shape[1], snapshots.size - start)])

    def load():
        for path in snapshots.paths:
            load_file(path)

    def basis():
        matrices["matrix"] = principal_components(snapshots, COMPONENTS)[0]

    contestants = {READ: read, LOAD: load, BASIS: basis}
    taken = {where: {name: [] for name in contestants} for where in (CACHED, COLD)}
    with snapshots:
        read()  # into the page cache
        for _ in range(int(rounds)):
            for where, by_name in taken.items():
                for name, call in contestants.items():
                    matrices.clear()  # two bases at once would take 6.5 GB
                    give_memory(COMPONENTS * snapshots.size * 4)
                    if where == COLD:
                        forget(snapshots.paths)
                    begin = time.perf_counter()
                    call()
                    by_name[name].append(time.perf_counter() - begin)
    return {
        "weights": snapshots.size,
        "seconds": {
            where: {name: statistics.median(values) for name, values in by_name.items()}
            for where, by_name in taken.items()
        },
        "rounds": taken,
        "departure": departure(matrices["matrix"]),
    }


def give_memory(size):
    """Touch ``size`` bytes of memory and free them, so that all contestants start alike.

    On a virtual machine the first touch of memory that the host has reclaimed is slow: 14 s for a
    basis of 3.3 GB, against 0.9 s right after.
    """
    np.empty(size, np.uint8).fill(1)


def forget(paths):
    """Drop files from the page cache (their bytes are on the disk: each file was synced)."""
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def departure(matrix):
    """Return the largest entry of P P^T - I, in float64."""
    total, step = np.zeros((len(matrix), len(matrix))), 2**18
    for start in range(0, matrix.shape[1], step):
        part = matrix[:, start : start + step].astype(np.float64)
        total += part @ part.T
    return float(np.abs(total - np.eye(len(matrix))).max())


def memory(folder):
    """Return the anonymous memory in MB before a basis is computed, and the peak during it."""
    from labkit.algorithms.subspace import Basis
    from labkit.labs.measure import Peak, anonymous_mb

    before = anonymous_mb()
    with Peak() as peak:
        basis = Basis.of(folder, components=COMPONENTS)
    assert basis.matrix.any()
    return {"before_mb": before, "peak_mb": peak.value}


if __name__ == "__main__":
    main()
