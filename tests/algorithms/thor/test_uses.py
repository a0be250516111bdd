"""Layers that are not used by their calls alone, seen on the first batch, before it is compiled."""

import os

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

import labkit.steps.step
from labkit.algorithms.thor import ThorStep, ThorUpdate
from labkit.algorithms.thor.layers import tapped_cells
from labkit.algorithms.thor.uses import observed
from labkit.errors import InputError
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.losses import LossNet
from tests.support.step_cells import assert_bit_equal, momentum, snapshot, tensors
from tests.support.thor_layers import normal

pytestmark = pytest.mark.usefixtures("runtime")


class Uses(nn.Cell):
    """Dense layers (4, 4), each used in the way that its name says; (N, 4) -> (N, 4)."""

    def __init__(self):
        super().__init__()
        self.called, self.both, self.uncalled = nn.Dense(4, 4), nn.Dense(4, 4), nn.Dense(4, 4)
        self.unused, self.twice, self.for_its_bias = nn.Dense(4, 4), nn.Dense(4, 4), nn.Dense(4, 4)
        self.looked_at = nn.Dense(4, 4)

    def construct(self, x):
        x = self.twice(ops.tanh(self.twice(self.called(x))))
        x = ops.matmul(self.both(x), self.both.weight)
        x = ops.matmul(x, self.uncalled.weight.T)
        x = self.for_its_bias(x) * self.for_its_bias.bias
        return ops.cast(self.looked_at(x), self.looked_at.weight.dtype)


WRONG = ("both", "uncalled", "unused", "for_its_bias")


def step_of(network, **options):
    return ThorStep(LossNet(network, nn.MSELoss()), momentum(network), 0.1, **options)


def batch(rows=5):
    return tensors(normal((rows, 4)), normal((rows, 4), 1))


@pytest.fixture
def compiled(monkeypatch):
    """The calls that reached a graph which gathers factors; it is not run."""
    calls = []

    def noted(graph, *batch):
        calls.append(batch)
        return Tensor(0.0)

    monkeypatch.setattr(labkit.steps.step._WithExtras, "__call__", noted)
    return calls


class TestRefused:
    def test_all_are_named_at_once_and_nothing_is_compiled(self, compiled):
        step = step_of(Uses())
        before = snapshot(step)
        with pytest.raises(InputError) as caught:
            step(*batch())
        said = str(caught.value)
        assert f"skip={WRONG}" in said and "\n" not in said
        assert "layer 'both' is called, and its weight or bias is used elsewhere as well" in said
        assert "layer 'uncalled' is never called, though its weight is used" in said
        assert "layer 'unused' is never called, and its weight is not used" in said
        assert "layer 'for_its_bias' is called, and its weight or bias is used elsewhere" in said
        assert not compiled
        assert_bit_equal(snapshot(step), before)

    def test_skipped_by_that_argument_they_train(self, compiled):
        step = step_of(Uses(), skip=WRONG)
        names = [layer.layer_name for layer in step.update.layers]
        assert names == ["called", "twice", "looked_at"]
        step(*batch())
        assert len(compiled) == 1

    def test_by_a_step_that_accumulates_too(self, compiled):
        network = Uses()
        loss_net, optimizer = LossNet(network, nn.MSELoss()), momentum(network)
        update = ThorUpdate(loss_net, optimizer, 0.1)
        step = AccumulatedStep(loss_net, optimizer, 2, update=update)
        with pytest.raises(InputError, match="layer 'uncalled' is never called"):
            step(*batch())
        assert not compiled

    def test_a_weight_penalty_in_the_loss_is_a_use(self, compiled):
        network = nn.SequentialCell(nn.Dense(4, 4))

        class Penalised(LossNet):
            def construct(self, x, y):
                weight = self.network[0].weight
                return super().construct(x, y) + 1e-3 * ops.reduce_sum(ops.square(weight))

        step = ThorStep(Penalised(network, nn.MSELoss()), momentum(network), 0.1)
        with pytest.raises(InputError, match="layer '0' is called, and its weight or bias is used"):
            step(*batch())

    def test_in_float16_too(self, compiled):
        step = step_of(Uses(), precision="O2", loss_scale=2.0**10)
        with pytest.raises(InputError) as caught:
            step(*batch())
        assert f"skip={WRONG}" in str(caught.value)

    def test_a_layer_that_a_later_batch_leaves_out(self):
        """What the graph has gathered is looked at as well: nothing was seen of these layers."""
        update = step_of(nn.SequentialCell(nn.Dense(4, 4), nn.Dense(4, 4))).update
        seen = np.array([[0.0, 1.0, 1.0], [0.0, 1.0, 1.0]])
        with pytest.raises(InputError, match=r"'0' was not called, though .*skip=\('0', '1'\)"):
            update._check_factors(seen, 3)


