"""Whole updates of THOR: closed forms, what changes at which update, and upstream's formulas."""

import numpy as np
import pytest

from labkit import reference
from labkit.reference import Layer, Thor, TraceRule, Window
from tests import twins

RANDOM = np.random.default_rng(0)


def batch(seed=0, rows=6, scale=1.0):
    """A dense layer 4 -> 3 with bias, and a parameter without factors."""
    random = np.random.default_rng(seed)
    inputs, slopes = scale * random.normal(size=(rows, 4)), random.normal(size=(rows, 3)) / rows
    gradients = {"fc.weight": slopes.T @ inputs, "fc.bias": slopes.sum(axis=0)}
    gradients["scale"] = random.normal(size=2)
    return gradients, [Layer("fc", inputs, slopes)]


def start():
    random = np.random.default_rng(7)
    shapes = {"fc.weight": (3, 4), "fc.bias": (3,), "scale": (2,)}
    return {name: random.normal(size=shape) for name, shape in shapes.items()}


def direction(seed, gradients, damping, **options):
    """Return U of the layer's gradients with the factors of batch ``seed``."""
    factors = batch(seed)[1][0].factors(homogeneous=True)
    matrix = reference.gradient_matrix(gradients["fc.weight"], gradients["fc.bias"])
    return reference.thor_direction(*factors, matrix, damping, **options)[0]


def test_an_update_by_hand():
    """One weight 2, one row: x = 3, d = 0.5, damping 0.04, so both factors get 0.2."""
    thor = Thor(0.1, 0.04, momentum=0.5, weight_decay=0.01)
    layers = [Layer("fc", np.array([[3.0]]), np.array([[0.5]]))]
    gradients = {"fc.weight": np.array([[1.5]])}
    u = 1.5 / (9 + 0.2) / (0.25 + 0.2)
    after = thor.update({"fc.weight": np.array([[2.0]])}, gradients, layers)
    velocity = u + 0.01 * 2
    first = 2 - 0.1 * velocity
    assert after["fc.weight"].item() == pytest.approx(first, rel=1e-14)
    after = thor.update(after, gradients, layers)
    velocity = 0.5 * velocity + u + 0.01 * first
    assert after["fc.weight"].item() == pytest.approx(first - 0.1 * velocity, rel=1e-14)


