"""The defaults of the steps and algorithms do not change, and frozen options stay frozen.

After changing a default on purpose and recording it in CHANGELOG, run:
python -m tests.project.test_defaults
"""

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from labkit import algorithms, steps

DEFAULTS = Path(__file__).with_suffix(".txt")


def modules() -> Iterator[ModuleType]:
    for room in (steps, algorithms):
        for info in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
            yield importlib.import_module(info.name)


def callables(module: ModuleType) -> Iterator[Any]:
    """Yield the functions, classes and public methods of classes that a module defines."""
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", "") != module.__name__:
            continue
        if inspect.isclass(value):
            yield value
            for method in vars(value):
                if not method.startswith("_") and callable(getattr(value, method)):
                    yield getattr(value, method)
        elif inspect.isfunction(value):
            yield value


def defaults() -> list[str]:
    lines = set()
    for module in modules():
        for value in callables(module):
            given = {
                name: repr(own.default)
                for name, own in inspect.signature(value).parameters.items()
                if own.default is not own.empty
            }
            place = f"{module.__name__}.{value.__qualname__}"
            if dataclasses.is_dataclass(value):
                # An object that can change after it was checked would bypass its checks.
                given["frozen"] = repr(value.__dataclass_params__.frozen)
            lines |= {f"{place}: {name}={default}" for name, default in given.items()}
    return sorted(lines)


def test_no_default_has_changed():
    assert defaults() == DEFAULTS.read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    DEFAULTS.write_text("\n".join(defaults()) + "\n", encoding="utf-8")
