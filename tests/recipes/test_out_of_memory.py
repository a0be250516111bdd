"""Advice when memory runs out; test_resnet50.py covers the error that MindSpore raises."""

import pytest

from labkit.recipes.out_of_memory import advice


def notes(error, batch_size, micro_steps):
    with pytest.raises(type(error)), advice(batch_size, micro_steps):
        raise error
    return getattr(error, "__notes__", [])


@pytest.mark.parametrize(
    ("error", "is_about_memory"),
    [
        (MemoryError(), True),
        (RuntimeError("Device(id:0) memory isn\N{RIGHT SINGLE QUOTATION MARK}t enough"), True),
        (RuntimeError("Memory not enough"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("the memory of the past"), False),
        (RuntimeError(""), False),
    ],
)
def test_errors_about_memory_get_one_note_and_others_none(error, is_about_memory):
    assert len(notes(error, 8, 1)) == is_about_memory


def test_the_batch_is_divided_by_its_smallest_factor():
    (note,) = notes(MemoryError(), batch_size=15, micro_steps=2)
    assert "batch_size=7 " in note and "batch_size=5 --set micro_steps=6: 30 images" in note
    (note,) = notes(MemoryError(), batch_size=1, micro_steps=4)
    assert "reduce image_size or depth" in note and "--set" not in note