@pytest.mark.parametrize("options", [{}, dict(split=None), dict(split=2), dict(damping_split="pi")])
def test_options_reach_the_direction_whose_last_column_is_the_bias(options):
    parameters, (gradients, layers) = start(), batch()
    after = Thor(0.1, 0.3, **options).update(parameters, gradients, layers)
    expected = direction(0, gradients, 0.3, **options)
    moved = {name: (parameters[name] - after[name]) / 0.1 for name in parameters}
    np.testing.assert_allclose(moved["fc.weight"], expected[:, :-1], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(moved["fc.bias"], expected[:, -1], rtol=1e-9, atol=1e-12)
    if options not in ({}, dict(split=None)):
        assert not np.allclose(expected, direction(0, gradients, 0.3))


def test_between_refreshes_inverses_are_stale_and_gradients_are_not():
    thor, parameters = Thor(0.1, 0.3 + np.arange(5), momentum=0.0, frequency=3), start()
    for update in range(5):
        gradients, layers = batch(update)
        after = thor.update(parameters, gradients, layers)
        last = update - update % 3
        expected = direction(last, gradients, 0.3 + last)
        moved = (parameters["fc.weight"] - after["fc.weight"]) / 0.1
        np.testing.assert_allclose(moved, expected[:, :-1], rtol=1e-8, atol=1e-11)
        parameters = after


def test_factors_are_averaged_at_every_refresh():
    thor, parameters = Thor(0.1, 0.3, frequency=2, factor_decay=0.75), start()
    made = [batch(seed)[1][0].factors(homogeneous=True) for seed in range(5)]
    for update in range(5):
        parameters = thor.update(parameters, *batch(update))
        expected = made[0][:2]
        for seed in range(2, update + 1, 2):
            pairs = zip(expected, made[seed][:2], strict=True)
            expected = [0.75 * old + 0.25 * new for old, new in pairs]
        for actual, value in zip(thor.factors["fc"], expected, strict=False):
            np.testing.assert_allclose(actual, value, rtol=1e-12)
        assert np.array_equal(thor.refreshed["fc"][0], thor.factors["fc"][0])


def test_the_trace_rule_refreshes_skips_and_freezes():
    rule = TraceRule(refresh=0.5, freeze=0.01)
    thor, parameters = Thor(0.1, 1e-6, frequency=1, trace_rule=rule, bias="plain"), start()
    # The trace grows with the square of the inputs' scale.
    story = [(1.0, "refresh"), (1.1, "skip"), (1.3, "refresh"), (1.3, "freeze"), (9.0, "freeze")]
    inverted = [1.0, 1.0, 1.3, 1.3, 1.3]
    for (scale, decision), of in zip(story, inverted, strict=True):
        parameters = thor.update(parameters, *batch(0, scale=scale))
        assert thor.decisions == {"fc": decision}
        expected = batch(0, scale=of)[1][0].factors(homogeneous=False)[0]
        np.testing.assert_allclose(thor.refreshed["fc"][0], expected)


def test_weight_decay_and_kl_clipping_by_name():
    """Decay comes after the inverses; clipping shortens what has factors and nothing else."""
    parameters, (gradients, layers) = start(), batch()
    free, decayed, clipped = (
        Thor(0.5, 0.3, **options).update(parameters, gradients, layers)
        for options in ({}, dict(weight_decay={"fc.weight": 0.2}), dict(kl_clip=1e-3))
    )
    difference = free["fc.weight"] - decayed["fc.weight"]
    np.testing.assert_allclose(difference, 0.5 * 0.2 * parameters["fc.weight"], rtol=1e-9)
    np.testing.assert_array_equal(free["fc.bias"], decayed["fc.bias"])
    np.testing.assert_array_equal(free["scale"], clipped["scale"])
    u = {name: (parameters[name] - free[name]) / 0.5 for name in ("fc.weight", "fc.bias")}
    moved = sum(0.5**2 * np.sum(u[name] * gradients[name]) for name in u)
    assert moved > 1e-3
    for name in u:
        ratio = (clipped[name] - parameters[name]) / (free[name] - parameters[name])
        np.testing.assert_allclose(ratio, np.sqrt(1e-3 / moved), rtol=1e-8)


def test_lenets_update_solves_each_layers_system():
    """U satisfies (G + ..) U (A + ..) T = dW, with whole blocks; no inverse is compared."""
    random = np.random.default_rng(0)
    images, labels = random.normal(size=(4, 1, 32, 32)), random.integers(0, 10, 4)
    parameters = twins.lenet_parameters(1)
    _, gradients, layers = reference.lenet_gradients(parameters, images, labels)
    options = dict(bias="plain", split=None, momentum=0.0)
    after = Thor(0.1, 0.3, **options).update(parameters, gradients, layers)
    for layer, t in zip(layers, (28 * 28, 10 * 10, 1, 1, 1), strict=True):
        name = f"{layer.name}.weight"
        a, g, positions = layer.factors(homogeneous=False)
        assert positions == t
        u = ((parameters[name] - after[name]) / 0.1).reshape(len(g[0]), -1)
        damped_a = a[0] + np.sqrt(0.3 / t) * np.eye(len(a[0]))
        damped_g = g[0] + np.sqrt(0.3 / t) * np.eye(len(g[0]))
        # The weights are known to 1e-16, their differences over the rate to 1e-15.
        expected = gradients[name].reshape(u.shape)
        np.testing.assert_allclose(t * damped_g @ u @ damped_a, expected, rtol=1e-6, atol=1e-9)


def test_trace_of_fisher_is_that_of_the_whole_matrix():
    roots = RANDOM.normal(size=(2, 2, 4, 9))
    a, g = roots @ np.swapaxes(roots, 2, 3)
    whole = reference.kronecker_fisher(a, g, 5) + 0.7 * np.eye(2 * 16)
    actual = reference.trace_of_fisher(a, g, 5, 0.7)
    assert actual == pytest.approx(np.trace(whole), rel=1e-12)


# ---- MindSpore's GPU formulas: where they are THOR's, and where not


def both_formulas(*layer):
    layer = Layer("it", *layer)
    return [layer.factors(homogeneous=False, formulas=name) for name in ("upstream_gpu", "thor")]


def test_a_dense_factor_is_divided_by_the_width():
    """The figure measured on MindSpore's DenseThor: 4 rows of 8 ones give 0.5; 1 is right."""
    (a, g, positions), right = both_formulas(np.ones((4, 8)), np.ones((4, 2)))
    assert positions == (1, 1) and np.all(a == 0.5) and np.all(right[0] == 1)
    np.testing.assert_array_equal(g, right[1])


@pytest.mark.parametrize("rows", [1, 4])
def test_one_row_of_a_convolution_padded_same_is_right_and_a_batch_is_not(rows):
    inputs, slopes = RANDOM.normal(size=(rows, 2, 5, 6)), RANDOM.normal(size=(rows, 3, 5, 6))
    actual, right = both_formulas(inputs, slopes, Window((3, 3), padding=(1, 1, 1, 1)))
    assert actual[2] == (30, 30) and right[2] == 30
    for value, other in zip(actual[:2], right[:2], strict=True):
        assert np.allclose(value, other, rtol=1e-10, atol=1e-12) == (rows == 1)


def test_lenets_convolutions_are_seen_as_if_padded():
    inputs, slopes = RANDOM.normal(size=(2, 1, 32, 32)), RANDOM.normal(size=(2, 6, 28, 28))
    (_, g, positions), _ = both_formulas(inputs, slopes, Window((5, 5)))
    assert positions == (32 * 32, 28 * 28)
    mean = slopes.reshape(2, 6, -1).sum(axis=0)
    np.testing.assert_allclose(g[0], mean @ mean.T / 784, rtol=1e-12)
