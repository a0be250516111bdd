"""What is read of compiled graphs is what they hold: on cells of which that is known beforehand."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from labkit.errors import InputError
from labkit.labs.profiling import by_operator, operator_times
from labkit.nets.lenet import LeNet5
from labkit.runtime import pynative
from labkit.steps.losses import LossNet
from labkit.steps.plain import PlainStep
from tests.support.compiled import CALL, Operator, by_shape, compiled_operators, read_graph
from tests.support.step_cells import digits, momentum, tensors

pytestmark = pytest.mark.usefixtures("runtime")

BOTH = ("optimised", "kernels")
STAGES = pytest.mark.parametrize("stage", BOTH)
# Nodes without arithmetic that every small cell here has some of.
FRAME = {"Depend", "Load", "MakeTuple", "Return", "TupleGetItem", "UpdateState", CALL}


def ones(*shape):
    return Tensor(np.ones(shape, np.float32))


def arithmetic(operators):
    """Count the operators by name, without the frame."""
    return Counter(o.name for o in operators if o.name not in FRAME)


def only(operators, name):
    """The one operator of that name."""
    (found,) = [o for o in operators if o.name == name]
    return found


class Dropped(nn.Cell):
    """Multiplies its input (N, N) by itself and drops the product, or, ``used``, adds it."""

    def __init__(self, used):
        super().__init__()
        self.used = used
        self.matmul = ops.MatMul()

    def construct(self, inputs):
        product = self.matmul(inputs, inputs)
        return ops.tanh(inputs) + product if self.used else ops.tanh(inputs)


class Twice(nn.Cell):
    """The same product, written twice; and one that differs."""

    def __init__(self):
        super().__init__()
        self.matmul = ops.MatMul()
        self.transposed = ops.MatMul(transpose_b=True)

    def construct(self, inputs):
        once = self.matmul(inputs, inputs)
        return once * self.matmul(inputs, inputs) + self.transposed(inputs, inputs)


class Branches(nn.Cell):
    """A product on one side of a condition that only the device knows, a tangent on the other."""

    def __init__(self):
        super().__init__()
        self.matmul = ops.MatMul()

    def construct(self, inputs, positive):
        out = inputs
        if positive > 0:
            out = self.matmul(inputs, inputs)
        else:
            out = ops.tan(inputs)
        return ops.exp(out)


class Loop(nn.Cell):
    """As many products as ``count`` says, on the device."""

    def __init__(self):
        super().__init__()
        self.matmul = ops.MatMul()

    def construct(self, inputs, count):
        while count > 0:
            inputs = self.matmul(inputs, inputs)
            count = count - 1
        return inputs


class Constants(nn.Cell):
    """Constant tensors of one to four axes, which the graph prints over several lines."""

    def __init__(self):
        super().__init__()
        self.weight = Parameter(ones(2, 2, 2, 2), name="odd <name>, (2, 3): [x]")
        self.large = Tensor(np.arange(1200, dtype=np.float32).reshape(30, 40))

    def construct(self, inputs):
        out = inputs * Tensor([1.0, 2.0]) + Tensor([[1.0, 2.0], [3.0, 4.0]])
        out = out - Tensor([[[1.0, 2.0], [3.0, 5.0]], [[1.0, 2.0], [3.0, 7.0]]])
        out = out / (self.weight + Tensor([[[[1.0, 2.0], [3.0, 5.0]], [[1.0, 2.0], [3.0, 7.0]]]]))
        return ops.reduce_sum(out) + ops.reduce_sum(self.large)


class Tuples(nn.Cell):
    """Tuples in and out: two tensors of different shapes, and sums of three."""

    def construct(self, inputs):
        values, places = ops.topk(inputs, 2)
        return ops.addn((values, values * 2.0, ops.tanh(values))), places


class TwoCells:
    """Two compiled cells behind one call, as a step has that refreshes now and then."""

    def __init__(self):
        self.cells = [Dropped(used=True), nn.Tanh()]
        self.calls = 0

    def __call__(self, inputs):
        self.calls += 1
        return self.cells[self.calls > 1](inputs)


@STAGES
def test_a_product_that_is_dropped_is_not_there(stage):
    came = compiled_operators(Dropped(used=False), ones(3, 3), stage=stage)
    assert arithmetic(came) == {"Tanh": 1}


@STAGES
def test_a_product_that_is_used_is_there(stage):
    came = compiled_operators(Dropped(used=True), ones(3, 3), stage=stage)
    assert arithmetic(came) == {"Tanh": 1, "MatMul": 1, "Add": 1}


@STAGES
def test_equal_nodes_are_one(stage):
    came = compiled_operators(Twice(), ones(3, 3), stage=stage)
    assert arithmetic(came)["MatMul"] == 2


@STAGES
def test_both_branches_of_a_condition_count(stage):
    operators = compiled_operators(Branches(), ones(3, 3), Tensor(1), stage=stage)
    # The call of whichever branch it is, %3[@FuncUnion(@a, @b)](...), goes by a name of its own.
    assert all(o.name[0].isalpha() for o in operators)
    came = arithmetic(operators)
    assert came["MatMul"] == came["Tan"] == came["Exp"] == 1


@STAGES
def test_the_body_of_a_loop_counts_once(stage):
    came = arithmetic(compiled_operators(Loop(), ones(3, 3), Tensor(5), stage=stage))
    assert came["MatMul"] == 1


@STAGES
def test_shapes_and_scope_of_a_dense_layer(stage):
    network = nn.SequentialCell([nn.Dense(3, 4), nn.ReLU()])
    product = only(compiled_operators(network, ones(2, 3), stage=stage), "MatMul")
    assert product == Operator("MatMul", ((2, 3), (4, 3)), ((2, 4),), False, "Default/0-Dense")


@STAGES
def test_convolution_and_its_gradients(stage):
    network = nn.Conv2d(2, 6, (3, 5), pad_mode="valid")
    gradient = ops.grad(network, 0, network.trainable_params())

    class Gradient(nn.Cell):
        def construct(self, inputs):
            return network(inputs), gradient(inputs)

    came = compiled_operators(Gradient(), ones(4, 2, 9, 8), stage=stage)
    image, weight, out = (4, 2, 9, 8), (6, 2, 3, 5), (4, 6, 7, 4)
    forward = only(came, "Conv2D")
    assert (forward.inputs, forward.outputs, forward.gradient) == ((image, weight), (out,), False)
    by_weight = only(came, "Conv2DBackpropFilter")
    assert (by_weight.inputs[:2], by_weight.outputs) == ((out, image), (weight,))
    by_image = only(came, "Conv2DBackpropInput")
    assert (by_image.inputs[:2], by_image.outputs) == ((out, weight), (image,))
    assert by_weight.gradient and by_image.gradient


def test_constants_over_several_lines_hide_nothing():
    came = compiled_operators(Constants(), ones(2, 2, 2, 2))
    counts = arithmetic(came)
    assert counts["Mul"] == counts["Sub"] == counts["Div"] == 1
    assert only(came, "Mul").inputs == ((2, 2, 2, 2), (2,))
    assert only(came, "Load").inputs == ((2, 2, 2, 2),)
    # The large constant's sum is a constant itself: added, never computed.
    assert [o.inputs for o in came if o.name == "ReduceSum"] == [((2, 2, 2, 2),)]


def test_tensors_in_tuples_come_one_by_one():
    came = compiled_operators(Tuples(), ones(3, 5))
    assert only(came, "TopK").inputs == ((3, 5),)
    assert only(came, "TopK").outputs == ((3, 2), (3, 2))
    assert only(came, "AddN").inputs == ((3, 2),) * 3


def test_what_a_call_compiles_is_read_and_nothing_else():
    step = TwoCells()
    assert arithmetic(compiled_operators(step, ones(3, 3))) == {"Tanh": 1, "MatMul": 1, "Add": 1}
    assert arithmetic(compiled_operators(step, ones(3, 3))) == {"Tanh": 1}
    with pytest.raises(InputError, match="compiled nothing"):
        compiled_operators(step, ones(3, 3))
    # Another shape is another graph.
    assert arithmetic(compiled_operators(step, ones(4, 4))) == {"Tanh": 1}


def test_several_graphs_of_one_call_are_read_in_order():
    def both(inputs):
        return nn.Sigmoid()(nn.Tanh()(inputs))

    came = compiled_operators(both, ones(3, 3))
    assert [o.name for o in came if o.name not in FRAME] == ["Tanh", "Sigmoid"]


def test_rows_put_equal_ones_together():
    network = nn.SequentialCell([nn.Dense(3, 3), nn.Dense(3, 3), nn.Dense(3, 2)])
    rows = [
        row
        for row in by_shape(compiled_operators(network, ones(2, 3)))
        if row["operator"] == "MatMul"
    ]
    common = {"operator": "MatMul", "gradient": False}
    assert rows == [
        common | {"inputs": ((2, 3), (2, 3)), "outputs": ((2, 2),), "count": 1},
        common | {"inputs": ((2, 3), (3, 3)), "outputs": ((2, 3),), "count": 2},
    ]


def test_the_kernels_are_those_that_the_profiler_times():
    """Of a LeNet step whose condition holds: all but the branch that was not taken."""
    network = LeNet5()
    loss_net = LossNet(network, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"))
    step = PlainStep(loss_net, momentum(network), clip_norm=1.0)
    batch = tensors(*digits(8))
    read = arithmetic(compiled_operators(step, *batch, stage="kernels"))
    timed = {row["operator"]: row["count"] for row in by_operator(operator_times(step, *batch))}
    del timed["other"]
    # Reshape moves no data and is no launch; one AssignAdd, the count of dropped batches, is in the
    # branch of a batch that is not finite.
    read["AssignAdd"] -= 1
    for views in (read, timed):
        views.pop("Reshape", None), views.pop("Flatten", None)
    assert read == timed


def test_with_all_that_mindspore_writes_it_is_the_same(root):
    """Here it writes only the files that are read (conftest.py); a user's writes them all."""
    program = (
        "import json, os\n"
        "from tests.support.compiled import compiled_operators\n"
        "from labkit.runtime import start\n"
        "from tests.test_compiled import Branches, Tensor, ones\n"
        "start(device='CPU', seed=1)\n"
        f"stages = {BOTH}\n"
        "read = [compiled_operators(Branches(), ones(3, 3), Tensor(1), stage=s) for s in stages]\n"
        "print(repr(read))\n"
    )
    env = {n: value for n, value in os.environ.items() if n != "MS_DEV_DUMP_IR_PASSES"}
    env["PYTHONPATH"] = str(root)
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    here = [compiled_operators(Branches(), ones(3, 3), Tensor(1), stage=s) for s in BOTH]
    assert done.stdout.splitlines()[-1] == repr(here)


