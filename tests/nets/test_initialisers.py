"""Initial weights: their distributions against the formulas, PyTorch's and MindSpore's own."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn
from mindspore.common.initializer import HeNormal, TruncatedNormal, XavierUniform, initializer
from scipy import stats

from labkit.errors import InputError
from labkit.nets.initialisers import (
    CONVOLUTIONS,
    CONVOLUTIONS_2D,
    DENSE,
    NORMS,
    SCHEMES,
    Initialised,
    initialise,
)
from labkit.nets.small import NextToken, NormNet
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.gradients import DynamicLossScale
from labkit.steps.losses import LossNet
from tests import twins
from tests.support.step_cells import linear, momentum, rows, tensors

pytestmark = pytest.mark.usefixtures("runtime")

# Seeds are fixed, so a p-value is not random: far below this, the formula is wrong.
UNLIKELY = 1e-3
IN, OUT, KERNEL = 24, 96, 3
# With these sizes the wrong fan changes the standard deviation by a factor of 2.
FAN_IN, FAN_OUT = IN * KERNEL**2, OUT * KERNEL**2


class Layers(nn.Cell):
    """One layer of each kind, of nn or of mint.nn; no two layers have the same size."""

    def __init__(self, mint_layers=False):
        super().__init__()
        if mint_layers:
            self.conv = mint.nn.Conv2d(IN, OUT, KERNEL, bias=True)
            self.norm = mint.nn.BatchNorm2d(OUT)
            self.dense = mint.nn.Linear(400, 50)
        else:
            self.conv = nn.Conv2d(IN, OUT, KERNEL, has_bias=True)
            self.norm = nn.BatchNorm2d(OUT)
            self.dense = nn.Dense(400, 50)
        for parameter in self.norm.get_parameters():
            parameter.set_data(Tensor(np.full(parameter.shape, 7), parameter.dtype))


def uniform(bound):
    return stats.uniform(-bound, 2 * bound)


def values(cell, name):
    return dict(cell.parameters_and_names())[name].asnumpy()


def assert_from(distribution, sample):
    """Do a one-sample Kolmogorov-Smirnov test; mean and variance within five standard errors."""
    flat = sample.reshape(-1).astype(np.float64)
    assert stats.kstest(flat, distribution.cdf).pvalue > UNLIKELY
    assert abs(flat.mean()) < 5 * distribution.std() / np.sqrt(flat.size)
    # The variance of a variance is at most 2 sigma^4 / n for both distributions.
    assert abs(flat.var() / distribution.var() - 1) < 5 * np.sqrt(2 / flat.size)


FORMULAS = {
    ("seed", "conv.weight"): uniform(np.sqrt(6 / (FAN_IN + FAN_OUT))),
    ("seed", "dense.weight"): stats.norm(0, 0.01),
    ("seed_table", "conv.weight"): stats.norm(0, np.sqrt(2 / FAN_IN)),
    ("torchvision", "conv.weight"): stats.norm(0, np.sqrt(2 / FAN_OUT)),
    ("torchvision", "conv.bias"): uniform(1 / np.sqrt(FAN_IN)),
    ("torchvision", "dense.weight"): uniform(1 / np.sqrt(400)),
    ("torchvision", "dense.bias"): uniform(1 / np.sqrt(400)),
    ("pytorch", "conv.weight"): uniform(1 / np.sqrt(FAN_IN)),
    ("pytorch", "conv.bias"): uniform(1 / np.sqrt(FAN_IN)),
    ("pytorch", "dense.weight"): uniform(1 / np.sqrt(400)),
    ("pytorch", "dense.bias"): uniform(1 / np.sqrt(400)),
}


@pytest.mark.parametrize("mint_layers", [False, True], ids=["nn", "mint"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_is_its_formula_and_leaves_the_rest(scheme, mint_layers):
    network = Layers(mint_layers)
    before = {p.name: p.asnumpy().copy() for p in network.get_parameters()}
    report = initialise(network, scheme, seed=3)
    drawn = {name for known, name in FORMULAS if known == scheme}
    for name in drawn:
        assert_from(FORMULAS[scheme, name], values(network, name))
    norms = {name for name in before if name.startswith("norm")} if scheme != "seed" else set()
    for name in norms:
        ones = name.endswith(("gamma", "weight", "moving_variance", "running_var"))
        assert (values(network, name) == (1 if ones else 0)).all(), name
    assert set(report.rules) == drawn | norms
    assert set(report.untouched) == set(before) - drawn - norms
    for name in report.untouched:
        np.testing.assert_array_equal(values(network, name), before[name])


def assert_same_law(actual, expected):
    """Do a two-sample Kolmogorov-Smirnov test."""
    assert actual.shape == expected.shape and actual.size > 40
    assert stats.ks_2samp(actual.reshape(-1), expected.reshape(-1)).pvalue > UNLIKELY


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
    built = values(network, name).copy()
    initialise(network, scheme, seed=3)
    expected = built if theirs is None else initializer(theirs, built.shape).init_data().asnumpy()
    assert_same_law(values(network, name), expected)
    if scheme == "seed" and name == "dense.weight":
        # Not truncated at two standard deviations: 4.6 % of a normal distribution lie beyond.
        for sample in (values(network, name), expected):
            assert np.mean(np.abs(sample) > 0.02) == pytest.approx(0.0455, abs=0.01)


@pytest.mark.parametrize(
    ("layer", "bound"),
    [
        (lambda: nn.Conv2d(16, 64, 3, group=4, has_bias=True), 1 / np.sqrt(4 * 9)),
        (lambda: nn.Conv1d(16, 64, 5, has_bias=True), 1 / np.sqrt(16 * 5)),
        (lambda: nn.Conv3d(8, 64, (1, 2, 3), has_bias=True), 1 / np.sqrt(8 * 6)),
    ],
)
def test_other_convolutions(layer, bound):
    for scheme in ("pytorch", "torchvision"):
        network = layer()
        assert initialise(network, scheme, seed=1).untouched == ()
        assert_from(uniform(bound), network.bias.asnumpy())
        if scheme == "pytorch" or not isinstance(network, nn.Conv2d):
            assert_from(uniform(bound), network.weight.asnumpy())


def test_other_norms_and_what_no_rule_covers():
    cells = nn.SequentialCell(
        nn.GroupNorm(2, 4),
        mint.nn.GroupNorm(2, 4),
        nn.LayerNorm((3, 4)),
        mint.nn.LayerNorm((3, 4)),
        nn.InstanceNorm2d(4),
        nn.BatchNorm3d(4),
        nn.SyncBatchNorm(4),
    )
    assert initialise(cells, "pytorch", seed=1).untouched == ()
    network = NextToken()
    network.own = Parameter(Tensor(np.ones(3, np.float32)), name="own")
    report = initialise(network, "pytorch", seed=1)
    assert set(report.untouched) == {"embedding.embedding_table", "own"}
    assert initialise(nn.Conv2dTranspose(2, 4, 3), "pytorch", seed=1).untouched == ("weight",)
    assert initialise(nn.LSTM(2, 3), "torchvision", seed=1).rules == {}


def weights(network, seed, scheme="torchvision"):
    initialise(network, scheme, seed)
    return {p.name: p.asnumpy().copy() for p in network.get_parameters()}


def test_a_seed_decides_everything_and_nothing_else_does():
    first = weights(NormNet(), 5)
    ms.set_seed(99)
    np.random.seed(99)
    np.random.uniform(size=3)
    again = weights(NormNet(), 5)
    ms.set_seed(1)
    assert first.keys() == again.keys() and len(first) == 7
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
    other = weights(NormNet(), 6)
    assert all((first[name] != other[name]).any() for name in ("conv.weight", "dense.bias"))


class Order(nn.Cell):
    """Two layers of one shape in the given order, optionally with a third between them."""

    def __init__(self, names, between=False):
        super().__init__()
        for name in names:
            setattr(self, name, nn.Dense(30, 40))
            if between:
                self.extra = nn.Dense(30, 40)
                between = False


def test_neither_the_order_nor_other_layers_matter_and_names_do():
    first, other = weights(Order("ab"), 5), weights(Order("ba", between=True), 5)
    assert set(other) - set(first) == {"extra.weight", "extra.bias"}
    for name in first:
        np.testing.assert_array_equal(first[name], other[name])
    drawn = [first[name].reshape(-1)[:40] for name in ("a.weight", "b.weight", "a.bias")]
    correlations = np.corrcoef(drawn)[np.triu_indices(3, 1)]
    assert np.abs(correlations).max() < 0.5


def test_no_seed_is_the_seed_of_the_start_and_is_told():
    for seed in (7, 1):
        ms.set_seed(seed)
        assert initialise(NormNet(), "pytorch").seed == seed


def test_a_step_that_has_run_goes_on_with_the_new_weights():
    network, (inputs, targets) = linear(), rows(5)
    options = dict(micro_steps=2, loss_scale=DynamicLossScale())
    step = AccumulatedStep(LossNet(network, nn.MSELoss()), momentum(network), **options)
    step(*tensors(inputs, targets))
    initialise(network, "pytorch", seed=5)
    expected, _ = twins.linear_regression(
        network.weight.asnumpy(), network.bias.asnumpy(), inputs, targets
    )
    assert float(step(*tensors(inputs, targets))) == pytest.approx(expected, rel=1e-5)


def test_dtypes_stay_and_frozen_parameters_are_set():
    network = nn.Dense(30, 40, dtype=ms.float16)
    network.weight.requires_grad = False
    initialise(network, "pytorch", seed=5)
    assert network.weight.dtype == network.bias.dtype == ms.float16
    whole = weights(nn.Dense(30, 40), 5, "pytorch")
    np.testing.assert_allclose(network.weight.asnumpy(), whole["weight"], rtol=1e-3, atol=1e-6)
    assert not network.weight.requires_grad


def test_the_report_says_what_was_done():
    report = initialise(NormNet(), "seed", seed=3)
    assert isinstance(report, Initialised) and report.scheme == "seed" and report.seed == 3
    assert report.rules == {"conv.weight": "xavier_uniform", "dense.weight": "normal_001"}
    assert str(report) == (
        "seed, seed 3: 1 xavier_uniform, 1 normal_001; untouched: norm.moving_mean, "
        "norm.moving_variance, norm.gamma, norm.beta, dense.bias"
    )
    assert str(initialise(nn.ReLU(), "seed", seed=3)) == "seed, seed 3: nothing"


class Shared(nn.Cell):
    """One weight in two layers."""

    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second
        self.second.weight = self.first.weight


def test_shared_parameters():
    same = Shared(nn.Dense(3, 3), nn.Dense(3, 3))
    assert initialise(same, "pytorch", seed=1).rules["first.weight"] == "uniform_fan_in"
    clash = Shared(mint.nn.LayerNorm((3, 3)), nn.Dense(3, 3))
    before = clash.first.weight.asnumpy().copy()
    with pytest.raises(InputError, match="'first.weight' is shared .* ones and uniform_fan_in"):
        initialise(clash, "pytorch", seed=1)
    np.testing.assert_array_equal(clash.first.weight.asnumpy(), before)


def test_what_cannot_be_initialised_is_refused():
    with pytest.raises(InputError, match="seed: expected an integer >= 0"):
        initialise(nn.Dense(2, 2), "pytorch", -1)
    with pytest.raises(InputError, match="scheme: expected .*Did you mean"):
        initialise(nn.Dense(2, 2), "torch", 1)
    with pytest.raises(InputError, match="network: expected a Cell, got a list"):
        initialise([], "pytorch", 1)


# ---- kinds of layers: all that MindSpore has of each, and nothing else

# nn.BatchNorm3d holds a BatchNorm2d; nn.Norm computes the norm of a vector.
NO_NORMS = {"BatchNorm3d", "Norm", "ClipByNorm"}


@pytest.mark.parametrize("module", [nn, mint.nn], ids=["nn", "mint.nn"])
def test_every_layer_of_mindspore_is_of_the_kind_its_name_says(module):
    layers = {
        name: layer
        for name, layer in vars(module).items()
        if isinstance(layer, type) and issubclass(layer, nn.Cell) and not name.startswith("_")
    }
    assert len(layers) > 50
    for name, layer in layers.items():
        exception = module is nn and name in NO_NORMS
        assert issubclass(layer, NORMS) == ("Norm" in name and not exception), name
        plain = name in ("Conv1d", "Conv2d", "Conv3d")
        assert issubclass(layer, CONVOLUTIONS) == plain, name
        assert issubclass(layer, CONVOLUTIONS_2D) == (name == "Conv2d"), name
        assert issubclass(layer, DENSE) == (name in ("Dense", "Linear")), name


def test_a_norm_that_is_none_is_refused():
    """An unknown norm once gave a network without normalisation."""
    with pytest.raises(InputError, match="norm: expected one of 'batch', 'group', 'none'.*batch"):
        NormNet("Batch")
