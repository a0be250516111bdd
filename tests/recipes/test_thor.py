"""The THOR recipe: the tutorial's settings, its outputs, and a training of four small stages."""

import json
import re

import numpy as np
import pytest
from mindspore import load_checkpoint, load_param_into_net, nn

from labkit.errors import InputError
from labkit.nets import resnet
from labkit.recipes import resnet50, thor
from labkit.recipes.thor_config import NAMED, PRECISIONS, ThorConfig
from labkit.steps import gradients, schedules
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.plain import PlainStep
from labkit.training import checkpoint
from tests.recipes.thor_on_ranks import SETTINGS, settings
from tests.support.step_cells import assert_bit_equal, snapshot

pytestmark = pytest.mark.usefixtures("runtime", "small")

EPOCHS, BATCH, STEPS = 2, 20, 3


@pytest.fixture(scope="module")
def data(digits):
    return digits(60, 30)


@pytest.fixture(scope="module")
def done(data, tmp_path_factory):
    """(run folder, what was printed, records) of the command line with small settings."""
    folder = tmp_path_factory.mktemp("done") / "run"
    given = SETTINGS | {"batch_size": BATCH, "save_checkpoint_path": str(folder)}
    arguments = ["train", "--dataset_path", str(data), "--device_target", "CPU"]
    for name, value in given.items():
        arguments += ["--set", f"{name}={value}"]
    import contextlib
    import io

    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        assert thor.main(arguments) == 0
    return folder, shown.getvalue()


class TestTrain:
    def test_the_loss_is_printed_as_in_the_tutorial(self, done):
        lines = [line for line in done[1].splitlines() if line.startswith("epoch:")]
        assert len(lines) == EPOCHS
        for epoch, line in enumerate(lines, 1):
            assert re.fullmatch(rf"epoch: {epoch} step: {STEPS}, loss is \d\.\d+", line)
        assert len(re.findall(r"Train epoch time: .* ms, per step time: .* ms", done[1])) == EPOCHS

    def test_checkpoints_have_the_tutorials_names(self, done):
        names = sorted(path.name for path in (done[0] / "ckpt_0").glob("*.ckpt"))
        assert names == [f"resnet-1_{STEPS}.ckpt", f"resnet-2_{STEPS}.ckpt"]

    def test_the_run_folder_says_what_was_trained(self, done):
        found = json.loads((done[0] / "config.json").read_text())
        config = settings(done[0], batch_size=BATCH)
        assert found == json.loads(json.dumps(vars(config)))
        rows = (done[0] / "records.csv").read_text().splitlines()
        assert len(rows) == 1 + EPOCHS * STEPS

    @pytest.mark.slow
    def test_a_resumed_training_is_the_uninterrupted_one(self, done, data, tmp_path):
        import shutil

        moved = shutil.copytree(done[0], tmp_path / "moved")
        newest = max((moved / "checkpoint").iterdir())
        whole = checkpoint.read(newest)
        newest.unlink()
        config = settings(moved, batch_size=BATCH)
        trained = thor.train(config, data, device="CPU", resume=True)
        assert len(trained.records) == EPOCHS * STEPS
        resumed = checkpoint.read(max((moved / "checkpoint").iterdir()))
        assert_bit_equal(
            {name: value for name, value in resumed.items() if _is_state(name)},
            {name: value for name, value in whole.items() if _is_state(name)},
        )

    @pytest.mark.slow
    def test_accumulated_gradients(self, data, tmp_path):
        config = settings(tmp_path / "run", batch_size=10, micro_steps=2, epoch_size=1)
        with pytest.warns(UserWarning, match="BatchNorm"):
            trained = thor.train(config, data, device="CPU")
        assert trained.records.column("images") == [20, 20, 20]


def _is_state(name):
    return not name.startswith("labkit")