class Gated(nn.Cell):
    """x -> W2 tanh(W1 x) + gate * W1' tanh(W1 x), the gate closed at first."""

    def __init__(self, *, relu, head=None):
        super().__init__()
        self.tied, self.other = nn.Dense(4, 4, has_bias=False), nn.Dense(4, 4)
        self.gate = Parameter(Tensor(np.zeros(1, np.float32)), name="gate")
        self.relu = relu
        self.head = nn.Dense(4, 4, weight_init="zeros") if head else None

    def construct(self, x):
        x = ops.tanh(self.tied(x))
        more = self.gate * ops.matmul(x, self.tied.weight)
        y = self.other(x) + (ops.relu(more) if self.relu else more)
        return y if self.head is None else self.head(y)


class TestBehindZeros:
    @pytest.mark.parametrize("relu, head", [(False, False), (True, False), (False, True)])
    def test_a_use_that_begins_with_nothing_is_seen(self, relu, head, compiled):
        network = Gated(relu=relu, head=head)
        step = step_of(network)
        before = snapshot(step)
        with pytest.raises(InputError, match=r"skip=\('tied',\)"):
            step(*batch())
        assert not compiled
        assert_bit_equal(snapshot(step), before)
        assert network.gate.asnumpy() == 0

    def test_zeros_alone_are_no_use(self, compiled):
        """ReZero: a gate that begins with 0, behind a layer that its own calls alone use."""

        class ReZero(nn.Cell):
            def __init__(self):
                super().__init__()
                self.dense, self.head = nn.Dense(4, 4), nn.Dense(4, 4, weight_init="zeros")
                self.gate = Parameter(Tensor(np.zeros(1, np.float32)), name="gate")

            def construct(self, x):
                return self.head(x + self.gate * ops.tanh(self.dense(x)))

        step_of(ReZero())(*batch())
        assert len(compiled) == 1


class TestMarkedWithJit:
    @pytest.mark.parametrize("marked", ["construct", "method", "both"])
    def test_the_layers_are_seen_all_the_same(self, marked, compiled, monkeypatch):
        monkeypatch.setenv("MS_JIT", "1")

        class Body(nn.Cell):
            def __init__(self):
                super().__init__()
                self.called, self.uncalled = nn.Dense(4, 4), nn.Dense(4, 4)

            def body(self, x):
                return ops.matmul(ops.tanh(self.called(x)), self.uncalled.weight)

            def construct(self, x):
                return self.body(x)

        for name in {"method": ("body",), "both": ("body", "construct")}.get(marked, (marked,)):
            setattr(Body, name, ms.jit(getattr(Body, name)))
        with pytest.raises(InputError, match=r"skip=\('uncalled',\)"):
            step_of(Body())(*batch())
        assert not compiled
        step_of(Body(), skip=("uncalled",))(*batch())
        assert len(compiled) == 1 and os.environ["MS_JIT"] == "1"


class TestMindSporesAttention:
    """``layers.py`` knows that nn.MultiheadAttention does not call its out_proj."""

    def test_it_does_not(self, monkeypatch):
        class Network(nn.Cell):
            def __init__(self):
                super().__init__()
                self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
                self.out = nn.Dense(4, 4)

            def construct(self, x):
                return self.out(self.attention(x, x, x)[0])

        monkeypatch.setattr("labkit.algorithms.thor.layers._left_out", lambda place: "")
        network = Network()
        step = step_of(network)
        inputs, targets = tensors(normal((3, 2, 4)), normal((3, 2, 4), 1))
        out, attention = observed(step.gradient, step.update.places, (inputs, targets))
        assert (attention.inputs, attention.elsewhere) == ([], True)
        assert (out.inputs, out.elsewhere) == ([(3, 2, 4)], False)
        # What its Python notes in passing would be in the graph that is compiled next.
        assert network.attention.k_is_v is False


