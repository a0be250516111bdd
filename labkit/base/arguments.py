"""Arguments and values, wherever they come from: a call, a YAML file, a command line.

    decay = number("decay", decay, at_least=0, below=1)     0 <= decay < 1

Each check returns a plain Python value or raises ``InputError``; NumPy's numbers count, True and
False do not. Values that users write are YAML with the words that people use: ``010`` is 10,
``1e-3`` a number, ``None`` is null; ``1:30``, ``yes`` and ``on`` are texts.
"""

import argparse
import json
import math
import operator
import os
import re
from collections.abc import Callable, Iterable
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NoReturn

import yaml

from labkit.base.machine import cores
from labkit.errors import InputError, nearest

_COMPARED = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}


def is_integer(value: object) -> bool:
    """Return whether ``value`` is an integer, and not a bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Return whether ``value`` is a finite real number, and not a bool."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer beyond the floats
        return False


def integer(name: str, value: object, at_least: int = 1, at_most: int | None = None) -> int:
    """Return ``value`` as an int; raise ``InputError`` unless at_least <= value <= at_most."""
    return int(_bounded(name, value, is_integer, "an integer", {">=": at_least, "<=": at_most}))


def number(
    name: str,
    value: object,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
) -> float:
    """Return ``value`` as a float; raise ``InputError`` unless it is finite and within bounds."""
    bounds = {">=": at_least, ">": above, "<=": at_most, "<": below}
    return float(_bounded(name, value, is_number, "a finite number", bounds))


def _bounded(name: str, value: Any, is_one: Callable, kind: str, bounds: dict) -> Any:
    bounds = {sign: bound for sign, bound in bounds.items() if bound is not None}
    if is_one(value) and all(_COMPARED[sign](value, bound) for sign, bound in bounds.items()):
        return value
    words = " and ".join(f"{sign} {bound}" for sign, bound in bounds.items())
    raise wrong(name, value, f"{kind} {words}".rstrip())


def flag(name: str, value: object) -> bool:
    """Return ``value``; raise ``InputError`` unless it is True or False."""
    if not isinstance(value, bool):
        raise wrong(name, value, "True or False")
    return value


def choice(name: str, value: object, words: Iterable[str]) -> str:
    """Return ``value``; raise ``InputError``, naming the nearest, unless it is one of ``words``."""
    words = tuple(words)
    if not isinstance(value, str) or value not in words:
        raise wrong(name, value, "one of " + ", ".join(map(repr, words)), nearest(value, words))
    return value


# Path would make folders of these: "", ~nobody, s3://bucket, which then is s3:/bucket.
_NO_PATH = re.compile(r"\s*$|~|[A-Za-z][\w+.-]+:/")


def local_path(name: str, value: object, expected: str = "a path on this machine") -> Path:
    """Return ``value`` as a Path, ~ as the home folder; raise ``InputError`` for an address."""
    text = os.path.expanduser(value) if isinstance(value, str | os.PathLike) else ""
    if _NO_PATH.match(os.fsdecode(text)):
        raise wrong(name, value, expected)
    return Path(text)


def seed(value: object, name: str = "seed") -> int:
    """Return a seed that NumPy and MindSpore both take: an integer from 0 to 2**32 - 1."""
    return integer(name, value, 0, 2**32 - 1)


def wrong(name: str, value: object, expected: str, hint: str = "") -> InputError:
    """Return the error for an argument: what was expected, and what was given."""
    return InputError(f"{name}: expected {expected}, got {value!r}{hint and '.' + hint}")


def fit_workers(workers: object) -> int:
    """Return ``workers``, limited to this process's cores; print a message if that is fewer."""
    workers, most = integer("num_parallel_workers", workers), math.ceil(cores())
    if workers > most:
        print(f"num_parallel_workers: {workers} asked for, {most} used: there are {most} cores")
    return min(workers, most)


class Parser(argparse.ArgumentParser):
    """Accepts options by their full names only, and suggests the nearest for a misspelled one."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Print the message, with the nearest name, and exit with code 2."""
        if found := re.match(r"unrecognized arguments: ([^\s=]+)", message):
            known = [name for name in self._option_string_actions if name.startswith("--")]
            message += "." + nearest(found[1], known)
        elif found := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)$", message):
            message += "." + nearest(found[1], re.findall(r"'([^']*)'", found[2]))
        super().error(message)


_TAG = "tag:yaml.org,2002:"
_BEGINS = set("[{'\"")  # of what is YAML's; everything else is one word


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict = {}

    def construct_mapping(self, node: Any, deep: bool = False) -> dict:
        made = super().construct_mapping(node, deep)
        if len(made) < len(node.value):  # YAML's own rule; PyYAML takes the last
            raise InputError(f"expected each name once, got {[key.value for key, _ in node.value]}")
        return made


for _kind, _pattern, _first in (
    ("null", r"~|null|Null|NULL|None|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+", list("-+0123456789")),
    ("float", r"[-+]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][-+]?\d+)?", list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(_TAG + _kind, re.compile(f"(?:{_pattern})$"), _first)
for _kind, _type in (("int", int), ("float", float)):
    _Loader.add_constructor(
        _TAG + _kind, lambda loader, node, make=_type: make(loader.construct_scalar(node))
    )


def read_yaml(file: str | os.PathLike) -> Any:
    """Return the value in a YAML file (JSON is YAML too); raise ``InputError`` if it has none."""
    path = local_path("file", file)
    try:
        return _plain(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, InputError) as error:
        raise InputError(f"{file} cannot be read: {error}") from error


def parse(text: str) -> Any:
    """Return the value of a text after ``-p name=`` or of a recipe's option."""
    text = text.strip()
    if text[:1] in _BEGINS:
        return _plain(text)
    kind = _Loader("").resolve(yaml.ScalarNode, text, (True, False))
    return text if kind == _TAG + "str" else _plain(text)


def parse_several(text: str) -> list[Any]:
    """Return the values of ``1,2,[3, 4]``: a comma within brackets, braces or quotes is no end."""
    if _BEGINS & set(text):
        return _plain(f"[{text}]")
    if not all(part.strip() for part in text.split(",")):
        raise InputError(f"expected values separated by commas, got {text!r}")
    return list(map(parse, text.split(",")))


def _plain(text: str) -> Any:
    try:
        value = _Loader(text).get_single_data()
        json.dumps(value)  # no dates, bytes or sets of a tag, and nothing that contains itself
        return value
    except Exception as error:  # PyYAML's constructors raise many types
        raise InputError(f"not YAML: {error}") from error
