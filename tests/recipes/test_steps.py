"""What reaches the steps of single recipes, and LeNet-5 on MNIST; test_battery.py covers all."""

import re

import numpy as np
import pytest

from labkit.data import idx
from labkit.errors import InputError
from labkit.recipes import parts, recipe
from labkit.recipes.accumulation import AccumulationConfig
from labkit.recipes.adasum import AdasumConfig
from labkit.recipes.thor import ThorConfig
from labkit.steps import schedules
from labkit.steps.step import PlainStep
from tests.support.idx_files import write_idx
from tests.support.recipes import main, newest, rates_of, settings

pytestmark = pytest.mark.usefixtures("runtime", "small")


def step_of(name, config, micro_batches):
    return recipe(name).build_step(config, parts.build_network(config), micro_batches)


def test_thors_rates_and_dampings_are_the_schedules():
    config = ThorConfig(
        depth=18, class_num=10, epoch_size=2, lr_end_epoch=4, decay_epochs=1, frequency=7
    )
    step = step_of("thor", config, 3)
    assert type(step) is PlainStep and step.update.options.frequency == 7
    expected = schedules.get_thor_lr(0, 0.05803, 4.0839, 4, 3, decay_epochs=1)
    np.testing.assert_array_equal(rates_of(step), expected)
    dampings = step.update.options.damping[:6]
    expected = schedules.get_thor_damping(0, 0.03, 0.50036, 70, 3)[:6]
    np.testing.assert_allclose(dampings, expected, rtol=1e-6)


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
def test_adasums_rates_are_the_schedules_of_updates(changed, updates):
    config = AdasumConfig(**dict(depth=18, class_num=10, precision="O0", workers=2) | changed)
    step = step_of("adasum", config, 9)
    rates = rates_of(step)
    np.testing.assert_array_equal(rates, schedules.get_lr(0, 0, 0.8, 5, 90, updates))
    if changed["node_size"] != 8:
        assert step.updates_ahead([9] * 90) == len(rates)
    assert step.total_workers == 2 and step.tail == changed.get("tail", "flush")


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("adasum", {"workers": 1}, "nothing to combine: 1 worker"),
        ("adasum", {"node_size": 8, "tail": "drop"}, "4 micro-batches; expected enough for an upd"),
        ("subspace-1", {"snapshots_per_epoch": 5}, "snapshots_per_epoch: expected at most 4"),
    ],
)
@pytest.mark.filterwarnings("ignore:the network holds a trainable BatchNorm")
def test_what_does_not_fit_the_data_is_refused_and_nothing_written(
    data, tmp_path, name, changed, message
):
    with pytest.raises(InputError, match=message):
        recipe(name).train(settings(name, tmp_path, **changed), data, device="CPU")
    assert list(tmp_path.iterdir()) == []


def test_accumulation_trains_lenet_and_is_evaluated(mnist, tmp_path, capsys):
    """30 updates of 4 micro-batches of 50 images; the first 1000 test images."""
    for usage, rows in {"train": 6000, "test": 1000}.items():
        files = sorted((mnist / usage).iterdir())
        (tmp_path / usage).mkdir()
        for path, array in zip(files, idx.read_pair(*files), strict=True):
            write_idx(tmp_path / usage / path.name, array[:rows])
    given = ["--data_path", str(tmp_path), "--device_target", "CPU"]
    options = (
        f"--epoch_size 1 --batch_size 50 --learning_rate 0.1 --save_checkpoint_path {tmp_path}/run"
    )
    assert main("accumulation", ["train", *given, *options.split()]) == 0
    assert len((tmp_path / "run/records.csv").read_text().splitlines()) == 1 + 30
    capsys.readouterr()
    path = str(newest(tmp_path / "run"))
    assert main("accumulation", ["eval", *given, "--checkpoint_path", path]) == 0
    shown = re.search(r"top_1_accuracy ([\d.]+), .* loss ([\d.]+), ", capsys.readouterr().out)
    # The most frequent digit is 0.126 of the images; the loss of an untrained network is 2.3026.
    assert float(shown[1]) >= 0.126 and float(shown[2]) < 2.3026


def test_ranks_share_the_images_of_mnist(mnist):
    config, sizes, evaluated = AccumulationConfig(batch_size=500), [], 0
    for rank in range(3):
        train, val, names = parts.datasets(config, mnist, rank, 3)
        sizes.append(train.get_dataset_size())
        evaluated += sum(len(labels) for _, labels in val.create_tuple_iterator(num_epochs=1))
    assert names == tuple("0123456789")
    assert sizes == [60000 // 3 // 500] * 3 and evaluated == 10000


def test_the_source_of_accumulations_own_way_can_be_had():
    step = step_of(
        "accumulation", AccumulationConfig(class_num=10, reduction="sum", tail="carry"), 1875
    )
    assert step.micro_steps == 4 and step.tail == "carry"
    assert step.settings["reduction"] == "sum"
