"""What ``boost_level`` and ``boost_config_dict`` ask for: MindSpore's settings, checked.

Source: ``mindspore.boost.AutoBoost`` (2.10.0), whose levels, modes, names and defaults these are,
and the tutorials of r1.6 and r1.7, which say ``device_num`` and ``n_component``. Departures:
- unknown names raise InputError; upstream ignores them silently, even the tutorials' two;
- every call reads its own dictionary (in MindSpore the first one of a process applies to all later
  calls, and mode ``manual`` changes the table of levels);
- mode ``manual`` uses the dictionary alone (in MindSpore the level's own functions stay on too);
- grad_freeze works with the others (in MindSpore a frozen step silently has no Adasum);
- a function that labkit does not have is refused if it is turned on.

No MindSpore import.
"""

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from labkit.base import arguments
from labkit.errors import InputError, nearest, refuse_unknown

IMPLEMENTED = ("less_bn", "grad_freeze", "adasum", "grad_accumulation", "dim_reduce")
FUNCTIONS = (*IMPLEMENTED, "loss_scale_group")
LEVELS = {"O0": (), "O1": ("less_bn", "grad_freeze"), "O2": ("less_bn", "grad_freeze", "adasum")}
MODES = ("auto", "manual", "enable_all", "disable_all")
MISSING = ("refuse", "skip")


def _path(name: str, value: object) -> Any:
    if value is not None and not (isinstance(value, str | os.PathLike) and os.fspath(value)):
        raise arguments.wrong(name, value, "a path or None")
    return value


def _split_points(name: str, value: object) -> Any:
    points = value if isinstance(value, list | tuple) else [value]
    if not points:
        raise arguments.wrong(name, value, "a list of integers >= 0")
    for point in points:
        arguments.integer(name, point, 0)
    return list(points)


_count = arguments.integer
_inside = partial(arguments.number, above=0, below=1)
# Section -> setting -> check of (name, value), which returns the value.
SECTIONS: Mapping[str, Mapping[str, Callable[[str, Any], Any]]] = {
    "common": {
        "gradient_split_groups": _split_points,
        "device_number": _count,
        "grad_accumulation_step": _count,
    },
    "less_bn": {"fn_flag": arguments.flag, "gc_flag": arguments.flag},
    "grad_freeze": {
        "param_groups": _count,
        "freeze_type": partial(arguments.integer, at_least=0, at_most=1),
        "freeze_p": partial(arguments.number, at_least=0, below=1),
        "total_steps": _count,
    },
    "grad_accumulation": {"grad_accumulation_step": _count},
    "dim_reduce": {
        "rho": _inside,
        "gamma": partial(arguments.number, at_least=0, below=1),
        "alpha": partial(arguments.number, at_least=0),
        "sigma": _inside,
        "n_components": _count,
        "pca_mat_path": _path,
        "weight_load_dir": _path,
        "timeout": partial(arguments.number, above=0),
    },
}
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "less_bn": {"fn_flag": True, "gc_flag": True},
    "grad_freeze": {"freeze_type": 1, "freeze_p": 0.7, "total_steps": 65536},
    "dim_reduce": {
        "rho": 0.55,
        "gamma": 0.9,
        "alpha": 0.001,
        "sigma": 0.4,
        "n_components": 32,
        "pca_mat_path": None,
        "weight_load_dir": None,
    },
}
# The tutorials' names, and MindSpore's current ones.
OLD_NAMES = {"device_num": "device_number", "n_component": "n_components"}
# Settings that have no effect in labkit even if their function is on, and why.
_MEANINGLESS = {
    "timeout": "no rank waits for a file",
    "gradient_split_groups": "it says how MindSpore fuses the sums over ranks",
}
# Setting of the section common -> the function that it serves.
_OF_COMMON = {
    "gradient_split_groups": "less_bn",
    "device_number": "adasum",
    "grad_accumulation_step": "grad_accumulation",
}


