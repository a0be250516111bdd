"""Values as users write them: in a YAML file, after ``-p name=``, in a recipe's option.

One reader for all of them, YAML with the words that people use, not all of YAML 1.1: ``010`` is the
number 10, ``1e-3`` a number, ``1:30`` a text, ``None``, ``null`` and ``~`` are null; ``yes`` and
``on`` are texts. After ``-p`` the characters ``#``, ``&`` and ``*`` have no meaning of their own.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

import yaml

from labkit.errors import InputError

_TAG = "tag:yaml.org,2002:"
_WORDS = (
    ("null", r"~|null|Null|NULL|None|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:\d+\.\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?\d+[eE][-+]?\d+",
        list("-+.0123456789"),
    ),
)
_ENDS = {"[": "]", "{": "}", "'": "'", '"': '"'}


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict = {}


for _kind, _pattern, _first in _WORDS:
    _Loader.add_implicit_resolver(_TAG + _kind, re.compile(f"(?:{_pattern})$"), _first)
_Loader.add_constructor(_TAG + "int", lambda loader, node: int(loader.construct_scalar(node)))
_Loader.add_constructor(_TAG + "float", lambda loader, node: float(loader.construct_scalar(node)))


def read_yaml(path: str | os.PathLike, first: bool = False) -> Any:
    """Return the value in a YAML file (JSON is YAML too).

    Args:
        path: path of the file.
        first: take the first of several documents instead of refusing them.

    Raises:
        InputError: if it cannot be read, or holds what JSON cannot.
    """
    try:
        return _plain(Path(path).read_text("utf-8"), first)
    except (OSError, UnicodeDecodeError, InputError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error


def parse(text: str) -> Any:
    """Return the value of a text after ``-p name=`` or of a recipe's option.

    Lists, mappings and quoted texts are YAML's; everything else is one word.

    Raises:
        InputError: for a list, mapping or quoted text that does not end.
    """
    text = text.strip()
    if text[:1] in ("[", "{", '"', "'"):
        return _plain(text)
    kind = _Loader("").resolve(yaml.ScalarNode, text, (True, False))
    return text if kind == _TAG + "str" else _plain(text)


def parse_several(text: str) -> list[Any]:
    """Return the values of ``1,2,[3, 4]``: a comma within brackets, braces or quotes is no end.

    Raises:
        InputError: as ``parse`` does, and where there is nothing between two commas.
    """
    parts: list[str] = [""]
    ends: list[str] = []  # that close what is open
    for character in text:
        if character == "," and not ends:
            parts.append("")
            continue
        if ends and character == ends[-1]:
            ends.pop()
        elif character in _ENDS and (ends or not parts[-1].strip()):
            ends.append(_ENDS[character])
        parts[-1] += character
    if not all(part.strip() for part in parts):
        raise InputError(f"expected values separated by commas, got {text!r}")
    return [parse(part) for part in parts]


def _plain(text: str, first: bool = False) -> Any:
    try:
        loader = _Loader(text)
        value = loader.get_data() if first else loader.get_single_data()
        json.dumps(value, allow_nan=False)  # run.json and results.json record the values
    except (yaml.YAMLError, RecursionError, TypeError, ValueError) as error:
        raise InputError(
            f"not YAML that can be kept as JSON: {' '.join(str(error).split())}"
        ) from error
    return value