class TestNothingStays:
    def settings(self):
        return ms.get_context("save_graphs"), ms.get_context("save_graphs_path")

    def test_settings_and_working_directory(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        before = self.settings()
        compiled_operators(nn.Tanh(), ones(2, 2))
        assert self.settings() == before
        nn.Sigmoid()(ones(2, 2))
        assert not list(tmp_path.iterdir())

    def test_settings_where_the_call_fails(self):
        def fails():
            raise RuntimeError("no kernel")

        before = self.settings()
        with pytest.raises(RuntimeError, match="no kernel"):
            compiled_operators(fails)
        assert self.settings() == before

    def test_settings_of_the_user_s_own(self, tmp_path):
        before = self.settings()
        ms.set_context(save_graphs=1, save_graphs_path=str(tmp_path))
        try:
            own = self.settings()
            compiled_operators(nn.Tanh(), ones(2, 2))
            assert self.settings() == own and not list(tmp_path.iterdir())
        finally:
            ms.set_context(save_graphs=before[0])
            ms.set_context(save_graphs_path=before[1])

    def test_temporary_files(self, tmp_path, monkeypatch):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        seen = []

        def call():
            nn.Tanh()(ones(2, 2))
            seen.extend(Path(tmp_path).rglob("*_validate_*.ir"))

        compiled_operators(call)
        assert seen and not list(tmp_path.iterdir())


class TestRefused:
    def test_stage(self):
        with pytest.raises(InputError, match="Did you mean 'kernels'"):
            compiled_operators(nn.Tanh(), ones(2, 2), stage="kernel")

    def test_call_without_a_cell(self):
        with pytest.raises(InputError, match="calls no Cell"):
            compiled_operators(lambda: 1)

    def test_pynative_mode(self):
        with pynative(), pytest.raises(InputError, match="PyNative"):
            compiled_operators(nn.Tanh(), ones(2, 2))


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
        ("cnodes: 2", "cnodes: 3", "holds 3 nodes, and 2 were read"),
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
