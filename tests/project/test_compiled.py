"""What is read of compiled graphs is what they hold: on cells of which that is known beforehand."""

from collections import Counter

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from labkit.runtime import pynative
from tests.support.compiled import CALL, Operator, compiled_operators, read_graph

pytestmark = pytest.mark.usefixtures("runtime")

# Nodes without arithmetic that every small cell here has some of.
FRAME = {"Depend", "Load", "MakeTuple", "Return", "TupleGetItem", "UpdateState", CALL}


def ones(*shape):
    return Tensor(np.ones(shape, np.float32))


def arithmetic(operators):
    """Count the operators by name, without the frame."""
    return Counter(o.name for o in operators if o.name not in FRAME)


def only(operators, name):
    """The one operator of that name."""
    (operator,) = [o for o in operators if o.name == name]
    return operator


class Products(nn.Cell):
    """Multiplies its input (N, N) by itself three times: equal, used and dropped."""

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


class Constants(nn.Cell):
    """Constant tensors of one and four axes, which the graph prints over several lines."""

    def __init__(self):
        super().__init__()
        self.weight = Parameter(ones(2, 2, 2, 2), name="odd <name>, (2, 3): [x]")
        self.large = Tensor(np.arange(1200, dtype=np.float32).reshape(30, 40))

    def construct(self, inputs):
        out = inputs * Tensor([1.0, 2.0])
        out = out / (self.weight + Tensor([[[[1.0, 2.0], [3.0, 5.0]], [[1.0, 2.0], [3.0, 7.0]]]]))
        return ops.reduce_sum(out) + ops.reduce_sum(self.large)


class Tuples(nn.Cell):
    """Tuples in and out: two tensors of different shapes, and sums of three."""

    def construct(self, inputs):
        values, places = ops.topk(inputs, 2)
        return ops.addn((values, values * 2.0, ops.tanh(values))), places


def test_what_is_dropped_is_not_there_and_equal_nodes_are_one():
    counts = arithmetic(compiled_operators(Products(), ones(3, 3)))
    assert counts == {"Tanh": 1, "MatMul": 1, "Mul": 1}


def test_both_branches_and_the_body_of_a_loop_count_once():
    operators = compiled_operators(Branches(), ones(3, 3), Tensor(5))
    # The call of whichever branch it is, %3[@FuncUnion(@a, @b)](...), goes by a name of its own.
    assert all(o.name[0].isalpha() for o in operators)
    counts = arithmetic(operators)
    assert counts["MatMul"] == counts["Tan"] == counts["Exp"] == 1


def test_shapes_and_scope_of_a_dense_layer():
    network = nn.SequentialCell([nn.Dense(3, 4), nn.ReLU()])
    product = only(compiled_operators(network, ones(2, 3)), "MatMul")
    assert product == Operator("MatMul", ((2, 3), (4, 3)), ((2, 4),), False, "Default/0-Dense")


def test_convolution_and_its_gradients():
    network = nn.Conv2d(2, 6, (3, 5), pad_mode="valid")
    gradient = ops.grad(network, 0, network.trainable_params())

    class Gradient(nn.Cell):
        def construct(self, inputs):
            return network(inputs), gradient(inputs)

    operators = compiled_operators(Gradient(), ones(4, 2, 9, 8))
    image, weight, out = (4, 2, 9, 8), (6, 2, 3, 5), (4, 6, 7, 4)
    forward = only(operators, "Conv2D")
    assert (forward.inputs, forward.outputs, forward.gradient) == ((image, weight), (out,), False)
    by_weight = only(operators, "Conv2DBackpropFilter")
    assert (by_weight.inputs[:2], by_weight.outputs) == ((out, image), (weight,))
    by_image = only(operators, "Conv2DBackpropInput")
    assert (by_image.inputs[:2], by_image.outputs) == ((out, weight), (image,))
    assert by_weight.gradient and by_image.gradient


def test_constants_over_several_lines_hide_nothing():
    operators = compiled_operators(Constants(), ones(2, 2, 2, 2))
    counts = arithmetic(operators)
    assert counts["Mul"] == counts["Div"] == 1
    assert only(operators, "Mul").inputs == ((2, 2, 2, 2), (2,))
    assert only(operators, "Load").inputs == ((2, 2, 2, 2),)
    # The large constant's sum is a constant itself: added, never computed.
    assert [o.inputs for o in operators if o.name == "ReduceSum"] == [((2, 2, 2, 2),)]


def test_tensors_in_tuples_are_listed_one_by_one():
    operators = compiled_operators(Tuples(), ones(3, 5))
    assert only(operators, "TopK").outputs == ((3, 2), (3, 2))
    assert only(operators, "AddN").inputs == ((3, 2),) * 3


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
    # Another shape is another graph.
    assert arithmetic(compiled_operators(both, ones(4, 4))) == {"Tanh": 1, "Sigmoid": 1}


def test_nothing_stays(tmp_path, monkeypatch):
    """Neither settings, also of a call that fails, nor files."""
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
        Operator("Tan", ((2, 3),), ((-1, 3),), True, "Gradients/Default/a-A/Grad_Sin"),
        Operator("Return", ((-1, 3),), (), False, "Default"),
    ]


@pytest.mark.parametrize(
    ("part", "instead", "message"),
    [
        ("Total number of cnodes: 2", "", "an unknown number of nodes"),
        ("  %0(CNode_1) =", "    %0(CNode_1) =", "holds 2 nodes, and 1 were read"),
        ("      : (<Tensor[Float32], (-1, 3)>)\n      # Full", "      # Full", "no line of types"),
        ("      # Fullname with scope: (Grad", "      # Called: (Grad", "Tan has no scope"),
        ("      # Fullname with scope: (Default", "      # Called: (", "Return has no scope"),
        ("(<Tensor[Float32], (2, 3)>)", "(<Tensor[Float32], (2, 3>)", "do not close"),
    ],
)
def test_a_graph_in_another_form_is_an_error(part, instead, message):
    assert part in GRAPH
    with pytest.raises(ValueError, match=message):
        read_graph(GRAPH.replace(part, instead))