class TestEvaluate:
    @pytest.mark.parametrize("by", ["labkit", "mindspore"])
    def test_the_line_is_the_tutorials(self, done, data, capsys, by):
        folder = "ckpt_0" if by == "mindspore" else "checkpoint"
        path = max((done[0] / folder).glob("*.ckpt"))
        arguments = ["eval", "--dataset_path", str(data), "--checkpoint_path", str(path)]
        assert thor.main([*arguments, "--device_target", "CPU"]) == 0
        lines = capsys.readouterr().out.splitlines()
        (line,) = [line for line in lines if line.startswith("result:")]
        number = r"[01]\.\d+"
        pattern = rf"result: {{'top_5_accuracy': ({number}), 'top_1_accuracy': ({number})}} ckpt="
        top_5, top_1 = map(float, re.match(pattern, line).groups())
        assert line.endswith(f"ckpt={path}")
        (trained,) = [one for one in done[1].splitlines() if one.startswith("labkit: top_1_acc")]
        assert trained.startswith(f"labkit: top_1_accuracy {top_1:.4f}, top_5_accuracy {top_5:.4f}")

    def test_mindspores_own_loading_and_evaluation(self, done, data):
        """The tutorial's eval.py: load_checkpoint, load_param_into_net, Model.eval."""
        from mindspore.train import Model

        path = str(done[0] / "ckpt_0" / f"resnet-2_{STEPS}.ckpt")
        network = resnet.resnet(18, 12)
        missing, _ = load_param_into_net(network, load_checkpoint(path))
        assert missing == []
        network.set_train(False)
        config = settings(done[0], batch_size=BATCH)
        _, val_set, _ = resnet50.datasets(config, data, 0, 1, only_evaluate=True)
        model = Model(network, metrics={"top_1_accuracy", "top_5_accuracy"}, loss_fn=_loss(config))
        found = model.eval(val_set)
        ours = thor.evaluate_checkpoint(config, data, path, device="CPU")
        for name, value in found.items():
            assert ours[name] == pytest.approx(value)


def _loss(config):
    return resnet50.build_loss(config)


class TestStep:
    def make(self, **changed):
        given = dict(depth=18, class_num=10, epoch_size=2, lr_end_epoch=4, precision="O0")
        config = ThorConfig(**given | changed)
        return config, thor.build_step(config, resnet50.build_network(config), 3)

    def test_rates_and_dampings_are_the_schedules(self):
        config, step = self.make(decay_epochs=1, frequency=7, split=16)
        rates = {p.name: p for p in step.get_parameters()}["learning_rate"].asnumpy()
        expected = schedules.get_thor_lr(0, 0.05803, 4.0839, 4, 3, decay_epochs=1)
        np.testing.assert_array_equal(rates, expected)
        dampings = [step.update.schedule.at(update) for update in range(6)]
        expected = schedules.get_thor_damping(0, 0.03, 0.50036, 70, 3)[:6]
        np.testing.assert_allclose(dampings, expected, rtol=1e-6)
        assert (step.update.options.frequency, step.update.options.split) == (7, 16)

    def test_every_parameter_decays(self):
        """As in the tutorial, whose decay_filter leaves none out."""
        _, step = self.make(weight_decay=0.25, momentum=0.5)
        assert type(step) is PlainStep and isinstance(step.optimizer, nn.Momentum)
        decays = {float(one.asnumpy()) for one in step.optimizer.weight_decay}
        assert decays == {0.25} and all(step.optimizer.decay_flags)
        assert len(step.optimizer.decay_flags) == len(step.optimizer.parameters)
        assert float(step.optimizer.momentum.asnumpy()) == 0.5

    def test_the_loss_scale_and_precision_reach_the_step(self):
        _, step = self.make(loss_scale=64, precision="O2")
        assert float(step.gradient.loss_scale.asnumpy()) == 64 and step.gradient.checked
        assert step.settings["precision"] == "'O2'"

    def test_accumulation_counts_updates(self):
        with pytest.warns(UserWarning, match="BatchNorm"):
            config, step = self.make(micro_steps=2)
        assert type(step) is AccumulatedStep
        rates = {p.name: p for p in step.get_parameters()}["learning_rate"]
        assert rates.shape == (config.lr_end_epoch * 2,)

    def test_no_checkpoint_where_none_is_wanted(self, tmp_path):
        names = [type(one).__name__ for one in thor.callbacks(settings(tmp_path), 3)]
        assert names == ["TimeMonitor", "LossMonitor", "ModelCheckpoint"]
        without = thor.callbacks(settings(tmp_path, save_checkpoint=False), 3)
        assert [type(one).__name__ for one in without] == names[:2]


