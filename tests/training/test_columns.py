"""``fit`` and ``evaluate``: columns by name, dictionaries, a loss net alone."""

import numpy as np
import pytest
from mindspore import nn, ops
from mindspore.dataset import GeneratorDataset, NumpySlicesDataset
from mindspore.train import Model

from labkit.errors import InputError
from labkit.ranks import cluster
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.losses import LossNet, TokenLossNet
from labkit.training.evaluation import evaluate
from tests.steps.test_batches import CLASSES, OPEN, Compiled, InOne, Tokens
from tests.support.step_cells import (
    TwoMeans,
    assert_bit_equal,
    linear,
    momentum,
    regression,
    rows,
    snapshot,
    two_means,
)
from tests.support.tolerances import TOLERANCE
from tests.support.trainings import quiet_fit

pytestmark = pytest.mark.usefixtures("runtime")


def arrays(count=10, length=5, seed=3):
    random = np.random.default_rng(seed)
    tokens, labels = random.integers(0, CLASSES, (2, count, length)).astype(np.int32)
    labels[random.random((count, length)) < 0.4] = -100
    return {"tokens": tokens, "keep": random.random((count, length), np.float32), "labels": labels}


def columns(names, batch=4, **given):
    found = arrays(**given)
    values = tuple(found[name] for name in names)
    return NumpySlicesDataset(values, list(names), shuffle=False).batch(batch)


IN_ORDER, OTHER = ("tokens", "keep", "labels"), ("labels", "tokens", "keep")


def dictionaries(inputs_alone, batch=4):
    """Batches as Python's dictionaries: of all, or of the inputs, beside labels."""

    def generate():
        for row in columns(IN_ORDER, batch).create_dict_iterator(num_epochs=1, output_numpy=True):
            if inputs_alone:
                more = [(row["tokens"], row["keep"])]
                yield {"more": more, "tokens": row["tokens"]}, row["labels"]
            else:
                yield (dict(reversed(row.items())),)

    names = ["inputs", "labels"] if inputs_alone else ["batch"]
    return GeneratorDataset(list(generate()), names, shuffle=False)


def step_of(network=Tokens, **options):
    network = network()
    return AccumulatedStep(TokenLossNet(network), momentum(network), **options)


def test_fit_takes_columns_by_name_and_dictionaries_and_compiles_for_each_shape_once():
    """The last batch of an epoch has two rows of ten."""
    forms = {
        "in order": (Tokens, columns(IN_ORDER), {}),
        "by name": (Tokens, columns(OTHER), {"by_name": True}),
        "open": (Tokens, columns(OTHER), {"by_name": True}),
        "dictionary": (Tokens, dictionaries(False), {}),
        "inputs": (InOne, dictionaries(True), {}),
    }
    results = {}
    for form, (network, data, options) in forms.items():
        step = step_of(network)
        if form == "open":
            step.set_inputs(**OPEN)
        with Compiled() as compiled:
            records = quiet_fit(step, data, 2, **options)
        assert compiled.count == (1 if form == "open" else 2) and step.columns == ()
        found = [[row[name] for name in ("images", "loss")] for row in records.rows]
        results[form] = snapshot(step), found
    values, found = results.pop("in order")
    assert [images for images, _ in found] == [4, 4, 2] * 2
    for other, records in results.values():
        assert_bit_equal(other, values)
        assert records == found
    step = step_of(InOne)
    Model(step).train(2, dictionaries(True), dataset_sink_mode=False)
    assert_bit_equal(snapshot(step), values)


@pytest.mark.parametrize("split", [1, 2])
def test_a_cut_training_by_name_resumes_to_the_bit_within_an_epoch(tmp_path, split):
    options = {"by_name": True, "checkpoint_every": 1, "keep": 9}
    whole, broken, data = step_of(split=split), step_of(split=split), columns(OTHER)
    quiet_fit(whole, data, 2, folder=tmp_path / "whole", **options)
    names = sorted(path.name for path in (tmp_path / "whole" / "checkpoint").iterdir())
    for path in (tmp_path / "whole" / "checkpoint").iterdir():
        if path.name > names[1]:
            path.unlink()
    records = quiet_fit(broken, data, 2, folder=tmp_path / "whole", resume=True, **options)
    assert_bit_equal(snapshot(broken), snapshot(whole))
    assert [row["images"] for row in records.rows] == [4, 4, 2] * 2


def test_by_name_is_refused_where_columns_have_no_place():
    with pytest.raises(InputError, match="dataset_sink_mode: columns go in their order"):
        quiet_fit(step_of(), columns(OTHER), 1, by_name=True, dataset_sink_mode=True)
    data = columns(OTHER).rename("keep", "mask")
    with pytest.raises(InputError, match="by name: expected tokens, keep, labels; Tokens: "):
        quiet_fit(step_of(), data, 1, by_name=True)


def exact_tokens(network, given):
    """Sum of the nats, of the right labels and of the labels that count, in float64."""
    table, weight, bias = (p.asnumpy().astype(np.float64) for p in network.trainable_params())
    logits = (table[given["tokens"]] * given["keep"][..., None]) @ weight.T + bias
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    counts = given["labels"] != -100
    picked = np.take_along_axis(logs, np.maximum(given["labels"], 0)[..., None], -1)[..., 0]
    right = (logits.argmax(-1) == given["labels"])[counts].sum()
    return -picked[counts].sum(), right, counts.sum()


