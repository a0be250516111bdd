"""What reaches the step of the Adasum recipe; test_battery.py covers what every recipe does."""

import numpy as np
import pytest

from labkit.errors import InputError
from labkit.recipes import adasum
from labkit.recipes.adasum import AdasumConfig
from labkit.recipes.parts import build_network
from labkit.steps import schedules
from tests.support.recipes import rates_of, settings

pytestmark = pytest.mark.usefixtures("runtime", "small")


def make(**changed):
    """A step whose settings differ from the tutorial's."""
    config = AdasumConfig(**dict(depth=18, class_num=10, precision="O0", workers=2) | changed)
    return adasum.build_step(config, build_network(config), 9)


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
    step = make(**changed)
    rates = rates_of(step)
    np.testing.assert_array_equal(rates, schedules.get_lr(0, 0, 0.8, 5, 90, updates))
    if changed["node_size"] != 8:
        assert step.updates_ahead([9] * 90) == len(rates)


def test_settings_reach_the_step():
    changed = dict(on="gradients", reduction="sum", scope="network", tail="drop")
    step = make(node_size=1, **changed)
    assert step.settings | changed == step.settings and step.total_workers == 2


def test_one_worker_is_refused(data, tmp_path):
    with pytest.raises(InputError, match="nothing to combine: 1 worker"):
        adasum.train(settings("adasum", tmp_path, workers=1), data, device="CPU")
    assert list(tmp_path.iterdir()) == []
