"""MindSpore's boost words: what they turn on, and what is refused. No step is built here."""

import copy
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from labkit.errors import InputError
from labkit.upstream.boost import ABSENT, FUNCTIONS, LEVELS, MODES, OLD_NAMES, SECTIONS, read
from tests.support.boost_words import ACCUMULATION, ADASUM, DIM_REDUCE, manual

# The tutorial's dictionary, as values under today's names.
VALUES = {
    "rho": 0.55,
    "gamma": 0.9,
    "alpha": 0.001,
    "sigma": 0.4,
    "n_components": 32,
    "pca_mat_path": None,
    "weight_load_dir": "./checkpoint_stage_1/checkpoint_pca",
}
OFF = "without effect here: device_number (adasum is off), timeout (no rank waits for a file)"
LEFT = "MindSpore's {} also turns on less_bn and grad_freeze, which are not part of labkit"
STEP_4 = {"grad_accumulation_step": 4}
# (level, dictionary) -> (functions that are on, values, notes)
TAKEN = [
    ("O0", None, (), {}, []),
    ("O0", "", (), {}, []),
    ("O1", None, (), {}, [LEFT.format("O1")]),
    ("O2", None, ("adasum",), {}, [LEFT.format("O2")]),
    ("O2", DIM_REDUCE, ("dim_reduce",), VALUES, [OFF]),
    ("O2", ADASUM, ("adasum",), {}, []),
    ("O2", ADASUM | {"common": {"device_num": 8}}, ("adasum",), {"device_number": 8}, []),
    ("O1", ACCUMULATION, ("grad_accumulation",), STEP_4, []),
    ("O2", manual("adasum", "grad_accumulation", common=STEP_4),
     ("adasum", "grad_accumulation"), STEP_4, []),
    ("O2", {"boost": {"mode": "disable_all"}}, (), {}, []),
    ("O1", manual(common={"gradient_split_groups": 50}, grad_freeze={"freeze_p": 0.7}), (), {},
     ["without effect here: gradient_split_groups (less_bn is off), freeze_p (grad_freeze is off)"
      ]),
]  # fmt: skip


@pytest.mark.parametrize(("level", "dictionary", "on", "values", "notes"), TAKEN)
def test_what_is_turned_on(level, dictionary, on, values, notes):
    before = copy.deepcopy(dictionary)
    boost = read(level, dictionary)
    assert (boost.on, boost.values, boost.notes) == (on, values, notes)
    assert dictionary == before


@pytest.mark.parametrize(("name", "value"), [("n_component", 5), ("n_components", 5), ("rho", 0.3)])
def test_every_value_counts_under_either_name(name, value):
    words = manual("dim_reduce", dim_reduce={name: value})
    assert read("O1", words).values == {OLD_NAMES.get(name, name): value}


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


# Level, dictionary, message.
REFUSED = [
    ("O3", None, "boost_level: expected one of 'O0', 'O1', 'O2', got 'O3'"),
    ("O1", {"boost": {"mode": "enable_all"}}, "turns on less_bn and grad_freeze and loss_scale_gr"),
    ("O2", {"boost": {"less_bn": True}}, "turns on less_bn, not part of labkit"),
    ("O0", DIM_REDUCE, "boost_level: expected 'O1' or 'O2' where the dictionary turns on dim_redu"),
    ("O1", manual("adasum", "dim_reduce"), "adasum and dim_reduce are both True"),
    ("O0", {"boost": {"adasum": True}}, "adasum of boost is True, and mode 'auto' does not look a"),
    ("O1", "boost.json", "boost_config_dict: expected a dictionary of sections, got a str"),
    ("O1", {"boosts": {}}, "unknown section of boost_config_dict 'boosts'"),
    ("O1", {"boost": {"mode": "Manual"}}, "unknown boost mode 'Manual'"),
    ("O1", {"boost": {"adasum": 1}}, "adasum of boost: expected True or False, got 1"),
    ("O1", manual(common={"rho": 0.5}), "unknown setting of common 'rho'; expected one of: gradi"),
    ("O1", manual("grad_accumulation"), "grad_accumulation_step was not given"),
    ("O1", ACCUMULATION | {"common": {"grad_accumulation_step": 2}},
     "grad_accumulation_step is 4 and 2; expected one of them"),
]  # fmt: skip
ENDS = [
    ("dim_reduce", "rho", 1, "a finite number > 0 and < 1"),
    ("dim_reduce", "gamma", 1, "a finite number >= 0 and < 1"),
    ("dim_reduce", "alpha", -1e-9, "a finite number >= 0"),
    ("common", "device_num", 0, "an integer >= 1"),
]
REFUSED += [
    ("O1", manual(**{section: {name: wrong}}), f"{name} of {section}: expected {expected}, got ")
    for section, name, wrong, expected in ENDS
]


@pytest.mark.parametrize(("level", "dictionary", "message"), REFUSED)
def test_what_is_refused(level, dictionary, message):
    with pytest.raises(InputError, match=re.escape(message)):
        read(level, dictionary)


@given(
    st.sampled_from(list(LEVELS)),
    st.fixed_dictionaries({}, optional=dict.fromkeys((*FUNCTIONS, *ABSENT), st.booleans())),
)
def test_manual_turns_on_what_it_says_or_says_why_not(level, asked):
    on = {name for name, value in asked.items() if value}
    lacking, crossed = on & set(ABSENT), {"adasum", "dim_reduce"} <= on
    try:
        boost = read(level, ACCUMULATION | {"boost": {"mode": "manual"} | asked})
    except InputError:
        assert lacking or crossed or (level == "O0" and on)
    else:
        assert set(boost.on) == on and not lacking


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
