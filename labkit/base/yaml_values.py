"""YAML that others have written, as plain values: no code, no more values than the text has."""

import json
import os
from pathlib import Path
from typing import Any

import yaml

from labkit.base.input_files import read_text
from labkit.errors import InputError

# PyYAML reads some 50 kB a second. A recipe's settings with comments are 2 kB.
LONGEST = 1 << 16
# For each token PyYAML looks at all brackets that are open. Where MindSpore has raised the limit of
# recursion to 10 000, 60 kB of "[" take it 5 s.
_DEEPEST = 100
# Besides its own errors PyYAML passes on what a value happens to raise: 2024-13-45 ValueError,
# !!bool x KeyError, !!timestamp x AttributeError, brackets some hundred times RecursionError.
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
    """Return the value in a YAML file; ``InputError`` where it cannot be read.

    Args:
        path: of the file.
        first: take the first document of several, where another would be refused.
    """
    try:
        return parse_yaml(read_text(Path(path), LONGEST), first=first)
    except (OSError, InputError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error


def parse_yaml(
    text: str, loader: type[yaml.SafeLoader] = yaml.SafeLoader, first: bool = False
) -> Any:
    """Return the value of a YAML text.

    An alias may repeat a single value only: aliases of lists make 10^9 values of 355 bytes.

    Args:
        text: Of at most 64 kB.
        loader: What makes plain values of the text's nodes.
        first: As in ``read_yaml``.

    Raises:
        InputError: For aliases of lists, for what is no YAML, for a longer text, and for more than
            100 brackets in each other.
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
        # Numbers of more than 4300 digits cannot be printed, halves of letters not be written.
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except InputError:
        raise
    except _FAULTS as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"no YAML that can be used: {reason}") from error
    return value
