"""Which settings a resumed training must share with the interrupted one."""

import numpy as np
import pytest
from mindspore import nn, ops

from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.losses import CrossEntropySmooth, LossNet
from labkit.steps.options import DynamicLossScale
from labkit.training.resume import differing
from tests.support.step_cells import linear

pytestmark = pytest.mark.usefixtures("runtime")
# As labkit wrote settings when a checkpoint held only the options that were given.
OLD = {
    "step": "AccumulatedStep",
    "nonfinite": "drop_micro",
    "weighted": "True",
    "tail": "flush",
    "micro_steps": 2,
}
ALOUD = {
    "normalise": "samples",
    "batch_axis": None,
    "reduction": "mean",
    "precision": "O0",
    "loss_scale": 1,
    "clip_norm": None,
    "nonfinite": "drop_micro",
    "tail": "flush",
}


def settings(loss_fn=None, **options):
    network = linear()
    loss_net = LossNet(network, loss_fn or nn.MSELoss())
    return AccumulatedStep(loss_net, nn.SGD(network.trainable_params()), 2, **options).settings


def test_a_default_that_is_said_aloud_is_the_default():
    assert differing(settings(**ALOUD), settings()) == ({}, {})
    others = {name: value for name, value in ALOUD.items() if name != "normalise"}
    assert differing(settings(), settings(**others)) == ({}, {})


@pytest.mark.parametrize(
    ("loss_fn", "over"),
    [
        (nn.MSELoss(), "elements"),
        (nn.CrossEntropyLoss(), "labels"),
        (nn.SoftmaxCrossEntropyWithLogits(True, "mean"), "rows"),
    ],
)
def test_rows_that_were_asked_for_are_not_what_is_derived(loss_fn, over):
    """A step that weighs by rows does not check whether the loss's own weights are the same."""
    own, aloud = settings(loss_fn), settings(loss_fn, normalise="samples")
    expected = {"normalise": repr(over)}, {"normalise": "'samples'"}
    assert differing(own, aloud) == expected
    assert differing(aloud, aloud) == differing(aloud, own) == ({}, {})
    older = {name: value for name, value in aloud.items() if name != "batch_axis"}
    assert differing(own, older) == ({}, {})


def test_a_mean_over_rows_is_that_however_it_is_asked_for():
    def own(outputs, labels):
        return ops.mean(ops.square(outputs[:, 0] - labels))

    assert differing(settings(own), settings(own, normalise="samples")) == ({}, {})


def test_an_older_checkpoint():
    for own in (settings(), settings(**ALOUD)):
        assert differing(own, OLD) == ({}, {})
    assert differing(settings(loss_scale=1024), OLD | {"loss_scale": "1024.0"}) == ({}, {})
    assert differing(settings(), OLD | {"normalise": "'samples'"}) == ({}, {})


def test_a_number_is_the_same_of_whatever_type_it_is():
    """This also holds in a ``DynamicLossScale``, of which a checkpoint holds the repr."""
    whole, real = DynamicLossScale(2**16, 2, 9), DynamicLossScale(np.float32(2**16), 2.0, 9)
    assert differing(settings(loss_scale=whole), settings(loss_scale=real)) == ({}, {})
    single = settings(loss_scale=np.float32(1024), clip_norm=np.float64(0.5))
    assert differing(single, settings(loss_scale=1024, clip_norm=0.5)) == ({}, {})
    for other in (DynamicLossScale(2**16, 2, 8), DynamicLossScale(2**15, 2, 9), 2**16):
        own, saved = differing(settings(loss_scale=whole), settings(loss_scale=other))
        assert own == {"loss_scale": repr(whole)} and saved == {"loss_scale": repr(other)}


@pytest.mark.parametrize(
    ("options", "own", "saved"),
    [
        ({"normalise": "steps"}, "'steps'", "'samples'"),
        ({"clip_norm": 1.0}, "1.0", "None"),
        ({"precision": "O2"}, "'O2'", "'O0'"),
        ({"batch_axis": 1}, "1", "None"),
    ],
)
def test_what_differs(options, own, saved):
    (name,) = options
    for other in (settings(), OLD):
        assert differing(settings(**options), other) == ({name: own}, {name: saved})
    assert differing(settings(), settings(**options)) == ({name: saved}, {name: own})


def test_weights_that_are_not_the_rows():
    """Once labels have been ignored, weights by rows differ from the loss's own."""
    derived = settings(CrossEntropySmooth(num_classes=2))
    ignored = derived | {"normalise": "'labels'"}
    assert differing(derived, ignored) == ({}, {})
    aloud = settings(CrossEntropySmooth(num_classes=2), normalise="samples")
    assert differing(aloud, derived) == ({}, {})
    assert differing(aloud, ignored) == ({"normalise": "'samples'"}, {"normalise": "'labels'"})


@pytest.mark.parametrize("text", ["-" * 100_000, "[" * 900, "-" * 900, "9" * 5000, "\0", None, [1]])
def test_a_text_that_is_no_value_is_compared_as_it_is(text):
    assert differing({"option": text}, {"option": text}) == ({}, {})
    assert differing({"option": "1"}, {"option": text}) == ({"option": "1"}, {"option": text})
