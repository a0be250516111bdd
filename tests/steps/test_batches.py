"""Batches as they come: nested, by name, of any length, cut into parts; outputs of any form."""

import itertools
import warnings
from unittest import mock

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from mindspore.common.api import _CellGraphExecutor

from labkit.algorithms.thor import ThorUpdate
from labkit.errors import InputError
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.losses import LossNet, TokenLossNet
from labkit.steps.state import set_state
from labkit.steps.step import PlainStep
from tests import twins
from tests.support.step_cells import (
    OUTPUTS,
    STEPS,
    assert_bit_equal,
    assert_close,
    exact,
    linear,
    momentum,
    regression,
    rows,
    snapshot,
    tensors,
    unchanged,
)
from tests.support.tolerances import TOLERANCE

pytestmark = pytest.mark.usefixtures("runtime")
CLASSES, WIDTH = 7, 3


class Tokens(nn.Cell):
    """Tokens (B, T) and what to keep of them -> logits (B, T, V)."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(CLASSES, WIDTH), nn.Dense(WIDTH, CLASSES)
        for seed, weight in enumerate(self.trainable_params()):
            values = np.random.default_rng(seed).normal(size=weight.shape)
            set_state(weight, values.astype(np.float32))

    def construct(self, tokens, keep):
        return self.head(self.table(tokens) * ops.expand_dims(keep, -1))


class InOne(Tokens):
    """``Tokens`` of one nested input."""

    def construct(self, batch):
        return self.head(self.table(batch["tokens"]) * ops.expand_dims(batch["more"][0][1], -1))


def by_rows(logits, labels):
    return ops.cross_entropy(logits.reshape(-1, CLASSES), labels.reshape(-1))


def token_step(name, network=Tokens, **options):
    network = network()
    known = TokenLossNet(network)
    loss_net = LossNet(network, by_rows, per="rows") if "thor" in name else known
    return STEPS[name](loss_net, momentum(network), **options)


def sentences(number, count=4, length=5):
    random = np.random.default_rng(number)
    tokens, labels = random.integers(0, CLASSES, (2, count, length)).astype(np.int32)
    return *tensors(tokens, random.random((count, length), np.float32)), Tensor(labels)


def nested(tokens, keep, labels):
    return ({"more": [(tokens, keep)], "tokens": tokens}, labels), {}


FORMS = {
    "nested": (InOne, nested),
    "names": (Tokens, lambda t, k, y: ((), {"labels": y, "keep": k, "tokens": t})),
    "dictionary": (Tokens, lambda t, k, y: (({"keep": k, "labels": y, "tokens": t},), {})),
    "list": (Tokens, lambda t, k, y: (([t, k, y],), {})),
    "labels by name": (Tokens, lambda t, k, y: ((t, k), {"labels": y})),
}


class Compiled:
    """How many graphs are compiled in a block."""

    def __enter__(self):
        compile_, self.count = _CellGraphExecutor.compile, 0

        def counted(*args, **kwargs):
            found = compile_(*args, **kwargs)
            self.count += bool(found[1])
            return found

        self.patch = mock.patch.object(_CellGraphExecutor, "compile", counted)
        self.patch.start()
        return self

    def __exit__(self, *_):
        self.patch.stop()


def test_a_batch_of_any_form_is_the_flat_one_to_the_bit_and_compiles_once():
    """The flat one comes first. Every step with nested batches: tests/networks."""
    results = {}
    for form, (network, arranged) in ({"flat": (Tokens, lambda *p: (p, {}))} | FORMS).items():
        step = token_step("plain", network)
        with Compiled() as compiled:
            for number in range(3):
                parts, named = arranged(*sentences(number))
                step(*parts, **named)
        results[form] = snapshot(step), compiled.count
        assert step.last_update.images == 4
    values, graphs = results.pop("flat")
    for found, compiled in results.values():
        assert_bit_equal(found, values)
        assert compiled == graphs <= 5


class Optional(nn.Cell):
    """As Hugging Face's: (loss, logits, ...), with defaults between what is given."""

    def __init__(self, more=()):
        super().__init__()
        self.layer, self.more = linear(), more

    def construct(self, inputs, mask=None, scaled=False, labels=None, debug=False):
        outputs = self.layer(inputs)
        if mask is not None:
            outputs = outputs * mask
        loss = ops.mean(ops.square(outputs - labels))
        return (loss, outputs, *self.more)


