"""``boost_step``: what each dictionary builds, beside what MindSpore makes of the same words."""

import copy
import json
import warnings

import numpy as np
import pytest

from labkit import AccumulatedStep, AdasumStep, PlainStep, boost_step
from labkit.algorithms.subspace import Basis, SubspaceStep
from labkit.algorithms.subspace.snapshots import write_snapshot
from labkit.errors import InputError
from labkit.steps.gradients import set_state
from labkit.upstream import boost
from tests.support.boost_words import ACCUMULATION, ADASUM, DIM_REDUCE, manual
from tests.support.programs import run_code
from tests.support.step_cells import assert_bit_equal, momentum, regression, snapshot
from tests.support.subspace_cells import basis_of

pytestmark = [
    pytest.mark.usefixtures("runtime"),
    pytest.mark.filterwarnings("ignore:boost_step"),
]
CHANGED = {"rho": 0.3, "sigma": 0.2, "gamma": 0.5, "alpha": 0.02}
STEPS_2 = {"common": {"grad_accumulation_step": 2}}


def parts():
    network, loss_net = regression()
    return loss_net, momentum(network)


def basis():
    """Return three random components of the eight weights."""
    return basis_of(regression()[0].trainable_params(), 3)


SAME = {
    "O1": ("O1", None, {}, PlainStep, {}),
    "O2": ("O2", None, {"workers": 2}, AdasumStep, {}),
    "disabled": ("O2", {"boost": {"mode": "disable_all"}}, {}, PlainStep, {}),
    "accumulation": ("O1", ACCUMULATION, {}, AccumulatedStep, {"micro_steps": 4}),
    "adasum": ("O2", ADASUM, {"workers": 2}, AdasumStep, {}),
    "both": ("O1", manual("adasum", "grad_accumulation", **STEPS_2),
             {"workers": 2, "loss_scale": 8.0}, AdasumStep, {"micro_steps": 2}),
    "server": ("O2", ADASUM | {"common": {"device_num": 2}},
               {"workers": 2, "scope": "network"}, AdasumStep, {"node_size": 2}),
    "subspace": ("O1", manual("dim_reduce", "grad_accumulation", dim_reduce=CHANGED, **STEPS_2),
                 {"trials": 5, "loss_scale": 16.0}, SubspaceStep, CHANGED | {"micro_steps": 2}),
    "subspace by default": ("O1", manual("dim_reduce"), {}, SubspaceStep,
                            {"rho": 0.55, "sigma": 0.4, "gamma": 0.9, "alpha": 0.001}),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_it_is_the_step_that_the_words_mean(name):
    """Classes, settings, constants and Parameters are equal, and the optimizer is the user's."""
    level, dictionary, options, kind, said = SAME[name]
    if kind is SubspaceStep:
        options = options | {"basis": basis()}
    loss_net, optimizer = parts()
    step = boost_step(loss_net, optimizer, level, dictionary, **options)
    other = kind(*parts(), **options, **said)
    assert type(step) is kind and step.optimizer is optimizer and step.settings == other.settings
    assert step.micro_batches == other.micro_batches and type(step.update) is type(other.update)
    assert_bit_equal(snapshot(step), snapshot(other))
    if kind is SubspaceStep:
        assert step.update.constants == other.update.constants


class TestTheBasisOfTheDictionary:
    """The tutorial's dictionary with its own keys, on snapshots of the network."""

    @pytest.fixture
    def folder(self, tmp_path):
        network, _ = regression()
        for number in range(6):
            for parameter in network.trainable_params():
                moved = np.random.default_rng(number).normal(size=parameter.shape)
                set_state(parameter, moved.astype(np.float32))
            path = tmp_path / "checkpoint_pca" / f"step-{number:09d}.safetensors"
            path.parent.mkdir(exist_ok=True)
            write_snapshot(path, network.trainable_params())
        return path.parent

    def basis(self, **changed):
        """Return the checksum of the basis of the tutorial's dictionary, with these changes."""
        words = copy.deepcopy(DIM_REDUCE)
        words["dim_reduce"] |= {"n_component": 3} | {n: str(v) for n, v in changed.items()}
        return boost_step(*parts(), "O1", words).settings["basis"]

    def test_it_is_made_once_and_then_loaded(self, folder, tmp_path, capsys):
        made, parameters = self.basis(weight_load_dir=folder), regression()[0].trainable_params()
        assert made == Basis.of(folder, parameters, 3).checksum
        assert made == Basis.load(folder / "pca_mat.safetensors", parameters).checksum
        own = tmp_path / "own.npy"
        assert self.basis(pca_mat_path=own, weight_load_dir=folder) == made
        # Other snapshots make another basis, but a file that is named is never overwritten.
        (folder / "step-000000000.safetensors").unlink()
        assert self.basis(weight_load_dir=folder) != made
        before, _ = own.read_bytes(), capsys.readouterr()
        assert self.basis(pca_mat_path=own, weight_load_dir=folder) == made
        assert own.read_bytes() == before
        assert f"basis loaded from {own}, nothing computed" in capsys.readouterr().out


NOT_PART = (
    "boost_step: MindSpore's O2 also turns on less_bn and grad_freeze, which are not part of labkit"
)


@pytest.mark.parametrize(
    ("given", "options", "line", "notes"),
    [
        ([], {}, "O0, mode auto: nothing is turned on, a plain step", []),
        (["O2"], {"workers": 2}, "O2, mode auto: adasum (node_size 1)", [NOT_PART]),
        (["O1", manual("dim_reduce", dim_reduce=CHANGED | {"timeout": 5})], {"basis": basis},
         "O1, mode manual: dim_reduce (rho 0.3, sigma 0.2, gamma 0.5, alpha 0.02, n_components 3, "
         "trials 20)", ["boost_step: without effect here: timeout (no rank waits for a file)"]),
        (["O1", manual("dim_reduce")], {"basis": basis, "method": "sgd"},
         "O1, mode manual: dim_reduce (n_components 3)", []),
    ],
)  # fmt: skip
def test_one_line_says_what_is_on_and_one_what_is_left_off(given, options, line, notes, capsys):
    options = {name: value() if callable(value) else value for name, value in options.items()}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        boost_step(*parts(), *given, **options)
    assert [str(each.message) for each in caught if "boost_step" in str(each.message)] == notes
    lines = [each for each in capsys.readouterr().out.splitlines() if "boost_level" in each]
    assert lines == [f"labkit: boost_level {line}"]


@pytest.mark.parametrize(
    ("words", "options", "message"),
    [
        (manual("dim_reduce"), {"trails": 3, "basis": basis}, "'trails'.*Did you mean 'trials'"),
        (manual("dim_reduce", dim_reduce=CHANGED), {"method": "sgd", "basis": basis},
         "method='sgd' searches nothing.* for rho, sigma, gamma, alpha"),
        (manual("grad_freeze"), {}, "turns on grad_freeze, not part of labkit"),
        (manual("less_bn"), {}, "turns on less_bn, not part of labkit"),
        (ADASUM, {}, "nothing to combine: 1 worker"),
        (ACCUMULATION, {"basis": basis}, "basis: expected None where dim_reduce is off"),
        (manual("dim_reduce"), {}, "weight_load_dir is None, and pca_mat_path None is no"),
        (manual("dim_reduce", dim_reduce={"weight_load_dir": "somewhere"}), {"basis": basis},
         "basis: expected None where pca_mat_path or weight_load_dir is said"),
        (manual("dim_reduce", dim_reduce={"n_component": 5}), {"basis": basis},
         "n_components: expected 3, the number in the basis, got 5"),
    ],
)  # fmt: skip
def test_what_does_not_fit(words, options, message):
    options = {name: value() if callable(value) else value for name, value in options.items()}
    with pytest.raises(InputError, match=message):
        boost_step(*parts(), "O1", words, **options)


SERVERS = [(8, {}, 1), (20, {}, 1), (16, {}, 8), (16, {"device_num": 4}, 4)]
SERVERS += [(1, {"device_number": 8}, 8)]


@pytest.mark.parametrize(("ranks", "words", "expected"), SERVERS)
def test_a_server_has_8_devices_where_mindspore_has_adasum(monkeypatch, ranks, words, expected):
    """The tutorial's dictionary lacks device_number; MindSpore takes 8 from 16 ranks on."""
    monkeypatch.setattr(boost.cluster, "rank_and_size", lambda: (0, ranks))
    assert boost.node_size(boost.read("O2", ADASUM | {"common": words}).values) == expected


UPSTREAM = """
import json, sys
from mindspore.boost import AutoBoost
from mindspore.boost import boost
words, second = json.loads(sys.argv[1])
first = AutoBoost("O1", words)
result = {
    "n_components": first.n_components,
    "device_number": first.device_number,
    "rho": first.rho,
    "table": boost._boost_config_level["O1"],
}
again = AutoBoost("O2", second)
result["again"] = [again is first, again.level, again.boost_config, again.grad_accumulation_step]
print(json.dumps(result))
"""


def test_mindspore_ignores_the_tutorials_keys_and_every_dictionary_but_the_first():
    """D-01, D-02, D-03 of MindSpore 2.10.0, in a separate process; and labkit beside it."""
    words = copy.deepcopy(DIM_REDUCE)
    words["common"]["device_num"], words["dim_reduce"]["n_component"] = 4, 5
    words["dim_reduce"]["rho"] = 0.3
    done = run_code(UPSTREAM, json.dumps([words, ACCUMULATION]))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    # The tutorial's keys have no effect, except the one whose name is still valid.
    assert (result["n_components"], result["device_number"], result["rho"]) == (32, 8, 0.3)
    # MindSpore has written into the module's own table.
    assert result["table"]["dim_reduce"] is True
    # The second dictionary, for another level, is not read at all.
    is_first, level, config, steps = result["again"]
    assert is_first and level == "O1" and steps == 1
    assert config["dim_reduce"] and not config["grad_accumulation"]

    ours, second = boost.read("O1", words), boost.read("O2", ACCUMULATION)
    assert ours.values["n_components"] == 5 and ours.values["rho"] == 0.3
    with_adasum = copy.deepcopy(ADASUM) | {"common": words["common"]}
    assert boost.read("O2", with_adasum).values["device_number"] == 4
    assert second.on == ("grad_accumulation",)
    assert second.values["grad_accumulation_step"] == 4
