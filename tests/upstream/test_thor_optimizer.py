"""``thor`` with MindSpore's arguments: what its optimizer does with U, and what it refuses."""

import inspect
import math
import warnings
from dataclasses import fields

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from labkit import LossNet, PlainStep, thor
from labkit.algorithms.thor import TraceRule
from labkit.algorithms.thor.options import Options
from labkit.errors import InputError
from labkit.nets.resnet import resnet50
from tests.support.step_cells import (
    assert_bit_equal,
    linear,
    momentum,
    rows,
    snapshot,
    tensors,
)
from tests.support.tolerances import TOLERANCE
from tests.support.trainings import network

pytestmark = [
    pytest.mark.usefixtures("runtime"),
    pytest.mark.filterwarnings("ignore:unlike mindspore.nn.thor"),
]


def make(net=None, learning_rate=0.1, damping=0.3, momentum=0.9, *given, **options):
    return thor(net or linear(), learning_rate, damping, momentum, *given, **options)


def test_the_arguments_are_mindspores():
    ours = list(inspect.signature(thor).parameters.values())
    theirs = list(inspect.signature(nn.thor).parameters.values())
    own = [(each.name, each.default) for each in ours[12:]]
    options = [(each.name, each.default) for each in fields(Options) if each.name != "frequency"]
    assert len(theirs) == 12 and own == options
    assert {each.kind for each in ours[12:]} == {inspect.Parameter.KEYWORD_ONLY}
    for mine, its in zip(ours[:12], theirs, strict=True):
        assert (mine.name, mine.kind) == (its.name, its.kind)
        if mine.name == "decay_filter":
            assert mine.default(linear().bias) is its.default(linear().bias) is True
        else:
            assert mine.default == its.default, mine.name


def gradients(net, seed):
    """Return one gradient per Parameter: the weight's is large, the bias' small."""
    random = np.random.default_rng(seed)
    scales = (3.0, 0.1)
    return [
        (scale * random.normal(size=parameter.shape)).astype(np.float32)
        for scale, parameter in zip(scales, net.trainable_params(), strict=True)
    ]


def expected(net, updates, rates, decays, nesterov=False, clip=False, factor=0.9):
    """Return the weights after updates from ``gradients``, in float64, by loops."""
    weights = [parameter.asnumpy().astype(np.float64) for parameter in net.trainable_params()]
    moments = [np.zeros_like(weight) for weight in weights]
    for update in range(updates):
        for i, gradient in enumerate(gradients(net, update)):
            gradient = gradient.astype(np.float64) + decays[i] * weights[i]
            if clip:
                gradient = gradient / max(np.sqrt((gradient**2).sum()), 1.0)
            moments[i] = factor * moments[i] + gradient
            step = gradient + factor * moments[i] if nesterov else moments[i]
            weights[i] = weights[i] - rates[update] * step
    return weights


RATES = [0.1, 0.05, 0.2]


@pytest.mark.parametrize(
    ("given", "by_hand"),
    [
        ({}, {}),
        ({"weight_decay": 0.1}, {"decays": (0.1, 0.1)}),
        (
            {"weight_decay": 0.1, "decay_filter": lambda x: "bias" not in x.name},
            {"decays": (0.1, 0.0)},
        ),
        ({"use_nesterov": True, "weight_decay": 0.1}, {"nesterov": True, "decays": (0.1, 0.1)}),
        ({"enable_clip_grad": True, "weight_decay": 0.1}, {"clip": True, "decays": (0.1, 0.1)}),
        ({"learning_rate": Tensor(RATES)}, {"rates": RATES}),
        ({"learning_rate": nn.ExponentialDecayLR(0.5, 0.5, 1)}, {"rates": [0.5, 0.25, 0.125]}),
        ({"momentum": 0.5}, {"factor": 0.5}),
        ({"momentum": 0}, {"factor": 0.0}),
        # The step divides by it; the optimizer must not do so again.
        ({"loss_scale": 128.0}, {}),
    ],
)
def test_updates_against_float64(given, by_hand):
    net = linear()
    optimizer = make(net, **given)
    optimizer.converted = True
    wanted = expected(net, 3, **dict(rates=[0.1] * 3, decays=(0.0, 0.0)) | by_hand)
    for update in range(3):
        optimizer(tensors(*gradients(net, update)))
    for parameter, weight in zip(net.trainable_params(), wanted, strict=True):
        np.testing.assert_allclose(parameter.asnumpy(), weight, **TOLERANCE["float32, one update"])