@pytest.mark.parametrize("more", [(), (1.0,)])
def test_a_loss_net_that_returns_its_outputs_too_trains_alone_and_only_there(more):
    inputs, targets = rows(4)
    network = Optional(more)
    step = PlainStep(network, nn.SGD(network.trainable_params(), 0.1))
    loss, gradients = twins.linear_regression(*exact(network.layer), inputs, targets)
    expected = [w - 0.1 * g for w, g in zip(exact(network.layer), gradients, strict=True)]
    found = step(inputs=Tensor(inputs), labels=Tensor(targets))
    assert float(found) == pytest.approx(loss, rel=1e-5)
    for value, wanted in zip(exact(network.layer), expected, strict=True):
        np.testing.assert_allclose(value, wanted, **TOLERANCE["float32, one update"])
    step = AccumulatedStep(network, nn.SGD(network.trainable_params(), 0.1))
    words = r"a loss and outputs, .* number that it is a mean over; expected two scalars"
    with unchanged(step), pytest.raises(InputError, match=words) as raised:
        step(Tensor(inputs), labels=Tensor(targets))
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 300


class Two(nn.Cell):
    """Two outputs in a container."""

    def __init__(self, kind=tuple):
        super().__init__()
        self.layer, self.kind = linear(), kind

    def construct(self, inputs):
        outputs = self.layer(inputs)
        if self.kind is dict:
            return {"more": outputs * 3, "logits": outputs}
        return (outputs, outputs * 3) if self.kind is tuple else [outputs, {"more": outputs * 3}]


def of_two(outputs, labels):
    return ops.mean(ops.square(outputs[0] - labels["a"])) + ops.mean(outputs[1] * labels["b"][0])


