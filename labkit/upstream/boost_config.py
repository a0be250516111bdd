"""What ``boost_level`` and ``boost_config_dict`` ask for: MindSpore's words, checked.

Source: ``mindspore.boost.AutoBoost`` (2.10.0), whose levels, modes, names and defaults these are,
and the tutorials of r1.6 and r1.7, which say ``device_num`` and ``n_component``. Departures:
- a name that is none is refused (there it is left out without a word, the tutorials' two as well);
- every call reads its own dictionary (there the first one of a process counts for all others, and
  mode ``manual`` writes into the table of levels);
- mode ``manual`` is the dictionary alone (there the level's own functions stay on beside it);
- a function that labkit does not have is refused where it is turned on.

No MindSpore import.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from labkit.errors import InputError, nearest, refuse_unknown
from labkit.upstream.boost_settings import MEANINGLESS, OF_COMMON, OLD_NAMES, SECTIONS

IMPLEMENTED = ("adasum", "grad_accumulation", "dim_reduce")
FUNCTIONS = ("less_bn", "grad_freeze", *IMPLEMENTED, "loss_scale_group")
LEVELS = {"O0": (), "O1": ("less_bn", "grad_freeze"), "O2": ("less_bn", "grad_freeze", "adasum")}
MODES = ("auto", "manual", "enable_all", "disable_all")
MISSING = ("refuse", "skip")


@dataclass(frozen=True)
class Boost:
    """What is turned on, and with which values.

    on      functions of ``IMPLEMENTED``
    values  setting -> value: what the dictionary says of the functions that are on, and the
            defaults of what it does not say
    notes   what a caller should be told, one sentence each
    """

    level: str
    mode: str
    on: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def read_boost(
    boost_level: str = "O0",
    boost_config_dict: Mapping[str, Mapping[str, Any]] | str | None = None,
    *,
    missing: str = "refuse",
) -> Boost:
    """Return what a level and a dictionary turn on.

    boost_level        O0: nothing, O1: less_bn and grad_freeze, O2: these and adasum
    boost_config_dict  sections of settings, or None, "" or {} for none; it stays as it is
    missing            what happens to a function that labkit does not have: ``refuse``, or
                       ``skip``, which leaves it off and notes it

    Raises ``InputError`` for unknown levels, modes, sections and settings (with the nearest name),
    for values that are not right, for a function that labkit does not have, and for words that
    contradict each other.
    """
    refuse_unknown("boost_level", boost_level, LEVELS)
    refuse_unknown("missing", missing, MISSING)
    sections = _checked_sections(boost_config_dict)
    mode, asked = _mode_and_asked(sections.pop("boost", {}))
    wanted, notes = _functions(boost_level, mode, asked)
    lacking = [name for name in wanted if name not in IMPLEMENTED]
    if lacking and missing == "refuse":
        raise InputError(_refusal(boost_level, mode, wanted, lacking))
    if lacking:
        notes.append(f"labkit has no {_and(lacking)}: left off")
    on = tuple(name for name in IMPLEMENTED if name in wanted)
    if {"adasum", "dim_reduce"} <= set(on):
        raise InputError(
            "adasum and dim_reduce are both True; expected one of them: dim_reduce moves all ranks "
            "by one common search"
        )
    if on and boost_level == "O0":
        raise InputError(
            f"boost_level is 'O0', which changes nothing, and the dictionary turns on {_and(on)}; "
            "expected boost_level 'O1' or 'O2'"
        )
    values, unused = _values(sections, on)
    if unused:
        notes.append(f"without effect here: {', '.join(unused)}")
    return Boost(boost_level, mode, on, values, tuple(notes))


def _checked_sections(given):
    """Return section -> setting of today's name -> value; a copy."""
    if given is None or given == "":
        return {}
    if not isinstance(given, Mapping):
        raise InputError(
            f"boost_config_dict is a {type(given).__name__}; expected a dictionary of sections"
        )
    sections = {}
    for section, content in given.items():
        refuse_unknown("section of boost_config_dict", section, ("boost", *SECTIONS))
        if not isinstance(content, Mapping):
            raise InputError(
                f"boost_config_dict[{section!r}] is {content!r}; expected a dictionary of settings"
            )
        own = section == "boost"  # looked at by _mode_and_asked
        sections[section] = content if own else _checked_settings(section, content)
    return sections


