"""SubspaceStep against float64, update by update; traces of a trial, and what is refused."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from labkit.algorithms.subspace import Basis, LastSearch, SubspaceStep, SubspaceUpdate
from labkit.errors import InputError
from labkit.nets.small import NormNet
from labkit.steps.options import DynamicLossScale
from labkit.steps.state import running_statistics, set_state
from labkit.steps.step import PlainStep
from labkit.training import checkpoint
from tests.support.step_cells import (
    Own,
    assert_bit_equal,
    digits,
    interrupted,
    snapshot,
    tensors,
    to_float16,
    unchanged,
)
from tests.support.subspace_cells import SHAPES, basis_of, flat, small, small_rows
from tests.support.subspace_twin import Twin

pytestmark = pytest.mark.usefixtures("runtime")

COMPONENTS = 5
# Rows on which twenty updates are well conditioned. A search is not continuous: on other rows, in
# float64, a change of 1e-7 in the first weights became anything from 3e-7 to 0.2.
ROWS, FIRST = 64, 1000


def by_groups(parameters, rate):
    """Return Momentum without decay on the biases; its order is not that of the network."""
    biases = [p for p in parameters if p.name.endswith("bias")]
    weights = [p for p in parameters if p.name.endswith("weight")]
    groups = [{"params": biases, "weight_decay": 0.0}, {"params": weights, "weight_decay": 0.1}]
    return nn.Momentum([*groups, {"order_params": biases + weights}], rate, 0.8)


DECAYED = np.repeat([0.1, 0.0, 0.1, 0.0], [36, 6, 24, 4])
# Requires more decrease than most steps give: searches fail.
HARD = {"sigma": 0.95, "trials": 2, "alpha": 0.3}
# name -> (options of the step, options of the twin alone, calls that are NaN, calls after which the
# epoch ends)
CASES = {
    "defaults": ({}, {}, (), ()),
    "failed searches": (HARD, {}, (7,), ()),
    "rolled back": (HARD | {"failure": "rollback", "rho": 0.2}, {}, (), ()),
    "groups of Momentum": (
        {"alpha": 0.2, "gamma": 0.5},
        {"rate": 0.4, "momentum": 0.8, "decay": DECAYED},
        (),
        (),
    ),
    "micro-batches": (
        {"micro_steps": 3, "alpha": 0.1, "loss_scale": 1024.0, "curvature": 0.5},
        {},
        (1, 9, 10, 11, 20),
        (7, 19),
    ),
    "sum, clipped": (
        {"micro_steps": 2, "reduction": "sum", "clip_norm": 0.6, "tail": "drop", "alpha": 0.1},
        {},
        (),
        (6,),
    ),
    "sgd": ({"method": "sgd", "clip_norm": 0.3}, {"rate": 0.5}, (3,), ()),
}


def twin_of(case, basis):
    options, others, *_ = CASES[case]
    names = set(Twin.__dataclass_fields__)
    own = {name: value for name, value in options.items() if name in names}
    rest = options.keys() - names - {"loss_scale"}
    return Twin(basis.matrix, constants={name: options[name] for name in rest}, **own | others)


def build(options, make=nn.SGD, rate=1.0):
    """Return (network, basis, step) of the small network, with SGD of rate 1 by default."""
    network, loss_net = small()
    basis = basis_of(network.trainable_params(), COMPONENTS)
    optimizer = make(network.trainable_params(), rate)
    return network, basis, SubspaceStep(loss_net, optimizer, basis, **options)


class TestTwin:
    """The requirement: 1e-4 after twenty updates, and the same decision in every search."""

    @pytest.mark.parametrize("case", CASES)
    def test_twenty_updates_equal_float64(self, case):
        options, others, nan, ends = CASES[case]
        make = by_groups if "momentum" in others else nn.SGD
        network, basis, step = build(options, make, others.get("rate", 1.0))
        twin, call, failed = twin_of(case, basis), 0, 0
        while twin.updates < 20:
            uneven = call % 3 if "micro_steps" in options else 0
            inputs, labels = small_rows(ROWS + uneven, seed=FIRST + call)
            inputs = inputs * np.float32(np.nan if call in nan else 1)
            before, done = flat(network), twin.updates
            loss = float(step(*tensors(inputs, labels)))
            assert loss == pytest.approx(twin.micro_batch(inputs, labels), rel=1e-4, nan_ok=True)
            if twin.updates == done:
                np.testing.assert_array_equal(flat(network), before)
            if call in ends:
                step.end_epoch()
                twin.end_epoch()
            np.testing.assert_allclose(flat(network), twin.weights, rtol=1e-4, atol=1e-4)
            assert step.last_update.number == twin.updates
            if step.update.searches and twin.updates > done:
                search, last = twin.search, step.last_search
                assert (last.trials, last.failures) == (search.made, search.failures)
                assert last.step_size == pytest.approx(search.rate)
                assert last.accepted == (last.step_size > 0)
                failed += not last.accepted
            call += 1
        assert int(step.dropped.asnumpy()) == len(nan)
        assert int(step.optimizer.global_step.asnumpy()[0]) == 20
        if "sigma" in options:
            assert 2 < failed < 18
        if step.update.searches and case != "groups of Momentum":  # whose order differs
            residual = step.update.residual.asnumpy()
            np.testing.assert_allclose(residual, twin.search.residual, rtol=1e-4, atol=1e-4)


class Quadratic(nn.Cell):
    """Loss net: (1/2 |A (w - w*)|^2, 1) with A (M, M) and w* (M,) given as the batch."""

    def __init__(self, numbers):
        super().__init__(auto_prefix=False)
        self.weights = Parameter(Tensor(np.zeros(numbers), ms.float32), name="weights")

    def construct(self, root, optimum):
        off = ops.matmul(root, ops.reshape(self.weights - optimum, (-1, 1)))
        return 0.5 * ops.reduce_sum(ops.square(off)), 1


def quadratic():
    """Return (basis, step): a ``Quadratic`` of 64 weights, 32 components; only the search moves."""
    loss_net = Quadratic(64)
    basis = basis_of([loss_net.weights], 32)
    return basis, SubspaceStep(loss_net, nn.SGD([loss_net.weights], 1.0), basis, alpha=0.0)


def problem(condition, scale, seed):
    """Return (A, w*, w); A^T A has eigenvalues around ``scale``, spread by ``condition``."""
    random = np.random.default_rng(seed)
    rotation = np.linalg.qr(random.normal(size=(64, 64)))[0]
    spread = np.log10(condition) / 2
    eigenvalues = scale * np.logspace(-spread, spread, 64)
    root = (rotation * np.sqrt(random.permutation(eigenvalues))) @ rotation.T
    optimum, weights = random.normal(size=(2, 64)).astype(np.float32)
    return root.astype(np.float32).astype(np.float64), optimum, weights


@pytest.mark.parametrize(("condition", "seed"), [(1, 0), (10, 0), (100, 0), (100, 1)])
@pytest.mark.parametrize("scale", [0.1, 1, 10, 100])
def test_quadratics(once, condition, seed, scale):
    """The requirement: within 37 steps the gap to the subspace's optimum is 1e-6 of its start."""
    root, optimum, weights = problem(condition, scale, seed)
    basis, step = once(quadratic)
    (parameter,) = step.optimizer.parameters
    set_state(parameter, weights)
    basis = basis.matrix.astype(np.float64)
    hessian, off = root.T @ root, weights.astype(np.float64) - optimum
    best = np.linalg.solve(basis @ hessian @ basis.T, -basis @ hessian @ off)

    def value(off):
        return 0.5 * float(np.sum((root @ off) ** 2))

    lowest = value(off + basis.T @ best)
    wanted = 1e-6 * (value(off) - lowest)
    for _ in range(37):
        step(*tensors(root.astype(np.float32), optimum))
        weights_now = parameter.asnumpy().astype(np.float64)
        # The weights never leave the subspace, whose optimum is not that of the whole space.
        outside = weights_now - weights
        outside = outside - basis.T @ (basis @ outside)
        assert np.abs(outside).max() < 1e-5 and lowest > 1e4 * wanted
        if value(weights_now - optimum) - lowest <= wanted:
            return
    raise AssertionError("37 updates do not close the gap")


