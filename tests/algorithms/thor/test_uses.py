"""Layers whose weight is used by their own calls alone, on rows along any axis, and all others.

The check looks at the first batch, before it is compiled.
"""

import os

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

import labkit.steps.graph
from labkit.algorithms.thor import ThorStep, ThorUpdate
from labkit.algorithms.thor.stops import check_factors
from labkit.algorithms.thor.taps import tapped_cells
from labkit.algorithms.thor.uses import observed
from labkit.errors import InputError
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.losses import LossNet
from labkit.steps.state import set_state
from tests.support.step_cells import assert_bit_equal, momentum, snapshot, tensors, unchanged
from tests.support.thor_layers import DIRECTION, FACTOR, fill, normal, off

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
    """The calls that reach a graph that gathers factors; the graph does not run."""
    calls = []
    noted = lambda graph, *batch: calls.append(batch) or Tensor(0.0)  # noqa: E731
    monkeypatch.setattr(labkit.steps.graph.WithExtras, "__call__", noted)
    return calls


class TestElsewhere:
    def test_all_are_named_at_once_and_nothing_is_compiled(self, compiled):
        step = step_of(Uses())
        with unchanged(step), pytest.raises(InputError) as raised:
            step(*batch())
        said = str(raised.value)
        assert f"skip={WRONG}" in said and "\n" not in said
        assert "layer 'both' is called, and its weight or bias is used elsewhere as well" in said
        assert "layer 'uncalled' is never called, though its weight is used" in said
        assert "layer 'unused' is never called, and its weight is not used" in said
        assert "layer 'for_its_bias' is called, and its weight or bias is used elsewhere" in said
        assert not compiled

    def test_skipped_by_that_argument_they_train(self, compiled):
        step = step_of(Uses(), skip=WRONG)
        names = [layer.layer_name for layer in step.update.layers]
        assert names == ["called", "twice", "looked_at"]
        step(*batch())
        assert len(compiled) == 1
        uses = observed(step.gradient, step.update.places, batch())
        assert [len(use.inputs) for use in uses] == [1, 2, 1]
        assert not any(use.elsewhere for use in uses)

    def test_by_a_step_that_accumulates_in_float16_too(self, compiled):
        network = Uses()
        loss_net, optimizer = LossNet(network, nn.MSELoss()), momentum(network)
        update = ThorUpdate(loss_net, optimizer, 0.1)
        options = {"update": update, "precision": "O2", "loss_scale": 2.0**10}
        step = AccumulatedStep(loss_net, optimizer, 2, **options)
        with pytest.raises(InputError) as raised:
            step(*batch())
        assert f"skip={WRONG}" in str(raised.value) and not compiled

    def test_a_weight_penalty_in_the_loss_is_a_use(self, compiled):
        network = nn.SequentialCell(nn.Dense(4, 4))

        class Penalised(LossNet):
            def construct(self, x, y):
                weight = self.network[0].weight
                return super().construct(x, y) + 1e-3 * ops.reduce_sum(ops.square(weight))

        step = ThorStep(Penalised(network, nn.MSELoss()), momentum(network), 0.1)
        with pytest.raises(InputError, match="layer '0' is called, and its weight or bias is used"):
            step(*batch())

    def test_a_layer_that_a_later_batch_leaves_out(self):
        """The gathered factors are checked as well: the graph has seen nothing of these layers."""
        update = step_of(nn.SequentialCell(nn.Dense(4, 4), nn.Dense(4, 4))).update
        seen = np.array([[0.0, 1.0, 1.0], [0.0, 1.0, 1.0]])
        with pytest.raises(InputError, match=r"'0' was not called, though .*skip=\('0', '1'\)"):
            check_factors(update.layers, seen, 3)


