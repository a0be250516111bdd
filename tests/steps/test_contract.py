"""The contract of a loss net, (loss, weight); the first batch; and modes of the Cells."""

import sys

import mindspore as ms
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mindspore import Tensor, nn, ops
from mindspore.dataset import NumpySlicesDataset
from mindspore.train import Model

from labkit.errors import InputError
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.losses import CrossEntropySmooth, LossNet, TokenLossNet
from labkit.steps.options import DynamicLossScale
from labkit.steps.step import PlainStep
from labkit.steps.update import UpdateStage
from labkit.training.evaluation import evaluate
from tests.support.step_cells import (
    INPUTS,
    OUTPUTS,
    STEPS,
    assert_bit_equal,
    assert_close,
    momentum,
    plain,
    regression,
    restore,
    rows,
    snapshot,
    tensors,
    unchanged,
)
from tests.support.trainings import loss_fn as softmax_cross_entropy

pytestmark = pytest.mark.usefixtures("runtime")
CLASSES = 4
CLASS_WEIGHTS = np.float32([0.5, 3.0, 1.0, 0.25])


LOSSES = {
    "ignore_index": (nn.CrossEntropyLoss, {}),
    "another": (nn.CrossEntropyLoss, {"ignore_index": 2}),
    "weights, smoothing": (
        lambda weight, **options: nn.CrossEntropyLoss(Tensor(weight), **options),
        {"weight": CLASS_WEIGHTS, "label_smoothing": 0.1},
    ),
    "smooth": (
        lambda label_smoothing: CrossEntropySmooth(
            smooth_factor=label_smoothing, num_classes=CLASSES, convention="pytorch"
        ),
        {"label_smoothing": 0.1},
    ),
}


def of_torch(values, inputs, labels, options):
    """Return PyTorch's loss over the whole batch and its gradients, in float64."""
    options = dict(options)
    if "weight" in options:
        options["weight"] = torch.tensor(options["weight"], dtype=torch.float64)
    weight, bias = (
        torch.tensor(values[name].astype(np.float64), requires_grad=True)
        for name in ("weight", "bias")
    )
    logits = torch.tensor(inputs.astype(np.float64)) @ weight.T + bias
    loss = torch.nn.CrossEntropyLoss(**options)(logits, torch.tensor(labels.astype(np.int64)))
    loss.backward()
    return float(loss), {"weight": weight.grad.numpy(), "bias": bias.grad.numpy()}


class Accumulating:
    """A linear classifier whose step sums two micro-batches and moves by their mean gradient."""

    def __init__(self, loss_fn, first=3, per=None, **options):
        ms.set_seed(5)
        self.first, self.network = first, nn.Dense(INPUTS, CLASSES)
        loss_net = LossNet(self.network, loss_fn, per=per)
        sgd = nn.SGD(self.network.trainable_params(), 1.0)
        self.step = AccumulatedStep(loss_net, sgd, 2, **options)
        self.initial = snapshot(self.step)

    def train(self, *batches):
        """Train the step from its initial state; return the micro-batches' losses and weights."""
        restore(self.step, self.initial)
        losses = [float(self.step(*tensors(*batch))) for batch in batches]
        self.step.end_epoch()
        return losses, snapshot(self.network)

    def __call__(self, inputs, labels):
        """Return the weights before, the update, and the moves of two micro-batches."""
        before = {name: self.initial[name] for name in snapshot(self.network)}
        cut = self.first
        _, after = self.train((inputs[:cut], labels[:cut]), (inputs[cut:], labels[cut:]))
        return before, self.step.last_update, {name: before[name] - after[name] for name in before}


@pytest.fixture(scope="module", params=LOSSES)
def accumulating(request, runtime):
    build, options = LOSSES[request.param]
    return Accumulating(build(**options)), options


@settings(max_examples=25)
@given(
    labels=st.lists(st.sampled_from([-100, 0, 1, 2, 3]), min_size=8, max_size=8),
    seed=st.integers(0, 1000),
)
def test_padded_micro_batches_are_the_whole_batch(accumulating, labels, seed):
    step, options = accumulating
    ignored = options.get("ignore_index", -100)
    labels = np.int32(labels)
    labels[labels == -100] = ignored
    assume((labels != ignored).any())
    inputs = np.random.default_rng(seed).normal(size=(8, INPUTS)).astype(np.float32)
    before, last, moves = step(inputs, labels)
    loss, gradients = of_torch(before, inputs, labels, options)
    assert last.loss == pytest.approx(loss, rel=1e-5)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(moves[name], gradient, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("build", "dtypes"),
    [
        (nn.CrossEntropyLoss, (np.int64, np.uint8)),
        (softmax_cross_entropy, (np.uint8,)),
        (nn.NLLLoss, (np.int16,)),
    ],
)
def test_labels_of_any_type_of_integers(build, dtypes):
    """NumPy's and PyTorch's are int64, which MindSpore's cross entropy refuses; images' uint8."""
    inputs = np.random.default_rng(2).normal(size=(8, INPUTS)).astype(np.float32)
    labels = np.arange(8) % CLASSES
    step = Accumulating(build(), 4)
    expected = step(inputs, labels.astype(np.int32))[2]
    for dtype in dtypes:
        for name, move in step(inputs, labels.astype(dtype))[2].items():
            np.testing.assert_array_equal(move, expected[name])


