"""The profile of a step: every operator once, in the cells it belongs to, and times that add up."""

import time

import numpy as np
import pytest
from mindspore import Tensor, nn

from labkit import LossNet, PlainStep
from labkit.labs import measure as profiling
from labkit.nets.lenet import LeNet5

pytestmark = pytest.mark.usefixtures("runtime")


@pytest.fixture(scope="module")
def profiled(runtime):
    """(step, batch, rows of 2 calls, seconds that they took, updates so far) of LeNet."""
    network = LeNet5()
    loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    optimizer = nn.Momentum(network.trainable_params(), 0.01, 0.9)
    step = PlainStep(LossNet(network, loss_fn), optimizer, nonfinite="propagate")
    x = np.random.default_rng(0).standard_normal((64, 1, 32, 32), dtype=np.float32)
    batch = Tensor(x), Tensor(np.arange(64, dtype=np.int32) % 10)
    begin = time.perf_counter()
    rows = profiling.operator_times(step, *batch, calls=2)
    return step, batch, rows, time.perf_counter() - begin, step.last_update.number


def test_calls_are_counted_for_at_least_as_long_as_asked_for(monkeypatch):
    """On a fake clock a call takes 0.4 s; the first call, which compiles, does not count."""
    now, made = [0.0], []
    monkeypatch.setattr(profiling.time, "perf_counter", lambda: now[0])

    def call():
        made.append(now[0])
        now[0] += 0.4

    assert profiling.calls_per_second(call, 1.0) == pytest.approx(3 / 1.2) and len(made) == 4
    assert profiling.calls_per_second(call, 0.0) == pytest.approx(2.5)


def test_each_operator_is_counted_per_call_in_its_cell_and_direction(profiled):
    step, _, rows, _, updates = profiled
    assert updates == 2 + 1  # real updates, and one more call that compiles
    counts = {row["operator"]: row["count"] for row in profiling.by_operator(rows)}
    assert counts["ApplyMomentum"] == len(step.optimizer.parameters) == 8
    assert counts["AdaptiveMaxPool2D"] == counts["AdaptiveMaxPool2DGrad"] == 2
    assert counts["ReLU"] == counts["ReluGrad"] == 4
    # One gradient by weight per forward convolution; the images need no gradient.
    assert counts["Conv2D"] == counts["Conv2DBackpropFilter"] == 2
    assert counts["Conv2DBackpropInput"] == 1
    first = [row for row in rows if "LeNet5/conv1-" in row["scope"] and "Conv" in row["operator"]]
    forward = [row["operator"] for row in first if not row["scope"].startswith("Gradients")]
    backward = [row["operator"] for row in first if row["scope"].startswith("Gradients")]
    assert (forward, backward) == (["Conv2D"], ["Conv2DBackpropFilter"])


def test_times_are_milliseconds_of_a_call(profiled):
    _, _, rows, seconds, _ = profiled
    assert all(row["ms"] >= 0 for row in rows)
    assert rows[-1]["operator"] == "other"
    ordered = [row["ms"] for row in rows[:-1]]
    assert ordered == sorted(ordered, reverse=True)
    # Kernels run one after another, so both calls of all kernels fit into the total. 64 images take
    # 1.6e8 operations, 0.1 ms at 1.6e12 per second. Neither bound depends on other programs.
    assert 0.1 < sum(ordered) < seconds * 1e3 / 2


def test_by_operator_sums_counts_times_and_shares():
    rows = [
        {"operator": "A", "scope": "x", "count": 2.0, "ms": 1.0},
        {"operator": "B", "scope": "x", "count": 1.0, "ms": 6.0},
        {"operator": "A", "scope": "y", "count": 3.0, "ms": 1.0},
    ]
    assert profiling.by_operator(rows) == [
        {"operator": "B", "count": 1.0, "ms": 6.0, "share": 0.75},
        {"operator": "A", "count": 5.0, "ms": 2.0, "share": 0.25},
    ]
