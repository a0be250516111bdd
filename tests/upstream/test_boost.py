"""``boost_step``: MindSpore's boost words, the step that each dictionary builds, and refusals."""

import copy
import json
import re

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from labkit import AccumulatedStep, AdasumStep, PlainStep, boost_step
from labkit.algorithms.subspace import Basis, SubspaceStep
from labkit.algorithms.subspace.snapshots import write_snapshot
from labkit.errors import InputError
from labkit.steps.state import set_state
from labkit.upstream import boost
from labkit.upstream.boost import ABSENT, FUNCTIONS, LEVELS, MODES, OLD_NAMES, SECTIONS, read
from tests.support.programs import run_code
from tests.support.step_cells import assert_bit_equal, momentum, regression, snapshot
from tests.support.subspace_cells import basis_of

pytestmark = [
    pytest.mark.usefixtures("runtime"),
    pytest.mark.filterwarnings("ignore:boost_step"),
]


def manual(*on, **sections):
    return {"boost": {"mode": "manual"} | dict.fromkeys(on, True)} | sections


# The tutorials' dictionaries, with their names and values unchanged, and short ones.
DIM_REDUCE = manual("dim_reduce") | {
    "common": {"device_num": 8},
    "dim_reduce": {"rho": 0.55, "gamma": 0.9, "alpha": 0.001, "sigma": 0.4, "n_component": 32}
    | {"pca_mat_path": None, "weight_load_dir": "./checkpoint_stage_1/checkpoint_pca"}
    | {"timeout": 1200},
}
ADASUM = {"boost": {"mode": "manual"} | dict.fromkeys((*FUNCTIONS, *ABSENT[:2]), False)}
ADASUM["boost"]["adasum"] = True
STEP_4 = {"grad_accumulation_step": 4}
ACCUMULATION = manual("grad_accumulation", grad_accumulation=STEP_4)
CHANGED = {"rho": 0.3, "sigma": 0.2, "gamma": 0.5, "alpha": 0.02}
STEPS_2 = {"common": {"grad_accumulation_step": 2}}

VALUES = DIM_REDUCE["dim_reduce"] | {"n_components": 32}
del VALUES["n_component"], VALUES["timeout"]
OFF = "without effect here: device_number (adasum is off), timeout (no rank waits for a file)"
LEFT = "MindSpore's {} also turns on less_bn and grad_freeze, which are not part of labkit"
SUBSPACE = ("dim_reduce",)
# (level, dictionary) -> (functions that are on, values, notes)
TAKEN = [
    ("O0", None, (), {}, []),
    ("O0", "", (), {}, []),
    ("O1", None, (), {}, [LEFT.format("O1")]),
    ("O2", None, ("adasum",), {}, [LEFT.format("O2")]),
    ("O2", DIM_REDUCE, SUBSPACE, VALUES, [OFF]),
    ("O1", manual("dim_reduce", dim_reduce={"n_component": 5}), SUBSPACE, {"n_components": 5}, []),
    ("O1", manual("dim_reduce", dim_reduce={"n_components": 5}), SUBSPACE, {"n_components": 5}, []),
    ("O1", manual("dim_reduce", dim_reduce={"rho": 0.3}), SUBSPACE, {"rho": 0.3}, []),
    ("O2", ADASUM | {"common": {"device_num": 8}}, ("adasum",), {"device_number": 8}, []),
    ("O1", manual(common={"gradient_split_groups": 50}, grad_freeze={"freeze_p": 0.7}), (), {},
     ["without effect here: gradient_split_groups (less_bn is off), freeze_p (grad_freeze is off)"
      ]),
]  # fmt: skip


@pytest.mark.parametrize(("level", "dictionary", "on", "values", "notes"), TAKEN)
def test_what_is_turned_on(level, dictionary, on, values, notes):
    before = copy.deepcopy(dictionary)
    assert read(level, dictionary)[1:] == (on, values, notes)
    assert dictionary == before


def test_the_levels_modes_and_names_are_mindspores():
    from mindspore.boost import boost

    left = {"O0": (), "O1": ABSENT[:2], "O2": ABSENT[:2]}
    for level, table in boost._boost_config_level.items():
        assert {name for name in table if table[name]} == {*LEVELS[level], *left[level]}
        assert table.keys() == {*FUNCTIONS, *ABSENT}
    assert boost._boost_config_level.keys() == LEVELS.keys()
    assert tuple(boost._boost_config_mode) == MODES
    known = {name for section, keys in SECTIONS.items() for name in keys if section != "boost"}
    assert set(boost.AutoBoost._boost_config_func_map) == known


