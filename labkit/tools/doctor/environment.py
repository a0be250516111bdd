"""Environment variables with which MindSpore, Python or the figures do not work as labs need."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from labkit.labs.presets import PRESETS
from labkit.tools.doctor.check import Finding

# What draws into the notebook. ipykernel names "module://matplotlib_inline.backend_inline".
_BACKENDS = ("inline", "ipympl", "nbagg", "notebook", "widget")
_LEVELS = ("0", "1", "2", "3", "4")
_NO_LEVEL = "MindSpore refuses to be imported: the level is 0 to 4"
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
    "GLOG_v": (_LEVELS.__contains__, _NO_LEVEL),
    "GLOG_stderrthreshold": (_LEVELS.__contains__, _NO_LEVEL),
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


def faults() -> dict[str, str]:
    """Return what each variable that is set to a wrong value breaks: variable -> consequence."""
    return {
        name: reason
        for name, (is_right, reason) in _RULES.items()
        if os.environ.get(name) and not is_right(os.environ[name])
    }


def environment(root: Path) -> Finding:
    """Check the variables that are known to break something."""
    if not (broken := faults()):
        return Finding(True, "no variable that breaks something")
    listed = "; ".join(f"{name}={os.environ[name]}: {why}" for name, why in broken.items())
    return Finding(False, listed, f"unset {' '.join(broken)}")
