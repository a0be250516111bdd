"""``boost_step``: MindSpore's ``boost_level`` and ``boost_config_dict``, with the steps of labkit.

    adasum             AdasumStep; a server's ``device_number`` ranks are averaged first
    grad_accumulation  AccumulatedStep; with adasum or dim_reduce, their step's own micro-batches
    dim_reduce         SubspaceStep in the basis of the weights in ``weight_load_dir``

Source: ``mindspore.boost.AutoBoost`` (2.10.0), whose levels, modes, names and defaults these are,
and the tutorials of r1.6 and r1.7, which say ``device_num`` and ``n_component``. Departures:
- less_bn, grad_freeze and loss_scale_group are not part of labkit: a dictionary that turns one on
  is refused, and a level that does so in MindSpore leaves it off and says so;
- unknown names raise InputError; upstream ignores them silently, even the tutorials' two;
- every call reads its own dictionary (MindSpore only the first one of a process), and mode
  ``manual`` uses it alone (in MindSpore the level's functions stay on too);
- the caller's optimizer is kept (MindSpore's dim_reduce takes an SGD of rate 1 without decay);
- an epoch's last micro-batches are applied (in MindSpore they wait for the next epoch's).
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from mindspore import nn

from labkit.algorithms.adasum import AdasumStep
from labkit.algorithms.subspace import Basis, SubspaceStep, basis_from
from labkit.base.arguments import choice, flag, integer, number, wrong
from labkit.errors import InputError, refuse_unknown, warn
from labkit.ranks import cluster
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.state import check_optimizer
from labkit.steps.step import PlainStep, Step

FUNCTIONS = ("adasum", "grad_accumulation", "dim_reduce")
ABSENT = ("less_bn", "grad_freeze", "loss_scale_group")
LEVELS = {"O0": (), "O1": (), "O2": ("adasum",)}
MODES = ("auto", "manual", "enable_all", "disable_all")
# The tutorials' names, and MindSpore's current ones.
OLD_NAMES = {"device_num": "device_number", "n_component": "n_components"}
_SHOWN = ("rho", "sigma", "gamma", "alpha", "n_components", "trials")
# Setting of the section common -> the function that it serves.
_OF_COMMON = {
    "gradient_split_groups": "less_bn",
    "device_number": "adasum",
    "grad_accumulation_step": "grad_accumulation",
}
SECTIONS = {
    "boost": ("mode", *FUNCTIONS, *ABSENT),
    "common": tuple(_OF_COMMON),
    "less_bn": ("fn_flag", "gc_flag"),
    "grad_freeze": ("param_groups", "freeze_type", "freeze_p", "total_steps"),
    "grad_accumulation": ("grad_accumulation_step",),
    "dim_reduce": ("rho", "gamma", "alpha", "sigma", "n_components", "pca_mat_path")
    + ("weight_load_dir", "timeout"),
}
_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys((*FUNCTIONS, *ABSENT), flag),
    **dict.fromkeys(("device_number", "grad_accumulation_step", "n_components"), integer),
    **dict.fromkeys(("rho", "sigma"), partial(number, above=0, below=1)),
    "gamma": partial(number, at_least=0, below=1),
    "alpha": partial(number, at_least=0),
}


def boost_step(
    loss_net: nn.Cell,
    optimizer: nn.Optimizer,
    boost_level: str = "O0",
    boost_config_dict: Mapping[str, Mapping[str, Any]] | str | None = None,
    *,
    basis: Basis | None = None,
    **options: Any,
) -> Step:
    """Return the step that a level and a dictionary ask for, and print what is turned on.

    One notice says what differs from MindSpore and what has no effect.

    Args:
        loss_net, optimizer: as in every step.
        boost_level: ``O0`` and ``O1``: nothing; ``O2``: adasum.
        boost_config_dict: sections of settings, or None, "" or {} for none.
        basis: for dim_reduce, in place of pca_mat_path and weight_load_dir.
        **options: of the step: workers, on and scope of AdasumStep, trials (MindSpore uses 2) of
            SubspaceStep, and so on.

    Raises:
        InputError: if a name is unknown (with the nearest), a value invalid, a function not part of
            labkit, or settings contradict each other.

    >>> step = boost_step(loss_net, optimizer, "O1", {"boost": {"mode": "manual", "adasum": True}})
    """
    check_optimizer(optimizer)
    mode, on, values, notes = read(boost_level, boost_config_dict)
    if basis is not None and "dim_reduce" not in on:
        raise InputError("basis: expected None where dim_reduce is off, got a Basis")
    accumulated = "grad_accumulation" in on
    used = {"micro_steps": values.pop("grad_accumulation_step")} if accumulated else {}
    step: Step
    if "adasum" in on:
        used["node_size"] = node_size(values)
        step = AdasumStep(loss_net, optimizer, **used, **options)
    elif "dim_reduce" in on:
        path, folder = values.pop("pca_mat_path", None), values.pop("weight_load_dir", None)
        # 32 is MindSpore's default; those of the constants, which are left, are labkit's.
        components = values.pop("n_components", len(basis.matrix) if basis else 32)
        if basis is None:
            basis = basis_from(path, folder, optimizer.parameters, components)
        elif path is not None or folder is not None:
            raise InputError("basis: expected None where pca_mat_path or weight_load_dir is said")
        elif components != len(basis.matrix):
            raise wrong("n_components", components, f"{len(basis.matrix)}, the number in the basis")
        step = SubspaceStep(loss_net, optimizer, basis, **used, **values, **options)
        shown = {"n_components": components}
        if step.update.searches:
            shown |= vars(step.update.constants)
        used |= {name: shown[name] for name in _SHOWN if name in shown}
    else:
        kind: Any = AccumulatedStep if on else PlainStep
        step = kind(loss_net, optimizer, **used, **options)
    if notes:
        warn(f"boost_step: {'; '.join(notes)}")
    text = " and ".join(on) or "nothing is turned on, a plain step"
    if used:
        text += f" ({', '.join(f'{name} {value}' for name, value in used.items())})"
    print(f"labkit: boost_level {boost_level}, mode {mode}: {text}", flush=True)
    return step


def read(
    level: str, dictionary: Mapping[str, Mapping[str, Any]] | str | None = None
) -> tuple[str, tuple[str, ...], dict[str, Any], list[str]]:
    """Return (mode, functions that are on, their settings, what to warn of)."""
    choice("boost_level", level, LEVELS)
    sections: Any = {} if dictionary in (None, "") else dictionary
    if not isinstance(sections, Mapping):
        raise wrong("boost_config_dict", sections, "a dictionary of sections")
    asked: dict[str, Any] = {}
    said: list[tuple[str, str, Any]] = []  # function, its setting by its current name, value
    for section, content in sections.items():
        refuse_unknown("section of boost_config_dict", section, SECTIONS)
        if not isinstance(content, Mapping):
            raise wrong(f"boost_config_dict[{section!r}]", content, "a dictionary of settings")
        known = SECTIONS[section]
        names = [*known, *(old for old, new in OLD_NAMES.items() if new in known)]
        for name, value in content.items():
            refuse_unknown(f"setting of {section}", name, names)
            if (key := OLD_NAMES.get(name) or name) in _CHECKS:
                value = _CHECKS[key](f"{name} of {section}", value)
            if section == "boost":
                asked[key] = value
            else:
                said.append((_OF_COMMON[key] if section == "common" else section, key, value))
    mode = asked.pop("mode", "auto")
    refuse_unknown("boost mode", mode, MODES)
    on = _turned_on(level, mode, asked)
    notes, unused = [], []
    if mode == "auto" and level != "O0":
        left = "less_bn and grad_freeze, which are not part of labkit"
        notes.append(f"MindSpore's {level} also turns on {left}")
    values: dict[str, Any] = {}
    for function, name, value in said:
        if function not in on:
            unused.append(f"{name} ({function} is off)")
        elif name == "timeout":
            unused.append("timeout (no rank waits for a file)")
        elif values.setdefault(name, value) != value:
            raise InputError(f"{name} is {values[name]!r} and {value!r}; expected one of them")
    if unused:
        notes.append(f"without effect here: {', '.join(unused)}")
    if "grad_accumulation" in on and "grad_accumulation_step" not in values:
        raise InputError(
            "grad_accumulation is True and grad_accumulation_step was not given; expected an "
            "integer of micro-batches (MindSpore's default of 1 accumulates nothing)"
        )
    return mode, on, values, notes


def _turned_on(level: str, mode: str, asked: Mapping[str, bool]) -> tuple[str, ...]:
    """Return the functions to turn on."""
    every = (*FUNCTIONS, *ABSENT)
    by_mode = {"auto": LEVELS[level], "disable_all": (), "enable_all": every}
    on = by_mode.get(mode, tuple(name for name in every if asked.get(name)))
    if absent := [name for name in ABSENT if name in on or asked.get(name)]:
        raise InputError(
            f"boost_config_dict turns on {' and '.join(absent)}, not part of labkit; expected "
            f"{', '.join(FUNCTIONS)} alone, in mode 'manual'"
        )
    if crossed := [f"{name} of boost is {v}" for name, v in asked.items() if v != (name in on)]:
        raise InputError(
            f"{crossed[0]}, and mode {mode!r} does not look at it; expected mode 'manual'"
        )
    if {"adasum", "dim_reduce"} <= set(on):
        raise InputError(
            "adasum and dim_reduce are both True; expected one of them: dim_reduce moves all ranks "
            "by one common search"
        )
    if on and level == "O0":
        expected = f"'O1' or 'O2' where the dictionary turns on {' and '.join(on)}"
        raise wrong("boost_level", level, expected)
    return on


def node_size(values: Mapping[str, Any]) -> int:
    """Return how many ranks, those of a server, are averaged before Adasum."""
    ranks = cluster.rank_and_size()[1]
    # 8 is MindSpore's number, which has no Adasum on fewer than two servers.
    return values.get("device_number", 8 if ranks >= 16 and ranks % 8 == 0 else 1)
