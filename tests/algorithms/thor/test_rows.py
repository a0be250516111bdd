"""A row is the batch's, wherever a layer has its axis: the same function, the same update."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

import labkit.steps.step
from labkit import reference
from labkit.algorithms.thor import ThorStep, ThorUpdate
from labkit.algorithms.thor.uses import observed as observed_uses
from labkit.errors import InputError
from labkit.runtime import pynative
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.gradients import set_state
from labkit.steps.losses import LossNet
from tests.support.step_cells import tensors
from tests.support.thor_layers import DIRECTION, FACTOR, fill, normal, off

pytestmark = pytest.mark.usefixtures("runtime")

ROWS, TIMES, WIDTH, CLASSES = 4, 6, 5, 3
# Whether axis 0 of the inputs counts time, and whether the layers see one axis of both together.
LAYOUTS = {
    "batch first": (False, False),
    "time first": (True, False),
    "batch first, flat": (False, True),
    "time first, flat": (True, True),
}


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
    """Inputs (B, T, 5) and labels (B,)."""
    return normal((ROWS, TIMES, WIDTH)), np.array([0, 2, 1, 0], np.int32)


def in_layout(x, time_first):
    return np.ascontiguousarray(x.swapaxes(0, 1)) if time_first else x


def observed(step):
    """A, G and T of each layer."""
    return {
        f"{layer.layer_name}.{name}": getattr(layer, name).asnumpy().copy()
        for layer in step.update.layers
        for name in ("a_factor", "g_factor", "positions")
    }


def first_update(network, x, labels, *, compiled=False, **options):
    """Update once at learning rate 1; return (what the layers have, what moved by name)."""

    def run():
        sgd = nn.SGD(network.trainable_params(), 1.0)
        loss_net = LossNet(network, nn.CrossEntropyLoss())
        step = ThorStep(loss_net, sgd, 0.1, frequency=1, **options)
        before = {p.name: p.asnumpy().astype(np.float64) for p in network.trainable_params()}
        step(*tensors(x, labels))
        after = {p.name: p.asnumpy() for p in network.trainable_params()}
        step.update.release()
        assert step.last_update.number == 1
        return observed(step), {name: after[name] - before[name] for name in before}

    if compiled:
        return run()
    with pynative():
        return run()


def in_float64(network, x, labels):
    """The same of ``Sequence`` by the reference, whose axis 0 counts rows."""
    values = {p.name: p.asnumpy().astype(np.float64) for p in network.trainable_params()}
    x = x.astype(np.float64)
    seen = np.tanh(x @ values["up.weight"].T + values["up.bias"])
    logits = (seen @ values["head.weight"].T + values["head.bias"]).mean(axis=1)
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    slope = (chances - np.eye(CLASSES)[labels])[:, None] / ROWS / TIMES
    slope = np.broadcast_to(slope, (ROWS, TIMES, CLASSES))
    below = slope @ values["head.weight"] * (1 - seen**2)
    layers = [reference.Layer("up", x, below), reference.Layer("head", seen, slope)]
    made, gradients = {}, {}
    for layer in layers:
        a, g, positions = reference.kronecker_factors(
            layer.inputs, layer.derivatives, homogeneous=True
        )
        made |= {f"{layer.name}.a_factor": a, f"{layer.name}.g_factor": g}
        made[f"{layer.name}.positions"] = np.array([positions, positions])
        gradients[f"{layer.name}.weight"] = np.einsum(
            "nto,nti->oi", layer.derivatives, layer.inputs
        )
        gradients[f"{layer.name}.bias"] = layer.derivatives.sum(axis=(0, 1))
    after = reference.Thor(1.0, 0.1, weight_decay=0.0).update(values, gradients, layers)
    return made, {name: after[name] - values[name] for name in values}


def assert_same(came, expected, bounds=(FACTOR, DIRECTION)):
    for ones, others, bound in zip(came, expected, bounds, strict=True):
        assert ones.keys() == others.keys()
        for name, value in others.items():
            assert off(ones[name], value) <= bound, name


class TestLayouts:
    # One is compiled, which takes 8 s; the same code runs operator by operator.
    @pytest.mark.parametrize("compiled", [False, True])
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_the_update_is_that_of_rows_first(self, layout, compiled):
        if compiled and layout != "time first":
            pytest.skip("compiled in one layout")
        time_first, flat = LAYOUTS[layout]
        network = fill(Sequence(time_first, flat))
        x, labels = sequences()
        expected = in_float64(network, x, labels)
        assert expected[0]["up.positions"][0] == TIMES
        options = {"batch_axis": 1} if time_first else {}
        came = first_update(network, in_layout(x, time_first), labels, compiled=compiled, **options)
        assert_same(came, expected)

    def test_a_convolution_on_maps_of_all_times(self):
        """(B T, C, H, W): as many maps a row as there are times."""

        class Video(nn.Cell):
            def __init__(self):
                super().__init__()
                self.conv = nn.Conv2d(2, 3, 3, pad_mode="valid", has_bias=True)

            def construct(self, x):
                shape = x.shape
                y = self.conv(x.reshape(-1, *shape[2:]))
                return ops.mean(y.reshape(shape[0], shape[1], 3, -1), (1, 3))

        x, labels = normal((ROWS, TIMES, 2, 4, 5)), sequences()[1]
        made, _ = first_update(fill(Video()), x, labels)
        assert made["conv.positions"].tolist() == [6 * TIMES, 6 * TIMES]


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


def test_mindspores_own_layers_in_both_orders():
    x, labels = normal((ROWS, TIMES, 4)), sequences()[1]
    networks = [Encoder(True), Encoder(False)]
    fill(networks[0])
    for one, other in zip(networks[1].get_parameters(), networks[0].get_parameters(), strict=True):
        set_state(one, other.asnumpy())
    skip = ("attention.out_proj",)
    expected = first_update(networks[0], x, labels, skip=skip)
    came = first_update(networks[1], in_layout(x, True), labels, skip=skip, batch_axis=1)
    assert expected[0]["head.positions"][0] == TIMES
    assert_same(came, expected, (1e-5, 1e-3))


class Token(nn.Cell):
    """One more position for the whole batch, and a layer that sees the batch's mean."""

    def __init__(self):
        super().__init__()
        self.up, self.mean = nn.Dense(WIDTH, CLASSES), nn.Dense(CLASSES, CLASSES)
        self.fine = nn.Dense(CLASSES, CLASSES)

    def construct(self, x):
        flat = ops.concat((x.reshape(-1, WIDTH), ops.ones((1, WIDTH), x.dtype)))
        y = self.up(flat)[:-1].reshape(x.shape[0], -1, CLASSES).mean(1)
        return self.fine(y) + self.mean(y.mean(0, True))


