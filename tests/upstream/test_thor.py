"""``thor`` and ``ConvertModelUtils``: an optimizer and a Model that trains with THOR."""

import inspect
import warnings

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, amp, load_checkpoint, load_param_into_net, nn, train

from labkit import ConvertModelUtils, CrossEntropySmooth, LossNet, PlainStep, thor
from labkit.algorithms.thor import ThorOptions, ThorStep, TraceRule
from labkit.errors import InputError
from labkit.nets.lenet import LeNet5
from labkit.nets.resnet import resnet50
from labkit.nets.small import NormNet
from tests.support import step_cells
from tests.support.step_cells import assert_bit_equal, digits, linear, rows, snapshot, tensors
from tests.support.tolerances import TOLERANCE
from tests.support.trainings import dataset, loss_fn, network

pytestmark = [
    pytest.mark.usefixtures("runtime"),
    pytest.mark.filterwarnings("ignore:unlike mindspore.nn.thor"),
    pytest.mark.filterwarnings("ignore:batch_size is 32 in thor"),
]

ROWS, BATCH, EPOCHS = 46, 4, 2
STEPS = ROWS // BATCH
FIXED = amp.FixedLossScaleManager


def make(net=None, learning_rate=0.1, damping=0.3, momentum=0.9, **options):
    return thor(net or linear(), learning_rate, damping, momentum, **options)


def converted(net=None, metrics=None, manager=None, **options):
    """Return (model, network) as the tutorial makes them; ``options`` are those of ``thor``."""
    net = net or network()
    optimizer = make(net, **dict(learning_rate=0.05, frequency=4) | options)
    own = dict(model=None, network=net, loss_fn=loss_fn(), optimizer=optimizer)
    own |= dict(loss_scale_manager=manager, metrics=metrics, keep_batchnorm_fp32=False)
    return ConvertModelUtils().convert_to_thor_model(**own), net


def test_the_arguments_are_mindspores():
    def arguments(function):
        own = inspect.signature(function).parameters.values()
        return {each.name: each.default for each in own}

    theirs = arguments(ms.train.ConvertModelUtils.convert_to_thor_model)
    assert list(arguments(ConvertModelUtils.convert_to_thor_model).items()) == list(theirs.items())
    ours, theirs = arguments(thor), arguments(nn.thor)
    assert list(ours) == [*theirs, "options"]
    filters = ours.pop("decay_filter"), theirs.pop("decay_filter")
    assert all(every(linear().bias) is True for every in filters)
    assert {name: ours[name] for name in theirs} == theirs


def batches(rows=128, batch=32):
    """Return images (B, 1, 32, 32) and labels, in order, with the incomplete last batch."""
    source = ms.dataset.NumpySlicesDataset(digits(rows), ["image", "label"], shuffle=False)
    return source.batch(batch)


class Seen(train.Callback):
    """Keeps (epoch, step, loss) after steps, which ``call`` follows, and what is evaluated."""

    def __init__(self, call=None):
        super().__init__()
        self.call, self.rows, self.evaluated = call or (lambda: None), [], []

    def on_train_step_end(self, run_context):
        arguments = run_context.original_args()
        loss = float(arguments.net_outputs)
        self.rows.append((arguments.cur_epoch_num, arguments.cur_step_num, loss))
        self.call()

    def on_eval_end(self, run_context):
        self.evaluated.append(dict(run_context.original_args().eval_results))