def test_the_loss_scale_is_in_nothing(once):
    """Scales 1, 128, 1024 and 4096 give the same parameters to 1e-5: no power of it is left."""
    ends = []
    for scale in (1.0, 128.0, 1024.0, 4096.0):
        dynamic = {"loss_scale": DynamicLossScale(2.0**12, 2.0, 2)}
        network, _, step = once(build, {} if scale == 1 else dynamic)
        if scale > 1:
            set_state(step.gradient.loss_scale, scale)
        for call in range(8):
            step(*tensors(*small_rows(ROWS, seed=call)))
        ends.append(flat(network))
    for end in ends[1:]:
        np.testing.assert_allclose(end, ends[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("precision", "kept"), [("O2", ms.float32), ("O0", ms.float16)])
@pytest.mark.filterwarnings("ignore:Parameter '0.weight' and 3 more is float16")
def test_float16(precision, kept, eager):
    """Float16 in the network or in the weights; P, B and the residual are float32."""
    network, loss_net = small()
    if kept == ms.float16:
        to_float16(network)
    parameters = network.trainable_params()
    basis = basis_of(parameters, COMPONENTS)
    options = {"precision": precision, "loss_scale": DynamicLossScale(), "clip_norm": 1.0}
    step = SubspaceStep(loss_net, nn.SGD(parameters, 1.0), basis, alpha=0.1, **options)
    twin = Twin(basis.matrix, constants={"alpha": 0.1}, clip_norm=1.0)
    for call in range(4):
        batch = small_rows(32, seed=call)
        step(*tensors(*batch))
        twin.micro_batch(*batch)
        assert step.last_search.accepted and step.last_search.trials == twin.search.made
    np.testing.assert_allclose(flat(network), twin.weights, rtol=0, atol=0.02)
    assert step.last_update.number == 4 and {p.dtype for p in parameters} == {kept}


def steep(logits, labels):
    """Cross entropy times 10 000: a step of the gradient's length is far too long."""
    return 1e4 * ops.cross_entropy(logits, labels), len(labels)


def test_twenty_trials_leave_no_trace_in_batch_norm():
    """Running statistics are those after one ordinary forward pass, bit for bit."""
    ends = []
    for searches in (False, True):
        ms.set_seed(2)
        network = NormNet("batch")
        adam = nn.Adam(network.trainable_params(), nn.ExponentialDecayLR(0.01, 0.9, 1))
        loss_net, basis = Own(network, steep), basis_of(adam.parameters, 4)
        if searches:  # up to 20 trials between 1 and 0.83 of the step
            step = SubspaceStep(loss_net, adam, basis, rho=0.99)
        else:
            step = PlainStep(loss_net, adam)
        step(*tensors(*digits(16)))
        ends.append({p.name: p.asnumpy().copy() for p in running_statistics(network)})
    assert_bit_equal(*ends)
    assert step.last_search == LastSearch(20, False, 0.0, 1)
    assert int(step.optimizer.global_step.asnumpy()[0]) == 1
    assert step.last_update.learning_rate == pytest.approx((0.01,))


def test_an_interrupted_search_was_not_made(once):
    """Interrupted before any of its graphs, a call moves no weight and leaves no trace."""
    ends = []
    for graph in (None, "project", "prepare", "trial", "finish"):
        network, _, step = once(build, {"alpha": 0.1})
        for call in range(4):
            if call == 2:
                if graph is not None:
                    before = flat(network)
                    with interrupted(getattr(step.update, graph)):
                        step(*tensors(*small_rows(ROWS, seed=77)))
                    np.testing.assert_array_equal(flat(network), before)
                # A batch that is not finite makes no update, not even the interrupted one.
                inputs, labels = small_rows(ROWS, seed=78)
                step(*tensors(inputs * np.float32(np.nan), labels))
                assert step.last_update.number == 2
            step(*tensors(*small_rows(ROWS, seed=call)))
        ends.append(snapshot(step))
    for other in ends[1:]:
        assert_bit_equal(other, ends[0])


def test_in_the_middle_of_a_group_it_refuses_to_go_on(eager, tmp_path):
    """A checkpoint from other code lacks the group's rows, and the step does not guess them.

    tests/training/test_resume.py shows that a resumed search ends as the uninterrupted one does.
    """
    _, _, step = build({"micro_steps": 2})
    batch = tensors(*small_rows(4, seed=0))
    assert step.update.can_be_saved
    step(*batch)
    assert not step.update.can_be_saved
    checkpoint.write(step, tmp_path / "middle.ckpt")
    step(*batch)
    assert step.update.can_be_saved and step.last_update.number == 1
    checkpoint.load_into(step, checkpoint.read(tmp_path / "middle.ckpt"))
    with unchanged(step):
        for go_on in (lambda: step(*batch), step.end_epoch):
            with pytest.raises(InputError, match="the sums of 1 micro-batches and not their rows"):
                go_on()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rho": 1.0}, "rho: expected a finite number > 0 and < 1, got 1.0"),
        ({"alpha": -1e-3}, "alpha: expected a finite number >= 0, got -0.001"),
        ({"trials": 0}, "trials: expected an integer >= 1, got 0"),
        ({"failure": "rese"}, "failure: expected one of 'reset', 'rollback', got 'rese'"),
        ({"method": "bfg"}, "method: .*'bfgs', 'sgd', got 'bfg'. Did you mean 'bfgs'"),
        ({"method": "sgd", "alpha": 1}, "method='sgd' searches nothing.* for alpha"),
        ({"tail": "carry"}, "tail: expected one of 'flush', 'drop', got 'carry'"),
        ({"trails": 3}, "unknown option 'trails'.* Did you mean 'trials'"),
    ],
)
def test_what_is_no_option(options, message):
    with pytest.raises(InputError, match=message):
        build(options)


