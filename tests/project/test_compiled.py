"""The operators read from compiled graphs are those they hold, for cells with known operators."""

from collections import Counter

import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from labkit.runtime import pynative
from tests.support.compiled import CALL, compiled_operators

pytestmark = pytest.mark.usefixtures("runtime")

# Nodes without arithmetic; every small cell in this file has some of them.
FRAME = {"Depend", "Load", "MakeTuple", "Return", "TupleGetItem", "UpdateState", CALL}


def arithmetic(call, *inputs):
    """Count the operators that a call compiles by name, without those in FRAME."""
    return Counter(o.name for o in compiled_operators(call, *inputs) if o.name not in FRAME)


class Branches(nn.Cell):
    """A loop around a condition that only the device knows; two products in it are equal."""

    def construct(self, inputs, count):
        while count > 0:
            if count > 2:
                inputs = ops.MatMul()(inputs, inputs) * ops.tanh(ops.MatMul()(inputs, inputs))
            else:
                inputs = ops.tan(inputs)
            count = count - 1
        return ops.exp(inputs)


def test_what_a_call_compiles_is_read_in_order_and_nothing_else():
    tanh, sigmoid, ones = nn.Tanh(), nn.Sigmoid(), Tensor(np.ones((3, 3), np.float32))
    # Equal nodes are one; a branch and the body of a loop count once. The call of a branch chosen
    # at run time, %3[@FuncUnion(@a, @b)](...), has the name CALL.
    counts = arithmetic(Branches(), ones, Tensor(5))
    assert all(counts[name] == 1 for name in ("MatMul", "Tanh", "Tan", "Exp"))

    def both(inputs):
        return sigmoid(tanh(inputs))

    assert list(arithmetic(both, ones)) == ["Tanh", "Sigmoid"]
    with pytest.raises(AssertionError, match="compiled nothing"):
        compiled_operators(both, ones)
    with pynative(), pytest.raises(AssertionError, match="PyNative"):
        compiled_operators(nn.Tanh(), ones)
    # A different shape compiles a different graph.
    assert arithmetic(both, ones[:2]) == {"Tanh": 1, "Sigmoid": 1}
