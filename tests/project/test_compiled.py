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


def ones(*shape):
    return Tensor(np.ones(shape, np.float32))


def arithmetic(operators):
    """Count the operators by name, without those in FRAME."""
    return Counter(o.name for o in operators if o.name not in FRAME)


class Products(nn.Cell):
    """Multiplies its input (N, N) by itself three times: two equal products, one unused product."""

    def __init__(self):
        super().__init__()
        self.matmul, self.transposed = ops.MatMul(), ops.MatMul(transpose_b=True)

    def construct(self, inputs):
        dropped = self.transposed(inputs, inputs)  # noqa: F841
        return self.matmul(inputs, inputs) * ops.tanh(self.matmul(inputs, inputs))


class Branches(nn.Cell):
    """A loop around a condition that only the device knows."""

    def __init__(self):
        super().__init__()
        self.matmul = ops.MatMul()

    def construct(self, inputs, count):
        while count > 0:
            if count > 2:
                inputs = self.matmul(inputs, inputs)
            else:
                inputs = ops.tan(inputs)
            count = count - 1
        return ops.exp(inputs)


def test_what_is_dropped_is_not_there_and_equal_nodes_are_one():
    counts = arithmetic(compiled_operators(Products(), ones(3, 3)))
    assert counts == {"Tanh": 1, "MatMul": 1, "Mul": 1}


def test_both_branches_and_the_body_of_a_loop_count_once():
    operators = compiled_operators(Branches(), ones(3, 3), Tensor(5))
    # The call of a branch chosen at run time, %3[@FuncUnion(@a, @b)](...), has the name CALL.
    assert all(o.name[0].isalpha() for o in operators)
    counts = arithmetic(operators)
    assert counts["MatMul"] == counts["Tan"] == counts["Exp"] == 1


def test_what_a_call_compiles_is_read_in_order_and_nothing_else():
    tanh, sigmoid = nn.Tanh(), nn.Sigmoid()

    def both(inputs):
        return sigmoid(tanh(inputs))

    operators = compiled_operators(both, ones(3, 3))
    assert [o.name for o in operators if o.name not in FRAME] == ["Tanh", "Sigmoid"]
    with pytest.raises(AssertionError, match="compiled nothing"):
        compiled_operators(both, ones(3, 3))
    with pynative(), pytest.raises(AssertionError, match="PyNative"):
        compiled_operators(nn.Tanh(), ones(2, 2))
    # A different shape compiles a different graph.
    assert arithmetic(compiled_operators(both, ones(4, 4))) == {"Tanh": 1, "Sigmoid": 1}
