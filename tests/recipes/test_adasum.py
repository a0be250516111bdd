"""The Adasum recipe: the tutorial's settings, its outputs, and a training of four small blocks."""

import contextlib
import io
import json
import re
import shutil

import numpy as np
import pytest
from mindspore import nn

import labkit.algorithms.adasum.step as step_module
import labkit.algorithms.adasum.update as update_module
from labkit.algorithms.adasum import combination as _combination
from labkit.errors import InputError
from labkit.recipes import adasum, adasum_config, resnet50
from labkit.recipes.adasum_config import NAMED, AdasumConfig
from labkit.steps import gradients, schedules
from labkit.training import checkpoint
from tests.recipes.adasum_on_ranks import SETTINGS, settings
from tests.support.step_cells import assert_bit_equal

pytestmark = pytest.mark.usefixtures("runtime", "small")

EPOCHS, STEPS = 2, 5
# 50 images in micro-batches of 10: two updates of two workers, and one worker is left.
CHANGED = {"workers": 2, "node_size": 1}


@pytest.fixture(scope="module")
def data(digits):
    return digits(50, 20)


@pytest.fixture(scope="module")
def done(data, tmp_path_factory):
    """(run folder, what was printed) of the command line with small settings."""
    folder = tmp_path_factory.mktemp("done") / "run"
    given = SETTINGS | CHANGED | {"save_checkpoint_path": str(folder)}
    arguments = ["train", "--dataset_path", str(data), "--device_target", "CPU"]
    for name, value in given.items():
        arguments += ["--set", f"{name}={value}"]
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        assert adasum.main(arguments) == 0
    return folder, shown.getvalue()


class TestTrain:
    def test_the_loss_is_printed_as_in_the_tutorial(self, done):
        lines = [line for line in done[1].splitlines() if line.startswith("epoch:")]
        assert len(lines) == EPOCHS
        for epoch, line in enumerate(lines, 1):
            assert re.fullmatch(rf"epoch: {epoch} step: {STEPS}, loss is \d\.\d+", line)
        assert len(re.findall(r"Train epoch time: .* ms, per step time: .* ms", done[1])) == EPOCHS
        assert "labkit: adasum over 2 workers (2 virtual), on updates, by layer" in done[1]
        assert ", 20 images in an update" in done[1]

    def test_records_and_settings(self, done):
        found = json.loads((done[0] / "config.json").read_text())
        assert found == json.loads(json.dumps(vars(settings(done[0], **CHANGED))))
        rows = [line.split(",") for line in (done[0] / "records.csv").read_text().splitlines()]
        images = [row[rows[0].index("images")] for row in rows[1:]]
        assert images == ["20", "20", "10"] * EPOCHS

    @pytest.mark.slow
    def test_a_resumed_training_is_the_uninterrupted_one(self, done, data, tmp_path):
        moved = shutil.copytree(done[0], tmp_path / "moved")
        newest = max((moved / "checkpoint").iterdir())
        whole = checkpoint.read(newest)
        newest.unlink()
        adasum.train(settings(moved, **CHANGED), data, device="CPU", resume=True)
        resumed = checkpoint.read(max((moved / "checkpoint").iterdir()))
        names = {name for name in whole if not name.startswith("labkit")}
        assert any(name.startswith("adasum.bank") for name in names)
        assert_bit_equal({n: resumed[n] for n in names}, {n: whole[n] for n in names})

    def test_evaluation(self, done, data, capsys):
        path = max((done[0] / "checkpoint").iterdir())
        arguments = ["eval", "--dataset_path", str(data), "--checkpoint_path", str(path)]
        assert adasum.main([*arguments, "--device_target", "CPU"]) == 0
        (line,) = [one for one in capsys.readouterr().out.splitlines() if "top_1_accuracy" in one]
        (trained,) = [one for one in done[1].splitlines() if one.startswith("labkit: top_1_acc")]
        assert line.startswith(trained) and line.endswith(f"checkpoint {path}")

    def test_a_training_in_the_folder_is_not_overwritten(self, done, data):
        with pytest.raises(InputError, match="holds an earlier training"):
            adasum.train(settings(done[0], **CHANGED), data, device="CPU")

    def test_one_worker_is_refused(self, data, tmp_path):
        with pytest.raises(InputError, match="nothing to combine: 1 worker"):
            adasum.train(settings(tmp_path / "run"), data, device="CPU")
        assert not (tmp_path / "run").exists()