# In MindSpore dim_reduce silently turns the others off.
_NOT_BESIDE_DIM_REDUCE = {
    "adasum": "dim_reduce moves all ranks by one common search",
    "less_bn": "dim_reduce's basis is that of the network as it was",
    "grad_freeze": "dim_reduce moves all weights at once",
}


@dataclass(frozen=True)
class Boost:
    """What is turned on, and with which values.

    Attributes:
        level: the boost_level.
        mode: mode of the dictionary.
        on: functions of ``IMPLEMENTED`` that are on.
        values: setting -> value for the functions that are on: from the dictionary, or else the
            default.
        notes: what a caller should know, one sentence each.
    """

    level: str
    mode: str
    on: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@arguments.names_checked
def read_boost(
    boost_level: str = "O0",
    boost_config_dict: Mapping[str, Mapping[str, Any]] | str | None = None,
    *,
    missing: str = "refuse",
) -> Boost:
    """Return what a level and a dictionary turn on.

    Args:
        boost_level: O0: nothing, O1: less_bn and grad_freeze, O2: these and adasum.
        boost_config_dict: sections of settings, or None, "" or {} for none; it is not modified.
        missing: what happens to a function that labkit does not have: ``refuse``, or ``skip``,
            which leaves it off and notes it.

    Raises:
        InputError: if a level, mode, section or setting is unknown (with the nearest name), a value
            is invalid, labkit does not have a function, or settings contradict each other.
    """
    arguments.choice("boost_level", boost_level, LEVELS)
    arguments.choice("missing", missing, MISSING)
    sections = _checked_sections(boost_config_dict)
    mode, asked = _mode_and_asked(sections.pop("boost", {}))
    wanted, notes = _functions(boost_level, mode, asked)
    lacking = [name for name in wanted if name not in IMPLEMENTED]
    if lacking and missing == "refuse":
        raise InputError(_refusal(boost_level, mode, wanted, lacking))
    if lacking:
        notes.append(f"labkit has no {_and(lacking)}: left off")
    on = tuple(name for name in IMPLEMENTED if name in wanted)
    _refuse_contradictions(boost_level, on)
    values, unused = _values(sections, on)
    if unused:
        notes.append(f"without effect here: {', '.join(unused)}")
    return Boost(boost_level, mode, on, values, tuple(notes))


def _refuse_contradictions(level: str, on: Collection[str]) -> None:
    for other, why in _NOT_BESIDE_DIM_REDUCE.items():
        if {other, "dim_reduce"} <= set(on):
            raise InputError(f"{other} and dim_reduce are both True; expected one of them: {why}")
    if on and level == "O0":
        expected = f"'O1' or 'O2' where the dictionary turns on {_and(on)}"
        raise arguments.wrong("boost_level", level, expected)


def _checked_sections(dictionary: object) -> dict[str, Mapping[str, Any]]:
    """Return section -> setting, by its current name -> value; a copy."""
    if dictionary is None or dictionary == "":
        return {}
    if not isinstance(dictionary, Mapping):
        kind = type(dictionary).__name__
        raise InputError(f"boost_config_dict: expected a dictionary of sections, got a {kind}")
    sections = {}
    for section, content in dictionary.items():
        refuse_unknown("section of boost_config_dict", section, ("boost", *SECTIONS))
        if not isinstance(content, Mapping):
            name = f"boost_config_dict[{section!r}]"
            raise arguments.wrong(name, content, "a dictionary of settings")
        own = section == "boost"  # checked by _mode_and_asked
        sections[section] = content if own else _checked_settings(section, content)
    return sections


def _checked_settings(section: str, content: Mapping[Any, Any]) -> dict[str, Any]:
    known, checked = SECTIONS[section], {}
    for name, value in content.items():
        key = OLD_NAMES.get(name, name) if isinstance(name, str) else name
        if key not in known:
            raise InputError(_unknown_setting(section, name, known))
        if key in checked:
            raise InputError(f"{section} says {key} twice, under two names; expected one")
        checked[key] = known[key](f"{name} of {section}", value)
    return checked


