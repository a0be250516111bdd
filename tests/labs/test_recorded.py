"""Recorded steps: what a digest sees and misses, files, and the rule's frozen numbers."""

import hashlib

import numpy as np
import pytest

from labkit.errors import InputError
from labkit.labs import recorded
from labkit.labs.one_step import STAGES
from labkit.labs.recorded import KEPT, Digest
from labkit.migration.trace import Trace, Value


def tensor(size=10_000, seed=0):
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


@pytest.mark.parametrize("shape", [(), (5,), (KEPT,), (KEPT + 1,), (7, 11), (64, 3, 3, 3)])
def test_equal_tensors_are_at_distance_zero_and_of_small_ones_each_number_counts(shape):
    value = np.asarray(np.random.default_rng(1).normal(size=shape))
    digest = Digest.of(value)
    assert digest.distance(value) == 0 and digest.distance(value.copy(order="F")) == 0
    assert digest.shape == shape and digest.largest == np.abs(value).max()
    for index in range(value.size if value.size <= KEPT else 0):
        other = value.copy()
        other.flat[index] += 0.25
        assert digest.distance(other) >= 0.24


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


# ---- files


def test_a_trace_comes_back_as_digests(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded, "FOLDER", tmp_path / "steps")
    batch = tensor(100).reshape(2, 50), np.arange(3)
    stages = {
        "loss": {"loss": np.float64(1.25)},
        "gradients": {"b": tensor(7), "a": tensor(30)},
    }
    values = {s: {n: Value(x, 0.125) for n, x in part.items()} for s, part in stages.items()}
    path = recorded.save("own", Trace("here", values, batch), {"batch": 2})
    stages = {"preprocessing": {"images": batch[0], "labels": batch[1]}} | stages
    assert path == tmp_path / "steps" / "own.npz"
    actual = recorded.load("own")
    assert actual.origin == "here" and recorded.settings("own") == {"batch": 2}
    assert {s: list(t) for s, t in actual.stages.items()} == {s: list(t) for s, t in stages.items()}
    for stage, values in stages.items():
        for name, value in values.items():
            (digest, noise), expected = actual.stages[stage][name], Digest.of(value)
            assert noise == (0.125 if stage != "preprocessing" else 0)
            assert digest.shape == np.shape(value) and digest.largest == expected.largest
            np.testing.assert_array_equal(digest.kept, expected.kept)
            np.testing.assert_array_equal(digest.sums, expected.sums)


def test_shipped_steps():
    with pytest.raises(InputError, match="resnet18, resnet50.*Did you mean 'resnet50'"):
        recorded.settings("resnet51")
    for name, tensors in {"resnet18": 62, "resnet50": 161}.items():
        settings, step = recorded.settings(name), recorded.load(name)
        assert tuple(step.stages) == STAGES and "float64" in step.origin
        assert settings["depth"] == int(name[6:]) and len(settings["losses"]) == 10
        assert len(step.stages["gradients"]) == len(step.stages["update"]) == tensors
        # No tensor is all zeros: an error in it would show.
        for digest, _ in (value for stage in step.stages.values() for value in stage.values()):
            assert np.isfinite([*digest.kept, *digest.sums]).all() and 0 < digest.largest < np.inf
        assert (recorded.FOLDER / f"{name}.npz").stat().st_size < 200_000


# ---- the rule

# Frozen: the recorded steps were made from these numbers. Truncated SHA-256 of their bytes.
SHAPES = {"conv.weight": (64, 32, 3, 3), "fc.weight": (100, 50), "scale": ()}
SHAPES |= {"bn.num_batches_tracked": ()}
FROZEN = {
    "conv.weight": "20f78f2d5142b55af546273298ad38b92c48c067",
    "bn.weight": "df9e0f48e0a010ce5c066cde80227631ea7c02d9",
    "bn.bias": "9838aa6a1f9f64de385f0e34fa40d0d8df761a36",
    "bn.running_mean": "5b1e5e1d8a40f2869bb754e643a25e57e0605c3d",
    "bn.running_var": "edd70c5203a3c8fd2f31d7840cb343d879400ca9",
    "bn.num_batches_tracked": "af5570f5a1810b7af78caf4bc70a660f0df51e42",
    "norm.weight": "abd0a0a7e4781e59ab49e08b87ca12f879b69de5",
    "fc.weight": "70df4462343b8a53f587b47c1fd4bb8f882af1fd",
    "fc.bias": "824f8578c8b21f4245510a764f10cbc79022cf56",
    "scale": "05d1140a7b5860c97aca58ba40a9b26073bb581c",
    "images": "83a8f77c8383408a95afd6727749055831067980",
    "labels": "2aa25a7f6aca33f94af86ab860124e7d69e43231",
}


def test_the_rules_numbers_are_frozen():
    images, labels = recorded.batch(4, 16, 10)
    assert images.dtype == np.float32 and labels.dtype == np.int32
    numbers = recorded.state({name: SHAPES.get(name, (4000,)) for name in [*FROZEN][:10]})
    numbers |= {"images": images, "labels": labels}
    sums = {n: hashlib.sha256(value.tobytes()).hexdigest()[:40] for n, value in numbers.items()}
    assert sums == FROZEN
    with pytest.raises(InputError, match="side: expected a multiple of 4, got 30"):
        recorded.batch(2, 30, 10)
