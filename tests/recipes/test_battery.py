"""What every recipe does: its command trains, describes, resumes and evaluates."""

import json
import re
import shutil
from contextlib import ExitStack

import pytest
from mindspore import load_checkpoint, load_param_into_net, nn
from mindspore.train import Model, RunContext
from mindspore.train.callback import _InternalCallbackParam

from labkit.errors import InputError
from labkit.nets import resnet
from labkit.recipes import training
from labkit.recipes.__main__ import main
from labkit.recipes.training import build_loss, datasets, load
from labkit.training.evaluation import evaluate
from labkit.training.records import read_records
from tests.support.recipes import NAMES, SETTINGS, arrays, newest, recipe, settings
from tests.support.step_cells import assert_bit_equal

pytestmark = pytest.mark.usefixtures("runtime", "small")

# Updates in an epoch of 4 micro-batches.
UPDATES = dict.fromkeys(NAMES, 4) | {"adasum": 2, "accumulation": 2}
of_every_recipe = pytest.mark.parametrize("name", NAMES)
SLOW = ("thor", "adasum", "accumulation")
LONG = [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in NAMES]
LOSS = {
    "thor": r"epoch: {} step: 4, loss is \d\.\d+",
    "adasum": r"epoch: {} step: 2 loss is \d\.\d+",
    "subspace-1": r"epoch: {} step: 4 loss is  \d\.\d+",
    "subspace-2": r"epoch: {} step: 4 loss is  \d\.\d+",
}
# The tutorial's folder of a device, which has logs, and in it that of its checkpoints.
TREES = {
    "resnet50": ("", ".", "resnet-2_4.ckpt resnet-3_4.ckpt"),
    "thor": ("train_parallel0", "ckpt_0", "resnet-1_4.ckpt resnet-2_4.ckpt"),
    "adasum": ("device0", ".", ""),
    "subspace-1": ("device0_stage_1", "checkpoint_stage_1", "resnet-2_4.ckpt resnet-3_4.ckpt"),
    "subspace-2": ("device0_stage_2", "checkpoint_stage_2", "resnet-1_4.ckpt resnet-2_4.ckpt"),
}


