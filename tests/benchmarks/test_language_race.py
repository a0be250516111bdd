"""The language race's program: its control of THOR, its averages, its error and its methods."""

import functools

import language_race
import numpy as np
import pytest
from mindspore import Tensor

from labkit.data import shakespeare
from labkit.data.prepare import prepare
from labkit.nets.gpt import GPT

SMALL = functools.partial(GPT, layers=1, width=8, heads=2)


@pytest.fixture(scope="module")
def plays():
    return shakespeare.load(prepare("shakespeare"))


@pytest.mark.parametrize("method", ["THOR", "THOR, identity"])
def test_the_control_keeps_the_mean_of_each_inverse_and_no_direction(eager, plays, method):
    network = SMALL(67)
    setting = {"method": method, "rate": 0.01, "damping": 0.3}
    step, kept = language_race.make_step(setting, network), {}
    batch = shakespeare.random_windows(plays.train, 4, 8, 1, 1)
    step(*map(Tensor, batch))
    for layer in step.update.layers:
        for factor, inverse in (
            (layer.a_factor, layer.a_inverse),
            (layer.g_factor, layer.g_inverse),
        ):
            (values,) = inverse.asnumpy()
            scaled = np.allclose(values, values[0, 0] * np.eye(len(values)), rtol=1e-5)
            assert scaled == (method != "THOR") and np.abs(factor.asnumpy()).max() > 0
            kept[inverse.name] = np.trace(values)
    if method != "THOR":
        other = language_race.make_step(setting | {"method": "THOR"}, SMALL(67))
        other(*map(Tensor, batch))
        for layer in other.update.layers:
            for inverse in (layer.a_inverse, layer.g_inverse):
                assert np.trace(inverse.asnumpy()[0]) == pytest.approx(kept[inverse.name], rel=1e-5)


def test_averages_are_those_of_the_weights(monkeypatch):
    monkeypatch.setattr(language_race, "UPDATES", 9)
    monkeypatch.setattr(language_race, "LAST", 4)
    averages, expected = {}, None
    for number, value in enumerate(values := np.random.default_rng(0).normal(size=9), start=1):
        language_race.average(averages, {"w": np.array([value])}, number)
        share = max(1 / number, 0.02)
        expected = value if expected is None else expected + share * (value - expected)
    assert averages["ema"]["w"] == pytest.approx(expected)
    assert averages["average"]["w"] == pytest.approx(values[-4:].mean())


def test_the_mean_of_workers_is_a_large_batch(eager, plays, monkeypatch):
    monkeypatch.setattr(language_race, "UPDATES", 4)
    monkeypatch.setattr(language_race, "GPT", SMALL)
    ends = {}
    for method in ("AdamW, accumulated", "mean of 4"):
        setting = {"method": method, "rate": 0.01}
        outcome = language_race.train(setting, plays, 1, every=1, judged=8)
        assert [point["update"] for point in outcome["curve"]] == [1] and not outcome["failure"]
        ends[method] = outcome["tempest"]
    assert ends["mean of 4"] == pytest.approx(ends["AdamW, accumulated"], rel=1e-6)
    assert abs(ends["mean of 4"] - np.log(67)) > 1e-3
