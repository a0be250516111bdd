"""A worker's optimizer on one vector for all weights is that on each tensor."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn
from mindspore.nn.learning_rate_schedule import ExponentialDecayLR

from labkit import AdamW, Muon
from labkit.algorithms.adasum import AdasumStep, moves
from labkit.algorithms.adasum.workers import states_of
from labkit.errors import InputError
from labkit.steps.state import set_state
from labkit.steps.step import PlainStep
from tests.support.step_cells import (
    assert_bit_equal,
    assert_close,
    regression,
    restore,
    rows,
    snapshot,
    tensors,
)

pytestmark = pytest.mark.usefixtures("runtime", "eager")

SIZES = {"layer.weight": (3, 5), "norm.gamma": (5,), "norm.beta": (5,), "last": (1,), "big": (7, 9)}
RATES = [0.1, 0.05, 0.02]


class Decay(nn.Cell):
    """A weight decay that changes with the number of updates."""

    def construct(self, global_step):
        return 0.1 / (1.0 + global_step)


class Sums(nn.Cell):
    """A loss of tensors of many sizes, two of which bear the names of a normalisation."""

    def __init__(self):
        super().__init__()
        draw = np.random.default_rng(7)
        for number, (name, size) in enumerate(SIZES.items()):
            value = draw.normal(size=size).astype(np.float32)
            setattr(self, f"p{number}", Parameter(Tensor(value), name=name))

    def construct(self, inputs, targets):
        squares = ((self.p0 @ self.p1 - inputs) ** 2).mean() + ((self.p2 - 0.1) ** 2).sum()
        wave = (self.p4 * inputs.mean()).sin().sum() * self.p3.sum()
        loss = squares + wave + (targets * self.p0.sum()).mean()
        return loss, Tensor(1.0, ms.float32)


def grouped(parameters, **of_last):
    """Three groups, interleaved in the network's order; two have the same rate and decay."""
    groups = [{"params": [parameters[i]], "lr": 0.1, "weight_decay": 0.2} | of_last for i in (3, 1)]
    return [*groups, {"params": [parameters[i] for i in (0, 2, 4)]}, {"order_params": parameters}]


# name -> (function from Parameters to an optimizer, number of vectors)
MADE = {
    "SGD": (lambda p: nn.SGD(p, 0.05, momentum=0.9, nesterov=True, weight_decay=0.1), 2),
    "SGD without decay": (lambda p: nn.SGD(p, 0.05, momentum=0.9, dampening=0.5), 1),
    "Momentum": (lambda p: nn.Momentum(p, RATES, 0.9, weight_decay=0.1, use_nesterov=True), 2),
    "groups": (lambda p: nn.Momentum(grouped(p), 0.05, 0.9, weight_decay=0.01), 3),
    "schedules": (lambda p: nn.Momentum(grouped(p, lr=RATES), 0.05, 0.9), 3),
    "a Cell": (lambda p: nn.Momentum(grouped(p, weight_decay=Decay()), 0.05, 0.9), 3),
    "Adam": (lambda p: nn.Adam(p, ExponentialDecayLR(0.1, 0.5, 2), weight_decay=0.1), 2),
    "AMSGrad": (lambda p: nn.Adam(grouped(p), 0.05, use_amsgrad=True, use_nesterov=False), 3),
    "AdamW": (lambda p: AdamW(grouped(p), RATES, 0.8, 0.9, 1e-3), 3),
}


def train(step, calls):
    """Call 3 is not finite, and a whole worker with it."""
    for call in range(calls):
        draw = np.random.default_rng(call)
        batch = draw.normal(size=3).astype(np.float32), np.float32([np.nan if call == 3 else call])
        step(*tensors(*batch))