def ways():
    """Return trainings without THOR: each takes (network, optimizer) and makes an update."""
    batch = tensors(*rows(4))

    def one_step(net, optimizer):
        nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer)(*batch)

    def plain(net, optimizer):
        PlainStep(LossNet(net, nn.MSELoss()), optimizer)(*batch)

    def direct(net, optimizer):
        optimizer(tensors(*gradients(net, 0)))

    return {"TrainOneStepCell": one_step, "PlainStep": plain, "direct": direct}


@pytest.mark.parametrize("mode", [ms.GRAPH_MODE, ms.PYNATIVE_MODE])
@pytest.mark.parametrize("way", ["TrainOneStepCell", "PlainStep", "direct"])
def test_without_conversion_it_does_not_train(way, mode):
    net = linear()
    optimizer = make(net)
    before = snapshot(net)
    try:
        ms.set_context(mode=mode)
        words = "called without THOR: .* plain momentum.*_thor_model and train what it returns"
        with pytest.raises(ValueError, match=words):
            ways()[way](net, optimizer)
    finally:
        ms.set_context(mode=ms.GRAPH_MODE)
    assert_bit_equal(snapshot(net), before)
    fresh = linear()
    ways()[way](fresh, momentum(linear()) if way == "direct" else momentum(fresh))


def test_the_network_stays_as_it_is():
    net = network()
    cells, names = [type(cell) for _, cell in net.cells_and_names()], list(snapshot(net))
    optimizer = make(net, weight_decay=0.1)
    assert [type(cell) for _, cell in net.cells_and_names()] == cells
    assert list(snapshot(net)) == names
    assert [parameter.name for parameter in optimizer.parameters] == names
    frozen = network()
    frozen[1].bias.requires_grad = False
    names.remove("1.bias")
    assert [parameter.name for parameter in make(frozen).parameters] == names


def test_its_state_is_that_of_momentum_and_no_network():
    net = linear()
    optimizer = make(net, Tensor([0.1, 0.2]))
    names = {parameter.name for parameter in optimizer.get_parameters()}
    assert names == {p.name for p in momentum(net, Tensor([0.1, 0.2])).get_parameters()}
    assert not any(cell is net for _, cell in optimizer.cells_and_names())


@pytest.mark.parametrize(
    ("given", "result"),
    [
        (0.25, 0.25),
        (1, 1.0),
        (np.float32(0.25), 0.25),
        (Tensor(0.25), 0.25),
        (Tensor(np.array(0.25, np.float32)), 0.25),
        ([0.5, 0.25], [0.5, 0.25]),
        ((0.5, 0.25), [0.5, 0.25]),
        (np.array([0.5, 0.25]), [0.5, 0.25]),
        (Tensor([0.5, 0.25, 0.125]), [0.5, 0.25, 0.125]),
    ],
)
def test_numbers_and_arrays(given, result):
    optimizer = make(None, given, given)
    damping, rates = optimizer.thor.damping, optimizer.thor.rates
    if isinstance(result, list):
        assert damping.dtype == np.float32 and damping.tolist() == result and rates == len(result)
        assert [float(optimizer.get_lr().asnumpy())] == [result[0]]
    else:
        assert type(damping) is float and damping == result and rates is None
        assert float(optimizer.learning_rate.asnumpy()) == result


def test_functions_are_kept_and_asked_for_the_first_rate():
    def rate(update):
        return Tensor(0.5**update)

    optimizer = make(None, rate, rate)
    assert optimizer.thor.rate is optimizer.thor.damping is rate
    assert float(optimizer.learning_rate.asnumpy()) == 1.0 and not optimizer.dynamic_lr