def _checked_settings(section, content):
    known, found = SECTIONS[section], {}
    for name, value in content.items():
        key = OLD_NAMES.get(name, name) if isinstance(name, str) else name
        if key not in known:
            raise InputError(_unknown_setting(section, name, known))
        if key in found:
            raise InputError(f"{section} says {key} twice, under two names; expected one")
        if not known[key].is_right(value):
            raise InputError(f"{name} of {section} is {value!r}; expected {known[key].expected}")
        found[key] = list(value) if isinstance(value, list) else value
    return found


def _unknown_setting(section, name, known):
    names = [*known, *(old for old, new in OLD_NAMES.items() if new in known)]
    elsewhere = [other for other, keys in SECTIONS.items() if OLD_NAMES.get(name, name) in keys]
    if elsewhere:
        hint = f" {name} belongs to {' or '.join(elsewhere)}."
    else:
        hint = nearest(name, names)
    return f"unknown setting {name!r} of {section}; expected one of: {', '.join(names)}.{hint}"


def _mode_and_asked(boost):
    """Return (mode, function -> truth that the dictionary gives)."""
    mode, asked = "auto", {}
    for name, value in boost.items():
        refuse_unknown("setting of boost", name, ("mode", *FUNCTIONS))
        if name == "mode":
            refuse_unknown("boost mode", value, MODES)
            mode = value
        elif not isinstance(value, bool):
            raise InputError(f"{name} of boost is {value!r}; expected True or False")
        else:
            asked[name] = value
    return mode, asked


def _functions(level, mode, asked):
    """Return (the functions that are to be on, notes)."""
    if mode == "manual":
        wanted = [name for name in FUNCTIONS if asked.get(name)]
        beside = [name for name in LEVELS[level] if name not in asked]
        # dim_reduce turns all others off, in MindSpore too.
        if not beside or not wanted or "dim_reduce" in wanted:
            return wanted, []
        return wanted, [
            f"mode 'manual' is the dictionary alone: {_and(beside)} of {level} stay off"
        ]
    wanted = {"auto": LEVELS[level], "enable_all": FUNCTIONS, "disable_all": ()}[mode]
    for name, value in asked.items():
        if value != (name in wanted):
            whose = f"boost_level {level!r}" if mode == "auto" else "the mode"
            raise InputError(
                f"{name} of boost is {value}, and mode {mode!r} takes what {whose} says, "
                f"{not value}; expected mode 'manual'"
            )
    return list(wanted), []


def _refusal(level, mode, wanted, lacking):
    if mode == "manual":
        whose = "boost_config_dict"
    else:
        whose = f"boost_level {level!r}" if mode == "auto" else f"mode {mode!r}"
    text = f"{whose} turns on {_and(wanted)}; labkit has no {_and(lacking)}."
    kept = [name for name in wanted if name in IMPLEMENTED]
    if kept:
        chosen = {"mode": "manual"} | {name: True for name in kept}
        text += f" For {_and(kept)} alone give boost_config_dict={ {'boost': chosen} }."
    return f"{text} missing='skip' leaves off what is not there"


def _values(sections, on):
    """Return (the settings of the functions that are on, texts of those without effect)."""
    values, unused = {}, []
    for section, settings in sections.items():
        for name, value in settings.items():
            function = _function_of(section, name)
            if name in MEANINGLESS:
                unused.append(f"{name} ({MEANINGLESS[name]})")
            elif function not in on:
                unused.append(f"{name} ({function} is off)")
            elif name in values and values[name] != value:
                raise InputError(
                    f"{name} is {values[name]!r} and {value!r} in two sections; expected one"
                )
            else:
                values[name] = value
    if "dim_reduce" in on:
        defaults = {name: key.default for name, key in SECTIONS["dim_reduce"].items()}
        values = {name: value for name, value in defaults.items() if name != "timeout"} | values
    if "grad_accumulation" in on and "grad_accumulation_step" not in values:
        raise InputError(
            "grad_accumulation is True and grad_accumulation_step was not given; expected a whole "
            "number of micro-batches (MindSpore's default of 1 accumulates nothing)"
        )
    return values, unused


def _function_of(section, name):
    """Return the function that a setting serves."""
    return OF_COMMON[name] if section == "common" else section


def _and(names: Collection[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
