"""The operators read from compiled graphs are those they hold, for cells with known operators."""

from collections import Counter

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from labkit.runtime import pynative
from tests.support.compiled import CALL, Operator, compiled_operators, read_graph

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


def test_shapes_and_scopes_of_a_convolution_and_its_gradients():
    network = nn.SequentialCell([nn.Conv2d(2, 6, (3, 5), pad_mode="valid"), nn.ReLU()])
    gradient = ops.grad(network, 0, network.trainable_params())

    class Gradient(nn.Cell):
        def __init__(self):
            super().__init__()
            self.network = network

        def construct(self, inputs):
            return self.network(inputs), gradient(inputs)

    operators = {o.name: o for o in compiled_operators(Gradient(), ones(4, 2, 9, 8))}
    shapes = {"Conv2D": (4, 6, 7, 4), "Conv2DBackpropFilter": (6, 2, 3, 5)}
    for name, shape in (shapes | {"Conv2DBackpropInput": (4, 2, 9, 8)}).items():
        assert operators[name].outputs == (shape,)
        assert operators[name].scope.startswith("Gradients/") == (name != "Conv2D")
    assert operators["Conv2D"].scope == "Default/network-SequentialCell/0-Conv2d"


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


def test_nothing_stays(tmp_path, monkeypatch):
    """Settings are restored, even after a call that fails, and no files remain."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    names = ("save_graphs", "save_graphs_path")
    before = [ms.get_context(name) for name in names]

    def fails():
        nn.Tanh()(ones(2, 2))
        assert list(tmp_path.rglob("*_validate_*.ir"))
        raise RuntimeError("no kernel")

    with pytest.raises(RuntimeError, match="no kernel"):
        compiled_operators(fails)
    assert [ms.get_context(name) for name in names] == before
    nn.Sigmoid()(ones(2, 2))
    assert not list(tmp_path.iterdir())


GRAPH = """
Total number of cnodes: 2
subgraph @1_construct() {
  %0(CNode_1) = PrimFunc_Tan(%para1_x) cnode_attrs: {checkpoint: Bool(1)}
      : (<Tensor[Float32], (2, 3)>) -> (<Tensor[Float32], (-1, 3)>)
      # Fullname with scope: (Gradients/Default/a-A/Grad_Sin/Tan-op0)
  Return(%0)
      : (<Tensor[Float32], (-1, 3)>)
      # Fullname with scope: (Default/Return-op0)
}
"""


def test_a_graph_as_it_is_written():
    assert read_graph(GRAPH) == [
        Operator("Tan", ((-1, 3),), "Gradients/Default/a-A/Grad_Sin"),
        Operator("Return", (), "Default"),
    ]


@pytest.mark.parametrize(
    ("part", "instead", "message"),
    [
        ("Total number of cnodes: 2", "", "an unknown number of nodes"),
        ("  %0(CNode_1) =", "    %0(CNode_1) =", "holds 2 nodes, and 1 were read"),
        ("      : (<Tensor[Float32], (-1, 3)>)\n      # Full", "      # Full", "no line of types"),
        ("      # Fullname with scope: (Grad", "      # Called: (Grad", "Tan has no scope"),
        ("      # Fullname with scope: (Default", "      # Called: (", "Return has no scope"),
        ("-> (<Tensor[Float32], (-1, 3)>)", "-> (<Tensor[Float32], (-1, 3>)", "do not close"),
    ],
)
def test_a_graph_in_another_form_is_an_error(part, instead, message):
    assert part in GRAPH
    with pytest.raises(ValueError, match=message):
        read_graph(GRAPH.replace(part, instead))
