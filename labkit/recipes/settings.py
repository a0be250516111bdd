"""A recipe's settings: a frozen dataclass, filled from a YAML file and ``name=value`` texts.

The functions below make its fields, each with a default, a meaning and a rule. A subclass may
change the default alone, ``batch_size: int = 32``, and inherits meaning and rule. The dataclass
calls ``check(self)`` in its ``__post_init__``. No MindSpore import.
"""

import argparse
import json
import os
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

from labkit.base import arguments
from labkit.base.arguments import parse, read_yaml
from labkit.base.files import write_json
from labkit.errors import InputError, nearest
from labkit.recipes import models
from labkit.steps import options

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Settings = TypeVar("Settings", bound="DataclassInstance")


@dataclass(frozen=True)
class _Rule:
    """The meaning of a setting, its expected values, and (name, value) -> the checked value."""

    meaning: str
    expected: str
    check: Callable[[str, Any], Any]


def count(default: int | None, meaning: str, at_least: int = 1) -> Any:
    """Return a field for integers >= ``at_least``."""
    expected = f"an integer >= {at_least}"
    return _field(default, meaning, expected, lambda n, v: arguments.integer(n, v, at_least))


def _numbers(expected: str, **bounds: float) -> Callable[[float, str], Any]:
    """Return a function (default, meaning) -> field for finite numbers within bounds."""

    def make(default: float, meaning: str) -> Any:
        return _field(default, meaning, expected, lambda n, v: arguments.number(n, v, **bounds))

    return make


positive = _numbers("a finite number > 0", above=0)
rate = _numbers("a finite number >= 0", at_least=0)
share = _numbers("a finite number >= 0 and < 1", at_least=0, below=1)
inside = _numbers("a finite number > 0 and < 1", above=0, below=1)


def one_of(default: Any, known: Iterable[Any], meaning: str) -> Any:
    """Return a field for one of the words, or one of the integers, that ``known`` holds."""
    known = tuple(known)
    expected = f"one of {', '.join(map(str, known))}"

    def check(name: str, value: Any) -> Any:
        if isinstance(default, str):
            return arguments.choice(name, value, known)
        if not arguments.is_integer(value) or value not in known:
            raise arguments.wrong(name, value, expected)
        return int(value)

    return _field(default, meaning, expected, check)


def flag(default: bool, meaning: str) -> Any:
    """Return a field for True or False."""
    return _field(default, meaning, "True or False", arguments.flag)


def path(default: str | None, meaning: str, what: str = "the path of a folder") -> Any:
    """Return a field for non-empty texts."""

    def check(name: str, value: Any) -> str:
        if not isinstance(value, str) or not value:
            raise arguments.wrong(name, value, what)
        return value

    return _field(default, meaning, what, check)


def indices(default: tuple[int, ...] | None, meaning: str) -> Any:
    """Return a field for increasing integers: a YAML list, or numbers separated by commas."""
    return _field(default, meaning, options.INDICES, options.fusion_indices)


def seed(default: int, meaning: str) -> Any:
    """Return a field for seeds."""
    expected = f"an integer >= 0 and <= {arguments.MAX_SEED}"
    return _field(default, meaning, expected, lambda name, value: arguments.seed(value, name))


def _field(default: Any, meaning: str, expected: str, check: Callable[[str, Any], Any]) -> Any:
    return field(default=default, metadata={"rule": _Rule(meaning, expected, check)})


def check(settings: Any) -> None:
    """Check every setting and convert it to a plain Python value.

    Raises:
        InputError: if a setting is not what its rule expects.
    """
    for each in _fields(type(settings)):  # type: ignore[arg-type]
        value = getattr(settings, each.name)
        optional = _is_optional(each)
        if value is None and optional:
            continue
        rule = _rule(type(settings), each.name)
        try:
            object.__setattr__(settings, each.name, rule.check(each.name, value))
        except InputError:
            if not optional:
                raise
            raise arguments.wrong(each.name, value, f"{rule.expected} or None") from None


