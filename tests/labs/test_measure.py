"""Memory, operators and speed of a step, and the difference of two trainings, are measured."""

import subprocess
import sys

import numpy as np
import pytest

from labkit.labs import measure
from labkit.labs.compare import largest_differences, relative_error

SAMPLED = """
import time

import numpy as np
from labkit.labs import measure

with measure.Peak() as peak:
    before = measure.anonymous_mb()
    block = np.ones(20_000_000)  # 160 MB
    time.sleep(0.05)  # the sampler's thread has its turn, also where other processes compute
    del block
print(peak.value - before, measure.anonymous_mb() - before)
"""


def test_the_sampler_sees_a_peak_that_is_gone_at_the_end():
    # In a separate process: memory left by other tests may be released at any moment.
    run = subprocess.run([sys.executable, "-c", SAMPLED], text=True, capture_output=True)
    assert run.returncode == 0, run.stderr
    peak, left = map(float, run.stdout.split())
    assert 155 < peak < 175
    assert left < 80


@pytest.mark.long
def test_accumulation_is_flat_and_the_full_batch_is_not():
    """1024 images take 295 MB at once and 224 MB as 32 micro-batches of 32."""
    small, large = measure.sweep([32, 1024])
    assert (small["batch"], large["batch"]) == (32, 1024)
    assert large["accumulated_mb"] < 1.05 * min(small["accumulated_mb"], small["full_mb"])
    assert large["full_mb"] > small["full_mb"] + 40
    assert large["full_mb"] > large["accumulated_mb"] + 40


@pytest.mark.long
def test_accumulation_adds_at_most_1_1_copies_of_25_million_weights():
    copy = (3 * (2880 * 2880 + 2880) + 2880 * 10 + 10) * 4 / 1e6
    assert 99 < copy < 101
    (plain,), (accumulated,) = measure.peaks_mb("dense", [8]), measure.peaks_mb("dense", [32], 8)
    assert 0 < accumulated - plain < 1.1 * copy


def test_differences_are_found_leaf_by_leaf():
    expected, other = ({"a": np.zeros((2, 3)), "b": np.array([3, x])} for x in (4.0, 4.5))
    assert largest_differences(other, expected) == {"a": 0.0, "b": 0.5}
    assert relative_error(other, expected) == pytest.approx(0.1)
