"""What reaches the steps of recipes, and LeNet-5 on MNIST; test_battery.py trains all."""

import re
from pathlib import Path

import numpy as np
import pytest
from mindspore import nn

from labkit.data import idx
from labkit.recipes.__main__ import main
from labkit.recipes.accumulation import AccumulationConfig
from labkit.recipes.adasum import AdasumConfig
from labkit.recipes.subspace import StageOneConfig
from labkit.recipes.thor import ThorConfig
from labkit.recipes.training import datasets
from labkit.steps import schedules
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.step import PlainStep
from tests.support.data_archives import write_idx
from tests.support.recipes import NAMES, built, newest, rates_of, settings

pytestmark = [
    pytest.mark.usefixtures("runtime", "small"),
    pytest.mark.filterwarnings("ignore:the network holds a trainable BatchNorm"),
]
SMALL = dict(depth=18, class_num=10)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "subspace-2"])
def test_optimizer_and_options_are_those_of_the_settings(name):
    """Only weights decay, except in THOR's tutorial, whose filter excludes no parameter."""
    given = dict(momentum=0.5, weight_decay=0.25, loss_scale=64, precision="O2", micro_steps=1)
    step = built(name, settings(name, Path("none"), class_num=10, **given), 3)
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
def test_a_schedule_counts_updates(name, micro_steps):
    config = settings(name, Path("none"), class_num=10, micro_steps=micro_steps)
    step = built(name, config, 9)
    assert type(step) is (PlainStep if micro_steps == 1 else AccumulatedStep)
    updates = 9 if micro_steps == 1 else 3
    np.testing.assert_array_equal(rates_of(step), RATES[name](updates))


def test_thors_dampings_are_the_schedules():
    config = ThorConfig(epoch_size=2, lr_end_epoch=4, decay_epochs=1, frequency=7, **SMALL)
    step = built("thor", config, 3)
    assert step.update.options.frequency == 7
    expected = schedules.get_thor_damping(0, 0.03, 0.50036, 70, 3)[:6]
    np.testing.assert_allclose(step.update.options.damping[:6], expected, rtol=1e-6)


def test_the_first_stages_rate_stops_where_it_is():
    """After 70 of the schedule's 90 epochs the rate is 0.188."""
    step = built("subspace-1", StageOneConfig(depth=18), 5)
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
    config = AdasumConfig(**dict(precision="O0", workers=2, **SMALL) | changed)
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
    config, sizes, evaluated = AccumulationConfig(batch_size=500), [], 0
    for rank in range(3):
        train, val, names = datasets(config, mnist, rank, 3)
        sizes.append(train.get_dataset_size())
        evaluated += sum(len(labels) for _, labels in val.create_tuple_iterator(num_epochs=1))
    assert names == tuple("0123456789")
    assert sizes == [60000 // 3 // 500] * 3 and evaluated == 10000


def test_the_source_of_accumulations_own_way_can_be_had():
    config = AccumulationConfig(class_num=10, reduction="sum", tail="carry")
    step = built("accumulation", config, 1875)
    assert step.micro_steps == 4 and step.tail == "carry"
    assert step.settings["reduction"] == "sum"
