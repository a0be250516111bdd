"""The Adasum recipe: what reaches its step. What every recipe does: test_battery.py."""

import numpy as np
import pytest
from mindspore import nn

from labkit.errors import InputError
from labkit.recipes import adasum
from labkit.recipes.adasum_config import AdasumConfig
from labkit.recipes.resnet50_parts import build_network
from labkit.steps import schedules
from tests.support.recipes import settings

pytestmark = pytest.mark.usefixtures("runtime", "small")


def make(epoch_size=9, **changed):
    """(network, step) of settings that differ from the tutorial's."""
    config = AdasumConfig(**dict(depth=18, class_num=10, precision="O0", workers=2) | changed)
    network = build_network(config)
    return network, adasum.build_step(config, network, epoch_size)


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
def test_rates_are_the_schedules_of_updates(changed, updates):
    _, step = make(epoch_size=9, **changed)
    rates = {p.name: p for p in step.get_parameters()}["learning_rate"].asnumpy()
    np.testing.assert_array_equal(rates, schedules.get_lr(0, 0, 0.8, 5, 90, updates))
    if changed["node_size"] != 8:
        assert step.updates_ahead([9] * 90) == len(rates)


def test_settings_reach_the_step():
    changed = dict(on="gradients", reduction="sum", scope="network", tail="drop", node_size=1)
    more = dict(loss_scale=64, precision="O2", momentum=0.5, weight_decay=0.25)
    _, step = make(**more, **changed)
    for name in ("on", "reduction", "scope", "tail"):
        assert step.settings[name] == changed[name]
    assert step.settings["precision"] == "'O2'" and step.total_workers == 2
    assert float(step.gradient.loss_scale.asnumpy()) == 64
    assert isinstance(step.optimizer, nn.Momentum)
    assert float(step.optimizer.momentum.asnumpy()) == 0.5
    decays = [float(decay.asnumpy()) for decay in step.optimizer.weight_decay]
    for parameter, decay in zip(step.optimizer.parameters, decays, strict=True):
        assert decay == (0.25 if parameter.ndim > 1 else 0.0), parameter.name


def test_what_is_printed_and_recorded(trained):
    out, printed = trained("adasum").out, trained("adasum").printed
    assert "labkit: adasum over 2 workers (2 virtual), on updates, by layer" in printed
    rows = [line.split(",") for line in (out / "adasum/records.csv").read_text().splitlines()]
    assert [row[rows[0].index("images")] for row in rows[1:]] == ["20"] * 4


def test_one_worker_is_refused(data, tmp_path):
    with pytest.raises(InputError, match="nothing to combine: 1 worker"):
        adasum.train(settings("adasum", tmp_path, workers=1), data, device="CPU")
    assert list(tmp_path.iterdir()) == []