class Gated(nn.Cell):
    """x -> W2 tanh(W1 x) + gate * W1' tanh(W1 x), with the gate closed at first."""

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
    @pytest.mark.parametrize("relu, head", [(True, False), (False, True)])
    def test_a_use_that_begins_with_nothing_is_seen(self, relu, head, compiled):
        network = Gated(relu=relu, head=head)
        step = step_of(network)
        with unchanged(step), pytest.raises(InputError, match=r"skip=\('tied',\)"):
            step(*batch())
        assert not compiled
        assert network.gate.asnumpy() == 0

    def test_zeros_alone_are_no_use(self, compiled):
        """ReZero has a gate that starts at 0, after a layer that only its own calls use."""

        class ReZero(nn.Cell):
            def __init__(self):
                super().__init__()
                self.dense, self.head = nn.Dense(4, 4), nn.Dense(4, 4, weight_init="zeros")
                self.gate = Parameter(Tensor(np.zeros(1, np.float32)), name="gate")

            def construct(self, x):
                return self.head(x + self.gate * ops.tanh(self.dense(x)))

        step_of(ReZero())(*batch())
        assert len(compiled) == 1

    def test_a_switch_that_is_off_stays_off(self, compiled):
        class Switched(nn.Cell):
            def __init__(self):
                super().__init__()
                self.dense = nn.Dense(4, 4)
                self.on = Parameter(Tensor(False), name="on", requires_grad=False)

            def construct(self, x):
                y = self.dense(x)
                return ops.where(self.on, ops.matmul(y, self.dense.weight), y)

        step_of(Switched())(*batch())
        assert len(compiled) == 1


class TestMarkedWithJit:
    @pytest.mark.parametrize("marked", [("body",), ("body", "construct")])
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

        for name in marked:
            setattr(Body, name, ms.jit(getattr(Body, name)))
        with pytest.raises(InputError, match=r"skip=\('uncalled',\)"):
            step_of(Body())(*batch())
        assert not compiled
        step_of(Body(), skip=("uncalled",))(*batch())
        assert len(compiled) == 1 and os.environ["MS_JIT"] == "1"


class TestMindSporesAttention:
    """``geometry.py`` knows that nn.MultiheadAttention does not call its out_proj."""

    def test_it_does_not(self, monkeypatch):
        class Network(nn.Cell):
            def __init__(self):
                super().__init__()
                self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
                self.out = nn.Dense(4, 4)

            def construct(self, x):
                return self.out(self.attention(x, x, x)[0])

        monkeypatch.setattr("labkit.algorithms.thor.geometry._left_out", lambda place: "")
        network = Network()
        step = step_of(network)
        inputs, targets = tensors(normal((3, 2, 4)), normal((3, 2, 4), 1))
        out, attention = observed(step.gradient, step.update.places, (inputs, targets))
        assert (attention.inputs, attention.elsewhere) == ([], True)
        assert (out.inputs, out.elsewhere) == ([(3, 2, 4)], False)
        # Otherwise what its Python code sets during the check would be in the next compiled graph.
        assert network.attention.k_is_v is False


class Normed(nn.Dense):
    """A dense layer that first divides its input by the input's length."""

    def construct(self, x):
        return ops.matmul(x / ops.norm(x, dim=1, keepdim=True), self.weight.T) + self.bias


class Doubled(nn.Conv2d):
    def construct(self, x):
        return 2 * super().construct(x)


class Same(nn.Dense):
    """The same by other operators; its activation function comes after the tap."""

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

    @pytest.mark.parametrize("shape", [(5, 2, 2), (5, 4)], ids=["of its input", "of its output"])
    def test_nor_one_of_another_shape(self, shape, compiled):
        class Folded(nn.Dense):
            def construct(self, x):
                y = ops.matmul(x.reshape(-1, 4), self.weight.T) + self.bias
                return y if x.ndim == 3 else y.reshape(-1, 2, 2)

        network = nn.SequentialCell(Folded(4, 4), nn.Flatten())
        with pytest.raises(InputError, match="'0' is of class Folded, which computes something"):
            step_of(network)(*tensors(normal(shape), normal((5, 4), 1)))
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
            lambda stage, places, batch: looks.append(len(batch[0])),
        )
        step = step_of(nn.SequentialCell(nn.Dense(4, 4)))
        for rows in (5, 5, 3, 5):
            step(*batch(rows))
        assert looks == [5, 3] and len(compiled) == 4


