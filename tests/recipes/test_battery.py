"""What every recipe does, what reaches its step, and the two stages of dimension reduction."""

import json
import re
import shutil
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
from mindspore import load_checkpoint, load_param_into_net, nn
from mindspore.train import Model, RunContext
from mindspore.train.callback import _InternalCallbackParam
from safetensors.numpy import load_file

from labkit.algorithms.subspace import search
from labkit.algorithms.subspace.basis import Basis
from labkit.algorithms.subspace.snapshots import SnapshotFolder
from labkit.data import idx
from labkit.errors import InputError
from labkit.nets import resnet
from labkit.recipes import recipe, subspace, training
from labkit.recipes.__main__ import main
from labkit.recipes.training import build_loss, datasets, load
from labkit.steps import schedules
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.step import PlainStep
from labkit.training.evaluation import evaluate
from labkit.training.records import read_records
from tests.support.data_archives import write_idx
from tests.support.recipes import NAMES, SETTINGS, arrays, built, newest, rates_of, settings
from tests.support.step_cells import assert_bit_equal

pytestmark = [
    pytest.mark.usefixtures("runtime", "small"),
    pytest.mark.filterwarnings("ignore:the network holds a trainable BatchNorm"),
]

STAGE_1, STAGE_2 = "subspace-1", "subspace-2"
# Updates in an epoch of 4 micro-batches.
UPDATES = dict.fromkeys(NAMES, 4) | {"adasum": 2, "accumulation": 2}
of_every_recipe = pytest.mark.parametrize("name", NAMES)
# test_resume.py resumes every step.
RESUMED = [pytest.param(n, marks=pytest.mark.long) if n == "thor" else n for n in NAMES]
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
    "accumulation": ("", ".", ""),
    "subspace-1": ("device0_stage_1", "checkpoint_stage_1", "resnet-2_4.ckpt resnet-3_4.ckpt"),
    "subspace-2": ("device0_stage_2", "checkpoint_stage_2", "resnet-1_4.ckpt resnet-2_4.ckpt"),
}


@of_every_recipe
def test_the_run_folder_says_what_was_trained(trained, name):
    run, expected = trained(name).folder, json.loads(json.dumps(vars(trained(name).config)))
    config = json.loads((run / "config.json").read_text())
    assert config == expected | {"class_num": expected["class_num"] or 10}
    assert json.loads((run / "classes.json").read_text()) == list("0123456789")
    records = read_records(run / "records.csv")
    assert len(records) == expected["epoch_size"] * UPDATES[name]
    assert set(records.column("images")) == {40 // UPDATES[name]}
    kept = min(expected["keep_checkpoint_max"], expected["epoch_size"])
    assert len(list((run / "checkpoint").iterdir())) == kept


@pytest.mark.parametrize("name", TREES)
def test_the_tutorials_folders_and_log(trained, name):
    device, inner, names = TREES[name]
    run = trained(name).folder
    checkpoints = {run / device / inner / path for path in names.split()}
    assert set(run.rglob("*.ckpt")) == checkpoints
    logs = {run / device / f"{log}.log" for log in ("env", "train") if device}
    assert set(run.rglob("*.log")) == logs
    if device:
        log = (run / device / "train.log").read_text()
        assert trained(name).printed.endswith(log)
        assert log.startswith("epoch" if name == "thor" else "============== Starting Training")
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
    run, printed = trained(name).folder, trained(name).printed
    images = 40 // UPDATES[name]
    assert f"labkit: ResNet-18 into {run}, {images} images in an update\n  batch_size " in printed
    summary = r"^labkit: top_1_accuracy 0\.\d{4}, top_5_accuracy [01]\.\d{4}, loss \d\.\d{4}, "
    assert len(re.findall(summary + str(run), printed, re.M)) == 1
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


@pytest.mark.parametrize("name", RESUMED)
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
    path = newest(trained(name).folder)
    given = ["--dataset_path", str(data), "--checkpoint_path", str(path), "--device_target", "CPU"]
    assert main(["eval", name, *given], "labkit") == 0
    (figures,) = re.findall("labkit: (top_1_acc.*), /", trained(name).printed)
    assert f"\nlabkit: {figures}, {path}\n" in "\n" + capsys.readouterr().out


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
    config, path = trained("thor").config, newest(trained("thor").folder)
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
    config = replace(trained("thor").config, label_smooth_factor=0.0)
    path, network = newest(trained("thor").folder), resnet.resnet(18, 12)
    loss = recipe("thor").evaluate_checkpoint(config, data, path, device="CPU")["loss"]
    _, val_set, classes = datasets(config, data, 0, 1, only_evaluate=True)
    load(network, path, classes)
    plain = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    assert loss == pytest.approx(evaluate(network, plain, val_set)["loss"], rel=1e-5)
    assert f"loss {loss:.4f}" not in trained("thor").printed


def test_thors_checkpoints_and_evaluation_are_the_tutorials(trained, data, capsys):
    """They are evaluated as in the tutorial's eval.py: load_checkpoint, load_param_into_net,
    Model.eval."""
    path = str(trained("thor").folder / "train_parallel0/ckpt_0/resnet-2_4.ckpt")
    config, network = trained("thor").config, resnet.resnet(18, 12)
    missing, _ = load_param_into_net(network, load_checkpoint(path))
    assert missing == []
    network.set_train(False)
    _, val_set, _ = datasets(config, data, 0, 1, only_evaluate=True)
    metrics = {"top_1_accuracy", "top_5_accuracy"}
    model = Model(network, metrics=metrics, loss_fn=build_loss(config))
    ours = recipe("thor").evaluate_checkpoint(config, data, path, device="CPU")
    for name, value in model.eval(val_set).items():
        assert ours[name] == pytest.approx(value)
    top_1, top_5 = ours["top_1_accuracy"], ours["top_5_accuracy"]
    line = f"result: {{'top_5_accuracy': {top_5}, 'top_1_accuracy': {top_1}}} ckpt={path}\n"
    assert line in capsys.readouterr().out
    figures = f"labkit: top_1_accuracy {top_1:.4f}, top_5_accuracy {top_5:.4f}"
    assert figures in trained("thor").printed


@of_every_recipe
def test_an_earlier_training_is_never_overwritten(trained, data, name):
    run, other = trained(name).folder, replace(trained(name).config, seed=7)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="holds (snapshots of )?an earlier training"):
        recipe(name).train(other, data, device="CPU")
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.fixture
def stages(trained):
    """The folder that contains both run folders."""
    return trained(STAGE_2).out


