"""The rule gives the same numbers everywhere."""

import hashlib

import numpy as np
import pytest

from labkit.errors import InputError
from labkit.migration import rule

# Frozen: the recorded steps were made from these numbers. Shape, and truncated SHA-256 of bytes.
FROZEN = {
    "conv.weight": ((64, 32, 3, 3), "20f78f2d5142b55af546273298ad38b92c48c067"),
    "bn.weight": ((4000,), "df9e0f48e0a010ce5c066cde80227631ea7c02d9"),
    "bn.bias": ((4000,), "9838aa6a1f9f64de385f0e34fa40d0d8df761a36"),
    "bn.running_mean": ((4000,), "5b1e5e1d8a40f2869bb754e643a25e57e0605c3d"),
    "bn.running_var": ((4000,), "edd70c5203a3c8fd2f31d7840cb343d879400ca9"),
    "bn.num_batches_tracked": ((), "af5570f5a1810b7af78caf4bc70a660f0df51e42"),
    "norm.weight": ((4000,), "abd0a0a7e4781e59ab49e08b87ca12f879b69de5"),
    "fc.weight": ((100, 50), "70df4462343b8a53f587b47c1fd4bb8f882af1fd"),
    "fc.bias": ((4000,), "824f8578c8b21f4245510a764f10cbc79022cf56"),
    "scale": ((), "05d1140a7b5860c97aca58ba40a9b26073bb581c"),
}
BATCH = {
    "images": "83a8f77c8383408a95afd6727749055831067980",
    "labels": "2aa25a7f6aca33f94af86ab860124e7d69e43231",
}


@pytest.fixture(scope="module")
def state():
    return rule.state({name: shape for name, (shape, _) in FROZEN.items()})


def test_the_numbers_are_frozen(state):
    images, labels = rule.batch(4, 16, 10)
    assert images.dtype == np.float32 and labels.dtype == np.int32
    numbers = state | {"images": images, "labels": labels}
    sums = {
        name: hashlib.sha256(value.tobytes()).hexdigest()[:40] for name, value in numbers.items()
    }
    assert sums == {name: checksum for name, (_, checksum) in FROZEN.items()} | BATCH


def test_a_side_that_is_no_multiple_of_4_is_refused():
    with pytest.raises(InputError, match="side: expected a multiple of 4, got 30"):
        rule.batch(2, 30, 10)