def test_a_learning_rate_schedule_of_mindspore_is_its_own():
    optimizer = make(None, nn.ExponentialDecayLR(0.5, 0.5, 1))
    assert optimizer.thor.rate is None and optimizer.thor.rates is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (dict(net=3), "net: expected a Cell with trainable Parameters, got a int"),
        (dict(net=nn.ReLU()), "net: expected a Cell .*, got a ReLU without any"),
        (dict(learning_rate=-0.1), "learning_rate: expected a finite number >= 0.*, got -0.1"),
        (dict(learning_rate=math.nan), "learning_rate: .*, got nan"),
        (dict(learning_rate="0.1"), "learning_rate: .*, got '0.1'"),
        (dict(learning_rate=[True, True]), r"learning_rate: .*, got \[True, True\]"),
        (dict(learning_rate=["0.1", "0.2"]), r"learning_rate: .*, got \['0.1', '0.2'\]"),
        (dict(learning_rate=[]), r"learning_rate: .*, got shape \(0,\)"),
        (dict(learning_rate=[[0.1]]), r"learning_rate: .*, got shape \(1, 1\)"),
        (dict(learning_rate=[0.1, -0.2]), r"learning_rate\[1\]: .*, got -0.2"),
        (dict(learning_rate=object()), "learning_rate: .*, got <object"),
        (dict(learning_rate=lambda update: -1), "learning_rate at update 0: .*, got -1"),
        (dict(damping=0), "damping: expected a finite number > 0.*, got 0"),
        (dict(damping=Tensor([0.3, 0.2, 0.0])), r"damping\[2\]: expected a finite number > 0"),
        (dict(momentum=1), "momentum: expected a finite number >= 0 and < 1, got 1"),
        (dict(weight_decay=-1), "weight_decay: expected a finite number >= 0, got -1"),
        (dict(loss_scale=0), "loss_scale: expected a finite number > 0, got 0"),
        (dict(batch_size=0), "batch_size: expected an integer >= 1, got 0"),
        (dict(use_nesterov=1), "use_nesterov: expected True or False, got 1"),
        (dict(enable_clip_grad="yes"), "enable_clip_grad: expected True or False, got 'yes'"),
        (dict(decay_filter=None), "decay_filter: expected a function of a Parameter, got None"),
        (dict(frequency=0), "frequency: expected an integer >= 1, got 0"),
        (dict(split_indices=3), "split_indices: expected increasing integers >= 0, got 3"),
        (dict(split_indices=[]), r"split_indices: .*, got \[\]"),
        (dict(split_indices=[-1, 0]), r"split_indices: .*, got \[-1, 0\]"),
        (dict(split_indices=[0, 0]), r"split_indices: .*, got \[0, 0\]"),
        (dict(split_indices=[26, 53]), r"split_indices: .* below 1, .* got \[26, 53\]"),
        (dict(factor_decai=0.9), "thor has no argument .*Did you mean 'factor_decay'"),
        (dict(split=0), "split"),
        (dict(formulas="upstream"), "formulas.*'upstream'.*Did you mean 'upstream_gpu'"),
    ],
)
def test_what_is_refused(given, message):
    wanted = dict(net=linear(), learning_rate=0.1, damping=0.3, momentum=0.9) | given
    with pytest.raises(InputError, match=message):
        thor(**wanted)


def test_the_ends_of_ranges_are_right():
    optimizer = make(None, 0, 1e-9, 0, 0, 1e-3, 1, frequency=1, split_indices=(0,))
    assert optimizer.get_frequency() == 1 and optimizer.thor.split_indices == (0,)
    assert optimizer.thor.batch_size == 1 and optimizer.thor.loss_scale == 1e-3


def test_split_indices_are_those_of_resnet_50():
    """ResNet-50 has 53 convolutions and a dense layer; the tutorial's [26, 53] ends with it."""
    net = resnet50(10)
    assert make(net, split_indices=[26, 53]).thor.split_indices == (26, 53)
    with pytest.raises(InputError, match="expected integers below 54, the number of layers with"):
        make(net, split_indices=[26, 54])
    net.fc.weight.requires_grad = False
    with pytest.raises(InputError, match="expected integers below 53,"):
        make(net, split_indices=[26, 53])


def test_options_of_thorupdate_are_kept():
    rule = TraceRule()
    optimizer = make(None, frequency=7, split=None, trace_rule=rule)
    assert optimizer.thor.options == Options(frequency=7, split=None, trace_rule=rule)


@pytest.mark.filterwarnings("default:unlike mindspore.nn.thor")
def test_one_notice_says_what_differs_unless_upstreams_formulas_are_asked_for():
    with pytest.warns(UserWarning, match="unlike mindspore.nn.thor.*formulas='upstream_gpu'") as w:
        make()
    assert len(w) == 1 and w[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(None, formulas="upstream_gpu")
