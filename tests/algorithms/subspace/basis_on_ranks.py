"""What each rank runs in test_basis_on_ranks.py: ``msrun ... basis_on_ranks.py OUT``.

Writes OUT/rank<n>.json: what each call of ``basis_of`` gave this rank.
"""

import json
import sys
from pathlib import Path

from labkit import start
from labkit.algorithms.subspace import basis_of
from labkit.errors import InputError
from labkit.ranks import cluster


def main(out):
    start("CPU", seed=1, distribute=True)
    rank, ranks = cluster.rank_and_size()
    found = {"ranks": ranks}
    for call in ("made", "loaded"):
        basis = basis_of(out / "pca_mat.npy", out / "snapshots", None, 3)
        found[call] = basis.checksum
    try:
        basis_of(out / "other.npy", out / "snapshots", None, 7)
    except InputError as error:
        found["refused"] = str(error)
    (out / f"rank{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
