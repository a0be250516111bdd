"""AdamW, Muon and both of them in the steps."""

import warnings

import numpy as np
import pytest
import torch
from mindspore import mint, nn, ops
from mindspore.experimental import optim as experimental

from labkit.errors import InputError
from labkit.optimizers import AdamW, Both, Muon
from labkit.steps.step import PlainStep
from tests.support.step_cells import STEPS, exact, regression, restore, rows, snapshot, tensors
from tests.support.tolerances import TOLERANCE

pytestmark = pytest.mark.usefixtures("runtime")

RATES = [0.1, 0.07, 0.05, 0.03, 0.02, 0.01]


def in_groups(network):
    groups = [{"params": [network.weight], "lr": 0.05}, {"params": [network.bias]}]
    return AdamW(groups, RATES, weight_decay=0.1)


@pytest.mark.parametrize("kind", ["plain", "accumulated"])
def test_weights_are_those_of_pytorch_in_float64(kind):
    network, loss_net = regression()
    twins = [torch.tensor(value, requires_grad=True) for value in exact(network)]
    other = torch.optim.AdamW([{"params": [w]} for w in twins], lr=0.05, weight_decay=0.1)
    step = STEPS[kind](loss_net, in_groups(network))
    for number, rate in enumerate(RATES):
        inputs, targets = rows(8, seed=number)
        for part in np.split(np.arange(8), step.micro_batches):
            step(*tensors(inputs[part], targets[part]))
        other.param_groups[1]["lr"] = rate
        other.zero_grad()
        inputs, targets = (torch.tensor(part.astype(np.float64)) for part in (inputs, targets))
        torch.nn.functional.mse_loss(inputs @ twins[0].T + twins[1], targets).backward()
        other.step()
        assert step.last_update.learning_rate == pytest.approx((0.05, rate))
    for actual, expected in zip(exact(network), twins, strict=True):
        np.testing.assert_allclose(
            actual, expected.detach().numpy(), **TOLERANCE["float32, many updates"]
        )


def joined(network):
    return Both(network.trainable_params(), Muon([network.weight], RATES), AdamW([network.bias]))


@pytest.mark.parametrize("make", [in_groups, joined])
@pytest.mark.parametrize("kind", STEPS)
def test_every_step_takes_them_and_counts_once_an_update(eager, kind, make):
    network, loss_net = regression()
    step = STEPS[kind](loss_net, make(network))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(2 * step.micro_batches):
            before = exact(network)
            step(*tensors(*rows(8, seed=number)))
    assert all((a != b).any() for a, b in zip(exact(network), before, strict=True))
    assert step.optimizer.global_step.asnumpy() == 2 == step.last_update.number
    assert step.last_update.learning_rate[make is in_groups] == pytest.approx(RATES[1])
    made = [p.asnumpy() for p in step.get_parameters() if p.name.endswith("adamw.made")]
    assert np.max(made[-1]) == 2  # under Adasum each worker's, behind the optimizer's own


# All that MindSpore's CPU can run: it has no operators of nn.Lamb and nn.LARS.
OWN = "Adadelta Adagrad Adam AdaMax AdamOffload AdamWeightDecay ASGD FTRL LazyAdam Momentum "
OWN += "ProximalAdagrad RMSProp Rprop SGD"


@pytest.mark.parametrize("name", OWN.split())
def test_none_of_mindspores_optimizers_is_said_not_to_count(name, eager):
    network, loss_net = regression()
    rest = {"Momentum": (0.05, 0.9)}.get(name, ())
    step = PlainStep(loss_net, getattr(nn, name)(network.trainable_params(), *rest))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(*tensors(*rows(4)))
    assert step.record.counts and step.optimizer.global_step.asnumpy() == 1


class Standing(nn.Optimizer):
    """Gradient descent that does not count."""

    def construct(self, gradients):
        moves = self.hyper_map(ops.partial(ops.mul, self.get_lr()), gradients)
        return self.hyper_map(ops.assign_sub, self.parameters, moves)


def test_after_a_resume_a_standing_count_is_seen_at_the_first_update(eager):
    """Other than 0, and only once an update was made: not in the middle of a group."""
    network, loss_net = regression()
    step = STEPS["accumulated"](loss_net, Standing(0.1, network.trainable_params()))
    restore(step, snapshot(step) | {"step.updates": np.int32(5), "global_step": np.int32([5])})
    said = []
    for number in range(3 * step.micro_batches):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step(*tensors(*rows(4, seed=number)))
        said.append([str(each.message) for each in caught])
    expected = "Standing leaves its global_step, and so any schedule, at 5; expected self.assignadd"
    assert [len(each) for each in said] == [0, 1, 0, 0, 0, 0] and expected in said[1][0]


@pytest.mark.parametrize("make", [mint.optim.AdamW, experimental.AdamW, torch.optim.AdamW])
def test_other_libraries_of_optimizers_are_refused_with_the_way_out(make):
    network, loss_net = regression()
    weights = network.trainable_params() if make is not torch.optim.AdamW else [torch.zeros(1)]
    expected = r"expected an nn.Optimizer, got '.*AdamW'. labkit.AdamW equals torch.optim.AdamW"
    with pytest.raises(InputError, match=expected):
        PlainStep(loss_net, make(weights, lr=0.1))
