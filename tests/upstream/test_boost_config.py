"""MindSpore's boost words: what they turn on, and what is refused. No step is built here."""

import copy
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from labkit.errors import InputError
from labkit.upstream.boost_config import (
    FUNCTIONS,
    LEVELS,
    MODES,
    OLD_NAMES,
    SECTIONS,
    read_boost,
)
from tests.support.boost_words import ACCUMULATION, ADASUM, DIM_REDUCE, WHOLE, manual

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
LACKING = "labkit has no loss_scale_group: left off"
GC = "without effect here: gc_flag (gradients are not centralised)"
O1 = {"fn_flag": True, "freeze_type": 1, "freeze_p": 0.7, "total_steps": 65536}
ALONE = "mode 'manual' is the dictionary alone: {} of {} stay off"
STEP_4 = {"grad_accumulation_step": 4}
# (level, dictionary, missing) -> (functions that are on, values, notes)
TAKEN = {
    "nothing": (("O0", None, "refuse"), ((), {}, ())),
    "an empty text": (("O0", "", "refuse"), ((), {}, ())),
    "an empty dictionary": (("O0", {}, "refuse"), ((), {}, ())),
    "dim_reduce": (("O1", DIM_REDUCE, "refuse"), (("dim_reduce",), VALUES, (OFF,))),
    "dim_reduce on O2": (("O2", DIM_REDUCE, "refuse"), (("dim_reduce",), VALUES, (OFF,))),
    "dim_reduce by default": (
        ("O1", manual("dim_reduce"), "refuse"),
        (("dim_reduce",), {n: v for n, v in WHOLE["dim_reduce"].items() if n != "timeout"}, ()),
    ),
    "adasum": (("O2", ADASUM, "refuse"), (("adasum",), {}, ())),
    "adasum of servers": (
        ("O2", ADASUM | {"common": {"device_num": 8}}, "refuse"),
        (("adasum",), {"device_number": 8}, ()),
    ),
    "accumulation": (
        ("O1", ACCUMULATION, "refuse"),
        (("grad_accumulation",), STEP_4, (ALONE.format("less_bn and grad_freeze", "O1"),)),
    ),
    "accumulation in common, on O2": (
        ("O2", manual("grad_accumulation", common=STEP_4), "refuse"),
        (
            ("grad_accumulation",),
            STEP_4,
            (ALONE.format("less_bn, grad_freeze and adasum", "O2"),),
        ),
    ),
    "two": (
        ("O2", manual("adasum", "grad_accumulation", common=STEP_4), "refuse"),
        (
            ("adasum", "grad_accumulation"),
            STEP_4,
            (ALONE.format("less_bn and grad_freeze", "O2"),),
        ),
    ),
    "O1": (("O1", None, "refuse"), (("less_bn", "grad_freeze"), O1, (GC,))),
    "O2": (("O2", None, "refuse"), (("less_bn", "grad_freeze", "adasum"), O1, (GC,))),
    "less_bn as it is here": (
        ("O1", manual("less_bn", less_bn={"gc_flag": False, "fn_flag": False}), "refuse"),
        (("less_bn",), {"fn_flag": False}, (ALONE.format("grad_freeze", "O1"),)),
    ),
    "grad_freeze": (
        ("O1", manual("grad_freeze", grad_freeze={"param_groups": 3, "freeze_p": 0.5}), "refuse"),
        (
            ("grad_freeze",),
            {"freeze_type": 1, "freeze_p": 0.5, "total_steps": 65536, "param_groups": 3},
            (ALONE.format("less_bn", "O1"),),
        ),
    ),
    "without what is missing": (
        ("O1", manual("adasum", "loss_scale_group", less_bn={}), "skip"),
        (("adasum",), {}, (ALONE.format("less_bn and grad_freeze", "O1"), LACKING)),
    ),
    "a split point of less_bn": (
        ("O1", manual("less_bn", common={"gradient_split_groups": [50]}), "refuse"),
        (
            ("less_bn",),
            {"fn_flag": True},
            (
                ALONE.format("grad_freeze", "O1"),
                "without effect here: gradient_split_groups (it says how MindSpore fuses the sums "
                "over ranks), gc_flag (gradients are not centralised)",
            ),
        ),
    ),
    "all off": (("O2", {"boost": {"mode": "disable_all"}}, "refuse"), ((), {}, ())),
    "manual, silently": (("O2", manual(), "refuse"), ((), {}, ())),
    "False for what labkit has not": (
        ("O1", {"boost": {"mode": "manual", "less_bn": False}}, "refuse"),
        ((), {}, ()),
    ),
    "one split point": (
        ("O1", manual(common={"gradient_split_groups": 50}), "refuse"),
        ((), {}, ("without effect here: gradient_split_groups (less_bn is off)",)),
    ),
}