class TestConfig:
    def test_the_tutorials_values(self):
        ascend, gpu = NAMED["ascend"], NAMED["gpu"]
        assert list(NAMED)[0] == "ascend"
        assert (ascend.lr_init, ascend.lr_decay, ascend.lr_end_epoch) == (0.05803, 4.0839, 53)
        assert (ascend.damping_init, ascend.damping_decay, ascend.epoch_size) == (0.03, 0.50036, 45)
        assert (gpu.lr_init, gpu.lr_decay, gpu.lr_end_epoch) == (0.05672, 4.9687, 50)
        assert (gpu.damping_init, gpu.damping_decay, gpu.epoch_size) == (0.02345, 0.5467, 40)
        for config in (ascend, gpu):
            assert (config.frequency, config.batch_size, config.loss_scale) == (834, 32, 128)
            assert (config.momentum, config.weight_decay) == (0.9, 5e-4)
            assert (config.label_smooth_factor, config.class_num) == (0.1, 1001)
            assert (config.depth, config.image_size, config.decay_epochs) == (50, 224, 39)
            assert config.precision == "O2" and config.use_label_smooth

    def test_names_are_those_of_the_modules(self):
        assert PRECISIONS == gradients.PRECISION

    def test_label_smoothing_may_be_switched_off(self):
        assert ThorConfig(use_label_smooth=False).label_smooth_factor == 0
        assert ThorConfig().label_smooth_factor == 0.1

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"lr_init": 0}, "lr_init is 0.0; expected a finite number > 0"),
            ({"lr_decay": -1}, "lr_decay is -1.0"),
            ({"damping_init": 0}, "damping_init is 0.0; expected a finite number > 0"),
            ({"damping_decay": 0}, "damping_decay is 0.0"),
            ({"frequency": 0}, "frequency is 0"),
            ({"split": 0}, "split is 0; expected a whole number >= 1 or None"),
            ({"loss_scale": 0}, "loss_scale is 0.0"),
            ({"precision": "O3"}, "precision is 'O3'; expected one of O0, O2"),
            ({"decay_epochs": 0}, "decay_epochs is 0"),
            ({"epoch_size": 54}, "epoch_size is 54 and lr_end_epoch 53"),
            ({"class_num": 1}, "class_num is 1"),
            ({"image_size": 31}, "image_size is 31"),
            ({"momentum": 1}, "momentum is 1.0"),
            ({"weight_decay": -1}, "weight_decay is -1.0"),
            ({"save_checkpoint": False, "save_checkpoint_steps": 5}, "save_checkpoint False"),
        ],
    )
    def test_values_that_are_refused(self, given, message):
        with pytest.raises(InputError, match=re.escape(message)):
            ThorConfig(**given)

    def test_the_ends_of_ranges_are_right(self):
        ThorConfig(epoch_size=53, split=None, frequency=1, class_num=None, micro_steps=2)


class TestCommand:
    def test_named_settings_reach_the_training(self, monkeypatch):
        came = []
        monkeypatch.setattr(thor, "train", lambda config, path, **o: came.append(config))
        arguments = ["train", "--dataset_path", "x"]
        assert thor.main(arguments) == 0
        assert thor.main([*arguments, "--settings", "gpu"]) == 0
        assert thor.main([*arguments, "--settings", "gpu", "--set", "frequency=9"]) == 0
        assert came[:2] == [NAMED["ascend"], NAMED["gpu"]]
        assert came[2].frequency == 9 and came[2].lr_end_epoch == 50

    def test_unknown_names(self, capsys):
        with pytest.raises(SystemExit) as caught:
            thor.main(["train", "--dataset_path", "x", "--settings", "tpu"])
        assert caught.value.code == 2 and "invalid choice: 'tpu'" in capsys.readouterr().err
        assert thor.main(["train", "--dataset_path", "x", "--set", "frequenzy=1"]) == 2
        assert capsys.readouterr().err.startswith("thor: unknown setting 'frequenzy'. Did you mean")

    def test_a_training_in_the_folder_is_not_overwritten(self, done, data):
        before = {path: path.read_bytes() for path in done[0].rglob("*") if path.is_file()}
        with pytest.raises(InputError, match="holds an earlier training"):
            thor.train(settings(done[0], batch_size=BATCH), data, device="CPU")
        assert {p: p.read_bytes() for p in done[0].rglob("*") if p.is_file()} == before


def test_the_state_of_the_network_is_all_in_the_tutorials_checkpoint(done):
    network = resnet.resnet(18, 12)
    values = checkpoint.read(done[0] / "ckpt_0" / f"resnet-1_{STEPS}.ckpt")
    assert set(snapshot(network)) < set(values)
