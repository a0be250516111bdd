"""The THOR recipe: what reaches its step, and the tutorial's checkpoints and line."""

import re

import numpy as np
import pytest
from mindspore import load_checkpoint, load_param_into_net, nn
from mindspore.train import Model

from labkit.nets import resnet
from labkit.recipes import resnet50_parts as parts
from labkit.recipes import thor
from labkit.recipes.thor_config import ThorConfig
from labkit.steps import schedules
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.plain import PlainStep
from tests.support.recipes import settings

pytestmark = pytest.mark.usefixtures("runtime", "small")


def test_checkpoints_and_evaluation_are_the_tutorials(trained, data, capsys):
    """RUN/ckpt_0, which MindSpore's own callback writes, and the tutorial's eval.py:
    load_checkpoint, load_param_into_net, Model.eval."""
    out, printed = trained("thor").out, trained("thor").printed
    names = sorted(path.name for path in (out / "thor/ckpt_0").glob("*.ckpt"))
    assert names == ["resnet-1_4.ckpt", "resnet-2_4.ckpt"]
    path = str(out / "thor/ckpt_0" / names[1])
    network = resnet.resnet(18, 12)
    missing, _ = load_param_into_net(network, load_checkpoint(path))
    assert missing == []
    network.set_train(False)
    config = settings("thor", out)
    _, val_set, _ = parts.datasets(config, data, 0, 1, only_evaluate=True)
    metrics = {"top_1_accuracy", "top_5_accuracy"}
    model = Model(network, metrics=metrics, loss_fn=parts.build_loss(config))
    ours = thor.evaluate_checkpoint(config, data, path, device="CPU")
    for name, value in model.eval(val_set).items():
        assert ours[name] == pytest.approx(value)
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("result:")]
    number = r"([01]\.\d+)"
    form = rf"result: {{'top_5_accuracy': {number}, 'top_1_accuracy': {number}}} ckpt={path}"
    top_5, top_1 = map(float, re.fullmatch(form, line).groups())
    assert f"labkit: top_1_accuracy {top_1:.4f}, top_5_accuracy {top_5:.4f}" in printed


class TestStep:
    def make(self, **changed):
        given = dict(depth=18, class_num=10, epoch_size=2, lr_end_epoch=4, precision="O0")
        config = ThorConfig(**given | changed)
        return config, thor.build_step(config, parts.build_network(config), 3)

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
        decays = {float(decay.asnumpy()) for decay in step.optimizer.weight_decay}
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
        def names(**changed):
            config = settings("thor", tmp_path, **changed)
            return [type(each).__name__ for each in thor.callbacks(config, None, 3, False)]

        assert names() == ["TimeMonitor", "LossMonitor", "ModelCheckpoint"]
        assert names(save_checkpoint=False) == ["TimeMonitor", "LossMonitor"]


@pytest.mark.long
def test_accumulated_gradients_train(data, tmp_path):
    config = settings("thor", tmp_path, batch_size=10, micro_steps=2, epoch_size=1)
    with pytest.warns(UserWarning, match="BatchNorm"):
        result = thor.train(config, data, device="CPU")
    assert result.records.column("images") == [20, 20]