@pytest.mark.parametrize("case", TAKEN)
def test_what_is_turned_on(case):
    (level, dictionary, missing), expected = TAKEN[case]
    before = copy.deepcopy(dictionary)
    boost = read_boost(level, dictionary, missing=missing)
    assert (boost.on, dict(boost.values), boost.notes) == expected
    assert boost.level == level and dictionary == before


def test_mindspores_whole_table_has_no_effect_and_says_so():
    boost = read_boost("O0", WHOLE)
    assert boost.on == () and dict(boost.values) == {}
    (note,) = boost.notes
    for section in SECTIONS.keys() - {"grad_accumulation"}:
        assert all(f"{name} (" in note for name in WHOLE[section])


@pytest.mark.parametrize(("name", "value"), [("n_component", 5), ("n_components", 5), ("rho", 0.3)])
def test_every_value_counts_under_either_name(name, value):
    words = manual("dim_reduce", dim_reduce={name: value})
    assert read_boost("O1", words).values[OLD_NAMES.get(name, name)] == value


def test_the_levels_modes_and_names_are_mindspores():
    from mindspore.boost import boost

    for level, table in boost._boost_config_level.items():
        assert tuple(name for name in FUNCTIONS if table[name]) == LEVELS[level]
        assert table.keys() == set(FUNCTIONS)
    assert boost._boost_config_level.keys() == LEVELS.keys()
    assert tuple(boost._boost_config_mode) == MODES
    known = {name for keys in SECTIONS.values() for name in keys}
    assert set(boost.AutoBoost._boost_config_func_map) == known


def test_a_refusal_says_what_is_on_and_what_to_give():
    words = manual("adasum", "grad_freeze", "loss_scale_group")
    with pytest.raises(InputError) as error:
        read_boost("O2", words)
    text = str(error.value)
    assert text.startswith(
        "boost_config_dict turns on grad_freeze, adasum and loss_scale_group; labkit has no "
        "loss_scale_group. For grad_freeze and adasum alone give boost_config_dict="
    )
    shown = eval(re.search(r"boost_config_dict=(\{.*\})\.", text)[1])
    assert read_boost("O2", shown).on == ("grad_freeze", "adasum")


def test_no_call_changes_another():
    read_boost("O1", DIM_REDUCE)
    with pytest.raises(InputError):
        read_boost("O1", manual("loss_scale_group"))
    assert read_boost("O1", ACCUMULATION).on == ("grad_accumulation",)
    assert LEVELS["O1"] == ("less_bn", "grad_freeze")


