"""The GPT against PyTorch in float64; its weights, its mask, and how a step trains it."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from labkit.errors import InputError
from labkit.migration import load
from labkit.nets.gpt import GPT
from labkit.steps.losses import TokenLossNet
from labkit.steps.options import DynamicLossScale
from labkit.steps.step import PlainStep

SMALL = {"layers": 2, "width": 8, "heads": 2, "length": 7}
TOKENS = np.random.default_rng(0).integers(0, 11, (3, 6)).astype(np.int32)
LABELS = np.where(np.arange(6) < [[6], [2], [4]], np.roll(TOKENS, -1, 1), -100).astype(np.int32)


def test_logits_loss_and_gradients_are_those_of_pytorch(eager):
    """With labels of other lengths, whose mean is over the labels that count."""
    torch = pytest.importorskip("torch")
    from tests.support import torch_gpt
    from tests.support.migrating import torch_by_rule

    module = torch_by_rule(torch, torch_gpt.GPT(11, **SMALL)).double()
    network, tokens, labels = GPT(11, **SMALL), *map(torch.from_numpy, (TOKENS, LABELS))
    load(network, {name: value.numpy() for name, value in module.state_dict().items()})
    logits = module(tokens.long())
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.long().flatten())
    expected.backward()
    logits, actual = logits.detach().numpy(), network(Tensor(TOKENS)).asnumpy()
    assert np.abs(actual - logits).max() < 1e-5 < logits.std()
    loss_net, weights = TokenLossNet(network), network.trainable_params()
    gradients_of = ms.value_and_grad(loss_net, None, weights, has_aux=True)
    (loss, count), gradients = gradients_of(Tensor(TOKENS), Tensor(LABELS))
    assert float(loss.asnumpy()) == pytest.approx(expected.item(), rel=1e-6) and count == 12
    theirs = {name: value.grad.numpy() for name, value in module.named_parameters()}
    assert len(weights) == len(theirs) == 4 + 2 * 12
    for parameter, gradient in zip(weights, gradients, strict=True):
        name = parameter.name.replace("gamma", "weight").replace("beta", "bias")
        other = theirs[name.replace("embedding_table", "weight")]
        # Sums of hundreds of products in float32, some of which cancel.
        assert np.abs(gradient.asnumpy() - other).max() <= 1e-5 * np.abs(other).max(), name


def test_a_position_sees_itself_and_those_before_it(eager):
    network, other = GPT(11, **SMALL), TOKENS.copy()
    other[:, 3] = (other[:, 3] + 1) % 11
    moved = np.abs(network(Tensor(TOKENS)).asnumpy() - network(Tensor(other)).asnumpy()).max(2)
    assert (moved[:, :3] == 0).all() and (moved[:, 3:] > 0).all()


def test_weights_follow_from_the_seed_whatever_was_drawn_before(eager):
    first, _, second, third = GPT(67), ops.standard_normal((3,)), GPT(67), GPT(67, seed=2)
    assert sum(p.size for p in first.trainable_params()) == 208_448
    for one, two, three in zip(*(n.get_parameters() for n in (first, second, third)), strict=True):
        np.testing.assert_array_equal(one.asnumpy(), two.asnumpy())
        if one.ndim == 2:
            adds = one.name.endswith(("out.weight", "down.weight"))
            assert one.asnumpy().std() == pytest.approx(0.02 / (8**0.5 if adds else 1), rel=0.05)
            assert not np.array_equal(one.asnumpy(), three.asnumpy())


def losses(recompute=False, **options):
    """Return the losses of two updates on one batch."""
    network = GPT(11, **SMALL | {"layers": 1})
    for block in network.blocks if recompute else ():
        block.recompute()
    step = PlainStep(TokenLossNet(network), nn.SGD(network.trainable_params(), 0.5), **options)
    return [float(step(Tensor(TOKENS), Tensor(LABELS)).asnumpy()) for _ in range(2)]


def test_recomputation_and_float16_train_as_it_does(eager):
    expected = losses()
    assert expected[1] < expected[0]
    assert losses(recompute=True) == pytest.approx(expected, rel=1e-6)
    half = losses(precision="O2", loss_scale=DynamicLossScale())
    assert half == pytest.approx(expected, rel=2e-3) and half != expected


@pytest.mark.parametrize("wrong", [{"heads": 3}, {"layers": 0}, {"seed": -1}, {"length": 1.5}])
def test_numbers_that_make_no_network_are_refused(wrong):
    with pytest.raises(InputError, match=f"{next(iter(wrong))}: expected"):
        GPT(11, **SMALL | wrong)