class TestStep:
    def make(self, epoch_size=9, **changed):
        config = AdasumConfig(**dict(depth=18, class_num=10, precision="O0", workers=2) | changed)
        network = resnet50.build_network(config)
        return config, network, adasum.build_step(config, network, epoch_size)

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
    @pytest.mark.filterwarnings("ignore:the network holds a trainable BatchNorm")
    def test_rates_are_the_schedules_of_updates(self, changed, updates):
        config, _, step = self.make(epoch_size=9, **changed)
        rates = {p.name: p for p in step.get_parameters()}["learning_rate"].asnumpy()
        expected = schedules.get_lr(0, 0, 0.8, 5, 90, updates)
        np.testing.assert_array_equal(rates, expected)
        if changed.get("node_size") != 8:
            assert step.updates_ahead([9] * 90) == len(rates)

    def test_settings_reach_the_step(self):
        changed = dict(on="gradients", reduction="sum", scope="network", tail="drop", node_size=1)
        _, _, step = self.make(loss_scale=64, precision="O2", momentum=0.5, **changed)
        for name in ("on", "reduction", "scope", "tail"):
            assert step.settings[name] == changed[name]
        assert step.settings["precision"] == "'O2'" and step.total_workers == 2
        assert float(step.gradient.loss_scale.asnumpy()) == 64
        assert float(step.optimizer.momentum.asnumpy()) == 0.5
        assert isinstance(step.optimizer, nn.Momentum)

    def test_biases_and_norms_are_not_decayed(self):
        _, network, step = self.make(weight_decay=0.25, node_size=1)
        decays = [float(one.asnumpy()) for one in step.optimizer.weight_decay]
        for parameter, decay in zip(step.optimizer.parameters, decays, strict=True):
            assert decay == (0.25 if parameter.ndim > 1 else 0.0), parameter.name
        assert set(decays) == {0.0, 0.25}


class TestConfig:
    def test_the_tutorials_values(self):
        """16 devices of 256 images: an epoch of 312 updates."""
        servers, one = NAMED["servers"], NAMED["one_device"]
        assert list(NAMED)[0] == "servers"
        for config in (servers, one):
            assert (config.batch_size, config.epoch_size, config.class_num) == (256, 90, 1001)
            assert (config.lr_init, config.lr_end, config.lr_max) == (0, 0, 0.8)
            assert (config.warmup_epochs, config.lr_decay_mode) == (5, "linear")
            assert (config.momentum, config.weight_decay) == (0.9, 1e-4)
            assert (config.loss_scale, config.precision) == (1024, "O2")
            assert (config.label_smooth_factor, config.depth) == (0.1, 50)
            assert (config.reduction, config.on, config.scope) == ("adasum", "updates", "layer")
            assert config.node_size == 8
        images = 1_281_167
        assert images // (servers.batch_size * 16) == 312
        micro_batches = images // one.batch_size
        assert micro_batches // (one.workers * one.node_size) == 312 and one.tail == "drop"

    def test_names_are_those_of_the_modules(self):
        reductions = _combination.__globals__["REDUCTION"]
        assert adasum_config.REDUCTIONS == reductions
        assert adasum_config.ON == update_module.ON
        assert adasum_config.SCOPES == update_module.SCOPE
        assert adasum_config.TAILS == step_module.TAILS
        assert adasum_config.PRECISIONS == gradients.PRECISION
        assert adasum_config.LR_DECAY_MODES == schedules.LR_DECAY_MODES

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"reduction": "max"}, "reduction is 'max'; expected one of adasum, mean, sum"),
            ({"on": "weights"}, "on is 'weights'"),
            ({"scope": "all"}, "scope is 'all'"),
            ({"tail": "carry"}, "tail is 'carry'; expected one of flush, drop"),
            ({"node_size": 0}, "node_size is 0"),
            ({"workers": 0}, "workers is 0"),
            ({"lr_max": 0}, "lr_max is 0.0; expected a finite number > 0"),
            ({"lr_init": 1}, "lr_init is 1.0, lr_end 0.0 and lr_max 0.8; expected none above"),
            ({"lr_end": 1}, "lr_end 1.0 and lr_max 0.8"),
            ({"warmup_epochs": 91}, "warmup_epochs is 91, epoch_size 90; expected at most as many"),
            ({"lr_decay_mode": "exp"}, "lr_decay_mode is 'exp'"),
            ({"momentum": 1}, "momentum is 1.0"),
            ({"loss_scale": 0}, "loss_scale is 0.0"),
            ({"precision": "O3"}, "precision is 'O3'; expected one of O0, O2"),
            ({"save_checkpoint": False, "save_checkpoint_steps": 5}, "save_checkpoint False"),
        ],
    )
    def test_values_that_are_refused(self, given, message):
        with pytest.raises(InputError, match=re.escape(message)):
            AdasumConfig(**given)

    def test_the_ends_of_ranges_are_right(self):
        AdasumConfig(warmup_epochs=90, lr_init=0.8, lr_end=0.8, node_size=1, micro_steps=2)


def test_the_command(monkeypatch, capsys):
    came = []
    monkeypatch.setattr(adasum, "train", lambda config, path, **options: came.append(config))
    arguments = ["train", "--dataset_path", "x"]
    assert adasum.main(arguments) == 0
    assert adasum.main([*arguments, "--settings", "one_device", "--set", "workers=4"]) == 0
    assert came[0] == NAMED["servers"] and (came[1].workers, came[1].tail) == (4, "drop")
    assert adasum.main([*arguments, "--set", "worker=4"]) == 2
    assert capsys.readouterr().err.startswith("adasum: unknown setting 'worker'. Did you mean")
