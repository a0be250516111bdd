"""MindSpore's two words for a basis: a file of it, or the folder of the first stage's snapshots."""

from collections.abc import Callable
from pathlib import Path

from labkit.algorithms.subspace import basis_files
from labkit.algorithms.subspace.basis import Basis, Parameters, basis_of
from labkit.algorithms.subspace.snapshot_files import snapshot_paths
from labkit.algorithms.subspace.snapshot_folder import SnapshotFolder
from labkit.base.arguments import names_checked, wrong
from labkit.errors import InputError
from labkit.ranks.cluster import gather, rank_and_size

_NAME = "pca_mat.npy"  # of a basis beside its snapshots


@names_checked
def basis_from(
    path: str | Path | None,
    snapshots: str | Path | None,
    parameters: Parameters,
    components: int,
    report: Callable[[str], None] = print,
) -> Basis:
    """Return the basis in a file, or of a folder of snapshots: MindSpore's two words for it.

    Over ranks, the first one makes it.

    Args:
        path: pca_mat_path. A file that is there is loaded and nothing computed, whether or not its
            snapshots are still there; one that is not there is made. None: pca_mat.npy beside
            the snapshots, made again where it is of others.
        snapshots: weight_load_dir, a folder of snapshots, or None.
        parameters: what the basis must be of.
        components: K.
        report: called with a sentence on what was done, on the first rank.

    Raises:
        InputError: when there is nothing to load and nothing to make it of, for a basis of another
            network or size, and as ``basis_of``.
    """
    there = path is not None and Path(path).exists()
    # As the first rank sees it: a slower one may find the file that the first has just made, load
    # it, and leave the first waiting for it in basis_of.
    there = bool(gather([float(there)])[0, 0])
    if not there:
        if snapshots is None:
            raise InputError(
                f"dim_reduce needs weights to make its basis of: weight_load_dir is None, and "
                f"pca_mat_path {path} is no file; expected the folder of the first stage's "
                "snapshots, or a basis"
            )
        return basis_of(path or Path(snapshots) / _NAME, snapshots, parameters, components, report)
    if path is None:
        raise InputError(
            "pca_mat_path is None on this rank, and a basis on the first; expected one"
        )
    basis = Basis.load(path, parameters)
    if len(basis.matrix) != components:
        rows = len(basis.matrix)
        raise wrong("n_components", components, f"{rows}, the number in the basis in {path}")
    if rank_and_size()[0] == 0:
        others = _other_snapshots(basis, snapshots, parameters)
        if basis_files.is_bare(path):
            others = "; no .json describes it: its columns are taken in the parameters' order"
        report(f"labkit: basis loaded from {path}, nothing computed{others}")
    return basis


def _other_snapshots(basis: Basis, folder: str | Path | None, parameters: Parameters) -> str:
    """A remark where a folder holds snapshots that a loaded basis is not of, else ''."""
    if folder is None or not snapshot_paths(Path(folder)):
        return ""
    try:
        reason = basis.difference(SnapshotFolder(folder, parameters))
    except InputError as error:
        reason = str(error)
    return f", though {folder} holds other snapshots ({reason})" if reason else ""