@pytest.fixture
def compiled(monkeypatch):
    """The calls that reached a graph which gathers factors; it is not run."""
    calls = []
    noted = lambda graph, *batch: calls.append(batch) or Tensor(0.0)  # noqa: E731
    monkeypatch.setattr(labkit.steps.step._WithExtras, "__call__", noted)
    return calls


def build(network, **options):
    sgd = nn.SGD(network.trainable_params(), 1.0)
    return ThorStep(LossNet(network, nn.CrossEntropyLoss()), sgd, 0.1, **options)


class TestRefused:
    def test_positions_that_the_rows_do_not_divide(self, compiled):
        step, batch = build(Token()), tensors(*sequences())
        with pytest.raises(InputError) as caught:
            step(*batch)
        said = str(caught.value)
        assert f"layer 'up' sees an input of shape (25, {WIDTH}), not a whole number of" in said
        assert "layer 'mean' sees an input of shape (1, 3)" in said and "batch's 4 rows" in said
        assert "skip=('up', 'mean')" in said and "fine" not in said and not compiled
        step.update.release()
        build(Token(), skip=("up", "mean"))(*batch)
        assert len(compiled) == 1

    def test_a_batch_that_does_not_tell_its_rows(self, compiled):
        x, labels = sequences()
        step = build(Sequence(True, False))
        with pytest.raises(InputError, match=r"disagree on its number of rows.*batch_axis"):
            step(*tensors(in_layout(x, True), labels))
        assert not compiled

    @pytest.mark.parametrize("labels", [(6, 4), (6, 4, 3)])
    @pytest.mark.parametrize("kind", ["float32", "int16", "int32"])
    @pytest.mark.parametrize("inputs", [(6, 4, WIDTH), (6, 4)])
    def test_two_axes_that_may_count_rows(self, inputs, labels, kind, compiled):
        """A layer at every time, on vectors, numbers or tokens: with labels of any type."""
        batch = tensors(np.zeros(inputs, np.float32), np.ones(labels, kind))
        step = self.at_every_time(inputs)
        with pytest.raises(InputError, match="either of two axes.*batch_axis=1 for time-major"):
            step(*batch)
        assert not compiled
        step.update.release()
        for axis, rows in ((0, 6), (1, 4)):
            step = self.at_every_time(inputs, batch_axis=axis, normalise="samples")
            step(*batch)
            (use,) = observed_uses(step.gradient, step.update.places, batch)
            assert np.prod(use.inputs[0][:-1]) == 24
            assert np.prod(use.fewer[0][:-1]) == 24 * 2 // rows
            step.update.release()
        assert len(compiled) == 2

    def at_every_time(self, inputs, **options):
        class Everywhere(nn.Cell):
            def __init__(self):
                super().__init__()
                self.dense = nn.Dense(inputs[2] if len(inputs) > 2 else 1, CLASSES)

            def construct(self, x):
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
            # Features, classes, channels and pixels are no time, and need no word.
            (nn.Dense(4, 4), (6, 4), (6, 4)),
            (nn.Dense(4, 3), (6, 4), (6,)),
            (nn.SequentialCell(nn.Flatten(), nn.Dense(75, 3)), (6, 3, 5, 5), (6, 3)),
            (nn.Conv2d(3, 3, 3), (6, 3, 5, 5), (6, 3, 5, 5)),
            (nn.Conv2d(3, 3, 3), (6, 3, 3, 3), (6, 3, 3)),
            # As many rows either way.
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
    """A layer on a table of ``times`` vectors, whatever the batch; or on a copy for each row."""

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
    @pytest.mark.parametrize("times", [4, 8])
    def test_also_where_its_positions_are_a_multiple_of_the_rows(self, times, compiled):
        batch = tensors(normal((4, times, WIDTH)), sequences()[1])
        step = build(Table(times, copies=False))
        with pytest.raises(InputError) as caught:
            step(*batch)
        said = str(caught.value)
        assert f"layer 'position' sees {times} positions for the batch's 4 rows and" in said
        assert f"{times} for 2 of them" in said and "skip=('position',)" in said and not compiled

    def test_a_copy_for_each_row_is_a_row(self, compiled):
        """Queries that are learned, as many for each row: they do not depend on the batch."""
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


@pytest.mark.parametrize("accumulated", [False, True])
def test_rows_whose_label_is_ignored_are_none(accumulated):
    """The same rows once more, ignored: loss, gradient, factors and update stay what they are."""
    random = np.random.default_rng(4)
    inputs, labels = random.normal(size=(4, 3)).astype(np.float32), np.int32([0, 1, 2, 1])

    def trained(*batch):
        ms.set_seed(3)
        network = nn.Dense(3, 3)
        loss_net = LossNet(nn.SequentialCell(network), nn.CrossEntropyLoss())
        optimizer = nn.SGD(network.trainable_params(), 1.0)
        if accumulated:
            update = ThorUpdate(loss_net, optimizer, 0.01)
            step = AccumulatedStep(loss_net, optimizer, 1, update=update)
        else:
            step = ThorStep(loss_net, optimizer, 0.01)
        step(*tensors(*batch))
        return step.update.layers[0].g_factor.asnumpy(), network.weight.asnumpy()

    expected = trained(inputs, labels)
    found = trained(np.tile(inputs, (2, 1)), np.append(labels, np.full(4, -100, np.int32)))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