ROWS, TIMES, WIDTH, CLASSES = 4, 6, 5, 3


class Sequence(nn.Cell):
    """(B, T, 5) or (T, B, 5) -> (B, 3): two dense layers at every time, the mean over all times."""

    def __init__(self, time_first, flat):
        super().__init__()
        self.up, self.head = nn.Dense(WIDTH, 7), nn.Dense(7, CLASSES)
        self.time_first, self.flat = time_first, flat

    def construct(self, x):
        shape = x.shape
        if self.flat:
            x = x.reshape(-1, shape[2])
        y = self.head(ops.tanh(self.up(x))).reshape(shape[0], shape[1], -1)
        return ops.mean(y, 0 if self.time_first else 1)


def sequences():
    """Return inputs (B, T, 5) and labels (B,)."""
    return normal((ROWS, TIMES, WIDTH)), np.array([0, 2, 1, 0], np.int32)


def first_update(network, x, labels, **options):
    """Update once at learning rate 1; return A, G and T of each layer, and the moves, by name."""
    step = build(network, frequency=1, **options)
    before = {p.name: p.asnumpy().astype(np.float64) for p in network.trainable_params()}
    step(*tensors(x, labels))
    moved = {p.name: p.asnumpy() - before[p.name] for p in network.trainable_params()}
    step.update.release()
    state = snapshot(step.update.layers)
    return {name: value for name, value in state.items() if "inverse" not in name}, moved


@pytest.mark.parametrize("time_first, flat", [(True, False), (False, True), (True, True)])
def test_the_update_is_that_of_rows_first(time_first, flat, eager):
    """Function and rows are the same; test_taps.py compares the rows-first update with float64."""
    x, labels = sequences()
    factors, moved = first_update(fill(Sequence(False, False)), x, labels)
    assert factors["thor.up.positions"][0] == TIMES
    options = {"batch_axis": 1} if time_first else {}
    x = np.ascontiguousarray(x.swapaxes(0, 1)) if time_first else x
    others = first_update(fill(Sequence(time_first, flat)), x, labels, **options)
    for values, expected, bound in zip(others, (factors, moved), (FACTOR, DIRECTION), strict=True):
        assert values.keys() == expected.keys()
        for name, value in expected.items():
            assert off(values[name], value) <= bound, name


class Encoder(nn.Cell):
    """MindSpore's own attention and LSTM, in either order of axes."""

    def __init__(self, batch_first):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=batch_first)
        self.between = nn.Dense(4, 4, activation="tanh")
        self.lstm = nn.LSTM(4, 4, batch_first=batch_first)
        self.head = nn.Dense(4, CLASSES)
        self.time = 1 if batch_first else 0

    def construct(self, x):
        x = self.between(self.attention(x, x, x)[0])
        return ops.mean(self.head(self.lstm(x)[0]), self.time)


def test_mindspores_own_layers_in_both_orders(eager):
    x, labels = normal((ROWS, TIMES, 4)), sequences()[1]
    first, second = fill(Encoder(True)), Encoder(False)
    for copy, parameter in zip(second.get_parameters(), first.get_parameters(), strict=True):
        set_state(copy, parameter.asnumpy())
    skip = ("attention.out_proj",)
    expected = first_update(first, x, labels, skip=skip)
    x = np.ascontiguousarray(x.swapaxes(0, 1))
    others = first_update(second, x, labels, skip=skip, batch_axis=1)
    assert expected[0]["thor.head.positions"][0] == TIMES
    for values, due, bound in zip(others, expected, (1e-5, 1e-3), strict=True):
        assert values.keys() == due.keys()
        for name, value in due.items():
            assert off(values[name], value) <= bound, name


class Token(nn.Cell):
    """An extra position for the whole batch, and a layer that sees the batch's mean."""

    def __init__(self):
        super().__init__()
        self.up, self.mean = nn.Dense(WIDTH, CLASSES), nn.Dense(CLASSES, CLASSES)
        self.fine = nn.Dense(CLASSES, CLASSES)

    def construct(self, x):
        flat = ops.concat((x.reshape(-1, WIDTH), ops.ones((1, WIDTH), x.dtype)))
        y = self.up(flat)[:-1].reshape(x.shape[0], -1, CLASSES).mean(1)
        return self.fine(y) + self.mean(y.mean(0, True))


