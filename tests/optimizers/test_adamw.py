"""AdamW against PyTorch's in float64; what MindSpore's own two do instead."""

import mindspore as ms
import numpy as np
import pytest
import torch
from mindspore import Tensor, nn

from labkit.errors import InputError
from labkit.optimizers import AdamW
from tests.support.compiled import compiled_operators
from tests.support.operator_platforms import missing
from tests.support.optimizer_cells import apply, gradients, parameters, values

pytestmark = pytest.mark.usefixtures("runtime")

UPDATES = 50
RATES = (0.01 * (1 + np.cos(np.linspace(0, np.pi, UPDATES)))).astype(np.float32).tolist()


class Decay(nn.Cell):
    """A weight decay that falls with the number of updates."""

    def construct(self, global_step):
        return 0.5 / (1.0 + global_step.astype(ms.float32).reshape(()))


def halved_at_ten(update):
    return 0.5 ** (update // 10)


def grouped(own, **options):
    """``wide`` with a rate, ``tall`` with a decay, the rest with neither; ordered."""
    wide, bias, tall, scale = own
    groups = [
        {"params": [tall], "weight_decay": 0.3},
        {"params": [wide], "lr": options["lr"], "weight_decay": options["decay"]},
        {"params": [scale, bias], "weight_decay": 0.0},
    ]
    return [*groups, {"order_params": own}]


# name -> (optimizer of Parameters; for update t, a rate and a decay for wide, bias, tall, scale)
CASES = {
    "defaults": (AdamW, lambda t: [(1e-3, 1e-2)] * 4),
    "own betas, eps and decay": (
        lambda own: AdamW(own, 0.01, 0.8, 0.95, 1e-3, 0.2),
        lambda t: [(0.01, 0.2)] * 4,
    ),
    "list of rates": (lambda own: AdamW(own, RATES), lambda t: [(RATES[t], 1e-2)] * 4),
    "schedule": (
        lambda own: AdamW(own, nn.ExponentialDecayLR(0.02, 0.5, 10, is_stair=True)),
        lambda t: [(0.02 * halved_at_ten(t), 1e-2)] * 4,
    ),
    "dynamic decay": (
        lambda own: AdamW(own, 0.01, weight_decay=Decay()),
        lambda t: [(0.01, 0.5 / (1 + t))] * 4,
    ),
    "groups": (
        lambda own: AdamW(grouped(own, lr=0.02, decay=0.1), 0.005),
        lambda t: [(0.02, 0.1), (0.005, 0), (0.005, 0.3), (0.005, 0)],
    ),
    "groups, schedules": (
        lambda own: AdamW(grouped(own, lr=0.02, decay=Decay()), RATES),
        lambda t: [(0.02, 0.5 / (1 + t)), (RATES[t], 0), (RATES[t], 0.3), (RATES[t], 0)],
    ),
}


def torch_adamw(own, **options):
    """PyTorch's AdamW in float64, one group for each Parameter."""
    weights = [torch.tensor(value, requires_grad=True) for value in values(own)]
    return weights, torch.optim.AdamW([{"params": [w]} for w in weights], **options)


def torch_update(weights, other, parts, settings):
    for weight, group, part, numbers in zip(
        weights, other.param_groups, parts, settings, strict=True
    ):
        group["lr"], group["weight_decay"] = numbers
        weight.grad = torch.tensor(part.astype(np.float64))
    other.step()


@pytest.mark.parametrize("name", CASES)
def test_fifty_updates_are_those_of_pytorch(name, request):
    if name == "own betas, eps and decay":  # the others are compiled, which takes no longer
        request.getfixturevalue("eager")
    make, settings = CASES[name]
    own = parameters()
    betas = {"betas": (0.8, 0.95), "eps": 1e-3} if "betas" in name else {}
    weights, other = torch_adamw(own, **betas)
    before, optimizer = values(own), make(own)
    for update, parts in enumerate(gradients(UPDATES)):
        apply(optimizer, parts)
        torch_update(weights, other, parts, settings(update))
    for actual, expected, start in zip(values(own), weights, before, strict=True):
        expected = expected.detach().numpy()
        assert np.abs(expected - start).max() > 0.003
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    assert optimizer.global_step.asnumpy() == UPDATES == optimizer.made.asnumpy()


def test_mindspores_own_two_are_others(eager):
    """The reason for this one: no bias correction; and eps 31 times larger at the first update."""
    moves = {}
    gradient = 1e-8  # as large as eps
    for make in (AdamW, nn.Adam, nn.AdamWeightDecay):
        own = parameters(shapes={"one": (1,)})
        before = values(own)[0]
        make(own, 0.01, eps=1e-8, weight_decay=0.0)((Tensor([gradient], ms.float32),))
        moves[make.__name__] = float((before - values(own)[0])[0]) / 0.01
    root = 0.001**0.5
    assert moves["AdamW"] == pytest.approx(1 / (1 + 1), rel=1e-3)
    assert moves["Adam"] == pytest.approx(1 / (1 + 1 / root), rel=1e-3)
    assert moves["AdamWeightDecay"] == pytest.approx(0.1 / (root + 1), rel=1e-3)


@pytest.mark.parametrize("mode", ["graph", "eager"])
def test_float16_parameters_have_float32_moments(mode, request):
    """With float16 moments a gradient of 0 gave 0 / 0, and one of 1e-4 a step of -inf."""
    if mode == "eager":
        request.getfixturevalue("eager")
    own = parameters(np.float16)
    weights, other = torch_adamw(own)
    optimizer = AdamW(own, 0.01)
    for parts in gradients(20, np.float16):
        parts[0][:] = 0
        apply(optimizer, parts)
        torch_update(weights, other, parts, [(0.01, 1e-2)] * 4)
    assert {p.dtype for p in own} == {ms.float16}
    for actual, expected in zip(values(own), weights, strict=True):
        np.testing.assert_allclose(actual, expected.detach().numpy(), rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rate": -1e-3}, "'learning rate' must be float and must >= 0, but got '-0.001'"),
        ({"learning_rate": float("nan")}, "'learning rate' must be a legal value, but got 'nan'"),
        ({"weight_decay": -1}, "'weight_decay' must be float and must >= 0"),
        ({"beta1": 1}, "beta1: expected a finite number > 0 and < 1, got 1"),
        ({"beta2": 0.0}, "beta2: expected a finite number > 0 and < 1"),
        ({"eps": 0}, "eps: expected a finite number > 0"),
    ],
)
def test_numbers_out_of_bounds_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        AdamW(parameters(), **options)


def test_a_type_without_a_kernel_is_refused_by_name():
    own = parameters()
    own[1].set_dtype(ms.bfloat16)
    with pytest.raises(InputError, match="bias: expected float32 or float16, as AdamW's kernel"):
        AdamW(own)


def test_one_kernel_for_each_tensor_documented_for_all_platforms():
    own = parameters()
    names = [o.name for o in compiled_operators(apply, AdamW(own, RATES), gradients(1)[0])]
    assert names.count("AdamWeightDecay") == len(own)
    assert missing(names) == {}
