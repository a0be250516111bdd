"""The settings of ``boost_config_dict``, section by section: what is right, and the defaults.

Source: ``mindspore.boost.AutoBoost`` (2.10.0). No MindSpore import.
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any


@dataclass(frozen=True)
class Setting:
    """One setting: what is right, in words and as a check; its default where it has one."""

    expected: str
    is_right: Callable[[Any], bool]
    default: Any = None


def _is_number(value):
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _whole(low, default=None):
    def is_right(value):
        return isinstance(value, Integral) and not isinstance(value, bool) and value >= low

    return Setting(f"a whole number >= {low}", is_right, default)


def _number(expected, is_right, default=None):
    return Setting(
        f"a finite number {expected}", lambda value: _is_number(value) and is_right(value), default
    )


def _truth():
    return Setting("True or False", lambda value: isinstance(value, bool))


def _path():
    def is_right(value):
        return value is None or (isinstance(value, str | os.PathLike) and bool(os.fspath(value)))

    return Setting("a path or None", is_right)


def _split_points():
    def is_right(value):
        points = value if isinstance(value, list | tuple) else [value]
        return bool(points) and all(_whole(0).is_right(point) for point in points)

    return Setting("a list of whole numbers >= 0", is_right)


SECTIONS = {
    "common": {
        "gradient_split_groups": _split_points(),
        "device_number": _whole(1),
        "grad_accumulation_step": _whole(1),
    },
    "less_bn": {"fn_flag": _truth(), "gc_flag": _truth()},
    "grad_freeze": {
        "param_groups": _whole(1),
        "freeze_type": Setting("0 or 1", lambda value: _whole(0).is_right(value) and value <= 1),
        "freeze_p": _number("from 0 to 1", lambda value: 0 <= value <= 1),
        "total_steps": _whole(1),
    },
    "grad_accumulation": {"grad_accumulation_step": _whole(1)},
    "dim_reduce": {
        "rho": _number("between 0 and 1", lambda value: 0 < value < 1, 0.55),
        "gamma": _number("from 0 to below 1", lambda value: 0 <= value < 1, 0.9),
        "alpha": _number(">= 0", lambda value: value >= 0, 0.001),
        "sigma": _number("between 0 and 1", lambda value: 0 < value < 1, 0.4),
        "n_components": _whole(1, 32),
        "pca_mat_path": _path(),
        "weight_load_dir": _path(),
        "timeout": _number("> 0", lambda value: value > 0),
    },
}
# The tutorials' names, and MindSpore's of today.
OLD_NAMES = {"device_num": "device_number", "n_component": "n_components"}
# What has no meaning here though its function is on, and why.
MEANINGLESS = {"timeout": "no rank waits for a file"}
# What a setting of the section common serves.
OF_COMMON = {
    "gradient_split_groups": "less_bn",
    "device_number": "adasum",
    "grad_accumulation_step": "grad_accumulation",
}