@pytest.mark.parametrize("kind", [tuple, list, dict])
def test_a_known_loss_takes_the_first_output_or_the_logits(kind):
    network, one = Two(kind), linear()
    batch, ends = tensors(*rows(4)), []
    for each, layer in ((network, network.layer), (one, one)):
        step = AccumulatedStep(LossNet(each, nn.MSELoss()), momentum(each))
        step(*batch)
        ends.append(exact(layer))
    for found, expected in zip(*ends, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("precision", ["O0", "O2"])
def test_a_function_of_ones_own_takes_all_outputs_in_float32_and_nested_labels(precision):
    inputs, targets = rows(4)
    network = Two()
    weights = exact(network.layer)
    loss_net = LossNet(network, of_two, per="rows")
    options = {"precision": precision}
    step = AccumulatedStep(loss_net, nn.SGD(network.trainable_params(), 0.1), **options)
    ones = np.ones((4, OUTPUTS), np.float32)
    labels = {"a": Tensor(targets), "b": [Tensor(ones)]}
    loss = float(step(Tensor(inputs), labels))
    outputs = inputs @ weights[0].T + weights[1]
    tolerance = TOLERANCE["float16 network" if precision == "O2" else "one float32 gradient"]
    expected = np.mean((outputs - targets) ** 2) + np.mean(3 * outputs)
    np.testing.assert_allclose(loss, expected, **tolerance)
    assert step.last_update.images == 4
    slope = (2 * (outputs - targets) + 3) / outputs.size
    np.testing.assert_allclose(
        exact(network.layer)[0], weights[0] - 0.1 * slope.T @ inputs, **tolerance
    )


@pytest.mark.parametrize(
    ("build", "batch", "named", "words"),
    [
        (regression, (), {"z": 0, "labels": 1}, "expected .*, labels; Dense: missing a required"),
        (regression, (0,), {}, r"labels last, got Float32 .4, 3"),
        (regression, ((),), {}, "labels last, got nothing"),
        (regression, (), {"x": 0}, "Dense: missing a required argument"),
        (regression, (0,), {"label": 1}, "labels; Dense: got an unexpected keyword"),
        (regression, ([0, None],), {}, "got Float32 .4, 3., NoneType"),
        (regression, ([0, [np.ones(4)]],), {}, "got Float32 .4, 3., ndarray"),
        (regression, (0, {"a": 1, "b": 1}), {}, "labels of MSELoss: expected one Tensor"),
        (lambda: (None, TokenLossNet(linear())), (0, (1,)), {}, "labels of TokenLossNet: expected"),
    ],
)
def test_what_is_no_batch_is_refused_in_one_sentence(build, batch, named, words):
    parts = tensors(*rows(4))

    def filled(part):
        if isinstance(part, list | tuple):
            return type(part)(map(filled, part))
        if isinstance(part, dict):
            return {name: filled(each) for name, each in part.items()}
        return parts[part] if isinstance(part, int) else part

    loss_net = build()[1]
    step = PlainStep(loss_net, momentum(loss_net))
    with unchanged(step), pytest.raises(InputError, match=words) as raised:
        step(*filled(batch), **filled(named))
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 300


def test_thor_names_the_part_of_a_nested_batch_that_is_not_finite():
    loss_net = LossNet(InOne(), by_rows, per="rows")
    optimizer = momentum(loss_net)
    update = ThorUpdate(loss_net, optimizer, 0.1)
    step = PlainStep(loss_net, optimizer, update=update)
    tokens, keep, labels = sentences(0)
    keep[0, 0] = float("nan")
    parts, _ = nested(tokens, keep, labels)
    with pytest.raises(FloatingPointError, match="the batch's tensor 0 is not finite"):
        step(*parts)


OPEN = {
    "tokens": Tensor(shape=[None, None], dtype=ms.int32),
    "keep": Tensor(shape=[None, None], dtype=ms.float32),
    "labels": Tensor(shape=[None, None], dtype=ms.int32),
}


@pytest.mark.parametrize("name", ["plain", "accumulated thor"])  # all: tests/networks
def test_with_open_axes_one_compilation_serves_all_lengths(name):
    """As static shapes; both of THOR's kinds of update see both."""
    shapes, ends, graphs = [(4, 5), (3, 2)], [], []
    for is_open in (False, True):
        step = token_step(name)
        if is_open:
            step.set_inputs(**OPEN)
        with Compiled() as compiled:
            for shape in shapes:
                for number in range(4):
                    step(*sentences(number, *shape))
                graphs.append(compiled.count)
        ends.append(snapshot(step))
        assert step.last_update.images == 3 * step.micro_batches
    assert_close(*ends, **TOLERANCE["float32, a few updates"])
    once, twice, *with_open_axes = graphs
    assert with_open_axes == [once, once] and twice > once


def test_the_fourth_shape_is_told_of_once_and_with_open_axes_never():
    for is_open, told in ((False, [4]), (True, [])):
        step, found = token_step("plain"), []
        if is_open:
            step.set_inputs(*OPEN.values())
        for number, length in enumerate((5, 2, 5, 3, 5, 4, 6), 1):
            with warnings.catch_warnings(record=True) as noted:
                warnings.simplefilter("always")
                step(*sentences(number, 2, length))
            found += [length for each in noted if "fourth shape" in str(each.message)]
        assert found == told
    assert step.last_update.number == 7


class OfPair(Tokens):
    """``Tokens`` of one pair."""

    def construct(self, pair):
        return self.head(self.table(pair[0]) * ops.expand_dims(pair[1], -1))


def test_axes_of_nested_inputs_are_open_but_in_dictionaries_and_labels_are_checked():
    step = token_step("plain", OfPair)
    tokens, keep, labels = OPEN.values()
    step.set_inputs((tokens, keep), labels)
    tokens, keep, labels = sentences(0)
    labels[1, 2] = CLASSES
    with pytest.raises(InputError, match=r"label 7 at index \(1, 2\) is out of range"):
        step((tokens, keep), labels)
    with Compiled() as compiled:
        for length in (2, 3, 4):
            tokens, keep, labels = sentences(0, 4, length)
            step((tokens, keep), labels)
    assert compiled.count == 0 and step.last_update.number == 3
    with pytest.raises(InputError, match="in tuples and lists: .*, got 'an input that is a dict"):
        token_step("plain", InOne).set_inputs(*nested(*OPEN.values())[0])


@pytest.mark.parametrize(
    ("count", "micro_steps", "form"), [(8, 1, "flat"), (7, 2, "nested"), (7, 1, "names")]
)
def test_a_batch_cut_into_parts_equals_so_many_calls_to_the_bit(count, micro_steps, form):
    """Five given batches: one update each; at micro_steps=2 the last update has only one."""
    network, arranged = {"flat": (Tokens, lambda *parts: (parts, {}))}.get(form) or FORMS[form]
    steps = []
    for split in (1, 3):
        loss_net = TokenLossNet(network())
        calls = micro_steps * 3 // split
        steps.append(AccumulatedStep(loss_net, momentum(loss_net), calls, split=split))
    by_calls, by_parts = steps
    ends = [count * place // 3 for place in range(4)]
    for number in range(5):
        batch, losses, counts = sentences(number, count), [], []
        for first, end in itertools.pairwise(ends):
            parts, named = arranged(*(part[first:end] for part in batch))
            losses.append(float(by_calls(*parts, **named)))
            counts.append((end - first) * 5)
        parts, named = arranged(*batch)
        loss = float(by_parts(*parts, **named))
        assert loss == pytest.approx(np.average(losses, weights=counts), rel=1e-6)
    assert by_calls.updates_ahead([15, 14]) == by_parts.updates_ahead([5, 5]) > 0
    for step in steps:
        step.end_epoch()
    assert by_parts.micro_batches == micro_steps and by_calls.micro_batches == 3 * micro_steps
    assert by_parts.last_update == by_calls.last_update
    assert by_parts.last_update.number == -(-5 // micro_steps)
    found = snapshot(by_parts)
    assert found.pop("step.given").shape == (2,)
    assert_bit_equal(found, snapshot(by_calls))


def test_a_part_that_is_not_finite_is_dropped_and_an_interrupted_batch_leaves_no_part():
    network, loss_net = regression()
    step = AccumulatedStep(loss_net, momentum(network), split=2)
    inputs, targets = rows(4)
    inputs[0] = np.nan
    assert np.isnan(float(step(*tensors(inputs, targets))))
    assert (step.last_update.images, int(step.dropped.asnumpy())) == (2, 1)
    before, between, calls = snapshot(network), step.update.between, []

    def interrupt(*arguments):
        calls.append(arguments)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return between(*arguments)

    with mock.patch.object(step.update, "between", interrupt):
        with pytest.raises(KeyboardInterrupt):
            step(*tensors(*rows(4, 1)))
        assert_bit_equal(snapshot(network), before)
        step(*tensors(*rows(4, 2)))
    assert (step.last_update.number, step.last_update.images) == (2, 4)


@pytest.mark.parametrize("batch", [rows(2), (rows(4)[0], rows(3)[1])])
def test_a_batch_that_cannot_be_cut_is_refused(batch):
    network, loss_net = regression()
    step = AccumulatedStep(loss_net, momentum(network), split=3)
    words = "split=3: expected Tensors of one number of rows, at least 3, got Float32"
    with unchanged(step), pytest.raises(InputError, match=words):
        step(*tensors(*batch))
    assert not step.one_graph
    with pytest.raises(InputError, match="split: expected an integer >= 1, got 0"):
        AccumulatedStep(loss_net, momentum(network), split=0)


def _mean_output(outputs, labels):
    return outputs.mean()


@pytest.mark.parametrize(
    "labels",
    [
        lambda y, s: {"labels": y, "scale": s},
        lambda y, s: {"scale": s, "y": y},
        lambda y, s: (s, y),
    ],
)
def test_rows_are_those_of_the_labels_in_a_nested_part(labels):
    """The entry ``labels``, or else the last one; the other has one number."""
    network, _ = regression()
    step = PlainStep(LossNet(network, _mean_output, per="rows"), momentum(network))
    inputs, targets = tensors(*rows(5))
    step(inputs, labels(targets, Tensor([1.0])))
    assert step.last_update.images == 5