@given(
    st.sampled_from(list(LEVELS)),
    st.fixed_dictionaries({}, optional=dict.fromkeys((*FUNCTIONS, *ABSENT), st.booleans())),
)
def test_manual_turns_on_what_it_says_or_says_why_not(level, asked):
    on = {name for name, value in asked.items() if value}
    lacking, crossed = on & set(ABSENT), {"adasum", "dim_reduce"} <= on
    try:
        made = read(level, ACCUMULATION | {"boost": {"mode": "manual"} | asked})
    except InputError:
        assert lacking or crossed or (level == "O0" and on)
    else:
        assert set(made[1]) == on and not lacking


@given(st.sampled_from([(s, name) for s, keys in SECTIONS.items() for name in keys]), st.data())
def test_a_dropped_letter_is_never_taken_and_is_led_back(setting, data):
    section, name = setting
    place = data.draw(st.integers(0, len(name) - 1))
    typo = name[:place] + name[place + 1 :]
    assume(typo not in {*SECTIONS[section], *OLD_NAMES} and len(name) > 3)
    with pytest.raises(InputError) as error:
        read("O1", {section: {typo: True}})
    near = re.search(r"Did you mean '(\w+)'\?", str(error.value))
    assert near and OLD_NAMES.get(near[1], near[1]) == name


def parts():
    network, loss_net = regression()
    return loss_net, momentum(network)


def basis():
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


def test_the_basis_of_the_dictionary(tmp_path, capsys):
    """With the tutorial's own keys, on snapshots of the network; where it is kept, it is loaded."""
    parameters, folder = regression()[0].trainable_params(), tmp_path / "checkpoint_pca"
    folder.mkdir()
    for number in range(6):
        for parameter in parameters:
            moved = np.random.default_rng(number).normal(size=parameter.shape)
            set_state(parameter, moved.astype(np.float32))
        write_snapshot(folder / f"step-{number:09d}.safetensors", parameters)

    def checksum(**paths):
        own = {"n_component": 3} | {name: str(path) for name, path in paths.items()}
        words = DIM_REDUCE | {"dim_reduce": DIM_REDUCE["dim_reduce"] | own}
        return boost_step(*parts(), "O1", words).settings["basis"]

    made, own = checksum(weight_load_dir=folder), tmp_path / "own.npy"
    assert made == Basis.of(folder, parameters, 3).checksum
    assert checksum(pca_mat_path=own, weight_load_dir=folder) == made
    # Other snapshots make another basis, but a file that is named is never overwritten.
    (folder / "step-000000000.safetensors").unlink()
    assert checksum(weight_load_dir=folder) != made
    before, _ = own.read_bytes(), capsys.readouterr()
    assert checksum(pca_mat_path=own, weight_load_dir=folder) == made
    assert own.read_bytes() == before
    assert f"basis loaded from {own}, nothing computed" in capsys.readouterr().out


@pytest.mark.filterwarnings("default:boost_step")
@pytest.mark.parametrize(
    ("method", "changed", "line"),
    [
        ("bfgs", CHANGED, "rho 0.3, sigma 0.2, gamma 0.5, alpha 0.02, n_components 3, trials 20"),
        ("sgd", {}, "n_components 3"),
    ],
)
def test_one_line_says_what_is_on_and_one_what_is_left_off(method, changed, line, capsys):
    words = manual("dim_reduce", dim_reduce=changed | {"timeout": 5})
    with pytest.warns(UserWarning, match=r"boost_step: without effect here: timeout \(no rank"):
        boost_step(*parts(), "O1", words, basis=basis(), method=method)
    line = f"labkit: boost_level O1, mode manual: dim_reduce ({line})\n"
    assert line in capsys.readouterr().out


