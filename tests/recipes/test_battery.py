"""What every recipe does: its command trains, describes, resumes, evaluates and refuses."""

import json
import re
import shutil
from pathlib import Path

import pytest
from mindspore import load_checkpoint, load_param_into_net, nn
from mindspore.train import Model

from labkit.errors import InputError
from labkit.nets import resnet
from labkit.recipes import parts
from labkit.recipes.training import Recipe
from labkit.steps.accumulation import AccumulatedStep
from labkit.training.evaluation import evaluate
from labkit.training.records import read_records
from tests.support.recipes import NAMES, SETTINGS, arrays, main, newest, rates_of, recipe, settings
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


@of_every_recipe
def test_the_run_folder_says_what_was_trained(trained, data, name):
    out = trained(name).out
    config = json.loads((out / name / "config.json").read_text())
    expected = json.loads(json.dumps(vars(settings(name, out))))
    assert config == expected | {"class_num": expected["class_num"] or 10}
    assert json.loads((out / name / "classes.json").read_text()) == list("0123456789")
    rows = read_records(out / name / "records.csv").rows
    assert len(rows) == expected["epoch_size"] * UPDATES[name]
    kept = min(expected["keep_checkpoint_max"], expected["epoch_size"])
    assert len(list((out / name / "checkpoint").iterdir())) == kept


@of_every_recipe
def test_settings_losses_and_figures_are_printed(trained, name):
    """The losses are printed once per epoch, as in the tutorial."""
    out, printed = trained(name).out, trained(name).printed
    images = 20 if name in ("adasum", "accumulation") else 10
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


@pytest.mark.parametrize("name", LONG)
def test_a_resumed_training_is_the_uninterrupted_one(trained, data, tmp_path, name):
    """The resumed training may write elsewhere and more or less often."""
    out = trained(name).out
    for each in ("subspace-1", "subspace-2") if "subspace" in name else (name,):
        if (out / each).exists():
            shutil.copytree(out / each, tmp_path / each)
    path = tmp_path / name / "config.json"
    whole = arrays(newest(tmp_path / name))
    newest(tmp_path / name).unlink()
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
    arguments = ["eval", "--dataset_path", str(data), "--checkpoint_path", str(path)]
    assert main(name, [*arguments, "--device_target", "CPU"]) == 0
    lines, printed = (
        [line for line in text.splitlines() if line.startswith("labkit: top_1_acc")]
        for text in (capsys.readouterr().out, trained(name).printed)
    )
    out = str(trained(name).out / name)
    assert lines == [printed[0].replace(out, str(path))] and len(printed) == 1


@pytest.mark.parametrize("name", ["accumulation", pytest.param("thor", marks=pytest.mark.long)])
def test_a_training_in_float16_is_evaluated_in_float32_as_its_checkpoint(data, tmp_path, name):
    """THOR also writes a checkpoint where its tutorial does."""
    run = tmp_path / name
    config = settings(name, tmp_path, precision="O2", epoch_size=1)
    evaluation = recipe(name).train(config, data, device="CPU").evaluation
    paths = [newest(run)]
    if name == "thor":
        folder = run / "train_parallel0"
        assert {path.name for path in folder.iterdir()} == {"ckpt_0", "env.log", "train.log"}
        paths.append(folder / "ckpt_0/resnet-1_4.ckpt")
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


def test_the_loss_of_other_data_is_plain_cross_entropy(trained, data):
    """With label_smooth_factor 0 it is SoftmaxCrossEntropyWithLogits."""
    out, path = trained("thor").out, newest(trained("thor").out / "thor")
    config, network = settings("thor", out, label_smooth_factor=0.0), resnet.resnet(18, 12)
    loss = recipe("thor").evaluate_checkpoint(config, data, path, device="CPU")["loss"]
    parts.load_network(network, path)
    _, val_set, _ = parts.datasets(config, data, 0, 1, only_evaluate=True)
    plain = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    assert loss == pytest.approx(evaluate(network, plain, val_set)["loss"], rel=1e-5)
    assert f"loss {loss:.4f}" not in trained("thor").printed


def test_thors_checkpoints_and_evaluation_are_the_tutorials(trained, data, capsys):
    """They are evaluated as in the tutorial's eval.py: load_checkpoint, load_param_into_net,
    Model.eval."""
    out, printed = trained("thor").out, trained("thor").printed
    folder = out / "thor/train_parallel0/ckpt_0"
    names = sorted(path.name for path in folder.glob("*.ckpt"))
    assert names == ["resnet-1_4.ckpt", "resnet-2_4.ckpt"]
    path = str(folder / names[1])
    network = resnet.resnet(18, 12)
    missing, _ = load_param_into_net(network, load_checkpoint(path))
    assert missing == []
    network.set_train(False)
    config = settings("thor", out)
    _, val_set, _ = parts.datasets(config, data, 0, 1, only_evaluate=True)
    metrics = {"top_1_accuracy", "top_5_accuracy"}
    model = Model(network, metrics=metrics, loss_fn=parts.build_loss(config))
    ours = recipe("thor").evaluate_checkpoint(config, data, path, device="CPU")
    for name, value in model.eval(val_set).items():
        assert ours[name] == pytest.approx(value)
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("result:")]
    number = r"([01]\.\d+)"
    form = rf"result: {{'top_5_accuracy': {number}, 'top_1_accuracy': {number}}} ckpt={path}"
    top_5, top_1 = map(float, re.fullmatch(form, line).groups())
    assert f"labkit: top_1_accuracy {top_1:.4f}, top_5_accuracy {top_5:.4f}" in printed