def test_the_tutorials_calls(tmp_path):
    """On LeNet: factors, callbacks, checkpoints with the tutorial's names, evaluation."""
    net, loss = LeNet5(), CrossEntropySmooth(True, "mean", 0.1, 10)
    images, labels = digits(50)
    names, outputs = list(snapshot(net)), net(Tensor(images)).asnumpy()
    rates = Tensor(np.full(8, 0.05, np.float32))
    opt = thor(net, rates, rates * 6, 0.9, 5e-4, 128, 32, split_indices=[1, 4], frequency=3)
    scale = FIXED(128, drop_overflow_update=False)
    options = dict(metrics={"acc"}, loss_scale_manager=scale, keep_batchnorm_fp32=False)
    model = train.Model(net, loss, opt, **options)
    given = dict(model=model, network=net, loss_fn=loss, optimizer=opt, amp_level="O0")
    model = ConvertModelUtils.convert_to_thor_model(**given, **options)
    assert list(snapshot(net)) == names
    np.testing.assert_array_equal(net(Tensor(images)).asnumpy(), outputs)
    seen = Seen()
    saving = train.CheckpointConfig(save_checkpoint_steps=4, keep_checkpoint_max=5)
    callbacks = [train.TimeMonitor(data_size=4), train.LossMonitor(), seen]
    callbacks += [train.ModelCheckpoint("resnet", directory=str(tmp_path), config=saving)]
    model.train(2, batches(), callbacks=callbacks, dataset_sink_mode=False)
    # Callbacks see every step; in MindSpore 2 of every ``frequency`` steps on a GPU.
    assert [row[:2] for row in seen.rows] == [(1 + i // 4, 1 + i) for i in range(8)]
    assert model.step.last_update.loss == pytest.approx(seen.rows[-1][2])
    assert model.step.update.refreshes.asnumpy().tolist() == [3] * 5
    assert int(model.step.update.last_refresh.asnumpy()) == 6
    saved = {path.name for path in tmp_path.glob("*.ckpt")}
    assert saved == {"resnet-1_4.ckpt", "resnet-2_4.ckpt"}
    other = LeNet5()
    values = load_checkpoint(str(tmp_path / "resnet-2_4.ckpt"))
    assert load_param_into_net(other, values)[0] == []
    assert_bit_equal(snapshot(other), snapshot(net))
    logits = net(Tensor(images)).asnumpy()
    accuracy = (logits.argmax(1) == labels).mean()
    assert model.eval(batches(50, 20)) == {"acc": pytest.approx(accuracy)}
    phase = net.phase
    np.testing.assert_array_equal(model.predict(Tensor(images)).asnumpy(), logits)
    assert net.phase == phase  # otherwise a later call would take the prediction's graph


def test_it_trains_as_the_step_with_momentum_does():
    """It does so in two calls, with as many rates as updates."""
    rates = [0.1 / (2 + update) for update in range(EPOCHS * STEPS)]
    model, net = converted(weight_decay=0.05, learning_rate=rates)
    model.train(1, dataset())
    model.train(2, dataset(), initial_epoch=1)
    other = network()
    groups = [{"params": other.trainable_params(), "weight_decay": 0.05}]
    optimizer = nn.Momentum(groups, Tensor(rates), 0.9)
    step = ThorStep(LossNet(other, loss_fn()), optimizer, 0.3, frequency=4)
    for _ in range(EPOCHS):
        for batch in dataset().create_tuple_iterator(num_epochs=1):
            step(*batch)
    assert int(step.updates.asnumpy()) == EPOCHS * STEPS
    tolerance = TOLERANCE["float32, many updates"]
    step_cells.assert_close(snapshot(net), snapshot(other), **tolerance)


def test_evaluation_and_prediction_during_training_change_nothing():
    """Upstream refuses: "Thor optimizer not support evaluation while training".

    BatchNorm is in evaluation mode for each prediction, in training mode for the next step: the
    graph between refreshes is compiled after the first prediction, in the mode that it has left.
    """
    images, ends = Tensor(np.ones((3, 1, 4, 4), np.float32)), []
    for interrupted in (False, True):
        model, net = converted(net=network(norm=True), metrics={"acc", "loss"})
        seen = Seen(lambda model=model: model.predict(images))
        if interrupted:
            model.fit(EPOCHS, dataset(), dataset(drop=False), callbacks=[seen])
        else:
            model.train(EPOCHS, dataset())
        ends.append(snapshot(net))
    assert [set(own) for own in seen.evaluated] == [{"acc", "loss", "eval_loss"}] * EPOCHS
    assert_bit_equal(*ends)


SINK = "dataset_sink_mode: expected False: THOR inverts between graphs"


@pytest.mark.parametrize(
    ("given", "epochs", "options", "message"),
    [
        (dict(learning_rate=[0.1] * 21), 2, {}, "the learning rate has 21 values for 22 updates"),
        (dict(damping=[0.3] * 4), 1, {}, "damping has 4 values for 11 updates"),
        (dict(formulas="upstream_gpu"), 1, {}, "in batches of 4; expected the same where upstream"),
        ({}, 1, dict(dataset_sink_mode=True), SINK),
    ],
)
def test_what_would_stop_in_the_middle_is_refused_before_training(given, epochs, options, message):
    """For short arrays upstream stops in Gather, or continues with what is beyond their end."""
    model, net = converted(metrics={"acc"}, **given)
    before = snapshot(net)
    for start in (model.train, model.fit):
        with pytest.raises(InputError, match=message):
            start(epochs, dataset(), **options)
    assert_bit_equal(snapshot(net), before)


@pytest.mark.filterwarnings("default")
def test_what_differs_warns_once_unless_upstreams_formulas_are_asked_for():
    """For what those compute, see tests/algorithms/thor/test_layers.py."""
    with pytest.warns(UserWarning, match="unlike mindspore.nn.thor.*formulas='upstream_gpu'") as w:
        model, _ = converted()  # whose batch_size is 32
    assert len(w) == 1 and w[0].filename == __file__
    with pytest.warns(UserWarning, match="batch_size is 32 in thor, .* in batches of 4") as warned:
        model.train(1, dataset())
    assert warned[0].filename == __file__
    options = dict(formulas="upstream_gpu", split=16, trace_rule=TraceRule())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, _ = converted(batch_size=BATCH, **options)
    assert model.step.update.options == ThorOptions(0.3, frequency=4, **options)


@pytest.mark.parametrize(
    ("manager", "said", "scale", "checked"),
    [
        (None, 1.0, None, True),
        (FIXED(128, drop_overflow_update=False), 128, 128, False),
        (FIXED(128), 128, 128, True),
        (FIXED(128), 1.0, 128, True),
        (amp.DynamicLossScaleManager(2**10, 4, 50), 1.0, 2**10, True),
    ],
)
def test_the_loss_scale_that_the_step_gets(manager, said, scale, checked):
    gradient = converted(manager=manager, loss_scale=said)[0].step.gradient
    assert gradient.checked == checked
    assert (float(gradient.loss_scale.asnumpy()) if gradient.scaled else None) == scale
    assert gradient.dynamic == isinstance(manager, amp.DynamicLossScaleManager)
    assert not gradient.dynamic or (gradient.growth, gradient.interval) == (4.0, 50)


@pytest.mark.parametrize("keep", [True, False])
def test_half_precision(keep):
    """BatchNorm is in float32 or float16, its statistics in float32; the ``Model`` had O2 before.

    In float16 it trains and evaluates.
    """
    net, loss = NormNet(), loss_fn()
    optimizer = thor(net, 0.05, 0.3, 0.9, loss_scale=128, frequency=2)
    options = dict(loss_scale_manager=FIXED(128, drop_overflow_update=False), amp_level="O2")
    options |= dict(metrics={"acc"}, keep_batchnorm_fp32=keep)
    norm = net.norm  # it is wrapped if it stays in float32
    model = train.Model(net, loss, optimizer, **options)
    model = ConvertModelUtils.convert_to_thor_model(model, net, loss, optimizer, **options)
    flags = norm.get_flags()
    assert (flags["fp32"], flags["fp16"]) == (keep, not keep)
    if not keep:
        seen = Seen()
        model.train(3, batches(256), callbacks=[seen])
        losses = [row[2] for row in seen.rows]
        assert np.mean(losses[-4:]) < 0.7 * np.mean(losses[:4])
        assert 0 <= model.eval(batches(50, 20))["acc"] <= 1
        assert norm.moving_mean.dtype == ms.float32 and norm.moving_mean.asnumpy().any()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (dict(network=nn.ReLU()), "network: expected the one that thor was given, got 'ReLU'"),
        (dict(optimizer=3), "optimizer: expected that of labkit.thor, got a int"),
        (dict(loss_fn=nn.MSELoss("sum")), "got 'a LossNet of MSELoss'"),
        (dict(metrics={"accuracyy"}), "accuracyy"),
        (dict(loss_scale_manager=FIXED(128)), "of thor: expected 1.0, or 128.0 .*, got 64"),
    ],
)
def test_a_refused_conversion_leaves_the_network_to_be_converted(changed, message):
    net = network()
    optimizer = make(net, loss_scale=64)
    given = dict(model=None, network=net, loss_fn=loss_fn(), optimizer=optimizer)
    given |= dict(loss_scale_manager=FIXED(64))
    cells = [type(cell) for _, cell in net.cells_and_names()]
    with pytest.raises((InputError, KeyError), match=message):
        ConvertModelUtils.convert_to_thor_model(**given | changed)
    assert [type(cell) for _, cell in net.cells_and_names()] == cells
    ConvertModelUtils.convert_to_thor_model(**given)
    with pytest.raises(InputError, match="belongs to a converted model; expected a new one"):
        ConvertModelUtils.convert_to_thor_model(**given)