def build(network, **options):
    sgd = nn.SGD(network.trainable_params(), 1.0)
    return ThorStep(LossNet(network, nn.CrossEntropyLoss()), sgd, 0.1, **options)


class TestRowsRefused:
    def test_positions_that_the_rows_do_not_divide(self, compiled):
        step, batch = build(Token()), tensors(*sequences())
        with pytest.raises(InputError) as raised:
            step(*batch)
        said = str(raised.value)
        assert f"layer 'up' sees an input of shape (25, {WIDTH}), not a whole number of" in said
        assert "layer 'mean' sees an input of shape (1, 3)" in said and "batch's 4 rows" in said
        assert "skip=('up', 'mean')" in said and "fine" not in said and not compiled
        step.update.release()
        build(Token(), skip=("up", "mean"))(*batch)
        assert len(compiled) == 1

    @pytest.mark.parametrize(
        "inputs, labels, kind",
        [
            ((6, 4, WIDTH), (6, 4), "int32"),
            ((6, 4), (6, 4), "int16"),
            ((6, 4), (6, 4, 3), "float32"),
        ],
    )
    def test_two_axes_that_may_count_rows(self, inputs, labels, kind, compiled):
        """The layer sees every time, as vectors, numbers or tokens, with labels of any type."""
        batch = tensors(np.zeros(inputs, np.float32), np.ones(labels, kind))
        step = self.at_every_time(inputs)
        with pytest.raises(InputError, match="either of two axes.*batch_axis=1 for time-major"):
            step(*batch)
        assert not compiled
        step.update.release()
        for axis, rows in ((0, 6), (1, 4)):
            step = self.at_every_time(inputs, batch_axis=axis, normalise="samples")
            step(*batch)
            (use,) = observed(step.gradient, step.update.places, batch)
            assert np.prod(use.inputs[0][:-1]) == 24
            assert np.prod(use.fewer[0][:-1]) == 24 * 2 // rows
            step.update.release()
        assert len(compiled) == 2

    def test_a_scalar_before_the_inputs_hides_nothing(self, compiled):
        inputs, labels = tensors(np.zeros((6, 4, WIDTH), np.float32), np.ones((6, 4), np.int32))
        step = self.at_every_time(inputs.shape)
        with pytest.raises(InputError, match="either of two axes.*batch_axis=1 for time-major"):
            step(Tensor(2.0), inputs, labels)
        assert not compiled

    def at_every_time(self, inputs, **options):
        class Everywhere(nn.Cell):
            def __init__(self):
                super().__init__()
                self.dense = nn.Dense(inputs[2] if len(inputs) > 2 else 1, CLASSES)

            def construct(self, *parts):
                x = parts[-1]
                return self.dense(x if x.ndim > 2 else x.expand_dims(-1))

        class OwnLoss(nn.Cell):
            def construct(self, y, labels):
                labels = ops.cast(labels, y.dtype)
                return ops.mean(ops.square(y - (labels if labels.ndim > 2 else labels[..., None])))

        network = Everywhere()
        sgd = nn.SGD(network.trainable_params(), 1.0)
        return ThorStep(LossNet(network, OwnLoss()), sgd, 0.1, loss="sample mean", **options)

    @pytest.mark.parametrize(
        "layer, inputs, labels",
        [
            # Features, classes, channels and pixels are not times, and need no argument.
            (nn.Dense(4, 4), (6, 4), (6, 4)),
            (nn.Dense(4, 3), (6, 4), (6,)),
            (nn.SequentialCell(nn.Flatten(), nn.Dense(75, 3)), (6, 3, 5, 5), (6, 3)),
            (nn.Conv2d(3, 3, 3), (6, 3, 5, 5), (6, 3, 5, 5)),
            (nn.Conv2d(3, 3, 3), (6, 3, 3, 3), (6, 3, 3)),
            # The number of rows is the same either way.
            (nn.Dense(5, 3), (4, 4, 5), (4, 4)),
        ],
    )
    def test_no_word_where_the_layers_show_it(self, layer, inputs, labels, compiled):
        class Loss(nn.Cell):
            def construct(self, y, labels):
                return ops.mean(y) + 0 * ops.mean(labels)

        sgd = nn.SGD(layer.trainable_params(), 1.0)
        step = ThorStep(LossNet(layer, Loss()), sgd, 0.1, loss="sample mean")
        step(*tensors(normal(inputs), normal(labels)))
        assert len(compiled) == 1