@pytest.fixture
def snapshots(stages):
    return stages / "subspace-1/device0_stage_1/checkpoint_stage_1/checkpoint_pca"


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


def test_a_checkpoint_is_the_whole_state_and_the_second_stages_start(stages, snapshots, tmp_path):
    """It does not need the files of the run folder itself."""
    first = shutil.copytree(snapshots.parent, tmp_path / "checkpoint_stage_1")
    path = first / "resnet-3_4.ckpt"
    assert_bit_equal(arrays(path), arrays(newest(stages / STAGE_1)))
    config = settings(STAGE_2, tmp_path, pretrained_weight_path=str(path), n_components=2)
    matrix, _ = basis_and_step(config, first / "checkpoint_pca/pca_mat.safetensors")
    assert len(matrix) == 2


def named(line, name, **changed):
    """A recipe's own settings, but for the small network."""
    return replace(recipe(line).named[name], depth=18, class_num=10, **changed)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "subspace-2"])
def test_optimizer_and_options_are_those_of_the_settings(name, tmp_path):
    """Only weights decay, except in THOR's tutorial, whose filter excludes no parameter."""
    given = dict(momentum=0.5, weight_decay=0.25, loss_scale=64, precision="O2", micro_steps=1)
    step = built(name, settings(name, tmp_path, class_num=10, **given), 3)
    optimizer = step.optimizer
    assert isinstance(optimizer, nn.Momentum) and float(optimizer.momentum.asnumpy()) == 0.5
    trained = [p.name for p in step.gradient.loss_net.network.trainable_params()]
    assert [p.name for p in optimizer.parameters] == trained
    for parameter, decay in zip(optimizer.parameters, optimizer.weight_decay, strict=True):
        decays = parameter.ndim > 1 or name == "thor"
        assert float(decay.asnumpy()) == (0.25 if decays else 0.0), parameter.name
    assert float(step.gradient.loss_scale.asnumpy()) == 64 and step.gradient.checked
    assert step.settings["precision"] == "O2"


RATES = {
    "resnet50": lambda updates: schedules.cosine(0.05, 0, 3, updates, 1),
    "thor": lambda updates: schedules.get_thor_lr(0, 0.02, 4.0839, 3, updates, decay_epochs=39),
    "subspace-1": lambda updates: schedules.get_lr(0, 0, 0.05, 1, 4, updates),
}


