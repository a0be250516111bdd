"""What the recording script records today is what is shipped."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from labkit import migration  # noqa: E402
from labkit.labs import recorded  # noqa: E402
from tests.support.data_archives import load  # noqa: E402

# float64 sums in a different order: 5e-15 measured with one thread instead of two, and 1.1e-9 in an
# update of AdamW, which divides the rounding of a key's bias, whose gradient is 0, by 1e-8.
SAME = 1e-8


@pytest.fixture(scope="module")
def script():
    return load("record_steps")


@pytest.mark.parametrize("depth", [18, pytest.param(50, marks=pytest.mark.long)])
def test_shipped_steps_are_what_the_script_records(script, tmp_path, monkeypatch, depth):
    """All but the ten losses, which take longest, are compared; the first is that of the step."""
    name = f"resnet{depth}"
    shipped, shipped_settings = recorded.load(name), recorded.settings(name)
    assert script.main.__defaults__ == ((18, 50),)
    monkeypatch.setattr(recorded, "FOLDER", tmp_path / "steps")
    monkeypatch.setattr(recorded, "SMALL_RESNET", tmp_path / "small_resnet.npz")
    monkeypatch.setattr(script, "losses", lambda *_, **__: [0.0])
    script.main([depth])
    today, settings = recorded.load(name), recorded.settings(name)
    losses = shipped_settings.pop("losses")
    assert len(losses) == 10 and len(settings.pop("losses")) == 1
    assert losses[0] == pytest.approx(
        float(today.stages["loss"]["loss"].value.kept.item()), rel=SAME
    )
    assert settings == shipped_settings
    assert_same(today, shipped)


def assert_same(today, shipped):
    """Compare every tensor of two recorded steps."""
    assert list(today.stages) == list(shipped.stages)
    for stage, tensors in shipped.stages.items():
        assert list(today.stages[stage]) == list(tensors) and tensors
        for tensor, expected in tensors.items():
            actual, expected = today.stages[stage][tensor].value, expected.value
            assert actual.shape == expected.shape
            numbers = [(actual.kept, expected.kept), (actual.sums, expected.sums)]
            numbers += [(actual.largest, expected.largest)]
            off = max(np.abs(np.subtract(*pair)).max(initial=0) for pair in numbers)
            assert off <= SAME * expected.largest, (stage, tensor)


def test_the_small_resnet_is_what_the_script_records(script, tmp_path, monkeypatch):
    """Lab 02 compares with all of its stages; gradients that are left over change nothing."""
    shipped, build = migration.read(recorded.SMALL_RESNET), script.build_small

    def with_old_gradients():
        module, *rest = build()
        for parameter in module.parameters():
            parameter.grad = torch.ones_like(parameter)
        return module, *rest

    monkeypatch.setattr(recorded, "SMALL_RESNET", tmp_path / "small_resnet.npz")
    monkeypatch.setattr(script, "build_small", with_old_gradients)
    script.main([])
    today = migration.read(recorded.SMALL_RESNET)
    assert list(today.stages) == list(shipped.stages)
    for stage, tensors in shipped.stages.items():
        for name, (value, noise) in tensors.items():
            off = np.abs(today.stages[stage][name].value - value).max()
            assert off <= noise + 1e-6 * np.abs(value).max(), (stage, name)


def test_shipped_losses_are_those_of_the_script(script, monkeypatch):
    """The first two are compared; tests/labs/test_one_step.py compares all ten with MindSpore."""
    rates = script.SETTINGS["learning_rates_of_losses"][:2]
    monkeypatch.setitem(script.SETTINGS, "learning_rates_of_losses", rates)
    actual = script.losses(*script.build(18))
    expected = recorded.settings("resnet18")["losses"][:2]
    np.testing.assert_allclose(actual, expected, rtol=SAME)
    assert abs(expected[0] - expected[1]) > 1e-5


def test_the_shipped_gpt_is_what_the_script_records(script, tmp_path, monkeypatch):
    shipped, settings = recorded.load("gpt"), recorded.settings("gpt")
    monkeypatch.setattr(recorded, "FOLDER", tmp_path / "steps")
    script.record_gpt()
    assert_same(recorded.load("gpt"), shipped)
    today = recorded.settings("gpt")
    np.testing.assert_allclose(today.pop("losses"), settings.pop("losses"), rtol=SAME)
    assert today == settings
