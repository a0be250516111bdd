"""Figures of lab 02: windows are MindSpore's, and a fault is red where the comparison finds it."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from labkit.labs.figures import migration as figures
from labkit.migration.compare import Row
from tests.support.figures import drawn

CASES = [(8, 3, 1), (8, 3, 2), (9, 3, 2), (8, 7, 2), (12, 5, 3), (4, 7, 4), (7, 1, 2), (10, 5, 4)]


@pytest.mark.parametrize(("size", "kernel", "stride"), CASES)
def test_the_windows_are_those_of_mindspore(eager, size, kernel, stride):
    """Row i holds 2^i, so the sum of a window shows which rows are in it."""
    column = Tensor(2.0 ** np.arange(size).reshape(1, 1, size, 1), ms.float32)
    half = (kernel - 1) // 2
    modes = [dict(pad_mode="pad", padding=(half, half, 0, 0)), dict(pad_mode="same")]
    sides_of = figures.paddings(size, kernel, stride)
    assert list(sides_of) == [f"padding={half}", '"same"']
    for mode, sides in zip(modes, sides_of.values(), strict=True):
        layer = nn.Conv2d(1, 1, (kernel, 1), stride, weight_init="ones", **mode)
        sums = layer(column).asnumpy()[0, 0, :, 0]
        seen = figures.rows_seen(size, kernel, stride, sides)
        assert [sum(2**row for row in rows) for rows in seen] == sums.tolist()


def test_tensors_are_counted_by_stage_and_layer_and_the_first_fault_is_named():
    rows = [
        Row("preprocessing", "images", 0.0, 1e-6, True),
        Row("weights", "conv1.weight", 0.0, 0.0, True),
        Row("weights", "layer2.0.bn1.weight", 0.0, 0.0, True),
        Row("forward", "maxpool", 0.5, 1e-4, False),
        Row("forward", "conv1", 0.0, 1e-4, True),
        Row("forward", "layer2.0.conv2", 0.5, 1e-4, False),
        Row("forward", "avgpool", 0.5, 1e-4, False),
        Row("forward", "fc", 1e-6, 1e-4, True),
        Row("loss", "loss", 0.5, 1e-5, False),
    ]
    assert figures.spread(rows) == {
        ("preprocessing", ""): (0, 1),
        ("weights", "stem"): (0, 1),
        ("weights", "layer2"): (0, 1),
        ("forward", "stem"): (1, 2),
        ("forward", "layer2"): (1, 1),
        ("forward", "fc"): (0, 1),
        ("loss", ""): (1, 1),
    }
    axis = drawn(figures.fault, rows, "max-pool")
    assert axis.get_title() == "max-pool\nfirst: forward, maxpool"
    texts = [text.get_text() for text in axis.texts]
    assert texts == ["ok", "ok", "ok", "1/2", "1/1", "ok", "1/1"]
    assert drawn(figures.fault, rows[:3], "nothing").get_title().endswith("all stages agree")
