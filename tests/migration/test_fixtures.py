"""Recorded steps: what a digest sees and what it misses, and files that load as they were saved."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.errors import InputError
from labkit.migration import recorded
from labkit.migration.fixtures import KEPT, SUMS, Digest
from labkit.migration.trace import STAGES, Trace


def tensor(size=10_000, seed=0):
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


SHAPES = [(), (1,), (5,), (KEPT,), (KEPT + 1,), (7, 11), (64, 3, 3, 3), (10_000,)]


@pytest.mark.parametrize("shape", SHAPES)
def test_equal_tensors_are_at_distance_zero(shape):
    value = np.asarray(np.random.default_rng(1).normal(size=shape))
    digest = Digest.of(value)
    assert digest.distance(value) == 0 and digest.distance(value.copy(order="F")) == 0
    assert digest.shape == shape and digest.largest == np.abs(value).max()
    assert digest.kept.size == min(value.size, KEPT) and digest.sums.size == SUMS


@pytest.mark.parametrize("size", [2, 5, KEPT])
def test_of_a_small_tensor_every_number_is_kept(size):
    value = tensor(size)
    np.testing.assert_array_equal(Digest.of(value).kept, value)
    for index in range(size):
        other = value.copy()
        other[index] += 0.25
        assert Digest.of(value).distance(other) >= 0.24


CHANGES = {
    "permuted": lambda x: np.random.default_rng(5).permutation(x),
    "reversed": lambda x: x[::-1],
    "shifted by one": lambda x: np.roll(x, 1),
    "transposed": lambda x: x.reshape(100, 100).T.ravel(),
    "another sign": lambda x: -x,
    "scaled by 1.01": lambda x: 1.01 * x,
    "moved by 0.01": lambda x: x + 0.01,
    "noise of 0.01": lambda x: x + 0.01 * np.random.default_rng(6).normal(size=x.size),
    "one half lost": lambda x: np.where(np.arange(x.size) < x.size // 2, x, 0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_tensor_is_seen(change):
    for seed in range(5):
        value = tensor(seed=seed)
        other = CHANGES[change](value)
        true = np.abs(other - value).max()
        # At least a tenth of the largest difference. A scaled sum of independent errors is as large
        # as one of them, at most four standard deviations.
        assert 0.1 * true <= Digest.of(value).distance(other) <= 4 * true


def test_what_a_digest_cannot_see():
    """An error in one of 10 000 numbers, if that one is not kept, shows as 1/100 of its size."""
    value = tensor()
    index = next(i for i in range(value.size) if i not in recorded._positions(value.size))
    other = value.copy()
    other[index] += 0.5
    assert Digest.of(value).distance(other) == pytest.approx(0.5 / 100, rel=1e-3)
    # If the wrong number becomes the largest, its error shows in full.
    other[index] = 100
    assert Digest.of(value).distance(other) > 90


def test_sums_take_every_number_each_with_signs_of_its_own():
    signs = np.array([recorded._sums(row) for row in np.eye(200)]) * 200**0.5
    assert set(np.abs(signs).ravel().round(12)) == {1.0}
    # The standard error of a mean of 200 signs is 0.07, also for products of two columns.
    assert np.abs(signs.mean(0)).max() < 0.25
    assert np.abs(signs.T @ signs / 200 - np.eye(SUMS)).max() < 0.25


@settings(max_examples=40, deadline=None)
@given(size=st.integers(1, 3000), scale=st.floats(1e-20, 1e20), seed=st.integers(0, 99))
def test_distance_scales_with_the_tensor(size, scale, seed):
    value, noise = tensor(size, seed).astype(np.float64), tensor(size, seed + 100)
    moved = Digest.of(value).distance(value + 1e-3 * noise)
    other = Digest.of(scale * value).distance(scale * (value + 1e-3 * noise))
    assert moved > 0 and other == pytest.approx(scale * moved, rel=1e-6)


# ---- files


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded, "FOLDER", tmp_path / "steps")
    return tmp_path / "steps"


def test_a_trace_comes_back_as_digests(folder):
    stages = {
        "preprocessing": {"images": tensor(100).reshape(2, 50), "labels": np.arange(3)},
        "loss": {"loss": np.float64(1.25)},
        "gradients": {"b": tensor(7), "a": tensor(30)},
    }
    path = recorded.save("own", Trace("here", stages), {"batch": 2})
    assert path == folder / "own.npz" and recorded.names() == ["own"]
    actual = recorded.load("own")
    assert actual.origin == "here" and recorded.settings("own") == {"batch": 2}
    assert {s: list(t) for s, t in actual.stages.items()} == {s: list(t) for s, t in stages.items()}
    for stage, values in stages.items():
        for name, value in values.items():
            digest, expected = actual.stages[stage][name], Digest.of(value)
            assert digest.shape == np.shape(value) and digest.largest == expected.largest
            np.testing.assert_array_equal(digest.kept, expected.kept)
            np.testing.assert_array_equal(digest.sums, expected.sums)
            assert digest.distance(value) == 0


def test_unknown_names_are_refused(folder):
    with pytest.raises(InputError, match="unknown recorded step 'own'; expected one of: none"):
        recorded.load("own")


def test_shipped_steps():
    assert recorded.names() == ["resnet18", "resnet50", "tiny"]
    with pytest.raises(InputError, match="Did you mean 'resnet50'"):
        recorded.settings("resnet51")
    for name, tensors in {"resnet18": 62, "resnet50": 161}.items():
        settings, step = recorded.settings(name), recorded.load(name)
        assert tuple(step.stages) == STAGES and "float64" in step.origin
        assert settings["depth"] == int(name[6:]) and len(settings["losses"]) == 10
        assert len(step.stages["gradients"]) == len(step.stages["update"]) == tensors
        values = [digest for stage in step.stages.values() for digest in stage.values()]
        assert all(np.isfinite([*d.kept, *d.sums, d.largest]).all() for d in values)
        # No tensor is all zeros: an error in it would show.
        assert all(digest.largest > 0 for digest in values)
        assert (recorded.FOLDER / f"{name}.npz").stat().st_size < 200_000
