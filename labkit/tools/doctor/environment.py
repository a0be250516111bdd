"""Environment variables with which MindSpore, Python or the figures do not work as labs need."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from labkit.labs.presets import PRESETS
from labkit.tools.doctor.check import Check

# What draws into the notebook. ipykernel names "module://matplotlib_inline.backend_inline".
_BACKENDS = ("inline", "ipympl", "nbagg", "notebook", "widget")


@dataclass(frozen=True)
class Fault:
    """A variable that is set to ``value``, and what comes of it."""

    variable: str
    value: str
    reason: str


# variable: (whether a value is all right, what happens otherwise; seen with MindSpore 2.10.0)
_RULES: Mapping[str, tuple[Callable[[str], bool], str]] = {
    "PYTHONOPTIMIZE": (
        lambda value: value == "0",
        "Python leaves out every assert, and with them the labs' proofs",
    ),
    "PYTHONIOENCODING": (
        lambda value: value.lower().replace("-", "").startswith(("utf8", ":")),
        "Python cannot print the characters of the labs' lines",
    ),
    "MPLBACKEND": (
        lambda value: value.lower() in _BACKENDS or value.startswith("module://"),
        "JupyterLab shows no figures",
    ),
    "GLOG_v": (
        lambda value: value in ("0", "1", "2", "3", "4"),
        "MindSpore refuses to be imported: the level is 0 to 4",
    ),
    "GLOG_stderrthreshold": (
        lambda value: value in ("0", "1", "2", "3", "4"),
        "MindSpore refuses to be imported: the level is 0 to 4",
    ),
    "MINDSPORE_DUMP_CONFIG": (
        os.path.isfile,
        "MindSpore looks for that file in every computation, and stops",
    ),
    "MS_SIMULATION_LEVEL": (
        lambda value: False,
        "MindSpore simulates: nothing is computed",
    ),
    "MS_DEV_PRECOMPILE_ONLY": (
        lambda value: value == "0",
        "MindSpore compiles only: nothing is computed",
    ),
    "LABKIT_PRESET": (
        lambda value: value in PRESETS,
        f"no preset of that name: {', '.join(PRESETS)}",
    ),
}


def faults(variables: Mapping[str, str] | None = None) -> list[Fault]:
    """Return what is wrong with the environment (default: this process')."""
    variables = os.environ if variables is None else variables
    return [
        Fault(name, variables[name], reason)
        for name, (is_right, reason) in _RULES.items()
        if variables.get(name) and not is_right(variables[name])
    ]


def environment() -> Check:
    """Check the variables that are known to break something."""
    found = faults()
    said = "; ".join(f"{one.variable}={one.value}: {one.reason}" for one in found)
    names = " ".join(one.variable for one in found)
    remedy = f"unset {names or 'what is named'}"
    return Check("Environment", not found, said or "no variable that breaks something", remedy)