# Section, setting, the nearest wrong value, the nearest right value, what is expected.
ENDS = [
    ("dim_reduce", "rho", 1, 0.999, "a finite number > 0 and < 1"),
    ("dim_reduce", "sigma", 0, 1e-9, "a finite number > 0 and < 1"),
    ("dim_reduce", "gamma", 1, 0, "a finite number >= 0 and < 1"),
    ("dim_reduce", "alpha", -1e-9, 0, "a finite number >= 0"),
    ("dim_reduce", "n_component", 0, 1, "an integer >= 1"),
    ("dim_reduce", "n_components", 2.5, 2, "an integer >= 1"),
    ("dim_reduce", "pca_mat_path", "", "x", "a path or None"),
    ("dim_reduce", "weight_load_dir", 0, None, "a path or None"),
    ("dim_reduce", "timeout", 0, 0.1, "a finite number > 0"),
    ("common", "device_num", 0, 1, "an integer >= 1"),
    ("common", "device_number", "8", 8, "an integer >= 1"),
    ("common", "gradient_split_groups", [], [0], "a list of integers >= 0"),
    ("common", "gradient_split_groups", [50, -1], (50,), "an integer >= 0"),
    ("less_bn", "fn_flag", 1, True, "True or False"),
    ("less_bn", "gc_flag", None, False, "True or False"),
    ("grad_freeze", "param_groups", 0, 1, "an integer >= 1"),
    ("grad_freeze", "freeze_type", 2, 0, "an integer >= 0 and <= 1"),
    ("grad_freeze", "freeze_p", 1, 0.999, "a finite number >= 0 and < 1"),
    ("grad_freeze", "total_steps", 0.5, 1, "an integer >= 1"),
    ("grad_accumulation", "grad_accumulation_step", 0, 1, "an integer >= 1"),
]


@pytest.mark.parametrize(("section", "name", "wrong", "right", "expected"), ENDS)
def test_values_are_checked_where_the_function_is_off_too(section, name, wrong, right, expected):
    with pytest.raises(InputError, match=f"^{name} of {section}: expected {expected}, got "):
        read_boost("O1", manual(**{section: {name: wrong}}))
    read_boost("O1", manual(**{section: {name: right}}))


REFUSED = [
    ("O3", None, "boost_level: expected one of 'O0', 'O1', 'O2', got 'O3'"),
    (["O1"], None, "boost_level: expected one of 'O0', 'O1', 'O2', got ['O1']"),
    ("O1", {"boost": {"mode": "enable_all"}}, "labkit has no loss_scale_group. For less_bn, grad"),
    ("O1", manual("loss_scale_group"), "loss_scale_group. missing='skip' leaves off what is not"),
    ("O1", manual("less_bn", "dim_reduce"), "less_bn and dim_reduce are both True"),
    ("O1", manual("grad_freeze", "dim_reduce"), "grad_freeze and dim_reduce are both True"),
    ("O1", manual("loss_scale_group"), "turns on loss_scale_group; labkit has no loss_scale_group"),
    (
        "O0",
        DIM_REDUCE,
        "boost_level: expected 'O1' or 'O2' where the dictionary turns on dim_reduce",
    ),
    ("O1", manual("adasum", "dim_reduce"), "adasum and dim_reduce are both True"),
    ("O0", {"boost": {"adasum": True}}, "adasum of boost is True, and mode 'auto' takes what boo"),
    ("O2", {"boost": {"less_bn": False}}, "less_bn of boost is False, and mode 'auto'"),
    ("O1", {"boost": {"mode": "disable_all", "adasum": True}}, "'disable_all' takes what the mode"),
    ("O1", {"boost": {"mode": "enable_all", "adasum": False}}, "adasum of boost is False"),
    ("O1", "boost.json", "boost_config_dict: expected a dictionary of sections, got a str"),
    ("O1", {"boosts": {}}, "unknown section of boost_config_dict 'boosts'"),
    ("O1", {"dim_reduce": None}, "boost_config_dict['dim_reduce']: expected a dictionary of sett"),
    ("O1", {"boost": {"mode": "Manual"}}, "unknown boost mode 'Manual'"),
    ("O1", {"boost": {"dimreduce": True}}, "Did you mean 'dim_reduce'?"),
    ("O1", {"boost": {"adasum": 1}}, "adasum of boost: expected True or False, got 1"),
    ("O1", manual(dim_reduce={5: 1}), "unknown setting 5 of dim_reduce"),
    ("O1", manual(common={"rho": 0.5}), "rho belongs to dim_reduce."),
    ("O1", manual(dim_reduce={"device_num": 8}), "device_num belongs to common."),
    (
        "O1",
        manual("dim_reduce", dim_reduce={"n_component": 8, "n_components": 8}),
        "dim_reduce says n_components twice, under two names",
    ),
    ("O1", manual("grad_accumulation"), "grad_accumulation_step was not given"),
    (
        "O1",
        ACCUMULATION | {"common": {"grad_accumulation_step": 2}},
        "grad_accumulation_step is 4 and 2 in two sections",
    ),
]


