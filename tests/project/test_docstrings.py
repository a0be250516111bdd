"""Docstrings of the public names, in Google form: every parameter, what is raised, and types."""

import builtins
import inspect
import re

import pytest

import labkit
from labkit import errors

SECTIONS = ("Args", "Attributes", "Returns", "Raises")
HEADER = re.compile(rf"^({'|'.join(SECTIONS)}):$")
ENTRY = re.compile(r"^    (\w[\w.]*): \S")


def sections(documentation):
    """Return section -> {entry: its first line} of a docstring."""
    parsed, section, entry = {}, None, None
    for line in inspect.cleandoc(documentation or "").splitlines():
        if header := HEADER.match(line):
            section, entry = header[1], None
            parsed[section] = {}
        elif section and (start := ENTRY.match(line)):
            entry = start[1]
            parsed[section][entry] = [line]
        elif section and line and not line.startswith("    "):
            section = None
    return parsed


def parameters(value):
    """Return the parameters that a caller of a class or function gives by name."""
    signature = inspect.signature(value)
    return {
        name: parameter
        for name, parameter in signature.parameters.items()
        if name not in ("self", "cls") and parameter.kind != parameter.VAR_POSITIONAL
    }


@pytest.mark.parametrize("name", [name for name in labkit.__all__ if name != "attach"])
def test_every_parameter_is_typed_and_documented(name):
    value = getattr(labkit, name)
    documented = sections(value.__doc__)
    known = documented.get("Args", {}) | documented.get("Attributes", {})
    own = parameters(value)
    # The settings of a lab are those of its notebook: ``choose`` alone cannot spell them out.
    keywords = {p for p, parameter in own.items() if parameter.kind == parameter.VAR_KEYWORD}
    assert keywords == ({"named"} if name == "choose" else set())
    own = {p: parameter for p, parameter in own.items() if p not in keywords}
    assert [p for p in own if p not in known] == []
    assert [p for p in documented.get("Args", {}) if p not in own] == []
    untyped = [p for p, parameter in own.items() if parameter.annotation is parameter.empty]
    assert untyped == []


@pytest.mark.parametrize("name", labkit.__all__)
def test_what_is_raised_is_named_and_exists(name):
    raised = sections(getattr(labkit, name).__doc__).get("Raises", {})
    known = vars(builtins) | vars(errors)
    assert [error for error in raised if error not in known] == []


def test_the_parser_sees_what_is_missing():
    def documented(first, second):
        """Do it.

        Args:
            first: a number.
              Not: an entry, but a line of it.

        Raises:
            ValueError: always.
        """

    assert sections(documented.__doc__) == {
        "Args": {"first": ["    first: a number."]},
        "Raises": {"ValueError": ["    ValueError: always."]},
    }
    assert list(parameters(documented)) == ["first", "second"]
