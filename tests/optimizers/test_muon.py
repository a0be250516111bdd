"""Muon against a float64 twin, and roughly against PyTorch's, which computes in bfloat16."""

import numpy as np
import pytest
import torch
from mindspore import Tensor

from labkit.errors import InputError
from labkit.optimizers import Muon
from labkit.optimizers.muon import orthogonal
from tests.support.compiled import compiled_operators
from tests.support.operator_platforms import missing
from tests.support.optimizer_cells import apply, gradients, parameters, values
from tests.support.tolerances import TOLERANCE

pytestmark = pytest.mark.usefixtures("runtime")

MATRICES = {"wide": (3, 7), "tall": (6, 4), "fused": (9, 3), "square": (4, 4)}
PARTS = {"fused": 3}
RATES = [0.05 / (1 + update) for update in range(20)]


def polar(matrix):
    """U V^T of the singular value decomposition: what the five steps approach."""
    u, _, v = np.linalg.svd(matrix, full_matrices=False)
    return u @ v


def five_steps(x):
    """The polynomial of the five steps, applied to the singular values: no matrix is multiplied."""
    u, s, v = np.linalg.svd(x, full_matrices=False)
    s = s / np.sqrt(np.sum(s * s))
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return u * s @ v


class Twin:
    """Muon on a list of matrices, in float64."""

    def __init__(self, weights, parts, momentum=0.95):
        self.weights, self.parts, self.mu = weights, parts, momentum
        self.moments = [0.0] * len(weights)

    def update(self, grads, rate, decay):
        for i, (weight, gradient) in enumerate(zip(self.weights, grads, strict=True)):
            self.moments[i] = self.mu * self.moments[i] + gradient
            direction = gradient + self.mu * self.moments[i]
            blocks = np.split(direction, self.parts[i])
            move = [0.2 * max(block.shape) ** 0.5 * five_steps(block) for block in blocks]
            self.weights[i] = weight - rate * (np.concatenate(move) + decay * weight)


@pytest.mark.parametrize("mode", ["graph", "eager"])
def test_twenty_updates_are_those_of_the_twin(mode, request):
    """Wide, tall and square matrices, three in one; a schedule; a decay for one of two groups."""
    if mode == "eager":
        request.getfixturevalue("eager")
    own = parameters(shapes=MATRICES)
    groups = [{"params": own[:2]}, {"params": own[2:], "weight_decay": 0.0}]
    optimizer = Muon(groups, RATES, weight_decay=0.5, parts=PARTS)
    twins = Twin(values(own[:2]), [1, 1]), Twin(values(own[2:]), [3, 1])
    updates = 2 if mode == "eager" else 20
    for rate, parts in zip(RATES, gradients(updates, shapes=MATRICES), strict=False):
        apply(optimizer, parts)
        parts = [part.astype(np.float64) for part in parts]
        twins[0].update(parts[:2], rate, 0.5)
        twins[1].update(parts[2:], rate, 0.0)
    for actual, expected in zip(values(own), twins[0].weights + twins[1].weights, strict=True):
        # 20 updates of about 0.01 with directions that are good to 1e-4: cubes of float32 sums.
        np.testing.assert_allclose(actual, expected, **TOLERANCE["float32, many updates"])
    assert optimizer.global_step.asnumpy() == updates


def test_it_is_pytorchs_muon_up_to_bfloat16():
    own = parameters(shapes=MATRICES)
    before = values(own)
    weights = [torch.tensor(value, dtype=torch.float32, requires_grad=True) for value in before]
    options = {"lr": 0.05, "weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}
    optimizer, other = Muon(own, 0.05), torch.optim.Muon(weights, **options)
    for parts in gradients(10, shapes=MATRICES):
        apply(optimizer, parts)
        for weight, part in zip(weights, parts, strict=True):
            weight.grad = torch.tensor(part)
        other.step()
    for actual, expected, start in zip(values(own), weights, before, strict=True):
        difference = np.linalg.norm(actual - expected.detach().numpy())
        assert difference < 0.03 * np.linalg.norm(actual - start)  # 8 bits, and five steps of them


@pytest.mark.parametrize("shape", [(5, 12), (12, 5), (6, 6)])
def test_the_five_steps_are_near_the_polar_factor(shape, eager):
    """All singular values come to 0.7 .. 1.2, those of a tenth of the largest, too; 0 stays 0."""
    matrix = polar(np.random.default_rng(2).normal(size=shape)) * np.linspace(0.1, 1, shape[1])
    found = orthogonal(Tensor(matrix.astype(np.float32)), 1).asnumpy() / (0.2 * max(shape) ** 0.5)
    singular = np.linalg.svd(found, compute_uv=False)
    assert 0.65 < singular.min() and singular.max() < 1.22
    assert np.sum(found * polar(matrix)) > 0.99 * np.linalg.norm(found) * min(shape) ** 0.5 * 0.97
    assert not orthogonal(Tensor(np.zeros(shape, np.float32)), 1).asnumpy().any()


@pytest.mark.parametrize(
    ("shapes", "options", "message"),
    [
        ({"bias": (5,)}, {}, r"bias: expected 1 matrices .*; the rest is for AdamW, see Both, got"),
        ({"kernel": (2, 2, 3, 3)}, {}, "kernel: expected 1 matrices"),
        (MATRICES, {"parts": {"tall": 4}}, r"tall: expected 4 matrices .*got \(6, 4\)"),
        (MATRICES, {"parts": {"qkv": 3}}, "parts: expected names of this .* Parameters, got 'qkv'"),
        (MATRICES, {"parts": {"fused": 0}}, "parts of fused: expected an integer >= 1, got 0"),
        (MATRICES, {"momentum": 1.0}, "momentum: expected a finite number >= 0 and < 1"),
    ],
)
def test_what_it_cannot_train_is_refused(shapes, options, message):
    with pytest.raises(InputError, match=message):
        Muon(parameters(shapes=shapes), **options)


def test_its_operators_are_documented_for_all_platforms():
    optimizer, parts = Muon(parameters(shapes=MATRICES), RATES), gradients(1, shapes=MATRICES)[0]
    assert missing(each.name for each in compiled_operators(apply, optimizer, parts)) == {}
