"""layout="documents": the tutorials' folders, names and logs, beside the run folder's own."""

import io
import json
import sys

import numpy as np
import pytest
from mindspore import nn
from mindspore.train import RunContext
from mindspore.train.callback import _InternalCallbackParam

from labkit.algorithms.subspace.snapshot_folder import SnapshotFolder
from labkit.errors import InputError
from labkit.recipes import documents, run_folder, thor
from labkit.training import checkpoint
from tests.support.recipes import newest, recipe, settings

pytestmark = pytest.mark.usefixtures("runtime", "small")


def names(folder):
    return {path.name for path in folder.iterdir()}


@pytest.fixture(scope="module")
def stages(data, tmp_path_factory):
    """Both stages in the tutorial's layout: the second starts from the first one's files."""
    out = tmp_path_factory.mktemp("documents")
    # The last epoch has a checkpoint whatever the distance between them.
    changed = {"layout": "documents", "save_checkpoint_epochs": 2}
    config = settings("subspace_stage_1", out, **changed)
    recipe("subspace_stage_1").train(config, data, device="CPU")
    first = out / "subspace_stage_1/device0_stage_1/checkpoint_stage_1"
    changed = {"layout": "documents", "pretrained_weight_path": str(first / "resnet-3_4.ckpt")}
    for name in ("checkpoint_pca", "checkpoint"):  # the second stage must do without them
        (out / "subspace_stage_1" / name).rename(out / name)
    config = settings("subspace_stage_2", out, **changed, n_components=2)
    recipe("subspace_stage_2").train(config, data, device="CPU")
    return out


class TestDimensionReduction:
    def test_the_first_stages_files(self, stages):
        folder = stages / "subspace_stage_1/device0_stage_1"
        assert names(folder) == {"checkpoint_stage_1", "env.log", "train.log"}
        expected = {"checkpoint_pca", "resnet-2_4.ckpt", "resnet-3_4.ckpt"}
        assert names(folder / "checkpoint_stage_1") == expected
        snapshots = {path.name for path in folder.rglob("checkpoint_pca/*.ckpt")}
        assert snapshots == {f"resnet-{epoch}_4.ckpt" for epoch in (1, 2, 3)}

    def test_a_checkpoint_is_the_whole_state_and_a_snapshot_the_trainable_weights(self, stages):
        folder = stages / "subspace_stage_1/device0_stage_1/checkpoint_stage_1"
        own = checkpoint.read(sorted((stages / "checkpoint").iterdir())[-1])
        theirs = checkpoint.read(folder / "resnet-3_4.ckpt")
        assert own.keys() - theirs.keys() == {"labkit_position"}
        for name, value in theirs.items():
            np.testing.assert_array_equal(value.asnumpy(), own[name].asnumpy(), name)
        ours = SnapshotFolder(stages / "checkpoint_pca")
        with SnapshotFolder(folder / "checkpoint_pca") as snapshots, ours:
            assert snapshots.described == ours.described
            last, expected = snapshots.load(-1 % len(snapshots)), ours.load(len(ours) - 1)
        for name, value in expected.items():
            np.testing.assert_array_equal(last[name], value)

    def test_the_log_is_what_was_printed(self, stages):
        lines = (stages / "subspace_stage_1/device0_stage_1/train.log").read_text().splitlines()
        assert lines[0] == "============== Starting Training =============="
        assert [line[:21] for line in lines if line.startswith("epoch: ")] == [
            f"epoch: {epoch} step: 4 loss" for epoch in (1, 2, 3)
        ]
        assert any(line.startswith("============== {'Accuracy': ") for line in lines)
        assert lines[-1].startswith("labkit: top_1_accuracy ")
        assert not isinstance(sys.stdout, documents._Both)

    def test_the_second_stage_starts_from_them(self, stages):
        folder = stages / "subspace_stage_2/device0_stage_2"
        assert names(folder) == {"checkpoint_stage_2", "env.log", "train.log"}
        assert names(folder / "checkpoint_stage_2") == {"resnet-1_4.ckpt", "resnet-2_4.ckpt"}
        pca = stages / "subspace_stage_1/device0_stage_1/checkpoint_stage_1/checkpoint_pca"
        assert {"pca_mat.npy", "pca_mat.json"} < names(pca)


