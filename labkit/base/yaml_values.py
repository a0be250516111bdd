"""YAML written by others, as plain values: no code, and no more values than the text has."""

import json
import os
from pathlib import Path
from typing import Any

import yaml

from labkit.base.input_files import read_text
from labkit.errors import InputError

# PyYAML reads some 50 kB a second. A recipe's settings with comments are 2 kB.
LONGEST = 1 << 16
# For each token PyYAML looks at all open brackets. Once MindSpore has raised the recursion limit to
# 10 000, 60 kB of "[" take 5 s.
_DEEPEST = 100
# Besides its own errors PyYAML propagates those of values: 2024-13-45 raises ValueError, !!bool x
# KeyError, !!timestamp x AttributeError, and some hundred nested brackets RecursionError.
_FAULTS = (
    yaml.YAMLError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


def read_yaml(path: str | os.PathLike, first: bool = False) -> Any:
    """Return the value in a YAML file; raise ``InputError`` if it cannot be read.

    Args:
        path: path of the file.
        first: take the first of several documents instead of refusing them.
    """
    try:
        return parse_yaml(read_text(Path(path), LONGEST), first=first)
    except (OSError, InputError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error


def parse_yaml(
    text: str, loader: type[yaml.SafeLoader] = yaml.SafeLoader, first: bool = False
) -> Any:
    """Return the value of a YAML text.

    An alias may only repeat a single value: aliases of lists can turn 355 bytes into 10^9 values.

    Args:
        text: At most 2^16 characters.
        loader: Class that turns the text's nodes into plain values.
        first: As in ``read_yaml``.

    Raises:
        InputError: For aliases of lists or mappings, text that is not YAML, a longer text, and
            more than 100 nested brackets.
    """
    if len(text) > LONGEST:
        raise InputError(f"expected YAML of at most {LONGEST} letters, got {len(text)}")

    class Loader(loader):
        def fetch_flow_collection_start(self, token_class: type[yaml.Token]) -> None:
            if self.flow_level >= _DEEPEST:
                raise InputError(f"YAML with more than {_DEEPEST} brackets in each other")
            super().fetch_flow_collection_start(token_class)

        def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node:
            if self.check_event(yaml.AliasEvent):
                event = self.peek_event()
                node = self.anchors.get(event.anchor)
                if isinstance(node, yaml.CollectionNode):
                    raise InputError(f"*{event.anchor} repeats a list or mapping; write it out")
            return super().compose_node(parent, index)

    try:
        value = Loader(text).get_data() if first else yaml.load(text, Loader=Loader)
        # Numbers of more than 4300 digits cannot be printed, lone surrogates cannot be encoded.
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except InputError:
        raise
    except _FAULTS as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"no YAML that can be used: {reason}") from error
    return value
