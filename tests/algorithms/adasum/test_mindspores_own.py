"""What MindSpore's two Adasums do themselves; lab 04, section 13, says which has which fault.

If one of these tests fails, a MindSpore release has changed the behaviour: change the lab with it.
"""

from contextlib import nullcontext
from types import SimpleNamespace

import mindspore.boost.adasum as of_boost
import mindspore.boost.boost_cell_wrapper as wrapper
import mindspore.nn.optim.adasum as of_nn
import numpy as np
import pytest
from mindspore import Tensor, nn


def sent(x):
    return x


class Forward(nn.Cell):
    """One level of the tree on the rank that keeps the right halves; it receives what it sends."""

    def __init__(self, module):
        super().__init__()
        self.forward = module._adasum_opt_forward

    def construct(self, x):
        return self.forward(True, sent, True, 0, sent, sent, x)


@pytest.mark.parametrize("length", [8, 7])
def test_boosts_does_not_compile(runtime, tmp_path, monkeypatch, length):
    monkeypatch.chdir(tmp_path)  # the compiler writes rank_0/om/analyze_fail.ir
    with pytest.raises(
        TypeError, match="Slice indices must be integers or bool. But got a Float32"
    ):
        Forward(of_boost)(Tensor(np.ones(length, np.float32)))


def test_nns_compiles(runtime):
    halves = Forward(of_nn)(Tensor(np.arange(1, 9, dtype=np.float32)))
    a, b = np.array([5.0, 6, 7, 8]), np.array([1.0, 2, 3, 4])
    expected = (1 - a @ b / (2 * a @ a)) * a + (1 - a @ b / (2 * b @ b)) * b
    np.testing.assert_allclose(halves.asnumpy(), expected, rtol=1e-5)


@pytest.mark.parametrize(("devices", "works"), [(2, False), (8, False), (24, False), (16, True)])
def test_too_few_devices_or_no_power_of_two(monkeypatch, capfd, devices, works):
    """That of nn raises; boost's is off without a word."""
    words = {"parallel_mode": "semi_auto_parallel", "pipeline_stages": 1}
    monkeypatch.setattr(of_nn.context, "get_auto_parallel_context", words.get)
    monkeypatch.setattr(of_nn, "_get_stage_device_num", lambda: devices)
    message = "must be at least 16 and must be the power of 2"
    with nullcontext() if works else pytest.raises(RuntimeError, match=message):
        of_nn._parallel_check()
    monkeypatch.setattr(wrapper, "get_group_size", lambda: devices)
    asked = SimpleNamespace(optimizer=SimpleNamespace(adasum=True), reducer_flag=True)
    assert wrapper.BoostTrainOneStepCell.check_adasum_enable(asked) is works
    assert capfd.readouterr() == ("", "")
