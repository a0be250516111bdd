"""What is said where memory is not enough: beside MindSpore's own error, which stays."""

import traceback

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops

from labkit.recipes.out_of_memory import advice, is_out_of_memory


class Outer(nn.Cell):
    """(N, 1) -> the sum of an (N, N) product: 36 TB for three million rows."""

    def construct(self, x):
        return ops.reduce_sum(ops.matmul(x, ops.transpose(x, (1, 0))) + 1.0)


@pytest.mark.usefixtures("runtime")
def test_mindspores_own_error_says_what_to_do_and_stays():
    rows = ms.Tensor(np.ones((3_000_000, 1), np.float32))
    with pytest.raises(RuntimeError) as caught, advice(batch_size=256, micro_steps=1):
        Outer()(rows)
    assert "Memory isn't enough and alloc failed" in str(caught.value)
    shown = "".join(traceback.format_exception(caught.value))
    assert "--set batch_size=128" in shown
    assert "--set batch_size=128 --set micro_steps=2: 256 images in an update as before" in shown


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("Device(id:0) memory isn\N{RIGHT SINGLE QUOTATION MARK}t enough", True),
        ("Memory not enough", True),
        ("CUDA error: out of memory", True),
        ("the memory of the past", False),
        ("", False),
    ],
)
def test_which_errors_are_about_memory(text, is_one):
    assert is_out_of_memory(RuntimeError(text)) is is_one


def notes(error, **sizes):
    with pytest.raises(type(error)), advice(**sizes):
        raise error
    return getattr(error, "__notes__", [])


def test_pythons_own_is_one():
    (note,) = notes(MemoryError(), batch_size=15, micro_steps=2)
    assert "batch_size=7 " in note and "batch_size=5 --set micro_steps=6: 30 images" in note


def test_a_single_image_cannot_be_divided():
    (note,) = notes(RuntimeError("out of memory"), batch_size=1, micro_steps=4)
    assert "reduce image_size or depth" in note and "--set" not in note


def test_other_errors_pass_as_they_are():
    assert notes(RuntimeError("shapes do not fit"), batch_size=8, micro_steps=1) == []


def test_nothing_happens_where_nothing_fails():
    with advice(8, 1):
        value = 1
    assert value == 1