def read(
    kind: type[Settings],
    path: str | os.PathLike | None = None,
    assignments: Iterable[str] = (),
    base: Settings | None = None,
) -> Settings:
    """Return ``base`` or the defaults, changed by the file and then by the assignments.

    Args:
        kind: the dataclass.
        path: YAML file (JSON is YAML too) with a mapping of names to values, or None. Only its
            first document is read: in the models repository the others are help texts. The keys of
            that repository are accepted too, see ``models``.
        assignments: texts ``name=value``; the last one for a name counts.
        base: settings to start from; None for the defaults.

    Returns:
        The settings. Texts are converted to the field's type: ``1e-4`` is a number, ``None`` None.

    Raises:
        InputError: if the file cannot be read, a name is unknown (the message has the nearest one),
            or a value is invalid.
    """
    values = {} if base is None else asdict(base)
    known = {each.name: each for each in _fields(kind)}
    content = None if path is None else read_yaml(path, first=True)
    content = {} if content is None else content
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected name: value lines, got a {type(content).__name__}")
    # YAML 1.1 reads the bare key "on" as True.
    content = {"on" if key is True and "on" in known else key: v for key, v in content.items()}
    changes = [(*item, f" in {path}") for item in models.translated(content, known).items()]
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--set: expected name=value, got {text}")
        changes.append((name.strip(), value.strip(), ""))
    for name, value, where in changes:
        if name not in known:
            hint = f"{nearest(name, known)} The settings are: {', '.join(known)}"
            raise InputError(f"unknown setting {name!r}{where}.{hint}")
        values[name] = _from_text(known[name], value) if isinstance(value, str) else value
    return kind(**values)


def write(settings: Any, path: Path) -> None:
    """Write settings as JSON that ``read`` accepts; the file is written whole or not at all."""
    write_json(path, asdict(settings), "the settings")


def lines(settings: Any) -> str:
    """Return one line ``  name value`` for each setting, the values aligned."""
    values = asdict(settings)
    width = max(map(len, values))
    return "\n".join(f"  {name.ljust(width)}  {value}" for name, value in values.items())


def yaml_text(settings: Any) -> str:
    """Return settings as YAML that ``read`` accepts, each below a comment with its meaning."""
    parts = []
    for each in fields(settings):
        meaning = textwrap.wrap(_rule(type(settings), each.name).meaning, 98)
        value = json.dumps(getattr(settings, each.name))
        parts.append("".join(f"# {line}\n" for line in meaning) + f"{each.name}: {value}\n")
    return "\n".join(parts)


def add_options(parser: argparse.ArgumentParser, named: Mapping[str, Any]) -> None:
    """Add an option for each setting, equivalent to ``--set NAME=VALUE``.

    Args:
        parser: parser with an option ``--set`` that appends.
        named: settings by name; the first are the defaults.
    """
    kind = type(next(iter(named.values())))
    group = parser.add_argument_group("settings")
    for each in _fields(kind):  # type: ignore[arg-type]
        words = f"{_rule(kind, each.name).meaning} ({_default(each, named)})".replace("%", "%%")
        kind_of_value = _kind(each)
        several = get_origin(kind_of_value) is tuple
        metavar = "INT,INT,..." if several else kind_of_value.__name__.upper()
        group.add_argument(
            f"--{each.name}", action=_Assign, dest="set", metavar=metavar, help=words
        )


class _Assign(argparse.Action):
    """Appends ``name=value`` to the values of ``--set``: the last one for a name counts."""

    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        given = [*getattr(namespace, self.dest), f"{(option or '').lstrip('-')}={values}"]
        setattr(namespace, self.dest, given)


def _default(each: Field, named: Mapping[str, Any]) -> str:
    """Return the default, the named settings that differ from it, and what is expected."""
    base = next(iter(named.values()))
    default = getattr(base, each.name)
    text = str(default)
    for name, settings in named.items():
        if getattr(settings, each.name) != default:
            text += f"; {name}: {getattr(settings, each.name)}"
    expected = _rule(type(base), each.name).expected + (" or None" if _is_optional(each) else "")
    return f"{text}; {expected}"


def _rule(kind: type, name: str) -> _Rule:
    """Return the rule of a setting, from the nearest class that states one."""
    of_classes = (getattr(base, "__dataclass_fields__", {}).get(name) for base in kind.__mro__)
    return next(each.metadata["rule"] for each in of_classes if each and each.metadata)


def _is_optional(each: Field) -> bool:
    return NoneType in get_args(each.type)


@cache
def _fields(kind: Any) -> tuple[Field, ...]:
    """Return the fields of settings with their types, not the texts of annotations."""
    hints = get_type_hints(kind)
    for each in fields(kind):
        each.type = hints[each.name]
    return fields(kind)


def _kind(each: Field) -> type:
    annotated: Any = each.type
    return get_args(annotated)[0] if _is_optional(each) else annotated


def _from_text(each: Field, text: str) -> Any:
    """Convert a text to its field's type; if it has another, keep it for ``check`` to report."""
    kind, value = _kind(each), parse(text)
    if value is None and _is_optional(each):
        return None
    if kind is str:
        return text
    if get_origin(kind) is tuple and isinstance(value, str):
        return parse(f"[{text.strip('()')}]")
    return value