# Level, dictionary, options, message.
REFUSED = [
    ("O3", None, {}, "boost_level: expected one of 'O0', 'O1', 'O2', got 'O3'"),
    ("O1", {"boost": {"mode": "enable_all"}}, {}, "turns on less_bn and grad_freeze and loss_sc"),
    ("O2", {"boost": {"less_bn": True}}, {}, "turns on less_bn, not part of labkit"),
    ("O1", manual("grad_freeze"), {}, "turns on grad_freeze, not part of labkit"),
    ("O0", DIM_REDUCE, {}, "boost_level: expected 'O1' or 'O2' where the dictionary turns on di"),
    ("O1", manual("adasum", "dim_reduce"), {}, "adasum and dim_reduce are both True"),
    ("O0", {"boost": {"adasum": True}}, {}, "adasum of boost is True, and mode 'auto' does not "),
    ("O1", "boost.json", {}, "boost_config_dict: expected a dictionary of sections, got 'boost."),
    ("O1", {"boosts": {}}, {}, "unknown section of boost_config_dict 'boosts'"),
    ("O1", {"boost": {"mode": "Manual"}}, {}, "unknown boost mode 'Manual'"),
    ("O1", {"boost": {"adasum": 1}}, {}, "adasum of boost: expected True or False, got 1"),
    ("O1", manual(common={"rho": 0.5}), {}, "unknown setting of common 'rho'; expected one of: "),
    ("O1", manual("grad_accumulation"), {}, "grad_accumulation_step was not given"),
    ("O1", ACCUMULATION | STEPS_2, {}, "grad_accumulation_step is 4 and 2; expected one of them"),
    ("O1", manual("dim_reduce"), {"trails": 3, "basis": basis}, "Did you mean 'trials'"),
    ("O1", manual("dim_reduce", dim_reduce=CHANGED), {"method": "sgd", "basis": basis},
     "method='sgd' searches nothing"),
    ("O1", ADASUM, {}, "nothing to combine: 1 worker"),
    ("O1", ACCUMULATION, {"basis": basis}, "basis: expected None where dim_reduce is off"),
    ("O1", manual("dim_reduce"), {}, "weight_load_dir is None, and pca_mat_path None is no"),
    ("O1", manual("dim_reduce", dim_reduce={"weight_load_dir": "somewhere"}), {"basis": basis},
     "basis: expected None where pca_mat_path or weight_load_dir is said"),
    ("O1", manual("dim_reduce", dim_reduce={"n_component": 5}), {"basis": basis},
     "n_components: expected 3, the number in the basis, got 5"),
]  # fmt: skip
ENDS = [
    ("dim_reduce", "rho", 1, "a finite number > 0 and < 1"),
    ("dim_reduce", "gamma", 1, "a finite number >= 0 and < 1"),
    ("dim_reduce", "alpha", -1e-9, "a finite number >= 0"),
    ("common", "device_num", 0, "an integer >= 1"),
]
REFUSED += [
    ("O1", manual(**{section: {name: wrong}}), {}, f"{name} of {section}: expected {expected}, got")
    for section, name, wrong, expected in ENDS
]


@pytest.mark.parametrize(("level", "words", "options", "message"), REFUSED)
def test_what_is_refused(level, words, options, message):
    given = {name: value() if callable(value) else value for name, value in options.items()}
    with pytest.raises(InputError, match=re.escape(message)):
        boost_step(*parts(), level, words, **given)


SERVERS = [
    (8, {}, 1),
    (20, {}, 1),
    (16, {}, 8),
    (16, {"device_num": 4}, 4),
    (1, {"device_number": 8}, 8),
]


@pytest.mark.parametrize(("ranks", "words", "expected"), SERVERS)
def test_a_server_has_8_devices_where_mindspore_has_adasum(monkeypatch, ranks, words, expected):
    """The tutorial's dictionary lacks device_number; MindSpore takes 8 from 16 ranks on."""
    monkeypatch.setattr(boost.cluster, "rank_and_size", lambda: (0, ranks))
    assert boost.node_size(read("O2", ADASUM | {"common": words})[2]) == expected


UPSTREAM = """
import json, sys
from mindspore.boost import AutoBoost, boost
words, second = json.loads(sys.argv[1])
first = AutoBoost("O1", words)
values = [first.n_components, first.device_number, first.rho]
table = boost._boost_config_level["O1"]["dim_reduce"]
again = AutoBoost("O2", second)
print(json.dumps([values, table, again is first, again.level, again.grad_accumulation_step]))
"""


def test_mindspore_ignores_the_tutorials_keys_and_every_dictionary_but_the_first():
    """D-01, D-02, D-03 of MindSpore 2.10.0, in a separate process; labkit's are tested above."""
    own = DIM_REDUCE["dim_reduce"] | {"n_component": 5, "rho": 0.3}
    words = DIM_REDUCE | {"common": {"device_num": 4}, "dim_reduce": own}
    done = run_code(UPSTREAM, json.dumps([words, ACCUMULATION]))
    assert done.returncode == 0, done.stderr
    values, table, is_first, level, steps = json.loads(done.stdout.splitlines()[-1])
    # The tutorial's keys have no effect, except the one whose name is still valid.
    assert values == [32, 8, 0.3]
    # MindSpore has written into the module's own table.
    assert table is True
    # The second dictionary, for another level, is not read at all.
    assert is_first and level == "O1" and steps == 1
