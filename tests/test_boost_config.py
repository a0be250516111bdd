"""MindSpore's boost words: what they turn on, and what is refused. No step is built here."""

import copy
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from labkit.errors import InputError
from labkit.upstream.boost_config import FUNCTIONS, LEVELS, MODES, read_boost
from labkit.upstream.boost_settings import OLD_NAMES, SECTIONS

# The first tutorial's dictionary, names and values as they stand there.
DIM_REDUCE = {
    "boost": {"mode": "manual", "dim_reduce": True},
    "common": {"device_num": 8},
    "dim_reduce": {
        "rho": 0.55,
        "gamma": 0.9,
        "alpha": 0.001,
        "sigma": 0.4,
        "n_component": 32,
        "pca_mat_path": None,
        "weight_load_dir": "./checkpoint_stage_1/checkpoint_pca",
        "timeout": 1200,
    },
}
# The Adasum tutorial's.
ADASUM = {
    "boost": {
        "mode": "manual",
        "less_bn": False,
        "grad_freeze": False,
        "adasum": True,
        "grad_accumulation": False,
        "dim_reduce": False,
    }
}
ACCUMULATION = {
    "boost": {"mode": "manual", "grad_accumulation": True},
    "grad_accumulation": {"grad_accumulation_step": 4},
}
# MindSpore's recommended format, 2.10.0, all of its table.
WHOLE = {
    "boost": {"mode": "auto"} | dict.fromkeys(FUNCTIONS, False),
    "common": {"gradient_split_groups": [50, 100], "device_number": 8},
    "less_bn": {"fn_flag": True, "gc_flag": True},
    "grad_freeze": {"param_groups": 10, "freeze_type": 1, "freeze_p": 0.7, "total_steps": 65536},
    "dim_reduce": {
        "rho": 0.55,
        "gamma": 0.9,
        "alpha": 0.001,
        "sigma": 0.4,
        "n_components": 32,
        "pca_mat_path": None,
        "weight_load_dir": None,
        "timeout": 1800,
    },
}


def manual(*on, **sections):
    return {"boost": {"mode": "manual"} | dict.fromkeys(on, True)} | sections


class TestTheTutorialsDictionaries:
    @pytest.mark.parametrize("level", ["O1", "O2"])
    def test_dim_reduce(self, level):
        found = read_boost(level, DIM_REDUCE)
        assert (found.level, found.mode, found.on) == (level, "manual", ("dim_reduce",))
        assert dict(found.values) == {
            "rho": 0.55,
            "gamma": 0.9,
            "alpha": 0.001,
            "sigma": 0.4,
            "n_components": 32,
            "pca_mat_path": None,
            "weight_load_dir": "./checkpoint_stage_1/checkpoint_pca",
        }
        assert found.notes == (
            "without effect here: device_number (adasum is off), timeout (no rank waits for a "
            "file)",
        )

    def test_both_names_mean_the_same(self):
        today = copy.deepcopy(DIM_REDUCE)
        today["common"] = {"device_number": 8}
        today["dim_reduce"]["n_components"] = today["dim_reduce"].pop("n_component")
        assert read_boost("O1", today) == read_boost("O1", DIM_REDUCE)

    @pytest.mark.parametrize(("name", "value"), [("n_component", 5), ("rho", 0.3), ("alpha", 0)])
    def test_every_value_counts(self, name, value):
        changed = copy.deepcopy(DIM_REDUCE)
        changed["dim_reduce"][name] = value
        assert read_boost("O1", changed).values[OLD_NAMES.get(name, name)] == value

    def test_adasum(self):
        found = read_boost("O2", ADASUM)
        assert (found.on, dict(found.values), found.notes) == (("adasum",), {}, ())
        found = read_boost("O2", ADASUM | {"common": {"device_num": 8}})
        assert dict(found.values) == {"device_number": 8} and found.notes == ()

    @pytest.mark.parametrize("section", ["grad_accumulation", "common"])
    def test_accumulation(self, section):
        given_ = manual("grad_accumulation", **{section: {"grad_accumulation_step": 4}})
        found = read_boost("O1", given_)
        assert found.on == ("grad_accumulation",)
        assert dict(found.values) == {"grad_accumulation_step": 4}

    def test_mindspores_whole_table(self):
        found = read_boost("O0", WHOLE)
        assert found.on == () and dict(found.values) == {}
        (note,) = found.notes
        for section in SECTIONS.keys() - {"grad_accumulation"}:
            for name in WHOLE[section]:
                assert f"{name} (" in note

    def test_mindspores_defaults_stand_for_what_is_not_said(self):
        found = read_boost("O1", manual("dim_reduce")).values
        assert found == {n: v for n, v in WHOLE["dim_reduce"].items() if n != "timeout"}