@pytest.mark.parametrize(("level", "dictionary", "message"), REFUSED)
def test_what_is_refused(level, dictionary, message):
    with pytest.raises(InputError, match=re.escape(message)):
        read_boost(level, dictionary)


def test_missing_is_one_of_two():
    with pytest.raises(InputError, match="missing: expected one of 'refuse', 'skip', got 'warn'"):
        read_boost("O2", missing="warn")
    with pytest.raises(InputError, match="adasum and dim_reduce are both True"):
        read_boost("O1", {"boost": {"mode": "enable_all"}}, missing="skip")


SETTINGS = [(section, name) for section, keys in SECTIONS.items() for name in keys] + [
    ("boost", name) for name in ("mode", *FUNCTIONS)
]
ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 70),
    st.floats(),
    st.text(max_size=3),
    st.sampled_from(["manual", "auto", "enable_all", "disable_all"]),
    st.lists(st.integers(-1, 3), max_size=2),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=1),
    st.just(object()),
)
NAMES = ANYTHING.filter(lambda value: not isinstance(value, list | dict))
DICTIONARIES = st.dictionaries(
    st.sampled_from(["boost", *SECTIONS, "adasum"]), st.dictionaries(NAMES, ANYTHING)
)
OF_SECTIONS = st.fixed_dictionaries(
    {},
    optional={
        section: st.fixed_dictionaries({}, optional=dict.fromkeys(keys, ANYTHING))
        for section, keys in SECTIONS.items()
    },
)


@given(st.sampled_from([*LEVELS, "O3", None, []]), st.data())
def test_whatever_comes_is_read_or_refused(level, data):
    """InputError is the only error, and nothing is turned on that the input does not ask for."""
    # In a single strategy, the nine kinds of ANYTHING would crowd out the others.
    dictionary = data.draw(data.draw(st.sampled_from([ANYTHING, DICTIONARIES, OF_SECTIONS])))
    try:
        boost = read_boost(level, dictionary)
    except InputError:
        return
    assert boost.on in ((), LEVELS.get(level)) and level in LEVELS


@given(
    st.sampled_from(list(LEVELS)),
    st.fixed_dictionaries({}, optional=dict.fromkeys(FUNCTIONS, st.booleans())),
)
def test_manual_turns_on_what_it_says_or_says_why_not(level, asked):
    on = {name for name, value in asked.items() if value}
    lacking = on & {"loss_scale_group"}
    crossed = "dim_reduce" in on and on & {"less_bn", "grad_freeze", "adasum"}
    try:
        boost = read_boost(level, ACCUMULATION | {"boost": {"mode": "manual"} | asked})
    except InputError:
        assert lacking or crossed or (level == "O0" and on)
    else:
        assert set(boost.on) == on and not lacking


@given(st.sampled_from(SETTINGS), st.data())
def test_a_dropped_letter_is_never_taken_and_is_led_back(setting, data):
    section, name = setting
    place = data.draw(st.integers(0, len(name) - 1))
    typo = name[:place] + name[place + 1 :]
    known = {key for each, key in SETTINGS if each == section} | OLD_NAMES.keys()
    assume(typo not in known and len(name) > 3)
    with pytest.raises(InputError) as error:
        read_boost("O1", {section: {typo: True}})
    near = re.search(r"Did you mean '(\w+)'\?", str(error.value))
    assert near and OLD_NAMES.get(near[1], near[1]) == name