FEATURES = np.random.default_rng(8).normal(size=(4, INPUTS)).astype(np.float32)
KNOWN, PADDING = np.int32([0, 1, 2, 3]), np.full(4, -100, np.int32)
COLUMN = np.ones(4, np.float32)  # the targets of a network with one output


@pytest.mark.parametrize(
    ("weights", "ignored", "options"),
    [
        (None, -100, {"nonfinite": "drop_group"}),
        (None, -100, {"per": "rows"}),
        (None, 0, {}),
        (np.float32([1, 0, 2, 1]), 0, {}),
    ],
)
def test_padding_alone_is_neither_an_overflow_nor_part_of_a_mean(weights, ignored, options):
    """A micro-batch without a label that counts; the rest of its group is applied."""
    loss_fn = nn.CrossEntropyLoss(weights if weights is None else Tensor(weights), ignored)
    made = Accumulating(loss_fn, loss_scale=DynamicLossScale(initial=4096), **options)
    good, padding = (FEATURES, KNOWN), (FEATURES, np.full_like(KNOWN, ignored))
    losses, after = made.train(padding, good)
    assert losses[0] == 0 and int(made.step.dropped.asnumpy()) == 0
    assert float(made.step.gradient.loss_scale.asnumpy()) == 4096
    loss = made.step.last_update.loss
    _, alone = made.train(good)
    assert loss == pytest.approx(made.step.last_update.loss, rel=1e-6)
    assert_close(after, alone, rtol=1e-5, atol=1e-6)


def test_what_a_plain_step_makes_of_padding_of_faults_and_of_a_wrong_label():
    """Of padding no update; a later batch with a wrong label is dropped and counted."""
    network = nn.Dense(INPUTS, CLASSES)
    step = plain(LossNet(network, nn.CrossEntropyLoss()), nn.SGD(network.trainable_params(), 0.1))
    for features, labels, updates, dropped in (
        (FEATURES, PADDING, 0, 0),
        (FEATURES * np.float32(np.nan), PADDING, 0, 1),
        (FEATURES, KNOWN, 1, 1),
        (FEATURES, KNOWN + 1, 1, 2),
    ):
        kept, number = snapshot(network), step.last_update.number
        loss = float(step(*tensors(features, labels)))
        assert (step.last_update.number, int(step.dropped.asnumpy())) == (updates, dropped)
        assert (number < updates) == any((kept[n] != v).any() for n, v in snapshot(network).items())
    assert np.isnan(loss)


OUT_OF_RANGE = "label 4 at index 3 is out of range: expected 0 .. 3, or ignore_index=-100"


@pytest.mark.parametrize(
    ("loss_fn", "batch", "words"),
    [
        (nn.CrossEntropyLoss(), (FEATURES, KNOWN + 1), OUT_OF_RANGE),
        (CrossEntropySmooth(num_classes=CLASSES), (FEATURES, KNOWN + 1), OUT_OF_RANGE),
        (softmax_cross_entropy(), (FEATURES, KNOWN - 1), "label -1 at index 0 .*: expected 0 .. 3"),
        (
            nn.MSELoss(),
            (FEATURES, FEATURES[:, 0]),
            r"labels .* the shape \(4, 4\), got \(4,\)",
        ),
        (nn.MSELoss(), (FEATURES, COLUMN), r"expected the shape \(4, 1\), got \(4,\)"),
        (nn.CrossEntropyLoss(), (KNOWN, FEATURES), r"labels last, got Int32 .4,., Float32 .4, 3."),
        (nn.CrossEntropyLoss(), (FEATURES.astype(float), KNOWN), r"float64.*Float64 .4, 3"),
        (nn.CrossEntropyLoss(), (FEATURES.astype(np.uint8), KNOWN), r"inputs first .*UInt8 .4, 3"),
        (nn.CrossEntropyLoss(), (KNOWN, FEATURES.astype(np.uint8)), r"labels last, got Int32 .4,"),
        (nn.CrossEntropyLoss(), (FEATURES, KNOWN[:, None]), r"shape .4,., got .4, 1."),
        (nn.CrossEntropyLoss(), (FEATURES, FEATURES[:, 0]), r"got .4,.; classes are integers"),
        (nn.CrossEntropyLoss(), (FEATURES, FEATURES, KNOWN), "for 3 columns, got 'Dense'"),
        (nn.CrossEntropyLoss(), (FEATURES[0], np.array(1, np.int32)), r"one row.* Int32 .\)"),
    ],
)
def test_a_first_batch_is_refused_in_one_sentence(loss_fn, batch, words):
    network = nn.Dense(INPUTS, 1 if batch and batch[-1] is COLUMN else CLASSES)
    step = plain(LossNet(network, loss_fn), nn.SGD(network.trainable_params(), 0.1))
    parts = [Tensor(part) if isinstance(part, np.ndarray) else part for part in batch]
    with unchanged(step), pytest.raises(InputError, match=words) as raised:
        step(*parts)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 500