@of_every_recipe
def test_the_run_folder_says_what_was_trained(trained, name):
    out = trained(name).out
    config = json.loads((out / name / "config.json").read_text())
    expected = json.loads(json.dumps(vars(settings(name, out))))
    assert config == expected | {"class_num": expected["class_num"] or 10}
    assert json.loads((out / name / "classes.json").read_text()) == list("0123456789")
    records = read_records(out / name / "records.csv")
    assert len(records) == expected["epoch_size"] * UPDATES[name]
    assert set(records.column("images")) == {40 // UPDATES[name]}
    kept = min(expected["keep_checkpoint_max"], expected["epoch_size"])
    assert len(list((out / name / "checkpoint").iterdir())) == kept


@pytest.mark.parametrize("name", TREES)
def test_the_tutorials_folders_and_log(trained, name):
    device, inner, names = TREES[name]
    run = trained(name).out / name
    files = {path.relative_to(run) for path in (run / device).rglob("*") if path.is_file()}
    own = {path for path in files if path.suffix in (".ckpt", ".log")}
    assert {run / path for path in own if path.suffix == ".ckpt"} == {
        run / device / inner / path for path in names.split()
    }
    logs = {f"{device}/env.log", f"{device}/train.log"} if device else set()
    assert {str(path) for path in own if path.suffix == ".log"} == logs
    if device:
        log = (run / device / "train.log").read_text()
        assert trained(name).printed.endswith(log)
        assert log.startswith(
            "============== Starting Training ==============\n" * (name != "thor")
        )
        assert len(re.findall("^epoch: ", log, re.M)) == SETTINGS[name]["epoch_size"]


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
    now = _InternalCallbackParam()
    now.update(epoch_num=3, batch_num=4, network=nn.Dense(2, 1))
    with ExitStack() as held:
        callback = training.Documents(recipe(name), config, ["0", "1"], 1, 4, held)
        callback.on_train_begin(RunContext(now))
        for epoch in (1, 3):
            now.update(cur_epoch_num=epoch)
            callback.on_train_epoch_end(RunContext(now))
        print("said by rank 1: Möwe \udcff")
    folder = tmp_path / name / recipe(name).tree.device.format(device or 1)
    written = {path.name for path in folder.iterdir()}
    assert written == {"env.log", "train.log"} | ({"ckpt_0"} if writes else set())
    # In UTF-8, and what is not a character does not end the training.
    assert (folder / "train.log").read_bytes() == "said by rank 1: Möwe \\udcff\n".encode()
    assert [path.name for path in folder.rglob("*.ckpt")] == ["resnet-3_4.ckpt"] * writes
    known = (folder / "env.log").read_text()
    assert f"DEVICE_ID={device}\n" in known and "TOKEN" not in known


def test_on_gpu_ranks_share_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(training.ms, "get_context", lambda name: "GPU")
    config = settings("thor", tmp_path)
    callback = training.Documents(recipe("thor"), config, [], 5, 4, ExitStack())
    assert callback.checkpoints == tmp_path / "thor/train_parallel/ckpt_5" and callback.writes


@of_every_recipe
def test_settings_losses_and_figures_are_printed(trained, name):
    """The losses are printed once per epoch, as in the tutorial."""
    out, printed = trained(name).out, trained(name).printed
    images = 40 // UPDATES[name]
    start = f"labkit: ResNet-18 into {out / name}, {images} images in an update\n  batch_size "
    assert start in printed
    summary = r"^labkit: top_1_accuracy 0\.\d{4}, top_5_accuracy [01]\.\d{4}, loss \d\.\d{4}, "
    assert len(re.findall(summary + str(out / name), printed, re.M)) == 1
    if name in LOSS:
        lines = [line for line in printed.splitlines() if line.startswith("epoch:")]
        assert len(lines) == SETTINGS[name]["epoch_size"]
        for epoch, line in enumerate(lines, 1):
            assert re.fullmatch(LOSS[name].format(epoch), line), line
        times = re.findall(r"Train epoch time: .* ms, per step time: .* ms", printed)
        assert len(times) == len(lines)
    if name == "adasum":
        assert "labkit: adasum over 2 workers (2 virtual), on updates, by layer" in printed
    if name.startswith("subspace"):  # around its losses, with the accuracy that is also returned
        title, testing, accuracy = re.findall("^=====.*", printed, re.M)
        assert printed.index(title) < printed.index(lines[0])
        assert printed.index(lines[-1]) < printed.index(testing) < printed.index(accuracy)
        assert testing == "============== Starting Testing =============="
        number = re.fullmatch(r"=+ \{'Accuracy': (\d\.\d+)\} =+", accuracy)[1]
        assert f"labkit: top_1_accuracy {float(number):.4f}," in printed


@pytest.mark.parametrize("name", LONG)
def test_a_resumed_training_is_the_uninterrupted_one(trained, data, tmp_path, name):
    """The resumed training may write elsewhere and more or less often."""
    shutil.copytree(trained(name).out, tmp_path, dirs_exist_ok=True)
    path, last = tmp_path / name / "config.json", newest(tmp_path / name)
    whole = arrays(last)
    last.unlink()
    last = 4 * SETTINGS[name]["epoch_size"]
    changed = {"save_checkpoint_steps": last - 1, "keep_checkpoint_max": 9}
    config = settings(name, tmp_path, save_checkpoint_epochs=2, **changed)
    result = recipe(name).train(config, data, device="CPU", resume=True)
    assert len(result.records) == SETTINGS[name]["epoch_size"] * UPDATES[name]
    assert_bit_equal(arrays(newest(tmp_path / name)), whole)
    steps = [int(each.stem[-9:]) for each in (tmp_path / name / "checkpoint").iterdir()]
    assert sorted(steps)[-3:] == [last - 4, last - 1, last]
    assert json.loads(path.read_text())["keep_checkpoint_max"] == 9


@of_every_recipe
def test_a_checkpoint_is_evaluated_as_after_its_training(trained, data, capsys, name):
    path = newest(trained(name).out / name)
    given = ["--dataset_path", str(data), "--checkpoint_path", str(path), "--device_target", "CPU"]
    assert main(["eval", name, *given], "labkit") == 0
    lines, printed = (
        [line for line in text.splitlines() if line.startswith("labkit: top_1_acc")]
        for text in (capsys.readouterr().out, trained(name).printed)
    )
    out = str(trained(name).out / name)
    assert lines == [printed[0].replace(out, str(path))] and len(printed) == 1


@pytest.mark.parametrize("name", ["accumulation", pytest.param("thor", marks=pytest.mark.long)])
def test_a_training_in_float16_is_evaluated_in_float32_as_its_checkpoint(data, tmp_path, name):
    """THOR also writes a checkpoint where its tutorial does."""
    config = settings(name, tmp_path, precision="O2", epoch_size=1)
    evaluation = recipe(name).train(config, data, device="CPU").evaluation
    paths = [newest(tmp_path / name), *(tmp_path / name).rglob("*.ckpt")]
    assert len(paths) == (2 if name == "thor" else 1)
    for path in paths:
        assert recipe(name).evaluate_checkpoint(config, data, path, device="CPU") == evaluation


@pytest.mark.parametrize("tree", [("ilsvrc", "ilsvrc_eval"), ("train", "validation_preprocess")])
def test_the_tutorials_trees(trained, data, tmp_path, tree):
    for ours, theirs in zip(("train", "val"), tree, strict=True):
        (tmp_path / theirs).symlink_to(data / ours)
    config, path = settings("thor", trained("thor").out), newest(trained("thor").out / "thor")
    ours, theirs = (
        recipe("thor").evaluate_checkpoint(config, folder, path, device="CPU")
        for folder in (data, tmp_path)
    )
    assert ours == theirs
    # The tutorial's text says validation_preprocess, its code val: one of them.
    (tmp_path / "val").symlink_to(data / "val")
    held = ", ".join(sorted(path.name for path in tmp_path.iterdir()))
    with pytest.raises(InputError, match=f"holds {held}; expected train/ and val/"):
        datasets(config, tmp_path, 0, 1)


def test_the_loss_of_other_data_is_plain_cross_entropy(trained, data):
    """With label_smooth_factor 0 it is SoftmaxCrossEntropyWithLogits."""
    out, path = trained("thor").out, newest(trained("thor").out / "thor")
    config, network = settings("thor", out, label_smooth_factor=0.0), resnet.resnet(18, 12)
    loss = recipe("thor").evaluate_checkpoint(config, data, path, device="CPU")["loss"]
    _, val_set, classes = datasets(config, data, 0, 1, only_evaluate=True)
    load(network, path, classes)
    plain = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    assert loss == pytest.approx(evaluate(network, plain, val_set)["loss"], rel=1e-5)
    assert f"loss {loss:.4f}" not in trained("thor").printed


def test_thors_checkpoints_and_evaluation_are_the_tutorials(trained, data, capsys):
    """They are evaluated as in the tutorial's eval.py: load_checkpoint, load_param_into_net,
    Model.eval."""
    out, printed = trained("thor").out, trained("thor").printed
    path = str(out / "thor/train_parallel0/ckpt_0/resnet-2_4.ckpt")
    config, network = settings("thor", out), resnet.resnet(18, 12)
    missing, _ = load_param_into_net(network, load_checkpoint(path))
    assert missing == []
    network.set_train(False)
    _, val_set, _ = datasets(config, data, 0, 1, only_evaluate=True)
    metrics = {"top_1_accuracy", "top_5_accuracy"}
    model = Model(network, metrics=metrics, loss_fn=build_loss(config))
    ours = recipe("thor").evaluate_checkpoint(config, data, path, device="CPU")
    for name, value in model.eval(val_set).items():
        assert ours[name] == pytest.approx(value)
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("result:")]
    number = r"([01]\.\d+)"
    form = rf"result: {{'top_5_accuracy': {number}, 'top_1_accuracy': {number}}} ckpt={path}"
    top_5, top_1 = map(float, re.fullmatch(form, line).groups())
    assert f"labkit: top_1_accuracy {top_1:.4f}, top_5_accuracy {top_5:.4f}" in printed


@of_every_recipe
def test_an_earlier_training_is_never_overwritten(trained, data, name):
    out = trained(name).out
    before = {p: p.read_bytes() for p in (out / name).rglob("*") if p.is_file()}
    with pytest.raises(InputError, match="holds (snapshots of )?an earlier training"):
        recipe(name).train(settings(name, out, seed=7), data, device="CPU")
    assert {p: p.read_bytes() for p in (out / name).rglob("*") if p.is_file()} == before