class Table(nn.Cell):
    """A layer on a table of ``times`` vectors, for any batch; or on a copy for each row."""

    def __init__(self, times, *, copies, rows=None):
        super().__init__()
        self.table = Parameter(Tensor(normal((times, WIDTH))), name="table")
        self.position, self.up = nn.Dense(WIDTH, CLASSES), nn.Dense(WIDTH, CLASSES)
        self.copies, self.rows = copies, rows

    def construct(self, x):
        table = self.table
        if self.rows is not None:
            x = x.reshape(self.rows, -1, WIDTH)
        if self.copies:
            table = ops.tile(table.expand_dims(0), (x.shape[0], 1, 1))
        return ops.mean(self.up(x) + self.position(table), 1)


class TestALayerThatSeesNoRows:
    @pytest.mark.parametrize(("rows", "times", "part"), [(4, 4, 2), (4, 8, 2), (2, 4, 1)])
    def test_also_where_its_positions_are_a_multiple_of_the_rows(self, rows, times, part, compiled):
        batch = tensors(normal((rows, times, WIDTH)), sequences()[1][:rows])
        step = build(Table(times, copies=False))
        with pytest.raises(InputError) as raised:
            step(*batch)
        said = str(raised.value)
        assert f"layer 'position' sees {times} positions for the batch's {rows} rows and" in said
        assert f"{times} for {part} of them" in said and "skip=('position',)" in said
        assert not compiled

    def test_a_copy_for_each_row_is_a_row(self, compiled):
        """Learned queries, the same number for each row, do not depend on the batch."""
        for rows in (4, 3):
            batch = tensors(normal((rows, 6, WIDTH)), sequences()[1][:rows])
            step = build(Table(6, copies=True))
            step(*batch)
            step.update.release()
        assert len(compiled) == 2

    def test_a_network_of_a_fixed_number_of_rows_trains(self, compiled):
        batch = tensors(normal((4, 3, WIDTH)), sequences()[1])
        network = Table(3, copies=True, rows=4)
        step = build(network)
        step(*batch)
        assert len(compiled) == 1


def test_rows_whose_label_is_ignored_are_none(eager):
    """Repeating the rows with ignored labels changes neither gradient, factors nor update.

    Nor do labels that are probabilities, where the mean is over all rows.
    """
    random = np.random.default_rng(4)
    inputs, labels = random.normal(size=(4, 3)).astype(np.float32), np.int32([0, 1, 2, 1])

    def trained(*batch):
        ms.set_seed(3)
        network = nn.Dense(3, 3)
        loss_net = LossNet(nn.SequentialCell(network), nn.CrossEntropyLoss())
        optimizer = nn.SGD(network.trainable_params(), 1.0)
        update = ThorUpdate(loss_net, optimizer, 0.01)
        step = AccumulatedStep(loss_net, optimizer, 1, update=update)
        step(*tensors(*batch))
        return step.update.layers[0].g_factor.asnumpy(), network.weight.asnumpy()

    expected = trained(inputs, labels)
    ignored = trained(np.tile(inputs, (2, 1)), np.append(labels, np.full(4, -100, np.int32)))
    probabilities = trained(inputs, np.eye(3, dtype=np.float32)[labels])
    for values in (ignored, probabilities):
        for value, right in zip(values, expected, strict=True):
            np.testing.assert_allclose(value, right, rtol=1e-4, atol=1e-6)
