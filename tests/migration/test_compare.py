"""The comparison: the report of each stage, and that a planted fault is reported first in place."""

import numpy as np
import pytest
from mindspore import nn

from labkit.errors import InputError
from labkit.migration import STAGES, Trace, compare_step, first_difference, stage_table, trace
from labkit.migration.compare import STEP_TOLERANCE
from labkit.migration.fixtures import Digest
from labkit.runtime import pynative
from labkit.steps.state import set_state
from tests.support.migrating import BATCH, momentum, small, smoothed_cross_entropy, torch_small

pytestmark = pytest.mark.usefixtures("runtime")

# ---- traces made by hand


def made(origin="here", **stages):
    """Return a trace with one tensor in each stage; ``stages`` replaces whole stages."""
    full = {stage: {"t": np.array([1.0, -2.0])} for stage in STAGES} | stages
    return Trace(origin, full)


def digested(step):
    digests = {
        stage: {name: Digest.of(value) for name, value in tensors.items()}
        for stage, tensors in step.stages.items()
    }
    return Trace(step.origin, digests)


@pytest.fixture(params=[lambda step: step, digested], ids=["arrays", "digests"])
def form(request):
    """Each comparison is made with a reference of arrays and with one of digests."""
    return request.param


@pytest.mark.parametrize("stage", STAGES)
def test_a_difference_is_measured_against_the_largest_value_and_the_tolerance(stage, form):
    limit = max(STEP_TOLERANCE[stage], 1e-6)
    for factor, passes in ((0.0, True), (0.9, STEP_TOLERANCE[stage] > 0), (1.1, False)):
        # 2 is the largest value; the comparison of updates subtracts a float32 spacing of 2.4e-7.
        off = 2 * factor * limit + (2.4e-7 if stage == "update" and factor else 0)
        rows = compare_step(made(**{stage: {"t": np.array([1.0 + off, -2.0])}}), form(made()))
        assert [row.stage for row in rows] == list(STAGES)
        assert {row.stage: row.tolerance for row in rows} == STEP_TOLERANCE
        row = rows[STAGES.index(stage)]
        assert row.difference == pytest.approx(factor * limit, rel=1e-3)
        assert row.passed == passes and first_difference(rows) == (None if passes else row)


def test_a_tensor_that_one_side_lacks_fails_unless_it_is_a_cells_output(form):
    two = {"t": np.array([1.0, -2.0]), "u": np.array([3.0])}
    for stage in STAGES:
        for actual, reference, who in (
            (made(), made("there", **{stage: two}), "here"),
            (made(**{stage: two}), made("there"), "there"),
        ):
            rows = compare_step(actual, form(reference))
            row = first_difference(rows)
            if stage == "forward":
                assert row is None and len(rows) == len(STAGES)
            else:
                expected = (stage, "u", np.inf, f"{who} lacks it")
                assert (row.stage, row.name, row.difference, row.note) == expected
    row = first_difference(compare_step(made(), form(made(forward={"b": np.ones(1)}))))
    assert (row.stage, row.name) == ("forward", "b") and "same name on both sides" in row.note
    with pytest.raises(InputError, match="nothing to compare between here and there"):
        compare_step(Trace("here", {}), Trace("there", {}))
    # A network of a single cell has no cells inside.
    assert first_difference(compare_step(made(forward={}), made(forward={}))) is None


UNUSABLE = [  # a tensor, what is expected of it, note
    (np.array([np.nan, -2.0]), np.ones(2), "not finite"),
    (np.ones(2), np.array([-np.inf, 1.0]), "not finite"),
    (np.ones((3, 2)), np.ones((2, 3)), "shape (3, 2), expected (2, 3): transposed?"),
    (np.ones((1, 2, 3)), np.ones((2, 3)), "shape (1, 2, 3), expected (2, 3)"),
]


@pytest.mark.parametrize(("value", "expected", "note"), UNUSABLE)
def test_values_that_are_not_finite_and_other_shapes_fail(value, expected, note, form):
    # The other tensors set the noise floor of the stage, if one is not finite.
    same = {"big": np.array([2.0]), "nothing": np.array([1e-12])}
    reference = form(made(gradients={"t": expected, **same}))
    rows = compare_step(made(gradients={"t": value, **same, "nothing": np.zeros(1)}), reference)
    [row] = [row for row in rows if not row.passed]
    assert (row.stage, row.name, row.difference, row.note) == ("gradients", "t", np.inf, note)


def test_tensors_of_rounding_errors_alone_are_measured_against_their_stage(form):
    def gradients(nothing, big=2.0):
        return made(gradients={"big": np.array([big]), "nothing": np.array([nothing])})

    row = compare_step(gradients(-3e-11), form(gradients(1e-12)))[-3]
    assert row.name == "nothing" and row.difference == pytest.approx(3.1e-11 / 2e-6) and row.passed
    assert first_difference(compare_step(gradients(1e-8), form(gradients(1e-12)))).name == "nothing"
    zero = gradients(0.0, big=0.0)
    assert first_difference(compare_step(zero, form(zero))) is None
    assert first_difference(compare_step(gradients(0.0), form(zero))).name == "big"
    assert first_difference(compare_step(zero, form(gradients(0.0)))).difference >= 1.0


@pytest.mark.parametrize(
    ("stage", "off", "passes"),
    [("update", 1.1e-7, True), ("update", 3e-7, False), ("gradients", 1.1e-7, False)],
)
def test_an_update_is_known_no_better_than_the_spacing_of_its_weights(stage, off, passes):
    """Near weights of 1, float32 numbers are 1.2e-7 apart, 1.2 % of an update of 1e-5."""
    at = {"weights": {"t": np.array([1.0])}}
    reference = made(**at, **{stage: {"t": np.array([1e-5])}})
    row = first_difference(
        compare_step(made(**at, **{stage: {"t": np.array([1e-5 + off])}}), reference)
    )
    assert row is None if passes else row.stage == stage