def test_adasums_line_records_and_log(trained):
    out, printed = trained("adasum").out, trained("adasum").printed
    assert "labkit: adasum over 2 workers (2 virtual), on updates, by layer" in printed
    assert read_records(out / "adasum/records.csv").column("images") == [20] * 4
    folder = out / "adasum/device0"
    assert {path.name for path in folder.iterdir()} == {"env.log", "train.log"}
    assert "epoch: 2 step: 2 loss is " in (folder / "train.log").read_text()


@of_every_recipe
def test_an_earlier_training_is_never_overwritten(trained, data, name):
    out = trained(name).out
    before = {p: p.read_bytes() for p in (out / name).rglob("*") if p.is_file()}
    with pytest.raises(InputError, match="holds (snapshots of )?an earlier training"):
        recipe(name).train(settings(name, out, seed=7), data, device="CPU")
    assert {p: p.read_bytes() for p in (out / name).rglob("*") if p.is_file()} == before


def built(name, micro_batches, **changed):
    """The step of a recipe."""
    config = settings(name, Path("none"), class_num=10, **changed)
    network = parts.build_network(config)
    return recipe(name).build_step(config, network, micro_batches)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "subspace-2"])
def test_optimizer_and_options_are_those_of_the_settings(name):
    """Only weights decay, except in THOR's tutorial, whose filter excludes no parameter."""
    given = dict(momentum=0.5, weight_decay=0.25, loss_scale=64, precision="O2")
    step = built(name, 3, micro_steps=1, **given)
    optimizer = step.optimizer
    assert isinstance(optimizer, nn.Momentum) and float(optimizer.momentum.asnumpy()) == 0.5
    trained = [p.name for p in step.gradient.loss_net.network.trainable_params()]
    assert [p.name for p in optimizer.parameters] == trained
    for parameter, decay in zip(optimizer.parameters, optimizer.weight_decay, strict=True):
        decays = parameter.ndim > 1 or name == "thor"
        assert float(decay.asnumpy()) == (0.25 if decays else 0.0), parameter.name
    assert float(step.gradient.loss_scale.asnumpy()) == 64 and step.gradient.checked
    assert step.settings["precision"] == "O2"


@pytest.mark.parametrize("name", ["resnet50", "thor", "subspace-1"])
def test_a_schedule_counts_updates(name):
    with pytest.warns(UserWarning, match="BatchNorm"):
        step = built(name, 9, micro_steps=4)
    assert type(step) is AccumulatedStep
    assert rates_of(step).shape == ((12 if name == "subspace-1" else 9),)


@pytest.fixture
def calls(monkeypatch):
    """The arguments of each call of ``Recipe.train``, which does not train."""
    made = []
    monkeypatch.setattr(Recipe, "train", lambda self, *given, **o: made.append((given, o)))
    return made


class TestCommand:
    @of_every_recipe
    def test_a_setting_is_an_option_too(self, name, calls):
        """It changes the named settings, of which the first are the default."""
        named = recipe(name).named
        for given in list(named) if len(named) > 1 else [None]:
            arguments = ["train", "--data_path", ".", "--seed", "3", "--seed", "4"]
            arguments += ["--settings", given] if given else []
            assert main(name, [*arguments, "--batch_size", "8"]) == 0
            changed = {"seed": 4, "batch_size": 8}
            assert vars(calls[-1][0][0]) == vars(named[given or next(iter(named))]) | changed
        options = {"device": "auto", "distribute": False, "device_num": None, "resume": False}
        assert calls[-1][1] == options
        assert main(name, ["train", "--dataset_path", "."]) == 0
        assert calls[-1][0] == (next(iter(named.values())), ".")

    def test_options_reach_the_training(self, tmp_path, calls):
        (tmp_path / "some.yaml").write_text("lr: 0.5\nbatch_size: 8\n")
        arguments = ["train", "--dataset_path", ".", "--run_distribute", "True"]
        arguments += ["--device_num", "8", "--device_target", "GPU", "--resume"]
        arguments += ["--config", str(tmp_path / "some.yaml"), "--lr", "0.25"]
        machine = {"device": "GPU", "distribute": True, "device_num": 8}
        for more, resume in (([], True), (["--resume", "anyway"], "anyway")):
            assert main("resnet50", arguments + more) == 0
            (config, path), options = calls[-1]
            assert (config.lr, config.batch_size, path) == (0.25, 8, ".")
            assert options == machine | {"resume": resume}

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ("--batch_size 61 --depth 18", "batch_size: expected at most 40, the number"),
            ("--class_num 9", "class_num: expected at least 10, the data's classes, or None"),
            ("--device_target GPU", "device GPU was requested but is not available"),
            ("--config none.yaml", "none.yaml cannot be read"),
            ("--run_distribute no", "run_distribute: expected True or False, got 'no'"),
        ],
    )
    def test_bad_input_is_one_line_and_exit_code_2(
        self, data, tmp_path, capsys, arguments, message
    ):
        given = ["train", "--dataset_path", str(data), "--batch_size", "9", *arguments.split()]
        assert main("resnet50", [*given, "--save_checkpoint_path", str(tmp_path / "run")]) == 2
        shown = capsys.readouterr().err
        assert shown.startswith("resnet50: ") and message in shown and shown.count("\n") == 1
        assert not (tmp_path / "run").exists()
