"""The runs of a sweep: every combination of the values that its parameters are to take."""

import hashlib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from labkit.errors import InputError
from labkit.tools.running import request
from labkit.tools.running.request import Request

_PLAIN = re.compile(r"[\w.+=,-]+")


def parse(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Return ``{"seed": [1, 2]}`` for ``["seed=1,2"]``; the values are YAML, lists in brackets.

    Raises:
        InputError: when a text is not name=value,value, or names a value twice.
    """
    grid = {}
    # In brackets, what stands between commas is one YAML list.
    listed = (re.sub(r"^([^=]*)=(.*)$", r"\1=[\2]", text, flags=re.DOTALL) for text in texts)
    for name, values in request.parse_parameters(listed).items():
        if not values:
            raise InputError(f"-p {name}= has no value; expected some, as in -p {name}=1,2")
        for index, value in enumerate(values):
            if any(_same(value, other) for other in values[:index]):
                raise InputError(f"-p {name}: the value {value!r} was given twice")
        grid[name] = values
    if not grid:
        raise InputError("a sweep needs at least one parameter, as in -p seed=1,2,3")
    return grid


def points(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return the grid's combinations, the last parameter changing fastest."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def requests(
    lab: str,
    grid: Mapping[str, Sequence[Any]],
    *,
    preset: str,
    device: str,
    start: Path | None = None,
) -> list[Request]:
    """Return a checked request for each point of the grid; errors as in ``request.check``."""
    return [
        request.check([lab], preset=preset, device=device, parameters=point, start=start)
        for point in points(grid)
    ]


def folder_name(parameters: Mapping[str, Any]) -> str:
    """Return ``micro_steps=4,seed=1``: the same for the same values, whatever their order."""
    name = ",".join(f"{key}={text(parameters[key])}" for key in sorted(parameters))
    if _PLAIN.fullmatch(name) and len(name) <= 120:
        return name
    # What a file system may refuse, or fold together, is told apart by a digest.
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return re.sub(r"[^\w.+=,-]+", "_", name)[:110] + "-" + digest


def text(value: Any) -> str:
    """Return a parameter's value as it is written after ``-p name=``."""
    if isinstance(value, float):
        return repr(value)
    written = yaml.safe_dump(value, default_flow_style=True, width=10**6).strip()
    return written.removesuffix("\n...").strip()


def _same(left: Any, right: Any) -> bool:
    return type(left) is type(right) and left == right