@pytest.mark.slow
def test_thors_and_adasums(data, tmp_path, monkeypatch):
    monkeypatch.setenv("DEVICE_ID", "3")
    monkeypatch.setenv("SECRET_TOKEN", "no log's business")
    for name in ("thor", "adasum"):
        recipe(name).train(settings(name, tmp_path, layout="documents"), data, device="CPU")
    folder = tmp_path / "thor/train_parallel3"
    assert names(folder) == {"ckpt_0", "env.log", "train.log"}
    assert names(folder / "ckpt_0") == {"resnet-1_4.ckpt", "resnet-2_4.ckpt"}
    assert not (tmp_path / "thor/ckpt_0").exists()
    result = thor.evaluate_checkpoint(
        settings("thor", tmp_path), data, folder / "ckpt_0/resnet-2_4.ckpt", device="CPU"
    )
    own = newest(tmp_path / "thor")
    assert result == thor.evaluate_checkpoint(settings("thor", tmp_path), data, own, device="CPU")
    folder = tmp_path / "adasum/device3"
    assert names(folder) == {"env.log", "train.log"}
    assert "epoch: 2 step: 2 loss is " in (folder / "train.log").read_text()
    said = (folder / "env.log").read_text()
    assert "DEVICE_ID=3\n" in said and "TOKEN" not in said


@pytest.mark.parametrize(("name", "writes"), [("subspace_stage_1", False), ("thor", True)])
def test_another_ranks_device(tmp_path, name, writes):
    """Its folder has a log; only THOR's tutorial has a checkpoint of every device."""
    config = settings(name, tmp_path, layout="documents")
    log, (callback,) = documents.of(config, name, rank=1)
    network = nn.Dense(2, 1)
    network.optimizer = nn.SGD(network.trainable_params(), 0.1)
    now = _InternalCallbackParam()
    now.update(cur_epoch_num=3, epoch_num=3, batch_num=4, network=network)
    context = RunContext(now)
    with log:
        callback.on_train_begin(context)
        callback.on_train_epoch_end(context)
        print("said by rank 1")
    folder = tmp_path / name / documents.TREES[name].device.format(1)
    assert names(folder) == {"env.log", "train.log"} | ({"ckpt_0"} if writes else set())
    assert (folder / "train.log").read_text() == "said by rank 1\n"
    assert [path.name for path in folder.rglob("*.ckpt")] == ["resnet-3_4.ckpt"] * writes


def test_a_log_is_utf8_whatever_is_printed(tmp_path, monkeypatch):
    """A name that is no UTF-8 is spelled: it ends no training."""
    monkeypatch.setenv("MS_TEST", "\udcff")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    with documents.Log(tmp_path) as log:
        log.begin()
        print("Möwe \udcff")
    assert (tmp_path / "train.log").read_bytes() == "Möwe \\udcff\n".encode()
    assert "MS_TEST=\\udcff\n" in (tmp_path / "env.log").read_text()


@pytest.mark.parametrize(
    "place", ["resnet-2_4.ckpt", "checkpoint/F.ckpt", "train_parallel0/ckpt_0/resnet-2_4.ckpt"]
)
@pytest.mark.parametrize("layout", documents.LAYOUTS)
def test_the_run_folder_of_a_checkpoint(tmp_path, place, layout):
    """Another training's, which wrote no such file, is not meant."""
    path, own = tmp_path / "config.json", place.startswith("checkpoint/")
    path.write_text(json.dumps({"layout": layout}))
    beside = run_folder.beside(tmp_path / place, "config.json")
    assert beside == (path if own or layout == "documents" else None)
    path.write_text("[")  # of no recipe
    assert run_folder.beside(tmp_path / place, "config.json") == (path if own else None)


def test_on_gpu_ranks_share_a_folder():
    assert documents.tree("thor", "Ascend").device.format(5) == "train_parallel5"
    shared = documents.tree("thor", "GPU")
    assert shared.device.format(5) == "train_parallel"
    assert shared.checkpoints.format(rank=5) == "ckpt_5"


def test_of_the_accumulation_recipe_is_refused(data, tmp_path):
    config = settings("accumulation", tmp_path, layout="documents")
    with pytest.raises(InputError, match="layout: expected 'run': the tutorial of accumulation"):
        recipe("accumulation").train(config, data, device="CPU")
    assert list(tmp_path.iterdir()) == []
