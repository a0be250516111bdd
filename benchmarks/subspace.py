"""Dimension reduction: what its parts take, each beside what it is held against.

    python benchmarks/subspace.py [--part basis] [--folder FOLDER] [--rounds 3]

basis  40 snapshots of ResNet-50, 25.6 million weights: reading them once against computing a basis
       of 32 components, from the page cache and from the disk, and the peak of anonymous memory.
       FOLDER holds the snapshots while it runs (4.1 GB; the system's temporary one by default)
"""

import argparse
from pathlib import Path

import _subspace_basis
from _side_by_side import look_at_machine, write_json

# name -> function of the arguments that prints its table and returns what it has found
PARTS = {"basis": _subspace_basis.measure}


def main():
    """Measure the parts that were asked for, all by default."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    machine = look_at_machine()
    found = {part: PARTS[part](given) for part in given.part or PARTS}
    write_json("subspace", found, machine)


if __name__ == "__main__":
    main()
