"""MindSpore's two settings for a basis: its file, or the folder of the first stage's snapshots."""

from collections.abc import Callable
from pathlib import Path

from labkit.algorithms.subspace.basis import Basis, Parameters, basis_of
from labkit.base.arguments import wrong
from labkit.errors import InputError
from labkit.ranks.cluster import gather, rank_and_size

_NAME = "pca_mat.safetensors"  # file of a basis beside its snapshots


def basis_from(
    path: str | Path | None,
    snapshots: str | Path | None,
    parameters: Parameters,
    components: int,
    report: Callable[[str], None] = print,
) -> Basis:
    """Return the basis in a file, or that of a folder of snapshots, by MindSpore's settings.

    On several ranks, the first one computes it.

    Args:
        path: pca_mat_path, a ``.npy`` or ``.safetensors`` file. If it exists, it is loaded and
            nothing is computed; otherwise it is made. None: pca_mat.safetensors beside the
            snapshots, made again if it belongs to other snapshots.
        snapshots: weight_load_dir, a folder of snapshots, or None.
        parameters: parameters that the basis must belong to.
        components: K.
        report: called on the first rank with a sentence that says what was done.

    Raises:
        InputError: if there is neither a basis to load nor snapshots to compute it from, for a
            basis of a different network or size, and as ``basis_of`` does.
    """
    there = path is not None and Path(path).exists()
    # The first rank decides: a slower one may find the file that the first has just made, load it,
    # and leave the first waiting in basis_of.
    there = bool(gather([float(there)])[0, 0])
    if path is None or not there:
        if snapshots is None:
            raise InputError(
                f"dim_reduce needs weights to make its basis of: weight_load_dir is None, and "
                f"pca_mat_path {path} is not a file; expected the folder of the first stage's "
                "snapshots, or a basis"
            )
        return basis_of(path or Path(snapshots) / _NAME, snapshots, parameters, components, report)
    basis = Basis.load(path, parameters)
    if len(basis.matrix) != components:
        rows = len(basis.matrix)
        raise wrong("n_components", components, f"{rows}, the number in the basis in {path}")
    if rank_and_size()[0] == 0:
        report(f"labkit: basis loaded from {path}, nothing computed")
    return basis
