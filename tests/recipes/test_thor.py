"""What reaches the step of the THOR recipe; test_battery.py covers what every recipe does."""

import numpy as np
import pytest

from labkit.recipes import parts, thor
from labkit.recipes.thor import ThorConfig
from labkit.steps import schedules
from labkit.steps.step import PlainStep
from tests.support.recipes import rates_of, settings

pytestmark = pytest.mark.usefixtures("runtime", "small")


class TestStep:
    def test_rates_and_dampings_are_the_schedules(self):
        given = dict(depth=18, class_num=10, epoch_size=2, lr_end_epoch=4, precision="O0")
        config = ThorConfig(**given, decay_epochs=1, frequency=7, split=16)
        step = thor.build_step(config, parts.build_network(config), 3)
        assert type(step) is PlainStep
        rates = rates_of(step)
        expected = schedules.get_thor_lr(0, 0.05803, 4.0839, 4, 3, decay_epochs=1)
        np.testing.assert_array_equal(rates, expected)
        dampings = step.update.options.damping[:6]
        expected = schedules.get_thor_damping(0, 0.03, 0.50036, 70, 3)[:6]
        np.testing.assert_allclose(dampings, expected, rtol=1e-6)
        assert (step.update.options.frequency, step.update.options.split) == (7, 16)


@pytest.mark.long
def test_accumulated_gradients_train(data, tmp_path):
    config = settings("thor", tmp_path, batch_size=10, micro_steps=2, epoch_size=1)
    with pytest.warns(UserWarning, match="BatchNorm"):
        result = thor.train(config, data, device="CPU")
    assert result.records.column("images") == [20, 20]
