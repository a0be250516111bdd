"""The two stages of dimension reduction: snapshots, basis, start, and what reaches the steps."""

import re
import shutil

import numpy as np
import pytest
from mindspore import nn
from safetensors.numpy import load_file

from labkit.algorithms.subspace import search
from labkit.algorithms.subspace.basis import Basis
from labkit.algorithms.subspace.snapshots import SnapshotFolder
from labkit.errors import InputError
from labkit.nets import resnet
from labkit.recipes import subspace
from labkit.recipes.parts import build_network, datasets
from labkit.recipes.subspace import StageOneConfig
from labkit.steps import schedules
from labkit.steps.step import PlainStep
from tests.support.recipes import arrays, newest, rates_of, settings
from tests.support.step_cells import assert_bit_equal

pytestmark = pytest.mark.usefixtures("runtime", "small")

STAGE_1, STAGE_2 = "subspace-1", "subspace-2"
SNAPSHOTS = "subspace-1/device0_stage_1/checkpoint_stage_1/checkpoint_pca"


@pytest.fixture
def stages(trained):
    """The folder that contains both run folders."""
    return trained(STAGE_2).out


@pytest.mark.parametrize("stage", [STAGE_1, STAGE_2])
def test_what_is_printed_is_the_tutorials(trained, stage):
    """Its lines come in its order, with the accuracy that is also returned."""
    printed = trained(stage).printed.splitlines()
    lines = [line for line in printed if line.startswith("=====")]
    starts = [f"============== Starting {x} ==============" for x in ("Training", "Testing")]
    assert lines[:2] == starts
    accuracy = re.fullmatch(r"=+ \{'Accuracy': (\d\.\d+)\} =+", lines[2])
    (summary,) = [line for line in printed if "top_1_accuracy" in line]
    assert len(lines) == 3 and f"top_1_accuracy {float(accuracy[1]):.4f}" in summary
    losses = [number for number, line in enumerate(printed) if line.startswith("epoch:")]
    assert printed.index(lines[0]) < losses[0] and losses[-1] < printed.index(lines[1])


class TestFirstStage:
    def test_snapshots_are_the_newest_and_the_last_is_the_end(self, stages):
        network = resnet.resnet(18, 12)
        folder = SnapshotFolder(stages / SNAPSHOTS, network)
        names, last = [path.name for path in folder.paths], folder.load(-1)
        # Two per epoch of 4 steps: after steps 2, 4, .. 12; the first has been removed.
        assert names == [f"step-{2 * n:09d}.safetensors" for n in range(2, 7)]
        end = arrays(newest(stages / STAGE_1))
        assert last.keys() == {p.name for p in network.trainable_params()}
        for name, value in last.items():
            np.testing.assert_array_equal(value, end[name], err_msg=name)

    def test_settings_reach_the_step_and_its_rate_stops_where_it_is(self):
        """After 70 of the schedule's 90 epochs the rate is 0.188."""
        config = StageOneConfig(depth=18)
        step = subspace.STAGE_1.build_step(config, build_network(config), 5)
        rates = rates_of(step)
        np.testing.assert_array_equal(rates, schedules.get_lr(0, 0, 0.8, 5, 90, 5))
        assert rates[70 * 5] == pytest.approx(0.188, abs=5e-4) and type(step) is PlainStep
        step.check_length(70 * 5)


class TestStart:
    def test_it_is_where_the_first_stage_has_ended(self, trained, tmp_path):
        """Its snapshots are beside the checkpoint, or else in stage_1."""
        out, last = trained(STAGE_2).out, newest(trained(STAGE_2).out / STAGE_1)
        assert f"labkit: starts from {last}\n" in trained(STAGE_2).printed
        assert subspace.pretrained(settings(STAGE_2, out)) == last
        moved = shutil.copy(last, tmp_path / "alone.ckpt")
        for folder, given in ((out, None), (tmp_path, str(last)), (out, str(moved))):
            config = settings(STAGE_2, folder, pretrained_weight_path=given)
            assert subspace.snapshot_folder(config) == out / SNAPSHOTS

    def test_no_checkpoint_to_start_from(self, data, tmp_path):
        with pytest.raises(InputError, match="subspace-1 holds no checkpoint; expected stage_1 to"):
            subspace.STAGE_2.train(settings(STAGE_2, tmp_path), data, device="CPU")
        config = settings(STAGE_2, tmp_path, pretrained_weight_path=str(tmp_path / "no.ckpt"))
        with pytest.raises(InputError, match=r"no checkpoint at .*no\.ckpt"):
            subspace.STAGE_2.train(config, data, device="CPU")
        assert list(tmp_path.iterdir()) == []


def basis_and_step(config, path):
    """Return the basis in a file, and the second stage's step, whose basis must be that."""
    network = build_network(config)
    step = subspace.STAGE_2.build_step(config, network, 4)
    basis = Basis.load(path, network.trainable_params())
    assert step.settings["basis"] == basis.checksum
    return basis.matrix, step


