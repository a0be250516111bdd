"""layout="documents" adds the tutorials' folders, names and logs to the run folder."""

import io
import json
import sys

import pytest
from mindspore import nn
from mindspore.train import RunContext
from mindspore.train.callback import _InternalCallbackParam

from labkit.errors import InputError
from labkit.recipes import documents, run_folder
from tests.support.recipes import recipe, settings

pytestmark = pytest.mark.usefixtures("runtime", "small")


def names(folder):
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("name", "writes", "device"), [("subspace_stage_1", False, "3"), ("thor", True, "")]
)
def test_another_ranks_device(tmp_path, monkeypatch, name, writes, device):
    """The device's folder has a log; only THOR's tutorial saves a checkpoint on every device.

    The last epoch is always saved, whatever the interval. An empty DEVICE_ID counts as not set.
    """
    monkeypatch.setenv("DEVICE_ID", device)
    monkeypatch.setenv("SECRET_TOKEN", "no log's business")
    config = settings(name, tmp_path, layout="documents", save_checkpoint_epochs=2)
    log, (callback,) = documents.of(config, name, rank=1)
    network = nn.Dense(2, 1)
    network.optimizer = nn.SGD(network.trainable_params(), 0.1)
    now = _InternalCallbackParam()
    now.update(epoch_num=3, batch_num=4, network=network)
    context = RunContext(now)
    with log:
        callback.on_train_begin(context)
        for epoch in (1, 3):
            now.update(cur_epoch_num=epoch)
            callback.on_train_epoch_end(context)
        print("said by rank 1")
    assert not isinstance(sys.stdout, documents._Both)
    folder = tmp_path / name / documents.TREES[name].device.format(device or 1)
    assert names(folder) == {"env.log", "train.log"} | ({"ckpt_0"} if writes else set())
    assert (folder / "train.log").read_text() == "said by rank 1\n"
    assert [path.name for path in folder.rglob("*.ckpt")] == ["resnet-3_4.ckpt"] * writes
    said = (folder / "env.log").read_text()
    assert f"DEVICE_ID={device}\n" in said and "TOKEN" not in said


def test_a_log_is_utf8_whatever_is_printed(tmp_path, monkeypatch):
    """A name that is not UTF-8 is escaped, so that it does not end the training."""
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
    """The config.json of a training that wrote no such checkpoint is not returned."""
    path, own = tmp_path / "config.json", place.startswith("checkpoint/")
    path.write_text(json.dumps({"layout": layout}))
    beside = run_folder.beside(tmp_path / place, "config.json")
    assert beside == (path if own or layout == "documents" else None)
    path.write_text("[")  # not the config of a recipe
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
