"""Requests of `labkit run` and `labkit sweep`, checked before anything is created.

The runs of a sweep are all combinations of its parameters' values.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from labkit.base.arguments import wrong
from labkit.base.project import find_project
from labkit.base.yaml_values import parse_yaml
from labkit.errors import InputError, refuse_unknown
from labkit.labs.presets import LABS, PRESETS, choose
from labkit.runtime import DEVICES, available_devices
from labkit.tools import labs as lab_files
from labkit.tools.labs import Lab

_PLAIN = re.compile(r"[\w.+=,-]+", re.ASCII)  # a name has at most 255 bytes
_SHOWN = 100  # characters of a -p that a message repeats


class _Values(yaml.SafeLoader):
    """YAML's safe loader, reading 1e-3 as a number and leaving dates as text."""

    yaml_implicit_resolvers = {
        first: [pair for pair in pairs if not pair[0].endswith(":timestamp")]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


# YAML 1.1 requires 1.0e-3: PyYAML reads a learning rate of 1e-3 as a string.
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)[eE][-+]?\d+$")
_Values.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+.0123456789"))


@dataclass(frozen=True)
class Request:
    """A checked request of `labkit run`; nothing in it can be refused later."""

    project: Path
    labs: tuple[Lab, ...]
    preset: str
    device: str
    parameters: Mapping[str, Mapping[str, Any]]  # by name of lab

    def of(self, lab: Lab) -> Mapping[str, Any]:
        """Return the parameters that were asked for ``lab``."""
        return self.parameters[lab.name]


def check(
    names: Sequence[str] = (),
    *,
    preset: str = "lab",
    device: str = "auto",
    parameters: Iterable[str] | Mapping[str, Any] = (),
    before: Mapping[str, Mapping[str, Any]] | None = None,
    start: Path | None = None,
) -> Request:
    """Check a request; create nothing.

    Args:
        names: names of the labs; all labs if empty.
        preset: smoke, lab or paper.
        device: auto, Ascend, GPU or CPU.
        parameters: strings ``name=value``, the value in YAML, or values by name; for all these
            labs.
        before: parameters of each lab, by its name, in the run that is resumed; ``parameters``
            override them.
        start: a folder of the project; the working folder if not given.

    Raises:
        InputError: if a lab, preset, device or parameter is unknown, if one of the labs does not
            have the preset or parameter or cannot run with a value, or if the device is not on
            this machine.
    """
    project = find_project(start)
    chosen = lab_files.pick(lab_files.find_labs(project), names)
    refuse_unknown("preset", preset, PRESETS)
    refuse_unknown("device", device, DEVICES)
    if not isinstance(parameters, Mapping):
        parameters = parse_parameters(parameters)
    of_labs = {lab.name: {**(before or {}).get(lab.name, {}), **parameters} for lab in chosen}
    for lab in chosen:
        named = of_labs[lab.name]
        refuse_unknown(f"preset of lab {lab.name}", preset, lab.presets)
        known = [n for n in lab_files.parameter_names(lab) if n not in ("preset", "device")]
        for name in named:
            refuse_unknown(f"parameter of lab {lab.name}", name, known)
        if lab.name in LABS:
            choose(lab.name, preset, **named)
    if device not in ("auto", "CPU"):
        present = available_devices()
        if device not in present:
            raise InputError(
                f"device {device} was requested but is not available; MindSpore can use: "
                f"{', '.join(present)}"
            )
    return Request(project, chosen, preset, device, of_labs)


def parse_parameters(texts: Iterable[str]) -> dict[str, Any]:
    """Return ``{"epochs": 3, "learning_rate": 0.001}`` for ``["epochs=3", "learning_rate=1e-3"]``.

    Raises:
        InputError: if a string has no ``=``, a name is given twice or has its own option, or a
            value is not YAML.
    """
    named: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name.isidentifier():
            raise wrong("-p", text, "NAME=VALUE, as in -p epochs=2")
        if name in ("preset", "device"):
            raise wrong("-p", text, "a parameter without an option", f" Use --{name} {value}")
        if name in named:
            raise InputError(f"-p: expected each parameter once, got {name!r} twice")
        try:
            named[name] = parse_yaml(value, _Values)
            # run.json and results.json record the values.
            json.dumps(named[name], allow_nan=False)
        except (InputError, TypeError, ValueError) as error:
            expected = "a value that can be read as YAML and be kept as JSON"
            raise wrong("-p", text[:_SHOWN], expected, f" {error}") from error
    return named


def parse_grid(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Return ``{"seed": [1, 2]}`` for ``["seed=1,2"]``; the values are YAML, lists in brackets.

    Raises:
        InputError: if a string is not name=value,value or gives a value twice.
    """
    grid = {}
    # In brackets, comma-separated values are a YAML list.
    listed = (re.sub(r"^([^=]*)=(.*)$", r"\1=[\2]", text, flags=re.DOTALL) for text in texts)
    for name, values in parse_parameters(listed).items():
        if not values:
            raise wrong("-p", f"{name}=", f"one value or several, as in -p {name}=1,2")
        for index, value in enumerate(values):
            if (type(value), value) in [(type(other), other) for other in values[:index]]:
                raise InputError(f"-p {name}: expected each value once, got {value!r} twice")
        grid[name] = values
    if not grid:
        raise InputError("-p: expected at least one parameter, as in -p seed=1,2,3, got none")
    return grid


def points(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return the grid's combinations, the last parameter changing fastest."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def of_grid(
    lab: str, grid: Mapping[str, Sequence[Any]], *, preset: str, device: str
) -> list[Request]:
    """Return a checked request for each point of the grid; errors as in ``check``."""
    first, *others = points(grid)
    request = check([lab], preset=preset, device=device, parameters=first)
    if len(request.labs) > 1:
        raise wrong("LAB", lab, "one lab")
    name = request.labs[0].name
    for point in others if name in LABS else ():
        choose(name, preset, **point)
    return [replace(request, parameters={name: point}) for point in (first, *others)]


def folder_name(parameters: Mapping[str, Any]) -> str:
    """Return ``micro_steps=4,seed=1``: the same for the same values, whatever their order."""
    name = ",".join(f"{key}={text(parameters[key])}" for key in sorted(parameters))
    if _PLAIN.fullmatch(name) and len(name) <= 120:
        return name
    # A digest distinguishes names that a file system might refuse or treat as equal.
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return re.sub(r"[^\w.+=,-]+", "_", name, flags=re.ASCII)[:110] + "-" + digest


def text(value: Any) -> str:
    """Return a parameter's value as it is written after ``-p name=``."""
    if isinstance(value, float):
        return repr(value)
    written = yaml.safe_dump(value, default_flow_style=True, width=10**6).strip()
    return written.removesuffix("\n...").strip()
