"""What a recipe writes into its run folder: the tutorials' folders, names and logs."""

from contextlib import ExitStack

import pytest
from mindspore import nn
from mindspore.train import RunContext
from mindspore.train.callback import _InternalCallbackParam

from labkit.recipes import recipe, training
from tests.support.recipes import settings

pytestmark = pytest.mark.usefixtures("runtime", "small")


@pytest.mark.parametrize(
    ("name", "writes", "device"), [("subspace-1", False, "3"), ("thor", True, "")]
)
def test_another_ranks_device(tmp_path, monkeypatch, name, writes, device):
    """The device's folder has a log; only THOR's tutorial saves a checkpoint on every device.

    The last epoch is always saved, whatever the interval. An empty DEVICE_ID counts as not set.
    """
    monkeypatch.setenv("DEVICE_ID", device)
    monkeypatch.setenv("SECRET_TOKEN", "no log's business")
    config = settings(name, tmp_path, save_checkpoint_epochs=2)
    network = nn.Dense(2, 1)
    network.optimizer = nn.SGD(network.trainable_params(), 0.1)
    now = _InternalCallbackParam()
    now.update(epoch_num=3, batch_num=4, network=network)
    context = RunContext(now)
    with ExitStack() as held:
        callback = training.Documents(recipe(name), config, ["0", "1"], 1, 4, held)
        callback.on_train_begin(context)
        for epoch in (1, 3):
            now.update(cur_epoch_num=epoch)
            callback.on_train_epoch_end(context)
        print("said by rank 1: Möwe \udcff")
    folder = tmp_path / name / recipe(name).tree.device.format(device or 1)
    written = {path.name for path in folder.iterdir()}
    assert written == {"env.log", "train.log"} | ({"ckpt_0"} if writes else set())
    # In UTF-8, and what is not a character does not end the training.
    said = "said by rank 1: Möwe \\udcff\n"
    assert (folder / "train.log").read_bytes() == said.encode()
    assert [path.name for path in folder.rglob("*.ckpt")] == ["resnet-3_4.ckpt"] * writes
    said = (folder / "env.log").read_text()
    assert f"DEVICE_ID={device}\n" in said and "TOKEN" not in said


def test_on_gpu_ranks_share_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(training.ms, "get_context", lambda name: "GPU")
    config = settings("thor", tmp_path)
    callback = training.Documents(recipe("thor"), config, [], 5, 4, ExitStack())
    assert callback.checkpoints == tmp_path / "thor/train_parallel/ckpt_5" and callback.writes