@pytest.mark.parametrize("micro_steps", [1, 4])
@pytest.mark.parametrize("name", RATES)
def test_a_schedule_counts_updates(name, micro_steps, tmp_path):
    config = settings(name, tmp_path, class_num=10, micro_steps=micro_steps)
    step = built(name, config, 9)
    assert type(step) is (PlainStep if micro_steps == 1 else AccumulatedStep)
    updates = 9 if micro_steps == 1 else 3
    np.testing.assert_array_equal(rates_of(step), RATES[name](updates))


def test_thors_dampings_are_the_schedules():
    changed = dict(epoch_size=2, lr_end_epoch=4, decay_epochs=1, frequency=7)
    step = built("thor", named("thor", "ascend", **changed), 3)
    assert step.update.options.frequency == 7
    expected = schedules.get_thor_damping(0, 0.03, 0.50036, 70, 3)[:6]
    np.testing.assert_allclose(step.update.options.damping[:6], expected, rtol=1e-6)


def test_the_first_stages_rate_stops_where_it_is():
    """After 70 of the schedule's 90 epochs the rate is 0.188."""
    step = built("subspace-1", named("subspace-1", "tutorial"), 5)
    rates = rates_of(step)
    np.testing.assert_array_equal(rates, schedules.get_lr(0, 0, 0.8, 5, 90, 5))
    assert rates[70 * 5] == pytest.approx(0.188, abs=5e-4)
    step.check_length(70 * 5)


@pytest.mark.parametrize(
    ("changed", "updates"),
    [
        ({"node_size": 1}, 5),
        ({"node_size": 1, "tail": "drop"}, 4),
        ({"node_size": 2}, 3),
        ({"node_size": 1, "micro_steps": 4}, 2),
        ({"node_size": 8, "tail": "drop"}, 1),
    ],
)
def test_adasums_rates_are_the_schedules_of_updates(changed, updates):
    config = named("adasum", "servers", precision="O0", workers=2, **changed)
    step = built("adasum", config, 9)
    rates = rates_of(step)
    np.testing.assert_array_equal(rates, schedules.get_lr(0, 0, 0.8, 5, 90, updates))
    if changed["node_size"] != 8:
        assert step.updates_ahead([9] * 90) == len(rates)
    assert step.total_workers == 2 and step.tail == changed.get("tail", "flush")


def test_accumulation_trains_lenet_and_is_evaluated(mnist, tmp_path, capsys):
    """30 updates of 4 micro-batches of 50 images; the first 1000 test images."""
    for usage, rows in {"train": 6000, "test": 1000}.items():
        files = sorted((mnist / usage).iterdir())
        (tmp_path / usage).mkdir()
        for path, array in zip(files, idx.read_pair(*files), strict=True):
            write_idx(tmp_path / usage / path.name, array[:rows])
    given = ["accumulation", "--data_path", str(tmp_path), "--device_target", "CPU"]
    options = "--epoch_size 1 --batch_size 50 --learning_rate 0.1 --save_checkpoint_path"
    assert main(["train", *given, *options.split(), f"{tmp_path}/run"], "labkit") == 0
    assert len((tmp_path / "run/records.csv").read_text().splitlines()) == 1 + 30
    capsys.readouterr()
    path = str(newest(tmp_path / "run"))
    assert main(["eval", *given, "--checkpoint_path", path], "labkit") == 0
    shown = re.search(r"top_1_accuracy ([\d.]+), .* loss ([\d.]+), ", capsys.readouterr().out)
    # The most frequent digit is 0.126 of the images; the loss of an untrained network is 2.3026.
    assert float(shown[1]) >= 0.126 and float(shown[2]) < 2.3026


def test_ranks_share_the_images_of_mnist(mnist):
    config = replace(recipe("accumulation").named["tutorial"], batch_size=500)
    sizes, evaluated = [], 0
    for rank in range(3):
        train, val, names = datasets(config, mnist, rank, 3)
        sizes.append(train.get_dataset_size())
        evaluated += sum(len(labels) for _, labels in val.create_tuple_iterator(num_epochs=1))
    assert names == tuple("0123456789")
    assert sizes == [60000 // 3 // 500] * 3 and evaluated == 10000


def test_the_source_of_accumulations_own_way_can_be_had():
    config = named("accumulation", "tutorial", reduction="sum", tail="carry")
    step = built("accumulation", config, 1875)
    assert step.micro_steps == 4 and step.tail == "carry"
    assert step.settings["reduction"] == "sum"