def _unknown_setting(section: str, name: Any, known: Collection[str]) -> str:
    names = [*known, *(old for old, new in OLD_NAMES.items() if new in known)]
    elsewhere = [other for other, keys in SECTIONS.items() if OLD_NAMES.get(name, name) in keys]
    if elsewhere:
        hint = f" {name} belongs to {' or '.join(elsewhere)}."
    else:
        hint = nearest(name, names)
    return f"unknown setting {name!r} of {section}; expected one of: {', '.join(names)}.{hint}"


def _mode_and_asked(boost: Mapping[Any, Any]) -> tuple[str, dict[str, bool]]:
    """Return (mode, function -> what the dictionary says)."""
    mode, asked = "auto", {}
    for name, value in boost.items():
        refuse_unknown("setting of boost", name, ("mode", *FUNCTIONS))
        if name == "mode":
            refuse_unknown("boost mode", value, MODES)
            mode = value
        else:
            asked[name] = arguments.flag(f"{name} of boost", value)
    return mode, asked


def _functions(level: str, mode: str, asked: Mapping[str, bool]) -> tuple[list[str], list[str]]:
    """Return (the functions to turn on, notes)."""
    if mode == "manual":
        wanted = [name for name in FUNCTIONS if asked.get(name)]
        beside = [name for name in LEVELS[level] if name not in asked]
        # dim_reduce turns all others off, in MindSpore too.
        if not beside or not wanted or "dim_reduce" in wanted:
            return wanted, []
        return wanted, [
            f"mode 'manual' is the dictionary alone: {_and(beside)} of {level} stay off"
        ]
    by_mode = {"auto": LEVELS[level], "enable_all": FUNCTIONS, "disable_all": ()}
    of_mode = by_mode[mode]
    for name, value in asked.items():
        if value != (name in of_mode):
            whose = f"boost_level {level!r}" if mode == "auto" else "the mode"
            raise InputError(
                f"{name} of boost is {value}, and mode {mode!r} takes what {whose} says, "
                f"{not value}; expected mode 'manual'"
            )
    return list(of_mode), []


def _refusal(level: str, mode: str, wanted: Collection[str], lacking: Collection[str]) -> str:
    whose = "boost_config_dict"
    if mode != "manual":
        whose = f"boost_level {level!r}" if mode == "auto" else f"mode {mode!r}"
    text = f"{whose} turns on {_and(wanted)}; labkit has no {_and(lacking)}."
    kept = [name for name in wanted if name in IMPLEMENTED]
    if kept:
        chosen = {"mode": "manual"} | {name: True for name in kept}
        text += f" For {_and(kept)} alone give boost_config_dict={ {'boost': chosen} }."
    return f"{text} missing='skip' leaves off what is not there"


def _values(
    sections: Mapping[str, Mapping[str, Any]], on: Collection[str]
) -> tuple[dict[str, Any], list[str]]:
    """Return (settings of the functions that are on, texts of those without effect)."""
    values: dict[str, Any] = {}
    unused: list[str] = []
    for section, settings in sections.items():
        for name, value in settings.items():
            function = _OF_COMMON[name] if section == "common" else section
            if function not in on:
                unused.append(f"{name} ({function} is off)")
            elif name in _MEANINGLESS:
                unused.append(f"{name} ({_MEANINGLESS[name]})")
            elif name in values and values[name] != value:
                raise InputError(
                    f"{name} is {values[name]!r} and {value!r} in two sections; expected one"
                )
            else:
                values[name] = value
    for function in on:
        values = {**_DEFAULTS.get(function, {}), **values}
    if values.pop("gc_flag", False):
        unused.append("gc_flag (gradients are not centralised)")
    if "grad_accumulation" in on and "grad_accumulation_step" not in values:
        raise InputError(
            "grad_accumulation is True and grad_accumulation_step was not given; expected an "
            "integer of micro-batches (MindSpore's default of 1 accumulates nothing)"
        )
    return values, unused


def _and(names: Collection[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