class TestLevelsAndModes:
    def test_the_levels_are_mindspores(self):
        from mindspore.boost import boost

        for level, table in boost._boost_config_level.items():
            assert tuple(name for name in FUNCTIONS if table[name]) == LEVELS[level]
            assert table.keys() == set(FUNCTIONS)
        assert boost._boost_config_level.keys() == LEVELS.keys()
        assert tuple(boost._boost_config_mode) == MODES
        known = {name for keys in SECTIONS.values() for name in keys}
        assert set(boost.AutoBoost._boost_config_func_map) == known

    @pytest.mark.parametrize("none", [None, "", {}])
    def test_O0_alone_is_nothing(self, none):
        found = read_boost("O0", none)
        assert (found.on, dict(found.values), found.notes) == ((), {}, ())
        assert read_boost().on == ()

    def test_O1_alone_says_what_it_would_turn_on(self):
        with pytest.raises(InputError) as error:
            read_boost("O1")
        assert str(error.value) == (
            "boost_level 'O1' turns on less_bn and grad_freeze; labkit has no less_bn and "
            "grad_freeze. missing='skip' leaves off what is not there"
        )

    @pytest.mark.parametrize("dictionary", [None, {"boost": {"mode": "auto"}}, {"common": {}}])
    def test_O2_alone_says_what_it_would_turn_on_and_what_to_give(self, dictionary):
        with pytest.raises(InputError) as error:
            read_boost("O2", dictionary)
        text = str(error.value)
        assert text.startswith(
            "boost_level 'O2' turns on less_bn, grad_freeze and adasum; labkit has no less_bn and "
            "grad_freeze. For adasum alone give boost_config_dict="
        )
        shown = eval(re.search(r"boost_config_dict=(\{.*\})\.", text)[1])
        assert read_boost("O2", shown).on == ("adasum",)

    def test_O2_without_what_is_missing_is_adasum(self):
        found = read_boost("O2", missing="skip")
        assert found.on == ("adasum",)
        assert found.notes == ("labkit has no less_bn and grad_freeze: left off",)
        assert read_boost("O1", missing="skip").on == ()

    @pytest.mark.parametrize("level", ["O1", "O2"])
    def test_manual_is_the_dictionary_alone(self, level):
        found = read_boost(level, ACCUMULATION)
        assert found.on == ("grad_accumulation",)
        beside = "less_bn and grad_freeze" if level == "O1" else "less_bn, grad_freeze and adasum"
        assert found.notes == (
            f"mode 'manual' is the dictionary alone: {beside} of {level} stay off",
        )
        assert read_boost(level, manual()).on == ()

    @pytest.mark.parametrize("level", LEVELS)
    def test_disable_all(self, level):
        assert read_boost(level, {"boost": {"mode": "disable_all"}}).on == ()

    def test_enable_all_is_refused_by_name(self):
        dictionary = {"boost": {"mode": "enable_all"}}
        with pytest.raises(InputError, match="labkit has no less_bn, grad_freeze and loss_scale_"):
            read_boost("O1", dictionary)
        with pytest.raises(InputError, match="adasum and dim_reduce are both True"):
            read_boost("O1", dictionary, missing="skip")

    @pytest.mark.parametrize("name", ["less_bn", "grad_freeze", "loss_scale_group"])
    def test_what_labkit_has_not_is_refused_when_true_and_accepted_when_false(self, name):
        assert read_boost("O1", manual("adasum") | {"boost": {"mode": "manual", name: False}})
        with pytest.raises(InputError, match=f"turns on {name}; labkit has no {name}"):
            read_boost("O1", manual(name))

    def test_O0_with_something_on_is_refused(self):
        with pytest.raises(InputError, match="boost_level is 'O0'.*turns on dim_reduce"):
            read_boost("O0", DIM_REDUCE)

    @pytest.mark.parametrize(
        ("level", "boost", "message"),
        [
            ("O0", {"adasum": True}, "adasum of boost is True, and mode 'auto' takes what boost_l"),
            ("O2", {"mode": "auto", "less_bn": False}, "less_bn of boost is False, and mode 'auto"),
            ("O1", {"mode": "disable_all", "adasum": True}, "mode 'disable_all' takes what the mo"),
            ("O1", {"mode": "enable_all", "adasum": False}, "adasum of boost is False"),
        ],
    )
    def test_contradictions_are_refused(self, level, boost, message):
        with pytest.raises(InputError, match=re.escape(message)):
            read_boost(level, {"boost": boost})

    def test_two_searches_are_refused(self):
        with pytest.raises(InputError, match="adasum and dim_reduce are both True"):
            read_boost("O1", manual("adasum", "dim_reduce"))

    @pytest.mark.parametrize("other", ["adasum", "dim_reduce"])
    def test_accumulation_goes_with_each(self, other):
        sections = {"grad_accumulation": {"grad_accumulation_step": 2}}
        found = read_boost("O1", manual(other, "grad_accumulation", **sections))
        assert set(found.on) == {other, "grad_accumulation"}
        assert found.values["grad_accumulation_step"] == 2