@pytest.mark.parametrize("form", ["in order", "by name", "dictionary", "inputs"])
def test_a_token_loss_net_is_evaluated_by_token(form):
    network = (InOne if form == "inputs" else Tokens)()
    loss_net = TokenLossNet(network)
    data = {
        "in order": lambda: columns(IN_ORDER),
        "by name": lambda: columns(OTHER),
        "dictionary": lambda: dictionaries(False),
        "inputs": lambda: dictionaries(True),
    }[form]()
    with unchanged_modes(loss_net):
        found = evaluate(loss_net, data, top=(CLASSES,), by_name=form == "by name")
    nats, right, count = exact_tokens(network, arrays())
    assert list(found) == ["accuracy", f"top_{CLASSES}_accuracy", "loss", "perplexity"]
    assert found["loss"] == pytest.approx(nats / count, rel=1e-6)
    assert found["perplexity"] == pytest.approx(np.exp(nats / count), rel=1e-6)
    assert (found["accuracy"], found[f"top_{CLASSES}_accuracy"]) == (right / count, 1)
    if form == "in order":  # the mean of the batches' means is another number
        parts = [columns(IN_ORDER).skip(place).take(1) for place in range(3)]
        means = [evaluate(loss_net, part)["loss"] for part in parts]
        assert abs(np.mean(means) - found["loss"]) > 1e-3


class unchanged_modes:
    """Each Cell's mode is the same after a block; all are evaluated in it."""

    def __init__(self, cell):
        self.cells = [each for _, each in cell.cells_and_names()]
        self.cells[-1].set_train()
        self.modes = [each.get_flags().get("training") for each in self.cells]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        assert [each.get_flags().get("training") for each in self.cells] == self.modes


def test_other_loss_nets_return_the_mean_of_what_they_sum():
    inputs, targets = rows(7)
    data = NumpySlicesDataset((inputs, targets), ["inputs", "targets"], shuffle=False).batch(3)
    network = linear()
    weights = [p.asnumpy().astype(np.float64) for p in network.trainable_params()]
    expected, _ = two_means(*weights, inputs, targets)
    found = evaluate(TwoMeans(network), data)
    assert found == {"loss": pytest.approx(expected, **loosely())}
    squared = np.mean((inputs @ weights[0].T + weights[1] - targets) ** 2)
    found = evaluate(LossNet(network, nn.MSELoss()), data)
    assert found == {"loss": pytest.approx(squared, **loosely())}
    renamed = data.rename(["inputs", "targets"], ["x", "labels"])
    assert evaluate(LossNet(network, nn.MSELoss()), renamed, by_name=True) == found


def loosely():
    given = TOLERANCE["one float32 gradient"]
    return {"rel": given["rtol"], "abs": given["atol"]}


def test_the_parts_of_ranks_are_summed_and_a_trained_loss_net_is_evaluated(monkeypatch):
    step = step_of()
    quiet_fit(step, columns(IN_ORDER), 1)
    whole = evaluate(step.gradient.loss_net, columns(IN_ORDER))
    other = []
    monkeypatch.setattr(cluster, "gather", lambda own: other.append(own) or np.array([own]))
    halves = [columns(IN_ORDER).take(2), columns(IN_ORDER).skip(2)]
    evaluate(step.gradient.loss_net, halves[1], over_ranks=True)
    monkeypatch.setattr(cluster, "gather", lambda own: np.array([own, other[0]]))
    found = evaluate(step.gradient.loss_net, halves[0], over_ranks=True)
    assert found == pytest.approx(whole, rel=1e-6)


class Bare(nn.Cell):
    """A loss, alone or with outputs, whatever the labels."""

    def __init__(self, outputs):
        super().__init__()
        self.layer, self.outputs = linear(), outputs

    def construct(self, inputs, labels):
        found = self.layer(inputs)
        return (ops.mean(found), found) if self.outputs else ops.mean(found)


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        (lambda data: (regression()[1], nn.MSELoss(), data), {}, r"evaluate\(loss_net, dataset\)"),
        (lambda data: (linear(), nn.MSELoss()), {}, "dataset: expected a MindSpore dataset"),
        (lambda data: (linear(), data), {}, "for 2 columns, got 'Dense'"),
        (lambda data: (Bare(True), data), {}, "Bare returns no .loss, weight., and a mean over"),
        (lambda data: (Bare(False), data), {}, "Bare returns no .loss, weight., and a mean over"),
        (lambda data: (LossNet(linear(), ops.dist), data), {}, "LossNet returns no .loss, weig"),
        (lambda data: (regression()[1], data), {"top": (5,)}, "top: expected none with a LossNet"),
        (lambda data: (regression()[1], data), {"by_name": True}, "expected x, labels; Dense: "),
    ],
)
def test_what_could_be_two_things_is_refused(arguments, options, words):
    data = NumpySlicesDataset(rows(4), ["a", "b"], shuffle=False).batch(2)
    with pytest.raises(InputError, match=words) as raised:
        evaluate(*arguments(data), **options)
    assert "\n" not in str(raised.value)


def test_labels_that_are_no_classes_are_refused_and_nothing_to_count_too():
    given = arrays()
    for value, words in ((CLASSES, "label 7 at index .0, 0. is out of"), (-100, "nothing to eval")):
        given["labels"][:, :] = value
        data = NumpySlicesDataset(tuple(given.values()), list(given), shuffle=False).batch(5)
        with pytest.raises(InputError, match=words):
            evaluate(TokenLossNet(Tokens()), data)
    flat = LossNet(nn.Dense(3, 4), nn.CrossEntropyLoss())
    data = NumpySlicesDataset((rows(4)[0], np.full(4, 4, np.int32)), shuffle=False).batch(2)
    with pytest.raises(InputError, match="label 4 at index 0 is out of range"):
        evaluate(flat, data)