class TestSecondStage:
    def test_the_basis_is_kept_and_loaded_again(self, stages, tmp_path, monkeypatch):
        """With a saved basis, the tutorial's third argument, nothing is computed."""
        path = stages / SNAPSHOTS / "pca_mat.safetensors"
        config, kept = settings(STAGE_2, stages), path.read_bytes()
        monkeypatch.setattr(Basis, "of", lambda *a, **o: pytest.fail("computed again"))
        matrix, step = basis_and_step(config, path)
        assert path.read_bytes() == kept
        assert matrix.shape == (3, sum(p.size for p in step.optimizer.parameters))
        # Elsewhere it needs no snapshots.
        np.save(tmp_path / "pca_mat.npy", load_file(path)["matrix"])
        start = {"pretrained_weight_path": str(newest(stages / STAGE_1))}
        start["pca_mat_path"] = str(tmp_path / "pca_mat.npy")
        basis_and_step(settings(STAGE_2, tmp_path, **start), tmp_path / "pca_mat.npy")

    def test_the_weights_move_by_search_and_residual(self, stages):
        start, end = (arrays(newest(stages / stage)) for stage in (STAGE_1, STAGE_2))
        names = [p.name for p in resnet.resnet(18, 12).trainable_params()]
        moved = np.concatenate([(end[name] - start[name]).ravel() for name in names])
        basis = load_file(stages / SNAPSHOTS / "pca_mat.safetensors")["matrix"]
        inside = basis.T @ (basis @ moved)
        # The residual's rate is a thousandth: measured 0.017. If a loss scale of 1024 stayed in the
        # residual, as in MindSpore, nearly the whole move would lie outside.
        outside = np.linalg.norm(moved - inside) / np.linalg.norm(moved)
        assert 0.001 < outside < 0.1, outside

    def test_settings_reach_the_step(self, stages):
        changed = dict(rho=0.3, sigma=0.2, trials=7, gamma=0.5, alpha=0.02, failure="rollback")
        more = dict(loss_scale=64, learning_rate=0.5, weight_decay=0.25)
        config = settings(STAGE_2, stages, **more, **changed)
        step = subspace.STAGE_2.build_step(config, build_network(config), 4)
        assert step.update.constants == search.Constants(**changed)
        assert float(step.gradient.loss_scale.asnumpy()) == 64 and step.micro_batches == 1
        assert isinstance(step.optimizer, nn.SGD)
        assert step.last_update.learning_rate == (0.5,)
        decays = {float(decay.asnumpy()) for decay in step.optimizer.weight_decay}
        assert decays == {0.25, 0.0}


def names(folder):
    return {path.name for path in folder.iterdir()}


class TestDocuments:
    """The tutorial's folders, names and logs, in addition to those of the run folder."""

    def test_the_files_of_both_stages(self, trained, stages):
        kept = {1: {"checkpoint_pca", "resnet-2_4.ckpt", "resnet-3_4.ckpt"}}
        kept[2] = {"resnet-1_4.ckpt", "resnet-2_4.ckpt"}
        for number, stage in enumerate((STAGE_1, STAGE_2), 1):
            folder, inner = stages / stage / f"device0_stage_{number}", f"checkpoint_stage_{number}"
            assert names(folder) == {inner, "env.log", "train.log"}
            assert names(folder / inner) == kept[number]
            log = (folder / "train.log").read_text()
            assert log.startswith("============== Starting Training ==============\n")
            assert trained(stage).printed.endswith(log)

    def test_a_checkpoint_is_the_whole_state_and_the_second_stages_start(self, stages, tmp_path):
        """It does not need the files of the run folder itself."""
        first = tmp_path / "checkpoint_stage_1"
        shutil.copytree(stages / STAGE_1 / "device0_stage_1/checkpoint_stage_1", first)
        path = first / "resnet-3_4.ckpt"
        assert_bit_equal(arrays(path), arrays(newest(stages / STAGE_1)))
        config = settings(STAGE_2, tmp_path, pretrained_weight_path=str(path), n_components=2)
        matrix, _ = basis_and_step(config, first / "checkpoint_pca/pca_mat.safetensors")
        assert len(matrix) == 2


def test_the_folder_of_the_tutorials_text(data, tmp_path):
    """The tutorial's text says validation_preprocess, its code val: one of them."""
    for name, source in (("train", "train"), ("val", "val"), ("validation_preprocess", "val")):
        (tmp_path / name).symlink_to(data / source)
        if name != "val":
            held = ", ".join(sorted(names(tmp_path)))
            with pytest.raises(InputError, match=f"holds {held}; expected train/ and val/"):
                datasets(settings(STAGE_1, tmp_path), tmp_path, 0, 1)
