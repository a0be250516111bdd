"""The two stages of dimension reduction: snapshots, basis, start, and what reaches the steps."""

import shutil

import numpy as np
import pytest
from mindspore import nn
from safetensors.numpy import load_file

from labkit.algorithms.subspace import search
from labkit.algorithms.subspace.basis import Basis
from labkit.algorithms.subspace.snapshots import SnapshotFolder
from labkit.nets import resnet
from labkit.recipes import subspace
from tests.support.recipes import arrays, built, newest, settings
from tests.support.step_cells import assert_bit_equal

pytestmark = pytest.mark.usefixtures("runtime", "small")

STAGE_1, STAGE_2 = "subspace-1", "subspace-2"
CHECKPOINTS = "subspace-1/device0_stage_1/checkpoint_stage_1"


@pytest.fixture
def stages(trained):
    """The folder that contains both run folders."""
    return trained(STAGE_2).out


@pytest.fixture
def snapshots(stages):
    return stages / CHECKPOINTS / "checkpoint_pca"


def test_snapshots_are_the_newest_and_the_last_is_the_end(stages, snapshots):
    network = resnet.resnet(18, 12)
    folder = SnapshotFolder(snapshots, network)
    names, last = [path.name for path in folder.paths], folder.load(-1)
    # Two per epoch of 4 steps: after steps 2, 4, .. 12; the first has been removed.
    assert names == [f"step-{2 * n:09d}.safetensors" for n in range(2, 7)]
    end = arrays(newest(stages / STAGE_1))
    assert last.keys() == {p.name for p in network.trainable_params()}
    assert_bit_equal(last, {name: end[name] for name in last})


def test_it_starts_where_the_first_stage_has_ended(trained, stages, snapshots, tmp_path):
    """Its snapshots are beside the checkpoint, or else in stage_1."""
    last = newest(stages / STAGE_1)
    assert f"labkit: starts from {last}\n" in trained(STAGE_2).printed
    assert subspace.pretrained(settings(STAGE_2, stages)) == last
    moved = shutil.copy(last, tmp_path / "alone.ckpt")
    for folder, given in ((stages, None), (tmp_path, str(last)), (stages, str(moved))):
        config = settings(STAGE_2, folder, pretrained_weight_path=given)
        assert subspace.snapshot_folder(config) == snapshots


def basis_and_step(config, path):
    """Return the basis in a file, and the second stage's step, whose basis must be that."""
    step = built(STAGE_2, config, 4)
    basis = Basis.load(path, step.gradient.loss_net.network.trainable_params())
    assert step.settings["basis"] == basis.checksum
    return basis.matrix, step


def test_the_basis_is_kept_and_loaded_again(stages, snapshots, tmp_path, monkeypatch):
    """With a saved basis, the tutorial's third argument, nothing is computed."""
    path = snapshots / "pca_mat.safetensors"
    config, kept = settings(STAGE_2, stages), path.read_bytes()
    monkeypatch.setattr(Basis, "of", lambda *a, **o: pytest.fail("computed again"))
    matrix, step = basis_and_step(config, path)
    assert path.read_bytes() == kept
    assert matrix.shape == (3, sum(p.size for p in step.optimizer.parameters))
    # Elsewhere it needs no snapshots.
    saved, start = tmp_path / "pca_mat.npy", newest(stages / STAGE_1)
    np.save(saved, load_file(path)["matrix"])
    given = {"pretrained_weight_path": str(start), "pca_mat_path": str(saved)}
    basis_and_step(settings(STAGE_2, tmp_path, **given), saved)


def test_the_weights_move_by_search_and_residual(stages, snapshots):
    start, end = (arrays(newest(stages / stage)) for stage in (STAGE_1, STAGE_2))
    names = [p.name for p in resnet.resnet(18, 12).trainable_params()]
    moved = np.concatenate([(end[name] - start[name]).ravel() for name in names])
    basis = load_file(snapshots / "pca_mat.safetensors")["matrix"]
    inside = basis.T @ (basis @ moved)
    # The residual's rate is a thousandth: measured 0.017. If a loss scale of 1024 stayed in the
    # residual, as in MindSpore, nearly the whole move would lie outside.
    outside = np.linalg.norm(moved - inside) / np.linalg.norm(moved)
    assert 0.001 < outside < 0.1, outside


def test_settings_reach_the_second_stages_step(stages):
    changed = dict(rho=0.3, sigma=0.2, trials=7, gamma=0.5, alpha=0.02, failure="rollback")
    more = dict(loss_scale=64, learning_rate=0.5, weight_decay=0.25)
    step = built(STAGE_2, settings(STAGE_2, stages, **more, **changed), 4)
    assert step.update.constants == search.Constants(**changed)
    assert float(step.gradient.loss_scale.asnumpy()) == 64 and step.micro_batches == 1
    assert isinstance(step.optimizer, nn.SGD) and step.last_update.learning_rate == (0.5,)
    decays = {float(decay.asnumpy()) for decay in step.optimizer.weight_decay}
    assert decays == {0.25, 0.0}


def test_a_checkpoint_is_the_whole_state_and_the_second_stages_start(stages, tmp_path):
    """It does not need the files of the run folder itself."""
    first = shutil.copytree(stages / CHECKPOINTS, tmp_path / "checkpoint_stage_1")
    path = first / "resnet-3_4.ckpt"
    assert_bit_equal(arrays(path), arrays(newest(stages / STAGE_1)))
    config = settings(STAGE_2, tmp_path, pretrained_weight_path=str(path), n_components=2)
    matrix, _ = basis_and_step(config, first / "checkpoint_pca/pca_mat.safetensors")
    assert len(matrix) == 2
