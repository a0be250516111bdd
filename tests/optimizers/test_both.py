"""One optimizer of two: to the bit the two alone, and to a step one optimizer."""

import mindspore.dataset as ds
import pytest
from mindspore import Tensor, nn
from mindspore.train import ReduceLROnPlateau

from labkit.algorithms.adasum.workers import states_of
from labkit.errors import InputError
from labkit.optimizers import AdamW, Both, Muon
from labkit.steps.state import set_state
from labkit.steps.step import PlainStep
from labkit.training.fit import fit
from tests.support.optimizer_cells import apply, gradients, parameters
from tests.support.step_cells import assert_bit_equal, regression, rows, snapshot, tensors

pytestmark = pytest.mark.usefixtures("runtime")

RATES = [0.1 / (1 + update) for update in range(12)]


class Decay(nn.Cell):
    def construct(self, global_step):
        return 0.1 / (1.0 + global_step.reshape(()))


def halves(wide, bias, tall, scale):
    """Three kinds of rate and of decay; each half in an order of its own, Adam's in groups."""
    groups = [{"params": [scale], "lr": 0.02}, {"params": [bias]}]
    return Muon([tall, wide], RATES, weight_decay=Decay()), nn.Adam(groups, 0.01)


@pytest.mark.parametrize("mode", ["graph", "eager"])
def test_it_is_the_two_alone_to_the_bit(mode, request):
    if mode == "eager":
        request.getfixturevalue("eager")
    own, others = parameters(), parameters()
    both, (first, second) = Both(own, *halves(*own)), halves(*others)
    updates = gradients(3 if mode == "eager" else 10)
    for wide, bias, tall, scale in updates:
        apply(both, (wide, bias, tall, scale))
        apply(first, (tall, wide))
        apply(second, (scale, bias))
    assert_bit_equal({p.name: p.asnumpy() for p in own}, {p.name: p.asnumpy() for p in others})
    assert both.global_step.asnumpy() == len(updates)
    names = [parameter.name for parameter in both.get_parameters()]
    assert len(set(names)) == len(names)
    rates = [float(rate.asnumpy()) for rate in both.get_lr()]
    assert rates == pytest.approx([RATES[len(updates)], 0.01, RATES[len(updates)], 0.02], rel=1e-6)


def test_a_parameter_in_both_or_in_neither_is_refused_by_name():
    own = wide, bias, tall, scale = parameters()
    stranger = parameters(shapes={"stranger": (2, 2)})
    lars = nn.LARS(nn.SGD([tall], 0.1))
    for params, first, second, message in (
        (own, Muon([wide]), AdamW([bias, scale]), "expected tall in params .* in 0 of the opt"),
        (own, Muon([wide, tall]), AdamW([bias, scale, tall]), "expected tall .* in 2 of the opt"),
        (own, Muon([wide, tall, *stranger]), AdamW([bias, scale]), "stranger .* it not in params"),
        (own, lars, AdamW([wide, bias, scale]), "expected an nn.Optimizer, other than nn.LARS"),
        (own, [wide], AdamW([bias]), "expected an nn.Optimizer, other than nn.LARS, got 'list'"),
        (own, nn.SGD([wide], 0.1, loss_scale=8.0), AdamW([bias]), "loss_scale 1: give it to"),
    ):
        with pytest.raises(InputError, match=message):
            Both(params, first, second)


def of_network(network, rate=0.05):
    """Muon on the matrix, Adam with a moment and a rate on the bias."""
    weights = network.trainable_params()
    return Both(weights, Muon([network.weight], rate), AdamW([network.bias], 0.02))


def test_the_record_shows_both_rates_and_either_may_be_set(eager):
    network, loss_net = regression()
    optimizer = of_network(network)
    step = PlainStep(loss_net, optimizer)
    step(*tensors(*rows(4)))
    assert step.last_update.learning_rate == pytest.approx((0.05, 0.02))
    for owner, still, moving in (
        (optimizer.first, network.weight, network.bias),
        (optimizer.second, network.bias, network.weight),
    ):
        rate = owner.learning_rate
        kept, before = rate.asnumpy().copy(), snapshot(network)
        rate.set_data(Tensor(0.0))
        step(*tensors(*rows(4, seed=1)))
        assert 0.0 in step.last_update.learning_rate
        after = snapshot(network)
        assert (after[still.name] == before[still.name]).all()
        assert (after[moving.name] != before[moving.name]).all()
        set_state(rate, kept)


def test_global_step_set_from_outside_moves_the_schedules_of_both():
    network, loss_net = regression()
    rates = [0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.0, 0.1, 0.1]
    step = PlainStep(loss_net, of_network(network, rates))
    for number in (0, 1, 7, 8):
        if number == 7:
            step.optimizer.global_step.set_data(Tensor([7]))
        before = network.weight.asnumpy().copy()
        step(*tensors(*rows(4, seed=number)))
        assert step.last_update.learning_rate == pytest.approx((rates[number], 0.02))
        assert (network.weight.asnumpy() != before).any() == (number != 7)


def test_a_worker_of_adasum_has_the_states_of_both_and_not_their_settings():
    network, _ = regression()
    names = {parameter.name for parameter in states_of(of_network(network, RATES))}
    moments = {"first.muon.m.weight", "second.adamw.m.bias", "second.adamw.v.bias"}
    assert names == moments | {"second.adamw.made"}


def test_a_callback_that_sets_the_rate_is_refused():
    network, loss_net = regression()
    step = PlainStep(loss_net, of_network(network))
    data = ds.NumpySlicesDataset(rows(8), shuffle=False).batch(4)
    with pytest.raises(InputError, match="an optimizer with one constant rate"):
        fit(step, data, 1, callbacks=[ReduceLROnPlateau("loss")], progress=None)