LONG = "SGD without decay", "groups", "schedules", "AMSGrad"  # much as one of the others


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.long) if n in LONG else n for n in MADE]
)
def test_on_vectors_and_on_tensors(name, monkeypatch):
    """To the bit, but for Adam's kernels, which round the last numbers of a tensor otherwise."""
    make, count = MADE[name]
    ends, vectors = [], []
    for by_vector in (True, False):
        net = Sums()
        optimizer = make(net.trainable_params())
        with monkeypatch.context() as patched:
            if not by_vector:
                patched.setattr(moves, "ELEMENTWISE", ())
            step = AdasumStep(net, optimizer, workers=3, scope="network")
        assert type(step.update.moves).__name__ == "Moves" + "OfVectors" * by_vector
        train(step, 8)
        step.end_epoch()
        assert step.last_update.number == int(optimizer.global_step.asnumpy()[0]) == 3
        ends.append({p.name: p.asnumpy().copy() for p in net.trainable_params()})
        vectors.append(step.vectors())
        if by_vector:
            assert len(step.update.moves.twin.parameters) == count
    for a, b in (ends, vectors):
        if "A" in name:
            assert_close(a, b, rtol=1e-5, atol=1e-6)
        else:
            assert_bit_equal(a, b)


@pytest.mark.parametrize("make", [lambda p: nn.Adam(p, 0.1), lambda p: AdamW(p, 0.1)])
def test_workers_start_with_the_states_that_the_optimizer_has(make):
    """Moments and counts of a training before; afterwards only a checkpoint may set them."""
    ends = []
    for step_of in (
        lambda *args: PlainStep(*args),
        lambda *args: AdasumStep(*args, workers=2, reduction="mean"),
    ):
        net, loss_net = regression()
        optimizer = make(net.trainable_params())
        first = PlainStep(loss_net, optimizer)
        for seed in range(3):
            first(*tensors(*rows(4, seed=seed)))
        step = step_of(loss_net, optimizer)
        for seed in (3, 4):  # both workers have the same rows
            for _ in range(step.update.turns):
                step(*tensors(*rows(4, seed=seed)))
        ends.append({p.name: p.asnumpy().copy() for p in net.trainable_params()})
    assert_close(*ends, rtol=1e-5, atol=1e-6)
    net, loss_net = regression()
    fresh = AdasumStep(loss_net, make(net.trainable_params()), workers=2, reduction="mean")
    restore(fresh, snapshot(step))
    fresh(*tensors(*rows(4)))
    state = states_of(optimizer)[-1]
    set_state(state, np.full(state.shape, np.nan))
    with pytest.raises(InputError, match=f"{state.name}: .* the state of a worker, which each"):
        step(*tensors(*rows(4)))


def test_moments_of_an_optimizer_on_tensors_are_refused_too():
    net, loss_net = regression()
    step = AdasumStep(loss_net, nn.RMSProp(net.trainable_params(), 0.01), workers=2)
    for seed in range(3):
        step(*tensors(*rows(4, seed=seed)))
    set_state(step.optimizer.moment[1], [np.nan, 1.0])
    with pytest.raises(InputError, match="bias: expected the state of a worker"):
        step(*tensors(*rows(4)))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda p: nn.Adam(p, use_amsgrad=True), True),
        (lambda p: nn.Adam(p, use_lazy=True), False),
        (lambda p: nn.Adam(p, use_offload=True), False),
        (lambda p: type("Own", (nn.SGD,), {})(p), False),
        (lambda p: nn.SGD([{"params": p, "grad_centralization": True}]), False),
        (lambda p: nn.AdamWeightDecay(p), False),
        (lambda p: Muon(p[:1]), False),
        (lambda p: nn.LARS(nn.Momentum(p, 0.1, 0.9)), False),
        (lambda p: nn.Momentum([Parameter(Tensor([1.0], ms.float16), name="h")], 0.1, 0.9), False),
    ],
)
def test_which_optimizers_treat_each_number_by_itself(make, expected):
    assert moves.elementwise(make(nn.Dense(16, 16).trainable_params())) is expected


def test_a_tail_that_is_dropped_is_said_beforehand():
    """The states before an update are kept for it alone."""
    net, loss_net = regression()
    step = AdasumStep(loss_net, nn.SGD(net.trainable_params(), 0.1), workers=2)
    step.tail = "drop"
    step.end_epoch()
    step(*tensors(*rows(4)))
    with pytest.raises(InputError, match="tail: expected it to be given to the step"):
        step.end_epoch()