# The optimizer alone.


def gradients(net, seed):
    """Return one gradient per Parameter: the weight's is large, the bias' small."""
    random, parameters = np.random.default_rng(seed), net.trainable_params()
    pairs = zip((3.0, 0.1), parameters, strict=True)
    return [np.float32(scale * random.normal(size=own.shape)) for scale, own in pairs]


def expected(net, rates=(0.1,) * 3, decays=(0.0, 0.0), nesterov=False, clip=False, factor=0.9):
    """Return the weights after updates from ``gradients``, in float64, by loops."""
    weights = [parameter.asnumpy().astype(np.float64) for parameter in net.trainable_params()]
    moments = [np.zeros_like(weight) for weight in weights]
    for update, rate in enumerate(rates):
        for i, gradient in enumerate(gradients(net, update)):
            gradient = gradient.astype(np.float64) + decays[i] * weights[i]
            if clip:
                gradient = gradient / max(np.sqrt((gradient**2).sum()), 1.0)
            moments[i] = factor * moments[i] + gradient
            step = gradient + factor * moments[i] if nesterov else moments[i]
            weights[i] = weights[i] - rate * step
    return weights


RATES = [0.1, 0.05, 0.2]
DECAY = {"weight_decay": 0.1}


@pytest.mark.parametrize(
    ("given", "by_hand"),
    [
        ({}, {}),
        (DECAY, {"decays": (0.1, 0.1)}),
        (DECAY | {"decay_filter": lambda x: "bias" not in x.name}, {"decays": (0.1, 0.0)}),
        (DECAY | {"use_nesterov": True}, {"nesterov": True, "decays": (0.1, 0.1)}),
        (DECAY | {"enable_clip_grad": True}, {"clip": True, "decays": (0.1, 0.1)}),
        ({"learning_rate": nn.ExponentialDecayLR(0.5, 0.5, 1)}, {"rates": [0.5, 0.25, 0.125]}),
        ({"learning_rate": Tensor(RATES), "momentum": 0.5}, {"rates": RATES, "factor": 0.5}),
        # The step divides by it; the optimizer must not do so again.
        ({"loss_scale": 128.0}, {}),
    ],
)
def test_updates_against_float64(given, by_hand):
    net = linear()
    optimizer = make(net, **given)
    optimizer.converted = True
    wanted = expected(net, **by_hand)
    for update in range(3):
        optimizer(tensors(*gradients(net, update)))
    for parameter, weight in zip(net.trainable_params(), wanted, strict=True):
        np.testing.assert_allclose(parameter.asnumpy(), weight, **TOLERANCE["float32, one update"])