def test_integers_to_look_up_may_come_before_targets():
    """A column (B,) and one (B, C) are not taken for labels and features in the wrong order."""
    network = nn.SequentialCell(nn.Embedding(4, 3), nn.Dense(3, CLASSES))
    step = plain(LossNet(network, nn.CrossEntropyLoss()), nn.SGD(network.trainable_params(), 0.1))
    step(*tensors(KNOWN, np.full((len(KNOWN), CLASSES), 1 / CLASSES, np.float32)))
    assert step.last_update.number == 1


class Returns(nn.Cell):
    """Outputs in a container, whatever the labels."""

    def __init__(self, kind):
        super().__init__()
        self.dense, self.kind = nn.Dense(INPUTS, CLASSES), kind

    def construct(self, inputs, *labels):
        outputs = self.dense(inputs)
        if self.kind == "loss and outputs":
            return ops.mean(outputs), outputs
        if self.kind == "one":
            return (outputs,)
        if self.kind == "list":
            return [outputs, outputs]
        return {"outputs": outputs}


@pytest.mark.parametrize("kind", ["loss and outputs", "one", "list", "dictionary"])
def test_what_returns_no_logits_is_no_network_and_what_returns_no_loss_no_loss_net(kind):
    network, entropy = Returns(kind), nn.CrossEntropyLoss()
    first = "the network's first output is a scalar or nested, or it returns a dictionary without"
    no_loss = r"loss_net: expected a scalar loss .* LossNet\(network, loss_fn\), got other"
    has_logits, has_loss = kind in ("one", "list"), kind == "loss and outputs"
    known = [LossNet(network, entropy), TokenLossNet(network)]
    for loss_net, words in [(each, first) for each in known if not has_logits] + (
        [] if has_loss else [(network, no_loss)]
    ):
        step = plain(loss_net, nn.SGD(network.trainable_params(), 0.1))
        with unchanged(step), pytest.raises(InputError, match=words):
            step(*tensors(FEATURES, KNOWN))
    data = NumpySlicesDataset((FEATURES, KNOWN)).batch(2)
    if has_logits:
        assert evaluate(network, entropy, data)["loss"] > 0
    else:
        with pytest.raises(InputError, match=first):
            evaluate(network, entropy, data)
    with pytest.raises(InputError, match=r"loss_net: .* as LossNet.*, got 'Dense'"):
        dense = nn.Dense(INPUTS, CLASSES)
        plain(dense, nn.SGD(dense.trainable_params(), 0.1))(*tensors(FEATURES, KNOWN))


@pytest.mark.parametrize("labels", [1, 2])
def test_the_axes_of_labels_are_compared_where_sizes_are_unknown(labels):
    network = nn.Dense(INPUTS, 1)
    step = plain(LossNet(network, nn.MSELoss()), nn.SGD(network.trainable_params(), 0.1))
    shapes = [None, INPUTS], [None] * labels
    step.set_inputs(*(Tensor(shape=shape, dtype=ms.float32) for shape in shapes))
    targets = COLUMN if labels == 1 else COLUMN[:, None]
    if labels == 1:
        with pytest.raises(InputError, match="labels of the loss: expected the shape"):
            step(*tensors(FEATURES, targets))
    else:
        for count in (4, 3):
            expected = np.mean((network(Tensor(FEATURES[:count])).asnumpy() - 1) ** 2)
            loss = step(*tensors(FEATURES[:count], targets[:count]))
            assert float(loss) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("options", [{}, {"micro_steps": 3}])
