"""Memory, operators and speed of a step, and the difference of two trainings, are measured."""

import subprocess
import sys
import time

import numpy as np
import pytest
from mindspore import Tensor, nn

from labkit import LossNet, PlainStep
from labkit.labs import measure
from labkit.labs.compare import largest_differences, relative_error
from labkit.nets.lenet import LeNet5

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


@pytest.mark.usefixtures("runtime")
def test_each_operator_of_a_lenet_step_is_counted_and_timed_per_call():
    network = LeNet5()
    loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    optimizer = nn.Momentum(network.trainable_params(), 0.01, 0.9)
    step = PlainStep(LossNet(network, loss_fn), optimizer, nonfinite="propagate")
    x = np.random.default_rng(0).standard_normal((64, 1, 32, 32), dtype=np.float32)
    begin = time.perf_counter()
    rows = measure.operator_times(step, Tensor(x), Tensor(np.int32(np.arange(64) % 10)), calls=2)
    seconds = time.perf_counter() - begin
    assert step.last_update.number == 2 + 1  # real updates, and one more call that compiles
    counts = {row["operator"]: row["count"] for row in rows}
    assert counts["ApplyMomentum"] == len(step.optimizer.parameters) == 8
    assert counts["AdaptiveMaxPool2D"] == counts["AdaptiveMaxPool2DGrad"] == 2
    assert counts["ReLU"] == counts["ReluGrad"] == 4
    # One gradient by weight per forward convolution; the images need no gradient.
    assert counts["Conv2D"] == counts["Conv2DBackpropFilter"] == 2
    assert counts["Conv2DBackpropInput"] == counts["other"] == 1
    times = [row["ms"] for row in rows]
    assert times == sorted(times, reverse=True)
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    # Kernels run one after another, so both calls of all kernels fit into the total. 64 images take
    # 1.6e8 operations, 0.1 ms at 1.6e12 per second. Neither bound depends on other programs.
    kernels = sum(row["ms"] for row in rows if row["operator"] != "other")
    assert 0.1 < kernels < seconds * 1e3 / 2


def test_a_profiles_lines_are_summed_by_operator_and_divided_by_the_calls():
    lines = [("A", 4, 2.0), ("B", 2, 10.0), ("A", 6, 2.0)]
    names = ("op_type", "op_occurrences", "op_total_time(ms)")
    rows = measure.by_operator([dict(zip(names, each, strict=True)) for each in lines], 2, 8.0)
    assert rows == [
        {"operator": "B", "count": 1.0, "ms": 5.0, "share": 0.625},
        {"operator": "A", "count": 5.0, "ms": 2.0, "share": 0.25},
        {"operator": "other", "count": 1, "ms": 1.0, "share": 0.125},
    ]


def test_differences_are_found_leaf_by_leaf():
    expected, other = ({"a": np.zeros((2, 3)), "b": np.array([3, x])} for x in (4.0, 4.5))
    assert largest_differences(other, expected) == {"a": 0.0, "b": 0.5}
    assert relative_error(other, expected) == pytest.approx(0.1)