def test_without_conversion_it_does_not_train():
    net = linear()
    step, before = PlainStep(LossNet(net, nn.MSELoss()), make(net)), snapshot(net)
    words = "called without THOR: .* plain momentum.*_thor_model and train what it returns"
    with pytest.raises(ValueError, match=words):
        step(*tensors(*rows(4)))
    assert_bit_equal(snapshot(net), before)


def test_the_network_stays_as_it_is():
    net = network()
    cells, names = [type(cell) for _, cell in net.cells_and_names()], list(snapshot(net))
    optimizer = make(net, weight_decay=0.1)
    assert [type(cell) for _, cell in net.cells_and_names()] == cells
    assert list(snapshot(net)) == names == [parameter.name for parameter in optimizer.parameters]
    net[1].bias.requires_grad = False
    names.remove("1.bias")
    assert [parameter.name for parameter in make(net).parameters] == names


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (dict(net=nn.ReLU()), "net: expected a Cell with trainable Parameters, got ReLU"),
        (dict(learning_rate=-0.1), "learning_rate: expected a finite number >= 0, got -0.1"),
        (dict(momentum=1), "momentum: expected a finite number >= 0 and < 1, got 1"),
        (dict(loss_scale=0), "loss_scale: expected a finite number > 0, got 0"),
        (dict(batch_size=0), "batch_size: expected an integer >= 1, got 0"),
        (dict(split_indices=[26, 53]), r"split_indices: .* below 1, .* got \[26, 53\]"),
        (dict(factor_decai=0.9), "unknown option .*Did you mean 'factor_decay'"),
    ],
)
def test_what_is_refused(given, message):
    with pytest.raises(InputError, match=message):
        make(**given)


def test_split_indices_are_those_of_resnet_50():
    """ResNet-50 has 53 convolutions and a dense layer; the tutorial's [26, 53] ends with it."""
    net = resnet50(10)
    make(net, split_indices=[26, 53])
    net.fc.weight.requires_grad = False
    with pytest.raises(InputError, match="expected integers below 53, the number of layers with"):
        make(net, split_indices=[26, 53])