def test_what_is_no_constant_of_the_update_stage():
    sgd = nn.SGD(small()[0].trainable_params(), 1.0)
    with pytest.raises(InputError, match="unknown constant 'trails'.* Did you mean 'trials'"):
        SubspaceUpdate(sgd, basis_of(sgd.parameters, COMPONENTS), trails=3)


@pytest.mark.parametrize(
    ("matrix", "shapes", "message"),
    [
        (np.eye(3, 70), ((6, 6), (6,), (6, 4), (4,)), r"2.weight is \(6, 4\); expected \(4, 6\)"),
        (2 * np.eye(3, 70), SHAPES, "expected orthonormal, got P P.T - I up to 3"),
        (np.full((3, 70), np.nan), SHAPES, "expected orthonormal, got P P.T - I up to nan"),
        (np.eye(3, 70), None, "basis: expected a Basis, .*, got array"),
    ],
)
def test_of_other_weights_or_none(matrix, shapes, message):
    network, loss_net = small()
    parameters, basis = network.trainable_params(), matrix
    if shapes:
        names = [parameter.name for parameter in parameters]
        basis = Basis(matrix, zip(names, shapes, strict=True), [], 1.0)
    with pytest.raises(InputError, match=message):
        SubspaceStep(loss_net, nn.SGD(parameters, 1.0), basis)