class Normed(nn.Dense):
    """Divides its input by its length first."""

    def construct(self, x):
        return ops.matmul(x / ops.norm(x, dim=1, keepdim=True), self.weight.T) + self.bias


class Doubled(nn.Conv2d):
    def construct(self, x):
        return 2 * super().construct(x)


class Same(nn.Dense):
    """The same by other operators; it has an activation function, which is behind the tap."""

    def construct(self, x):
        y = ops.matmul(x, self.weight.T) + self.bias
        return self.activation(y) if self.activation_flag else y


class Maps(nn.Cell):
    def __init__(self):
        super().__init__()
        self.same, self.normed = Same(4, 4, activation="relu"), Normed(4, 4)
        self.doubled = Doubled(1, 1, 2, has_bias=True)

    def construct(self, x):
        x = self.normed(self.same(x)).reshape(-1, 1, 2, 2)
        return self.doubled(x).reshape(-1, 4)


class TestSubclasses:
    def test_one_that_computes_something_else_is_refused(self, compiled):
        said = (
            "layer 'normed' is of class Normed, which computes something else than Dense; layer "
            "'doubled' is of class Doubled, which computes something else than Conv2d; .*"
            r"skip=\('normed', 'doubled'\)"
        )
        with pytest.raises(InputError, match=said):
            step_of(Maps())(*batch())
        assert not compiled

    def test_one_that_computes_the_same_is_taken(self, compiled):
        step = step_of(Maps(), skip=("normed", "doubled"))
        step(*batch())
        assert compiled and [place.name for place in step.update.places] == ["same"]


class Changing(nn.Cell):
    """A forward pass with random numbers, running statistics and an attribute that it counts."""

    def __init__(self):
        super().__init__()
        self.dense, self.norm = nn.Dense(4, 4), nn.BatchNorm1d(4)
        self.dropout = nn.Dropout(p=0.5)
        self.calls = 0
        self.average = Parameter(Tensor(0.0), name="average", requires_grad=False)

    def construct(self, x):
        self.calls = self.calls + 1
        x = self.dropout(self.norm(self.dense(x)))
        x = ops.dropout(x, 0.5, True)
        average = ops.assign(self.average, ops.reduce_mean(x))
        return ops.depend(x, average)


class TestLooking:
    def test_it_leaves_no_trace(self):
        network = Changing()
        step = step_of(network)
        cells = tapped_cells(step.update.places)
        taps, before = [cell.tap for cell in cells], snapshot(step)
        random = ms.get_rng_state().asnumpy()
        uses = observed(step.gradient, step.update.places, batch())
        assert [(use.inputs, use.elsewhere) for use in uses] == [([(5, 4)], False)]
        assert_bit_equal(snapshot(step), before)
        assert network.calls == 0 and network.training
        np.testing.assert_array_equal(ms.get_rng_state().asnumpy(), random)
        assert [cell.tap for cell in cells] == taps and not any(cell.watch for cell in cells)
        assert ms.get_context("mode") == ms.GRAPH_MODE

    def test_once_for_each_shape_of_a_batch(self, compiled, monkeypatch):
        looks = []
        monkeypatch.setattr(
            "labkit.algorithms.thor.update.check_uses",
            lambda *given: looks.append(len(given[-1][0])),
        )
        step = step_of(nn.SequentialCell(nn.Dense(4, 4)))
        for rows in (5, 5, 3, 5):
            step(*batch(rows))
        assert looks == [5, 3] and len(compiled) == 4

    def test_a_bias_that_is_in_no_factor_may_be_used(self):
        step = step_of(Uses(), skip=("both", "uncalled", "unused"), bias="plain")
        uses = observed(step.gradient, step.update.places, batch())
        assert [use.elsewhere for use in uses] == [False] * 4

    def test_each_call_of_a_layer(self):
        step = step_of(Uses(), skip=WRONG)
        uses = observed(step.gradient, step.update.places, batch())
        assert [len(use.inputs) for use in uses] == [1, 2, 1]
        assert not any(use.elsewhere for use in uses)