class TestEveryCallHasItsOwn:
    def test_the_dictionary_stays_as_it_is(self):
        given_ = copy.deepcopy(WHOLE)
        read_boost("O0", given_)
        assert given_ == WHOLE
        given_ = copy.deepcopy(DIM_REDUCE)
        values = read_boost("O1", given_).values
        given_["dim_reduce"]["rho"] = 0.1
        assert values["rho"] == 0.55

    def test_no_call_changes_another(self):
        read_boost("O1", DIM_REDUCE)
        with pytest.raises(InputError):
            read_boost("O1", manual("less_bn"))
        assert read_boost("O1", ACCUMULATION).on == ("grad_accumulation",)
        assert LEVELS["O1"] == ("less_bn", "grad_freeze")


BAD = {
    "rho": [0, 1, -0.5, float("nan"), "0.55", True, None],
    "sigma": [0, 1, float("inf"), None],
    "gamma": [1, -0.1, "x"],
    "alpha": [-1e-9, float("inf"), False],
    "n_component": [0, -1, 2.0, True, "32", None],
    "n_components": [0, 2.5],
    "pca_mat_path": ["", 5, False],
    "weight_load_dir": [b"", 0],
    "timeout": [0, -1, "1200", None],
}


class TestRefused:
    @pytest.mark.parametrize(("name", "value"), [(n, v) for n, vs in BAD.items() for v in vs])
    def test_values_that_are_not_right(self, name, value):
        with pytest.raises(InputError, match=f"^{name} of dim_reduce is .*; expected "):
            read_boost("O1", manual("dim_reduce", dim_reduce={name: value}))

    @pytest.mark.parametrize(
        ("section", "name", "value"),
        [
            ("common", "device_num", 0),
            ("common", "device_number", "8"),
            ("common", "gradient_split_groups", []),
            ("common", "gradient_split_groups", "50"),
            ("common", "gradient_split_groups", [50, -1]),
            ("less_bn", "fn_flag", 1),
            ("grad_freeze", "param_groups", 0),
            ("grad_freeze", "freeze_type", 2),
            ("grad_freeze", "freeze_p", 1.5),
            ("grad_freeze", "total_steps", 0.5),
            ("grad_accumulation", "grad_accumulation_step", 0),
            ("grad_accumulation", "grad_accumulation_step", True),
        ],
    )
    def test_values_are_checked_where_the_function_is_off_too(self, section, name, value):
        with pytest.raises(InputError, match=f"^{name} of {section} is "):
            read_boost("O1", manual(**{section: {name: value}}))

    def test_the_ends_of_ranges_are_right(self):
        ends = {"alpha": 0, "gamma": 0, "n_component": 1, "rho": 0.999, "timeout": 0.1}
        found = read_boost("O1", manual("dim_reduce", dim_reduce=ends)).values
        assert (found["alpha"], found["gamma"], found["n_components"]) == (0, 0, 1)
        frozen = {"param_groups": 1, "freeze_type": 0, "freeze_p": 1, "total_steps": 1}
        common = {"device_num": 1, "grad_accumulation_step": 1, "gradient_split_groups": [0]}
        given_ = manual("grad_accumulation", common=common, grad_freeze=frozen)
        assert read_boost("O1", given_).values == {"grad_accumulation_step": 1}

    @pytest.mark.parametrize("points", [50, [50, 100], (50,)])
    def test_a_single_split_point_is_right(self, points):
        """MindSpore raises TypeError for the number that its own check lets pass."""
        assert read_boost("O1", manual(common={"gradient_split_groups": points})).on == ()

    @pytest.mark.parametrize(
        ("level", "dictionary", "message"),
        [
            ("O3", None, "unknown boost_level 'O3'; expected one of: O0, O1, O2."),
            (["O1"], None, "unknown boost_level ['O1']"),
            ("O1", "boost.json", "boost_config_dict is a str; expected a dictionary of sections"),
            ("O1", [("boost", {})], "boost_config_dict is a list"),
            ("O1", {"boosts": {}}, "unknown section of boost_config_dict 'boosts'"),
            ("O1", {"dim_reduce": None}, "boost_config_dict['dim_reduce'] is None; expected a dic"),
            ("O1", {"boost": True}, "boost_config_dict['boost'] is True"),
            ("O1", {"boost": {"mode": "Manual"}}, "unknown boost mode 'Manual'"),
            ("O1", {"boost": {"mode": None}}, "unknown boost mode None"),
            ("O1", {"boost": {"dimreduce": True}}, "Did you mean 'dim_reduce'?"),
            ("O1", manual(dim_reduce={"rho_": 1}), "unknown setting 'rho_' of dim_reduce"),
            ("O1", manual(dim_reduce={5: 1}), "unknown setting 5 of dim_reduce"),
            ("O1", manual(common={"rho": 0.5}), "rho belongs to dim_reduce."),
            ("O1", manual(dim_reduce={"device_num": 8}), "device_num belongs to common."),
            ("O1", {"boost": {"adasum": 1}}, "adasum of boost is 1; expected True or False"),
            (
                "O1",
                manual("dim_reduce", dim_reduce={"n_component": 8, "n_components": 8}),
                "dim_reduce says n_components twice, under two names",
            ),
            (
                "O1",
                manual("grad_accumulation"),
                "grad_accumulation is True and grad_accumulation_step was not given",
            ),
            (
                "O1",
                ACCUMULATION | {"common": {"grad_accumulation_step": 2}},
                "grad_accumulation_step is 4 and 2 in two sections",
            ),
        ],
    )
    def test_other_things_that_are_not_right(self, level, dictionary, message):
        with pytest.raises(InputError, match=re.escape(message)):
            read_boost(level, dictionary)

    def test_missing_is_one_of_two(self):
        with pytest.raises(InputError, match="unknown missing 'warn'; expected one of: refuse, sk"):
            read_boost("O2", missing="warn")


