"""What ``ThorUpdate`` refuses, and with which words; which options go where."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mindspore import nn

from labkit.algorithms.thor import LevenbergMarquardt, Options, ThorStep, ThorUpdate, TraceRule
from labkit.algorithms.thor.options import checked_options, split_options
from labkit.errors import InputError
from tests.support.step_cells import momentum, regression, snapshot

pytestmark = pytest.mark.usefixtures("runtime")

NAMES = [field.name for field in dataclasses.fields(Options)]


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(frequenzy=3), "unknown option of ThorUpdate 'frequenzy'.*Did you mean 'frequency'"),
        (dict(factor_freqency=3), "Did you mean 'factor_frequency'"),
        (dict(spilt=64), "Did you mean 'split'"),
        (dict(bias="homogenous"), "unknown bias 'homogenous'.*Did you mean 'homogeneous'"),
        (dict(bias=None), "unknown bias None; expected one of: homogeneous, plain"),
        (dict(damping_split="py"), "unknown damping_split 'py'; expected one of: equal, pi"),
        (dict(formulas="upstream"), "unknown formulas 'upstream'.*Did you mean 'upstream_gpu'"),
        (dict(loss="mean"), "unknown loss 'mean'.*known, sample mean"),
        (dict(nan="ignore"), "unknown nan 'ignore'; expected one of: stop, drop"),
        (dict(split=0), "split is 0; expected an integer >= 1, or None"),
        (dict(split=-128), "split is -128; expected an integer >= 1, or None"),
        (dict(split=1.5), "split is 1.5; expected an integer >= 1, or None"),
        (dict(split=True), "split is True; expected an integer >= 1, or None"),
        (dict(split="128"), "split is '128'; expected an integer >= 1, or None"),
        (dict(factor_decay=1), "factor_decay is 1; expected 0 <= factor_decay < 1"),
        (dict(factor_decay=1.0), "factor_decay is 1.0; expected 0 <= factor_decay < 1"),
        (dict(factor_decay=-0.1), "factor_decay is -0.1; expected 0 <= factor_decay < 1"),
        (dict(factor_decay=math.nan), "factor_decay is nan; expected 0 <= factor_decay < 1"),
        (dict(factor_decay=False), "factor_decay is False; expected 0 <= factor_decay < 1"),
        (dict(factor_decay=None), "factor_decay is None; expected 0 <= factor_decay < 1"),
        (dict(kl_clip=0), "kl_clip is 0; expected a number > 0, or None"),
        (dict(kl_clip=-1.0), "kl_clip is -1.0; expected a number > 0, or None"),
        (dict(kl_clip=math.inf), "kl_clip is inf; expected a number > 0, or None"),
        (dict(kl_clip=math.nan), "kl_clip is nan; expected a number > 0, or None"),
        (dict(kl_clip=True), "kl_clip is True; expected a number > 0, or None"),
        (dict(trace_rule=0.01), "trace_rule is 0.01; expected a TraceRule, or None"),
        (dict(trace_rule=TraceRule), "trace_rule is <class.*expected a TraceRule, or None"),
        (dict(trace_rule=LevenbergMarquardt()), "expected a TraceRule, or None"),
        (dict(adapt_damping=True), "adapt_damping is True; expected a LevenbergMarquardt, or None"),
        (dict(adapt_damping=TraceRule()), "expected a LevenbergMarquardt, or None"),
        (dict(skip="fc"), "skip is 'fc'; expected a tuple of Cells or layer names"),
        (dict(skip=None), "skip is None; expected a tuple of Cells or layer names"),
    ],
    ids=str,
)
def test_refused(options, message):
    with pytest.raises(InputError, match=message):
        checked_options(options)


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(frequency=0), "frequency is 0; expected an integer >= 1"),
        (dict(frequency=1.5), "frequency is 1.5; expected an integer >= 1"),
        (dict(frequency=True), "frequency is True; expected an integer >= 1"),
        (dict(frequency=None), "frequency is None; expected an integer >= 1"),
        (dict(factor_frequency=0), "factor_frequency is 0; expected an integer >= 1"),
        (dict(factor_frequency=False), "factor_frequency is False; expected an integer >= 1"),
        (dict(split=0), "split is 0"),
        (dict(nonsense=1), "unknown option of ThorUpdate 'nonsense'"),
        (dict(damping=0), "damping is 0; expected a finite number > 0"),
        (dict(damping=-0.1), "damping is -0.1; expected a finite number > 0"),
        (dict(damping=math.nan), "damping is nan; expected a finite number > 0"),
        (dict(damping=math.inf), "damping is inf; expected a finite number > 0"),
        (dict(damping=[0.1, 0.0]), "damping is 0.0; expected a finite number > 0"),
        (dict(damping=[]), r"damping has shape \(0,\); expected \(\), or \(updates,\)"),
        (dict(skip=("layer",)), "skip names a layer 'layer' that has no factors"),
    ],
    ids=str,
)
def test_a_refused_update_leaves_the_network_as_it_was(options, message):
    network, loss_net = regression()
    cells, values = dict(loss_net.cells_and_names()), snapshot(network)
    damping = options.pop("damping", 0.1)
    with pytest.raises(InputError, match=message):
        ThorUpdate(loss_net, momentum(network), damping, **options)
    assert dict(loss_net.cells_and_names()) == cells
    assert snapshot(network).keys() == values.keys()


def test_a_step_names_the_option_that_neither_knows():
    network, loss_net = regression()
    with pytest.raises((InputError, TypeError), match="frequenzy"):
        ThorStep(loss_net, momentum(network), 0.1, frequenzy=3)


@given(st.sets(st.sampled_from(NAMES)), st.sets(st.sampled_from(["clip_norm", "precision", "x"])))
def test_options_are_split_by_name(own, others):
    given_as = dict.fromkeys([*sorted(own), *sorted(others)], 1)
    assert split_options(given_as) == (dict.fromkeys(own, 1), dict.fromkeys(others, 1))


def test_what_comes_without_options():
    came = checked_options({})
    assert (came.frequency, came.factor_frequency, came.split) == (100, None, 128)
    assert (came.bias, came.damping_split, came.formulas) == ("homogeneous", "equal", "thor")
    assert (came.factor_decay, came.kl_clip, came.trace_rule) == (0.0, None, None)
    assert (came.adapt_damping, came.skip, came.loss, came.nan) == (None, (), "known", "stop")


def test_what_is_right_is_taken():
    came = checked_options(
        dict(
            frequency=lambda update: 1 + update,
            split=None,
            factor_decay=0,
            kl_clip=1,
            trace_rule=TraceRule(),
            adapt_damping=LevenbergMarquardt(),
            skip=["fc", nn.Dense(1, 1)],
            nan="drop",
        )
    )
    assert came.split is None and came.factor_decay == 0 and came.kl_clip == 1


def test_settings_name_every_option():
    """What a resumed training must share: by name, functions as what they are."""
    network, loss_net = regression()
    update = ThorUpdate(loss_net, momentum(network), [0.1, 0.2], frequency=lambda update: 3)
    assert set(update.settings) == {"damping", *NAMES}
    assert update.settings["damping"] == "[0.1, 0.2]"
    assert (update.settings["frequency"], update.settings["split"]) == ("a schedule", "128")