def test_a_steady_call_makes_at_most_eight_calls_of_labkit(options):
    network, loss_net = regression()
    step = (AccumulatedStep if options else PlainStep)(loss_net, momentum(network), **options)
    batch, calls = tensors(*rows(4)), []

    def note(frame, event, argument):
        if event == "call" and frame.f_globals.get("__name__", "").startswith("labkit."):
            calls.append(frame.f_code.co_name)

    for _ in range(2):
        step(*batch)
    sys.setprofile(note)
    try:
        step(*batch)
    finally:
        sys.setprofile(None)
    assert 0 < len(calls) <= 8, calls


@pytest.mark.parametrize("name", ["plain", "accumulated"])
def test_float16_parameters_are_warned_of_and_trained(name):
    inputs, targets = (part.astype(np.float16) for part in rows(4))
    network = nn.Dense(INPUTS, targets.shape[1], dtype=ms.float16)
    with pytest.warns(UserWarning, match="'weight' is float16: .* below 6e-8"):
        step = STEPS[name](LossNet(network, nn.MSELoss()), momentum(network))
    before = network.weight.asnumpy().copy()
    for _ in range(step.micro_batches):
        step(*tensors(inputs, targets))
    assert network.weight.dtype == ms.float16
    assert (network.weight.asnumpy() != before).any()


@pytest.mark.parametrize("name", STEPS)
def test_in_sink_mode_a_step_of_one_graph_trains_alike_to_the_bit(name):
    """Adasum, THOR and the subspace have graphs between which the host acts."""
    ends = []
    for sink in (True, False):
        network, loss_net = regression()
        step = STEPS[name](loss_net, momentum(network))
        assert step.one_graph == (name in ("plain", "accumulated"))
        if step.one_graph:
            data = ms.dataset.NumpySlicesDataset(rows(16), ["x", "y"], shuffle=False).batch(4)
            Model(step).train(3, data, dataset_sink_mode=sink)
            assert step.last_update.number == (12 if name == "plain" else 6)
            ends.append(snapshot(step))
    if ends:
        assert_bit_equal(*ends)


def test_a_stage_that_acts_between_graphs_is_no_single_graph():
    class Between(UpdateStage):
        def between(self, step, batch, loss):
            pass

    network, loss_net = regression()
    optimizer = momentum(network)
    assert not PlainStep(loss_net, optimizer, update=Between(optimizer)).one_graph


def body_and_head():
    """A body and a head, each with a BatchNorm."""
    body = nn.SequentialCell(nn.Dense(INPUTS, 4), nn.BatchNorm1d(4))
    return nn.SequentialCell(body, nn.SequentialCell(nn.BatchNorm1d(4), nn.Dense(4, OUTPUTS)))


def moved_means(step, network, count=8):
    """Return the parts of the network whose running mean a micro-batch moves."""
    norms = {"body": network[0][1], "head": network[1][0]}
    before = {name: cell.moving_mean.asnumpy().copy() for name, cell in norms.items()}
    step(*tensors(*rows(count)))
    return {name for name in norms if (norms[name].moving_mean.asnumpy() != before[name]).any()}


IN_EVALUATION = "the network: expected training mode: call network.set_train.. first"


class TestModes:
    @pytest.mark.parametrize("make", [STEPS["plain"], STEPS["subspace"]])
    def test_a_part_that_was_held_before_stays_held(self, make):
        network = body_and_head()
        network.set_train()
        network[0].set_train(False)
        step = make(LossNet(network, nn.MSELoss()), momentum(network))
        assert moved_means(step, network) == {"head"}
        for mode in (True, False, True):  # as Model.train does, with an evaluation in between
            step.set_train(mode)
        assert moved_means(step, network, 5) == {"head"}

    def test_an_evaluation_between_two_calls(self):
        """Compiled graphs go on in training mode; a new one is refused until modes are set back."""
        network = body_and_head().set_train(False)
        with pytest.raises(InputError, match=IN_EVALUATION):
            PlainStep(LossNet(network, nn.MSELoss()), momentum(network))
        network.set_train()
        step = PlainStep(LossNet(network, nn.MSELoss()), momentum(network))
        assert moved_means(step, network) == {"body", "head"}
        data = ms.dataset.NumpySlicesDataset(rows(16), ["x", "y"]).batch(8)
        Model(network, nn.MSELoss(), metrics={"loss"}).eval(data, dataset_sink_mode=False)
        assert moved_means(step, network) == {"body", "head"}
        with pytest.raises(InputError, match=IN_EVALUATION):
            moved_means(step, network, 5)
        network.set_train()
        assert moved_means(step, network, 5) == {"body", "head"}
