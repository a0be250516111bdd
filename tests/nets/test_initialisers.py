"""Initial weights: their distributions against the formulas, PyTorch's and MindSpore's own."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn
from mindspore.common.initializer import HeNormal, TruncatedNormal, XavierUniform, initializer
from scipy import stats

from labkit.errors import InputError
from labkit.nets.initialisers import NORMS, SCHEMES, initialise
from labkit.nets.small import NextToken, NormNet
from labkit.steps.losses import LossNet
from labkit.steps.step import PlainStep
from tests.support.step_cells import assert_bit_equal, linear, momentum, rows, snapshot, tensors

pytestmark = pytest.mark.usefixtures("runtime")

# Seeds are fixed, so a p-value is not random: far below this, the formula is wrong.
UNLIKELY = 1e-3
IN, OUT, KERNEL = 24, 96, 3
# With these sizes the wrong fan changes the standard deviation by a factor of 2.
FAN_IN, FAN_OUT = IN * KERNEL**2, OUT * KERNEL**2


class Layers(nn.Cell):
    """Layers of nn, each of another kind, or of mint.nn; no two have the same size."""

    def __init__(self, mint_layers=False):
        super().__init__()
        of, bias = (mint.nn, "bias") if mint_layers else (nn, "has_bias")
        self.conv = of.Conv2d(IN, OUT, KERNEL, **{bias: True})
        self.norm = of.BatchNorm2d(OUT)
        self.dense = (mint.nn.Linear if mint_layers else nn.Dense)(400, 50)
        if not mint_layers:
            self.grouped = nn.Conv2d(16, 64, 3, group=4, has_bias=True)
            self.line = nn.Conv1d(16, 64, 5, has_bias=True)
            self.volume = nn.Conv3d(8, 64, (1, 2, 3), has_bias=True)
        for parameter in self.norm.get_parameters():
            parameter.set_data(Tensor(np.full(parameter.shape, 7), parameter.dtype))


def uniform(bound):
    return stats.uniform(-bound, 2 * bound)


def assert_from(distribution, sample):
    """Do a one-sample Kolmogorov-Smirnov test; mean and variance within five standard errors."""
    flat = sample.reshape(-1).astype(np.float64)
    assert stats.kstest(flat, distribution.cdf).pvalue > UNLIKELY
    assert abs(flat.mean()) < 5 * distribution.std() / np.sqrt(flat.size)
    # The variance of a variance is at most 2 sigma^4 / n for both distributions.
    assert abs(flat.var() / distribution.var() - 1) < 5 * np.sqrt(2 / flat.size)


def normal(deviation):
    return stats.norm(0, deviation)


FANS = {"conv": FAN_IN, "dense": 400, "grouped": 4 * 9, "line": 16 * 5, "volume": 8 * 6}
OF_PYTORCH = {f"{name}.weight": uniform(1 / np.sqrt(fan)) for name, fan in FANS.items()}
OF_PYTORCH |= {f"{name}.bias": uniform(1 / np.sqrt(fan)) for name, fan in FANS.items()}
FORMULAS = {
    "seed": {
        "conv.weight": uniform(np.sqrt(6 / (FAN_IN + FAN_OUT))),
        "grouped.weight": uniform(np.sqrt(6 / (4 * 9 + 64 * 9))),
        "dense.weight": normal(0.01),
    },
    "seed_table": {
        "conv.weight": normal(np.sqrt(2 / FAN_IN)),
        "grouped.weight": normal(np.sqrt(2 / (4 * 9))),
    },
    "torchvision": OF_PYTORCH
    | {
        "conv.weight": normal(np.sqrt(2 / FAN_OUT)),
        "grouped.weight": normal(np.sqrt(2 / (64 * 9))),
    },
    "pytorch": OF_PYTORCH,
}


@pytest.mark.parametrize("mint_layers", [False, True], ids=["nn", "mint"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_is_its_formula_and_leaves_the_rest(scheme, mint_layers):
    network = Layers(mint_layers)
    before = snapshot(network)
    report = initialise(network, scheme, seed=3)
    left = set(report.partition("; untouched: ")[2].split(", ")) - {""}
    for name, value in snapshot(network).items():
        if name in FORMULAS[scheme]:
            assert_from(FORMULAS[scheme][name], value)
        elif name.startswith("norm") and scheme != "seed":
            ones = name.endswith(("gamma", "weight", "moving_variance", "running_var"))
            assert (value == (1 if ones else 0)).all(), name
        else:
            np.testing.assert_array_equal(value, before[name])
            left.remove(name)
    assert not left


@pytest.mark.parametrize(
    ("scheme", "name", "theirs"),
    [
        ("seed", "conv.weight", XavierUniform()),
        ("seed", "dense.weight", TruncatedNormal()),
        ("seed_table", "conv.weight", HeNormal()),
        ("pytorch", "conv.weight", None),
    ],
)
def test_mindspore_s_own_initialisers_have_these_distributions(scheme, name, theirs):
    """None is the default initialisation of MindSpore's layers, which is PyTorch's default."""
    network = Layers()
    expected = snapshot(network)[name]
    if theirs is not None:
        expected = initializer(theirs, expected.shape).init_data().asnumpy()
    initialise(network, scheme, seed=3)
    actual = snapshot(network)[name]
    assert stats.ks_2samp(actual.reshape(-1), expected.reshape(-1)).pvalue > UNLIKELY
    if name == "dense.weight":
        # Not truncated at two standard deviations: 4.6 % of a normal distribution lie beyond.
        for sample in (actual, expected):
            assert np.mean(np.abs(sample) > 0.02) == pytest.approx(0.0455, abs=0.01)


def test_what_no_rule_covers_is_listed():
    network = NextToken()
    network.own = Parameter(Tensor(np.ones(3, np.float32)), name="own")
    report = initialise(network, "pytorch", seed=1)
    assert report.endswith("; untouched: own, embedding.embedding_table")
    assert "untouched" not in initialise(nn.BatchNorm3d(4), "pytorch", seed=1)


class Order(nn.Cell):
    """Layers of one shape, made in the given order."""

    def __init__(self, names):
        super().__init__()
        for name in names:
            setattr(self, name, nn.Dense(30, 40))


def weights(network, seed, scheme="torchvision"):
    initialise(network, scheme, seed)
    return snapshot(network)


def test_a_seed_and_the_names_decide_everything_and_nothing_else_does():
    first = weights(Order("ab"), 5)
    ms.set_seed(99)
    np.random.seed(99)
    again, other = weights(Order("bca"), 5), weights(Order("ab"), 6)
    ms.set_seed(1)
    for name, value in first.items():
        np.testing.assert_array_equal(again[name], value)
        assert (other[name] != value).any()
    drawn = [first[name].reshape(-1)[:40] for name in ("a.weight", "b.weight", "a.bias")]
    assert np.abs(np.corrcoef(drawn)[np.triu_indices(3, 1)]).max() < 0.5
    # Also of frozen Parameters and of other types, which stay as they are.
    half = nn.Dense(30, 40, dtype=ms.float16)
    half.weight.requires_grad = False
    initialise(half, "torchvision", seed=5)
    assert half.weight.dtype == half.bias.dtype == ms.float16 and not half.weight.requires_grad
    whole = weights(nn.Dense(30, 40), 5)["weight"]
    np.testing.assert_allclose(half.weight.asnumpy(), whole, rtol=1e-3, atol=1e-6)


def test_a_step_that_has_run_goes_on_with_the_new_weights():
    network, (inputs, targets) = linear(), rows(5)
    step = PlainStep(LossNet(network, nn.MSELoss()), momentum(network))
    step(*tensors(inputs, targets))
    initialise(network, "pytorch", seed=5)
    outputs = inputs @ network.weight.asnumpy().T + network.bias.asnumpy()
    expected = np.mean((outputs - targets) ** 2)
    assert float(step(*tensors(inputs, targets))) == pytest.approx(expected, rel=1e-5)


def test_a_parameter_shared_by_layers_of_different_rules_is_refused():
    same, clash = Order("ab"), Order("b")
    same.a.weight = same.b.weight
    assert initialise(same, "pytorch", seed=1) == "pytorch, seed 1: 3 uniform_fan_in"
    clash.norm = mint.nn.LayerNorm((40, 30))
    clash.norm.weight = clash.b.weight
    before = snapshot(clash)
    with pytest.raises(InputError, match="'b.weight' is shared .* uniform_fan_in and ones"):
        initialise(clash, "pytorch", seed=1)
    assert_bit_equal(snapshot(clash), before)


@pytest.mark.parametrize("module", [nn, mint.nn], ids=["nn", "mint.nn"])
def test_every_norm_of_mindspore_is_known(module):
    for name, layer in vars(module).items():
        if isinstance(layer, type) and issubclass(layer, nn.Cell) and not name.startswith("_"):
            # nn.BatchNorm3d holds a BatchNorm2d; nn.Norm computes the norm of a vector.
            other = module is nn and name in ("BatchNorm3d", "Norm", "ClipByNorm")
            assert issubclass(layer, NORMS) == ("Norm" in name and not other), name


def test_unknown_words_are_refused():
    """An unknown norm once gave a network without normalisation."""
    with pytest.raises(InputError, match="norm: expected one of 'batch', 'group', 'none'.*batch"):
        NormNet("Batch")
    with pytest.raises(InputError, match="scheme: expected .*Did you mean"):
        initialise(nn.Dense(2, 2), "torch", 1)
