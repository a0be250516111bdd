"""A recipe's settings: a frozen dataclass, filled from a YAML file and ``name=value`` texts.

A field's annotation is its type (int, float, bool, str, or one of them ``| None``); its check is in
its metadata, see ``checked``. The dataclass calls ``check(self)`` in its ``__post_init__``.
No MindSpore import.
"""

import inspect
import json
import math
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, asdict, field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args

from labkit.base.files import whole_file
from labkit.base.yaml_values import read_yaml
from labkit.errors import InputError, nearest

Settings = TypeVar("Settings")
_INDENTED = {"initial_indent": " " * 6, "subsequent_indent": " " * 6}
_TRUTHS = {"true": True, "false": False}
_KINDS = {int: "a whole number", float: "a finite number", bool: "True or False", str: "a text"}


def checked(default: Any, expected: str, is_right: Callable[[Any], bool]) -> Any:
    """Return a dataclass field with a default and a check; ``expected`` says what is right."""
    return field(default=default, metadata={"expected": expected, "is_right": is_right})


def count(default: int | None, low: int = 1) -> Any:
    """Return a dataclass field for whole numbers from ``low`` on."""
    return checked(default, f"a whole number >= {low}", lambda value: value >= low)


def number(default: float, expected: str, is_right: Callable[[float], bool]) -> Any:
    """Return a dataclass field for finite numbers."""
    return checked(default, expected, lambda value: math.isfinite(value) and is_right(value))


def one_of(default: Any, known: Iterable[Any]) -> Any:
    """Return a dataclass field for one of the values that ``known`` holds."""
    known = tuple(known)
    return checked(default, f"one of {', '.join(map(str, known))}", lambda value: value in known)


def check(settings: Any) -> None:
    """Raise ``InputError`` for a value of the wrong type, and one that its field's check refuses.

    Whole numbers become floats where a float is expected.
    """
    for one in fields(settings):
        value = getattr(settings, one.name)
        kind, optional = _kind(one.type)
        if value is None and optional:
            continue
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            # No float is as large as 10^400; infinity is refused below.
            value = float(value) if abs(value) < 2**1023 else math.inf
            object.__setattr__(settings, one.name, value)
        is_right = one.metadata.get("is_right", lambda value: True)
        if type(value) is not kind or not is_right(value):
            expected = one.metadata.get("expected", _KINDS[kind])
            also = " or None" if optional else ""
            raise InputError(f"{one.name} is {value!r}; expected {expected}{also}")


def read(
    kind: type[Settings],
    path: str | os.PathLike | None = None,
    assignments: Iterable[str] = (),
    base: Settings | None = None,
) -> Settings:
    """Return settings: ``base`` or the defaults, then those of a file, then the assignments.

    kind         the dataclass
    path         YAML file (JSON is YAML too) with one mapping of names to values, or None
    assignments  texts ``name=value``; the last of a name counts

    Texts are read as the field's type: ``1e-4`` and ``None`` are a number and None. Raises
    ``InputError`` for a file that cannot be read, an unknown name (with the nearest one), and
    values that are not right.
    """
    given = {} if base is None else asdict(base)
    known = {one.name: one for one in fields(kind)}
    found = list((_mapping(path) if path is not None else {}).items())
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--set {text}; expected name=value")
        found.append((name.strip(), value.strip()))
    for name, value in found:
        if name not in known:
            raise InputError(
                f"unknown setting {name!r}.{nearest(name, known)} The settings are: "
                f"{', '.join(known)}"
            )
        given[name] = _from_text(known[name], value) if isinstance(value, str) else value
    missing = [n for n, one in known.items() if one.default is MISSING and n not in given]
    if missing:
        raise InputError(f"{', '.join(missing)} came from nowhere; expected a value")
    return kind(**given)


def write(settings: Any, path: Path) -> None:
    """Write settings as JSON that ``read`` takes; complete, or not at all."""
    write_json(asdict(settings), path)


def write_json(content: Any, path: Path) -> None:
    """Write a JSON file whole, or not at all."""
    with whole_file(path, "the settings") as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n")


def lines(settings: Any) -> str:
    """Return one line ``  name value`` for each setting, the values aligned."""
    values = asdict(settings)
    width = max(map(len, values))
    return "\n".join(f"  {name.ljust(width)}  {value}" for name, value in values.items())


def overview(named: Mapping[str, Any], *others: type) -> str:
    """Return for each setting its name, type, default and what is right, and what it means.

    named   settings by name, the first of which are the defaults
    others  settings whose docstrings say what these call "as in", or leave out
    """
    kind = type(next(iter(named.values())))
    meanings: dict[str, str] = {}
    for one in (kind, *others):
        for name, words in _meanings(one).items():
            if name not in meanings or meanings[name].startswith("as in"):
                meanings[name] = words
    found = []
    for one in fields(kind):
        words = meanings.get(one.name, "").replace("``", "")
        found += [f"  {_headline(one, named)}", *textwrap.wrap(words, 94, **_INDENTED)]
    return "\n".join(found)


def _headline(one, named: Mapping[str, Any]) -> str:
    (_, base), *rest = named.items()
    kind, optional = _kind(one.type)
    default = getattr(base, one.name)
    differing = [
        f"{name}: {getattr(settings, one.name)}"
        for name, settings in rest
        if getattr(settings, one.name) != default
    ]
    also = f" ({'; '.join(differing)})" if differing else ""
    expected = one.metadata.get("expected", _KINDS[kind]) + (" or None" if optional else "")
    return f"{one.name}: {kind.__name__} = {default}{also}, {expected}"


def _meanings(kind: type) -> dict[str, str]:
    """Return what a dataclass's docstring says of its fields, in the table of names and words."""
    known = {one.name for one in fields(kind)}
    found: dict[str, str] = {}
    names: list[str] = []
    waits = False  # for further names, or for the words
    for line in inspect.getdoc(kind).splitlines():
        left, _, words = line.partition("  ")
        own = [name for name in re.split(r",\s*", left.strip()) if name]
        if left and set(own) <= known:
            names = [*names, *own] if waits else own
            waits = not words.strip()
        elif left:
            names = []
        for name in names if words.strip() else ():
            waits = False
            found[name] = f"{found.get(name, '')} {words.strip()}".strip()
    return found


def _mapping(path) -> Mapping[str, Any]:
    content = read_yaml(path)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InputError(f"{path} holds a {type(content).__name__}; expected name: value lines")
    return content


def _kind(annotation) -> tuple[type, bool]:
    """Return (type, whether None is right too) of a field's annotation."""
    if isinstance(annotation, UnionType):
        (kind,) = (one for one in get_args(annotation) if one is not NoneType)
        return kind, True
    return annotation, False


def _from_text(one, text: str):
    """Return a text as the type of its field; as it is where it is none, for ``check`` to say."""
    kind, optional = _kind(one.type)
    if optional and text.lower() in ("none", "null"):
        return None
    if kind is bool:
        return _TRUTHS.get(text.lower(), text)
    try:
        return kind(text)
    except ValueError:
        return text