def test_the_table_shows_the_first_fault_of_a_failed_stage_and_the_worst_of_a_sound_one():
    actual = made(
        forward={"a": np.array([1.00001]), "b": np.array([1.00002])},
        gradients={"a": np.array([1.1]), "b": np.array([1.2]), "c": np.array([[1.0]])},
        loss={},
    )
    unit = np.array([1.0])
    reference = made(forward={"a": unit, "b": unit}, gradients={"a": unit, "b": unit, "c": unit})
    lines = stage_table(compare_step(actual, reference)).splitlines()
    assert len(lines) == 1 + len(STAGES) and lines[3:6] == [
        "forward              2       0             2.0e-05      1e-04  b",
        "loss                 1       1                 inf      1e-05  t (here lacks it)",
        "gradients            3       3             1.0e-01      1e-03  a",
    ]


# ---- planted faults: a small network in MindSpore against PyTorch in float64

SMOOTHING, RATES = 0.1, [0.01, 0.02]


@pytest.fixture(scope="module")
def reference():
    """The step in PyTorch, with decay only on weights of more than one dimension."""
    return torch_step()


def torch_step(**options):
    torch = pytest.importorskip("torch")
    from labkit.migration.trace import torch_trace

    module = torch_small(torch)
    loss_fn = torch.nn.CrossEntropyLoss(label_smoothing=SMOOTHING)
    weights = [p for p in module.parameters() if p.ndim > 1]
    others = [p for p in module.parameters() if p.ndim <= 1]
    groups = [{"params": weights, "weight_decay": 1e-4}, {"params": others}]
    parameters = module.parameters() if options else groups
    optimizer = torch.optim.SGD(parameters, lr=RATES[0], momentum=0.9, **options)
    return torch_trace(module, loss_fn, optimizer, *BATCH)


def step(
    change=None, smoothing=SMOOTHING, optimizer=momentum, images=BATCH[0], rates=RATES, **network
):
    network = small(**network)
    if change:
        change(network)
    loss = smoothed_cross_entropy(4, smoothing)
    # Without compiling; test_trace.py shows that this changes nothing.
    with pynative():
        return trace(network, loss, optimizer(network, rates), images, BATCH[1])


def failed_stages(rows):
    return [stage for stage in STAGES if any(r.stage == stage and not r.passed for r in rows)]


def test_without_a_fault_all_rows_pass_and_none_is_dead(reference):
    rows = compare_step(step(), reference)
    assert first_difference(rows) is None, stage_table(rows)
    assert len(rows) == 2 + 10 + 5 + 1 + 8 + 8 + 2
    # Measured 2e-7; and no tensor is zero, so that each can go wrong.
    assert max(row.difference for row in rows) < 1e-5
    values = [value for stage in reference.stages.values() for value in stage.values()]
    assert all(np.abs(value).max() > 1e-6 for value in values)


def transpose(network):
    set_state(network.hidden.weight, network.hidden.weight.asnumpy().T.copy())


def poison(network):
    weight = network.conv2.weight.asnumpy().copy()
    weight[2, 3, 1, 1] = np.nan
    set_state(network.conv2.weight, weight)


FAULTS = {  # fault: (options of the step, first stage that fails, first name in it)
    "square weight transposed": (dict(change=transpose), "weights", "hidden.weight"),
    "NaN in a weight": (dict(change=poison), "weights", "conv2.weight"),
    "momentum not mapped": (dict(bn={"momentum": 0.1}), "statistics", "bn1.running_mean"),
    "epsilon of BatchNorm 1e-3": (dict(bn={"eps": 1e-3}), "forward", "bn1"),
    "padding same": (dict(pad_mode="same", padding=0), "forward", "conv1"),
    "no label smoothing": (dict(smoothing=0.0), "loss", "loss"),
    "learning rate of the next step": (dict(rates=RATES[1:]), "update", "conv1.weight"),
    "weight decay 0.1": (
        dict(optimizer=lambda n, rates: momentum(n, rates, decay=0.1)), "update", "conv1.weight"
    ),
    "channels in the order BGR": (dict(images=BATCH[0][:, ::-1].copy()), "preprocessing", "images"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_reported_first_where_it_is(reference, fault, form):
    options, stage, name = FAULTS[fault]
    rows = compare_step(step(**options), form(reference))
    row = first_difference(rows)
    assert (row.stage, row.name) == (stage, name), stage_table(rows)
    # Far over the tolerance, so not rounding. An epsilon changes an output by eps / (2 var).
    margin = 1.5 if "epsilon" in fault else 10
    assert row.difference > margin * max(row.tolerance, 1e-6)
    if stage in ("update", "statistics"):
        assert failed_stages(rows) == [stage]


def test_weight_decay_given_as_a_number_is_a_trap():
    """MindSpore does not decay names with beta and gamma (only those); PyTorch decays all."""
    reference = torch_step(weight_decay=0.1)
    trapped = step(optimizer=lambda n, rates: nn.Momentum(n.trainable_params(), rates, 0.9, 0.1))
    rows = compare_step(trapped, reference)
    assert failed_stages(rows) == ["update"]
    assert [r.name for r in rows if not r.passed] == ["bn1.weight", "bn1.bias"]
    assert first_difference(rows).difference > 0.05
    grouped = lambda n: [{"params": n.trainable_params(), "weight_decay": 0.1}]  # noqa: E731
    right = step(optimizer=lambda n, rates: nn.Momentum(grouped(n), rates, 0.9))
    assert first_difference(compare_step(right, reference)) is None