SETTINGS = [(section, name) for section, keys in SECTIONS.items() for name in keys] + [
    ("boost", name) for name in ("mode", *FUNCTIONS)
]


def is_name(value):
    """Whether a dictionary can have it for a key."""
    return not isinstance(value, list | dict)


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
DICTIONARIES = st.dictionaries(
    st.sampled_from(["boost", *SECTIONS, "adasum"]),
    st.dictionaries(ANYTHING.filter(is_name), ANYTHING),
)
VALUES = st.fixed_dictionaries(
    {},
    optional={
        section: st.fixed_dictionaries({}, optional=dict.fromkeys(keys, ANYTHING))
        for section, keys in SECTIONS.items()
    },
)


@given(st.sampled_from([*LEVELS, "O3", None, []]), st.data())
def test_whatever_comes_is_read_or_refused(level, data):
    """No other error than InputError, and nothing is turned on without a word for it."""
    # As one strategy, the nine kinds of ANYTHING would crowd out the others.
    dictionary = data.draw(data.draw(st.sampled_from([ANYTHING, DICTIONARIES, VALUES])))
    try:
        found = read_boost(level, dictionary)
    except InputError:
        return
    assert found.on == () and level in LEVELS


@given(
    st.sampled_from(list(LEVELS)),
    st.fixed_dictionaries({}, optional=dict.fromkeys(FUNCTIONS, st.booleans())),
)
def test_manual_turns_on_what_it_says_or_says_why_not(level, asked):
    on = {name for name, value in asked.items() if value}
    lacking = on & {"less_bn", "grad_freeze", "loss_scale_group"}
    try:
        found = read_boost(level, ACCUMULATION | {"boost": {"mode": "manual"} | asked})
    except InputError:
        assert lacking or {"adasum", "dim_reduce"} <= on or (level == "O0" and on)
    else:
        assert set(found.on) == on and not lacking


@given(st.sampled_from(SETTINGS), st.data())
def test_a_typo_is_never_taken_and_is_led_back(setting, data):
    """One letter dropped, doubled or swapped with the next: refused, and the right name is said."""
    section, name = setting
    place = data.draw(st.integers(0, len(name) - 2))
    kind = data.draw(st.sampled_from(["dropped", "doubled", "swapped"]))
    head, one, two, tail = name[:place], name[place], name[place + 1], name[place + 2 :]
    typo = {
        "dropped": head + two + tail,
        "doubled": head + one + one + two + tail,
        "swapped": head + two + one + tail,
    }[kind]
    known = {key for one, key in SETTINGS if one == section} | OLD_NAMES.keys()
    assume(typo not in known and len(name) > 3)
    with pytest.raises(InputError) as error:
        read_boost("O1", {section: {typo: True}})
    near = re.search(r"Did you mean '(\w+)'\?", str(error.value))
    assert near and OLD_NAMES.get(near[1], near[1]) == name
