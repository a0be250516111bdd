"""What ``boost_level`` and ``boost_config_dict`` ask for: MindSpore's settings, checked.

Source: ``mindspore.boost.AutoBoost`` (2.10.0), whose levels, modes, names and defaults these are,
and the tutorials of r1.6 and r1.7, which say ``device_num`` and ``n_component``. Departures:
- less_bn, grad_freeze and loss_scale_group are not part of labkit: a dictionary that turns one on
  is refused, and a level that does so in MindSpore leaves it off and says so;
- unknown names raise InputError; upstream ignores them silently, even the tutorials' two;
- every call reads its own dictionary (in MindSpore the first one of a process applies to all later
  calls, and mode ``manual`` changes the table of levels);
- mode ``manual`` uses the dictionary alone (in MindSpore the level's own functions stay on too).

No MindSpore import.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from labkit.base import arguments
from labkit.errors import InputError, refuse_unknown

FUNCTIONS = ("adasum", "grad_accumulation", "dim_reduce")
ABSENT = ("less_bn", "grad_freeze", "loss_scale_group")
LEVELS = {"O0": (), "O1": (), "O2": ("adasum",)}
MODES = ("auto", "manual", "enable_all", "disable_all")
_LEFT_OFF = "MindSpore's {} also turns on less_bn and grad_freeze, which are not part of labkit"


def _path(name: str, value: object) -> Any:
    if value is not None and not (isinstance(value, str | os.PathLike) and os.fspath(value)):
        raise arguments.wrong(name, value, "a path or None")
    return value


def _no_effect(name: str, value: object) -> Any:
    return value


_count = arguments.integer
_inside = partial(arguments.number, above=0, below=1)
# Section -> setting -> check of (name, value), which returns the value.
SECTIONS: Mapping[str, Mapping[str, Callable[[str, Any], Any]]] = {
    "common": {
        "gradient_split_groups": _no_effect,
        "device_number": _count,
        "grad_accumulation_step": _count,
    },
    "less_bn": dict.fromkeys(("fn_flag", "gc_flag"), _no_effect),
    "grad_freeze": dict.fromkeys(
        ("param_groups", "freeze_type", "freeze_p", "total_steps"), _no_effect
    ),
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
_OF_DIM_REDUCE = {
    "rho": 0.55,
    "gamma": 0.9,
    "alpha": 0.001,
    "sigma": 0.4,
    "n_components": 32,
    "pca_mat_path": None,
    "weight_load_dir": None,
}
# The tutorials' names, and MindSpore's current ones.
OLD_NAMES = {"device_num": "device_number", "n_component": "n_components"}
# Setting of the section common -> the function that it serves.
_OF_COMMON = {
    "gradient_split_groups": "less_bn",
    "device_number": "adasum",
    "grad_accumulation_step": "grad_accumulation",
}


@dataclass(frozen=True)
class Boost:
    """What is turned on, and with which values.

    Attributes:
        level: the boost_level.
        mode: mode of the dictionary.
        on: those of ``FUNCTIONS`` that are on.
        values: setting -> value for the functions that are on: from the dictionary, or else the
            default.
        notes: what a caller should know, one sentence each.
    """

    level: str
    mode: str
    on: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def read_boost(
    boost_level: str = "O0",
    boost_config_dict: Mapping[str, Mapping[str, Any]] | str | None = None,
) -> Boost:
    """Return what a level and a dictionary turn on.

    Args:
        boost_level: ``O0`` and ``O1``: nothing; ``O2``: adasum.
        boost_config_dict: sections of settings, or None, "" or {} for none; it is not modified.

    Raises:
        InputError: if a level, mode, section or setting is unknown (with the nearest name), a value
            is invalid, labkit does not have a function, or settings contradict each other.
    """
    arguments.choice("boost_level", boost_level, LEVELS)
    sections = _checked_sections(boost_config_dict)
    asked = dict(sections.pop("boost", {}))
    mode = asked.pop("mode", "auto")
    on = _functions(boost_level, mode, asked)
    notes = [_LEFT_OFF.format(boost_level)] if mode == "auto" and boost_level != "O0" else []
    values, unused = _values(sections, on)
    if unused:
        notes.append(f"without effect here: {', '.join(unused)}")
    return Boost(boost_level, mode, on, values, tuple(notes))


def _checked_sections(dictionary: Any) -> dict[str, Mapping[str, Any]]:
    """Return section -> setting, by its current name -> value; a copy."""
    if dictionary is None or dictionary == "":
        return {}
    if not isinstance(dictionary, Mapping):
        kind = type(dictionary).__name__
        raise InputError(f"boost_config_dict: expected a dictionary of sections, got a {kind}")
    sections: dict[str, Mapping[str, Any]] = {}
    for section, content in dictionary.items():
        refuse_unknown("section of boost_config_dict", section, ("boost", *SECTIONS))
        if not isinstance(content, Mapping):
            name = f"boost_config_dict[{section!r}]"
            raise arguments.wrong(name, content, "a dictionary of settings")
        check = _checked_functions if section == "boost" else _checked_settings
        sections[section] = check(section, content)
    return sections


def _checked_functions(section: str, content: Mapping[Any, Any]) -> dict[str, Any]:
    for name, value in content.items():
        refuse_unknown("setting of boost", name, ("mode", *FUNCTIONS, *ABSENT))
        if name == "mode":
            refuse_unknown("boost mode", value, MODES)
        else:
            arguments.flag(f"{name} of boost", value)
    return dict(content)


def _checked_settings(section: str, content: Mapping[Any, Any]) -> dict[str, Any]:
    known, checked = SECTIONS[section], {}
    names = [*known, *(old for old, new in OLD_NAMES.items() if new in known)]
    for name, value in content.items():
        refuse_unknown(f"setting of {section}", name, names)
        key = OLD_NAMES.get(name, name)
        if key in checked:
            raise InputError(f"{section} says {key} twice, under two names; expected one")
        checked[key] = known[key](f"{name} of {section}", value)
    return checked


def _functions(level: str, mode: str, asked: Mapping[str, bool]) -> tuple[str, ...]:
    """Return the functions to turn on."""
    on = {"auto": LEVELS[level], "disable_all": (), "enable_all": (*FUNCTIONS, *ABSENT)}.get(mode)
    if on is None:
        on = tuple(name for name in (*FUNCTIONS, *ABSENT) if asked.get(name))
    absent = [name for name in ABSENT if name in on or asked.get(name)]
    if absent:
        raise InputError(
            f"boost_config_dict turns on {' and '.join(absent)}, not part of labkit; expected "
            f"{', '.join(FUNCTIONS)} alone, in mode 'manual'"
        )
    for name, value in asked.items():
        if value != (name in on):
            raise InputError(
                f"{name} of boost is {value}, and mode {mode!r} does not look at it; expected "
                "mode 'manual'"
            )
    if {"adasum", "dim_reduce"} <= set(on):
        raise InputError(
            "adasum and dim_reduce are both True; expected one of them: dim_reduce moves all ranks "
            "by one common search"
        )
    if on and level == "O0":
        expected = f"'O1' or 'O2' where the dictionary turns on {' and '.join(on)}"
        raise arguments.wrong("boost_level", level, expected)
    return on


def _values(
    sections: Mapping[str, Mapping[str, Any]], on: tuple[str, ...]
) -> tuple[dict[str, Any], list[str]]:
    """Return (settings of the functions that are on, texts of those without effect)."""
    values: dict[str, Any] = dict(_OF_DIM_REDUCE) if "dim_reduce" in on else {}
    said: set[str] = set()
    unused: list[str] = []
    for section, settings in sections.items():
        for name, value in settings.items():
            function = _OF_COMMON[name] if section == "common" else section
            if function not in on:
                unused.append(f"{name} ({function} is off)")
            elif name == "timeout":
                unused.append("timeout (no rank waits for a file)")
            elif name in said and values[name] != value:
                raise InputError(
                    f"{name} is {values[name]!r} and {value!r} in two sections; expected one"
                )
            else:
                values[name] = value
                said.add(name)
    if "grad_accumulation" in on and "grad_accumulation_step" not in values:
        raise InputError(
            "grad_accumulation is True and grad_accumulation_step was not given; expected an "
            "integer of micro-batches (MindSpore's default of 1 accumulates nothing)"
        )
    return values, unused
